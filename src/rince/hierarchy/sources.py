"""From the `ranks` of a recipe to a source of ranks: taxonomy, WordNet, text, vectors, clusters, positions.

Sources of classes give `TableRanks`; sources of samples give `SampleRanks`, and the bank then carries sample ids.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rince.config import (
    ClipRanks,
    ClusterRanks,
    EmbeddingRanks,
    PositionRanks,
    Recipe,
    SimilarityRanks,
    TextRanks,
    TreeRanks,
    WordNetRanks,
)
from rince.draws import uniform
from rince.errors import ConfigError, DataError
from rince.hierarchy.text import name_similarity
from rince.hierarchy.wordnet import load_wordnet
from rince.ranks import EXCLUDED, NEGATIVE, InstanceRanks, SampleRanks, TableRanks

Source = TableRanks | SampleRanks | InstanceRanks


def rank_source(recipe: Recipe, class_names: Sequence[str], paths: list[tuple[str, ...]], samples: int) -> Source:
    """The source of ranks that a recipe asks for.

    Args:
        recipe: of the run.
        class_names: in label order.
        paths: of the classes in the taxonomy.
        samples: how many training images there are.
    """
    ranks = recipe.ranks
    if isinstance(ranks, TextRanks | SimilarityRanks | WordNetRanks):
        return _from_similarity(ranks, class_names)
    if isinstance(ranks, EmbeddingRanks):
        return _from_embedding(ranks, class_names, samples)
    if isinstance(ranks, ClusterRanks):
        vectors = read_vectors(Path(ranks.file), class_names)
        return TableRanks.from_tree(cluster_paths(vectors, ranks.counts, ranks.method, recipe.seed))
    if isinstance(ranks, PositionRanks):
        return SampleRanks(read_columns(Path(ranks.file), ranks.columns, samples), ranks.thresholds, metric="euclidean")
    if isinstance(ranks, ClipRanks):
        return InstanceRanks(same=EXCLUDED)  # another clip of the same video is no negative
    return _from_taxonomy(ranks, paths, recipe.seed)


def _from_similarity(ranks: TextRanks | SimilarityRanks | WordNetRanks, class_names: Sequence[str]) -> TableRanks:
    if isinstance(ranks, WordNetRanks):
        lengths = load_wordnet(ranks.file).path_lengths(class_names)
        return TableRanks.from_similarity(-lengths, [-length for length in ranks.thresholds])
    if isinstance(ranks, TextRanks):
        return TableRanks.from_similarity(name_similarity(class_names, ranks.model), ranks.thresholds)
    return TableRanks.from_similarity(read_similarity(Path(ranks.file), class_names), ranks.thresholds)


def _from_taxonomy(ranks: TreeRanks, paths: list[tuple[str, ...]], seed: int) -> Source:
    if ranks.kind == "instances":
        return InstanceRanks()
    if ranks.kind == "classes":
        return TableRanks(torch.eye(len(paths), dtype=torch.int8))
    if ranks.kind == "tree":
        return flip_pairs(TableRanks.from_tree(paths), ranks.flipped, seed)
    if any(len(path) < 2 for path in paths):
        raise ConfigError("ranks.kind=parents needs classes with a parent; set data.taxonomy")
    tree = TableRanks.from_tree(paths).table
    return TableRanks(((tree == 1) | (tree == 2)).to(torch.int8))


def flip_pairs(ranks: TableRanks, share: float, seed: int) -> TableRanks:
    """Ranks with noise: a share of all pairs of classes is turned round, related to unrelated and the reverse.

    Args:
        ranks: symmetric, without noise.
        share: of the pairs of two classes. Those that were related become negatives; those that were not get the last
            rank, so that half of all pairs flipped leaves nothing of the ranks but the class itself.
        seed: which pairs; the pairs of a smaller share are among those of a larger one.
    """
    classes, table = ranks.classes, ranks.table.clone()
    rows, columns = torch.triu_indices(classes, classes, offset=1)
    draws = uniform(seed, 0, 0, torch.arange(len(rows)), 1)[:, 0]
    chosen = draws.argsort(stable=True)[: round(share * len(rows))]
    rows, columns = rows[chosen], columns[chosen]
    turned = torch.where(table[rows, columns] > NEGATIVE, NEGATIVE, ranks.ranks).to(torch.int8)
    table[rows, columns] = table[columns, rows] = turned
    return TableRanks(table)


def _from_embedding(ranks: EmbeddingRanks, class_names: Sequence[str], samples: int) -> Source:
    if ranks.per == "sample":
        vectors = _matrix(Path(ranks.file))
        if len(vectors) != samples:
            raise DataError(
                f"{ranks.file} holds {len(vectors):,} vectors for {samples:,} training images; one for each"
            )
        if ranks.nearest:
            return SampleRanks.from_neighbours(vectors, ranks.nearest)
        return SampleRanks(vectors, ranks.thresholds or [])
    vectors = torch.nn.functional.normalize(read_vectors(Path(ranks.file), class_names), dim=1)
    similarity = vectors @ vectors.T
    similarity = (similarity + similarity.T) / 2
    if ranks.thresholds:
        return TableRanks.from_similarity(similarity, ranks.thresholds)
    table = torch.zeros(similarity.shape, dtype=torch.int8)
    order = similarity.fill_diagonal_(-torch.inf).argsort(dim=1, descending=True)
    for rank, count in reversed(list(enumerate(ranks.nearest or [], start=2))):
        table.scatter_(1, order[:, :count], rank)
    return TableRanks(table.fill_diagonal_(1))


def read_similarity(path: Path, class_names: Sequence[str]) -> Tensor:
    """A matrix of class similarities from `.npz` or `.npy` (in label order) or `.csv` (with names, in any order)."""
    if path.suffix == ".csv":
        rows = _csv_rows(path)
        header = [cell.strip() for cell in rows[0][1:]]
        try:
            named = {row[0].strip(): [float(cell) for cell in row[1:]] for row in rows[1:]}
        except ValueError as error:
            raise DataError(f"{path} must hold names and numbers: {error}") from None
        _check_names(path, class_names, header)
        _check_names(path, class_names, list(named))
        columns = [header.index(name) for name in class_names]
        return torch.tensor([[named[name][column] for column in columns] for name in class_names])
    matrix = _matrix(path)
    if matrix.shape != (len(class_names), len(class_names)):
        raise DataError(
            f"{path} must hold a row and a column for each of {len(class_names)} classes, got {tuple(matrix.shape)}"
        )
    return matrix


def read_vectors(path: Path, class_names: Sequence[str]) -> Tensor:
    """`(classes, dim)` vectors from `.npz`, `.npy`: in label order, or in that of the class names in `labels`."""
    vectors = _matrix(path)
    labels = _entry(path, "labels")
    if labels is not None:
        names = [str(name) for name in labels.tolist()]
        _check_names(path, class_names, names)
        return vectors[[names.index(name) for name in class_names]]
    if len(vectors) != len(class_names):
        raise DataError(f"{path} holds {len(vectors)} vectors for {len(class_names)} classes; one for each is needed")
    return vectors


def read_columns(path: Path, columns: Sequence[str], samples: int) -> Tensor:
    """`(samples, columns)` numbers from a CSV file with a header and a row per training image, in their order."""
    rows = _csv_rows(path)
    header = [cell.strip() for cell in rows[0]]
    missing = [name for name in columns if name not in header]
    if missing:
        raise DataError(f"{path} has no column {missing[0]!r}; it has {', '.join(header)}")
    if len(rows) - 1 != samples:
        raise DataError(f"{path} has {len(rows) - 1:,} rows for {samples:,} training images; one for each is needed")
    places = [header.index(name) for name in columns]
    try:
        return torch.tensor([[float(row[place]) for place in places] for row in rows[1:]])
    except (ValueError, IndexError) as error:
        raise DataError(f"{path} must hold numbers in {', '.join(columns)}: {error}") from None


def cluster_paths(vectors: Tensor, counts: Sequence[int], method: str, seed: int) -> list[tuple[str, ...]]:
    """A tree from clusters of classes at several granularities, the finest first; each level clusters the one below.

    Args:
        vectors: `(classes, dim)`.
        counts: how many clusters at every level, falling.
        method: `"kmeans"` or `"agglomerative"`.
        seed: of k-means.
    """
    from sklearn.cluster import AgglomerativeClustering, KMeans  # type: ignore[import-untyped]  # noqa: PLC0415

    points, members = torch.nn.functional.normalize(vectors, dim=1).numpy(), np.arange(len(vectors))
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


def _matrix(path: Path) -> Tensor:
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    if path.suffix not in (".npz", ".npy"):
        raise DataError(f"vectors and matrices come as .npz or .npy, got {path}")
    try:
        found = np.load(path, allow_pickle=False)
        array = (
            found
            if isinstance(found, np.ndarray)
            else next(found[n] for n in ("features", "similarity", *found.files) if n in found.files)
        )
        matrix = torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
    except Exception as error:  # damaged in one of many ways
        raise DataError(f"{path} cannot be read as {path.suffix} ({type(error).__name__}: {error})") from None
    if matrix.ndim != 2:
        raise DataError(f"{path} must hold a matrix, got shape {tuple(matrix.shape)}")
    return matrix


def _entry(path: Path, name: str) -> np.ndarray | None:
    if path.suffix != ".npz":
        return None
    with np.load(path, allow_pickle=False) as found:
        return found[name] if name in found.files else None


def _csv_rows(path: Path) -> list[list[str]]:
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    try:
        rows = [row for row in csv.reader(path.read_text("utf-8-sig").splitlines()) if row]
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not CSV: {error}") from None
    if len(rows) < 2:
        raise DataError(f"{path} is empty; write a header, then a row for each")
    return rows


def _check_names(path: Path, wanted: Sequence[str], there: list[str]) -> None:
    twice = [name for name in there if there.count(name) > 1]
    if twice:
        raise DataError(f"{path} has {twice[0]!r} twice")
    missing = [name for name in wanted if name not in there]
    if missing:
        raise DataError(f"{path} lacks {len(missing)} of {len(wanted)} classes, {missing[0]!r} first")
