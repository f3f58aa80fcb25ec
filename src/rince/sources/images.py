"""Images and labels from embedded data, local parquet files, folders, or the Hugging Face hub.

Small images of one size become one uint8 tensor in memory. All others stay encoded, see `rince.sources.image_files`.
"""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from rince.config import DataSettings
from rince.errors import ConfigError, DataError
from rince.hierarchy.class_lists import read_class_list
from rince.sources.image_file import NotGivenError
from rince.sources.image_files import ImageFiles, Images, find_images, read_folder
from rince.sources.image_tables import parquet_files, parquet_splits, read_tables
from rince.sources.part import TestPart, others, with_test_part
from rince.sources.source import InMemory, Preview, Source, left_out_notes
from rince.sources.splits import split_folders, split_part
from rince.sources.tables import HUB_NAME, hub_splits
from rince.sources.unreadable import Check, reason_of, without, without_unreadable
from rince.views.centre import ROOM
from rince.views.pixels import PixelViewSettings, with_channels

EMBEDDED = ("fashion",)
SMALL = 96  # pixels a side; up to here images of one size are held in memory …
MEMORY = 4 * 2**30  # … if all of them take no more bytes than this


class ImageData(DataSettings):
    """`data.kind=images`: class folders, parquet, or a set on the hub."""

    view_settings: ClassVar[type[PixelViewSettings]] = PixelViewSettings
    input_name: ClassVar[str] = "images"

    kind: Literal["images"] = "images"
    source: str = Field(
        description="embedded data (fashion), a local folder or parquet, or a hub name (uoft-cs/cifar100)"
    )
    image_column: str | None = Field(
        None, description="of the images in parquet or on the hub; found by itself where obvious"
    )
    label_column: str | None = Field(None, description="of their classes; found by itself where obvious")
    superclass_column: str | None = Field(None, description="needed for taxonomy: column")
    test_part: TestPart = 0.2
    check: Check = Field(
        "header", description="how each file is looked at once, before all else: its header, or decode all of it"
    )
    strict: bool = Field(False, description="refuse images that cannot be read; else they are left out and listed")

    def open(self, split: str, views: PixelViewSettings, *, own_keys: int | None = None) -> Source:  # noqa: ARG002
        """The images of a split; of the training split, those that are trained on."""
        read = functools.partial(self._read, views)
        return with_test_part(self, self.test_part, split, image_splits(self.source), read)

    def _read(self, views: PixelViewSettings, split: str, limit: int | None) -> Images:
        images = load_images(
            self.source,
            split,
            image_column=self.image_column,
            label_column=self.label_column,
            superclass_column=self.superclass_column,
            classes=self.classes,
            limit=limit,
            check=self.check,
            strict=self.strict,
        )
        maker = views.build()
        if isinstance(images, MemoryImages) and images.images.shape[1] > len(maker.mean):  # gray becomes RGB
            raise ConfigError(
                f"images of {self.source!r} have {images.images.shape[1]} channel(s), but views.mean has "
                f"{len(maker.mean)} number(s); give views.mean and views.std one number per channel"
            )
        return replace(images, maker=maker)

    def input_facts(self, views: PixelViewSettings) -> dict[str, Any]:
        """How pixels are made."""
        size = views.build().size
        return views.input_facts(
            f"turned upright as EXIF says, shorter side resized (bilinear, antialiased) to {round(size * ROOM)} if it "
            f"is above {size}, else to {size}"
        )

    def usual_shape(self, views: PixelViewSettings) -> tuple[int, ...]:
        """Channels, height and width."""
        made = views.build()
        return len(made.mean), made.size, made.size

    def find(self, place: str, views: PixelViewSettings) -> Images:
        """An image, all images of a folder in any order, or the test split of any other source."""
        path = Path(place)
        is_table = path.suffix.lower() == ".parquet" or (path.is_dir() and next(parquet_files(path), None))
        elsewhere = place in EMBEDDED or (not path.exists() and re.fullmatch(HUB_NAME, place))
        images: Images
        if is_table or elsewhere:
            images = load_any(place, self.test_split, check=self.check, strict=self.strict)
        else:
            images = without_unreadable(find_images(place), self.check, strict=self.strict)
        return replace(images, maker=views.build())

    def outliers(self, place: str, views: PixelViewSettings, *, classes: str | None = None) -> Images:
        """The test images there, whatever they are labelled; of all classes or some."""
        return replace(
            load_any(place, self.test_split, classes, check=self.check, strict=self.strict), maker=views.build()
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class MemoryImages(InMemory, Images):
    """Small images of one size, all in memory.

    Attributes:
        images: `(number, channels, height, width)` uint8, contiguous; one channel if all are grayscale, else RGB.
        labels: `(number,)` int64.
        fingerprint: sha256 over pixels, labels and class names.
        names: of the images, if they come from files of their own; else they are called by their rows.
    """

    draws_in_float64: ClassVar[bool] = True  # boxes, so that devices agree on the pixel

    images: Tensor
    fingerprint: str = ""
    names: tuple[str, ...] = ()

    @property
    def rows(self) -> Tensor:
        """The images."""
        return self.images

    def view(self, rows: Tensor, *, seed: int, epoch: int, view: int, sample_ids: Tensor) -> Tensor:
        """Crop, flip, colours."""
        rows = with_channels(rows, len(self.made_by.mean)).contiguous()
        return self.made_by(rows, seed=seed, epoch=epoch, view=view, sample_ids=sample_ids)

    def plain(self, ids: Tensor) -> Tensor:
        """The test view, with the channels that the encoder takes."""
        return self.made_by.resize_and_normalise(with_channels(self.images[ids], len(self.made_by.mean)))

    def name(self, row: int) -> str:
        """The file below its source, or the row."""
        return self.names[row] if self.names else super().name(row)

    def preview(self, row: int) -> Preview:
        """The image."""
        return Preview(self.images[row], self.name(row))

    def notes(self) -> list[str]:
        """How large they are, if the encoder gets them in another size; and remarks."""
        height, width = self.images.shape[-2:]
        told = [*left_out_notes(self), *self.remarks]
        if self.maker is None or (height, width) == (self.maker.size,) * 2:
            return told
        return [f"{len(self):,} images of {height} × {width}, resized to {self.maker.size}", *told]


def load_images(
    source: str,
    split: str,
    *,
    image_column: str | None = None,
    label_column: str | None = None,
    superclass_column: str | None = None,
    classes: str | None = None,
    limit: int | None = None,
    check: Check = "header",
    strict: bool = False,
) -> MemoryImages | ImageFiles:
    """Reads one split; images that cannot be read are left out, and are in its `left_out`.

    Args:
        source: the name of embedded data (`fashion`), a local path, or a hub name such as `uoft-cs/cifar100`, tried in
            this order. A path is a parquet file, a folder of them, or a folder of class folders, which may be nested,
            with split folders on top; without any split in its name, it is all "train".
        split: such as "train", "val" or "test"; "valid" and "validation" mean "val". `val[:40]` is the first 40 images
            of every class, `val[40:]` all others.
        image_column: default `img` or `image`.
        label_column: default `fine_label` or `label`. Integers with the names in the file, or strings.
        superclass_column: default `coarse_label`, if there is one.
        classes: take these classes only: a list that ships, such as `imagenet100`, or a text file.
        limit: keep the first `limit / classes` samples of every class, in their order. If that is not whole, the first
            `limit % classes` classes give one more; a class with fewer samples gives them all.
        check: how files are looked at: their header, or all of them decoded.
        strict: refuse what cannot be read.

    Returns:
        An `MemoryImages` if all images have one size of at most 96 × 96 pixels and fit into 4 GB, else `ImageFiles`.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"limit must be at least 1, got {limit}; leave it out to keep all images")
    name, part = split_part(split)
    encoded = _encoded(source, name, (image_column, label_column, superclass_column))
    encoded = without_unreadable(encoded, check, strict=strict)
    if part is not None:
        encoded = encoded.part(part, split)
    if classes is not None:
        encoded = encoded.of_classes(read_class_list(classes), classes)
    if limit is not None:
        encoded = encoded.limited(limit)
    return _in_memory(encoded, strict=strict)


def load_any(
    source: str, split: str, classes: str | None = None, *, check: Check = "header", strict: bool = False
) -> MemoryImages | ImageFiles:
    """Images whose labels do not matter: of the split, else of test or val, else all there are.

    Args:
        source: as `load_images` takes it; labels are not needed, so it may also be a folder of images in any order.
        split: to try first.
        classes: take these classes only, as in `load_images`.
        check: as in `load_images`.
        strict: likewise.
    """
    path = Path(source)
    problem: DataError | None = None
    encoded: ImageFiles | None = None
    for name in dict.fromkeys((split_part(split)[0], "test", "val", "train")):
        try:
            encoded = _encoded(source, name, (None, None, None), needs_labels=False)
            break
        except DataError as error:
            problem = problem or error
    if encoded is None:
        assert problem is not None
        if not path.is_dir() or next(parquet_files(path), None):
            raise problem
        encoded = find_images(source)
    encoded = without_unreadable(encoded, check, strict=strict)
    if classes is not None:
        encoded = encoded.of_classes(read_class_list(classes), classes)
    return _in_memory(encoded, strict=strict)


def image_splits(source: str) -> set[str]:
    """The splits that a source has, by the one name that each gets; none if there is no such source."""
    path = Path(source)
    if source in EMBEDDED:
        return set(parquet_splits(_embedded(source)))
    if path.is_dir() and len(split_folders(path)) > 1:  # most folders tell by themselves, at no cost
        return set(split_folders(path))
    if path.is_file() or (path.is_dir() and next(parquet_files(path), None)):
        return set(parquet_splits(source))
    if path.is_dir():
        return set(split_folders(path)) or {"train"}
    return set(hub_splits(source)) if re.fullmatch(HUB_NAME, source) else set()


def _embedded(source: str) -> str:
    return str(files("rince") / f"sources/embedded/{source}")


def _encoded(
    source: str, split: str, columns: tuple[str | None, str | None, str | None], *, needs_labels: bool = True
) -> ImageFiles:
    if source in EMBEDDED:
        return read_tables(source, split, parquet_splits(_embedded(source)), columns)
    path = Path(source)
    if path.is_file() or (path.is_dir() and next(parquet_files(path), None)):
        return read_tables(source, split, parquet_splits(source), columns, needs_labels=needs_labels)
    if path.is_dir():
        if any(columns):
            raise ConfigError(
                f"{source!r} is a folder of images and has no columns; leave out {next(filter(None, columns))!r}"
            )
        return read_folder(source, split)
    if re.fullmatch(HUB_NAME, source):
        return read_tables(source, split, hub_splits(source), columns, may_name_files=True, needs_labels=needs_labels)
    raise DataError(
        f"data source {source!r} does not exist; give a local path, a hub name such as 'uoft-cs/cifar100', "
        f"or embedded data: {', '.join(EMBEDDED)}"
    )


def _in_memory(encoded: ImageFiles, *, strict: bool) -> MemoryImages | ImageFiles:
    """All images as one tensor; encoded as they are if they differ in size or are too large."""
    images = np.empty((0, 1, 0, 0), dtype=np.uint8)
    bad: dict[int, str] = {}
    for index in range(len(encoded)):
        try:
            pixels = encoded.pixels(index)
        except NotGivenError:
            raise
        except DataError as error:
            bad[index] = reason_of(error, encoded, index)
            continue
        _, height, width = pixels.shape
        if images.size == 0:
            if max(height, width) > SMALL or 3 * height * width * len(encoded) > MEMORY:
                break
            images = np.empty((len(encoded), *pixels.shape), dtype=np.uint8)
        if images.shape[2:] != (height, width):
            break
        if len(pixels) > images.shape[1]:  # the first image in colour; the gray ones before it become RGB
            images = np.repeat(images, 3, axis=1)
        images[index] = pixels
    else:
        kept = others(torch.tensor(list(bad), dtype=torch.int64), len(encoded))
        encoded = without(encoded, bad, strict=strict)
        return _as_tensor(encoded, np.ascontiguousarray(images[kept.numpy()]) if bad else images)
    return without(encoded, bad, strict=strict)


def _as_tensor(encoded: ImageFiles, images: np.ndarray[Any, np.dtype[np.uint8]]) -> MemoryImages:
    labels = encoded.labels
    digest = hashlib.sha256(repr((images.shape, encoded.class_names)).encode())
    digest.update(images.data)
    digest.update(labels.numpy().tobytes())
    return MemoryImages(
        images=torch.from_numpy(images),
        labels=labels,
        class_names=encoded.class_names,
        superclasses=encoded.superclasses,
        superclass_names=encoded.superclass_names,
        folder_paths=encoded.folder_paths,
        fingerprint=digest.hexdigest(),
        source=encoded.source,
        remarks=encoded.remarks,
        left_out=encoded.left_out,
        names=tuple(map(encoded.name, range(len(encoded)))) if encoded.file(0) is not None else (),
    )
