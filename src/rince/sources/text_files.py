"""Files of texts: tables as CSV, TSV, JSON lines or parquet, a text file with one text a line, data on the hub."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from rince.errors import DataError
from rince.files import csv_delimiter
from rince.sources.sealed_tables import read_columns, seal_of
from rince.sources.splits import SPLITS, tell_split
from rince.sources.tables import HUB_NAME, SPLIT, Reader, first_line, hub_splits, kept_names, usual_column

MARKS = {",": "commas", ";": "semicolons"}
FORMATS = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
LINES = ".txt"
EMBEDDED = {"definitions": "definitions", "definitions-outliers": "definitions/outliers.parquet"}
LONGEST = 2**31 - 1  # characters of a field; Python's own limit is below what a document may have


class Table(NamedTuple):
    """A table in memory."""

    columns: dict[str, list[Any]]
    """Its values by column; what is missing is None, or empty."""
    places: list[str]
    """Of every row, the same wherever the file lies: `train.csv:17`, its line; of parquet and hub data, its row."""


def table_splits(source: str) -> dict[str, Callable[[], Table]]:
    """Split → what reads its table.

    Args:
        source: embedded data (`definitions`), one file, also alone in a folder, which is all "train" unless it is
            named like a split there or a column `split` says otherwise, a folder with a file for every split, or a hub
            name.
    """
    path = Path(str(files("rince") / "sources/embedded" / EMBEDDED[source]) if source in EMBEDDED else source)
    if path.is_file():
        return _divided(read_table(path), source)
    if path.is_dir():
        found = _split_files(path)
        if len(found) == 1 and not set(found) & set(SPLITS.values()):
            return _divided(_read_parts(*found.values()), source)
        return {split: partial(_read_parts, parts) for split, parts in found.items()}
    if re.fullmatch(HUB_NAME, source) and path.suffix.lower() not in (*FORMATS, LINES):
        return {split: partial(_read_hub, each.read, split) for split, each in hub_splits(source).items()}
    raise DataError(
        f"data source {source!r} does not exist; give a file that ends in {' '.join(FORMATS)}, a folder with train.csv "
        f"and test.csv, a hub name such as 'owner/name', or embedded data: {', '.join(EMBEDDED)}"
    )


def read_any(place: str, test_split: str) -> Table:
    """All of a file, whatever splits it has; of a folder or hub data the test split, else val, train or the first."""
    path = Path(place)
    if path.is_file():
        return read_lines(path) if path.suffix.lower() == LINES else read_table(path)
    splits = table_splits(place)
    usual = (SPLITS.get(test_split, test_split), "test", "val", "train")
    taken = next((name for name in usual if name in splits), next(iter(splits)))
    tell_split(place, taken, splits)
    return splits[taken]()


def read_table(path: Path) -> Table:
    """The table in a file."""
    readers: dict[str, Callable[[Path], Table]] = {
        ".csv": _read_csv,
        ".tsv": partial(_read_csv, delimiter="\t"),
        ".jsonl": _read_json_lines,
        ".json": _read_json_lines,
        ".parquet": _read_parquet,
    }
    if path.suffix.lower() not in readers:
        raise DataError(f"texts must come in a file that ends in {' '.join(FORMATS)}, got {str(path)!r}")
    table = readers[path.suffix.lower()](path)
    if not table.places:
        raise DataError(f"{str(path)!r} is empty: it has no rows")
    return table


def read_lines(path: Path) -> Table:
    """A text a line; empty lines are none."""
    rows = [(number, line) for number, line in enumerate(_decoded(path).splitlines(), start=1) if line.strip()]
    if not rows:
        raise DataError(f"{str(path)!r} is empty; write one text a line")
    return Table({"text": [line for _, line in rows]}, [f"{path.name}:{number}" for number, _ in rows])


def _divided(whole: Table, source: str) -> dict[str, Callable[[], Table]]:
    return {split: partial(_same, table) for split, table in _by_split_column(whole, source).items()}


def _same(table: Table) -> Table:
    return table


def _split_files(folder: Path) -> dict[str, list[Path]]:
    """Split → its files: one, or the parts that the hub cuts large ones into (`train-00000-of-00002.parquet`)."""
    found: dict[str, list[Path]] = {}
    whole: dict[str, Path] = {}
    for file in sorted(each for each in folder.iterdir() if each.suffix.lower() in FORMATS):
        part = re.fullmatch(r"(.+)-\d{5}-of-\d{5}", file.stem)
        name = part[1] if part else file.stem
        split = SPLITS.get(name.lower(), name)
        first = whole.get(split) or (None if part else next(iter(found.get(split, ())), None))
        if first:
            raise DataError(f"{str(folder)!r} has two files for split {split!r}, {first.name} and {file.name}")
        if not part:
            whole[split] = file
        found.setdefault(split, []).append(file)
    if not found:
        raise DataError(f"no file in {str(folder)!r} holds texts: none ends in {' '.join(FORMATS)}")
    return found


def _by_split_column(table: Table, source: str) -> dict[str, Table]:
    """The parts of a table by its column `split`; without one, all of it is "train"."""
    column = usual_column(table.columns, (SPLIT,))
    if column is None:
        return {"train": table}
    rows: dict[str, list[int]] = {}
    for row, value in enumerate(table.columns[column]):
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"column {column!r} of {source!r} is empty at {table.places[row]}; every row has a split")
        rows.setdefault(SPLITS.get(value.strip().lower(), value.strip()), []).append(row)
    return {
        split: Table(
            {name: [values[row] for row in chosen] for name, values in table.columns.items()},
            [table.places[row] for row in chosen],
        )
        for split, chosen in rows.items()
    }


def _read_parts(parts: list[Path]) -> Table:
    tables = [read_table(path) for path in parts]
    for path, table in zip(parts, tables, strict=True):
        if set(table.columns) != set(tables[0].columns):
            raise DataError(f"{parts[0]} and {path} are of one split but differ in their columns")
    return Table(
        {name: [value for table in tables for value in table.columns[name]] for name in tables[0].columns},
        [place for table in tables for place in table.places],
    )


def _decoded(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")  # spreadsheets put a byte order mark before their CSV
    except UnicodeDecodeError as error:
        raise DataError(f"{str(path)!r} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None


def _read_csv(path: Path, delimiter: str | None = None) -> Table:
    text = _decoded(path)
    before = csv.field_size_limit(LONGEST)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter or csv_delimiter(text), strict=True)
        lines, start = [], 1
        for fields in reader:
            if fields:
                lines.append((start, fields))
            start = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"line {reader.line_num} of {str(path)!r} does not read as {path.suffix[1:]}: {error}"
        ) from None
    finally:
        csv.field_size_limit(before)
    if not lines:
        raise DataError(f"{str(path)!r} is empty; write a header such as text,label, then one row per text")
    (_, header), *rows = lines
    names = [name.strip() for name in header]
    parted = next((words for mark, words in MARKS.items() if len(names) == 1 and mark in names[0]), None)
    if parted is not None:  # of a file that says tabs
        raise DataError(
            f"{str(path)!r} has one column, {names[0]!r}: its fields look separated by {parted}, and those of a "
            f"{path.suffix} file are by tabs; save it so, or call it .csv"
        )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"the header of {str(path)!r} has column {twice!r} twice; rename one")
    for line, fields in rows:
        if len(fields) != len(names):
            raise DataError(
                f"line {line} of {str(path)!r} has {len(fields)} fields, but the header has {len(names)}; put texts "
                "that hold a separator into quotes"
            )
    columns = {name: [fields[place] for _, fields in rows] for place, name in enumerate(names)}
    return Table(columns, [f"{path.name}:{line}" for line, _ in rows])


def _read_json_lines(path: Path) -> Table:
    rows: list[tuple[int, dict[str, Any]]] = []
    for number, line in enumerate(_decoded(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            hint = "; save an array with DataFrame.to_json(…, orient='records', lines=True)" if line[:1] == "[" else ""
            raise DataError(f"line {number} of {str(path)!r} is no JSON object; JSON lines has one in every line{hint}")
        rows.append((number, row))
    names = dict.fromkeys(name for _, row in rows for name in row)
    columns = {name: [row.get(name) for _, row in rows] for name in names}
    return Table(columns, [f"{path.name}:{number}" for number, _ in rows])


def _read_parquet(path: Path) -> Table:
    try:
        with pq.ParquetFile(path) as file:
            table = read_columns(file)
            seal_of(file, path).check(table)
            return _of_arrow(table, path.name)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{str(path)!r} does not read as parquet ({first_line(error)})") from None


def _read_hub(read: Reader, split: str) -> Table:
    table = _of_arrow(read(read([]).column_names), split)
    if not table.places:
        raise DataError(f"split {split!r} is empty: it has columns but no rows")
    return table


def _of_arrow(table: pa.Table, place: str) -> Table:
    """Integers that stand for classes become their names; those that stand for none, as -1 on the hub, are missing."""
    columns: dict[str, list[Any]] = {}
    for name in table.column_names:
        values: Iterable[Any] = table[name].to_pylist()
        if kept := dict(enumerate(kept_names(table.schema, name))):
            values = [kept.get(value) if isinstance(value, int) else value for value in values]
        columns[name] = list(values)
    return Table(columns, [f"{place}:{row}" for row in range(1, len(table) + 1)])
