"""Seals of parquet files that we write: a digest of all they hold in their metadata, checked as they are read.

Every column of every row group has a digest of its values, and one digest is over these, the schema and the notes. So
whoever reads some columns, block by block, checks what they read and reads nothing twice. Files without a seal are read
as they are: they are of others.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from rince.errors import DataError
from rince.sources.tables import first_line

KEY = b"rince.sha256"
OF_ARROW = b"ARROW:schema"


def write_sealed(file: IO[bytes], tables: Iterable[pa.Table], schema: pa.Schema) -> None:
    """A parquet file of text and vectors, with a row group for every table, and its seal."""
    rows: list[int] = []
    columns: dict[str, list[str]] = {name: [] for name in schema.names}
    held = {"rows": rows, "columns": columns}
    with pq.ParquetWriter(file, schema) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=max(len(table), 1))
            rows.append(len(table))
            for name, digests in columns.items():
                digests.append(_digest(table[name].chunks))
        sealed = {"over": _over(held, schema, schema.metadata), **held}
        writer.add_key_value_metadata({KEY: json.dumps(sealed, separators=(",", ":")).encode()})


class Seal(NamedTuple):
    """What a file must hold; nothing is known of one that others wrote."""

    path: Path
    rows: list[int]
    columns: dict[str, list[str]]

    def check(self, table: pa.Table) -> None:
        """Refuses columns, all their rows, that are not as they were written."""
        for name in table.column_names if self.columns else ():
            self.checked(name).add(table[name])

    def check_group(self, name: str, number: int, values: pa.ChunkedArray) -> None:
        """Refuses a column of one row group that is not as it was written."""
        if self.columns and _digest(_chunks(values)) != self.columns[name][number]:
            raise _damaged(self.path, f"{name!r} does not fit its digest")

    def checked(self, name: str) -> Column:
        """To check a column as it is read."""
        return Column(self, name)


class Column:
    """A column that is checked as it is read, block by block from its beginning: as soon as a row group is complete."""

    def __init__(self, seal: Seal, name: str) -> None:
        self._seal, self._name, self._group = seal, name, 0
        self._read: list[pa.Array] = []  # of the row group that is not complete yet
        self._left = seal.rows[0] if seal.rows else 0

    def add(self, block: pa.Array | pa.ChunkedArray) -> None:
        """The next rows; a `DataError` if they complete a row group that is not as it was written."""
        if not self._seal.columns:
            return
        while len(block):
            self._read += _chunks(block[: self._left])
            taken = min(self._left, len(block))
            block, self._left = block[taken:], self._left - taken
            if self._left:
                return
            wanted = self._seal.columns[self._name]
            if self._group >= len(wanted) or _digest(self._read) != wanted[self._group]:
                raise _damaged(self._seal.path, f"{self._name!r} does not fit its digest")
            self._read, self._group = [], self._group + 1
            self._left = self._seal.rows[self._group] if self._group < len(wanted) else len(block)


def seal_of(file: pq.ParquetFile, path: Path) -> Seal:
    """The seal of a file, after what it says of the file itself was checked; an empty one if it has none."""
    kept = file.metadata.metadata or {}
    if KEY not in kept:
        if KEY in _footer(path):
            raise _damaged(path, "its seal is there but out of place")
        return Seal(path, [], {})
    notes = {key: value for key, value in (file.schema_arrow.metadata or {}).items() if key not in (KEY, OF_ARROW)}
    try:
        sealed = json.loads(kept[KEY])
        over = sealed.pop("over")
        rows = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
        whole = over == _over(sealed, file.schema_arrow, notes) and sealed["rows"] == rows
        whole = whole and sum(rows) == file.metadata.num_rows
    except (ValueError, TypeError, KeyError, AttributeError):
        whole = False
    if not whole:
        raise _damaged(path, "its digest does not fit")
    return Seal(path, sealed["rows"], sealed["columns"])


@contextmanager
def opened_table(path: Path, **options: Any) -> Iterator[tuple[pq.ParquetFile, Seal]]:
    """A parquet file and its seal; what is wrong with it is one `DataError`, wherever in the block it shows."""
    try:
        with pq.ParquetFile(path, **options) as file:
            yield file, seal_of(file, path)
    except DataError:
        raise
    except (OSError, pa.ArrowException, ValueError) as error:  # of values that are no text, a UnicodeDecodeError
        raise DataError(f"{path} cannot be read: {first_line(error)}") from None


def whole_table(path: Path, columns: list[str] | None = None) -> pa.Table:
    """All of a parquet file, or some columns, as they were written; else a `DataError`."""
    with opened_table(path) as (file, seal):
        table = read_columns(file, columns)
        seal.check(table)
    return table


def read_columns(file: pq.ParquetFile, columns: list[str] | None = None) -> pa.Table:
    """A parquet file, or some of its columns; text that is none is an error here, not where it is first used."""
    table = file.read(columns=columns)
    table.validate(full=True)
    return table


def _footer(path: Path) -> bytes:
    """What stands behind the columns of a parquet file, as bytes."""
    with path.open("rb") as file:
        end = file.seek(-8, os.SEEK_END)
        length = int.from_bytes(file.read(4), "little")
        file.seek(max(end - length, 0))
        return file.read(length)


def _damaged(path: Path, reason: str) -> DataError:
    return DataError(
        f"{path} is damaged: its content is not what was written, {reason}; restore it from a copy, or make it again"
    )


def _over(held: dict[str, Any], schema: pa.Schema, notes: dict[bytes, bytes] | None) -> str:
    """One digest over all digests, the names and kinds of columns, and what is noted."""
    fields = [[field.name, _kind(field.type)] for field in schema]
    noted = sorted([key.decode("latin-1"), value.decode("latin-1")] for key, value in (notes or {}).items())
    return hashlib.sha256(json.dumps([held["rows"], held["columns"], fields, noted]).encode()).hexdigest()


def _kind(kind: pa.DataType) -> str:
    """A kind of values without what writers call the items of a list."""
    return f"{kind.list_size} {kind.value_type}" if pa.types.is_fixed_size_list(kind) else str(kind)


def _chunks(values: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return values.chunks if isinstance(values, pa.ChunkedArray) else [values]


def _digest(chunks: list[pa.Array]) -> str:
    """Of text or of vectors, however they are cut into chunks."""
    numbers, content = hashlib.sha256(), hashlib.sha256()
    for chunk in chunks:
        if chunk.null_count:
            numbers.update(b"null")  # we write none
        if pa.types.is_fixed_size_list(chunk.type):
            values = chunk.flatten()
            content.update(np.ascontiguousarray(values.to_numpy(zero_copy_only=False)).data.cast("B"))
            numbers.update(b"null" * bool(values.null_count))
            continue
        text = chunk.cast(pa.large_binary())
        ends = np.frombuffer(text.buffers()[1], np.int64)[text.offset : text.offset + len(text) + 1]
        numbers.update(np.diff(ends).tobytes())
        if ends[-1] > ends[0]:
            content.update(memoryview(text.buffers()[2])[ends[0] : ends[-1]])
    return hashlib.sha256(numbers.digest() + content.digest()).hexdigest()
