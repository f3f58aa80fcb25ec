"""Labelled vectors, of a run or from a file that any other library wrote."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rince.errors import DataError
from rince.hierarchy.levels import class_levels, group_numbers
from rince.hierarchy.number_files import read_matrix
from rince.ranks import TableRanks
from rince.sources.source import alike_note
from rince.sources.vector_files import Part, open_vector_file
from rince.sources.vector_levels import read_classes
from rince.sources.vectors import labelled_vectors
from rince.terminal import Say, nobody


@dataclass(frozen=True)
class Samples:
    """Vectors and what they are called at every level of a taxonomy.

    Attributes:
        features: `(samples, dim)`: what is judged.
        levels: name of the level, the classes first → `(samples,)` int64.
        embeddings: `(samples, dim)` after the head, if that is known apart from the features.
        same: of a test set, `(samples,)`: the row of each in the training set, where it does not find itself; -1 where
            it is not there, None if none is.
        class_names: in label order; empty if nobody knows.
    """

    features: Tensor
    levels: dict[str, Tensor]
    embeddings: Tensor | None = None
    same: Tensor | None = None
    class_names: tuple[str, ...] = ()

    @property
    def shared(self) -> int:
        """How many lie in the training set, too."""
        return 0 if self.same is None else int((self.same >= 0).sum())

    @property
    def labels(self) -> Tensor:
        """Of the classes."""
        return next(iter(self.levels.values()))


def unseen_in(train: Samples, test: Samples) -> dict[str, int]:
    """Classes of the test set that the training set lacks → how many test samples they have."""
    labels, counts = test.labels.cpu().unique(return_counts=True)
    absent = ~torch.isin(labels, train.labels.cpu())
    pairs = zip(labels[absent].tolist(), counts[absent].tolist(), strict=True)
    return {test.class_names[label] if test.class_names else str(label): count for label, count in pairs}


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


def read_samples(*paths: Path, taxonomy: str | None = None, say: Say = nobody) -> list[Samples]:
    """Reads files of vectors and labels, as `data.kind=vectors` does; a label means the same in all of them.

    Args:
        paths: of the files.
        taxonomy: what the classes are grouped by: `"column"`, the other columns that the files have; a shipped name or
            a taxonomy file; `"none"`. By default the columns, if there are any.
        say: is told what a person should know of the files.
    """
    files = [open_vector_file(path) for path in paths]
    classes = read_classes(files)
    widths = [file.matrix.width for file in files]
    if len(set(widths)) > 1:
        raise DataError(f"vectors must have one length, got {widths[0]} in {paths[0]} and {widths[1]} in {paths[1]}")
    sources = [labelled_vectors(str(file.path), [Part(file)], classes, files) for file in files]
    for source in sources:
        for note in source.notes():
            say(f"{source.source}: {note}")
    alike = alike_note(classes.names)
    if alike:
        say(alike)
    if taxonomy in (None, "column"):
        if taxonomy == "column":
            sources[0].own_paths(taxonomy)  # is refused if there are none
        levels = {"class": list(classes.names), **dict(reversed(classes.above.items()))}
    else:
        levels = class_levels(sources[0], taxonomy)
    groups = {name: group_numbers(of_class) for name, of_class in levels.items()}
    return [
        Samples(
            source.vectors,
            {name: numbers[source.labels] for name, numbers in groups.items()},
            class_names=tuple(classes.names),
        )
        for source in sources
    ]


def read_outliers(path: Path, width: int) -> Tensor:
    """`(samples, width)`: the vectors of a file, whatever they are labelled."""
    file = open_vector_file(path)
    if file.matrix.width != width:
        raise DataError(
            f"outliers must be vectors of the length {width}, as all others; {path} has {file.matrix.width}"
        )
    return labelled_vectors(str(path), [Part(file)], None, [file]).vectors


def read_gains(path: Path, test: int, train: int) -> Tensor:
    """`(test, train)`: the gains in a `.npy` or `.npz` file."""
    gains = read_matrix(path)
    if gains.shape != (test, train):
        raise DataError(
            f"gains are a row for each of {test:,} test vectors and a column for each of {train:,} training vectors; "
            f"{path} has {len(gains):,} rows and {gains.shape[1]:,} columns"
        )
    if not bool(gains.isfinite().all()) or bool((gains < 0).any()):
        raise DataError(f"gains must be finite numbers of 0 or more; {path} has others")
    return gains
