"""How well a nearest-neighbour search in the embedding finds what it should, class by class and rank by rank.

Queries look for gallery items by cosine. All metrics but `recall_at_k` rest on two counts for each item that should be
found: how many items of the gallery score higher, and how many at least as high. One sort of a query's scores gives
both, for all items, and with them every metric exactly, ties included. The queries × gallery matrix is never whole in
memory, see `rince.evaluation.gallery`. Means are taken in float64, on the CPU where the device has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from rince.devices import has_float64
from rince.errors import ConfigError, ShapeError, shown
from rince.evaluation.gallery import Found, Judge, judging_device, of_queries
from rince.evaluation.hierarchical import ancestor_heights, hierarchical_precisions, intersections
from rince.evaluation.nearest import nearest
from rince.evaluation.vectors import check_labels, check_same, check_width, share, unit_vectors
from rince.inputs import Numbers, as_tensor, whole_number
from rince.ranks import RankSource


class PrecisionRecall(NamedTuple):
    """A precision-recall curve, the mean over queries."""

    recall: Tensor
    """`(points,)` from 0 to 1: share of the items to be found."""
    precision: Tensor
    """`(points,)`: share of right ones among all items that had to be looked at to find so many."""
    average: float
    """Mean average precision, the area under the curve that has a point for every item."""


class RankedRetrieval(NamedTuple):
    """What one look at the whole order of the gallery tells; `(queries,)` are NaN where there is nothing to find."""

    curves: list[PrecisionRecall]
    """For every rank: of finding the items up to that rank, which is the level of a taxonomy."""
    average_precisions: list[Tensor]
    """For every rank, `(queries,)`; their mean is the curve's `average`."""
    ndcg: Tensor
    """`(queries,)`; their mean is what `ndcg` gives."""
    order_accuracy: Tensor
    """`(queries,)`; their mean is what `rank_order_accuracy` gives."""
    hierarchical_precision: Tensor
    """`(queries,)`; their mean is what `hierarchical_average_precision` gives."""
    set_intersection: Tensor
    """`(queries,)`; their mean is what `average_set_intersection` gives."""


def recall_at_k(
    queries: Numbers,
    gallery: Numbers,
    *,
    query_labels: Numbers,
    gallery_labels: Numbers,
    k: int = 1,
    same: Numbers | None = None,
) -> float:
    """Share of queries with an item of their own label among the k nearest. Higher is better, from 0 to 1.

    Among items of equal cosine, as equal vectors always are, the first of the gallery is the nearest. Oracle:
    scikit-learn's nearest neighbours.

    Args:
        queries: `(queries, dim)` vectors of any length; only their direction counts.
        gallery: `(gallery, dim)`.
        query_labels: `(queries,)`.
        gallery_labels: `(gallery,)`.
        k: how many neighbours are looked at.
        same: `(queries,)`: the row of each query in the gallery, which it does not find; -1 for none. None: none has.

    Example:
        >>> names, few = torch.tensor([0, 1]), torch.tensor([[1.0, 0.1], [0.9, 0.2]])
        >>> recall_at_k(few, torch.eye(2), query_labels=names, gallery_labels=names)
        0.5
    """
    labels = {"query_labels": query_labels, "gallery_labels": gallery_labels}
    return share(hits_at_k(queries, gallery, **labels, k=k, same=same))


def hits_at_k(
    queries: Numbers,
    gallery: Numbers,
    *,
    query_labels: Numbers,
    gallery_labels: Numbers,
    k: int = 1,
    same: Numbers | None = None,
) -> Tensor:
    """`(queries,)` bools: which queries `recall_at_k` counts."""
    queries, gallery, query_labels, gallery_labels = _check(queries, gallery, query_labels, gallery_labels)
    if not whole_number(k, "k") <= len(gallery):
        raise ConfigError(f"k must be from 1 to the size of the gallery, {len(gallery)}; got {shown(k)}")
    same = check_same(same, queries, gallery)
    near = nearest(queries, gallery, k=k, same=same)
    return hits_among(near, query_labels=query_labels, gallery_labels=gallery_labels, same=same)


