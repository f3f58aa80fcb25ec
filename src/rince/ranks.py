"""Where ranks come from: labels in, the int8 rank matrix out.

A source of ranks is called with the labels of the queries and of the candidates. Two labels that no class has are
understood by every source: `UNFILLED` (-1), an empty slot of a bank, is excluded; `RANDOM` (-2), a random vector a
bank was started with, is everybody's negative.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from rince.devices import looking_is_free
from rince.errors import ConfigError, DataError, ShapeError, shown
from rince.inputs import Numbers, as_tensor, whole_number

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

    def __init__(self, table: Numbers) -> None:
        table = as_tensor(table, "table")
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
    def from_superclasses(cls, superclass_of: Numbers | Sequence[str] | Mapping[str, Any]) -> TableRanks:
        """Same class: rank 1. Same superclass: rank 2. All else: negative.

        Args:
            superclass_of: `superclass_of[c]` is the superclass of class c, a number or a name; or a mapping from the
                names of the classes, in label order, to their superclasses.
        """
        superclasses = as_tensor(_numbered(superclass_of), "superclass_of")
        if superclasses.ndim != 1 or not is_integer(superclasses) or len(superclasses) == 0:
            raise ShapeError(
                f"superclass_of must hold one integer per class, got {superclasses.dtype} of shape "
                f"{tuple(superclasses.shape)}"
            )
        table = 2 * (superclasses[:, None] == superclasses).to(torch.int8)
        return cls(table.fill_diagonal_(1))

    @classmethod
    def from_tree(cls, paths: Sequence[str | Sequence[str]] | Mapping[str, str | Sequence[str]]) -> TableRanks:
        """A tree of any depth. The further up the common ancestor, the higher the rank; none in common: negative.

        Args:
            paths: the path of every class from the top down, `"animal/dog/poodle"` or `("animal", "dog", "poodle")`.
                Paths may differ in length: a class that stands less deep is its own group below, see `even_paths`.
                Or a mapping from the names of the classes, in label order, to what stands above them,
                `{"poodle": "animal/dog"}`. Or a tree of mappings down to lists of classes, as a taxonomy file has it,
                `{"animal": {"dog": ["poodle", "pug"], "cat": ["manx"]}}`; classes are numbered as they come.

        Example:
            >>> TableRanks.from_tree(["animal/dog/poodle", "animal/dog/pug", "animal/cat/manx", "plant/oak/cork"]).table
            tensor([[1, 2, 3, 0],
                    [2, 1, 3, 0],
                    [3, 3, 1, 0],
                    [0, 0, 0, 1]], dtype=torch.int8)
        """
        if isinstance(paths, str):
            raise DataError(f"paths must be one path per class, got the text {shown(paths)}; put it in a list")
        if isinstance(paths, Mapping) and any(isinstance(below, Mapping) for below in paths.values()):
            paths = list(_leaves(paths, ()))
        _refuse_lists(paths)
        named = list(paths.items()) if isinstance(paths, Mapping) else [(None, path) for path in paths]
        split = even_paths([_parts(path, name) for name, path in named])
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
    def from_similarity(cls, similarity: Numbers, thresholds: Sequence[float]) -> TableRanks:
        """Same class: rank 1. Similarity of at least `thresholds[0]`: rank 2, of `thresholds[1]`: rank 3, and so on.

        Args:
            similarity: `(classes, classes)` symmetric similarities, of class names for example. Most classes may have
                nobody above a threshold; their rank is empty and adds nothing to the loss.
            thresholds: falling, one for every rank from 2 on. The paper uses 0.45 on text similarities.
        """
        similarity = as_tensor(similarity, "similarity")
        if similarity.ndim != 2 or similarity.shape[0] != similarity.shape[1] or similarity.is_complex():
            raise ShapeError(
                "similarity must be a square matrix (classes, classes) of real numbers, got "
                f"{similarity.dtype} of shape {tuple(similarity.shape)}"
            )
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
        return cls(_above(similarity, thresholds, first=2).fill_diagonal_(1))

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
        return digest_of(self.table)

    def __call__(self, query_labels: Numbers, candidate_labels: Numbers) -> Tensor:
        """`(queries,)` and `(candidates,)` labels → `(queries, candidates)` int8 ranks."""
        queries, right = checked_labels("query_labels", query_labels, lowest=0, classes=self.classes)
        candidates, right_too = checked_labels(
            "candidate_labels", candidate_labels, lowest=RANDOM, classes=self.classes, like=queries
        )
        self._columns = columns = self._columns.to(queries.device)  # stays there: a step should not send it again
        candidates = candidates + 2
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
        self.same = check_rank(same)

    @property
    def fingerprint(self) -> str:
        """The rank of the same sample: there is nothing else to know."""
        return f"instances {self.same}"

    @property
    def ranks(self) -> int:
        """The highest rank."""
        return max(self.same, 0)

    def __call__(self, query_labels: Numbers, candidate_labels: Numbers) -> Tensor:
        """`(queries,)` and `(candidates,)` sample ids → `(queries, candidates)` int8 ranks."""
        queries, right = checked_labels("query_labels", query_labels, lowest=0)
        candidates, right_too = checked_labels("candidate_labels", candidate_labels, lowest=RANDOM, like=queries)
        ranks = (queries[:, None] == candidates).to(torch.int8) * self.same
        ranks.masked_fill_(candidates == UNFILLED, EXCLUDED)
        return without_rank(ranks, right, right_too)


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
    checked = [check_rank(rank) for rank in ranks]
    columns = torch.empty(whole_number(queries, "queries", lowest=0), len(ranks), dtype=torch.int8, device=device)
    for column, rank in zip(columns.unbind(1), checked, strict=True):
        column.fill_(rank)
    return columns


def score_ranks(scores: Numbers, thresholds: Sequence[float]) -> Tensor:
    """Ranks from graded scores: at least `thresholds[0]` is rank 1, at least `thresholds[1]` rank 2, and so on.

    Args:
        scores: of any shape, such as `(queries, candidates)`; higher is closer. Below all thresholds: a negative. NaN:
            not judged, excluded.
        thresholds: falling, one for every rank.

    Returns:
        int8, of the shape of `scores`.

    Example:
        >>> score_ranks([[1.0, 0.6, 0.2, float("nan")]], (0.9, 0.5))
        tensor([[ 1,  2,  0, -1]], dtype=torch.int8)
    """
    scores = as_tensor(scores, "scores")
    if scores.is_complex() or scores.dtype == torch.bool:
        raise ShapeError(f"scores must be real numbers, got {scores.dtype}")
    return _above(scores, thresholds, first=1).masked_fill_(scores.isnan(), EXCLUDED)


def _above(scores: Tensor, thresholds: Sequence[float], first: int) -> Tensor:
    """int8: `first` where scores reach the first threshold, one more where only the second, …, 0 below all."""
    limits = as_tensor(thresholds, "thresholds").flatten().tolist()
    if not limits or any(map(math.isnan, limits)) or any(a <= b for a, b in itertools.pairwise(limits)):
        raise ConfigError(f"thresholds must fall from rank to rank, such as (0.6, 0.45); got {tuple(limits)}")
    if len(limits) + first - 1 > HIGHEST_RANK:
        raise ConfigError(
            f"ranks are int8, so there are at most {HIGHEST_RANK - first + 1} thresholds; got {len(limits)}"
        )
    ranks = torch.zeros(scores.shape, dtype=torch.int8, device=scores.device)
    for rank, threshold in reversed(list(enumerate(limits, start=first))):
        ranks.masked_fill_(scores >= threshold, rank)
    return ranks


def check_callable(rank_source: object) -> None:
    """Refuses what cannot be called with labels; in a loop of one's own any function of them ranks."""
    if not callable(rank_source):
        raise ConfigError(
            "rank_source is called with labels of queries and candidates, as rince.TableRanks is; got "
            f"{type(rank_source).__name__}"
        )


