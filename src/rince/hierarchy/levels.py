"""Levels of a taxonomy: the path of every class, from what the data says of itself or from a taxonomy file."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from rince.errors import DataError
from rince.hierarchy.taxonomy import SHIPPED, load_taxonomy
from rince.ranks import even_paths

OWN = ("column", "folders")  # taxonomies that stand in the data


class NoLevelsError(DataError):
    """Data that could have levels above its classes has none: nothing is wrong where nobody needs them."""


class HasClasses(Protocol):
    """What has to be known of samples to find their classes in a taxonomy."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names in label order."""
        ...

    def own_paths(self, taxonomy: str) -> list[tuple[str, ...]]:
        """The paths of the classes by `"column"` or `"folders"`; a DataError where the data does not tell.

        A NoLevelsError where it has classes and nothing above them.
        """
        ...


def class_paths(samples: HasClasses, taxonomy: str) -> list[tuple[str, ...]]:
    """One path per class from the top down, in label order, all of one length by the rule of `even_paths`.

    Args:
        samples: with their classes.
        taxonomy: "column" (the superclass column of the data), "folders" (its nested folders), "none" (each class
            alone, so all others are negatives), a shipped name such as "cifar100", or the path of a YAML or CSV file.
            Of data that has no column or folder above the classes, each class stands alone; see `check_levels`.
    """
    if taxonomy in OWN:
        try:
            return even_paths(samples.own_paths(taxonomy))
        except NoLevelsError:
            taxonomy = "none"
    if taxonomy == "none":
        return [(name,) for name in samples.class_names]
    return load_taxonomy(taxonomy, samples.class_names).paths_for(samples.class_names)


def check_levels(samples: HasClasses, taxonomy: str) -> None:
    """Refuses data that should have a taxonomy in itself and has none, where that is needed."""
    if taxonomy in OWN:
        samples.own_paths(taxonomy)


def no_own_paths(taxonomy: str, source: str) -> DataError:
    """The error of data that does not have this taxonomy in itself."""
    others = f"use a taxonomy file, a shipped one ({', '.join(SHIPPED)}), or 'none'"
    if taxonomy == "folders":
        return DataError(f"taxonomy 'folders' needs nested class folders, and {source!r} has none; {others}")
    return DataError(
        f"taxonomy 'column' needs a superclass column, and {source!r} has none; name it with data.superclass_column, "
        f"or {others}"
    )


def column_paths(
    names: Sequence[str], superclasses: Tensor, superclass_names: Sequence[str], source: str
) -> list[tuple[str, ...]]:
    """Paths by a superclass column; -1 in `superclasses` is a class of which no sample tells."""
    above = superclasses.tolist()
    unknown = [name for name, superclass in zip(names, above, strict=True) if superclass < 0]
    if unknown:
        raise DataError(
            f"{source!r} has no sample of {', '.join(map(repr, unknown))}, so its superclass column does not tell "
            f"where they belong; use a taxonomy file, a shipped one ({', '.join(SHIPPED)}), or 'none'"
        )
    return [(superclass_names[up], name) for name, up in zip(names, above, strict=True)]


def class_levels(samples: HasClasses, taxonomy: str) -> dict[str, list[str]]:
    """The levels of the taxonomy from the fine end: name of the level → the group of every class, in label order.

    Groups are named by their whole path, so that two of one name stay two.
    """
    paths = class_paths(samples, taxonomy)
    depth = len(paths[0])
    named = () if taxonomy in ("none", *OWN) else load_taxonomy(taxonomy, samples.class_names).levels
    if not named:
        named = (
            ("class", "superclass")
            if depth <= 2
            else tuple(f"level{n}" if n > 1 else "class" for n in range(1, depth + 1))
        )
    return {name: ["/".join(path[: depth - up]) for path in paths] for up, name in enumerate(named[:depth])}


def uneven_note(paths: Sequence[tuple[str, ...]]) -> str:
    """Says how many classes stand less deep than others, as `class_paths` gives them; empty if none does."""
    members = Counter(path[:up] for path in paths for up in range(len(path)))
    higher = []
    for path in paths:
        height = 0
        while path[-height - 2 : -height - 1] == path[-1:] and members[path[: -height - 1]] == 1:
            height += 1
        higher += [height] if height else []
    if not higher:
        return ""
    most = "one level" if max(higher) == 1 else f"up to {max(higher)} levels"
    return f"{len(higher)} of {len(paths)} classes stand {most} higher; each counts as its own group there"


def single_note(paths: Sequence[tuple[str, ...]], level_names: Sequence[str]) -> str:
    """Says that a level above the classes has all of them in one group; empty if none has."""
    depth = len(level_names)
    for up, level in enumerate(level_names[1:], start=1):
        groups = {path[: depth - up] for path in paths}
        if len(paths) > 1 and len(groups) == 1:
            group = "/".join(groups.pop())
            return f"all classes are in one group, {group!r}: {level} is always right, and its rank has no negatives"
    return ""


def levels_fingerprint(levels: dict[str, list[str]]) -> str:
    """sha256 of what `class_levels` gives: results are of this grouping of the classes."""
    return hashlib.sha256(json.dumps(levels).encode()).hexdigest()


def group_numbers(groups: list[str]) -> Tensor:
    """`(classes,)`: a number for the group of every class, by order of appearance."""
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    return torch.tensor([numbers[group] for group in groups])
