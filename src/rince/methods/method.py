"""What a training method is to the loop: it turns the views of a step into gradients.

A new method is one file: its settings, which say what it has and wants, and a class that makes a step. A line in
`rince.registry` and a recipe make it one that trains, resumes, is judged and reported like all others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from rince.config import MethodSettings, ModelSettings, Recipe
from rince.encoders.encoder import Encoder
from rince.encoders.heads import mlp_head
from rince.errors import DataError
from rince.first_look import FirstLook
from rince.loss import RankedInfoNCE, RankTerm
from rince.ranks import RankSource
from rince.sources.feed import Step
from rince.sources.order import BatchOrder, Order


class Machine(Protocol):
    """Devices and processes as a method sees them."""

    @property
    def device(self) -> torch.device:
        """Of this process."""
        ...

    @property
    def process(self) -> int:
        """Number of this process, from 0."""
        ...

    @property
    def processes(self) -> int:
        """How many there are."""
        ...

    def autocast(self) -> Any:
        """The precision of the forward pass."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Gradients, averaged over processes."""
        ...

    def no_sync(self, module: nn.Module, enabled: bool) -> AbstractContextManager[None]:
        """Leaves gradients unsynchronised, for all but the last part of an accumulated batch."""
        ...

    def gather(self, tensor: Tensor, sizes: list[int]) -> Tensor:
        """Parts of all processes, in their order, as one tensor."""
        ...

    def total(self, tensor: Tensor) -> Tensor:
        """Sum over processes."""
        ...

    def totals(self, numbers: Sequence[float]) -> list[float]:
        """Sums over processes of plain numbers."""
        ...


@dataclass(frozen=True)
class Given:
    """What a method is built from besides its recipe.

    Attributes:
        rank_source: for methods that use ranks.
        rank_count: how many ranks there are, those of own keys among them.
        groups: for every level of the taxonomy from the fine end: `(classes,)`, the group of every class.
        encoder: the module itself, not wrapped.
        runtime: devices and processes.
    """

    rank_source: RankSource | None
    rank_count: int
    groups: list[Tensor]
    encoder: Encoder
    runtime: Machine


class Outcome(NamedTuple):
    """What a step has to say, under the names of the log. Tensors are looked at when they are logged, not before."""

    values: dict[str, Tensor]
    """Known at every step; `loss` is among them."""
    summary: dict[str, float] | None
    """Costs more to know; None at steps that are not logged."""
    explain: Callable[[], DataError] | None = None
    """Why the loss is not finite, for methods that can tell; None at steps that are not logged."""


class Method(ABC):
    """Makes gradients. The loop does the rest: data, learning rate, optimizer, checkpoints, log."""

    rank_count: int = 0
    """Ranks whose positives are counted in the log."""

    def __init__(self, recipe: Recipe, given: Given) -> None:
        self.recipe, self.given, self.raw, self.runtime = recipe, given, given.encoder, given.runtime

    def modules(self) -> dict[str, nn.Module]:
        """What it remembers from step to step, for the checkpoint; on the device of the runtime."""
        return {}

    @abstractmethod
    def step(self, encoder: nn.Module, step: Step, *, logged: bool) -> Outcome:
        """Leaves gradients in the encoder, and updates what it remembers. `encoder` is wrapped."""

    @property
    def comparable(self) -> bool:
        """Whether a validation loss can be compared with later ones."""
        return True

    def validate(self, encoder: nn.Module, steps: Iterable[Step]) -> float:  # noqa: ARG002 - of the interface
        """Mean loss of samples that are not trained on; leaves everything as it was."""
        raise AssertionError(f"{self.recipe.method.kind} does not validate")  # the recipe was checked

    @property
    def rank_source(self) -> RankSource:
        """Of the run."""
        assert self.given.rank_source is not None, "the settings of this method do not use ranks"
        return self.given.rank_source

    def rank_labels(self, step: Step) -> Tensor:
        """What the ranks of a step's samples go by: their classes, or their ids."""
        return step.classes if self.rank_source.by == "class" else step.ids

    def mean(self, value: Tensor) -> Tensor:
        """Over processes, of a value that each has for its own part of the batch."""
        return self.runtime.total(value.detach()) / self.runtime.processes


class MethodKind(MethodSettings):
    """Settings of a method: an MLP head and batches in random order, unless they say otherwise."""

    method: ClassVar[type[Method]]

    def head(self, inputs: int, model: ModelSettings, groups: Sequence[int]) -> nn.Module:  # noqa: ARG002
        """One MLP head."""
        return mlp_head(inputs, model.head_hidden or inputs, model.dim)

    def order(self, recipe: Recipe, labels: Tensor, groups: Sequence[Tensor]) -> BatchOrder:  # noqa: ARG002
        """All samples in an order of their own in every epoch."""
        return Order(len(labels), recipe.train.batch, recipe.seed, recipe.train.keep_last_batch)

    def build(self, recipe: Recipe, given: Given) -> Method:
        """The method."""
        return self.method(recipe, given)


def build_loss(recipe: Recipe, rank_count: int | None = None) -> RankedInfoNCE:
    """The ranked loss of a recipe.

    Args:
        recipe: of the run; it may have more terms than there are ranks, or fewer that go on by their rule.
        rank_count: how many ranks there are. Terms beyond have no rank and are left out: one that includes closer ranks
            would count the last rank again.
    """
    assert recipe.loss is not None  # the recipe was checked
    terms = recipe.loss.terms if rank_count is None else recipe.loss.terms_for(rank_count)
    loss = RankedInfoNCE(
        [RankTerm(**term.model_dump()) for term in terms],
        over_positives=recipe.loss.over_positives,
        over_ranks=recipe.loss.over_ranks,
        allow_any_order=recipe.loss.allow_any_order,
    )
    loss.first_look = FirstLook(done=True)  # encoders give unit vectors, and methods exclude what is the query itself
    return loss