def hits_among(near: Tensor, *, query_labels: Tensor, gallery_labels: Tensor, same: Tensor | None = None) -> Tensor:
    """The same from `(queries, k)` items that `nearest` found: one search serves the labels of all levels."""
    device = near.device
    right = gallery_labels.to(device)[near] == query_labels.to(device)[:, None]
    if same is not None:
        right &= near != same.to(device)[:, None]  # where k is all of the gallery
    return right.any(dim=1)


def mean_average_precision(
    queries: Numbers, gallery: Numbers, *, query_labels: Numbers, gallery_labels: Numbers, same: Numbers | None = None
) -> float:
    """Mean over queries of the average precision of the whole gallery by cosine. Higher is better, from 0 to 1.

    Average precision is the mean, over the items of the query's label, of the share of right ones among all items
    that score at least as high. Queries whose label the gallery lacks are left out. Oracle: scikit-learn's
    `average_precision_score`.

    Args:
        queries: `(queries, dim)` vectors of any length; only their direction counts.
        gallery: `(gallery, dim)`.
        query_labels: `(queries,)`.
        gallery_labels: `(gallery,)`.
        same: `(queries,)`: the row of each query in the gallery, which it does not find; -1 for none. None: none has.
    """
    labels = {"query_labels": query_labels, "gallery_labels": gallery_labels}
    return precision_recall_curve(queries, gallery, **labels, points=2, same=same).average


def precision_recall_curve(
    queries: Numbers,
    gallery: Numbers,
    *,
    query_labels: Numbers,
    gallery_labels: Numbers,
    points: int = 101,
    same: Numbers | None = None,
) -> PrecisionRecall:
    """Precision at the moment when a share of a query's items is found, mean over queries. Higher is better.

    Not interpolated: at recall r the precision is that of item ⌈r · items⌉ (the first one at r = 0), by descending
    cosine. Queries whose label the gallery lacks are left out. Oracle: scikit-learn's `precision_recall_curve`.

    Args:
        queries: `(queries, dim)` vectors of any length; only their direction counts.
        gallery: `(gallery, dim)`.
        query_labels: `(queries,)`.
        gallery_labels: `(gallery,)`.
        points: how many, evenly from recall 0 to 1.
        same: `(queries,)`: the row of each query in the gallery, which it does not find; -1 for none. None: none has.
    """
    queries, gallery, query_labels, gallery_labels = _check(queries, gallery, query_labels, gallery_labels)
    recall = _recall_points(points, judging_device(queries))
    rows = {int(label): (gallery_labels == label).to(torch.int8) for label in query_labels.unique()}
    judges: list[Judge] = [partial(_precisions, highest=1, recall=recall)]
    values = of_queries(queries, gallery, query_labels, rows, judges, same)
    return _curve(recall, values[0], queries.device)


def ndcg(
    queries: Numbers,
    gallery: Numbers,
    *,
    query_labels: Numbers,
    gallery_labels: Numbers,
    rank_source: RankSource,
    k: int | None = None,
    same: Numbers | None = None,
) -> float:
    """Normalised discounted cumulative gain with grades from ranks. Higher is better, from 0 to 1.

    Of R ranks, an item of rank i has gain R + 1 - i and a negative none; the item at place p counts 1 / log₂(p + 1),
    and the sum is divided by that of the perfect order. Items of equal cosine share their places. Queries that have no
    item of any rank are left out. Oracle: scikit-learn's `ndcg_score`.

    Args:
        queries: `(queries, dim)` vectors of any length; only their direction counts.
        gallery: `(gallery, dim)`.
        query_labels: `(queries,)`.
        gallery_labels: `(gallery,)`.
        rank_source: what the gallery is to a query, such as `TableRanks.from_superclasses(...)`.
        k: count the first k places only; None for all.
        same: `(queries,)`: the row of each query in the gallery, which it does not find; -1 for none. None: none has.
    """
    k = None if k is None else whole_number(k, "k")
    queries, gallery, query_labels, gallery_labels = _check(queries, gallery, query_labels, gallery_labels)
    rows = _rank_rows(rank_source, query_labels, gallery_labels)
    discount = discounts(len(gallery), k, judging_device(queries))
    highest = max(int(row.max()) for row in rows.values())
    judges: list[Judge] = [partial(_gains, highest=highest, discount=discount)]
    return float(of_queries(queries, gallery, query_labels, rows, judges, same)[0].nanmean())


