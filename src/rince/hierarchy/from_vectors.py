"""Ranks from vectors that a user brings: of classes, of samples, clustered, or positions in space and time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from rince.config import RankSettings
from rince.config.section import Falling, FallingCounts, Names, Rising, RisingCounts
from rince.errors import ConfigError, DataError
from rince.hierarchy.given import Ranked
from rince.hierarchy.number_files import read_columns, read_matrix, read_vectors
from rince.inputs import unit_rows
from rince.ranks import TableRanks
from rince.sample_ranks import SampleRanks


class EmbeddingSettings(RankSettings):
    """`ranks.kind=embedding`: how near classes, or samples, are in an embedding of your own."""

    kind: Literal["embedding"]
    file: str = Field(description=".npy or .npz with a vector per class, or per training sample")
    per: Literal["class", "sample"] = Field(
        "class", description="whether the file has a vector per class or per sample"
    )
    thresholds: Falling | None = Field(None, description="smallest cosine of ranks 2, 3, …")
    nearest: RisingCounts | None = Field(None, description="or: how many neighbours ranks 2, 3, … reach up to")

    @model_validator(mode="after")
    def _one_of_two(self) -> EmbeddingSettings:
        if (self.thresholds is None) == (self.nearest is None):
            raise ValueError("give either thresholds or nearest")
        return self

    def similarity(self, class_names: Sequence[str]) -> Tensor | None:
        """`(classes, classes)` cosines; None for vectors of samples."""
        return None if self.per == "sample" else self._cosines(class_names)

    def _cosines(self, class_names: Sequence[str]) -> Tensor:
        vectors = unit_rows(read_vectors(Path(self.file), class_names))
        similarity = vectors @ vectors.T
        return (similarity + similarity.T) / 2

    def build(self, given: Ranked) -> TableRanks | SampleRanks:
        """The same class, or sample, 1; the nearest others 2, and so on."""
        if self.per == "sample":
            return self._of_samples(given.samples)
        similarity = self._cosines(given.class_names)
        if self.thresholds:
            return TableRanks.from_similarity(similarity, self.thresholds)
        table = torch.zeros(similarity.shape, dtype=torch.int8)
        order = similarity.fill_diagonal_(-torch.inf).argsort(dim=1, descending=True)
        for rank, count in reversed(list(enumerate(self.nearest or [], start=2))):
            table.scatter_(1, order[:, :count], rank)
        return TableRanks(table.fill_diagonal_(1))

    def _of_samples(self, samples: int) -> SampleRanks:
        vectors = read_matrix(Path(self.file))
        if len(vectors) != samples:
            raise DataError(f"{self.file} holds {len(vectors):,} vectors for {samples:,} training images; one for each")
        if self.nearest:
            return SampleRanks.from_neighbours(vectors, self.nearest)
        return SampleRanks(vectors, self.thresholds or [])


class ClustersSettings(RankSettings):
    """`ranks.kind=clusters`: clusters of classes in an embedding of your own, at several granularities."""

    kind: Literal["clusters"]
    file: str = Field(description=".npy or .npz with a vector per class")
    counts: FallingCounts = Field(description="clusters of the classes, then clusters of those, …")
    method: Literal["kmeans", "agglomerative"] = Field("agglomerative", description="how clusters are found")

    def build(self, given: Ranked) -> TableRanks:
        """The same class 1, the same smallest cluster 2, and so on."""
        vectors = read_vectors(Path(self.file), given.class_names)
        return TableRanks.from_tree(cluster_paths(vectors, self.counts, self.method, given.seed))


class PositionSettings(RankSettings):
    """`ranks.kind=position`: distance between samples in columns of metadata, such as camera positions or times."""

    kind: Literal["position"]
    file: str = Field(description=".csv with a header and a row per training sample")
    columns: Annotated[Names, Field(min_length=1)] = Field(description="that are the coordinates of a sample")
    thresholds: Rising = Field(description="largest distance of ranks 2, 3, …")

    def build(self, given: Ranked) -> SampleRanks:
        """The same sample 1, at most the first distance 2, and so on."""
        positions = read_columns(Path(self.file), self.columns, given.samples)
        return SampleRanks(positions, self.thresholds, metric="euclidean")


def cluster_paths(vectors: Tensor, counts: Sequence[int], method: str, seed: int) -> list[tuple[str, ...]]:
    """A tree from clusters of classes at several granularities, the finest first; each level clusters the one below.

    Args:
        vectors: `(classes, dim)`.
        counts: how many clusters at every level, falling.
        method: `"kmeans"` or `"agglomerative"`.
        seed: of k-means.
    """
    from sklearn.cluster import AgglomerativeClustering, KMeans  # type: ignore[import-untyped]  # noqa: PLC0415

    points, members = unit_rows(vectors).numpy(), np.arange(len(vectors))
    paths = [[str(number)] for number in range(len(vectors))]
    for count in counts:
        if not 1 <= count < len(points):
            raise ConfigError(
                f"ranks.counts must fall from below the number of classes, {len(vectors)}; got {list(counts)}"
            )
        chosen = KMeans(count, random_state=seed, n_init=10) if method == "kmeans" else AgglomerativeClustering(count)
        groups = chosen.fit_predict(points)
        members = groups[members]
        for path, group in zip(paths, members, strict=True):
            path.append(f"{count}-{group}")
        points = np.stack([points[groups == group].mean(axis=0) for group in range(count)])
    return [tuple(reversed(path)) for path in paths]
