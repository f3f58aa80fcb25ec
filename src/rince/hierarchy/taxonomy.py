"""Taxonomies as data files: YAML or CSV in, the path of every class out.

YAML is a nested mapping from the top down to lists of class names:

    clothing:
      tops: [T-shirt/top, Shirt]
      outerwear: [Coat]

To name the levels too, put that mapping under `tree` and the names, from the fine end, under `levels`. CSV has a header
with the names of the levels, from the top down, the class last; or the other way round. Which column has the classes is
seen by the names of the data's classes, else by the header (`class`, `label`, …), else by where no name stands twice.
Classes may stand less deep than others, by the rule of `rince.ranks.even_paths`: in YAML a list may hold groups beside
classes, `[Bag, {shoes: [Boot]}]`; in CSV the cells between the class and its lowest group are left empty.
"""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from rince.config.plain_yaml import NotPlainYamlError, load_yaml
from rince.errors import DataError, shown
from rince.files import csv_delimiter
from rince.ranks import even_paths
from rince.terminal import mention

SHIPPED = ("cifar100", "fashion")
# What the column of the classes is called in a CSV file, in whatever case.
CLASS_HEADERS = {"class", "classes", "class name", "class_name", "fine", "fine_label", "label", "leaf", "name"}


@dataclass(frozen=True)
class Taxonomy:
    """The path of every class, from the top down, and where it was read.

    Attributes:
        paths: class name → path that ends in the class name, all of one length.
        levels: names of the levels from the fine end, such as `("class", "superclass")`; empty if the file has none.
        source: the shipped name or the file, for messages.

    Example:
        >>> load_taxonomy("fashion").paths_for(["Bag", "Shirt"])
        [('accessories', 'bags', 'Bag'), ('clothing', 'tops', 'Shirt')]
    """

    paths: dict[str, tuple[str, ...]]
    levels: tuple[str, ...] = ()
    source: str = "taxonomy"

    def paths_for(self, class_names: Sequence[str]) -> list[tuple[str, ...]]:
        """The paths of these classes, in their order, as `TableRanks.from_tree` takes them."""
        absent = [name for name in class_names if name not in self.paths]
        if absent:
            named = ", ".join(self._with_guess(name) for name in absent)
            raise DataError(
                f"taxonomy {self.source!r} lacks {len(absent)} of {len(class_names)} classes: {named}; "
                "add them to it, or use the taxonomy of these data"
            )
        return [self.paths[name] for name in class_names]

    def _with_guess(self, name: str) -> str:
        close = difflib.get_close_matches(name, self.paths, n=1)
        return f"{name!r} (did you mean {close[0]!r}?)" if close else repr(name)