def rank_order_accuracy(
    queries: Numbers,
    gallery: Numbers,
    *,
    query_labels: Numbers,
    gallery_labels: Numbers,
    rank_source: RankSource,
    same: Numbers | None = None,
) -> float:
    """How often an item of a closer rank really is closer than one of a farther rank. Higher is better; chance is 0.5.

    For each rank i of a query, the share of pairs (an item of rank i, an item of a higher rank or a negative) in which
    the first has the larger cosine; a tie counts half. The mean over the ranks that have such pairs, then over
    queries. Oracle: for each rank this is the AUROC of its items against all farther ones.

    Args:
        queries: `(queries, dim)` vectors of any length; only their direction counts.
        gallery: `(gallery, dim)`.
        query_labels: `(queries,)`.
        gallery_labels: `(gallery,)`.
        rank_source: what the gallery is to a query.
        same: `(queries,)`: the row of each query in the gallery, which it does not find; -1 for none. None: none has.
    """
    queries, gallery, query_labels, gallery_labels = _check(queries, gallery, query_labels, gallery_labels)
    rows = _rank_rows(rank_source, query_labels, gallery_labels)
    return float(of_queries(queries, gallery, query_labels, rows, [_order], same)[0].nanmean())


def hierarchical_average_precision(
    queries: Numbers,
    gallery: Numbers,
    *,
    query_labels: Numbers,
    gallery_labels: Numbers,
    rank_source: RankSource,
    same: Numbers | None = None,
) -> float:
    """Average precision that counts how near in the hierarchy an item is, H-AP of HAPPIER. Higher is better, 0 to 1.

    Of R ranks, those of rank i share the weight (R + 1 - i) / R: the relevance of an item is that, divided by how many
    there are. An item k that is found brings Σ_j min(rel(k), rel(j)) over the items j that score at least as high,
    divided by how many score so in the whole gallery; the sum over all k is divided by that of the relevances. (Ramzi
    et al., ECCV 2022, eq. 2 to 4, α = 1.) Where a farther rank has so few items that each would be more relevant than
    one of a closer rank, it is as relevant, so that the perfect order has 1. Queries that have no item of any rank are
    left out. Equals `mean_average_precision` with one rank. Oracle: a double loop.

    Args:
        queries: `(queries, dim)` vectors of any length; only their direction counts.
        gallery: `(gallery, dim)`.
        query_labels: `(queries,)`.
        gallery_labels: `(gallery,)`.
        rank_source: what the gallery is to a query.
        same: `(queries,)`: the row of each query in the gallery, which it does not find; -1 for none. None: none has.
    """
    queries, gallery, query_labels, gallery_labels = _check(queries, gallery, query_labels, gallery_labels)
    rows = _rank_rows(rank_source, query_labels, gallery_labels)
    judges: list[Judge] = [partial(hierarchical_precisions, highest=max(int(row.max()) for row in rows.values()))]
    return float(of_queries(queries, gallery, query_labels, rows, judges, same)[0].nanmean())


def average_set_intersection(
    queries: Numbers,
    gallery: Numbers,
    *,
    query_labels: Numbers,
    gallery_labels: Numbers,
    rank_source: RankSource,
    same: Numbers | None = None,
) -> float:
    """How much of the perfect order's first n items the first n found are, mean over n. Higher is better, from 0 to 1.

    ASI: the perfect order has rank 1 first, then rank 2, and so on; items of one rank stand for each other. n goes from
    1 to the number of items that have a rank. Items of equal cosine share their places. Queries that have no item of
    any rank are left out. Oracle: a loop over n that counts.

    Args:
        queries: `(queries, dim)` vectors of any length; only their direction counts.
        gallery: `(gallery, dim)`.
        query_labels: `(queries,)`.
        gallery_labels: `(gallery,)`.
        rank_source: what the gallery is to a query.
        same: `(queries,)`: the row of each query in the gallery, which it does not find; -1 for none. None: none has.
    """
    queries, gallery, query_labels, gallery_labels = _check(queries, gallery, query_labels, gallery_labels)
    rows = _rank_rows(rank_source, query_labels, gallery_labels)
    return float(of_queries(queries, gallery, query_labels, rows, [intersections], same)[0].nanmean())


