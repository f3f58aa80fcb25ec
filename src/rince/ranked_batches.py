"""Batches that contain the ranks: every query finds positives of other samples among those it is drawn with."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import Sampler

from rince.checks import check_choice
from rince.draws import RANKED_CLASSES, RANKED_PARTNERS, RANKED_PLACES, RANKED_SAMPLES, uniform
from rince.errors import ConfigError, DataError
from rince.inputs import Numbers, whole_number
from rince.ranks import NEGATIVE, RankSource, check_callable, checked_labels

Balance = Literal["none", "classes"]
KEPT = 1024  # classes up to which it is kept which of them are of which rank: at most some megabytes


class RankedBatchSampler(Sampler[list[int]]):
    """Batches in which every sample has a rank-1 positive that is another sample, and one of every rank.

    A batch of 64 samples from 150 classes leaves most of them without another one of their class. Here a batch is made
    of families: some samples of a class, of one class for every further rank that it has in the data, and of those that
    these classes lack. In a tree of R levels a family has up to 2ᴿ⁻¹ classes, and a batch that has room for one keeps
    the promise for every sample; ranks that come from similarities may call for ever more classes, and then those that
    were drawn first have all that they need. What is left of a batch goes to more samples of its classes; it is smaller
    where these have no more. No sample comes twice in a batch. A rank that a class has nowhere in the data is not
    missed.

    In an epoch every sample comes about once: a class takes turns with its samples, and starts again where it is
    wanted more often than it has samples.

    Made for `DataLoader(data, batch_sampler=…)`. What a step holds is a function of seed, epoch and step; `seek` goes
    to any of them. With several processes each gets its part of the batch, and the promise is for the whole of it: for
    losses that gather the candidates.

    Args:
        labels: `(samples,)`, what the ranks go by: classes, or ids of samples, as the source of ranks wants them.
        rank_source: `TableRanks` or any other.
        batch: how many samples make a batch, over all processes.
        per_class: how many samples of a class come together, at least 2; a class that has fewer gives what it has.
        seed: of the draws.
        balance: `"none"`, classes come as often as they have samples; `"classes"`, all as often as each other, or as
            near as the ranks allow.
        process: number of this process, of `processes`.
        processes: how many there are.

    Example:
        >>> from rince import TableRanks
        >>> labels = torch.arange(600) % 150  # four samples of each class; three classes make a superclass
        >>> ranks = TableRanks.from_superclasses(torch.arange(150) // 3)
        >>> sampler = RankedBatchSampler(labels, ranks, batch=8)
        >>> ids = sampler.ids(epoch=0, step=0)
        >>> sorted(labels[ids].tolist())
        [81, 81, 83, 83, 126, 126, 127, 127]
    """

    def __init__(
        self,
        labels: Numbers,
        rank_source: RankSource,
        batch: int,
        per_class: int = 2,
        *,
        seed: int = 0,
        balance: Balance = "none",
        process: int = 0,
        processes: int = 1,
    ) -> None:
        check_choice("balance", balance, Balance)
        given, _ = checked_labels("labels", labels, lowest=0)
        check_callable(rank_source)
        self.rank_source, self.balance = rank_source, balance
        self.seed = whole_number(seed, "seed", lowest=-(2**63))
        self.batch, self.per_class = whole_number(batch, "batch"), whole_number(per_class, "per_class", lowest=2)
        self.processes = whole_number(processes, "processes")
        self.process = whole_number(process, "process", lowest=0)
        if self.process >= self.processes:
            raise ConfigError(f"process counts from 0 to processes - 1, got {process} of {processes}")
        if self.batch < self.processes:
            raise ConfigError(f"batch is that of all processes, at least a sample for each of {processes}; got {batch}")
        if self.batch > len(given):
            raise DataError(f"{len(given)} samples make no batch of {batch}; use a smaller batch")
        needed = self.per_class * max(1, getattr(rank_source, "ranks", 1))
        if self.batch < needed:
            raise ConfigError(
                f"batch must have room for {per_class} samples of a class and of one of each further rank, {needed}; "
                f"got {batch}"
            )
        self.labels, self._class_of, sizes = given.cpu().unique(return_inverse=True, return_counts=True)
        self._sizes: list[int] = sizes.tolist()
        self._starts = (sizes.cumsum(0) - sizes).tolist()
        self._kept: dict[int, list[list[int]]] = {}
        self._planned: tuple[int, list[Tensor]] | None = None
        self.epoch = self.step = 0

    @property
    def steps_per_epoch(self) -> int:
        """How many batches an epoch has: as many as the samples would fill."""
        return len(self._class_of) // self.batch

    def __len__(self) -> int:
        return self.steps_per_epoch

    def __iter__(self) -> Iterator[list[int]]:
        """This process's part of every batch, from where it stands to the end of the epoch. The next epoch is next."""
        epoch, first, self.step = self.epoch, self.step, 0
        for step in range(first, self.steps_per_epoch):
            yield self.ids(epoch, step).tensor_split(self.processes)[self.process].tolist()
        self.epoch = epoch + 1

    def seek(self, epoch: int, step: int = 0) -> None:
        """Goes on with this step of this epoch, when it is next iterated."""
        self.epoch, self.step = whole_number(epoch, "epoch", lowest=0), self._checked(step, self.steps_per_epoch)

    def set_epoch(self, epoch: int) -> None:
        """The start of an epoch; trainers of other libraries call it."""
        self.seek(epoch)

    def ids(self, epoch: int, step: int) -> Tensor:
        """Ids of all samples of a step of an epoch, over all processes, in no particular order."""
        step = self._checked(step, self.steps_per_epoch - 1)
        if self._planned is None or self._planned[0] != epoch:
            self._planned = (epoch, self._plan(whole_number(epoch, "epoch", lowest=0)))
        return self._planned[1][step]

    def _checked(self, step: int, last: int) -> int:
        step = whole_number(step, "step", lowest=0)
        if step > last:
            raise ConfigError(f"an epoch has {self.steps_per_epoch} steps, so step {step} is none of them")
        return step

    def _plan(self, epoch: int) -> list[Tensor]:
        """The batches of an epoch."""
        number = len(self._class_of)
        shuffled = uniform(self.seed, epoch, RANKED_SAMPLES, torch.arange(number), 1)[:, 0].argsort(stable=True)
        turns = shuffled[self._class_of[shuffled].argsort(stable=True)].tolist()  # class by class
        wanted, drawn = self._first_classes(epoch, shuffled), _Drawn(self, epoch)
        plan = []
        for step in range(self.steps_per_epoch):
            batch = [
                turns[self._starts[label] + turn % self._sizes[label]]
                for label, count in self._batch(wanted, drawn).items()
                for turn in range(drawn.number[label] - count, drawn.number[label])
            ]
            ids = torch.tensor(batch)
            plan.append(ids[uniform(self.seed, epoch, RANKED_PLACES, step * number + ids, 1)[:, 0].argsort()])
        return plan

    def _first_classes(self, epoch: int, shuffled: Tensor) -> _Wanted:
        """The classes that families begin with, without end."""
        if self.balance == "none":
            return _Wanted(itertools.cycle(self._class_of[shuffled].tolist()))
        classes = torch.arange(len(self.labels))
        rounds = (
            uniform(self.seed, epoch, RANKED_CLASSES, number * len(classes) + classes, 1)[:, 0].argsort().tolist()
            for number in itertools.count()
        )
        return _Wanted(itertools.chain.from_iterable(rounds))

    def _batch(self, wanted: _Wanted, drawn: _Drawn) -> Counter[int]:
        """How many samples of which classes make the next batch."""
        batch: Counter[int] = Counter()
        room = self.batch
        while room:
            first = wanted.next(drawn)
            if batch[first] == self._sizes[first]:  # all of its samples are in it
                continue
            family = self._family(first, batch, drawn)
            if family.total() > room:
                if room < self.batch:
                    wanted.put_back(first)
                    break
                family = _cut(family, room)
            batch.update(family)
            drawn.add(family)
            room -= family.total()
        while room and (more := [label for label, count in batch.items() if count < self._sizes[label]]):
            extra = Counter(dict.fromkeys(sorted(more, key=drawn.share)[:room], 1))
            batch.update(extra)
            drawn.add(extra)
            room -= extra.total()
        return batch

    def _family(self, first: int, batch: Counter[int], drawn: _Drawn) -> Counter[int]:
        """A class, and those without which it or one of them would lack a rank beside a batch as it is so far."""
        family: Counter[int] = Counter()
        queue, waiting = [first], {first}
        for label in queue:
            family[label] = min(self.per_class, self._sizes[label] - batch[label])
            for able in self._classes_of_ranks(label):
                if not any(other in batch or other in waiting for other in able):
                    queue.append(min(able, key=drawn.share))
                    waiting.add(queue[-1])
            if family.total() > self.batch:
                break
        return family

    def _classes_of_ranks(self, label: int) -> list[list[int]]:
        """For every rank that a class has in the data: the classes that have it. Its own only if it has two samples."""
        if label in self._kept:
            return self._kept[label]
        row = self.rank_source(self.labels[label : label + 1], self.labels)[0].clone()
        if self._sizes[label] == 1:
            row[label] = NEGATIVE
        found = [(row == rank).nonzero().squeeze(1).tolist() for rank in row.unique().tolist() if rank > NEGATIVE]
        if len(self.labels) <= KEPT:
            self._kept[label] = found
        return found


class _Wanted:
    """Classes in the order in which families want to begin with them."""

    def __init__(self, classes: Iterator[int]) -> None:
        self.classes = classes
        self.passed: Counter[int] = Counter()
        self.held: int | None = None

    def next(self, drawn: _Drawn) -> int:
        """The next class that has not been drawn more often than it was wanted."""
        if self.held is not None:
            label, self.held = self.held, None
            return label
        while True:
            label = next(self.classes)
            self.passed[label] += 1
            if drawn.number[label] < self.passed[label]:
                return label

    def put_back(self, label: int) -> None:
        """For the next batch."""
        self.held = label


class _Drawn:
    """How many samples of every class an epoch has had so far."""

    def __init__(self, sampler: RankedBatchSampler, epoch: int) -> None:
        classes = len(sampler.labels)
        self.number = [0] * classes
        luck = uniform(sampler.seed, epoch, RANKED_PARTNERS, torch.arange(classes), 1)[:, 0]  # among equals
        self._due = sampler._sizes if sampler.balance == "none" else [1] * classes
        self._shares = (luck / torch.tensor(self._due)).tolist()
        self.share = self._shares.__getitem__
        """How much of what is due to a class it has had."""

    def add(self, family: Counter[int]) -> None:
        """Counts what was drawn."""
        for label, count in family.items():
            self.number[label] += count
            self._shares[label] += count / self._due[label]


def _cut(family: Counter[int], room: int) -> Counter[int]:
    """The classes that came first, as far as there is room."""
    kept: Counter[int] = Counter()
    for label, count in family.items():
        if kept.total() + count > room:
            break
        kept[label] = count
    return kept
