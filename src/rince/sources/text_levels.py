"""What the columns of tables of texts say of their classes: the label of a row, and the groups above a class."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rince.errors import DataError
from rince.sources.tables import Level, chosen_levels, level_candidates
from rince.sources.text_files import Table

Labels = list[str | None]


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


def levels_of(
    tables: Mapping[str, tuple[Table, Labels]],
    names: Sequence[str],
    asked: Sequence[str] | None,
    *,
    text_column: str,
    label_column: str,
    source: str,
) -> tuple[list[Level], list[str]]:
    """The levels above the classes, coarse first, and why columns that could have been levels are none.

    Args:
        tables: of every split, with the class of every row.
        names: the classes.
        asked: columns of the levels above the class; None for all that give every class one group.
        text_column: is no level.
        label_column: is the class.
        source: for messages.
    """
    there = dict.fromkeys(column for table, _ in tables.values() for column in table.columns)
    absent = next((column for column in asked or () if column not in there), None)
    if absent is not None:
        raise DataError(f"{source!r} has no level column {absent!r}: its columns are {', '.join(map(repr, there))}")
    found = []
    for column in level_candidates(there, asked, label_column, (text_column,)):
        try:
            found.append(_level(tables, column, source))
        except DataError:
            if asked is not None:
                raise  # else it holds no labels, and is no level
    return chosen_levels(found, names, guessed=asked is None, source=source)


def _level(tables: Mapping[str, tuple[Table, Labels]], column: str, source: str) -> Level:
    first: dict[str, tuple[str, str]] = {}
    empty: dict[str, str] = {}  # class → the first of its rows that leaves the column empty
    values: set[str] = set()
    slips: list[str] = []
    for table, classes in tables.values():
        if column not in table.columns:
            continue
        for place, name, group in zip(table.places, classes, labels_in(table, column, source), strict=True):
            if group is not None:
                values.add(group)
            if name is None:
                continue
            if group is None:
                empty.setdefault(name, place)
                continue
            before, where = first.setdefault(name, (group, place))
            if group != before:
                slips.append(f"class {name!r} stands under {before!r} at {where} and under {group!r} at {place}")
    slips += [
        f"class {name!r} has no {column} at {place}, and stands under {first[name][0]!r} at {first[name][1]}"
        for name, place in empty.items()
        if name in first
    ]
    groups = {name: group for name, (group, _) in first.items()}
    higher = frozenset(empty.keys() - first.keys())
    groups |= {name: name for name in higher}
    return Level(column, groups, len(values | higher), next(iter(slips), ""), higher)
