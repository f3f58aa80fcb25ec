"""What a training method is to the loop: it turns the views of a step into gradients.

A new method is one file with a class like these, its settings in `config/recipe.py`, a line in `build_method`, and a
recipe.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import Tensor, nn

from rince.config import Recipe
from rince.views.pixels import KEY_VIEW, QUERY_VIEW
from rince.encoders.encoder import Encoder
from rince.sources.feed import Step
from rince.train.runtime import Runtime
from rince.train.setup import Parts


class Outcome(NamedTuple):
    """What a step has to say, as plain numbers under the names of the log."""

    values: dict[str, float]
    """Known at every step; `loss` is among them."""
    summary: dict[str, float] | None
    """Costs more to know; None at steps that are not logged."""


class Method(ABC):
    """Makes gradients. The loop does the rest: data, learning rate, optimizer, checkpoints, log.

    Args:
        recipe: of the run.
        parts: data, ranks, views.
        encoder: the module itself, not wrapped.
        runtime: devices and processes.
    """

    views: tuple[int, ...] = (QUERY_VIEW, KEY_VIEW)
    """The views of a sample it needs."""
    rank_count: int = 0
    """Ranks whose positives are counted in the log."""

    def __init__(self, recipe: Recipe, parts: Parts, encoder: Encoder, runtime: Runtime) -> None:
        self.recipe, self.parts, self.raw, self.runtime = recipe, parts, encoder, runtime

    @abstractmethod
    def modules(self) -> dict[str, nn.Module]:
        """What it remembers from step to step, for the checkpoint; on the device of the runtime."""

    @property
    def comparable(self) -> bool:
        """Whether a validation loss can be compared with later ones."""
        return True

    def validate(self, encoder: nn.Module, steps: Iterable[Step]) -> float:
        """Mean loss of samples that are not trained on; leaves everything as it was."""
        raise NotImplementedError  # the recipe was checked: no other method is asked

    @abstractmethod
    def step(self, encoder: nn.Module, step: Step, *, logged: bool) -> Outcome:
        """Leaves gradients in the encoder, and updates what it remembers. `encoder` is wrapped."""


def build_method(recipe: Recipe, parts: Parts, encoder: Encoder, runtime: Runtime) -> Method:
    """The method a recipe names."""
    # Each is imported when it is used: a reader of one needs no other.
    kind: Any
    match recipe.method.kind:
        case "contrast" | "triplet":
            from rince.methods.contrast import MomentumContrast as kind  # noqa: PLC0415, N813
        case "cross-entropy":
            from rince.methods.cross_entropy import Classification as kind  # noqa: PLC0415, N813
        case "contrast-two-heads":
            from rince.methods.two_heads import ContrastTwoHeads as kind  # noqa: PLC0415, N813
        case "hierarchical-triplet" | "fast-ap":
            from rince.methods.batch_losses import InBatch as kind  # noqa: PLC0415, N813
    method: Method = kind(recipe, parts, encoder, runtime)
    return method


def mean_over_processes(value: Tensor, runtime: Runtime) -> float:
    """Of a value that every process has for its own part of the batch."""
    return (runtime.total(value.detach()) / runtime.processes).item()