def check_rank(rank: int) -> int:
    """One rank that a caller gives; refuses what int8 does not hold, and what means nothing."""
    try:
        number = HIGHEST_RANK + 1 if isinstance(rank, bool) else operator.index(rank)  # of NumPy and torch, too
    except (TypeError, ValueError, RuntimeError):
        number = HIGHEST_RANK + 1
    if not EXCLUDED <= number <= HIGHEST_RANK:
        raise DataError(f"a rank is an integer between -1 and {HIGHEST_RANK}, got {shown(rank)}")
    return number


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


def _leaves(node: Any, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The paths of the classes in a tree of mappings and lists, as they come."""
    if isinstance(node, Mapping):
        for name, below in node.items():
            yield from _leaves(below, (*above, str(name)))
    elif isinstance(node, list | tuple):
        for name in node:
            yield from _leaves(name, above) if isinstance(name, Mapping) else iter([(*above, str(name))])
    else:
        raise DataError(f"{'/'.join(above)!r} must hold a mapping or a list of class names, got {shown(node)}")


def _refuse_lists(paths: Any) -> None:
    """Of a mapping to lists nobody knows which way up it is: groups of classes, or paths above them."""
    listed = [name for name, path in paths.items() if isinstance(path, list)] if isinstance(paths, Mapping) else []
    if listed:
        raise DataError(
            f"{listed[0]!r} holds the list {shown(paths[listed[0]])}, which could be its classes or what stands above "
            "it; write paths, ['animal/dog/poodle', …], or what stands above a class as text, {'poodle': 'animal/dog'}"
        )


def _parts(path: str | Sequence[str], name: str | None) -> tuple[str, ...]:
    """The path of a class as its parts; it ends in the name of the class, if that is given."""
    parts = tuple(path.split("/")) if isinstance(path, str) else tuple(path)
    return parts if name is None or parts[-1:] == (name,) else (*parts, name)


def _numbered(superclass_of: Any) -> Any:
    """Names of superclasses as numbers, by order of appearance; numbers as they are."""
    found = list(superclass_of.values()) if isinstance(superclass_of, Mapping) else superclass_of
    if isinstance(found, Tensor | str):
        return found
    names = [each for each in found if isinstance(each, str)]
    if not names:
        return found
    if len(names) < len(found):
        raise DataError(f"superclass_of must hold numbers or names, not both; got {shown(found)}")
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return [numbers[name] for name in names]


def _rank_in_tree(query: tuple[str, ...], candidate: tuple[str, ...]) -> int:
    """Of paths of one length."""
    common = 0
    for one, other in zip(query, candidate, strict=True):
        if one != other:
            break
        common += 1
    return 1 + len(query) - common if common else NEGATIVE


def digest_of(*tensors: Tensor) -> str:
    """sha256 of the numbers of some tensors."""
    digest = hashlib.sha256()
    for tensor in tensors:
        held = tensor.detach().cpu().contiguous()
        digest.update(ctypes.string_at(held.data_ptr(), held.nbytes))  # without NumPy, which torch does not ask for
    return digest.hexdigest()


def without_rank(ranks: Tensor, right: Tensor | None, right_too: Tensor | None) -> Tensor:
    """The ranks with `NO_RANK` where the label of the query or the candidate is wrong."""
    if right is not None and right_too is not None:
        ranks.masked_fill_(~(right[:, None] & right_too), NO_RANK)
    return ranks


def is_integer(values: Tensor) -> bool:
    """Whether a tensor holds integers."""
    return not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)


def checked_labels(
    name: str, labels: Numbers, *, lowest: int, classes: int | None = None, like: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Labels as int64, in which no small integer means something else; and, where nobody looks, which are right.

    Elsewhere wrong labels are refused.
    """
    labels = as_tensor(labels, name, like=like)
    if labels.ndim != 1 or (len(labels) and not is_integer(labels)):  # the numbers of an empty list are of no kind
        raise ShapeError(f"{name} must be a vector of integers, got {labels.dtype} of shape {tuple(labels.shape)}")
    labels = labels.long()
    if not looking_is_free(labels.device):
        right = labels >= lowest
        return labels, right if classes is None else right & (labels < classes)
    if len(labels) == 0:
        return labels, None
    low, high = (int(bound) for bound in torch.aminmax(labels))
    if low < lowest:
        raise DataError(f"{name} holds {low}; " + ("labels start at 0" if lowest == 0 else "labels start at -2"))
    if classes is not None and high >= classes:
        raise DataError(f"{name} holds {high}, but the table has {classes} classes: labels go from 0 to {classes - 1}")
    return labels, None
