"""Files of vectors, as `rince embed`, other libraries and vector databases write them.

What a file says of its rows is read at once. The vectors are read when they are asked for, straight to where they
shall lie: a million of them takes no more memory than a million of them needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import torch
from torch import Tensor

from rince.errors import DataError
from rince.sources.vector_formats import (
    VECTORS,
    Chosen,
    Content,
    Matrix,
    read_npy,
    read_npz,
    read_parquet,
    read_safetensors,
)

READERS = {".parquet": read_parquet, ".npz": read_npz, ".npy": read_npy, ".safetensors": read_safetensors}
FORMATS = tuple(READERS)


@dataclass(frozen=True)
class VectorFile:
    """A file of vectors, opened.

    Attributes:
        path: of the file.
        column: what they are called.
        matrix: the vectors, not read yet.
        columns: text, integers or truth values, one for every vector.
        others: what else it holds, for messages.
        beside: other columns that could be meant by the vectors.
    """

    path: Path
    column: str
    matrix: Matrix
    columns: dict[str, pa.ChunkedArray]
    others: dict[str, str]
    beside: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """Rows of a file.

    Attributes:
        file: that has them.
        chosen: which; None for all.
    """

    file: VectorFile
    chosen: Chosen | None = None

    def __len__(self) -> int:
        return self.file.matrix.rows if self.chosen is None else int(self.chosen.sum())

    def column(self, name: str) -> pa.ChunkedArray:
        """What the file says of these rows."""
        column = self.file.columns[name]
        return column if self.chosen is None else column.filter(pa.array(self.chosen))


def open_vector_file(path: Path, vector_column: str | None = None) -> VectorFile:
    """Opens a `.parquet`, `.npz`, `.npy` (with a CSV of labels beside it) or `.safetensors` file.

    Args:
        path: of the file.
        vector_column: what its vectors are called; where it is not said, the only column that holds vectors, or that
            with a usual name.
    """
    if path.suffix not in READERS:
        raise DataError(f"vectors come as {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, got {path}")
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    try:
        content = READERS[path.suffix](path)
    except DataError:
        raise
    except Exception as error:  # each format has its own kinds of damage
        raise _unreadable(path, error) from None
    name, beside = _vectors_of(path, content, vector_column)
    rows = content.matrices[name].rows
    for column, values in content.columns.items():
        if len(values) != rows:
            raise DataError(
                f"{column} of {path} must hold one integer or text per vector: got {len(values)} for {rows} vectors"
            )
    return VectorFile(path, name, content.matrices[name], content.columns, content.others, beside)


class VectorReader:
    """Rows of parts, one after the other, read as they are asked for: forward within one pass, back by another.

    Args:
        parts: whose rows.
        source: where they are from, for messages.
    """

    def __init__(self, parts: Sequence[Part], source: str) -> None:
        widths = {part.file.matrix.width for part in parts}
        if len(widths) > 1:
            raise DataError(f"the vectors of {source!r} differ in length between its files: {sorted(widths)}")
        self.parts, self.width = parts, widths.pop()
        self._begin()

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def _begin(self) -> None:
        self._left, self._start, self._block = self.blocks(), 0, torch.empty(0, self.width)

    def blocks(self) -> Iterator[Tensor]:
        """All rows, `(some, width)` float32 at a time."""
        return _blocks(self.parts)

    def __call__(self, ids: Tensor) -> Tensor:
        """`(ids, width)`: some rows."""
        found, left = torch.empty(len(ids), self.width), len(ids)
        if left and int(ids.min()) < self._start:
            self._begin()
        while left:
            here = (ids >= self._start) & (ids < self._start + len(self._block))
            found[here] = self._block[ids[here] - self._start]
            left -= int(here.sum())
            if left:
                self._start += len(self._block)
                self._block = next(self._left)
        return found


def _blocks(parts: Sequence[Part]) -> Iterator[Tensor]:
    """No method: a reader that is no longer used, and what it has read, go at once if nothing refers back to it."""
    for part in parts:
        missing = len(part)
        try:
            for block in part.file.matrix.blocks(part.chosen):
                missing -= len(block)
                with np.errstate(over="ignore"):  # what does not fit is infinite, and will be named as that
                    # A copy: what a file is mapped to cannot be written to, and goes when it is closed.
                    yield torch.from_numpy(np.array(block, dtype=np.float32, order="C"))
        except DataError:
            raise
        except Exception as error:  # each format has its own kinds of damage
            raise _unreadable(part.file.path, error) from None
        if missing:
            raise DataError(
                f"{part.file.path} is damaged: {missing} vectors of {len(part)} that it says it has are not there"
            )


def read_vectors(parts: Sequence[Part], source: str) -> Tensor:
    """`(samples, width)` float32: the rows of all parts, one after the other."""
    reader = VectorReader(parts, source)
    vectors, start = torch.empty(len(reader), reader.width), 0
    for block in reader.blocks():
        vectors[start : start + len(block)] = block
        start += len(block)
    return vectors


def conversion_notes(files: Iterable[VectorFile]) -> list[str]:
    """What a person should know of how vectors were taken from their files."""
    notes: dict[str, None] = {}
    for file in files:
        if file.matrix.kind != "float32":
            notes[f"vectors of {file.matrix.kind} in the file, taken as float32"] = None
        if file.beside:
            others = ", ".join(map(repr, file.beside))
            notes[f"vectors are {file.column!r}; data.vector_column could name {others} instead"] = None
    return list(notes)


def _vectors_of(path: Path, content: Content, asked: str | None) -> tuple[str, tuple[str, ...]]:
    """Which column holds the vectors, and which others could."""
    found = content.matrices
    if asked is not None:
        if asked not in found:
            raise DataError(_no_vectors(path, content, asked))
        return asked, ()
    usual = [name for name in VECTORS if name in found]
    floats = [name for name, matrix in found.items() if matrix.kind.startswith(("float", "bfloat"))]
    if not usual and len(floats) > 1:
        raise DataError(
            f"{path} has {len(floats)} columns that could be its vectors, {', '.join(map(repr, floats))}; name one "
            "with data.vector_column, or call it 'vector'"
        )
    chosen = next(iter(usual or floats), None)
    if chosen is None:
        text = next((name for name in VECTORS if name in content.columns or name in content.others), "")
        raise DataError(_no_vectors(path, content, text))
    return chosen, tuple(name for name in dict.fromkeys([*usual, *floats]) if name != chosen)


def _no_vectors(path: Path, content: Content, name: str) -> str:
    kinds = {column: str(values.type) for column, values in content.columns.items()} | content.others
    if name in kinds and "string" in kinds[name]:
        return (
            f"{name!r} of {path} is text, not a list of numbers; write it as numbers (from Postgres: SELECT "
            f"{name}::real[])"
        )
    if name in kinds:
        return f"{name!r} of {path} holds {kinds[name]}; vectors are one list of numbers for every row"
    there = ", ".join([*content.matrices, *kinds]) or "nothing"
    missing = f" called {name!r}" if name else ""
    return f"{path} has no vectors{missing}, a matrix (samples, dim) or a column of lists of numbers; it holds {there}"


def _unreadable(path: Path, error: Exception) -> DataError:
    if "pickle" in str(error) or "Object arrays" in str(error):
        return DataError(
            f"{path} cannot be read as {path.suffix}: it holds Python objects, and nothing is unpickled here; save "
            "plain arrays, text by labels.astype(str)"
        )
    reason = (str(error).strip().splitlines() or [""])[0]
    return DataError(f"{path} cannot be read as {path.suffix} ({type(error).__name__}: {reason})")
