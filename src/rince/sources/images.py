"""Images and labels from embedded data, local parquet files, folders, or the Hugging Face hub.

Small images of one size become one uint8 tensor in memory. All others stay encoded, see `rince.sources.image_files`.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import torch
from torch import Tensor

from rince.hierarchy.class_lists import read_class_list
from rince.sources.image_files import SPLITS, UNLABELLED, ArrowImages, LargeImages, find_images, read_folder, split_part
from rince.errors import ConfigError, DataError

EMBEDDED = ("fashion",)
SMALL = 96  # pixels a side; up to here images of one size are held in memory …
MEMORY = 4 * 2**30  # … if all of them take no more bytes than this
IMAGE_COLUMNS, LABEL_COLUMNS, SUPERCLASS_COLUMNS = ("img", "image"), ("fine_label", "label"), ("coarse_label",)

# Gives those of the named columns that a split has; for no names an empty table with all columns.
Reader = Callable[[list[str]], pa.Table]
Labels = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Small images of one size, all in memory.

    Attributes:
        images: `(number, channels, height, width)` uint8, contiguous; one channel if all are grayscale, else RGB.
        labels: `(number,)` int64.
        class_names: names in label order.
        superclasses: `(classes,)` int64, the superclass of every class (-1: no sample tells), or None.
        superclass_names: names in the order of `superclasses`; empty without them.
        folder_paths: the folders of every class from the top down, if they are nested, else None.
        fingerprint: sha256 over pixels, labels and class names.
        source: where the images come from, for messages.
    """

    images: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    superclasses: Tensor | None = None
    superclass_names: tuple[str, ...] = ()
    folder_paths: tuple[tuple[str, ...], ...] | None = None
    fingerprint: str = ""
    source: str = "images"

    def __len__(self) -> int:
        return len(self.images)


