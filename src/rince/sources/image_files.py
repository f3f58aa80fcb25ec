"""Encoded images that are decoded one by one, and folders of image files."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import overload

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import torch
from torch import Tensor

from rince.sources.image_file import OpenedImage, Pixels
from rince.errors import DataError

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
UNLABELLED = ("image",)  # the one class of images that have no label
# Folder and file names that mean a split, and the one name we give it.
SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}


class ArrowImages(Sequence[Path | bytes]):
    """Encoded images in an Arrow column; what is mapped from disk stays there until it is read.

    Args:
        encoded: the bytes.
        paths: files to read where there are no bytes, or None.
    """

    def __init__(self, encoded: pa.ChunkedArray, paths: pa.ChunkedArray | None) -> None:
        self.encoded, self.paths = encoded, paths

    def __len__(self) -> int:
        return len(self.encoded)

    @overload
    def __getitem__(self, index: int) -> Path | bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[Path | bytes]: ...
    def __getitem__(self, index: int | slice) -> Path | bytes | list[Path | bytes]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        encoded: bytes | None = self.encoded[index].as_py()
        if encoded is None and self.paths is not None and (path := self.paths[index].as_py()):
            return Path(path)
        return encoded or b""  # decoding says that there is nothing, and where


class SomeOf(Sequence[Path | bytes]):
    """Some of the images, in the order of their indices; none of them is read before it is asked for."""

    def __init__(self, items: Sequence[Path | bytes], indices: Sequence[int]) -> None:
        self.items, self.indices = items, indices

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, index: int) -> Path | bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[Path | bytes]: ...
    def __getitem__(self, index: int | slice) -> Path | bytes | list[Path | bytes]:
        if isinstance(index, slice):
            return [self.items[number] for number in self.indices[index]]
        return self.items[self.indices[index]]


@dataclass(frozen=True, eq=False)
class LargeImages:
    """Images of any size, kept encoded and decoded on request.

    Attributes:
        items: one file path or the encoded bytes per image.
        labels: `(number,)` int64.
        class_names: names in label order.
        superclasses: `(classes,)` int64, the superclass of every class (-1: no sample tells), or None.
        superclass_names: names in the order of `superclasses`; empty without them.
        folder_paths: the folders of every class from the top down, if they are nested, else None.
        source: where the images come from, for messages.
        split: the split asked for.
        rows: `(number,)` int64, the row of each image in its split, or its place in the list of files.
    """

    items: Sequence[Path | bytes]
    labels: Tensor
    class_names: tuple[str, ...]
    superclasses: Tensor | None = None
    superclass_names: tuple[str, ...] = ()
    folder_paths: tuple[tuple[str, ...], ...] | None = None
    source: str = "images"
    split: str = "train"
    rows: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def decode(self, index: int) -> Tensor:
        """One image as uint8 `(3, height, width)`: RGB, without its alpha, not turned by its EXIF entry."""
        pixels = self.pixels(index)
        return torch.from_numpy(np.repeat(pixels, 3, axis=0) if len(pixels) == 1 else pixels)

    def pixels(self, index: int) -> Pixels:
        """One image as uint8 `(1, height, width)` if it is grayscale, else `(3, height, width)`."""
        with self.opened(index) as image:
            return image.pixels()

    def opened(self, index: int) -> OpenedImage:
        """One image of which only the size was read, to be closed after use."""
        return OpenedImage(self.items[index], f"{self.origin(index)} of {self.source!r}")

    def origin(self, index: int) -> str:
        """What to call an image in a message: its file, or its row."""
        item = self.items[index]
        if isinstance(item, Path):
            return f"file {str(item)!r}"
        return f"row {index if self.rows is None else int(self.rows[index])} of split {self.split!r}"

    def limited(self, limit: int) -> LargeImages:
        """The first `limit / classes` images of every class; the first `limit % classes` classes give one more."""
        each, more = divmod(limit, len(self.class_names))
        kept = self._places() < each + (self.labels < more)
        if not kept.any():
            raise DataError(
                f"limit {limit} keeps nothing of {self.source!r}: it asks for one image of each of the first {more} "
                f"of {len(self.class_names)} classes, and these have none; ask for at least {len(self.class_names)}"
            )
        return self._some(kept.nonzero()[:, 0])

    def part(self, part: slice, split: str) -> LargeImages:
        """Some of the images of every class, as if they were a split of this name."""
        places = self._places()
        chosen = torch.zeros(int(places.max()) + 1, dtype=torch.bool)
        chosen[part] = True
        kept = chosen[places].nonzero()[:, 0]
        if len(kept) == 0:
            raise DataError(f"split {split!r} of {self.source!r} is empty: no class has so many images")
        return replace(self._some(kept), split=split)

    def _places(self) -> Tensor:
        """`(number,)`: how many images of its class come before each."""
        order = self.labels.argsort(stable=True)
        counts = self.labels.bincount()
        places = torch.empty_like(order)
        places[order] = torch.arange(len(order)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
        return places

    def of_classes(self, wanted: Sequence[str], list_name: str) -> LargeImages:
        """The images of these classes, which keep their order and get new labels from 0.

        Args:
            wanted: class names.
            list_name: what to call them in a message.
        """
        absent = [name for name in wanted if name not in self.class_names]
        if absent:
            raise DataError(
                f"{self.source!r} lacks {len(absent)} of the {len(wanted)} classes of {list_name!r}, {absent[0]!r} "
                f"first; its {len(self.class_names)} classes are called like {self.class_names[0]!r}"
            )
        chosen = [label for label, name in enumerate(self.class_names) if name in set(wanted)]
        renumbered = torch.full((len(self.class_names),), -1)
        renumbered[chosen] = torch.arange(len(chosen))
        kept = (renumbered[self.labels] >= 0).nonzero()[:, 0]
        if len(kept) == 0:
            raise DataError(f"split {self.split!r} of {self.source!r} has no image of the classes of {list_name!r}")
        paths = self.folder_paths
        return replace(
            self._some(kept),
            labels=renumbered[self.labels[kept]],
            class_names=tuple(self.class_names[label] for label in chosen),
            superclasses=None if self.superclasses is None else self.superclasses[chosen],
            folder_paths=None if paths is None else tuple(paths[label] for label in chosen),
        )

    def _some(self, kept: Tensor) -> LargeImages:
        rows = torch.arange(len(self)) if self.rows is None else self.rows
        return replace(self, items=SomeOf(self.items, kept.tolist()), labels=self.labels[kept], rows=rows[kept])

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over labels and class names, and of every image its name, its size and, if in memory, its ends."""
        digest = hashlib.sha256()
        digest.update(repr(self.class_names).encode())
        digest.update(self.labels.numpy().tobytes())
        for item in self.items:
            if isinstance(item, Path):
                digest.update(f"{_below(item, self.source)}\0{item.stat().st_size}\0".encode())
            else:  # the whole of it would mean to read all data before anything happens
                digest.update(f"\0{len(item)}\0".encode() + item[:64] + item[-64:])
        return digest.hexdigest()

    @property
    def changed(self) -> int:
        """When the newest of the files was written, in nanoseconds; 0 for images in memory."""
        return max((item.stat().st_mtime_ns for item in self.items if isinstance(item, Path)), default=0)


