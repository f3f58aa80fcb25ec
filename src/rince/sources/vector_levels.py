"""Classes of vectors, and the levels above them, from what their files say of every row."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import torch
from torch import Tensor

from rince.errors import DataError
from rince.sources.vector_files import VectorFile
from rince.sources.vector_formats import labels_beside

LABELS = ("labels", "label", "class", "classes", "class_name", "fine_label", "targets", "target", "y")
SPLIT = "split"
# What a sample is called, best first; none of it is a level by itself.
CALLED: tuple[str, ...] = ("text", "title", "document", "documents", "page_content", "content", "caption", "name")
CALLED += ("path", "file", "file_name", "filename", "url", "id", "ids", "uuid")
Codes = np.ndarray[tuple[int], np.dtype[np.int64]]


class Classes(NamedTuple):
    """What files say of their vectors."""

    column: str
    """That the classes stand in."""
    names: tuple[str, ...]
    """Of the classes, in label order."""
    labels: list[Tensor]
    """Of the rows of every file."""
    above: dict[str, list[str]]
    """The levels above the classes, coarse first: name of the level → the group of every class, in label order."""

    @property
    def paths(self) -> tuple[tuple[str, ...], ...]:
        """Of every class from the top down."""
        return tuple(zip(*self.above.values(), self.names, strict=True))


class _Coded(NamedTuple):
    """A column of all files: values as numbers, and what these stand for."""

    codes: Codes
    names: list[str]


def read_classes(
    files: Sequence[VectorFile], label_column: str | None = None, level_columns: Sequence[str] | None = None
) -> Classes:
    """The classes of all files together, so that labels agree between them, and the levels above.

    Args:
        files: with their columns.
        label_column: of the classes; by default that with a usual name.
        level_columns: of the levels above, in any order: the fewer groups, the coarser. By default every column that
            can be one: with more than one value and fewer than there are classes. One of these that is none, since
            samples of one class differ in it, is an error, not a guess.
    """
    usual = [name for name in LABELS if any(name in file.columns for file in files)]
    shared = [name for name in usual if all(name in file.columns for file in files)]
    column = label_column or next(iter(shared or usual), None)
    classes = _coded(files, _present(files, column))
    if level_columns is None:
        there = dict.fromkeys(name for file in files for name in file.columns)
        candidates = [name for name in there if name not in (column, SPLIT, *CALLED)]
    else:
        candidates = list(dict.fromkeys(level_columns))
        if column in candidates:
            raise DataError(f"data.level_columns names {column!r}, which is the column of the classes; leave it out")
    found = {}
    for name in candidates:
        if level_columns is None and not _can_be_level(files, name, len(classes.names)):
            continue
        groups = _groups(files[0], classes, _coded(files, _present(files, name)), name)
        if level_columns is not None or len(set(groups)) < len(groups):  # else it is another name of the class
            found[name] = groups
    above = dict(sorted(found.items(), key=lambda level: len(set(level[1]))))
    _refuse_crossed(files[0], above)
    ends = np.cumsum([file.matrix.rows for file in files])[:-1]
    labels = [torch.from_numpy(part.copy()) for part in np.split(classes.codes, ends)]
    return Classes(str(column), tuple(classes.names), labels, above)


def called(files: Sequence[VectorFile]) -> str | None:
    """The column that says what samples are called; None if they have none in common."""
    return next((name for name in CALLED if all(name in file.columns for file in files)), None)


def _present(files: Sequence[VectorFile], name: str | None) -> str:
    """The name of a column, if all files have it; None is a column of classes that nobody named or found."""
    if name is None:
        raise _no_classes(files[0])
    for file in files:
        if name in file.others:
            raise DataError(f"{name} of {file.path} must hold one integer or text per vector: got {file.others[name]}")
        if name not in file.columns:
            having = next((other.path.name for other in files if name in other.columns), None)
            says = f"{having} has; write files alike" if having else "is asked for"
            there = ", ".join([file.column, *file.columns, *file.others])
            raise DataError(f"{file.path} has no column {name!r}, which {says}; it holds {there}")
    return name


def _no_classes(file: VectorFile) -> DataError:
    odd = next((name for name in LABELS if name in file.others), None)
    if odd is not None:
        return DataError(f"{odd} of {file.path} must hold one integer or text per vector: got {file.others[odd]}")
    if file.path.suffix == ".npy" and not file.columns:
        names = " or ".join(beside.name for beside in labels_beside(file.path))
        return DataError(f"{file.path} needs the classes of its rows, in {names} beside it")
    there = ", ".join([file.column, *file.columns, *file.others])
    return DataError(f"{file.path} needs the classes, called labels or named by data.label_column; it holds {there}")


def _coded(files: Sequence[VectorFile], name: str) -> _Coded:
    """A column of all files by numbers, in the order of numbers, then of the alphabet."""
    columns = [file.columns[name] for file in files]
    for file, column in zip(files, columns, strict=True):
        missing = _missing(column)
        if missing.any():
            raise DataError(
                f"{name} of {file.path} has {missing.sum()} of {len(column)} rows without a label, row "
                f"{missing.argmax()} first; name them all, or take them out"
            )
    _refuse_mixed(files, columns, name)
    texts = [column.cast(pa.large_string()) for column in columns]
    encoded = pa.chunked_array(
        [chunk for text in texts for chunk in text.chunks], pa.large_string()
    ).dictionary_encode()
    if encoded.num_chunks == 0:
        return _Coded(np.zeros(0, np.int64), [])
    joined = encoded.combine_chunks()
    joined = joined.chunk(0) if isinstance(joined, pa.ChunkedArray) else joined
    values = joined.dictionary.to_pylist()
    order = sorted(range(len(values)), key=lambda place: _numbers_first(values[place]))
    places = np.empty(len(values), np.int64)
    places[order] = np.arange(len(values))
    return _Coded(places[joined.indices.to_numpy(zero_copy_only=False)], [values[place] for place in order])


def _missing(column: pa.ChunkedArray) -> Any:
    missing = column.is_null()
    if _is_text(column):
        missing = pc.or_(missing, pc.equal(pc.fill_null(column, ""), ""))
    return missing.to_numpy()


def _is_text(column: pa.ChunkedArray) -> bool:
    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


def _refuse_mixed(files: Sequence[VectorFile], columns: Sequence[pa.ChunkedArray], name: str) -> None:
    """Integers in one file and words in another are never the same classes; integers written as text are."""
    integers = [file for file, column in zip(files, columns, strict=True) if not _is_text(column)]
    for file, column in zip(files, columns, strict=True):
        if integers and _is_text(column) and not pc.all(pc.utf8_is_decimal(column), min_count=0).as_py():
            raise DataError(
                f"{name} is {integers[0].columns[name].type} in {integers[0].path} and text in {file.path}; write "
                "labels alike in all files"
            )


def _can_be_level(files: Sequence[VectorFile], name: str, classes: int) -> bool:
    """Whether a column that nobody named may be a level: one that groups the classes."""
    columns = [file.columns[name].cast(pa.large_string()) for file in files if name in file.columns]
    values = pa.chunked_array([chunk for column in columns for chunk in column.chunks], pa.large_string())
    return 1 < int(pc.count_distinct(values).as_py()) <= classes


def _groups(file: VectorFile, classes: _Coded, level: _Coded, name: str) -> list[str]:
    """The group of every class."""
    pairs = np.unique(classes.codes * len(level.names) + level.codes)
    of, groups = pairs // len(level.names), pairs % len(level.names)
    twice = np.flatnonzero(of[1:] == of[:-1])
    if len(twice):
        first = twice[0]
        one, other = (level.names[groups[place]] for place in (first, first + 1))
        raise DataError(
            f"{name} of {file.path} is no level above the classes: class {classes.names[of[first]]!r} is in {one!r} "
            f"and in {other!r}, and a class has one place; mend it, or name the columns that are levels with "
            "data.level_columns ([] for none)"
        )
    return [level.names[group] for group in groups]


def _refuse_crossed(file: VectorFile, above: dict[str, list[str]]) -> None:
    for (coarse, groups), (fine, parts) in itertools.pairwise(above.items()):
        if len(set(zip(groups, parts, strict=True))) > len(set(parts)):
            raise DataError(
                f"{coarse} of {file.path} is no level above {fine}: groups of {fine} lie in several of {coarse}; name "
                "the columns that are levels with data.level_columns"
            )


def _numbers_first(name: str) -> tuple[int, str]:
    """Numbers in their order, then names in that of the alphabet."""
    return (int(name), "") if name.isdecimal() else (2**62, name)
