"""The order of samples: a function of seed and epoch, so that any step can be found without the ones before."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from rince.draws import BALANCED_CLASSES, ORDER, uniform
from rince.errors import DataError

HELD_OUT_EPOCH = -1  # an epoch no training has: what the views of samples that are held out draw


class BatchOrder(Protocol):
    """Which samples make the batch of a step; a function of its arguments, so that any step can be found."""

    @property
    def batch(self) -> int:
        """How many samples make a batch, over all processes."""
        ...

    @property
    def steps_per_epoch(self) -> int:
        """How many batches an epoch has."""
        ...

    def ids(self, epoch: int, step: int) -> Tensor:
        """Sample ids of a step of an epoch."""
        ...


@dataclass(frozen=True)
class Order:
    """Batches of sample ids, epoch after epoch.

    Args:
        number: how many samples there are.
        batch: how many make a batch, over all processes.
        seed: of the order.
        keep_last: whether an epoch ends with a smaller batch, or drops what is left over.
    """

    number: int
    batch: int
    seed: int
    keep_last: bool = True

    def __post_init__(self) -> None:
        if self.steps_per_epoch == 0:
            raise DataError(
                f"{self.number} samples make no batch of {self.batch}; use a smaller train.batch, or keep_last_batch"
            )

    @property
    def steps_per_epoch(self) -> int:
        """How many batches an epoch has."""
        whole, left = divmod(self.number, self.batch)
        return whole + (1 if left and self.keep_last else 0)

    def epoch(self, epoch: int) -> Tensor:
        """The ids of all samples, in the order of this epoch."""
        return permutation(self.number, self.seed, epoch)

    def ids(self, epoch: int, step: int) -> Tensor:
        """Sample ids of a step of an epoch. Processes take contiguous parts, which gathered make the batch again."""
        return self.epoch(epoch)[step * self.batch : (step + 1) * self.batch]


@dataclass(frozen=True)
class OneByOne(Order):
    """The samples as they come, in every epoch alike."""

    seed: int = 0

    def epoch(self, epoch: int) -> Tensor:  # noqa: ARG002 - of the interface
        """`(number,)`: the ids of all samples."""
        return torch.arange(self.number)


@dataclass(frozen=True)
class OrderOfSome:
    """Batches of some of the samples, the others are held out: whatever a method's order is, it leaves them out.

    Args:
        order: of `len(kept)` samples, numbered from 0.
        kept: `(samples,)`, the ids that they have.
    """

    order: BatchOrder
    kept: Tensor

    @property
    def batch(self) -> int:
        """As of the order."""
        return self.order.batch

    @property
    def steps_per_epoch(self) -> int:
        """As of the order."""
        return self.order.steps_per_epoch

    def ids(self, epoch: int, step: int) -> Tensor:
        """Sample ids of a step of an epoch."""
        return self.kept[self.order.ids(epoch, step)]


@dataclass(frozen=True)
class BalancedOrder:
    """Batches to which every class gives as many samples as any other, as near as whole numbers allow.

    Classes take turns, in an order of its own in every round; and the samples of a class do, so that a small class
    repeats its samples in an epoch and a large one has some left over.

    Args:
        labels: `(samples,)` classes.
        batch: how many make a batch, over all processes.
        seed: of the order.
    """

    labels: Tensor
    batch: int
    seed: int

    def __post_init__(self) -> None:
        if self.steps_per_epoch == 0:
            raise DataError(f"{len(self.labels)} samples make no batch of {self.batch}; use a smaller train.batch")

    @property
    def steps_per_epoch(self) -> int:
        """How many batches an epoch has: as many as the samples would fill."""
        return len(self.labels) // self.batch

    def ids(self, epoch: int, step: int) -> Tensor:
        """Sample ids of a step of an epoch. Seekable: a function of seed, epoch and step."""
        _, class_of, sizes = self.labels.unique(return_inverse=True, return_counts=True)
        shuffled = permutation(len(self.labels), self.seed, epoch)
        samples = shuffled[class_of[shuffled].argsort(stable=True)]  # class by class
        turns = torch.arange(step * self.batch, (step + 1) * self.batch)
        rounds, places = turns // len(sizes), turns % len(sizes)
        classes = torch.empty_like(rounds)
        for number in rounds.unique().tolist():
            keys = uniform(self.seed, epoch, BALANCED_CLASSES, number * len(sizes) + torch.arange(len(sizes)), 1)[:, 0]
            of_round = rounds == number
            classes[of_round] = keys.argsort(stable=True)[places[of_round]]
        return samples[(sizes.cumsum(0) - sizes)[classes] + rounds % sizes[classes]]


class DrawnBatches:
    """Batches that are drawn anew at every step: as many as samples would fill in an epoch."""

    labels: Tensor
    batch: int

    @property
    def steps_per_epoch(self) -> int:
        """How many batches an epoch has."""
        return max(1, len(self.labels) // self.batch)


@functools.lru_cache(maxsize=2)  # steps ask for their epoch one by one
def permutation(number: int, seed: int, epoch: int) -> Tensor:
    """`(number,)`: 0 … number - 1 in an order that is a function of seed and epoch."""
    return uniform(seed, epoch, ORDER, torch.arange(number), 1)[:, 0].argsort(stable=True)
