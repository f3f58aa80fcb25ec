"""Samples that a user brings as a data set of their own, with their own transforms.

Any map-style data set will do: something with a length whose items are samples, or (sample, label). What a transform
draws is a function of (seed, epoch, view, id): one that takes a `generator` gets a seeded one; for any other, torch,
numpy and random are seeded before every sample, in worker processes, whose generators nobody else draws from.
"""

from __future__ import annotations

import hashlib
import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import model_validator
from torch import Tensor

from rince.config import DataSettings
from rince.draws import seed_of
from rince.errors import ConfigError, DataError
from rince.hierarchy.levels import no_own_paths
from rince.sources.source import Batch, Made, Preview, Source, moved

Transform = Callable[..., Any]
PICTURE = 3  # axes of an image


class GivenData(DataSettings):
    """Samples from an object: `rince.fit(…, source=…)`."""

    brought_as: ClassVar[str] = "source"

    kind: Literal["given"]
    source: str = "a source given as an object"

    @model_validator(mode="after")
    def _takes_no_part_of_it(self) -> GivenData:
        for name in ("limit", "classes"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name} is for data that is read by its name; give a source of the samples you want")
        return self

    def open(self, split: str, views: Any, *, own_keys: int | None = None) -> Source:  # noqa: ARG002 - of the interface
        """A file cannot hold the object."""
        raise ConfigError(
            f"the {'training' if split == self.train_split else 'test'} samples of this run were given as an object "
            f"({self.source}); give it again: rince.open_run(FOLDER, source=…, test_source=…)"
        )

    def find(self, place: str, views: Any) -> Source:  # noqa: ARG002 - of the interface
        """Nobody knows how a place would be read."""
        raise ConfigError(
            f"this run was trained on {self.source}, so {place!r} cannot be read by its name; give the samples as a "
            "source: Run.embed(rince.sources.from_dataset(…))"
        )


