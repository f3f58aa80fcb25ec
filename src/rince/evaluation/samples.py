"""Labelled vectors, of a run or from a file that any other library wrote."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rince.errors import DataError
from rince.ranks import TableRanks
from rince.sources.vector_files import read_vector_file


@dataclass(frozen=True)
class Samples:
    """Vectors and what they are called at every level of a taxonomy.

    Attributes:
        features: `(samples, dim)`: what is judged.
        levels: name of the level, the classes first → `(samples,)` int64.
        embeddings: `(samples, dim)` after the head, if that is known apart from the features.
        same: of a test set, `(samples,)`: the row of each in the training set, where it does not find itself; -1 where
            it is not there, None if none is.
    """

    features: Tensor
    levels: dict[str, Tensor]
    embeddings: Tensor | None = None
    same: Tensor | None = None

    @property
    def shared(self) -> int:
        """How many lie in the training set, too."""
        return 0 if self.same is None else int((self.same >= 0).sum())

    @property
    def labels(self) -> Tensor:
        """Of the classes."""
        return next(iter(self.levels.values()))


def ranks_of(*several: Samples) -> TableRanks:
    """Ranks from the levels: same class 1, same group of the next level 2, and so on."""
    levels = [torch.cat([samples.levels[name] for samples in several]) for name in several[0].levels]
    number = int(levels[0].max()) + 1
    groups = torch.full((number, len(levels)), -1, device=levels[0].device)
    for column, level in enumerate(levels):
        groups[levels[0], column] = level
    table = torch.zeros(number, number, dtype=torch.int8, device=levels[0].device)
    for rank, column in reversed(list(enumerate(groups.T, start=1))):
        table[(column[:, None] == column) & (column[:, None] >= 0)] = rank
    return TableRanks(table)


def read_samples(*paths: Path) -> list[Samples]:
    """Reads files of vectors and labels; labels of the same name mean the same in all of them.

    A file is `.npz`, `.safetensors` or `.parquet` (one row per sample, vectors in a list column). Vectors are called
    `features` or `embeddings`, classes `labels`; any other entry of one label per sample is a coarser level, in
    any order: the more groups, the finer. Labels are integers or, but for safetensors, text.
    """
    raw = [read_vector_file(path) for path in paths]
    names = list(raw[0][1])
    for path, (_, levels) in zip(paths, raw, strict=True):
        if list(levels) != names:
            raise DataError(f"{path} has the levels {', '.join(levels)}, and {paths[0]} has {', '.join(names)}")
    dims = [vectors.shape[1] for vectors, _ in raw]
    if len(set(dims)) > 1:
        raise DataError(f"vectors must have one length, got {dims[0]} in {paths[0]} and {dims[1]} in {paths[1]}")
    coded: list[dict[str, Tensor]] = [{} for _ in raw]
    for name in names:
        columns = [levels[name] for _, levels in raw]
        _, codes = np.unique(np.concatenate(columns), return_inverse=True)
        parts = np.split(codes.astype(np.int64), np.cumsum([len(column) for column in columns])[:-1])
        for codes_of, part in zip(coded, parts, strict=True):
            codes_of[name] = torch.from_numpy(part.copy())
    order = _nested({name: torch.cat([codes_of[name] for codes_of in coded]) for name in names}, paths[0])
    return [
        Samples(vectors, {name: codes_of[name] for name in order})
        for (vectors, _), codes_of in zip(raw, coded, strict=True)
    ]


def _nested(levels: dict[str, Tensor], path: Path) -> list[str]:
    """Names of the levels from fine to coarse; each group of one must lie in one group of the next."""
    order = ["class", *sorted((n for n in levels if n != "class"), key=lambda n: -len(levels[n].unique()))]
    for fine, coarse in itertools.pairwise(order):
        pairs = torch.stack([levels[fine], levels[coarse]], dim=1).unique(dim=0)
        if len(pairs) > len(levels[fine].unique()):
            raise DataError(
                f"{coarse} of {path} is no level above {fine}: samples of one {fine} differ in it; take it out of the "
                "file, or give it a matrix of its own"
            )
    return order
