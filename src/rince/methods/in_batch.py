"""The ranked loss within a batch: all views of all samples are queries, and candidates of each other.

No twin and no bank: the gradient goes to queries and candidates alike. An embedding is never its own candidate; the
other views of its sample are rank 1, all else is ranked by labels.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from rince.config import Recipe
from rince.errors import DataError
from rince.methods.contrast import log_values
from rince.methods.method import Given, Method, MethodKind, Outcome, build_loss
from rince.methods.summary import WATCHED, similarity_summary
from rince.ranks import EXCLUDED
from rince.sources.feed import Step


class InBatch(Method):
    """Every view of the batch against every other."""

    def __init__(self, recipe: Recipe, given: Given) -> None:
        super().__init__(recipe, given)
        self.loss = build_loss(recipe)
        self.rank_count = min(self.loss.rank_count, given.rank_count)

    def step(self, encoder: nn.Module, step: Step, *, logged: bool) -> Outcome:
        """Gradients of the loss of the whole batch."""
        with self.runtime.autocast():
            embeddings = torch.cat([encoder(view) for view in step.views])
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
        """`(views · samples, views · samples)` int8."""
        labels = self.rank_labels(step)
        number, views = len(labels), len(step.views)
        ranks = self.rank_source(labels, labels)
        ranks.fill_diagonal_(1)  # the same sample in another view, whatever its class is to itself
        ranks = ranks.repeat(views, views)
        ranks.fill_diagonal_(EXCLUDED)  # an embedding is no candidate of its own
        if step.present is not None:
            ranks.masked_fill_(~step.present.T.reshape(number * views), EXCLUDED)
        return ranks


class InBatchSettings(MethodKind):
    """`method.kind=in-batch`."""

    uses: ClassVar[frozenset[str]] = frozenset({"loss", "ranks"})
    splits_batches: ClassVar[bool] = False
    method: ClassVar[type[Method]] = InBatch

    kind: Literal["in-batch"]
