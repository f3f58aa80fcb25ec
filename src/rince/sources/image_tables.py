"""Encoded images in tables: parquet files as the hub lays them out, or the hub itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import torch
from torch import Tensor

from rince.errors import DataError
from rince.sources.image_files import UNLABELLED, ArrowImages, ImageFiles
from rince.sources.sealed_tables import read_columns
from rince.sources.splits import SPLITS
from rince.sources.tables import Reader, Split, find_column, first_line, kept_names

IMAGE_COLUMNS, LABEL_COLUMNS, SUPERCLASS_COLUMNS = ("img", "image"), ("fine_label", "label"), ("coarse_label",)

MOST = 2**24  # classes, far above any data: a label that is an id of something would ask for all memory

Labels = np.ndarray[tuple[int], np.dtype[np.int64]]


def parquet_files(folder: Path) -> Iterator[Path]:
    """All parquet files below a folder."""
    return (path for path in folder.rglob("*.parquet") if path.is_file())


def parquet_splits(source: str) -> dict[str, Split]:
    """Split by file name, as the hub does: `train-00000-of-00001.parquet`, `train.parquet`, `train/0.parquet`."""
    path = Path(source)
    if path.is_file() and path.suffix.lower() != ".parquet":
        raise DataError(f"data source {source!r} is a file but no .parquet; give a parquet file or a folder")
    found: dict[str, list[Path]] = {}
    for file in [path] if path.is_file() else sorted(parquet_files(path)):
        found.setdefault(_split_of(Path(file.name) if path.is_file() else file.relative_to(path)), []).append(file)

    return {split: Split(partial(_read_parquet, parts), tuple(parts)) for split, parts in found.items()}


def _read_parquet(parts: list[Path], columns: list[str]) -> pa.Table:
    tables = []
    for path in parts:
        try:
            with pq.ParquetFile(path) as file:
                there = [name for name in file.schema_arrow.names if name in columns]
                tables.append(read_columns(file, there) if columns else file.schema_arrow.empty_table())
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{str(path)!r} does not read as parquet ({first_line(error)}); fetch it again") from error
    try:
        return pa.concat_tables(tables)
    except pa.ArrowException as error:
        raise DataError(
            f"{', '.join(map(str, parts))} are one split but differ in their columns{_difference(tables)}; write them "
            "alike"
        ) from error


def _difference(tables: list[pa.Table]) -> str:
    """The first column that does not hold the same in all tables, in a few words."""
    first = tables[0].schema
    for schema in (table.schema for table in tables[1:]):
        for name in {**dict.fromkeys(first.names), **dict.fromkeys(schema.names)}:
            there = [each.field(name).type if name in each.names else "not there" for each in (first, schema)]
            if there[0] != there[1]:
                return f": {name!r} is {there[0]} and {there[1]}"
    return ""


def _split_of(file: Path) -> str:
    sharded = re.fullmatch(r"(.+)-\d{5}-of-\d{5}.*", file.stem)
    if sharded:
        return SPLITS.get(sharded[1].lower(), sharded[1])
    words = [*re.split(r"[-_. ]", file.stem), *(parent.name for parent in file.parents)]
    return next((SPLITS[word.lower()] for word in words if word.lower() in SPLITS), "train")


def read_tables(
    source: str,
    split: str,
    splits: dict[str, Split],
    columns: tuple[str | None, str | None, str | None],
    *,
    may_name_files: bool = False,
    needs_labels: bool = True,
) -> ImageFiles:
    """The images of one split of tables.

    Args:
        source: of the tables, for messages.
        split: to read.
        splits: what the source has.
        columns: of images, labels and superclasses; None where the usual names are to be tried.
        may_name_files: whether an image may be the path of a file.
        needs_labels: whether tables without labels are refused.
    """
    chosen = SPLITS.get(split, split)
    if chosen not in splits:
        raise DataError(f"{source!r} has no split {split!r}; there are {', '.join(map(repr, splits))}")
    read, tables = splits[chosen]
    there = read([]).column_names
    image_column = find_column(source, there, "image", columns[0], IMAGE_COLUMNS)
    if not needs_labels and not set(LABEL_COLUMNS) & set(there):
        column = read([image_column])[image_column]
        if len(column) == 0:
            raise DataError(f"split {split!r} of {source!r} is empty; it has columns but no rows")
        unlabelled = torch.zeros(len(column), dtype=torch.int64)
        return ImageFiles(
            labels=unlabelled,
            class_names=UNLABELLED,
            source=source,
            split=split,
            **_items(source, image_column, column, tables, may_name_files=may_name_files),
        )
    label_column = find_column(source, there, "label", columns[1], LABEL_COLUMNS)
    superclass_column = columns[2] or next((n for n in SUPERCLASS_COLUMNS if n in there and n != label_column), None)
    if superclass_column:
        find_column(source, there, "superclass", superclass_column, ())
    table = read([name for name in (image_column, label_column, superclass_column) if name])
    if len(table) == 0:
        raise DataError(f"split {split!r} of {source!r} is empty; it has columns but no rows")
    others = [other.read for name, other in splits.items() if name != chosen]
    where = f"column {{!r}} of split {split!r} of {source!r}"
    names = _class_names(label_column, table, others, where.format(label_column))
    labels = _labels(table[label_column], names, where.format(label_column))
    superclasses: Tensor | None = None
    above: tuple[str, ...] = ()
    if superclass_column:
        pair, place = (label_column, superclass_column), where.format(superclass_column)
        superclasses, above = _superclasses(pair, table, others, labels, names, place)
    return ImageFiles(
        labels=torch.from_numpy(labels),
        class_names=names,
        superclasses=superclasses,
        superclass_names=above,
        source=source,
        split=split,
        **_items(source, image_column, table[image_column], tables, may_name_files=may_name_files),
    )


def _items(
    source: str, name: str, column: pa.ChunkedArray, tables: tuple[Path, ...], *, may_name_files: bool
) -> dict[str, Any]:
    """What `ImageFiles` has to know of the images of a table; one that only names some of them does not hold all."""
    encoded, paths = _image_column(source, name, column)
    return {
        "items": ArrowImages(encoded, paths if may_name_files else None),
        "rows": torch.arange(len(column)),
        "tables": () if encoded.null_count else tables,
        "column": name,
    }


def _image_column(source: str, name: str, column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, pa.ChunkedArray | None]:
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return column, None
    if pa.types.is_struct(column.type) and "bytes" in (fields := [field.name for field in column.type]):
        return pc.struct_field(column, "bytes"), pc.struct_field(column, "path") if "path" in fields else None
    raise DataError(f"column {name!r} of {source!r} holds {column.type}, not encoded images; name another column")


def _class_names(name: str, table: pa.Table, others: list[Reader], where: str) -> tuple[str, ...]:
    """The names in the file, or else the values of all splits, so that labels agree between splits."""
    kind = table[name].type
    if not _is_label(kind):
        raise DataError(f"{where} holds {kind}, but labels are integers or strings; name another column")
    if found := kept_names(table.schema, name):
        return found
    values: set[Any] = set(pc.unique(table[name]).to_pylist())
    for read in others:
        other = read([name])
        there = other[name].type if name in other.column_names else pa.null()
        if not _is_label(there):  # a test split whose labels nobody may know
            continue
        if _is_text(there) != _is_text(kind):
            raise DataError(f"{where} holds {kind}, and {there} in another split; write labels alike in all splits")
        values |= set(pc.unique(other[name]).to_pylist())
    values -= {None}
    if _is_text(kind):
        return tuple(sorted(values))
    if (highest := max(values, default=-1)) >= MOST:
        raise DataError(
            f"{where} holds label {highest:,}, and labels without names count the classes from 0; write names, or "
            "number the classes"
        )
    return tuple(map(str, range(highest + 1)))


def _is_label(kind: pa.DataType) -> bool:
    return _is_text(kind) or bool(pa.types.is_integer(kind))


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
