"""Levels of a taxonomy: the path of every class, from what the data says of itself or from a taxonomy file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from rince.errors import DataError
from rince.hierarchy.taxonomy import SHIPPED, load_taxonomy

OWN = ("column", "folders")  # taxonomies that stand in the data


class HasClasses(Protocol):
    """What has to be known of samples to find their classes in a taxonomy."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names in label order."""
        ...

    def own_paths(self, taxonomy: str) -> list[tuple[str, ...]]:
        """The paths of the classes by `"column"` or `"folders"`; a DataError where the data does not tell."""
        ...


def class_paths(samples: HasClasses, taxonomy: str) -> list[tuple[str, ...]]:
    """One path per class from the top down, in label order, for `rince.TableRanks.from_tree`.

    Args:
        samples: with their classes.
        taxonomy: "column" (the superclass column of the data), "folders" (its nested folders), "none" (each class
            alone, so all others are negatives), a shipped name such as "cifar100", or the path of a YAML or CSV file.
    """
    if taxonomy == "none":
        return [(name,) for name in samples.class_names]
    if taxonomy in OWN:
        return samples.own_paths(taxonomy)
    return load_taxonomy(taxonomy).paths_for(samples.class_names)


def no_own_paths(taxonomy: str, source: str) -> DataError:
    """The error of data that does not have this taxonomy in itself."""
    others = f"use a taxonomy file, a shipped one ({', '.join(SHIPPED)}), or 'none'"
    if taxonomy == "folders":
        return DataError(f"taxonomy 'folders' needs nested class folders, and {source!r} has none; {others}")
    return DataError(
        f"taxonomy 'column' needs a superclass column, and {source!r} has none; name it with superclass_column, or "
        f"{others}"
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

    Groups are named by their whole path, so that two of one name stay two. A class that stands less deep than others
    is its own group until its top is reached.
    """
    paths = class_paths(samples, taxonomy)
    depth = max(map(len, paths))
    named = () if taxonomy in ("none", *OWN) else load_taxonomy(taxonomy).levels
    if not named:
        named = (
            ("class", "superclass")
            if depth <= 2
            else tuple(f"level{n}" if n > 1 else "class" for n in range(1, depth + 1))
        )
    return {name: ["/".join(path[: max(1, len(path) - up)]) for path in paths] for up, name in enumerate(named[:depth])}


def levels_fingerprint(levels: dict[str, list[str]]) -> str:
    """sha256 of what `class_levels` gives: results are of this grouping of the classes."""
    return hashlib.sha256(json.dumps(levels).encode()).hexdigest()


def group_numbers(groups: list[str]) -> Tensor:
    """`(classes,)`: a number for the group of every class, by order of appearance."""
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    return torch.tensor([numbers[group] for group in groups])
