"""The path of every class, from what the images say of themselves or from a taxonomy file."""

from __future__ import annotations

import torch
from torch import Tensor

from rince.sources.image_files import LargeImages
from rince.sources.images import ImageSet
from rince.sources.videos import VideoSet
from rince.errors import DataError
from rince.hierarchy.taxonomy import SHIPPED, load_taxonomy


def class_paths(images: ImageSet | LargeImages | VideoSet, taxonomy: str) -> list[tuple[str, ...]]:
    """One path per class from the top down, in label order, for `rince.TableRanks.from_tree`.

    Args:
        images: what `load_images` gave.
        taxonomy: "column" (the superclass column of the data), "folders" (its nested folders), "none" (each class
            alone, so all others are negatives), a shipped name such as "cifar100", or the path of a YAML or CSV file.
    """
    others = f"use a taxonomy file, a shipped one ({', '.join(SHIPPED)}), or 'none'"
    if taxonomy == "none":
        return [(name,) for name in images.class_names]
    if taxonomy == "folders":
        if images.folder_paths is None:
            raise DataError(f"taxonomy 'folders' needs nested class folders, and {images.source!r} has none; {others}")
        return list(images.folder_paths)
    if taxonomy != "column":
        return load_taxonomy(taxonomy).paths_for(images.class_names)
    if images.superclasses is None:
        raise DataError(
            f"taxonomy 'column' needs a superclass column, and {images.source!r} has none; "
            f"name it with superclass_column, or {others}"
        )
    above = images.superclasses.tolist()
    unknown = [name for name, superclass in zip(images.class_names, above, strict=True) if superclass < 0]
    if unknown:
        raise DataError(
            f"{images.source!r} has no sample of {', '.join(map(repr, unknown))}, so its superclass column does not "
            f"tell where they belong; {others}"
        )
    return [(images.superclass_names[up], name) for name, up in zip(images.class_names, above, strict=True)]


def class_levels(images: ImageSet | LargeImages | VideoSet, taxonomy: str) -> dict[str, list[str]]:
    """The levels of the taxonomy from the fine end: name of the level → the group of every class, in label order.

    Groups are named by their whole path, so that two of one name stay two. A class that stands less deep than others
    is its own group until its top is reached.
    """
    paths = class_paths(images, taxonomy)
    depth = max(map(len, paths))
    named = () if taxonomy in ("none", "folders", "column") else load_taxonomy(taxonomy).levels
    if not named:
        named = (
            ("class", "superclass")
            if depth <= 2
            else tuple(f"level{n}" if n > 1 else "class" for n in range(1, depth + 1))
        )
    return {name: ["/".join(path[: max(1, len(path) - up)]) for path in paths] for up, name in enumerate(named[:depth])}


def group_numbers(groups: list[str]) -> Tensor:
    """`(classes,)`: a number for the group of every class, by order of appearance."""
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    return torch.tensor([numbers[group] for group in groups])
