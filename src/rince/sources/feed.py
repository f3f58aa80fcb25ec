"""Samples and views of a step: ids in, query view and key views out, on the device.

What does not lie in memory is loaded a few steps ahead. By threads, not processes, wherever that can be: decoding and
resizing hold no lock of Python's, and what processes make has to be handed over in shared memory. With two views of 224
pixels, two threads gave 1.13 times the images of two processes (AMD EPYC).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from rince.draws import KEY_VIEW, QUERY_VIEW
from rince.sources.order import HELD_OUT_EPOCH, BatchOrder
from rince.sources.source import Batch, Source

Key = TypeVar("Key")
Thing = TypeVar("Thing")
FindParts = Callable[[int], tuple[int, tuple[Tensor, ...]]]
"""A step to its epoch and the sample ids of every process."""


class Step(NamedTuple):
    """What one process gets for one step.

    Attributes:
        epoch: from 0.
        step: from 0, over the whole run.
        sizes: how many samples every process gets.
        ids: `(samples,)`, of this process.
        classes: `(samples,)`, their labels.
        views: as many as the method needs; the query's is the first. At steps that are watched, more after them.
        present: `(samples, views)` bool, which of them a sample has; None if all.
    """

    epoch: int
    step: int
    sizes: list[int]
    ids: Tensor
    classes: Tensor
    views: list[Batch]
    present: Tensor | None = None


class Feed:
    """Steps of a run, from any of them on.

    Args:
        source: the training samples.
        order: of the samples.
        seed: of the views.
        device: where views are made.
        process: number of this process, of `processes`.
        workers: that load ahead what is not in memory; 0 for none but the one that asks.
        numbers: of the views to make.
        watched: numbers of further views, which are made every `watched_every` steps, for the log.
    """

    def __init__(
        self,
        source: Source,
        order: BatchOrder,
        *,
        seed: int,
        device: torch.device,
        process: int = 0,
        processes: int = 1,
        workers: int = 0,
        numbers: Sequence[int] = (QUERY_VIEW, KEY_VIEW),
        watched: Sequence[int] = (),
        watched_every: int = 1,
    ) -> None:
        self.source, self.order, self.seed, self.device = source, order, seed, device
        self.process, self.processes, self.workers, self.numbers = process, processes, workers, tuple(numbers)
        self.watched, self.watched_every = tuple(watched), watched_every
        self.classes = source.labels.to(device)

    def steps(self, first: int, stop: int) -> Iterator[Step]:
        """Steps `first` to `stop`, counted over the whole run."""
        return self._made(range(first, stop), self.parts, self.watched)

    def held_out_steps(self, ids: Tensor) -> Iterator[Step]:
        """Samples that are not trained on, their views always the same."""
        batches = ids.split(self.order.batch)
        return self._made(
            range(len(batches)), lambda number: (HELD_OUT_EPOCH, batches[number].tensor_split(self.processes))
        )

    def epoch(self, epoch: int) -> Iterator[Step]:
        """The steps of one epoch."""
        return self.steps(epoch * self.order.steps_per_epoch, (epoch + 1) * self.order.steps_per_epoch)

    def parts(self, step: int) -> tuple[int, tuple[Tensor, ...]]:
        """Epoch of a step, and the sample ids that every process takes."""
        epoch, within = divmod(step, self.order.steps_per_epoch)
        return epoch, self.order.ids(epoch, within).tensor_split(self.processes)

    def _made(self, steps: range, parts: FindParts, watched: tuple[int, ...] = ()) -> Iterator[Step]:
        def key(step: int) -> tuple[int, Tensor, tuple[int, ...]]:
            epoch, shares = parts(step)
            return epoch, shares[self.process], self.numbers + (() if step % self.watched_every else watched)

        wanted = map(key, steps)
        for step, loaded in zip(steps, self._loaded(wanted), strict=True):
            epoch, shares = parts(step)
            made = self.source.finish(loaded, self.device)
            ids = shares[self.process].to(self.device) if made.ids is None else made.ids
            sizes = [len(share) for share in shares]
            yield Step(epoch, step, sizes, ids, self.classes[ids], made.views, made.present)

    def _loaded(self, wanted: Iterable[tuple[int, Tensor, tuple[int, ...]]]) -> Iterator[Any]:
        workers = 0 if self.source.in_memory else self.workers
        if self.source.in_processes and workers:
            # The loader hands a key to each process in turn and gives back what they make in the order of the keys.
            return iter(DataLoader(_Keyed(self._load), sampler=wanted, batch_size=None, num_workers=workers))
        return made_ahead(self._load, wanted, workers)

    def _load(self, key: tuple[int, Tensor, tuple[int, ...]]) -> Any:
        epoch, ids, numbers = key
        return self.source.load(ids, numbers, seed=self.seed, epoch=epoch)


class _Keyed(Dataset[Any]):
    """A data set of torch's whose index is a key of ours."""

    def __init__(self, load: Callable[[tuple[int, Tensor, tuple[int, ...]]], Any]) -> None:
        self.load = load

    def __getitem__(self, key: Any) -> Any:
        return self.load(key)


def made_ahead(make: Callable[[Key], Thing], keys: Iterable[Key], workers: int) -> Iterator[Thing]:
    """What is made of every key, in their order. Threads work ahead, each up to two keys."""
    if workers == 0:
        yield from map(make, keys)
        return
    pool = ThreadPoolExecutor(workers, "loader")
    waiting: deque[Future[Thing]] = deque()
    try:
        for key in keys:
            waiting.append(pool.submit(make, key))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