def load_taxonomy(source: str | Path, class_names: Sequence[str] = ()) -> Taxonomy:
    """Reads a taxonomy.

    Args:
        source: a shipped name, `cifar100` or `fashion`, or the path of a `.yaml`, `.yml` or `.csv` file. A shipped name
            wins over a file of that name: write `./fashion` for the file.
        class_names: of the data, by which the column of the classes of a CSV file is known.
    """
    name = str(source)
    if name in SHIPPED:
        return _from_yaml((files("rince") / f"hierarchy/{name}.yaml").read_text("utf-8"), name)
    path = Path(source)
    if not path.is_file():
        close = difflib.get_close_matches(name, SHIPPED, n=1)
        guess = f"did you mean {close[0]!r}? " if close else ""
        raise DataError(f"taxonomy {name!r} is no file; {guess}give the path of a file, or one of {', '.join(SHIPPED)}")
    suffix = path.suffix.lower()
    if suffix not in {".yaml", ".yml", ".csv"}:
        raise DataError(f"taxonomy {name!r} must end in .yaml, .yml or .csv, so that one can tell how to read it")
    try:
        text = path.read_text("utf-8-sig")  # spreadsheets put a byte order mark before their CSV
    except UnicodeDecodeError as error:
        raise DataError(f"taxonomy {name!r} is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    return _from_csv(text, name, class_names) if suffix == ".csv" else _from_yaml(text, name)


def _from_yaml(text: str, source: str) -> Taxonomy:
    try:
        content = load_yaml(text)
    except NotPlainYamlError as error:
        raise DataError(f"taxonomy {source!r} is not valid YAML: {error}") from None
    levels: object = []
    if isinstance(content, dict) and set(content) == {"levels", "tree"}:
        content, levels = content["tree"], content["levels"]
    if not isinstance(levels, list) or not all(isinstance(level, str) for level in levels):
        raise DataError(f"levels of taxonomy {source!r} must be a list of names from the fine end, got {levels!r}")
    if not content:
        raise DataError(f"taxonomy {source!r} is empty; write a mapping from groups to lists of class names")
    if not isinstance(content, dict):
        raise DataError(
            f"taxonomy {source!r} must be a mapping from groups to lists of class names, "
            f"got a {type(content).__name__} at the top"
        )
    return _checked(list(_walk(content, (), source)), tuple(levels), source)


def _walk(node: object, above: tuple[str, ...], source: str) -> Iterator[tuple[str, ...]]:
    place = f"{'/'.join(above)!r} of taxonomy {source!r}"
    if not isinstance(node, dict | list):
        raise DataError(f"{place} must hold a mapping or a list of class names, got {shown(node)}")
    if not node:
        raise DataError(f"{place} is empty; give it a list of class names, or take it out")
    for name in node:
        if not isinstance(name, str | dict):
            raise DataError(f"{place if above else repr(source)} holds {name!r}, which YAML reads as no name; quote it")
        if isinstance(name, dict):
            yield from _walk(name, above, source)
        elif isinstance(node, dict):
            yield from _walk(node[name], (*above, name), source)
        else:
            yield (*above, name)


def _from_csv(text: str, source: str, class_names: Sequence[str]) -> Taxonomy:
    try:
        reader = csv.reader(io.StringIO(text), delimiter=csv_delimiter(text), strict=True)
        numbered = list(enumerate(reader, start=1))
    except csv.Error as error:
        raise DataError(f"taxonomy {source!r} is not CSV: {error}") from error
    rows = [(number, tuple(cell.strip() for cell in row)) for number, row in numbered if any(map(str.strip, row))]
    if len(rows) < 2:
        raise DataError(f"taxonomy {source!r} is empty; write a header, then one row per class with the class last")
    (_, header), *body = rows
    classes = set(map(str, class_names)) - {cell for _, row in body for cell in row}
    if lost := next((cell for cell in header if cell in classes), None):
        raise DataError(
            f"the first line of taxonomy {source!r} has the class {lost!r}, but is read as the header; write one above "
            "it, such as superclass,class"
        )
    for number, row in body:
        if len(row) != len(header):
            raise DataError(
                f"row {number} of taxonomy {source!r} has {len(row)} cells, but the header has {len(header)}; "
                "a class without a group of some level has an empty cell there"
            )
    if _class_comes_first(header, [row for _, row in body], class_names, source):
        header, body = header[::-1], [(number, row[::-1]) for number, row in body]
    return _checked([_without_gap(row) for _, row in body], tuple(reversed(header)), source)


def _class_comes_first(
    header: tuple[str, ...], rows: Sequence[tuple[str, ...]], class_names: Sequence[str], source: str
) -> bool:
    """Whether the classes stand in the first column, not in the last."""
    if len(header) == 1:
        return False
    ends = (0, -1)
    known = set(map(str, class_names))
    found = [len(known & {row[end] for row in rows}) for end in ends]
    called = [header[end].lower() in CLASS_HEADERS for end in ends]
    single = [len({row[end] for row in rows}) == len(rows) for end in ends]
    for signs in (found, called, single):
        if signs[0] != signs[1]:
            first = signs[0] > signs[1]
            if first and not called[0]:
                tell_column(source, header[0])
            return first
    if any(found) or any(called) or not all(single) or len(rows) == 1:
        return False
    raise DataError(
        f"taxonomy {source!r} has one class in every group, and nobody can tell whether {header[0]!r} or "
        f"{header[-1]!r} is the column of the classes; call that one 'class'"
    )


@cache
def tell_column(source: str, column: str) -> None:
    """Says, once, which column the classes were taken from, where that is not the usual one."""
    mention(f"taxonomy {source}: its first column, {column!r}, has the classes, and the groups follow")


def _without_gap(row: tuple[str, ...]) -> tuple[str, ...]:
    """`fruit,,banana` is the class banana right below fruit."""
    *groups, name = row
    while len(groups) > 1 and not groups[-1]:
        groups.pop()
    return (*groups, name)


def _checked(paths: list[tuple[str, ...]], levels: tuple[str, ...], source: str) -> Taxonomy:
    by_class: dict[str, tuple[str, ...]] = {}
    for path in paths:
        name = path[-1]
        if not all(path):
            raise DataError(f"path {'/'.join(path)!r} of taxonomy {source!r} has an empty part; name every level")
        if name in by_class:
            raise DataError(
                f"class {name!r} stands twice in taxonomy {source!r}, under {'/'.join(by_class[name])!r} and "
                f"{'/'.join(path)!r}; keep one"
            )
        by_class[name] = path
    longest = max(paths, key=len)
    if levels and len(levels) != len(longest):
        raise DataError(
            f"levels of taxonomy {source!r} names {len(levels)} levels, {', '.join(levels)}, "
            f"but its paths have {len(longest)}, such as {'/'.join(longest)!r}"
        )
    return Taxonomy(dict(zip(by_class, even_paths(list(by_class.values())), strict=True)), levels, source)
