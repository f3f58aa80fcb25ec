"""How files hold vectors: parquet, and the arrays of `.npz`, `.npy` and `.safetensors`. Nothing is ever unpickled."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from rince.errors import DataError
from rince.sources.sealed_tables import Seal, read_columns, seal_of

VECTORS = ("features", "vectors", "vector", "embeddings", "embedding", "values", "vec", "x")
METADATA = ("metadata", "metadatas", "payload")  # where databases keep what they know of a row
BATCH = 4096  # rows of a parquet file at a time
BUFFER = 2**22  # bytes of a column at a time: a file may keep all its rows in one piece
Chosen = np.ndarray[tuple[int], np.dtype[np.bool_]]


class Matrix(NamedTuple):
    """What could be the vectors of a file."""

    rows: int
    width: int
    kind: str
    """Of its numbers."""
    blocks: Callable[[Chosen | None], Iterator[Any]]
    """Reads its rows, all or those chosen, some at a time: arrays `(rows, width)`."""


class Content(NamedTuple):
    """What is in a file."""

    matrices: dict[str, Matrix]
    columns: dict[str, pa.ChunkedArray]
    """Text, integers and truth values."""
    others: dict[str, str]
    """Everything else, and what it is."""


def read_parquet(path: Path) -> Content:
    """Lists of numbers are vectors; text, integers, truth values and the fields of metadata are columns."""
    with pq.ParquetFile(path, buffer_size=BUFFER, pre_buffer=False) as file:
        schema = file.schema_arrow
        _refuse_twice(schema.names, path)
        seal = seal_of(file, path)
        told = [field.name for field in schema if _is_told(field)]
        table = read_columns(file, told)
        seal.check(table)
        lists = [field for field in schema if _is_vector(field)]
        matrices = {field.name: _list_matrix(file, field, seal) for field in lists}
    columns = {name: _plain(table[name]) for name in told}
    others = {field.name: str(field.type) for field in schema if field.name not in {*told, *matrices}}
    return Content(matrices, _spread(columns), others)


def _list_matrix(file: pq.ParquetFile, field: pa.Field, seal: Seal) -> Matrix:
    name, path = field.name, seal.path
    width = getattr(field.type, "list_size", None)
    if width is None:
        first = next(file.iter_batches(BATCH, columns=[name]), None)
        lengths = [] if first is None else pc.drop_null(first.column(0)).value_lengths().to_pylist()
        width = lengths[0] if lengths else 0

    def blocks(chosen: Chosen | None) -> Iterator[Any]:
        row, checked = 0, seal.checked(name)
        with pq.ParquetFile(path, buffer_size=BUFFER, pre_buffer=False) as again:
            for batch in again.iter_batches(BATCH, columns=[name], use_threads=False):  # which would read ahead
                rows = np.arange(row, row + len(batch))
                row += len(batch)
                column = batch.column(0)
                checked.add(column)
                if chosen is not None:
                    rows = rows[chosen[rows]]
                    column = column.filter(pa.array(chosen[row - len(batch) : row]))
                yield _numbers(path, name, column, width, rows)

    kind = str(field.type.value_type).replace("halffloat", "float16").replace("double", "float64")
    return Matrix(file.metadata.num_rows, width, "float32" if kind == "float" else kind, blocks)


def _numbers(path: Path, name: str, column: pa.Array, width: int, rows: Any) -> Any:
    """The lists of a column as a matrix; `rows` are their places in the file."""
    empty = column.is_null().to_numpy(zero_copy_only=False)
    if empty.any():
        raise DataError(
            f"{name!r} of {path} has rows without a vector, the first of them row {rows[empty.argmax()]}; take them out"
        )
    if not hasattr(column.type, "list_size"):
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        if (lengths != width).any():
            wrong = int((lengths != width).argmax())
            raise DataError(
                f"{name!r} of {path} has vectors of unequal length: {lengths[wrong]} numbers in row {rows[wrong]}, and "
                f"{width} in the first"
            )
    numbers = column.flatten()
    if numbers.null_count:
        wrong = rows[int(numbers.is_null().to_numpy(zero_copy_only=False).argmax()) // width]
        raise DataError(f"{name!r} of {path} has a vector with a number missing, in row {wrong}; take it out")
    return numbers.to_numpy(zero_copy_only=False).reshape(-1, width)


def _is_vector(field: pa.Field) -> bool:
    """Lists of floats; of integers, if they are called vectors: else they may be anything."""
    kind = field.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return False
    inner = kind.value_type
    return bool(pa.types.is_floating(inner) or (pa.types.is_integer(inner) and field.name in VECTORS))


def _is_plain(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    of = pa.types
    return bool(of.is_string(kind) or of.is_large_string(kind) or of.is_integer(kind) or of.is_boolean(kind))


def _is_told(field: pa.Field) -> bool:
    """Whether a field tells something of a row, by itself or in the fields that it has."""
    return _is_plain(field.type) or (field.name in METADATA and pa.types.is_struct(field.type))


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _spread(columns: dict[str, pa.ChunkedArray]) -> dict[str, pa.ChunkedArray]:
    """The fields of metadata as columns of their own, behind those that the file has itself."""
    spread = {name: column for name, column in columns.items() if not pa.types.is_struct(column.type)}
    for name in METADATA:
        if name not in columns:
            continue
        fields = columns[name]
        if pa.types.is_struct(fields.type):
            inner = _spread({f.name: _plain(pc.struct_field(fields, f.name)) for f in fields.type if _is_told(f)})
        elif pa.types.is_string(fields.type) or pa.types.is_large_string(fields.type):
            inner = _json_columns(fields)
        else:
            continue
        if inner:
            spread.pop(name, None)
        spread |= {field: column for field, column in inner.items() if field not in spread}
    return spread


def _json_columns(texts: pa.ChunkedArray) -> dict[str, pa.ChunkedArray]:
    """The fields of JSON objects, one for every row; nothing if the text is anything else."""
    try:
        rows = [json.loads(text) if text else {} for text in texts.to_pylist()]
    except ValueError:
        return {}
    if not all(isinstance(row, dict) for row in rows):
        return {}
    for row in rows:
        for name in METADATA:  # some libraries keep theirs within that of the database
            if isinstance(row.get(name), dict):
                row.update({key: value for key, value in row.pop(name).items() if key not in row})
    columns = {}
    for key in dict.fromkeys(key for row in rows for key in row):
        values = [row.get(key) for row in rows]
        if all(value is None or isinstance(value, str | int) for value in values):
            alike = len({type(value) for value in values if value is not None}) < 2
            told = values if alike else [None if value is None else str(value) for value in values]
            columns[key] = pa.chunked_array([pa.array(told)])
    return columns


def read_npz(path: Path) -> Content:
    """Matrices are vectors; text and integers of one axis are columns."""
    shapes = {}
    with zipfile.ZipFile(path) as archive:
        names = [entry.removesuffix(".npy") for entry in archive.namelist()]
        _refuse_twice(names, path)
        for name, entry in zip(names, archive.namelist(), strict=True):
            with archive.open(entry) as file:
                shapes[name] = _header(file)

    def load(name: str) -> Any:
        with np.load(path, allow_pickle=False) as file:
            return file[name]

    return _arrays(shapes, load, lambda name: load(name).__getitem__)  # a zip file has no rows to go to


def read_npy(path: Path) -> Content:
    """A matrix, and what the CSV file beside it says of its rows."""
    with path.open("rb") as file:
        shape = _header(file)

    def load(_: str) -> Any:
        return np.load(path, mmap_mode="r", allow_pickle=False)

    # Opened anew for every block: what was read of a mapped file counts as memory until it is closed.
    found = _arrays({"vectors": shape}, load, lambda name: lambda rows: load(name)[rows])
    beside = next((file for file in labels_beside(path) if file.is_file()), None)
    if beside is None:
        return found
    columns = _csv_columns(beside)
    told, rows = len(next(iter(columns.values()))), (*shape[0], 0)[0]
    if told != rows:
        first = ", ".join(map(repr, columns))
        raise DataError(
            f"{beside} tells of {told:,} vectors below its header ({first}), and {path} holds {rows:,}; it needs a "
            "header, then a row for every vector"
        )
    return found._replace(columns=columns)


def labels_beside(path: Path) -> tuple[Path, Path]:
    """Where the labels of a `.npy` file are looked for."""
    return path.with_suffix(".labels.csv"), path.with_suffix(".csv")


def read_safetensors(path: Path) -> Content:
    """Matrices are vectors; integers of one axis are columns."""
    from safetensors import safe_open  # noqa: PLC0415 - only for this format

    def load(name: str) -> Any:
        return cut(name)(slice(None))

    def cut(name: str) -> Callable[[slice], Any]:
        def rows_of(rows: slice) -> Any:
            with safe_open(path, framework="pt") as file:  # numpy has no bfloat16
                tensor = file.get_slice(name)[rows]
            return tensor.float().numpy() if tensor.is_floating_point() else tensor.numpy()

        return rows_of

    with safe_open(path, framework="pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
        shapes = {name: (tuple(each.get_shape()), _torch_kind(each.get_dtype())) for name, each in slices.items()}
    return _arrays(shapes, load, cut)


def _torch_kind(name: str) -> str:
    """`BF16` → `bfloat16`."""
    letters = name.rstrip("0123456789")
    kinds = {"F": "float", "BF": "bfloat", "I": "int", "U": "uint", "BOOL": "bool"}
    return kinds.get(letters, letters) + name[len(letters) :]


def _header(file: Any) -> tuple[tuple[int, ...], str]:
    """Shape and kind of the array in an npy file, without its numbers."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("Object arrays")
    return shape, dtype.name


