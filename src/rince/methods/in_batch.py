"""The ranked loss within a batch: all views of all samples are queries, and candidates of each other.

No twin and no bank: the gradient goes to queries and candidates alike. An embedding is never its own candidate; the
other views of its sample are rank 1, all else is ranked by labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from rince.config import Recipe
from rince.errors import DataError
from rince.methods.contrast import log_values
from rince.methods.method import Given, Method, MethodKind, Outcome, build_loss
from rince.methods.summary import WATCHED, similarity_summary
from rince.methods.two_heads import SuperclassHead, halves, two_levels
from rince.ranks import EXCLUDED
from rince.sources.feed import Step


class InBatch(Method):
    """Every view of the batch against every other."""

    def __init__(self, recipe: Recipe, given: Given) -> None:
        super().__init__(recipe, given)
        self.loss = build_loss(recipe, given.rank_count)
        self.rank_count = self.loss.rank_count

    def step(self, encoder: nn.Module, step: Step, *, logged: bool) -> Outcome:
        """Gradients of the loss of the whole batch."""
        with self.runtime.autocast():
            embeddings = embedded(encoder, step.views)
        ranks = self._ranks(step)
        try:
            output = self.loss.from_embeddings(embeddings, embeddings, ranks)
        except DataError as error:
            raise DataError(f"step {step.step}: {error}") from None
        self.runtime.backward(output.total)
        values = log_values([output], self.runtime)
        if not logged:
            return Outcome(values, None)
        some = embeddings.detach()
        summary = similarity_summary(some[:WATCHED] @ some.T, ranks[:WATCHED], self.rank_count)
        return Outcome(values, summary, lambda: self.loss.explain(ranks, embeddings=some))

    def _ranks(self, step: Step) -> Tensor:
        labels = self.rank_labels(step)
        return ranks_within(step, self.rank_source(labels, labels))


def embedded(encoder: nn.Module, views: Sequence[Any]) -> Tensor:
    """Embeddings of all samples in the first view, then in the second, and so on.

    Vectors go through in one pass, which spares 3 to 6 % of a step. What is larger goes view by view: batch
    normalisation of a network then sees one view of every sample, and memory need not hold all of them at once.
    """
    if all(isinstance(view, Tensor) and view.ndim == 2 for view in views):
        views = [torch.cat(list(views))]
    return torch.cat([encoder(view) for view in views])


def ranks_within(step: Step, ranks: Tensor) -> Tensor:
    """`(views · samples, views · samples)` int8, from the ranks between the samples of a step."""
    number, views = len(ranks), len(step.views)
    ranks = ranks.clone()  # which may be its source's own
    ranks.fill_diagonal_(1)  # the same sample in another view, whatever its class is to itself
    ranks = ranks.repeat(views, views)
    ranks.fill_diagonal_(EXCLUDED)  # an embedding is no candidate of its own
    if step.present is not None:
        ranks.masked_fill_(~step.present.T.reshape(number * views), EXCLUDED)
    return ranks


class InBatchTwoHeads(Method):
    """SCL on classes with one head, and on superclasses with the other, within the batch."""

    def __init__(self, recipe: Recipe, given: Given) -> None:
        super().__init__(recipe, given)
        assert isinstance(recipe.method, InBatchTwoHeadsSettings)
        self.weights = (1 - recipe.method.superclass_weight, recipe.method.superclass_weight)
        self.sources = two_levels(given)
        self.loss = build_loss(recipe)

    def step(self, encoder: nn.Module, step: Step, *, logged: bool) -> Outcome:
        """Gradients of both losses."""
        with self.runtime.autocast():
            both = halves(embedded(encoder, step.views))
        asked = [ranks_within(step, source(step.classes, step.classes)) for source in self.sources]
        made = [
            self.loss.from_embeddings(embeddings, embeddings, ranks)
            for embeddings, ranks in zip(both, asked, strict=True)
        ]
        loss = self.weights[0] * made[0].total + self.weights[1] * made[1].total
        self.runtime.backward(loss)
        values = {"loss": loss.detach(), "term/fine": made[0].total.detach(), "term/superclass": made[1].total.detach()}
        if not logged:
            return Outcome(values, None)
        number = next((i for i, output in enumerate(made) if not output.total.isfinite()), 0)
        seen = both[number].detach()
        return Outcome(values, {}, lambda: self.loss.explain(asked[number], queries=seen, candidates=seen))


class InBatchSettings(MethodKind):
    """`method.kind=in-batch`."""

    uses: ClassVar[frozenset[str]] = frozenset({"loss", "ranks"})
    splits_batches: ClassVar[bool] = False
    method: ClassVar[type[Method]] = InBatch

    kind: Literal["in-batch"]


class InBatchTwoHeadsSettings(SuperclassHead):
    """`method.kind=in-batch-two-heads`."""

    uses: ClassVar[frozenset[str]] = frozenset({"loss"})
    splits_batches: ClassVar[bool] = False
    method: ClassVar[type[Method]] = InBatchTwoHeads

    kind: Literal["in-batch-two-heads"]
