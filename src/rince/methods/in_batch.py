"""The ranked loss within a batch: all views of all samples are queries, and candidates of each other.

No twin and no bank: the gradient goes to queries and candidates alike. An embedding is never its own candidate; the
other views of its sample are rank 1, all else is ranked by labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from torch import Tensor, nn

from rince.batches import InBatch, in_batch
from rince.config import Recipe
from rince.errors import DataError
from rince.loss import LossOutput
from rince.methods.batch_loss import gradients_of
from rince.methods.contrast import named_values
from rince.methods.method import Given, Machine, Method, MethodKind, Outcome, build_loss
from rince.methods.summary import WATCHED, similarity_summary
from rince.methods.two_heads import SuperclassHead, halves, two_levels
from rince.ranks import RankSource
from rince.sources.feed import Step


class BatchContrast(Method):
    """Every view of the batch against every other."""

    def __init__(self, recipe: Recipe, given: Given) -> None:
        super().__init__(recipe, given)
        self.loss = build_loss(recipe, given.rank_count)
        self.rank_count = self.loss.rank_count

    def step(self, encoder: nn.Module, step: Step, *, logged: bool) -> Outcome:
        """Gradients of the loss of the whole batch, on however many processes."""
        batches: list[InBatch] = []

        def loss_of(*views: Tensor) -> LossOutput:
            batches.append(within(step, views, self.rank_labels(step), self.rank_source, self.runtime))
            try:
                return batches[-1].loss(self.loss)
            except DataError as error:
                raise DataError(f"step {step.step}: {error}") from None

        values = named_values(gradients_of(self, encoder, step, loss_of))
        if not logged:
            return Outcome(values, None)
        batch = batches[0]
        queries, candidates = batch.queries.detach(), batch.candidates.detach()
        summary = similarity_summary(queries[:WATCHED] @ candidates.T, batch.ranks[:WATCHED], self.rank_count)
        return Outcome(values, summary, lambda: self.loss.explain(batch.ranks, embeddings=candidates))


def within(step: Step, views: Sequence[Tensor], labels: Tensor, rank_source: RankSource, runtime: Machine) -> InBatch:
    """The embeddings of a step against each other, those of other processes among them."""
    return in_batch(views, labels, rank_source, ids=step.ids, present=step.present, gather=runtime.processes > 1)


class BatchContrastTwoHeads(Method):
    """SCL on classes with one head, and on superclasses with the other, within the batch."""

    def __init__(self, recipe: Recipe, given: Given) -> None:
        super().__init__(recipe, given)
        assert isinstance(recipe.method, InBatchTwoHeadsSettings)
        self.weights = (1 - recipe.method.superclass_weight, recipe.method.superclass_weight)
        self.sources = two_levels(given)
        self.loss = build_loss(recipe)

    def step(self, encoder: nn.Module, step: Step, *, logged: bool) -> Outcome:
        """Gradients of both losses."""
        batches: list[InBatch] = []
        made: list[LossOutput] = []

        def loss_of(*views: Tensor) -> LossOutput:
            both = [halves(view) for view in views]
            for head, source in enumerate(self.sources):
                batches.append(within(step, [view[head] for view in both], step.classes, source, self.runtime))
                made.append(batches[-1].loss(self.loss))
            return made[0]._replace(total=self.weights[0] * made[0].total + self.weights[1] * made[1].total)

        loss = gradients_of(self, encoder, step, loss_of).total
        values = {"loss": loss.detach(), "term/fine": made[0].total.detach(), "term/superclass": made[1].total.detach()}
        if not logged:
            return Outcome(values, None)
        number = next((i for i, output in enumerate(made) if not output.total.isfinite()), 0)
        seen, candidates = batches[number], batches[number].candidates.detach()
        return Outcome(
            values, {}, lambda: self.loss.explain(seen.ranks, queries=seen.queries.detach(), candidates=candidates)
        )


class InBatchSettings(MethodKind):
    """`method.kind=in-batch`: the ranked loss between all views of a batch; no twin, no bank."""

    uses: ClassVar[frozenset[str]] = frozenset({"loss", "ranks"})
    caches_batches: ClassVar[bool] = True
    method: ClassVar[type[Method]] = BatchContrast

    kind: Literal["in-batch"]


class InBatchTwoHeadsSettings(SuperclassHead):
    """`method.kind=in-batch-two-heads`: within the batch, a head for classes and one for superclasses."""

    uses: ClassVar[frozenset[str]] = frozenset({"loss"})
    caches_batches: ClassVar[bool] = True
    method: ClassVar[type[Method]] = BatchContrastTwoHeads

    kind: Literal["in-batch-two-heads"]
