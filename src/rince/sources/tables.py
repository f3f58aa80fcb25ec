"""Tables of samples of any kind: what the hub gives, the names of classes it keeps, what columns are taken for."""

from __future__ import annotations

import difflib
import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]

from rince.errors import DataError
from rince.sources.splits import SPLITS

HUB_NAME = r"\w[\w.-]*/\w[\w.-]*"
# Of the classes, in any case, best first: what is often the name of a coarser level comes last.
LABELS: tuple[str, ...] = ("label", "labels", "intent", "class", "classes", "class_name", "fine_label", "targets")
LABELS += ("target", "y", "category", "topic")
SPLIT = "split"
WORDS = 3  # of the name of a column: one with more is a line of the data
# What a sample is called, best first; none of it is a level by itself.
CALLED: tuple[str, ...] = ("text", "title", "document", "documents", "page_content", "content", "caption", "name")
CALLED += ("path", "file", "file_name", "filename", "url", "id", "ids", "uuid")

# Gives those of the named columns that a split has; for no names an empty table with all columns.
Reader = Callable[[list[str]], pa.Table]


class Split(NamedTuple):
    """A split of tables."""

    read: Reader
    files: tuple[Path, ...]
    """That hold it."""


# Endings that no data on the hub has: who names such a file means a file.
FILES = {
    ".csv",
    ".tsv",
    ".json",
    ".jsonl",
    ".txt",
    ".parquet",
    ".npz",
    ".npy",
    ".safetensors",
    ".zip",
    ".tar",
    ".gz",
} | {*(".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".mp4", ".avi", ".webm", ".mkv", ".mov")}


def hub_splits(source: str) -> dict[str, Split]:
    """Split by name, of data on the hub."""
    if Path(source).suffix.lower() in FILES:
        raise DataError(f"there is no file {source!r}; check its name and the folder it is in")
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
    found = usual_column(there, usual)
    if found is not None:
        return found
    sentence = any(len(name.split()) > WORDS for name in there)
    raise DataError(
        f"{source!r} has no {what} column called {' or '.join(map(repr, usual))}: its columns are {columns}; "
        f"name the right one with data.{what}_column"
        + (", or write a header above the first line, which is taken for one" if sentence else "")
    )


def usual_column(there: Iterable[str], usual: Sequence[str]) -> str | None:
    """The first column that has one of the usual names, in any case; None if there is none."""
    by_name = {name.lower(): name for name in reversed(list(there))}
    return next((by_name[name] for name in usual if name in by_name), None)


class Level(NamedTuple):
    """What a column says of classes."""

    column: str
    group_of: dict[str, str]
    """Class → group, of the classes that it says something of; of those whose every cell is empty, the class itself."""
    values: int
    """How many different ones it has, own groups of classes included."""
    slip: str = ""
    """How samples of a class disagree, or some of them say nothing; empty if it groups classes."""
    higher: frozenset[str] = frozenset()
    """The classes whose every cell is empty: they stand one level higher, each its own group here."""

    @property
    def groups(self) -> set[str]:
        """All of them."""
        return set(self.group_of.values())


def level_candidates(
    there: Iterable[str], asked: Sequence[str] | None, label_column: str, but_for: Sequence[str] = ()
) -> list[str]:
    """The columns to look for levels in: those asked for, else all that are not of something else."""
    if asked is None:
        no_levels = (label_column, *but_for)
        return [name for name in there if name not in no_levels and name.lower() not in (SPLIT, *CALLED)]
    if label_column in asked:
        raise DataError(f"data.level_columns names {label_column!r}, which is the column of the classes; leave it out")
    return list(dict.fromkeys(asked))


def chosen_levels(
    candidates: Iterable[Level], names: Sequence[str], *, guessed: bool, source: str
) -> tuple[list[Level], list[str]]:
    """The levels above the classes, coarse first (the fewer groups, the coarser), and why other columns are none.

    The rule of `even_paths` for a class that stands less deep than others: its cell is empty in every row.

    Args:
        candidates: what columns say.
        names: of the classes.
        guessed: nobody named the columns. Then one with a single value, more values than there are classes, or a group
            for every class is none, as is one that groups classes as another does; one in which samples of a class
            differ is none, and it is said. Of columns that are named it is an error.
        source: for messages.
    """
    levels: list[Level] = []
    seen: set[tuple[int, ...]] = set()
    reasons = []
    for level in candidates:
        if guessed and not 1 < level.values <= len(names):
            continue
        silent = next((name for name in names if name not in level.group_of), None)
        untold = "" if silent is None else f"no row of {source!r} tells the {level.column} of class {silent!r}"
        slip = level.slip or untold or ("every row is empty" if len(level.higher) == len(names) else "")
        if slip and not guessed:
            raise DataError(
                f"{level.column} of {source!r} is no level above the classes: {slip}; a class has one place, so mend "
                "the rows, or name other columns with data.level_columns ([] for none)"
            )
        if slip:
            reasons.append(f"{level.column} is no level above the classes: {slip}")
            continue
        numbers = {group: number for number, group in enumerate(dict.fromkeys(map(level.group_of.get, names)))}
        grouping = tuple(numbers[level.group_of[name]] for name in names)
        if not guessed or (len(numbers) < len(names) and grouping not in seen):
            levels.append(level)
            seen.add(grouping)
    levels.sort(key=lambda level: (len(level.groups), len(level.higher)))
    _refuse_gaps(levels, source)  # first: what is empty counts as a group, and may cross others
    _refuse_crossed(levels, names, source)
    return levels, reasons


def _refuse_crossed(levels: Sequence[Level], names: Sequence[str], source: str) -> None:
    for coarse, fine in itertools.pairwise(levels):
        if len({(coarse.group_of[name], fine.group_of[name]) for name in names}) > len(fine.groups):
            raise DataError(
                f"{coarse.column} of {source!r} is no level above {fine.column}: groups of {fine.column} lie in "
                f"several of {coarse.column}; name the columns that are levels with data.level_columns"
            )


def _refuse_gaps(levels: Sequence[Level], source: str) -> None:
    for coarse, fine in itertools.pairwise(levels):
        for name in sorted(coarse.higher - fine.higher):
            raise DataError(
                f"class {name!r} of {source!r} has the {fine.column} {fine.group_of[name]!r} and no {coarse.column}, "
                f"the level above; fill in its {coarse.column}, or name the levels with data.level_columns"
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
