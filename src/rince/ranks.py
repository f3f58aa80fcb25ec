"""Where ranks come from: labels in, the int8 rank matrix out.

A source of ranks is called with the labels of the queries and of the candidates. Two labels that no class has are
understood by every source: `UNFILLED` (-1), an empty slot of a bank, is excluded; `RANDOM` (-2), a random vector a
bank was started with, is everybody's negative.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from rince.devices import looking_is_free
from rince.errors import ConfigError, DataError, ShapeError

NEGATIVE, EXCLUDED = 0, -1
UNFILLED, RANDOM = -1, -2
HIGHEST_RANK = 127  # of int8
# Where nobody looks at values (`devices.looking_is_free`), a wrong label is not refused but gets this rank, which means
# nothing: it turns the loss into NaN. A bank keeps such a label as one that no source of ranks knows.
NO_RANK, NO_LABEL = -128, -3


class RankSource(Protocol):
    """Anything that ranks candidates by labels; `TableRanks`, `InstanceRanks` and `SampleRanks` are three."""

    @property
    def ranks(self) -> int:
        """The highest rank, and so the number of terms the loss needs."""
        ...

    @property
    def by(self) -> Literal["class", "sample"]:
        """What its labels are: classes, or ids of samples."""
        ...

    @property
    def fingerprint(self) -> str:
        """Two sources of one fingerprint rank alike: a run must not go on with other ranks than it began with."""
        ...

    def __call__(self, query_labels: Tensor, candidate_labels: Tensor) -> Tensor:
        """`(queries,)` and `(candidates,)` int64 labels → `(queries, candidates)` int8 ranks."""
        ...


class TableRanks:
    """Ranks looked up in a table with a row and a column for every class.

    Args:
        table: `(classes, classes)` integers: `table[q, c]` is the rank of a candidate of class c for a query of class
            q; 1 closest … R, 0 negative, -1 excluded. Need not be symmetric. Empty ranks are normal.

    Example:
        >>> ranks = TableRanks.from_superclasses([0, 0, 1])  # classes 0 and 1 share a superclass
        >>> ranks(torch.tensor([0]), torch.tensor([0, 1, 2, -1]))
        tensor([[ 1,  2,  0, -1]], dtype=torch.int8)
    """

    by: Literal["class"] = "class"

    def __init__(self, table: Tensor) -> None:
        if table.ndim != 2 or table.shape[0] != table.shape[1] or table.shape[0] == 0:
            raise ShapeError(f"table must be a square matrix (classes, classes), got shape {tuple(table.shape)}")
        if table.is_floating_point() or table.is_complex() or table.dtype == torch.bool:
            raise ShapeError(f"table must hold integer ranks, got {table.dtype}; for similarities use from_similarity")
        lowest, highest = int(table.min()), int(table.max())
        if lowest < EXCLUDED or highest > HIGHEST_RANK:
            raise DataError(f"table must hold ranks from -1 to {HIGHEST_RANK}, got {lowest} to {highest}")
        self.table = table.to(torch.int8)
        # Column label + 2, so that the labels RANDOM and UNFILLED are columns like any other. A row and a column more,
        # for labels that are wrong.
        special = torch.tensor([NEGATIVE, EXCLUDED], dtype=torch.int8, device=table.device)
        columns = torch.cat([special.expand(len(table), 2), self.table], dim=1)
        self._columns = torch.nn.functional.pad(columns, (0, 1, 0, 1), value=NO_RANK)

    @classmethod
    def from_superclasses(cls, superclass_of: Sequence[int] | Tensor) -> TableRanks:
        """Same class: rank 1. Same superclass: rank 2. All else: negative.

        Args:
            superclass_of: `superclass_of[c]` is the superclass of class c.
        """
        superclasses = torch.as_tensor(superclass_of)
        if superclasses.ndim != 1 or superclasses.is_floating_point() or len(superclasses) == 0:
            raise ShapeError(
                f"superclass_of must hold one integer per class, got {superclasses.dtype} of shape "
                f"{tuple(superclasses.shape)}"
            )
        table = 2 * (superclasses[:, None] == superclasses).to(torch.int8)
        return cls(table.fill_diagonal_(1))

    @classmethod
    def from_tree(cls, paths: Sequence[str | Sequence[str]]) -> TableRanks:
        """A tree of any depth. The further up the common ancestor, the higher the rank; none in common: negative.

        Args:
            paths: the path of every class from the top down, `"animal/dog/poodle"` or `("animal", "dog", "poodle")`.
                Paths may differ in length: a class that stands less deep is its own group below, see `even_paths`.

        Example:
            >>> TableRanks.from_tree(["animal/dog/poodle", "animal/dog/pug", "animal/cat/manx", "plant/oak/cork"]).table
            tensor([[1, 2, 3, 0],
                    [2, 1, 3, 0],
                    [3, 3, 1, 0],
                    [0, 0, 0, 1]], dtype=torch.int8)
        """
        split = even_paths([tuple(path.split("/")) if isinstance(path, str) else tuple(path) for path in paths])
        for path in split:
            if not path or not all(path):
                raise DataError(f"path {'/'.join(path)!r} has an empty part; write it like 'animal/dog/poodle'")
        seen: dict[tuple[str, ...], int] = {}
        for index, path in enumerate(split):
            if path in seen:
                raise DataError(
                    f"path {'/'.join(path)!r} stands for both class {seen[path]} and class {index}; every class needs "
                    "its own, for example by ending in its name"
                )
            seen[path] = index
        if not split:
            raise DataError("paths is empty; give one path per class")
        return cls(torch.tensor([[_rank_in_tree(query, candidate) for candidate in split] for query in split]))

    @classmethod
    def from_similarity(cls, similarity: Tensor, thresholds: Sequence[float]) -> TableRanks:
        """Same class: rank 1. Similarity of at least `thresholds[0]`: rank 2, of `thresholds[1]`: rank 3, and so on.

        Args:
            similarity: `(classes, classes)` symmetric similarities, of class names for example. Most classes may have
                nobody above a threshold; their rank is empty and adds nothing to the loss.
            thresholds: falling, one for every rank from 2 on. The paper uses 0.45 on text similarities.
        """
        if similarity.ndim != 2 or similarity.shape[0] != similarity.shape[1]:
            raise ShapeError(f"similarity must be a square matrix (classes, classes), got {tuple(similarity.shape)}")
        if similarity.isnan().any():
            row, column = (int(i) for i in similarity.isnan().nonzero()[0])
            raise DataError(f"similarity of classes {row} and {column} is NaN; leave out such classes or set it to 0")
        if not torch.allclose(similarity, similarity.T, atol=1e-4):
            row, column = (int(i) for i in divmod(int((similarity - similarity.T).abs().argmax()), len(similarity)))
            raise DataError(
                f"similarity must be symmetric, but that of classes {row} and {column} is "
                f"{similarity[row, column]:.4g} one way and {similarity[column, row]:.4g} the other; "
                "take their mean, (s + s.T) / 2"
            )
        limits = list(thresholds)
        if not limits or any(a <= b for a, b in itertools.pairwise(limits)):
            raise ConfigError(f"thresholds must fall from rank to rank, such as (0.6, 0.45); got {tuple(limits)}")
        table = torch.zeros(similarity.shape, dtype=torch.int8, device=similarity.device)
        for rank, threshold in reversed(list(enumerate(limits, start=2))):
            table[similarity >= threshold] = rank
        return cls(table.fill_diagonal_(1))

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.table)

    @property
    def ranks(self) -> int:
        """The highest rank, and so the number of terms the loss needs."""
        return max(0, int(self.table.max()))

    @property
    def fingerprint(self) -> str:
        """sha256 of the table."""
        return _digest(self.table)

    def __call__(self, query_labels: Tensor, candidate_labels: Tensor) -> Tensor:
        """`(queries,)` and `(candidates,)` labels → `(queries, candidates)` int8 ranks."""
        right = _check_labels("query_labels", query_labels, lowest=0, classes=self.classes)
        right_too = _check_labels("candidate_labels", candidate_labels, lowest=RANDOM, classes=self.classes)
        self._columns = columns = self._columns.to(query_labels.device)  # stays there: a step should not send it again
        queries, candidates = query_labels.long(), candidate_labels.long() + 2
        if right is not None and right_too is not None:
            queries = torch.where(right, queries, self.classes)
            candidates = torch.where(right_too, candidates, self.classes + 2)
        # Spread the smaller of the two over all candidates, one row per class or per query; copying rows is cheap.
        if len(queries) < self.classes:
            return columns.index_select(0, queries).index_select(1, candidates)
        return columns.index_select(1, candidates).index_select(0, queries)

    def __repr__(self) -> str:
        return f"TableRanks(classes={self.classes}, ranks={self.ranks})"


class InstanceRanks:
    """Every sample is its own class: the same sample is rank 1, any other a negative. Labels are sample ids.

    Args:
        same: the rank of the same sample; `EXCLUDED` where a past key of it, such as another clip of the same video, is
            to take no part.

    Example:
        >>> InstanceRanks()(torch.tensor([7]), torch.tensor([7, 8, -1, -2]))
        tensor([[ 1,  0, -1,  0]], dtype=torch.int8)
    """

    by: Literal["sample"] = "sample"

    def __init__(self, same: int = 1) -> None:
        self.same = same

    @property
    def fingerprint(self) -> str:
        """The rank of the same sample: there is nothing else to know."""
        return f"instances {self.same}"

    @property
    def ranks(self) -> int:
        """The highest rank."""
        return max(self.same, 0)

    def __call__(self, query_labels: Tensor, candidate_labels: Tensor) -> Tensor:
        """`(queries,)` and `(candidates,)` sample ids → `(queries, candidates)` int8 ranks."""
        right = _check_labels("query_labels", query_labels, lowest=0)
        right_too = _check_labels("candidate_labels", candidate_labels, lowest=RANDOM)
        ranks = (query_labels[:, None] == candidate_labels).to(torch.int8) * self.same
        ranks.masked_fill_(candidate_labels == UNFILLED, EXCLUDED)
        return _without_rank(ranks, right, right_too)


class SampleRanks:
    """Ranks by how near samples are in a space the user brings: pretrained features, camera positions, times.

    Labels are sample ids, rows of `vectors`. The same sample is rank 1; a sample that is at least as near as the first
    limit is rank 2, as the second rank 3, and so on; all others are negatives.

    Args:
        vectors: `(samples, dim)`.
        limits: one for every rank from 2 on, for all samples or, `(samples, ranks - 1)`, for each: the smallest cosine
            (falling from rank to rank), or the largest euclidean distance (growing).
        metric: `"cosine"` or `"euclidean"`.

    Example:
        >>> positions = torch.tensor([[0.0], [0.5], [3.0]])  # metres along a street
        >>> SampleRanks(positions, [1.0], metric="euclidean")(torch.tensor([0]), torch.tensor([0, 1, 2, -1]))
        tensor([[ 1,  2,  0, -1]], dtype=torch.int8)
    """

    by: Literal["sample"] = "sample"

    def __init__(
        self, vectors: Tensor, limits: Sequence[float] | Tensor, *, metric: Literal["cosine", "euclidean"] = "cosine"
    ) -> None:
        if vectors.ndim != 2 or 0 in vectors.shape:
            raise ShapeError(f"vectors must be a matrix (samples, dim), got shape {tuple(vectors.shape)}")
        if not vectors.isfinite().all():
            row = int((~vectors.isfinite()).any(dim=1).nonzero()[0])
            raise DataError(f"vectors hold NaN or infinity, first in row {row}")
        if metric not in ("cosine", "euclidean"):
            raise ConfigError(f"metric must be 'cosine' or 'euclidean', got {metric!r}")
        self.metric = metric
        self.vectors = torch.nn.functional.normalize(vectors.float(), dim=1) if metric == "cosine" else vectors.float()
        given = torch.as_tensor(limits, dtype=torch.float32)
        nearness = (given if given.ndim == 2 else given[None]) * (1 if metric == "cosine" else -1)
        if nearness.ndim != 2 or len(nearness) not in (1, len(vectors)) or nearness.shape[1] == 0:
            raise ShapeError(f"limits must hold one number per rank from 2 on, got shape {tuple(given.shape)}")
        if (nearness.diff(dim=1) > 0).any():
            order = "fall" if metric == "cosine" else "grow"
            raise ConfigError(f"limits of {metric} must {order} from rank to rank, got {given.tolist()}")
        self._limits = nearness

    @classmethod
    def from_neighbours(
        cls, vectors: Tensor, counts: Sequence[int], *, metric: Literal["cosine", "euclidean"] = "cosine"
    ) -> SampleRanks:
        """The `counts[0]` nearest samples are rank 2, up to the `counts[1]` nearest rank 3, and so on.

        Args:
            vectors: `(samples, dim)`.
            counts: rising; how many neighbours a sample has up to each rank.
            metric: `"cosine"` or `"euclidean"`.
        """
        wanted = list(counts)
        if not wanted or wanted[0] < 1 or any(a >= b for a, b in itertools.pairwise(wanted)):
            raise ConfigError(f"counts must grow from rank to rank and start at 1 or more, got {tuple(wanted)}")
        if wanted[-1] >= len(vectors):
            raise ConfigError(f"counts ask for {wanted[-1]} neighbours, but there are only {len(vectors)} samples")
        blank = cls(vectors, [0.0], metric=metric)
        limits = []
        for rows in torch.arange(len(vectors)).split(max(1, 2**25 // (4 * len(vectors)))):
            nearness = blank.nearness(rows, torch.arange(len(vectors)))
            nearness[torch.arange(len(rows)), rows] = -torch.inf  # a sample is no neighbour of its own
            limits.append(nearness.topk(wanted[-1], dim=1).values[:, [count - 1 for count in wanted]])
        return cls(vectors, torch.cat(limits) * (1 if metric == "cosine" else -1), metric=metric)

    @classmethod
    def from_encoder(
        cls,
        encode: Callable[[Tensor], Tensor],
        images: Tensor,
        *,
        limits: Sequence[float] | None = None,
        counts: Sequence[int] | None = None,
        metric: Literal["cosine", "euclidean"] = "cosine",
        batch: int = 256,
    ) -> SampleRanks:
        """Ranks from what an encoder of your own makes of the samples; their ids are their places in `images`.

        Args:
            encode: `(batch, …)` images → `(batch, dim)` vectors; called without gradients.
            images: `(samples, …)`, whatever `encode` takes.
            limits: as `SampleRanks` takes them; give these or `counts`.
            counts: as `from_neighbours` takes them.
            metric: `"cosine"` or `"euclidean"`.
            batch: how many images `encode` gets at a time.

        Example:
            >>> images = torch.tensor([[[1.0, 0.0]], [[0.9, 0.1]], [[0.0, 1.0]]])
            >>> ranks = SampleRanks.from_encoder(lambda batch: batch.flatten(1), images, counts=[1])
            >>> ranks(torch.tensor([0]), torch.arange(3))
            tensor([[1, 2, 0]], dtype=torch.int8)
        """
        if (limits is None) == (counts is None):
            raise ConfigError("give either limits or counts")
        with torch.no_grad():
            parts = [encode(part).flatten(1).float() for part in images.split(batch)]
        vectors = torch.cat(parts) if parts else torch.empty(0, 0)
        if len(vectors) != len(images):
            raise ShapeError(f"encode must give a vector for each image, got {len(vectors)} for {len(images)} images")
        if counts is not None:
            return cls.from_neighbours(vectors, counts, metric=metric)
        return cls(vectors, limits or [], metric=metric)

    @property
    def ranks(self) -> int:
        """The highest rank, and so the number of terms the loss needs."""
        return 1 + self._limits.shape[1]

    @property
    def fingerprint(self) -> str:
        """sha256 of vectors and limits."""
        return _digest(self.vectors, self._limits)

    def nearness(self, query_ids: Tensor, candidate_ids: Tensor) -> Tensor:
        """`(queries, candidates)`: cosines, or negative distances; larger is nearer."""
        queries, candidates = self.vectors[query_ids], self.vectors[candidate_ids]
        return queries @ candidates.T if self.metric == "cosine" else -torch.cdist(queries, candidates)

    def __call__(self, query_labels: Tensor, candidate_labels: Tensor) -> Tensor:
        """`(queries,)` and `(candidates,)` sample ids → `(queries, candidates)` int8 ranks."""
        right = _check_labels("query_labels", query_labels, lowest=0, classes=len(self.vectors))
        right_too = _check_labels("candidate_labels", candidate_labels, lowest=RANDOM, classes=len(self.vectors))
        self.vectors, self._limits = (x.to(query_labels.device) for x in (self.vectors, self._limits))
        queries, candidates = (labels.clamp(0, len(self.vectors) - 1) for labels in (query_labels, candidate_labels))
        nearness = self.nearness(queries, candidates)
        limits = self._limits if len(self._limits) == 1 else self._limits[queries]
        ranks = torch.zeros(nearness.shape, dtype=torch.int8, device=nearness.device)
        for rank in range(self.ranks, 1, -1):
            ranks.masked_fill_(nearness >= limits[:, rank - 2, None], rank)
        ranks.masked_fill_(query_labels[:, None] == candidate_labels, 1)
        ranks.masked_fill_(candidate_labels == RANDOM, NEGATIVE)
        ranks.masked_fill_(candidate_labels == UNFILLED, EXCLUDED)
        return _without_rank(ranks, right, right_too)

    def __repr__(self) -> str:
        return f"SampleRanks(samples={len(self.vectors)}, ranks={self.ranks}, metric={self.metric!r})"


def view_ranks(*ranks: int, queries: int, device: torch.device | None = None) -> Tensor:
    """The own-key columns: what the keys of the same sample are to every query; `(queries, ranks)` int8.

    Args:
        ranks: one for every own key.
        queries: how many there are.
        device: where to make them.

    Example:
        >>> view_ranks(1, 2, 3, queries=2)  # frame before shot before video
        tensor([[1, 2, 3],
                [1, 2, 3]], dtype=torch.int8)
    """
    for rank in ranks:
        if not EXCLUDED <= rank <= HIGHEST_RANK:
            raise DataError(f"a rank lies between -1 and {HIGHEST_RANK}, got {rank}")
    columns = torch.empty(queries, len(ranks), dtype=torch.int8, device=device)
    for column, rank in zip(columns.unbind(1), ranks, strict=True):
        column.fill_(rank)
    return columns


def all_allowed(ranks: Tensor, terms: int) -> Tensor:
    """0-dim bool, on the device of the ranks: whether each is excluded, a negative, or a rank that has a term."""
    return ((ranks >= EXCLUDED) & (ranks <= terms)).all()


def even_paths(paths: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The one rule for trees of uneven depth: levels count from the top, so those at the top are the same for all.

    A class that stands less deep than others is repeated as its own only child, down to the full depth.

    Example:
        >>> even_paths([("fruit", "banana"), ("fruit", "apple", "pink lady")])
        [('fruit', 'banana', 'banana'), ('fruit', 'apple', 'pink lady')]
    """
    depth = max(map(len, paths), default=0)
    return [path + path[-1:] * (depth - len(path)) for path in paths]


