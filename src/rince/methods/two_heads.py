"""SCL with two heads: (1 - λ) L_fine + λ L_superclass, each with a projection head and keys of its own.

The two embeddings of a sample stand side by side in one vector, each of unit length, so that one twin and one bank
serve both; the bank's class labels give the superclass as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from rince.config import ModelSettings, Recipe
from rince.config.section import Fraction
from rince.encoders.heads import SideBySide, mlp_head
from rince.loss import LossOutput
from rince.methods.contrast import Momentum, why_not_finite
from rince.methods.method import Given, Method, MethodKind, Outcome, build_loss
from rince.moco import ContrastStep, contrast_ranks
from rince.ranks import TableRanks
from rince.sources.feed import Step
from rince.sources.source import parts_of, rows_of


class ContrastTwoHeads(Momentum):
    """Momentum contrast on classes with one head, and on superclasses with the other."""

    def __init__(self, recipe: Recipe, given: Given) -> None:
        super().__init__(recipe, given)
        assert isinstance(recipe.method, TwoHeadsSettings)
        self.weights = (1 - recipe.method.superclass_weight, recipe.method.superclass_weight)
        self.sources = two_levels(given)
        self.loss = build_loss(recipe)

    def step(self, encoder: nn.Module, step: Step, *, logged: bool) -> Outcome:
        """Gradients of both losses; then the keys are pushed and the twin moves, as in momentum contrast."""
        query_view, key_view = step.views
        device = step.classes.device
        parts = parts_of(len(step.classes), self.recipe.train.accumulate)
        make_keys = self.key_maker(step)
        keys: list[Tensor] = []
        outputs: list[LossOutput] = []
        seen: list[ContrastStep] = []
        terms = torch.zeros(2, device=device)
        for number, part in enumerate(parts, start=1):
            with self.runtime.no_sync(encoder, enabled=number < len(parts)):
                with self.runtime.autocast():
                    queries = halves(encoder(rows_of(query_view, part)))
                    own = halves(make_keys(rows_of(key_view, part)))
                banked = self.bank.keys.chunk(2, dim=1)
                # Every query has its own key as a positive, so the mean over the whole batch divides by its size.
                divisor = torch.full((1,), sum(step.sizes) / self.runtime.processes, device=device)
                asked = [
                    ContrastStep(
                        queries[head],
                        torch.cat([own[head], banked[head]]),
                        contrast_ranks(step.classes[part], self.bank, source),
                        (own[head],),
                    )
                    for head, source in enumerate(self.sources)
                ]
                made = [self.loss.from_embeddings(*now[:3], divisor=divisor) for now in asked]
                self.runtime.backward(self.weights[0] * made[0].total + self.weights[1] * made[1].total)
            terms += torch.stack([output.total.detach() for output in made])
            if logged:
                outputs += made
                seen += [now._replace(queries=now.queries.detach()) for now in asked]
            keys.append(torch.cat(own, dim=1))
        self.remember(keys, step.classes, step)
        fine, coarse = (self.mean(term) for term in terms)
        loss = self.weights[0] * fine + self.weights[1] * coarse
        values = {"loss": loss, "term/fine": fine, "term/superclass": coarse}
        if not logged:
            return Outcome(values, None)
        return Outcome(values, {}, lambda: why_not_finite(self.loss, outputs, seen))


def two_levels(given: Given) -> list[TableRanks]:
    """Who is of one class, and who of one superclass."""
    return [TableRanks((group[:, None] == group).to(torch.int8)) for group in given.groups[:2]]


class SuperclassHead(MethodKind):
    """Settings of methods with one head for the classes and one for the superclasses."""

    own_head: ClassVar[bool] = False

    superclass_weight: Fraction = Field(0.3, description="λ of the head for superclasses")

    @property
    def needs_superclasses(self) -> bool:
        """One head is for them."""
        return True

    def check(self, recipe: Recipe) -> None:
        """One temperature serves both heads."""
        if len(recipe.terms) != 1:
            raise ValueError(f"method.kind={self.kind} has one term for both heads, got {len(recipe.terms)}")

    def head(self, inputs: int, model: ModelSettings, groups: Sequence[int]) -> nn.Module:  # noqa: ARG002
        """Two MLP heads side by side."""
        return SideBySide([mlp_head(inputs, model.head_hidden or inputs, model.dim) for _ in range(2)])


class TwoHeadsSettings(SuperclassHead):
    """`method.kind=contrast-two-heads`: a head for classes and one for superclasses."""

    uses: ClassVar[frozenset[str]] = frozenset({"loss", "bank", "twin"})
    method: ClassVar[type[Method]] = ContrastTwoHeads

    kind: Literal["contrast-two-heads"]


def halves(both: Tensor) -> tuple[Tensor, ...]:
    """The embeddings of the two heads, each of unit length."""
    return tuple(F.normalize(half, dim=1) for half in both.chunk(2, dim=1))
