"""Classes of vectors, and the levels above them, from what their files say of every row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import torch
from torch import Tensor

from rince.errors import DataError
from rince.sources.splits import class_order
from rince.sources.tables import CALLED, LABELS, Level, chosen_levels, level_candidates, usual_column
from rince.sources.vector_files import VectorFile
from rince.sources.vector_formats import labels_beside

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
    no_levels: list[str]
    """Why columns that could have been levels are none."""

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
            can be one, see `chosen_levels`.
    """
    every = list(dict.fromkeys(name for file in files for name in file.columns))
    usual = usual_column(_shared(files), LABELS) or usual_column(every, LABELS)
    column = _present(files, label_column or usual)
    _refuse_missing(files, column)
    classes = _coded(files, column)
    found = []
    for name in level_candidates(every, level_columns, column):
        if name not in every:
            _present(files, name)
        found.append(_level(files, classes, name, guessed=level_columns is None))
    source = str(files[0].path)
    levels, reasons = chosen_levels(found, classes.names, guessed=level_columns is None, source=source)
    above = {level.column: [level.group_of[name] for name in classes.names] for level in levels}
    ends = np.cumsum([file.matrix.rows for file in files])[:-1]
    labels = [torch.from_numpy(part.copy()) for part in np.split(classes.codes, ends)]
    return Classes(column, tuple(classes.names), labels, above, reasons)


def called(files: Sequence[VectorFile]) -> str | None:
    """The column that says what samples are called; None if they have none in common."""
    return usual_column(_shared(files), CALLED)


def _shared(files: Sequence[VectorFile]) -> list[str]:
    """The columns that all files have."""
    return [name for name in files[0].columns if all(name in file.columns for file in files)]


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
    odd = usual_column(file.others, LABELS)
    if odd is not None:
        return DataError(f"{odd} of {file.path} must hold one integer or text per vector: got {file.others[odd]}")
    if file.path.suffix == ".npy" and not file.columns:
        names = " or ".join(beside.name for beside in labels_beside(file.path))
        return DataError(f"{file.path} needs the classes of its rows, in {names} beside it")
    there = ", ".join([file.column, *file.columns, *file.others])
    return DataError(f"{file.path} needs the classes, called labels or named by data.label_column; it holds {there}")


def _refuse_missing(files: Sequence[VectorFile], name: str) -> None:
    for file in files:
        missing = _filled(file.columns[name]).is_null().to_numpy()
        if missing.any():
            raise DataError(
                f"{name} of {file.path} has {missing.sum()} of {len(missing)} rows without a label, row "
                f"{missing.argmax()} first; name them all, or take them out"
            )


def _coded(files: Sequence[VectorFile], name: str) -> _Coded:
    """A column of all files by numbers, in the order of numbers, then of the alphabet; -1 where a row is empty."""
    columns = [_filled(file.columns[name]) for file in files]
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
    order = sorted(range(len(values)), key=lambda place: class_order(values[place]))
    places = np.full(len(values) + 1, -1, np.int64)  # the last is for rows that say nothing
    places[order] = np.arange(len(values))
    indices = pc.fill_null(joined.indices, len(values)).to_numpy(zero_copy_only=False)
    return _Coded(places[indices], [values[place] for place in order])


def _filled(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column, in which an empty text is no value."""
    if not _is_text(column):
        return column
    return pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)


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


def _level(files: Sequence[VectorFile], classes: _Coded, name: str, *, guessed: bool) -> Level:
    """What the files that have a column say of the classes."""
    having = [file for file in files if name in file.columns]
    filled = [_filled(file.columns[name]).cast(pa.large_string()) for file in having]
    values = pa.chunked_array([chunk for text in filled for chunk in text.chunks], pa.large_string())
    different = int(pc.count_distinct(values).as_py())
    if guessed and not 0 < different <= len(classes.names):
        return Level(name, {}, different)  # is none, whatever it groups
    try:
        level = _coded(having, name)
    except DataError as error:
        if not guessed:
            raise
        return Level(name, {}, different, str(error))
    has = np.repeat([name in file.columns for file in files], [file.matrix.rows for file in files])
    return _grouping(name, classes, classes.codes[has], level)


def _grouping(name: str, classes: _Coded, labels: Codes, level: _Coded) -> Level:
    """What the rows of a column say of the classes that they are of."""
    size = len(level.names) + 1  # the first is no group: an empty cell
    pairs, counts = np.unique(labels * size + level.codes + 1, return_counts=True)
    of, groups = pairs // size, pairs % size - 1
    group_of = {classes.names[one]: level.names[group] for one, group in zip(of, groups, strict=True) if group >= 0}
    higher = frozenset(classes.names[one] for one, group in zip(of, groups, strict=True) if group < 0) - group_of.keys()
    slip, twice = "", np.flatnonzero(of[1:] == of[:-1])
    if len(twice):
        first = twice[0]
        one, other = (level.names[groups[place]] for place in (first, first + 1))
        told = f"is in {one!r} and in {other!r}"
        if groups[first] < 0:
            told = f"is in {other!r}, and has no {name} in {counts[first]} of its {(labels == of[first]).sum()} rows"
        slip = f"class {classes.names[of[first]]!r} {told}"
    different = len({*level.names, *higher})
    return Level(name, group_of | {each: each for each in higher}, different, slip, higher)
