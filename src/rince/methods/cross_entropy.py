"""Cross-entropy on the classes; with label smoothing inside the superclass, or with a second head for superclasses.

Two heads: (1 - λ) L_fine + λ L_superclass, each head linear on the same features. Smoothing: `sibling_targets`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import nn

from rince.config import ModelSettings, Recipe
from rince.config.section import Fraction
from rince.draws import DROPOUT, uniform
from rince.encoders.heads import side_by_side
from rince.losses.smoothing import sibling_targets
from rince.methods.method import Given, Method, MethodKind, Outcome
from rince.sources.feed import Step
from rince.sources.source import parts_of, rows_of


class Classification(Method):
    """One view, one or two linear heads, no twin and no bank."""

    def __init__(self, recipe: Recipe, given: Given) -> None:
        super().__init__(recipe, given)
        assert isinstance(recipe.method, CrossEntropySettings)
        self.weight = recipe.method.superclass_weight
        above = given.groups[min(1, len(given.groups) - 1)]
        self.superclass_of = above.to(given.runtime.device)
        self.targets = sibling_targets(above, recipe.method.smoothing).to(given.runtime.device)

    def step(self, encoder: nn.Module, step: Step, *, logged: bool) -> Outcome:
        """Gradients of the cross-entropy."""
        total, device = sum(step.sizes), step.classes.device
        fine_loss, coarse_loss, right = (torch.zeros((), device=device) for _ in range(3))
        parts = parts_of(len(step.classes), self.recipe.train.accumulate)
        for number, part in enumerate(parts, start=1):
            labels = step.classes[part]
            with self.runtime.no_sync(encoder, enabled=number < len(parts)):
                with self.runtime.autocast(), self._dropout(step.step, number):
                    outputs = encoder(rows_of(step.views[0], part), raw=True)
                fine, coarse = outputs.float().tensor_split([len(self.targets)], dim=1)
                share = self.runtime.processes / total  # DDP averages: this makes it the mean over the whole batch
                fine_sum = F.cross_entropy(fine, self.targets[labels], reduction="sum") * share
                loss = (1 - self.weight) * fine_sum
                if self.weight:
                    coarse_sum = F.cross_entropy(coarse, self.superclass_of[labels], reduction="sum") * share
                    loss = loss + self.weight * coarse_sum
                    coarse_loss += coarse_sum.detach()
                self.runtime.backward(loss)
            fine_loss += fine_sum.detach()
            right += (fine.argmax(dim=1) == labels).sum() * share
        values = {"loss": (1 - self.weight) * fine_loss + self.weight * coarse_loss, "term/fine": fine_loss}
        if self.weight:
            values["term/superclass"] = coarse_loss
        values["accuracy"] = right
        return Outcome({name: self.mean(value) for name, value in values.items()}, {} if logged else None)

    @contextmanager
    def _dropout(self, step: int, part: int) -> Iterator[None]:
        """What dropout hides is a function of seed, step, part and process, so that a run goes on as it would have."""
        device = self.runtime.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            number = torch.tensor([part * 2**20 + self.runtime.process])
            torch.manual_seed(int(uniform(self.recipe.seed, step, DROPOUT, number, 1) * 2**24))
            yield

    def validate(self, encoder: nn.Module, steps: Iterable[Step]) -> float:
        """Mean cross-entropy of the classes, nothing hidden, with the statistics of training."""
        loss, samples = 0.0, 0
        encoder.eval()
        with torch.no_grad():
            for step in steps:
                with self.runtime.autocast():
                    fine = encoder(step.views[0], raw=True).float()[:, : len(self.targets)]
                loss += float(F.cross_entropy(fine, self.targets[step.classes], reduction="sum"))
                samples += len(step.classes)
        encoder.train()
        loss, number = self.runtime.totals([loss, samples])
        return loss / number


class CrossEntropySettings(MethodKind):
    """`method.kind=cross-entropy`: a classifier."""

    validates: ClassVar[bool] = True
    keys: ClassVar[bool] = False
    own_head: ClassVar[bool] = False
    classifies: ClassVar[bool] = True
    method: ClassVar[type[Method]] = Classification

    kind: Literal["cross-entropy"]
    smoothing: Fraction = Field(0.0, description="α: mass that the other classes of the superclass share")
    superclass_weight: Fraction = Field(0.0, description="λ of a second head, for superclasses; 0 for one head")
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="share of a feature that is hidden at a step")

    @property
    def needs_superclasses(self) -> bool:
        """For smoothing and for a second head."""
        return self.smoothing > 0 or self.superclass_weight > 0

    def head(self, inputs: int, model: ModelSettings, groups: Sequence[int]) -> nn.Module:  # noqa: ARG002
        """A linear classifier for the classes, and one for the superclasses if they have a weight."""
        linears: list[nn.Module] = [
            nn.Linear(inputs, number) for number in groups[: 2 if self.superclass_weight else 1]
        ]
        hidden = [nn.Sequential(nn.Dropout(self.dropout), linear) for linear in linears] if self.dropout else linears
        return side_by_side(hidden)
