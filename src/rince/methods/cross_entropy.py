"""Cross-entropy on the classes; with label smoothing inside the superclass, or with a second head for superclasses.

- Smoothing α: the target is 1 - α for the class, and α spread evenly over its siblings, the other classes of its
  superclass. A class without siblings keeps 1.
- Two heads: (1 - λ) L_fine + λ L_superclass, each head linear on the same features.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rince.config import CrossEntropyMethod, Recipe
from rince.draws import uniform
from rince.views.pixels import QUERY_VIEW
from rince.errors import DataError
from rince.encoders.encoder import Encoder
from rince.sources.feed import Step
from rince.methods.method import Method, Outcome, mean_over_processes
from rince.train.runtime import Runtime
from rince.train.setup import Parts

DROPOUT_VIEW = 2**31 - 3  # a view number no view uses


def sibling_targets(superclass_of: Tensor, smoothing: float) -> Tensor:
    """`(classes, classes)`: row c is what the classifier should say of a sample of class c.

    Args:
        superclass_of: `(classes,)`.
        smoothing: α, the mass that the siblings of a class share.

    Example:
        >>> sibling_targets(torch.tensor([0, 0, 0, 1]), 0.2)
        tensor([[0.8000, 0.1000, 0.1000, 0.0000],
                [0.1000, 0.8000, 0.1000, 0.0000],
                [0.1000, 0.1000, 0.8000, 0.0000],
                [0.0000, 0.0000, 0.0000, 1.0000]])
    """
    own = torch.eye(len(superclass_of))
    siblings = (superclass_of[:, None] == superclass_of).float() - own
    number = siblings.sum(dim=1, keepdim=True)
    mass = smoothing * (number > 0)
    return own * (1 - mass) + siblings * mass / number.clamp(min=1)


class Classification(Method):
    """One view, one or two linear heads, no twin and no bank."""

    views = (QUERY_VIEW,)

    def __init__(self, recipe: Recipe, parts: Parts, encoder: Encoder, runtime: Runtime) -> None:
        super().__init__(recipe, parts, encoder, runtime)
        assert isinstance(recipe.method, CrossEntropyMethod)
        self.weight = recipe.method.superclass_weight
        above = parts.groups[min(1, len(parts.groups) - 1)]
        self.superclass_of = above.to(runtime.device)
        self.targets = sibling_targets(above, recipe.method.smoothing).to(runtime.device)

    def modules(self) -> dict[str, nn.Module]:
        """Nothing: all it learns is in the encoder."""
        return {}

    def step(self, encoder: nn.Module, step: Step, *, logged: bool) -> Outcome:
        """Gradients of the cross-entropy."""
        accumulate, total = self.recipe.train.accumulate, sum(step.sizes)
        fine_loss, coarse_loss, right = (torch.zeros((), device=step.labels.device) for _ in range(3))
        parts = torch.arange(len(step.labels)).tensor_split(accumulate)
        for number, part in enumerate(parts, start=1):
            labels = step.labels[part]
            with self.runtime.no_sync(encoder, enabled=number < len(parts)):
                with self.runtime.autocast(), self._dropout(step.step, number):
                    outputs = encoder(step.views[0][part], raw=True)
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
        plain = {name: mean_over_processes(value, self.runtime) for name, value in values.items()}
        if math.isnan(plain["loss"]):
            raise DataError(f"step {step.step}: the loss is NaN")
        return Outcome(plain, {} if logged else None)

    @contextmanager
    def _dropout(self, step: int, part: int) -> Iterator[None]:
        """What dropout hides is a function of seed, step, part and process, so that a run goes on as it would have."""
        device = self.runtime.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            number = torch.tensor([part * 2**20 + self.runtime.process])
            torch.manual_seed(int(uniform(self.recipe.seed, step, DROPOUT_VIEW, number, 1) * 2**24))
            yield

    def validate(self, encoder: nn.Module, steps: Iterable[Step]) -> float:
        """Mean cross-entropy of the classes, nothing hidden, with the statistics of training."""
        total = torch.zeros(2, dtype=torch.float64, device=self.runtime.device)
        encoder.eval()
        with torch.no_grad():
            for step in steps:
                with self.runtime.autocast():
                    fine = encoder(step.views[0], raw=True).float()[:, : len(self.targets)]
                loss = F.cross_entropy(fine, self.targets[step.labels], reduction="sum").double()
                total += torch.stack([loss, torch.tensor(float(len(step.labels)))])
        encoder.train()
        loss, samples = self.runtime.total(total).tolist()
        return float(loss / samples)
