"""Retrieval judged by gains that are given for every query and item."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rince.errors import DataError, ShapeError
from rince.evaluation.gallery import block_rows, judging_device
from rince.evaluation.retrieval import discounts, returned
from rince.evaluation.vectors import check_same, check_width, unit_vectors, without_same
from rince.inputs import Numbers, as_tensor, whole_number

Gains = Numbers | Callable[[int, int], Numbers]
"""`(queries, gallery)`, 0 or more; or a function of start and stop that gives these rows of it."""


def graded_ndcg(
    queries: Numbers, gallery: Numbers, *, gains: Gains, k: int | None = None, same: Numbers | None = None
) -> float:
    """Normalised discounted cumulative gain with a gain for every query and item. Higher is better, from 0 to 1.

    As `ndcg`, which takes its gains from ranks. Queries without any gain are left out. Oracle: scikit-learn's
    `ndcg_score`.

    Args:
        queries: `(queries, dim)` vectors of any length; only their direction counts.
        gallery: `(gallery, dim)`.
        gains: `(queries, gallery)`, 0 or more; or a function of start and stop that gives these rows of it.
        k: count the first k places only; None for all.
        same: `(queries,)`: the row of each query in the gallery, which it does not find; -1 for none. None: none has.

    Example:
        >>> found = graded_ndcg(torch.eye(2), torch.eye(2), gains=torch.tensor([[1.0, 2.0], [0.0, 3.0]]))
        >>> round(found, 3)
        0.93
    """
    return float(graded_gains(queries, gallery, gains=gains, k=k, same=same).nanmean())


def graded_gains(
    queries: Numbers, gallery: Numbers, *, gains: Gains, k: int | None = None, same: Numbers | None = None
) -> Tensor:
    """`(queries,)`, whose mean is `graded_ndcg`; NaN where a query has no gain."""
    k = None if k is None else whole_number(k, "k")
    queries = unit_vectors(queries, "queries")
    gallery = unit_vectors(as_tensor(gallery, "gallery").to(queries.device), "gallery")
    check_width(queries, gallery)
    own, device = check_same(same, queries, gallery), judging_device(queries)
    rows_of, discount = _rows_of(gains, len(queries), len(gallery)), discounts(len(gallery), k, device)
    summed = torch.cat([discount.new_zeros(1), discount.cumsum(0)])
    found = []
    for rows in torch.arange(len(queries), device=queries.device).split(block_rows(len(gallery))):
        wanted = rows_of(int(rows[0]), int(rows[-1]) + 1).to(device, torch.float64)
        scores = queries[rows] @ gallery.T
        if own is not None:
            wanted = without_same(wanted.clone(), own[rows].to(device)).clamp(min=0)
            scores = without_same(scores, own[rows])
        ascending, order = scores.to(device).sort(dim=1)
        above = len(gallery) - torch.searchsorted(ascending, ascending, right=True)
        up_to = len(gallery) - torch.searchsorted(ascending, ascending)
        shared = (summed[up_to] - summed[above]) / (up_to - above)
        ideal = wanted.sort(dim=1, descending=True).values @ discount
        found.append((wanted.gather(1, order) * shared).sum(dim=1) / ideal)  # of no gain at all 0 / 0, NaN
    values = torch.cat(found)
    if bool(values.isnan().all()):
        raise DataError("no query gains anything from the gallery: all gains are 0")
    return returned(values, queries.device)


def _rows_of(gains: Gains, queries: int, gallery: int) -> Callable[[int, int], Tensor]:
    """Rows of the gains, checked."""
    if not callable(gains):
        whole = _check(as_tensor(gains, "gains"), queries, gallery)
        return lambda start, stop: whole[start:stop]
    given = gains
    return lambda start, stop: _check(as_tensor(given(start, stop), "gains"), stop - start, gallery)


def _check(gains: Tensor, queries: int, gallery: int) -> Tensor:
    if tuple(gains.shape) != (queries, gallery) or gains.is_complex():
        raise ShapeError(
            f"gains must have the shape (queries, gallery), {(queries, gallery)}; got {tuple(gains.shape)}"
        )
    if not bool(gains.isfinite().all()) or bool((gains < 0).any()):
        raise DataError("gains must be finite numbers of 0 or more")
    return gains