def split_part(split: str) -> tuple[str, slice | None]:
    """`val[:40]` → the split, and which images of every class."""
    found = re.fullmatch(r"(.+)\[(\d*):(\d*)\]", split)
    if found is None:
        return split, None
    return found[1], slice(*(int(end) if end else None for end in found.groups()[1:]))


def read_folder(source: str, split: str) -> LargeImages:
    """The images of one split of a folder of class folders, which may be nested, with split folders on top.

    A folder without split folders is all "train". Every folder that holds images is a class, named by its own name, or
    by its whole path where two classes share a name. Classes are those of all splits, so labels agree between them.
    """
    root = Path(source)
    tops: dict[str, Path] = {}
    for folder in sorted(entry for entry in root.iterdir() if entry.is_dir()):
        known = SPLITS.get(folder.name.lower())
        if known in tops:
            raise DataError(f"{source!r} has two folders for split {known!r}, {tops[known].name!r} and {folder.name!r}")
        if known:
            tops[known] = folder
    whole = not tops
    tops = tops or {"train": root}
    if SPLITS.get(split, split) not in tops:
        hint = "; it has no split folders, so all of it is 'train'" if whole else ""
        raise DataError(f"{source!r} has no split {split!r}; there are {', '.join(map(repr, tops))}{hint}")
    found = {name: list(_scan(top, (), source, ())) for name, top in tops.items()}
    chosen = found[SPLITS.get(split, split)]
    top = tops[SPLITS.get(split, split)]
    if not chosen:
        raise DataError(
            f"split {split!r} of {source!r} is empty: no file under {str(top)!r} ends in {' '.join(sorted(SUFFIXES))}"
        )
    paths = sorted({path for images in found.values() for path, _ in images})
    shared = Counter(path[-1] for path in paths)
    names = tuple(path[-1] if shared[path[-1]] == 1 else "/".join(path) for path in paths)
    index = {path: number for number, path in enumerate(paths)}
    return LargeImages(
        items=[image for _, image in chosen],
        labels=torch.tensor([index[path] for path, _ in chosen]),
        class_names=names,
        folder_paths=tuple(paths) if max(map(len, paths)) > 1 else None,
        source=source,
        split=split,
    )


def find_images(source: str) -> LargeImages:
    """One image file, or all image files below a folder, sorted by path and without labels (all are 0)."""
    root = Path(source)
    if root.is_file():
        files = [root]
    elif root.is_dir():
        files = sorted(p for p in root.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    else:
        raise DataError(f"there is no file and no folder {source!r}; give an image or a folder of images")
    if not files:
        raise DataError(f"no file under {source!r} ends in {' '.join(sorted(SUFFIXES))}")
    return LargeImages(
        items=files, labels=torch.zeros(len(files), dtype=torch.int64), class_names=UNLABELLED, source=source
    )


def _scan(
    folder: Path, path: tuple[str, ...], source: str, ancestors: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Path]]:
    """Class path and file of every image below a folder, in alphabetical order. Follows links."""
    real = os.path.realpath(folder)
    if real in ancestors:
        raise DataError(f"folder {str(folder)!r} of {source!r} is a link to a folder above it; take the link out")
    with os.scandir(folder) as listing:
        entries = sorted((entry for entry in listing if not entry.name.startswith(".")), key=lambda entry: entry.name)
    images = [folder / e.name for e in entries if os.path.splitext(e.name)[1].lower() in SUFFIXES and e.is_file()]
    below = [
        pair
        for entry in entries
        if entry.is_dir()
        for pair in _scan(folder / entry.name, (*path, entry.name), source, (*ancestors, real))
    ]
    if images and below:
        raise DataError(
            f"folder {str(folder)!r} of {source!r} holds both images ({images[0].name!r}) and folders with images "
            f"({below[0][1].parent.name!r}); put each image into the folder of its class"
        )
    if images and not path:
        raise DataError(
            f"folder {str(folder)!r} of {source!r} has images ({images[0].name!r}) but no class sub-folders; "
            "put each image into a folder named by its class"
        )
    yield from ((path, image) for image in images)
    yield from below


def _below(path: Path, source: str) -> str:
    return path.relative_to(source).as_posix() if path.is_relative_to(source) else path.name
