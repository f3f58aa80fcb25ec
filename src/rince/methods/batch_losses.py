"""Losses between the samples of one batch, without twin and bank: hierarchical triplet and Fast AP."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from rince.losses.fast_ap import fast_ap
from rince.losses.hierarchical_triplet import HierarchicalTriplet
from rince.config import FastAPMethod, HierarchicalTripletMethod, Recipe
from rince.views.pixels import QUERY_VIEW
from rince.errors import DataError
from rince.encoders.encoder import Encoder
from rince.ranks import TableRanks
from rince.sources.feed import Step
from rince.methods.method import Method, Outcome
from rince.train.runtime import Runtime
from rince.train.setup import Parts


class InBatch(Method):
    """One view of every sample, all samples against each other."""

    views = (QUERY_VIEW,)

    def __init__(self, recipe: Recipe, parts: Parts, encoder: Encoder, runtime: Runtime) -> None:
        super().__init__(recipe, parts, encoder, runtime)
        self._modules: dict[str, nn.Module] = {}
        self.loss: Callable[[Tensor, Tensor], Tensor]
        method = recipe.method
        if isinstance(method, FastAPMethod):
            self.loss = lambda embeddings, labels: fast_ap(embeddings, labels, bins=method.bins)
        else:
            assert isinstance(method, HierarchicalTripletMethod)
            assert isinstance(parts.rank_source, TableRanks)  # the recipe was checked
            loss = HierarchicalTriplet(parts.rank_source, slack=method.slack).to(runtime.device)
            self._modules, self.loss = {"loss": loss}, loss

    def modules(self) -> dict[str, nn.Module]:
        """How wide classes are, for the hierarchical triplet."""
        return self._modules

    def step(self, encoder: nn.Module, step: Step, *, logged: bool) -> Outcome:
        """Gradients of the loss."""
        with self.runtime.autocast():
            embeddings = encoder(step.views[0])
        loss = self.loss(embeddings, step.labels)
        if not loss.isfinite():
            raise DataError(f"step {step.step}: the loss is {loss.item()}")
        self.runtime.backward(loss)
        return Outcome({"loss": loss.item()}, {} if logged else None)
