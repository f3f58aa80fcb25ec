"""Encoded images that are decoded one by one, and folders of image files."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, overload

import pyarrow as pa  # type: ignore[import-untyped]
import torch
import torch.nn.functional as F
from torch import Tensor

from rince.errors import DataError
from rince.files import file_digest_once, file_digests_once, fingerprint_of, readable
from rince.hierarchy.levels import NoLevelsError, column_paths, no_own_paths
from rince.ranks import even_paths
from rince.sources.folders import files_below, listed
from rince.sources.image_file import OpenedImage, Pixels
from rince.sources.source import Made, Preview, Source, left_out_notes
from rince.sources.splits import SPLITS, chosen_classes, lower_places, places_in_class, split_folders
from rince.terminal import counted, shown_progress
from rince.views.centre import resized_sides
from rince.views.pixels import Cropped, PixelViews, with_channels
from rince.views.tensors import ViewParameters, joined

# Of photographs, as phones and cameras write them: never passed over without a word.
UNREAD = {".arw", ".avif", ".cr2", ".cr3", ".dng", ".heic", ".heif", ".jp2", ".jxl", ".nef", ".orf", ".raf", ".rw2"}
SUFFIXES = {".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
OPEN = 128  # images at a time: enough to draw for many at once; encoded, they lie in memory
UNLABELLED = ("image",)  # the one class of images that have no label


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
class Images(Source):
    """What images in memory and encoded ones have in common.

    Attributes:
        labels: `(number,)` int64.
        class_names: names in label order.
        superclasses: `(classes,)` int64, the superclass of every class (-1: no sample tells), or None.
        superclass_names: names in the order of `superclasses`; empty without them.
        folder_paths: the folders of every class from the top down, if they are nested, else None; all of one length.
        source: where the images come from, for messages.
        remarks: what a person should know of them.
        left_out: names of images that are not among them, each with the reason.
        maker: what makes views of them; None for images that are only looked at.
    """

    thing: ClassVar[str] = "image"

    labels: Tensor
    class_names: tuple[str, ...]
    superclasses: Tensor | None = None
    superclass_names: tuple[str, ...] = ()
    folder_paths: tuple[tuple[str, ...], ...] | None = None
    source: str = "images"
    remarks: tuple[str, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    maker: PixelViews | None = None

    @property
    def made_by(self) -> PixelViews:
        """What makes views of them."""
        assert self.maker is not None, "images without views are only looked at"
        return self.maker

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width of a view."""
        return len(self.made_by.mean), self.made_by.size, self.made_by.size

    def own_paths(self, taxonomy: str) -> list[tuple[str, ...]]:
        """By the superclass column, or by nested folders."""
        if taxonomy == "folders" and self.folder_paths is not None:
            return list(self.folder_paths)
        if taxonomy == "column" and self.superclasses is not None:
            return column_paths(self.class_names, self.superclasses, self.superclass_names, self.source)
        lacking = no_own_paths(taxonomy, self.source)
        raise NoLevelsError(str(lacking)) if taxonomy == "folders" else lacking

    def for_probe(self) -> Images:
        """Crop and flip alone."""
        return replace(self, maker=self.made_by.crop_and_flip())


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageFiles(Images):
    """Images of any size, kept encoded and decoded on request.

    Attributes:
        items: one file path or the encoded bytes per image.
        split: the split asked for.
        rows: `(number,)` int64, the row of each image in its split, or its place in the list of files.
        tables: the files that hold all of the images, if these are rows of tables.
        column: of the images in such tables.
    """

    items: Sequence[Path | bytes]
    split: str = "train"
    rows: Tensor | None = None
    tables: tuple[Path, ...] = ()
    column: str = ""

    def load(self, ids: Tensor, numbers: Sequence[int], *, seed: int, epoch: int) -> Cropped:
        """The crops that the views take, cut out while decoding, and all that the views draw."""
        size = self.made_by.size
        crops = torch.empty(len(ids), len(numbers), 3, size, size, dtype=torch.uint8)
        drawn: list[list[ViewParameters]] = [[] for _ in numbers]
        for start in range(0, len(ids), OPEN):
            part = ids[start : start + OPEN]
            with ExitStack() as stack:  # opened to learn their sizes; boxes are drawn for all of them at once
                opened = [stack.enter_context(self.opened(sample)) for sample in part.tolist()]
                sizes = [torch.tensor([getattr(image, side) for image in opened]) for side in ("height", "width")]
                for parameters, view in zip(drawn, numbers, strict=True):
                    made = self.made_by.draw_parameters(*sizes, seed=seed, epoch=epoch, view=view, sample_ids=part)
                    parameters.append(made)
                boxes = torch.stack([parameters[-1].boxes for parameters in drawn], dim=1).tolist()
                for image, of_views, out in zip(opened, boxes, crops[start : start + OPEN], strict=True):
                    try:
                        cut(image, of_views, out)
                    except DataError as error:
                        raise DataError(f"{error}, or start again with --check, which leaves out all such") from None
        return Cropped(crops, [joined(parameters) for parameters in drawn])

    def finish(self, loaded: Cropped, device: torch.device) -> Made:
        """All of a view but the crop, which is taken already."""
        return Made([self.made_by.apply_cropped(*each, device) for each in loaded.by_view(device)])

    def plain(self, ids: Tensor) -> Tensor:
        """The test view, with the channels that the encoder takes."""
        views = self.made_by

        def prepare(index: int) -> Tensor:
            with self.opened(index) as opened:
                sides = opened.height, opened.width
                shrinkage = opened.shrinkage(min(sides), min(resized_sides(*sides, views.size)))
                image = torch.from_numpy(opened.pixels(shrinkage))
            return views.resize_and_normalise(with_channels(image[None], len(views.mean)))

        return torch.cat([prepare(index) for index in ids.tolist()])

    def preview(self, row: int) -> Preview:
        """The image; none if it cannot be read any more."""
        try:
            return Preview(torch.from_numpy(self.pixels(row)), self.name(row))
        except DataError:
            return Preview(None, self.name(row))

    def name(self, row: int) -> str:
        """The file below its source, or the row."""
        item = self.items[row]
        return _below(item, self.source) if isinstance(item, Path) else super().name(row)

    def file(self, row: int) -> Path | None:
        """The file; None for images in a table."""
        item = self.items[row]
        return item if isinstance(item, Path) else None

    def notes(self) -> list[str]:
        """That they are resized, and remarks."""
        told = [*left_out_notes(self), *self.remarks]
        if self.maker is None:
            return told
        return [f"{len(self):,} images, resized to {self.maker.size}", *told]

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

    def limited(self, limit: int) -> ImageFiles:
        """The first `limit / classes` images of every class; the first `limit % classes` classes give one more."""
        each, more = divmod(limit, len(self.class_names))
        kept = places_in_class(self.labels) < each + (self.labels < more)
        if not kept.any():
            raise DataError(
                f"limit {limit} keeps nothing of {self.source!r}: it asks for one image of each of the first {more} "
                f"of {len(self.class_names)} classes, and these have none; ask for at least {len(self.class_names)}"
            )
        return self.some(kept.nonzero()[:, 0])

    def part(self, part: slice, split: str) -> ImageFiles:
        """Some of the images of every class, as if they were a split of this name."""
        places = places_in_class(self.labels)
        chosen = torch.zeros(int(places.max()) + 1, dtype=torch.bool)
        chosen[part] = True
        kept = chosen[places].nonzero()[:, 0]
        if len(kept) == 0:
            raise DataError(f"split {split!r} of {self.source!r} is empty: no class has so many images")
        return replace(self.some(kept), split=split)

    def of_classes(self, wanted: Sequence[str], list_name: str) -> ImageFiles:
        """The images of these classes, which keep their order and get new labels from 0.

        Args:
            wanted: class names.
            list_name: what to call them in a message.
        """
        kept, labels, chosen = chosen_classes(
            self.labels, self.class_names, wanted, list_name=list_name, source=self.source, split=self.split
        )
        paths = self.folder_paths
        return replace(
            self.some(kept),
            labels=labels,
            class_names=tuple(self.class_names[label] for label in chosen),
            superclasses=None if self.superclasses is None else self.superclasses[chosen],
            folder_paths=None if paths is None else tuple(paths[label] for label in chosen),
        )

    def some(self, kept: Tensor) -> ImageFiles:
        """The images of these rows."""
        rows = torch.arange(len(self)) if self.rows is None else self.rows
        return replace(self, items=SomeOf(self.items, kept.tolist()), labels=self.labels[kept], rows=rows[kept])

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over class names, labels, and the names and content of all images; of a table, its files and rows."""
        facts: dict[str, Any] = {"classes": self.class_names, "labels": self.labels.tolist()}
        if self.tables:
            rows = range(len(self)) if self.rows is None else self.rows.tolist()
            facts |= {"tables": self._table_digests(), "column": self.column, "rows": list(rows)}
        else:
            known = self.contents or [_digest(item) for item in self.items]
            facts |= {"images": [[self.name(row), content] for row, content in enumerate(known)]}
        return fingerprint_of(**facts)

    def _table_digests(self) -> list[str]:
        with shown_progress(self.source) as tell:
            return file_digests_once(
                self.tables, self.tables[0].parent, lambda done, of: tell("reading tables", done, of)
            )


def cut(image: OpenedImage, boxes: list[list[int]], out: Tensor) -> None:
    """Decodes an image once and cuts the boxes of all views out of it.

    Args:
        image: not yet decoded.
        boxes: top, left, height and width of every view, in pixels of the whole image.
        out: `(views, 3, size, size)` uint8, where the crops go.
    """
    size = out.shape[-1]
    shrinkage = image.shrinkage(min(min(box[2:]) for box in boxes), size)
    pixels = image.pixels(shrinkage)  # channels last in memory, which torch resizes fastest
    for box, crop in zip(boxes, out, strict=True):
        top, left, height, width = (side // shrinkage for side in box)
        part = torch.from_numpy(pixels[None, :, top : top + height, left : left + width])
        crop[:] = F.interpolate(part, (size, size), mode="bilinear", antialias=True)[0]  # large images shrink a lot


def read_folder(source: str, split: str) -> ImageFiles:
    """The images of one split of a folder of class folders, which may be nested, with split folders on top.

    A folder without split folders is all "train". Every folder that holds images is a class, named by its own name, or
    by its whole path where two classes share a name. Classes are those of all splits, so labels agree between them; one
    that stands higher in one split than in another stands at the lower place.
    """
    root = Path(source)
    tops = split_folders(root)
    whole = not tops
    tops = tops or {"train": root}
    if SPLITS.get(split, split) not in tops:
        hint = "; it has no split folders, so all of it is 'train'" if whole else ""
        raise DataError(f"{source!r} has no split {split!r}; there are {', '.join(map(repr, tops))}{hint}")
    found = {name: list(_scan(top, (), source, ())) for name, top in tops.items()}
    lower = lower_places({name: {path for path, _ in images} for name, images in found.items()})
    found = {name: [(lower.get(path, path), image) for path, image in images] for name, images in found.items()}
    top = tops[SPLITS.get(split, split)]
    everything = found[SPLITS.get(split, split)]
    chosen = [(path, image) for path, image in everything if _is_read(image)]
    if not chosen:
        raise DataError(f"split {split!r} of {source!r} is empty: {_none_is_read(top, len(everything))}")
    paths = sorted({path for images in found.values() for path, image in images if _is_read(image)})
    shared = Counter(path[-1] for path in paths)
    names = tuple(path[-1] if shared[path[-1]] == 1 else "/".join(path) for path in paths)
    index = {path: number for number, path in enumerate(paths)}
    return ImageFiles(
        items=[image for _, image in chosen],
        labels=torch.tensor([index[path] for path, _ in chosen]),
        class_names=names,
        folder_paths=tuple(even_paths(paths)) if max(map(len, paths)) > 1 else None,
        source=source,
        split=split,
        left_out=_not_read((image for _, image in everything), source),
        remarks=tuple(
            f"{'/'.join(path)} of one split and {'/'.join(place)} of another are taken for one class"
            for path, place in lower.items()
        ),
    )


def find_images(source: str) -> ImageFiles:
    """One image file, or all image files below a folder, sorted by path and without labels (all are 0)."""
    root = Path(source)
    if root.is_file():
        files = [root]
    elif root.is_dir():
        files = sorted(path for path in files_below(root) if path.suffix.lower() in SUFFIXES | UNREAD)
    else:
        raise DataError(f"there is no file and no folder {source!r}; give an image or a folder of images")
    left_out, files = _not_read(files, source), [path for path in files if root.is_file() or _is_read(path)]
    if not files:
        raise DataError(_none_is_read(root, len(left_out)))
    return ImageFiles(
        items=files,
        labels=torch.zeros(len(files), dtype=torch.int64),
        class_names=UNLABELLED,
        source=source,
        left_out=left_out if root.is_dir() else (),
    )


def _scan(
    folder: Path, path: tuple[str, ...], source: str, ancestors: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Path]]:
    """Class path and file of every image below a folder, in alphabetical order. Follows links."""
    real = os.path.realpath(folder)
    if real in ancestors:
        raise DataError(f"folder {str(folder)!r} of {source!r} is a link to a folder above it; take the link out")
    with listed(folder) as listing:
        entries = sorted((entry for entry in listing if not entry.name.startswith(".")), key=lambda entry: entry.name)
    known = SUFFIXES | UNREAD
    images = [folder / e.name for e in entries if os.path.splitext(e.name)[1].lower() in known and e.is_file()]
    below = [
        pair
        for entry in entries
        if entry.is_dir()
        for pair in _scan(folder / entry.name, (*path, readable(entry.name)), source, (*ancestors, real))
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


def _is_read(path: Path) -> bool:
    return path.suffix.lower() not in UNREAD


def _none_is_read(folder: Path, unread: int) -> str:
    """Why a folder gives no image.

    Args:
        folder: that was looked through.
        unread: files that are images of kinds that are not read.
    """
    what = f"; convert the {counted(unread, 'file')} of other kinds of images to JPEG or PNG" if unread else ""
    return f"no file under {str(folder)!r} ends in {' '.join(sorted(SUFFIXES))}{what}"


def _not_read(files: Iterable[Path], source: str) -> tuple[tuple[str, str], ...]:
    """Names of photographs of kinds that are not read, each with what to do."""
    return tuple(
        (_below(path, source), f"ends in {path.suffix}, which is not read; convert it to JPEG or PNG")
        for path in files
        if not _is_read(path)
    )


def _digest(item: Path | bytes) -> str:
    return file_digest_once(item) if isinstance(item, Path) else hashlib.sha256(item).hexdigest()


def _below(path: Path, source: str) -> str:
    return readable(path.relative_to(source).as_posix() if path.is_relative_to(source) else path.name)