def mean_ancestor_height(
    queries: Numbers,
    gallery: Numbers,
    *,
    query_levels: Sequence[Numbers],
    gallery_levels: Sequence[Numbers],
    same: Numbers | None = None,
) -> float:
    """How many levels up a query meets its nearest neighbour, mean over queries. Lower is better, 0 if all are right.

    The height of their lowest common ancestor in the taxonomy: 0 for the same class, 1 for the same group of the next
    level, and the number of levels where only the root is common. With one level this is 1 - R@1. Oracle: NetworkX.

    Args:
        queries: `(queries, dim)` vectors of any length; only their direction counts.
        gallery: `(gallery, dim)`.
        query_levels: for every level, the classes first, `(queries,)` groups; below 0 for none.
        gallery_levels: for every level `(gallery,)`.
        same: `(queries,)`: the row of each query in the gallery, which it does not find; -1 for none. None: none has.
    """
    if len(query_levels) != len(gallery_levels) or not query_levels:
        raise ShapeError(
            f"queries and gallery must have the same levels, at least one: got {len(query_levels)} and "
            f"{len(gallery_levels)}"
        )
    pairs = zip(query_levels, gallery_levels, strict=True)
    checked = [_check(queries, gallery, of_queries, of_gallery) for of_queries, of_gallery in pairs]
    found, known = checked[0][:2]
    near = nearest(found, known, 1, same=check_same(same, found, known))[:, 0]
    heights = ancestor_heights(near, [each[2] for each in checked], [each[3] for each in checked])
    return float(heights.double().mean()) if has_float64(heights.device) else float(heights.float().mean())


def ranked_retrieval(
    queries: Numbers,
    gallery: Numbers,
    *,
    query_labels: Numbers,
    gallery_labels: Numbers,
    rank_source: RankSource,
    same: Numbers | None = None,
) -> RankedRetrieval:
    """All of the above but `recall_at_k`, of all ranks at once: one sort serves them all. Higher is better.

    Args:
        queries: `(queries, dim)` vectors of any length; only their direction counts.
        gallery: `(gallery, dim)`.
        query_labels: `(queries,)`.
        gallery_labels: `(gallery,)`.
        rank_source: what the gallery is to a query.
        same: `(queries,)`: the row of each query in the gallery, which it does not find; -1 for none. None: none has.
    """
    queries, gallery, query_labels, gallery_labels = _check(queries, gallery, query_labels, gallery_labels)
    rows = _rank_rows(rank_source, query_labels, gallery_labels)
    highest = max(int(row.max()) for row in rows.values())
    device = judging_device(queries)
    recall, discount = _recall_points(101, device), discounts(len(gallery), None, device)
    judges: list[Judge] = [partial(_precisions, highest=rank, recall=recall) for rank in range(1, highest + 1)]
    judges += [partial(_gains, highest=highest, discount=discount), _order]
    judges += [partial(hierarchical_precisions, highest=highest), intersections]
    *precisions, gain, order, hierarchical, shared = of_queries(queries, gallery, query_labels, rows, judges, same)
    curves = [_curve(recall, values, queries.device) for values in precisions]
    *averages, gains, orders, hierarchicals, shares = (
        returned(values[:, 0], queries.device) for values in (*precisions, gain, order, hierarchical, shared)
    )
    return RankedRetrieval(curves, averages, gains, orders, hierarchicals, shares)