def load_images(
    source: str,
    split: str,
    *,
    image_column: str | None = None,
    label_column: str | None = None,
    superclass_column: str | None = None,
    classes: str | None = None,
    limit: int | None = None,
) -> ImageSet | LargeImages:
    """Reads one split.

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

    Returns:
        An `ImageSet` if all images have one size of at most 96 × 96 pixels and fit into 4 GB, else `LargeImages`.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"limit must be at least 1, got {limit}; leave it out to keep all images")
    name, part = split_part(split)
    encoded = _encoded(source, name, (image_column, label_column, superclass_column))
    if part is not None:
        encoded = encoded.part(part, split)
    if classes is not None:
        encoded = encoded.of_classes(read_class_list(classes), classes)
    if limit is not None:
        encoded = encoded.limited(limit)
    return _in_memory(encoded) or encoded


def load_outliers(source: str, split: str, classes: str | None = None) -> ImageSet | LargeImages:
    """Images that only have to be of no known class: of the split, else of test or val, else all there are.

    Args:
        source: as `load_images` takes it; labels are not needed, so it may also be a folder of images in any order.
        split: to try first.
        classes: take these classes only, as in `load_images`.
    """
    problem: DataError | None = None
    encoded: LargeImages | None = None
    for name in dict.fromkeys((split_part(split)[0], "test", "val", "train")):
        try:
            encoded = _encoded(source, name, (None, None, None), needs_labels=False)
            break
        except DataError as error:
            problem = problem or error
    if encoded is None:
        assert problem is not None
        if not Path(source).is_dir() or next(_parquet_files(Path(source)), None):
            raise problem
        encoded = find_images(source)
    if classes is not None:
        encoded = encoded.of_classes(read_class_list(classes), classes)
    return _in_memory(encoded) or encoded


def _encoded(
    source: str, split: str, columns: tuple[str | None, str | None, str | None], *, needs_labels: bool = True
) -> LargeImages:
    if source in EMBEDDED:
        return _from_tables(source, split, _parquet_splits(str(files("rince") / f"sources/embedded/{source}")), columns)
    path = Path(source)
    if path.is_file() or (path.is_dir() and next(_parquet_files(path), None)):
        return _from_tables(source, split, _parquet_splits(source), columns, needs_labels=needs_labels)
    if path.is_dir():
        if any(columns):
            raise ConfigError(
                f"{source!r} is a folder of images and has no columns; leave out {next(filter(None, columns))!r}"
            )
        return read_folder(source, split)
    if re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", source):
        return _from_tables(source, split, _hub_splits(source), columns, may_name_files=True, needs_labels=needs_labels)
    raise DataError(
        f"data source {source!r} does not exist; give a local path, a hub name such as 'uoft-cs/cifar100', "
        f"or embedded data: {', '.join(EMBEDDED)}"
    )


def _parquet_files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*.parquet") if path.is_file())


def _parquet_splits(source: str) -> dict[str, Reader]:
    """Split by file name, as the hub does: `train-00000-of-00001.parquet`, `train.parquet`, `train/0.parquet`."""
    path = Path(source)
    if path.is_file() and path.suffix.lower() != ".parquet":
        raise DataError(f"data source {source!r} is a file but no .parquet; give a parquet file or a folder")
    found: dict[str, list[Path]] = {}
    for file in [path] if path.is_file() else sorted(_parquet_files(path)):
        found.setdefault(_split_of(Path(file.name) if path.is_file() else file.relative_to(path)), []).append(file)

    return {split: partial(_read_parquet, parts) for split, parts in found.items()}


def _read_parquet(parts: list[Path], columns: list[str]) -> pa.Table:
    tables = []
    for path in parts:
        try:
            with pq.ParquetFile(path) as file:
                there = [name for name in file.schema_arrow.names if name in columns]
                tables.append(file.read(columns=there) if columns else file.schema_arrow.empty_table())
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{str(path)!r} does not read as parquet ({_first_line(error)}); fetch it again") from error
    try:
        return pa.concat_tables(tables)
    except pa.ArrowException as error:
        raise DataError(f"{', '.join(map(str, parts))} are one split but differ in their columns") from error


def _split_of(file: Path) -> str:
    sharded = re.fullmatch(r"(.+)-\d{5}-of-\d{5}.*", file.stem)
    if sharded:
        return SPLITS.get(sharded[1].lower(), sharded[1])
    words = [*re.split(r"[-_. ]", file.stem), *(parent.name for parent in file.parents)]
    return next((SPLITS[word.lower()] for word in words if word.lower() in SPLITS), "train")


def _hub_splits(source: str) -> dict[str, Reader]:
    import datasets  # type: ignore[import-untyped]  # noqa: PLC0415  (takes seconds to import)

    try:
        found = datasets.load_dataset(source)
    except Exception as error:  # no connection, no such name, no permission: each library below has its own errors
        raise DataError(
            f"{source!r} is no local path and could not be had from the hub ({_first_line(error)}); "
            "check the name, set up the network, or pass the path of a local copy"
        ) from error

    return {SPLITS.get(name, name): partial(_select, part.data.table) for name, part in found.items()}


def _select(table: pa.Table, columns: list[str]) -> pa.Table:
    return table.select([name for name in table.column_names if name in columns]) if columns else table.slice(0, 0)


def _from_tables(
    source: str,
    split: str,
    splits: dict[str, Reader],
    columns: tuple[str | None, str | None, str | None],
    *,
    may_name_files: bool = False,
    needs_labels: bool = True,
) -> LargeImages:
    chosen = SPLITS.get(split, split)
    if chosen not in splits:
        raise DataError(f"{source!r} has no split {split!r}; there are {', '.join(map(repr, splits))}")
    there = splits[chosen]([]).column_names
    image_column = _column(source, there, "image", columns[0], IMAGE_COLUMNS)
    if not needs_labels and not set(LABEL_COLUMNS) & set(there):
        return _unlabelled(source, split, splits[chosen]([image_column])[image_column], may_name_files)
    label_column = _column(source, there, "label", columns[1], LABEL_COLUMNS)
    superclass_column = columns[2] or next((n for n in SUPERCLASS_COLUMNS if n in there and n != label_column), None)
    if superclass_column:
        _column(source, there, "superclass", superclass_column, ())
    table = splits[chosen]([name for name in (image_column, label_column, superclass_column) if name])
    if len(table) == 0:
        raise DataError(f"split {split!r} of {source!r} is empty; it has columns but no rows")
    others = [reader for name, reader in splits.items() if name != chosen]
    where = f"column {{!r}} of split {split!r} of {source!r}"
    names = _class_names(label_column, table, others, where.format(label_column))
    labels = _labels(table[label_column], names, where.format(label_column))
    superclasses: Tensor | None = None
    above: tuple[str, ...] = ()
    if superclass_column:
        pair, place = (label_column, superclass_column), where.format(superclass_column)
        superclasses, above = _superclasses(pair, table, others, labels, names, place)
    encoded, paths = _image_column(source, image_column, table[image_column])
    return LargeImages(
        items=ArrowImages(encoded, paths if may_name_files else None),
        labels=torch.from_numpy(labels),
        class_names=names,
        superclasses=superclasses,
        superclass_names=above,
        source=source,
        split=split,
        rows=torch.arange(len(table)),
    )


def _unlabelled(source: str, split: str, column: pa.ChunkedArray, may_name_files: bool) -> LargeImages:
    """Images without labels, all of them of one class."""
    if len(column) == 0:
        raise DataError(f"split {split!r} of {source!r} is empty; it has columns but no rows")
    encoded, paths = _image_column(source, "image", column)
    return LargeImages(
        items=ArrowImages(encoded, paths if may_name_files else None),
        labels=torch.zeros(len(column), dtype=torch.int64),
        class_names=UNLABELLED,
        source=source,
        split=split,
        rows=torch.arange(len(column)),
    )


def _column(source: str, there: list[str], what: str, asked: str | None, usual: tuple[str, ...]) -> str:
    columns = ", ".join(map(repr, there))
    if asked:
        if asked not in there:
            close = difflib.get_close_matches(asked, there, n=1)
            guess = f"; did you mean {close[0]!r}?" if close else ""
            raise DataError(f"{source!r} has no {what} column {asked!r}: its columns are {columns}{guess}")
        return asked
    for name in usual:
        if name in there:
            return name
    raise DataError(
        f"{source!r} has no {what} column called {' or '.join(map(repr, usual))}: its columns are {columns}; "
        f"name the right one with {what}_column"
    )


def _image_column(source: str, name: str, column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, pa.ChunkedArray | None]:
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return column, None
    if pa.types.is_struct(column.type) and "bytes" in (fields := [field.name for field in column.type]):
        return pc.struct_field(column, "bytes"), pc.struct_field(column, "path") if "path" in fields else None
    raise DataError(f"column {name!r} of {source!r} holds {column.type}, not encoded images; name another column")


def _class_names(name: str, table: pa.Table, others: list[Reader], where: str) -> tuple[str, ...]:
    """The names in the file, or else the values of all splits, so that labels agree between splits."""
    kind = table[name].type
    if not pa.types.is_integer(kind) and not _is_text(kind):
        raise DataError(f"{where} holds {kind}, but labels are integers or strings; name another column")
    try:  # Hugging Face keeps the names beside the schema
        kept: Any = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))
        if found := tuple(map(str, kept["info"]["features"][name]["names"])):
            return found
    except (ValueError, KeyError, TypeError):
        pass
    values: set[Any] = set(pc.unique(table[name]).to_pylist())
    for read in others:
        other = read([name])
        if name in other.column_names and other[name].type == kind:
            values |= set(pc.unique(other[name]).to_pylist())
    values -= {None}
    return tuple(sorted(values)) if _is_text(kind) else tuple(map(str, range(max(values, default=-1) + 1)))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _index(kind: pa.DataType, names: tuple[str, ...]) -> dict[Any, int]:
    """From what a column holds to the label."""
    return {name if _is_text(kind) else number: number for number, name in enumerate(names)}


def _labels(column: pa.ChunkedArray, names: tuple[str, ...], where: str) -> Labels:
    index = _index(column.type, names)
    values = column.to_pylist()
    labels = np.array([index.get(value, -1) for value in values], dtype=np.int64)
    if (labels < 0).any():
        row = int((labels < 0).argmax())
        raise DataError(
            f"{where} holds label {values[row]} in row {row}, outside of its {len(names)} classes: "
            f"labels go from 0 to {len(names) - 1}; take such rows out"
        )
    return labels


def _superclasses(
    columns: tuple[str, str], table: pa.Table, others: list[Reader], labels: Labels, names: tuple[str, ...], where: str
) -> tuple[Tensor, tuple[str, ...]]:
    """The superclass of every class; other splits only tell those of classes that this one lacks."""
    above_names = _class_names(columns[1], table, others, where)
    above = _labels(table[columns[1]], above_names, where)
    superclass_of = np.full(len(names), -1, dtype=np.int64)
    superclass_of[labels[::-1]] = above[::-1]  # backwards, so that the first row of a class tells
    wrong = superclass_of[labels] != above
    if wrong.any():
        row = int(wrong.argmax())
        first = int((labels == labels[row]).argmax())
        raise DataError(
            f"{where} gives class {names[labels[row]]!r} the superclass {above_names[above[first]]!r} in row {first} "
            f"and {above_names[above[row]]!r} in row {row}; a class has one, so mend the rows or name another column"
        )
    indices = [_index(table[name].type, known) for name, known in zip(columns, (names, above_names), strict=True)]
    for read in others if (superclass_of < 0).any() else []:
        other = read(list(columns))
        if set(columns) <= set(other.column_names):
            for pair in other.group_by(list(columns)).aggregate([]).to_pylist():
                label, superclass = (index.get(pair[name], -1) for name, index in zip(columns, indices, strict=True))
                if label >= 0 and superclass_of[label] < 0:
                    superclass_of[label] = superclass
    return torch.from_numpy(superclass_of), above_names


def _in_memory(encoded: LargeImages) -> ImageSet | None:
    """All images as one tensor, or None if they differ in size or are too large."""
    first = encoded.pixels(0)
    _, height, width = first.shape
    if max(height, width) > SMALL or 3 * height * width * len(encoded) > MEMORY:
        return None
    images = np.empty((len(encoded), *first.shape), dtype=np.uint8)
    for index in range(len(encoded)):
        pixels = encoded.pixels(index)
        if pixels.shape[1:] != (height, width):
            return None
        if len(pixels) > images.shape[1]:  # the first image in colour; the gray ones before it become RGB
            images = np.repeat(images, 3, axis=1)
        images[index] = pixels
    labels = encoded.labels
    digest = hashlib.sha256(repr((images.shape, encoded.class_names)).encode())
    digest.update(images.data)
    digest.update(labels.numpy().tobytes())
    return ImageSet(
        images=torch.from_numpy(images),
        labels=labels,
        class_names=encoded.class_names,
        superclasses=encoded.superclasses,
        superclass_names=encoded.superclass_names,
        folder_paths=encoded.folder_paths,
        fingerprint=digest.hexdigest(),
        source=encoded.source,
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
