"""What the columns of tables of texts say of their classes: the label of a row, and the groups above a class."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rince.errors import DataError
from rince.sources.text_files import SPLIT_COLUMN, Table

Labels = list[str | None]


class Level(NamedTuple):
    """What a column says of classes."""

    column: str
    group_of: dict[str, str | None]
    """Of every class that a row is of: what the first of them says."""
    slips: dict[str, str]
    """Of every class whose rows disagree, or say nothing: how."""

    @property
    def groups(self) -> set[str]:
        """All of them."""
        return {group for group in self.group_of.values() if group is not None}


def labels_in(table: Table, column: str, source: str) -> Labels:
    """The labels of a column as text; None where a row has none.

    Raises:
        DataError: if it holds anything but integers and text.
    """
    labels: Labels = []
    for row, value in enumerate(table.columns[column]):
        if value is None or (isinstance(value, float) and math.isnan(value)):
            labels.append(None)
        elif isinstance(value, str | int):
            labels.append(str(value).strip() or None)
        else:
            raise DataError(
                f"column {column!r} of {source!r} holds {value!r} at {table.places[row]}, but labels are integers or "
                "text; name another column"
            )
    return labels


def class_paths_of(
    tables: Mapping[str, tuple[Table, Labels]],
    names: Sequence[str],
    asked: Sequence[str] | None,
    *,
    but_for: Sequence[str],
    source: str,
) -> tuple[list[tuple[str, ...]], list[str]]:
    """The path of every class and the columns it is made of, coarse levels first: the fewer groups, the coarser.

    Args:
        tables: of every split, with the class of every row.
        names: the classes.
        asked: columns of the levels above the class; None for all that give every class one group.
        but_for: columns that are no levels.
        source: for messages.
    """
    there = dict.fromkeys(column for table, _ in tables.values() for column in table.columns)
    if asked is None:
        others = [column for column in there if column not in but_for and column.lower() != SPLIT_COLUMN]
        levels = _guessed(tables, others, len(names), source)
    else:
        absent = next((column for column in asked if column not in there), None)
        if absent is not None:
            raise DataError(f"{source!r} has no level column {absent!r}: its columns are {', '.join(map(repr, there))}")
        levels = [_level(tables, column, source) for column in asked]
    for level in levels:
        silent = next((name for name in names if name not in level.group_of), None)
        if silent is not None:
            raise DataError(f"no row of {source!r} tells the {level.column} of class {silent!r}")
        if level.slips:
            raise DataError(
                f"{next(iter(level.slips.values()))} of {source!r}; a class has one place, so mend the rows, or name "
                "other columns with level_columns"
            )
    levels.sort(key=lambda level: len(level.groups))
    paths = [(*(str(level.group_of[name]) for level in levels), name) for name in names]
    return paths, [level.column for level in levels]


def _guessed(tables: Mapping[str, tuple[Table, Labels]], columns: list[str], classes: int, source: str) -> list[Level]:
    """Levels that group classes, each in another way. A column that fails for few classes is kept, to be told."""
    levels: dict[tuple[int, ...], Level] = {}
    for column in columns:
        try:
            level = _level(tables, column, source)
        except DataError:
            continue  # no labels
        if 1 < len(level.groups) < classes and 2 * len(level.slips) <= classes:
            numbers = {group: number for number, group in enumerate(dict.fromkeys(level.group_of.values()))}
            levels.setdefault(tuple(numbers[group] for group in level.group_of.values()), level)
    return list(levels.values())


def _level(tables: Mapping[str, tuple[Table, Labels]], column: str, source: str) -> Level:
    first: dict[str, tuple[str | None, str]] = {}
    slips: dict[str, str] = {}
    for table, classes in tables.values():
        if column not in table.columns:
            continue
        for place, name, group in zip(table.places, classes, labels_in(table, column, source), strict=True):
            if name is None:
                continue
            before, where = first.setdefault(name, (group, place))
            if group is None:
                slips.setdefault(name, f"class {name!r} has no {column} at {place}")
            elif group != before:
                slips.setdefault(
                    name, f"class {name!r} stands under {before!r} at {where} and under {group!r} at {place}"
                )
    return Level(column, {name: group for name, (group, _) in first.items()}, slips)