class DatasetSource(Source):
    """A map-style data set as a source; made by `from_dataset`."""

    knows_content: ClassVar[bool] = False

    def __init__(
        self,
        dataset: Any,
        labels: Tensor,
        class_names: tuple[str, ...],
        *,
        transform: Transform | None,
        test_transform: Transform | None,
        paths: Sequence[tuple[str, ...]] | None,
        name: str,
    ) -> None:
        self.dataset, self.labels, self.class_names, self.paths = dataset, labels, class_names, paths
        self.transform, self.test_transform, self.source = transform, test_transform, name
        self._takes_generator = transform is not None and _takes_generator(transform)
        # Without a transform of ours to seed, the data set itself may draw what makes one view differ from another.
        self.in_processes = not self._takes_generator
        self._shape: tuple[int, ...] | None = None

    @property
    def fingerprint(self) -> str:
        """sha256 over labels and classes: the samples themselves are the user's to keep as they are."""
        told = repr((self.source, self.class_names, len(self))).encode()
        return hashlib.sha256(told + self.labels.numpy().tobytes()).hexdigest()

    def holds_the_same_as(self, other: Source) -> bool:
        """Whether both are of one data set, whatever its samples are made into."""
        return isinstance(other, DatasetSource) and self.dataset is other.dataset

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the plain view of the first sample; of a dict, of its first entry."""
        if self._shape is None:
            batch = self.plain(torch.tensor([0]))
            self._shape = tuple((batch if isinstance(batch, Tensor) else next(iter(batch.values()))).shape[1:])
        return self._shape

    def load(self, ids: Tensor, numbers: Sequence[int], *, seed: int, epoch: int) -> list[Batch]:
        """Every view of every sample through the transform, or as a data set that transforms by itself gives it."""
        return [
            stacked([self._view(row, seed_of(seed, epoch, view, row)) for row in ids.tolist()], self.source)
            for view in numbers
        ]

    def _view(self, row: int, seed: int) -> Any:
        """An item is asked for once a view: what it draws by itself is seeded too."""
        if self.transform is not None and self._takes_generator:
            return self.transform(self._sample(row), generator=torch.Generator().manual_seed(seed))
        with _seeded(seed):
            sample = self._sample(row)
            return sample if self.transform is None else self.transform(sample)

    def finish(self, loaded: list[Batch], device: torch.device) -> Made:
        """The same on the device."""
        return Made([moved(view, device) for view in loaded])

    def plain(self, ids: Tensor) -> Batch:
        """Through the transform for testing, or as the data set gives them."""
        samples = [self._sample(row) for row in ids.tolist()]
        return stacked([self.test_transform(each) if self.test_transform else each for each in samples], self.source)

    def _sample(self, row: int) -> Any:
        """An item without its label."""
        item = self.dataset[row]
        labelled = isinstance(item, tuple) or (isinstance(item, list) and not isinstance(item[0], int | float))
        return item[0] if labelled else item

    def preview(self, row: int) -> Preview:
        """The item, if it is a picture or looks like one."""
        sample = self._sample(row)
        if isinstance(sample, str):
            return Preview(None, sample)
        try:
            pixels = torch.from_numpy(np.array(sample)) if not isinstance(sample, Tensor) else sample
        except (TypeError, ValueError):
            return Preview(None, self.name(row))
        if pixels.ndim == PICTURE - 1:
            pixels = pixels[None]
        elif pixels.ndim == PICTURE and not isinstance(sample, Tensor):
            pixels = pixels.permute(2, 0, 1)  # arrays and pictures have their channels last
        if pixels.ndim != PICTURE or pixels.shape[0] not in (1, 3):
            return Preview(None, self.name(row))
        if pixels.is_floating_point():
            low, high = pixels.min(), pixels.max()
            pixels = (pixels - low) / (high - low).clamp(min=1e-12) * 255
        return Preview(pixels.to(torch.uint8), self.name(row))

    def own_paths(self, taxonomy: str) -> list[tuple[str, ...]]:
        """Those that were given with the data set."""
        if self.paths is None:
            raise no_own_paths(taxonomy, self.source)
        return list(self.paths)


def from_dataset(
    dataset: Any,
    *,
    labels: Any = None,
    transform: Transform | None = None,
    test_transform: Transform | None = None,
    class_names: Sequence[str] | None = None,
    paths: Sequence[str | Sequence[str]] | None = None,
    name: str | None = None,
) -> DatasetSource:
    """A source of your own samples for `rince.fit`, from any map-style data set.

    Args:
        dataset: has a length and items: samples, or (sample, label). The label of an item is not looked at.
        labels: `(samples,)` integers or names of classes; by default the data set's `targets` or `labels`. Never by
            going through all items, which would decode them.
        transform: an item to what the encoder gets, random: torchvision's v2 transforms, albumentations under a
            function of yours, or any function. If it takes an argument `generator`, it gets a seeded `torch.Generator`
            and runs in threads; else it runs in worker processes where torch, numpy and random are seeded for every
            sample.
        test_transform: the same for testing, nothing random; by default items as they are.
        class_names: in label order; by default the names in `labels`, the data set's `classes`, or the numbers.
        paths: the path of every class from the top down, such as `"animal/dog/poodle"`, in the order of `class_names`:
            the taxonomy of the data, used with `data.taxonomy=column`.
        name: what to call it.

    Example:
        >>> source = from_dataset([torch.zeros(4), torch.ones(4)], labels=["cat", "dog"])
        >>> len(source), source.class_names, source.shape
        (2, ('cat', 'dog'), (4,))
    """
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise ConfigError(
            f"a data set needs a length and items by number, and {type(dataset).__name__} has not; read an "
            "iterable one into a list first"
        )
    if labels is None:
        labels = next((getattr(dataset, found) for found in ("targets", "labels") if hasattr(dataset, found)), None)
    if labels is None:
        raise ConfigError(
            f"{type(dataset).__name__} has neither `targets` nor `labels`; give labels=…, one for every sample (to "
            "find them by going through the data set would decode all of it)"
        )
    codes, names = _coded(labels, class_names if class_names is not None else getattr(dataset, "classes", None))
    if len(codes) != len(dataset):
        raise DataError(f"one label per sample: got {len(codes):,} labels for {len(dataset):,} samples")
    if len(codes) == 0:
        raise DataError("the data set is empty")
    split = None if paths is None else [tuple(p.split("/")) if isinstance(p, str) else tuple(p) for p in paths]
    if split is not None and len(split) != len(names):
        raise DataError(f"one path per class: got {len(split)} paths for {len(names)} classes")
    return DatasetSource(
        dataset,
        codes,
        names,
        transform=transform,
        test_transform=test_transform,
        paths=split,
        name=name or f"{type(dataset).__name__} of {len(dataset):,} samples",
    )


def _coded(labels: Any, class_names: Sequence[str] | None) -> tuple[Tensor, tuple[str, ...]]:
    """Labels as numbers from 0, and the names they stand for."""
    array = np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels)
    if array.ndim != 1 or array.dtype.kind not in "iuUSO":
        raise DataError(f"labels must be one integer or name per sample, got {array.dtype} of shape {array.shape}")
    if array.dtype.kind in "USO":
        given = [str(label) for label in array.tolist()]
        names = tuple(class_names) if class_names is not None else tuple(sorted(set(given)))
        absent = sorted(set(given) - set(names))
        if absent:
            raise DataError(f"label {absent[0]!r} is none of the {len(names)} class_names")
        return torch.tensor([names.index(label) for label in given]), names
    codes = torch.from_numpy(array.astype(np.int64))
    low, high = (int(codes.min()), int(codes.max())) if len(codes) else (0, -1)
    names = tuple(map(str, class_names if class_names is not None else range(high + 1)))
    if low < 0:
        raise DataError(f"labels start at 0, got {low}")
    if high >= len(names):
        raise DataError(f"labels go from 0 to {len(names) - 1} for {len(names)} classes, got {low} to {high}")
    return codes, names


def _takes_generator(transform: Transform) -> bool:
    try:
        return "generator" in inspect.signature(transform).parameters
    except (TypeError, ValueError):  # a transform of C, or one that hides what it takes
        return False


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Generators of torch, numpy and random at this seed; after it as they were."""
    before = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


def stacked(samples: Sequence[Any], source: str) -> Batch:
    """Samples, each a tensor, an array or a dict of those, as a batch."""
    if not samples:
        raise DataError(f"a batch of {source} has no samples")
    if isinstance(samples[0], Mapping):
        return {str(key): _rows([sample[key] for sample in samples], source) for key in samples[0]}
    return _rows(samples, source)


def _rows(samples: Sequence[Any], source: str) -> Tensor:
    try:
        tensors = [each if isinstance(each, Tensor) else torch.as_tensor(np.asarray(each)) for each in samples]
        return torch.stack(tensors)
    except (TypeError, ValueError, RuntimeError) as error:
        kinds = sorted({f"{type(each).__name__} of {tuple(getattr(each, 'shape', ()))}" for each in samples})
        raise DataError(
            f"samples of {source} do not make a batch ({', '.join(kinds[:3])}): a transform must give tensors, arrays "
            f"or dicts of them, all of one shape ({str(error).splitlines()[0]})"
        ) from None