def _arrays(
    shapes: dict[str, tuple[tuple[int, ...], str]],
    load: Callable[[str], Any],
    cut: Callable[[str], Callable[[slice], Any]],
) -> Content:
    """What arrays are.

    Args:
        shapes: and kinds, by name.
        load: reads one.
        cut: opens one, of which rows are asked for.
    """
    matrices, others = {}, {}
    for name, (shape, kind) in shapes.items():
        numbers = kind.startswith(("float", "bfloat")) or (kind.startswith(("int", "uint")) and _is_named(name, shapes))
        if len(shape) == 2 and numbers:
            matrices[name] = Matrix(*shape, kind, _array_blocks(name, shape[0], cut))
        else:
            others[name] = f"{kind} of shape {shape}"
    columns = {}
    for name, (shape, kind) in shapes.items():
        if len(shape) == 1 and kind.startswith(("int", "uint", "str", "bytes", "bool")):
            values = load(name)
            values = np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values
            columns[name] = pa.chunked_array([pa.array(values)])
            del others[name]
    return Content(matrices, columns, others)


def _is_named(name: str, shapes: dict[str, Any]) -> bool:
    """Whether a matrix of integers is meant: by its name, or because it is all there is."""
    return name in VECTORS or len(shapes) == 1


def _array_blocks(
    name: str, number: int, cut: Callable[[str], Callable[[slice], Any]]
) -> Callable[[Chosen | None], Iterator[Any]]:
    def blocks(chosen: Chosen | None) -> Iterator[Any]:
        rows_of = cut(name)
        for start in range(0, number, BATCH):
            rows = slice(start, min(start + BATCH, number))
            yield rows_of(rows) if chosen is None else rows_of(rows)[chosen[rows]]

    return blocks


def _csv_columns(path: Path) -> dict[str, pa.ChunkedArray]:
    try:
        rows = [row for row in csv.reader(io.StringIO(path.read_text("utf-8-sig"), newline=""), strict=True) if row]
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not CSV: {error}") from None
    if not rows:
        raise DataError(f"{path} is empty; write a header, then a row for every vector")
    header = [name.strip() for name in rows[0]]
    _refuse_twice(header, path)
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != len(header):
            raise DataError(f"row {number} of {path} has {len(row)} cells, but the header has {len(header)}")
    columns = zip(*rows[1:], strict=True) if len(rows) > 1 else [()] * len(header)
    return {
        name: pa.chunked_array([pa.array([cell.strip() or None for cell in column], pa.string())])
        for name, column in zip(header, columns, strict=True)
    }


def _refuse_twice(names: list[str], path: Path) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{path} has two columns called {twice!r}; rename one")
