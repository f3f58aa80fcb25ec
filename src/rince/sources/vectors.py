"""Vectors as samples: what a pretrained network has made of something, with labels, in files."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from rince.config import DataSettings
from rince.errors import DataError
from rince.hierarchy.class_lists import read_class_list
from rince.hierarchy.levels import no_own_paths
from rince.sources.part import TestPart, with_test_part
from rince.sources.source import InMemory, Source
from rince.sources.splits import SPLITS, balanced, chosen_classes
from rince.sources.vector_files import FORMATS, Levels, read_vector_file
from rince.views.vectors import VectorViewSettings


class VectorData(DataSettings):
    """`data.kind=vectors`."""

    view_settings: ClassVar[type[VectorViewSettings]] = VectorViewSettings
    encoder: ClassVar[str] = "adapter"

    kind: Literal["vectors"]
    source: str = Field(
        description="folder with a file for every split, such as train.npz and test.npz (or .safetensors, .parquet), "
        "or one file, which is all `train`"
    )

    test_part: TestPart = 0.2

    def open(self, split: str, views: VectorViewSettings, *, own_keys: int | None = None) -> Source:  # noqa: ARG002
        """The vectors of a split. Classes are those of all splits, so labels agree between them."""
        read = functools.partial(self._read, views)
        return with_test_part(self, self.test_part, split, _files(self.source), read)

    def _read(self, views: VectorViewSettings, split: str, limit: int | None) -> Vectors:
        read = {name: read_vector_file(path) for name, path in _files(self.source).items()}
        wanted = SPLITS.get(split, split)
        if wanted not in read:
            raise DataError(f"{self.source!r} has no split {split!r}; there are {', '.join(map(repr, read))}")
        widths = {vectors.shape[1] for vectors, _ in read.values()}
        if len(widths) > 1:
            raise DataError(f"the vectors of {self.source!r} differ in length between splits: {sorted(widths)}")
        paths = _paths([levels for _, levels in read.values()], self.source)
        names = tuple(paths)
        vectors, levels = read[wanted]
        number = {name: label for label, name in enumerate(names)}
        labels = torch.tensor([number[str(name)] for name in levels["class"].tolist()])
        rows = torch.arange(len(labels))
        if self.classes is not None:
            rows, labels, chosen = chosen_classes(
                labels,
                names,
                read_class_list(self.classes),
                list_name=self.classes,
                source=self.source,
                split=split,
            )
            names = tuple(names[label] for label in chosen)
        if limit is not None:
            kept = balanced(labels, limit)
            rows, labels = rows[kept], labels[kept]
        deep = len(next(iter(paths.values()))) > 1
        return Vectors(
            self.source, vectors[rows], labels, names, views, tuple(paths[n] for n in names) if deep else None
        )

    def find(self, place: str, views: VectorViewSettings) -> Vectors:
        """All vectors of a file, whatever they are labelled."""
        vectors, _ = read_vector_file(Path(place), needs_labels=False)
        return Vectors(place, vectors, torch.zeros(len(vectors), dtype=torch.int64), ("vector",), views)


@dataclass(frozen=True, eq=False)
class Vectors(InMemory):
    """Vectors in memory.

    Attributes:
        source: where they come from.
        vectors: `(samples, dim)` float32.
        labels: `(samples,)` int64.
        class_names: in label order.
        maker: what makes views of them.
        paths: of every class from the top down, if the files have more than one level.
    """

    thing: ClassVar[str] = "vector"

    source: str
    vectors: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    maker: VectorViewSettings
    paths: tuple[tuple[str, ...], ...] | None = None

    def __post_init__(self) -> None:
        bad = (~self.vectors.isfinite()).any(dim=1).nonzero()[:, 0]
        if len(bad):
            raise DataError(
                f"{self.source!r} holds NaN or infinity in {len(bad)} of {len(self.vectors)} vectors, the first "
                f"in row {bad[0]}"
            )

    @property
    def fingerprint(self) -> str:
        """sha256 over vectors, labels and class names."""
        digest = hashlib.sha256(repr((tuple(self.vectors.shape), self.class_names)).encode())
        digest.update(self.vectors.numpy().tobytes())
        digest.update(self.labels.numpy().tobytes())
        return digest.hexdigest()

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of a vector."""
        return (self.vectors.shape[1],)

    @property
    def rows(self) -> Tensor:
        """The vectors."""
        return self.vectors

    def view(self, rows: Tensor, *, seed: int, epoch: int, view: int, sample_ids: Tensor) -> Tensor:
        """Noise and dropout."""
        return self.maker.make(rows, seed=seed, epoch=epoch, view=view, sample_ids=sample_ids)

    def plain(self, ids: Tensor) -> Tensor:
        """The vectors themselves."""
        return self.vectors[ids]

    def own_paths(self, taxonomy: str) -> list[tuple[str, ...]]:
        """By the other levels that the files have."""
        if taxonomy != "column" or self.paths is None:
            raise no_own_paths(taxonomy, self.source)
        return list(self.paths)


def _files(source: str) -> dict[str, Path]:
    """Split → its file."""
    path = Path(source)
    if path.is_file():
        return {"train": path}
    if not path.is_dir():
        raise DataError(f"there is no file and no folder {source!r}; give a folder with train.npz and test.npz")
    found: dict[str, Path] = {}
    for file in sorted(each for each in path.iterdir() if each.suffix in FORMATS):
        split = SPLITS.get(file.stem.lower(), file.stem)
        if split in found:
            raise DataError(f"{source!r} has two files for split {split!r}, {found[split].name} and {file.name}")
        found[split] = file
    if not found:
        raise DataError(f"no file in {source!r} holds vectors: none ends in {' '.join(FORMATS)}")
    return found


def _paths(read: Sequence[Levels], source: str) -> dict[str, tuple[str, ...]]:
    """Class → its path, coarse levels first (the fewer groups, the coarser), from the levels of all splits."""
    if any(list(levels) != list(read[0]) for levels in read):
        raise DataError(f"the files of {source!r} do not have the same levels; write them alike")
    values = {name: [str(label) for levels in read for label in levels[name].tolist()] for name in read[0]}
    above = sorted((name for name in values if name != "class"), key=lambda name: len(set(values[name])))
    paths: dict[str, tuple[str, ...]] = {}
    for row, name in enumerate(values["class"]):
        path = (*(values[level][row] for level in above), name)
        if paths.setdefault(name, path) != path:
            raise DataError(
                f"class {name!r} of {source!r} stands under {'/'.join(paths[name][:-1])!r} and under "
                f"{'/'.join(path[:-1])!r}; a class has one place"
            )
    return {name: paths[name] for name in sorted(paths, key=_numeric_last)}


def _numeric_last(name: str) -> tuple[int, str]:
    """Numbers in their order, names in that of the alphabet."""
    return (int(name), "") if name.isdecimal() else (2**62, name)
