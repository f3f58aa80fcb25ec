"""Ranks of samples that have several labels each, by how much these overlap."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from rince.errors import ConfigError, DataError, ShapeError, shown
from rince.inputs import Numbers, as_tensor
from rince.ranks import EXCLUDED, NEGATIVE, RANDOM, UNFILLED, checked_labels, digest_of, score_ranks, without_rank

Overlap = Literal["jaccard", "shared"]


class LabelSetRanks:
    """Ranks by how much the labels of two samples overlap, where each may have several.

    Labels of queries and candidates are sample ids, rows of `sets`. The same sample is rank 1, and so is one whose
    overlap reaches the first threshold; one that reaches the second is rank 2, and so on; all others are negatives.

    Args:
        sets: for every sample its labels, names or numbers, such as `["red", "car"]`, as a list or a column of a table;
            or a tensor or array `(samples, classes)`, 1 where a sample has a label and 0 where it has not.
        thresholds: falling, above 0, one for every rank.
        overlap: `"jaccard"`, the labels that two samples share as a part of all that either has, from 0 to 1; or
            `"shared"`, how many they share.

    Example:
        >>> ranks = LabelSetRanks([["red", "car"], ["red", "car"], ["red", "bus"], ["dog"]], thresholds=[1.0, 0.3])
        >>> ranks(torch.tensor([0]), torch.arange(4))
        tensor([[1, 1, 2, 0]], dtype=torch.int8)
    """

    by: Literal["sample"] = "sample"

    def __init__(
        self,
        sets: Numbers | Sequence[Iterable[object]],
        thresholds: Sequence[float],
        *,
        overlap: Overlap = "jaccard",
    ) -> None:
        if overlap not in ("jaccard", "shared"):
            raise ConfigError(f"overlap must be 'jaccard' or 'shared', got {overlap!r}")
        limits = as_tensor(thresholds, "thresholds").flatten().tolist()
        if not limits or not all(limit > 0 for limit in limits) or any(a <= b for a, b in itertools.pairwise(limits)):
            raise ConfigError(f"thresholds must fall from rank to rank and stay above 0, got {shown(limits)}")
        if overlap == "jaccard" and limits[0] > 1:
            raise ConfigError(f"thresholds of jaccard are at most 1, got {shown(limits)}; or give overlap='shared'")
        self.overlap, self.thresholds = overlap, tuple(limits)
        self._members = _membership(sets)

    @property
    def ranks(self) -> int:
        """The highest rank, and so the number of terms the loss needs."""
        return len(self.thresholds)

    @property
    def fingerprint(self) -> str:
        """sha256 of labels and thresholds."""
        kind = torch.tensor([self.overlap == "shared", *self.thresholds], dtype=torch.float64)
        return digest_of(self._members, torch.tensor(self._members.shape), kind)

    def overlaps(self, query_ids: Numbers, candidate_ids: Numbers) -> Tensor:
        """`(queries, candidates)`: how much their labels overlap; gains for `rince.evaluation.graded_ndcg`, too.

        Samples without any label overlap with none.
        """
        queries, _ = checked_labels("query_ids", query_ids, lowest=0, classes=len(self._members))
        candidates, _ = checked_labels(
            "candidate_ids", candidate_ids, lowest=0, classes=len(self._members), like=queries
        )
        return self._overlaps(queries, candidates)

    def _overlaps(self, queries: Tensor, candidates: Tensor) -> Tensor:
        self._members = self._members.to(queries.device)
        ours, theirs = self._members[queries].float(), self._members[candidates].float()  # counts are exact to 2**24
        shared = ours @ theirs.T
        if self.overlap == "shared":
            return shared
        return shared / (ours.sum(dim=1)[:, None] + theirs.sum(dim=1) - shared).clamp(min=1)

    def __call__(self, query_labels: Numbers, candidate_labels: Numbers) -> Tensor:
        """`(queries,)` and `(candidates,)` sample ids → `(queries, candidates)` int8 ranks."""
        last = len(self._members) - 1
        own, right = checked_labels("query_labels", query_labels, lowest=0, classes=last + 1)
        others, right_too = checked_labels(
            "candidate_labels", candidate_labels, lowest=RANDOM, classes=last + 1, like=own
        )
        overlaps = self._overlaps(own.clamp(0, last), others.clamp(0, last))
        ranks = score_ranks(overlaps, self.thresholds)
        ranks.masked_fill_(own[:, None] == others, 1)
        ranks.masked_fill_(others == RANDOM, NEGATIVE)
        ranks.masked_fill_(others == UNFILLED, EXCLUDED)
        return without_rank(ranks, right, right_too)

    def __repr__(self) -> str:
        samples, classes = self._members.shape
        return f"LabelSetRanks(samples={samples}, classes={classes}, ranks={self.ranks}, overlap={self.overlap!r})"


def _membership(sets: Numbers | Sequence[Iterable[object]]) -> Tensor:
    """`(samples, classes)` bool."""
    named = _by_name(sets)
    if named is not None:
        column = {label: number for number, label in enumerate(dict.fromkeys(itertools.chain.from_iterable(named)))}
        members = torch.zeros(len(named), max(1, len(column)), dtype=torch.bool)
        for row, each in enumerate(named):
            members[row, [column[label] for label in each]] = True
    else:
        given = as_tensor(sets, "sets")
        if given.ndim != 2 or not bool(((given == 0) | (given == 1)).all()):
            raise ShapeError(
                "sets must be a list of labels for every sample, or a tensor (samples, classes) of 0 and 1; got "
                f"{given.dtype} of shape {tuple(given.shape)}"
            )
        members = given.bool()
    if 0 in members.shape:
        raise DataError("sets is empty; give the labels of every sample")
    return members


def _by_name(sets: Any) -> list[list[object]] | None:
    """The labels of every sample; None for a matrix of numbers, and for what is neither."""
    if isinstance(sets, Tensor) or not isinstance(sets, Iterable):
        return None
    if hasattr(sets, "__array__") and sets.__array__().dtype != object:
        return None
    named = []
    for number, given in enumerate(sets):
        if isinstance(given, str | Tensor) or not isinstance(given, Iterable):  # a text would be taken for its letters
            raise DataError(
                f"sets holds {shown(given)} for sample {number}; give a list of labels, such as ['red', 'car']"
            )
        named.append(list(given))
        if not all(isinstance(label, Hashable) for label in named[-1]):
            raise DataError(f"sets holds {shown(given)} for sample {number}; a label is a name or a number")
    if any(len(set(each)) < len(each) for each in named) and set().union(*named) <= {0, 1}:
        raise DataError("sets are lists of labels, and these repeat 0 or 1; a matrix is a tensor or an array")
    return named
