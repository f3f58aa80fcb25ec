"""Samples and views of a step: ids in, query view and key view out, on the device.

Small images lie in memory and are never touched by Python again. Large ones are decoded by threads a few steps ahead;
each view's crop is taken while decoding, with the numbers the view would have drawn, and the rest of the view is
applied to the whole batch.

Threads, not processes: decoding and resizing hold no lock of Python's, and what processes make has to be handed over in
shared memory. With two views of 224 pixels, two threads gave 1.13 times the images of two processes (AMD EPYC).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from rince.sources.image_file import OpenedImage
from rince.sources.image_files import LargeImages
from rince.sources.images import ImageSet
from rince.sources.order import HELD_OUT_EPOCH, Order
from rince.sources.videos import VideoSet
from rince.views.pixels import KEY_VIEW, QUERY_VIEW, Views
from rince.train.setup import BatchOrder

Key = TypeVar("Key")
Made = TypeVar("Made")
Loaded = tuple[Tensor, Tensor | None]
FindParts = Callable[[int], tuple[int, tuple[Tensor, ...]]]
"""A step to its epoch and the sample ids of every process."""
OPEN = 128  # images at a time: enough to draw for many at once; encoded, they lie in memory


class Step(NamedTuple):
    """What one process gets for one step.

    Attributes:
        epoch: from 0.
        step: from 0, over the whole run.
        sizes: how many samples every process gets.
        labels: `(samples,)`, of this process.
        views: as many as the method needs, each `(samples, channels, [frames,] size, size)`; the query's is the first.
        present: `(samples, views)` bool, which of them a sample has; None if all.
    """

    epoch: int
    step: int
    sizes: list[int]
    labels: Tensor
    views: list[Tensor]
    present: Tensor | None = None


class Feed:
    """Steps of a run, from any of them on.

    Args:
        images: the training images, or videos.
        labels: `(number,)`, what ranks are made from: classes, or sample ids.
        views: what makes a view of them.
        order: of the samples.
        seed: of the views.
        device: where views are made.
        process: number of this process, of `processes`.
        workers: threads that decode large images and videos; 0 for none but the one that asks.
        numbers: of the views to make.
    """

    def __init__(
        self,
        images: ImageSet | LargeImages | VideoSet,
        labels: Tensor,
        views: Views,
        order: BatchOrder,
        *,
        seed: int,
        device: torch.device,
        process: int = 0,
        processes: int = 1,
        workers: int = 0,
        numbers: Sequence[int] = (QUERY_VIEW, KEY_VIEW),
    ) -> None:
        self.numbers = tuple(numbers)
        self.images, self.views, self.order, self.seed, self.device = images, views, order, seed, device
        self.labels = labels.to(device)
        self.process, self.processes, self.workers = process, processes, workers
        self._pixels = images.images.to(device) if isinstance(images, ImageSet) else None

    def steps(self, first: int, stop: int) -> Iterator[Step]:
        """Steps `first` to `stop`, counted over the whole run."""
        return self._made(range(first, stop), self.parts)

    def held_out_steps(self) -> Iterator[Step]:
        """All samples that are not trained on, their views always the same."""
        assert isinstance(self.order, Order)
        batches = self.order.held_out_ids.split(self.order.batch)
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

    def _made(self, steps: range, parts: FindParts) -> Iterator[Step]:
        make = self._from_memory if self._pixels is not None else self._from_workers
        for step, (views, present) in zip(steps, make(steps, parts), strict=True):
            epoch, shares = parts(step)
            labels = self.labels[shares[self.process].to(self.device)]
            yield Step(epoch, step, [len(share) for share in shares], labels, views, present)

    def _from_memory(self, steps: range, parts: FindParts) -> Iterator[tuple[list[Tensor], None]]:
        assert self._pixels is not None
        for step in steps:
            epoch, shares = parts(step)
            chosen = shares[self.process].to(self.device)
            make = partial(self.views, self._pixels[chosen], seed=self.seed, epoch=epoch, sample_ids=chosen)
            yield [make(view=view) for view in self.numbers], None

    def _from_workers(self, steps: range, parts: FindParts) -> Iterator[tuple[list[Tensor], Tensor | None]]:
        load = self._loading()
        wanted = ((epoch, shares[self.process].tolist()) for epoch, shares in map(parts, steps))
        loaded = made_ahead(lambda batch: load(*batch), wanted, self.workers)
        for step, (crops, present) in zip(steps, loaded, strict=True):
            epoch, shares = parts(step)
            ids, made = shares[self.process], []
            for place, view in enumerate(self.numbers):
                pixels = crops[:, place].to(self.device)
                whole = torch.tensor([0, 0, self.views.size, self.views.size], device=self.device).expand(len(ids), 4)
                drawn = self.views.draw_parameters(
                    self.views.size, self.views.size, seed=self.seed, epoch=epoch, view=view, sample_ids=ids
                ).to(self.device)
                made.append(self.views.apply(pixels, drawn._replace(boxes=whole)))
            yield made, None if present is None else present.to(self.device)

    def _loading(self) -> Callable[[int, Sequence[int]], Loaded]:
        """Of an epoch and sample ids: their crops, and which of them are there."""
        if isinstance(self.images, VideoSet):
            return self.images.clips(self.views, self.seed, self.numbers).batch
        assert isinstance(self.images, LargeImages)
        return Crops(self.images, self.views, self.seed, self.numbers).batch


def made_ahead(make: Callable[[Key], Made], keys: Iterable[Key], workers: int) -> Iterator[Made]:
    """What is made of every key, in their order. Threads work ahead, each up to two keys."""
    if workers == 0:
        yield from map(make, keys)
        return
    pool = ThreadPoolExecutor(workers, "loader")
    waiting: deque[Future[Made]] = deque()
    try:
        for key in keys:
            waiting.append(pool.submit(make, key))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class Crops:
    """The crops of large images that their views take.

    Args:
        images: to crop.
        views: what draws the boxes.
        seed: of the views.
        numbers: of the views to make.
    """

    def __init__(self, images: LargeImages, views: Views, seed: int, numbers: tuple[int, ...]) -> None:
        self.images, self.views, self.seed, self.numbers = images, views, seed, numbers

    def batch(self, epoch: int, samples: Sequence[int]) -> tuple[Tensor, None]:
        """`(samples, views, 3, size, size)` uint8; an image has all its views."""
        size = self.views.size
        crops = torch.empty(len(samples), len(self.numbers), 3, size, size, dtype=torch.uint8)
        for start in range(0, len(samples), OPEN):
            self._fill(crops[start : start + OPEN], epoch, samples[start : start + OPEN])
        return crops, None

    def _fill(self, crops: Tensor, epoch: int, samples: Sequence[int]) -> None:
        """Opens images to learn their sizes, draws boxes for all of them at once, then decodes and cuts."""
        ids = torch.tensor(samples)
        with ExitStack() as stack:
            opened = [stack.enter_context(self.images.opened(sample)) for sample in samples]
            heights, widths = (torch.tensor([getattr(image, side) for image in opened]) for side in ("height", "width"))
            drawn = [
                self.views.draw_parameters(
                    heights, widths, seed=self.seed, epoch=epoch, view=view, sample_ids=ids
                ).boxes
                for view in self.numbers
            ]
            for image, boxes, out in zip(opened, torch.stack(drawn, dim=1).tolist(), crops, strict=True):
                cut(image, boxes, out)


def cut(image: OpenedImage, boxes: list[list[int]], out: Tensor) -> None:
    """Decodes an image once and cuts the boxes of all views out of it.

    Args:
        image: not yet decoded.
        boxes: top, left, height and width of every view, in pixels of the stored image.
        out: `(views, 3, size, size)` uint8, where the crops go.
    """
    size = out.shape[-1]
    shrinkage = image.shrinkage(min(min(box[2:]) for box in boxes), size)
    pixels = image.pixels(shrinkage)  # channels last in memory, which torch resizes fastest
    for box, crop in zip(boxes, out, strict=True):
        top, left, height, width = (side // shrinkage for side in box)
        part = torch.from_numpy(pixels[None, :, top : top + height, left : left + width])
        crop[:] = F.interpolate(part, (size, size), mode="bilinear", antialias=True)[0]  # large images shrink a lot
