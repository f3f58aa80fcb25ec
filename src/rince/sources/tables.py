"""Tables of samples of any kind: what the hub gives, the names of classes it keeps, columns by their usual names."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]

from rince.errors import DataError
from rince.sources.splits import SPLITS

HUB_NAME = r"\w[\w.-]*/\w[\w.-]*"

# Gives those of the named columns that a split has; for no names an empty table with all columns.
Reader = Callable[[list[str]], pa.Table]


class Split(NamedTuple):
    """A split of tables."""

    read: Reader
    files: tuple[Path, ...]
    """That hold it."""


def hub_splits(source: str) -> dict[str, Split]:
    """Split by name, of data on the hub."""
    import datasets  # type: ignore[import-untyped]  # noqa: PLC0415  (takes seconds to import)

    try:
        found = datasets.load_dataset(source)
    except Exception as error:  # no connection, no such name, no permission: each library below has its own errors
        raise DataError(
            f"{source!r} is no local path and could not be had from the hub ({first_line(error)}); "
            "check the name, set up the network, or pass the path of a local copy"
        ) from error

    return {
        SPLITS.get(name, name): Split(
            partial(_select, part.data.table), tuple(Path(each["filename"]) for each in part.cache_files)
        )
        for name, part in found.items()
    }


def _select(table: pa.Table, columns: list[str]) -> pa.Table:
    return table.select([name for name in table.column_names if name in columns]) if columns else table.slice(0, 0)


def find_column(source: str, there: list[str], what: str, asked: str | None, usual: tuple[str, ...]) -> str:
    """The column asked for, else the first that has one of the usual names.

    Args:
        source: of the table, for messages.
        there: all its columns.
        what: the column is for: it is asked for as `data.{what}_column`.
        asked: its name, or None.
        usual: names to try, in any case.
    """
    columns = ", ".join(map(repr, there))
    if asked:
        if asked not in there:
            close = difflib.get_close_matches(asked, there, n=1)
            guess = f"; did you mean {close[0]!r}?" if close else ""
            raise DataError(f"{source!r} has no {what} column {asked!r}: its columns are {columns}{guess}")
        return asked
    by_name = {name.lower(): name for name in reversed(there)}
    for name in usual:
        if name in by_name:
            return by_name[name]
    raise DataError(
        f"{source!r} has no {what} column called {' or '.join(map(repr, usual))}: its columns are {columns}; "
        f"name the right one with {what}_column"
    )


def kept_names(schema: pa.Schema, column: str) -> tuple[str, ...]:
    """Names of the classes of a column of integers, which Hugging Face keeps beside the schema; empty without."""
    try:
        kept: Any = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        return tuple(map(str, kept["info"]["features"][column]["names"]))
    except (ValueError, KeyError, TypeError):
        return ()


def first_line(error: Exception) -> str:
    """What an error says, in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