def _precisions(found: Found, highest: int, recall: Tensor) -> Tensor:
    """`(queries, 1 + points)`: average precision of the items up to a rank, and the precision at every recall."""
    chosen = found.ranks <= highest
    scores, up_to = (
        (found.scores, found.up_to) if bool(chosen.all()) else (found.scores[:, chosen], found.up_to[:, chosen])
    )
    if scores.shape[1] == 0:
        return scores.new_empty(len(scores), 0)
    ascending, order = scores.sort(dim=1)
    right = ascending.shape[1] - torch.searchsorted(ascending, ascending)
    precision = (right.double() / up_to.gather(1, order)).flip(1)
    at = (recall * ascending.shape[1] - 1e-9).ceil().long().clamp(min=1) - 1  # 1e-9: 0.07 · 100 is no 7 in binary
    return torch.cat([precision.mean(dim=1, keepdim=True), precision[:, at]], dim=1)


def _recall_points(points: int, device: torch.device) -> Tensor:
    points = whole_number(points, "points", lowest=2)
    return torch.linspace(0, 1, points, dtype=torch.float64, device=device)


def _curve(recall: Tensor, values: Tensor, device: torch.device) -> PrecisionRecall:
    """From what `_precisions` gives."""
    means = values.nanmean(dim=0)
    return PrecisionRecall(returned(recall, device), returned(means[1:], device), float(means[0]))


def returned(values: Tensor, device: torch.device) -> Tensor:
    """On the device of the queries; in float64 if that has it."""
    return values.to(device, torch.float64 if has_float64(device) else torch.float32)


def _gains(found: Found, highest: int, discount: Tensor) -> Tensor:
    """`(queries, 1)`: discounted gain as a share of the best there could be."""
    summed = torch.cat([discount.new_zeros(1), discount.cumsum(0)])
    gains = (highest + 1 - found.ranks).double()
    shared = (summed[found.up_to] - summed[found.above]) / (found.up_to - found.above)
    ideal = (gains.sort(descending=True).values * discount[: len(gains)]).sum()
    return ((gains * shared).sum(dim=1) / ideal)[:, None]


def discounts(gallery: int, k: int | None, device: torch.device) -> Tensor:
    """`(gallery,)`: what each place counts."""
    discount = 1 / torch.arange(2, gallery + 2, dtype=torch.float64, device=device).log2()
    if k is not None:
        discount[k:] = 0
    return discount


def _order(found: Found) -> Tensor:
    """`(queries, 1)`: share of pairs of two ranks in the right order, mean over ranks; no column if there are none."""
    shares = []
    for rank in found.ranks.unique():
        own, closer = found.ranks == rank, found.ranks <= rank
        farther = found.gallery - int(closer.sum())
        if farther == 0:
            continue
        scores, known = found.scores[:, own].contiguous(), found.scores[:, closer].sort(dim=1).values
        below = (found.gallery - found.up_to[:, own]) - torch.searchsorted(known, scores)
        not_above = (found.gallery - found.above[:, own]) - torch.searchsorted(known, scores, right=True)
        shares.append((below + not_above).double().mean(dim=1) / (2 * farther))
    return torch.stack(shares).mean(dim=0)[:, None] if shares else found.scores.new_empty(len(found.scores), 0)


def _rank_rows(rank_source: RankSource, query_labels: Tensor, gallery_labels: Tensor) -> dict[int, Tensor]:
    """The ranks of the gallery for each label of a query."""
    labels = query_labels.unique()
    rows = rank_source(labels, gallery_labels)
    if rows.shape != (len(labels), len(gallery_labels)):
        raise ShapeError(
            f"rank_source must give ranks of shape {(len(labels), len(gallery_labels))}, got {tuple(rows.shape)}"
        )
    return dict(zip(labels.tolist(), rows.to(gallery_labels.device), strict=True))


def _check(
    queries: Numbers, gallery: Numbers, query_labels: Numbers, gallery_labels: Numbers
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    queries = unit_vectors(queries, "queries")
    gallery = unit_vectors(as_tensor(gallery, "gallery").to(queries.device), "gallery")
    check_width(queries, gallery)
    return (
        queries,
        gallery,
        check_labels(query_labels, queries, "query_labels"),
        check_labels(gallery_labels, gallery, "gallery_labels"),
    )