def _rank_in_tree(query: tuple[str, ...], candidate: tuple[str, ...]) -> int:
    """Of paths of one length."""
    common = 0
    for one, other in zip(query, candidate, strict=True):
        if one != other:
            break
        common += 1
    return 1 + len(query) - common if common else NEGATIVE


def _digest(*tensors: Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _without_rank(ranks: Tensor, right: Tensor | None, right_too: Tensor | None) -> Tensor:
    """The ranks with `NO_RANK` where the label of the query or the candidate is wrong."""
    if right is not None and right_too is not None:
        ranks.masked_fill_(~(right[:, None] & right_too), NO_RANK)
    return ranks


def _check_labels(name: str, labels: Tensor, *, lowest: int, classes: int | None = None) -> Tensor | None:
    """Refuses wrong labels; where nobody looks, `(labels,)`: which are right."""
    if labels.ndim != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
        raise ShapeError(f"{name} must be a vector of integers, got {labels.dtype} of shape {tuple(labels.shape)}")
    if not looking_is_free(labels.device):
        right = labels >= lowest
        return right if classes is None else right & (labels < classes)
    if len(labels) == 0:
        return None
    low, high = (int(bound) for bound in torch.aminmax(labels))
    if low < lowest:
        raise DataError(f"{name} holds {low}; " + ("labels start at 0" if lowest == 0 else "labels start at -2"))
    if classes is not None and high >= classes:
        raise DataError(f"{name} holds {high}, but the table has {classes} classes: labels go from 0 to {classes - 1}")
    return None
