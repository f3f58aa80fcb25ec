"""Taxonomies as data files: YAML or CSV in, the path of every class out.

YAML is a nested mapping from the top down to lists of class names:

    clothing:
      tops: [T-shirt/top, Shirt]
      outerwear: [Coat]

To name the levels too, put that mapping under `tree` and the names, from the fine end, under `levels`. CSV has a header
with the names of the levels, from the top down; the last column is the class. Classes may stand less deep than others,
by the rule of `rince.ranks.even_paths`: in YAML a list may hold groups beside classes, `[Bag, {shoes: [Boot]}]`; in CSV
the cells between the class and its lowest group are left empty.
"""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import yaml

from rince.errors import DataError
from rince.ranks import even_paths

SHIPPED = ("cifar100", "fashion")
DEEPEST = 64  # far above any real taxonomy; a YAML alias that holds itself would never end


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


def load_taxonomy(source: str | Path) -> Taxonomy:
    """Reads a taxonomy.

    Args:
        source: a shipped name, `cifar100` or `fashion`, or the path of a `.yaml`, `.yml` or `.csv` file. A shipped name
            wins over a file of that name: write `./fashion` for the file.
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
    return _from_csv(text, name) if suffix == ".csv" else _from_yaml(text, name)


def _from_yaml(text: str, source: str) -> Taxonomy:
    try:
        _refuse_repeated_keys(yaml.compose(text, Loader=yaml.SafeLoader), source, set())
        content = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # the last of dates that are none
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or "it cannot be parsed"
        raise DataError(f"taxonomy {source!r} is not YAML{where}: {reason}") from error
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


def _refuse_repeated_keys(node: yaml.Node | None, source: str, seen: set[int]) -> None:
    """YAML keeps the last of two equal keys without a word, which would lose classes."""
    if node is None or id(node) in seen:  # an alias leads to a node that was seen
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            if key.value in keys:
                line = key.start_mark.line + 1
                raise DataError(f"taxonomy {source!r} has {key.value!r} twice, again in line {line}; merge the two")
            if isinstance(key.value, str):
                keys.add(key.value)
            _refuse_repeated_keys(value, source, seen)


def _walk(node: object, above: tuple[str, ...], source: str) -> Iterator[tuple[str, ...]]:
    place = f"{'/'.join(above)!r} of taxonomy {source!r}"
    if len(above) > DEEPEST:
        raise DataError(f"taxonomy {source!r} is deeper than {DEEPEST} levels; does an alias hold itself?")
    if not isinstance(node, dict | list):
        raise DataError(f"{place} must hold a mapping or a list of class names, got {node!r}")
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


def _from_csv(text: str, source: str) -> Taxonomy:
    try:
        numbered = [(number, row) for number, row in enumerate(csv.reader(io.StringIO(text), strict=True), start=1)]
    except csv.Error as error:
        raise DataError(f"taxonomy {source!r} is not CSV: {error}") from error
    rows = [(number, tuple(cell.strip() for cell in row)) for number, row in numbered if any(map(str.strip, row))]
    if len(rows) < 2:
        raise DataError(f"taxonomy {source!r} is empty; write a header, then one row per class with the class last")
    (_, header), *body = rows
    for number, row in body:
        if len(row) != len(header):
            raise DataError(
                f"row {number} of taxonomy {source!r} has {len(row)} cells, but the header has {len(header)}; "
                "a class without a group of some level has an empty cell there"
            )
    return _checked([_without_gap(row) for _, row in body], tuple(reversed(header)), source)


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
