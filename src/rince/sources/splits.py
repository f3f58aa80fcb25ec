"""Splits of data: what their folders and files are called, parts of them, and a balanced few of their samples."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from rince.errors import DataError
from rince.sources.folders import listed
from rince.terminal import mention

# Folder and file names that mean a split, and the one name we give it.
SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}


def split_part(split: str) -> tuple[str, slice | None]:
    """`val[:40]` → the split, and which images of every class."""
    found = re.fullmatch(r"(.+)\[(\d*):(\d*)\]", split)
    if found is None:
        return split, None
    return found[1], slice(*(int(end) if end else None for end in found.groups()[1:]))


def split_folders(root: Path, names: Mapping[str, str] = SPLITS) -> dict[str, Path]:
    """Split → its folder, of the folders on top that are named like splits; empty if none is."""
    found: dict[str, Path] = {}
    with listed(root) as entries:
        folders = sorted(root / entry.name for entry in entries if entry.is_dir())
    for folder in folders:
        known = names.get(folder.name.lower())
        if known in found:
            first = found[known].name
            raise DataError(f"{str(root)!r} has two folders for split {known!r}, {first!r} and {folder.name!r}")
        if known:
            found[known] = folder
    return found


def lower_places(splits: Mapping[str, set[tuple[str, ...]]]) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Classes that stand higher in one split than in another, each with its lower place, which is taken for both.

    `vegetables/champignon` in train and `vegetables/mushroom/champignon` in test are one class, if neither split has
    both: the same name at the end, and groups left out on the way there.

    Args:
        splits: split → the paths of its classes from the top down.
    """
    by_name: dict[str, list[tuple[str, ...]]] = {}
    for path in sorted(set().union(*splits.values())):
        by_name.setdefault(path[-1], []).append(path)
    found = {}
    for path in (path for places in by_name.values() if len(places) > 1 for path in places):
        lower = [
            other
            for other in by_name[path[-1]]
            if other != path
            and _leaves_out(path, other)
            and not any(path in there and other in there for there in splits.values())
        ]
        if len(lower) == 1:
            found[path] = lower[0]
    return found


def _leaves_out(path: tuple[str, ...], longer: tuple[str, ...]) -> bool:
    rest = iter(longer)
    return all(part in rest for part in path)


def tell_split(place: str, taken: str, there: Iterable[str]) -> None:
    """Says which of several splits is taken of a place where nobody named one."""
    left = " and ".join(repr(split) for split in there if split != taken)
    if left:
        mention(f"{place}: its split {taken!r} alone, not {left}; --split, or the file of another, takes that")


def set_name(source: str | Path) -> str:
    """What to call the data of a source: the folder it lies in, or the last part of its name."""
    path = Path(source).resolve()
    return path.parent.name if path.suffix == ".csv" else path.name


def other_set(source: str, own: str) -> str:
    """What results call data that a run is judged on; empty for the run's own, whose numbers need no name."""
    return "" if Path(source).resolve() == Path(own).resolve() else set_name(source)


def class_order(name: str) -> tuple[int, str]:
    """Sorts names of classes: numbers in their order, names in that of the alphabet."""
    return (int(name), "") if name.isdecimal() else (2**62, name)


def places_in_class(labels: Tensor) -> Tensor:
    """`(samples,)`: how many samples of its class come before each."""
    order = labels.argsort(stable=True)
    counts = labels.bincount()
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    return places


def balanced(labels: Tensor, limit: int) -> Tensor:
    """Rows, rising, of the first samples of every class, as many of each as make `limit`."""
    return places_in_class(labels).argsort(stable=True)[:limit].sort().values


def chosen_by_name(names: Sequence[str], labels: Tensor, share: float, *, salt: str = "") -> Tensor:
    """Rows, rising, of a share of every class: the samples whose names have the smallest sha256.

    A function of names and classes alone, whatever order or place the data has; a larger share takes the same samples
    and more. Counts are rounded, but a class of two or more gives at least one and keeps at least one.

    Args:
        names: of the samples.
        labels: `(samples,)`, their classes.
        share: of every class, from 0 to below 1.
        salt: goes before every name, so that two choices have nothing to do with each other.
    """
    digests = [hashlib.sha256(f"{salt}{name}".encode(errors="surrogateescape")).digest() for name in names]
    by_digest = torch.tensor(sorted(range(len(names)), key=digests.__getitem__), dtype=torch.int64)
    places = torch.empty_like(by_digest)
    places[by_digest] = places_in_class(labels[by_digest])
    counts = labels.bincount()
    wanted = (share * counts.double() + 0.5).floor().long().clamp(min=1)
    wanted = torch.minimum(wanted, counts - 1) if share > 0 else torch.zeros_like(counts)
    return (places < wanted[labels]).nonzero()[:, 0]


def names_digest(names: Iterable[str]) -> str:
    """sha256 of names, in whatever order they come."""
    return hashlib.sha256("\n".join(sorted(names)).encode(errors="surrogateescape")).hexdigest()


def chosen_classes(
    labels: Tensor, class_names: Sequence[str], wanted: Sequence[str], *, list_name: str, source: str, split: str
) -> tuple[Tensor, Tensor, list[int]]:
    """Rows of the samples of some classes, their new labels from 0, and which classes these were.

    Args:
        labels: `(samples,)`.
        class_names: in label order; those that stay keep their order.
        wanted: names to keep.
        list_name: what to call them in a message.
        source: likewise, the data.
        split: likewise.
    """
    absent = [name for name in wanted if name not in class_names]
    if absent:
        raise DataError(
            f"{source!r} lacks {len(absent)} of the {len(wanted)} classes of {list_name!r}, {absent[0]!r} first; its "
            f"{len(class_names)} classes are called like {class_names[0]!r}"
        )
    chosen = [label for label, name in enumerate(class_names) if name in set(wanted)]
    renumbered = torch.full((len(class_names),), -1)
    renumbered[chosen] = torch.arange(len(chosen))
    kept = (renumbered[labels] >= 0).nonzero()[:, 0]
    if len(kept) == 0:
        raise DataError(f"split {split!r} of {source!r} has nothing of the classes of {list_name!r}")
    return kept, renumbered[labels[kept]], chosen
