"""The order of samples: a function of seed and epoch, so that any step can be found without the ones before."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from rince.draws import ORDER, uniform
from rince.errors import DataError

HELD_OUT_EPOCH = -1  # an epoch no training has: says which samples are held out, and what their views draw


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

    @property
    def held_out_ids(self) -> Tensor:
        """Ids of samples that no epoch has; none where nothing is held out."""
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
        held_out: share of the samples that no epoch has, for a validation loss.
    """

    number: int
    batch: int
    seed: int
    keep_last: bool = True
    held_out: float = 0.0

    def __post_init__(self) -> None:
        if self.steps_per_epoch == 0:
            raise DataError(
                f"{len(self.kept)} samples make no batch of {self.batch}; use a smaller train.batch, or keep_last_batch"
            )
        if self.held_out and len(self.held_out_ids) == 0:
            raise DataError(f"a share of {self.held_out} of {self.number} samples is none; raise schedule.held_out")

    @functools.cached_property
    def kept(self) -> Tensor:
        """Ids of the samples that are trained on, rising."""
        return self._parted[len(self.held_out_ids) :].sort().values

    @functools.cached_property
    def held_out_ids(self) -> Tensor:
        """Ids of the samples that are not, rising; a function of seed and share."""
        return self._parted[: round(self.held_out * self.number)].sort().values

    @property
    def _parted(self) -> Tensor:
        return permutation(self.number, self.seed, HELD_OUT_EPOCH) if self.held_out else torch.arange(self.number)

    @property
    def steps_per_epoch(self) -> int:
        """How many batches an epoch has."""
        whole, left = divmod(len(self.kept), self.batch)
        return whole + (1 if left and self.keep_last else 0)

    def epoch(self, epoch: int) -> Tensor:
        """The ids of all samples that are trained on, in the order of this epoch."""
        return self.kept[permutation(len(self.kept), self.seed, epoch)]

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


class DrawnBatches:
    """Batches that are drawn anew at every step: as many as samples would fill in an epoch, and nothing is held out."""

    labels: Tensor
    batch: int

    @property
    def steps_per_epoch(self) -> int:
        """How many batches an epoch has."""
        return max(1, len(self.labels) // self.batch)

    @property
    def held_out_ids(self) -> Tensor:
        """None."""
        return torch.empty(0, dtype=torch.int64)


@functools.lru_cache(maxsize=2)  # steps ask for their epoch one by one
def permutation(number: int, seed: int, epoch: int) -> Tensor:
    """`(number,)`: 0 … number - 1 in an order that is a function of seed and epoch."""
    return uniform(seed, epoch, ORDER, torch.arange(number), 1)[:, 0].argsort(stable=True)
