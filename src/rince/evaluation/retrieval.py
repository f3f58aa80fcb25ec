"""How well a nearest-neighbour search in the embedding finds what it should, class by class and rank by rank.

Queries look for gallery items by cosine. All metrics but `recall_at_k` rest on two counts for each item that should be
found: how many items of the gallery score higher, and how many at least as high. One sort of a query's scores gives
both, for all items, and with them every metric exactly, ties included. The queries × gallery matrix is never whole in
memory: blocks of `BLOCK_BYTES` are worked on, one per core, or one after the other on the device of the queries. Means
are taken in float64, on the CPU where the device has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from rince.devices import has_float64
from rince.errors import ConfigError, DataError, ShapeError
from rince.evaluation.vectors import check_labels, share, unit_vectors
from rince.ranks import EXCLUDED, RankSource

BLOCK_BYTES = 2**25


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


class _Found(NamedTuple):
    """The items that some queries, all of one label, should find."""

    ranks: Tensor
    """`(items,)`: rank of each, 1 closest."""
    scores: Tensor
    """`(queries, items)`: cosines."""
    above: Tensor
    """`(queries, items)`: how many items of the gallery score higher."""
    up_to: Tensor
    """`(queries, items)`: how many score at least as high, the item itself among them."""
    gallery: int
    """How many items the gallery has for these queries, excluded ones not counted."""


Judge = Callable[[_Found], Tensor]
"""From what a block of queries found to `(queries, numbers)`."""


def recall_at_k(queries: Tensor, gallery: Tensor, *, query_labels: Tensor, gallery_labels: Tensor, k: int = 1) -> float:
    """Share of queries with an item of their own label among the k nearest. Higher is better, from 0 to 1.

    Among items of equal cosine the first of the gallery is the nearest. Oracle: scikit-learn's nearest neighbours.

    Args:
        queries: `(queries, dim)` vectors of any length; only their direction counts.
        gallery: `(gallery, dim)`, none of them a query.
        query_labels: `(queries,)`.
        gallery_labels: `(gallery,)`.
        k: how many neighbours are looked at.

    Example:
        >>> names, few = torch.tensor([0, 1]), torch.tensor([[1.0, 0.1], [0.9, 0.2]])
        >>> recall_at_k(few, torch.eye(2), query_labels=names, gallery_labels=names)
        0.5
    """
    return share(hits_at_k(queries, gallery, query_labels=query_labels, gallery_labels=gallery_labels, k=k))


def hits_at_k(queries: Tensor, gallery: Tensor, *, query_labels: Tensor, gallery_labels: Tensor, k: int = 1) -> Tensor:
    """`(queries,)` bools: which queries `recall_at_k` counts."""
    queries, gallery, query_labels, gallery_labels = _check(queries, gallery, query_labels, gallery_labels)
    if not 1 <= k <= len(gallery):
        raise ConfigError(f"k must be from 1 to the size of the gallery, {len(gallery)}; got {k}")
    hits = []
    for rows in torch.arange(len(queries), device=queries.device).split(_block_rows(len(gallery))):
        near = nearest(queries[rows], gallery, k)
        hits.append((gallery_labels[near] == query_labels[rows, None]).any(dim=1))
    return torch.cat(hits)


def nearest(queries: Tensor, gallery: Tensor, k: int) -> Tensor:
    """`(queries, k)`: the nearest items of the gallery by inner product, nearest first."""
    scores = queries @ gallery.T
    if k == 1:
        return scores.argmax(dim=1, keepdim=True)
    return scores.topk(k, dim=1).indices


def mean_average_precision(queries: Tensor, gallery: Tensor, *, query_labels: Tensor, gallery_labels: Tensor) -> float:
    """Mean over queries of the average precision of the whole gallery by cosine. Higher is better, from 0 to 1.

    Average precision is the mean, over the items of the query's label, of the share of right ones among all items
    that score at least as high. Queries whose label the gallery lacks are left out. Oracle: scikit-learn's
    `average_precision_score`.

    Args:
        queries: `(queries, dim)` vectors of any length; only their direction counts.
        gallery: `(gallery, dim)`, none of them a query.
        query_labels: `(queries,)`.
        gallery_labels: `(gallery,)`.
    """
    curve = precision_recall_curve(queries, gallery, query_labels=query_labels, gallery_labels=gallery_labels, points=2)
    return curve.average


def precision_recall_curve(
    queries: Tensor, gallery: Tensor, *, query_labels: Tensor, gallery_labels: Tensor, points: int = 101
) -> PrecisionRecall:
    """Precision at the moment when a share of a query's items is found, mean over queries. Higher is better.

    Not interpolated: at recall r the precision is that of item ⌈r · items⌉ (the first one at r = 0), by descending
    cosine. Queries whose label the gallery lacks are left out. Oracle: scikit-learn's `precision_recall_curve`.

    Args:
        queries: `(queries, dim)` vectors of any length; only their direction counts.
        gallery: `(gallery, dim)`, none of them a query.
        query_labels: `(queries,)`.
        gallery_labels: `(gallery,)`.
        points: how many, evenly from recall 0 to 1.
    """
    queries, gallery, query_labels, gallery_labels = _check(queries, gallery, query_labels, gallery_labels)
    recall = _recall_points(points, _judging_device(queries))
    same = {int(label): (gallery_labels == label).to(torch.int8) for label in query_labels.unique()}
    values = _of_queries(queries, gallery, query_labels, same, [lambda found: _precisions(found, 1, recall)])
    return _curve(recall, values[0], queries.device)


def ndcg(
    queries: Tensor,
    gallery: Tensor,
    *,
    query_labels: Tensor,
    gallery_labels: Tensor,
    rank_source: RankSource,
    k: int | None = None,
) -> float:
    """Normalised discounted cumulative gain with grades from ranks. Higher is better, from 0 to 1.

    Of R ranks, an item of rank i has gain R + 1 - i and a negative none; the item at place p counts 1 / log₂(p + 1),
    and the sum is divided by that of the perfect order. Items of equal cosine share their places. Queries that have no
    item of any rank are left out. Oracle: scikit-learn's `ndcg_score`.

    Args:
        queries: `(queries, dim)` vectors of any length; only their direction counts.
        gallery: `(gallery, dim)`, none of them a query.
        query_labels: `(queries,)`.
        gallery_labels: `(gallery,)`.
        rank_source: what the gallery is to a query, such as `TableRanks.from_superclasses(...)`.
        k: count the first k places only; None for all.
    """
    if k is not None and k < 1:
        raise ConfigError(f"k must be at least 1, got {k}")
    queries, gallery, query_labels, gallery_labels = _check(queries, gallery, query_labels, gallery_labels)
    rows = _rank_rows(rank_source, query_labels, gallery_labels)
    discount = _discounts(len(gallery), k, _judging_device(queries))
    highest = max(int(row.max()) for row in rows.values())
    values = _of_queries(queries, gallery, query_labels, rows, [lambda found: _gains(found, highest, discount)])
    return float(values[0].nanmean())


def rank_order_accuracy(
    queries: Tensor, gallery: Tensor, *, query_labels: Tensor, gallery_labels: Tensor, rank_source: RankSource
) -> float:
    """How often an item of a closer rank really is closer than one of a farther rank. Higher is better; chance is 0.5.

    For each rank i of a query, the share of pairs (an item of rank i, an item of a higher rank or a negative) in which
    the first has the larger cosine; a tie counts half. The mean over the ranks that have such pairs, then over
    queries. Oracle: for each rank this is the AUROC of its items against all farther ones.

    Args:
        queries: `(queries, dim)` vectors of any length; only their direction counts.
        gallery: `(gallery, dim)`, none of them a query.
        query_labels: `(queries,)`.
        gallery_labels: `(gallery,)`.
        rank_source: what the gallery is to a query.
    """
    queries, gallery, query_labels, gallery_labels = _check(queries, gallery, query_labels, gallery_labels)
    rows = _rank_rows(rank_source, query_labels, gallery_labels)
    return float(_of_queries(queries, gallery, query_labels, rows, [_order])[0].nanmean())


def ranked_retrieval(
    queries: Tensor, gallery: Tensor, *, query_labels: Tensor, gallery_labels: Tensor, rank_source: RankSource
) -> RankedRetrieval:
    """All of the above but `recall_at_k`, of all ranks at once: one sort serves them all. Higher is better.

    Args:
        queries: `(queries, dim)` vectors of any length; only their direction counts.
        gallery: `(gallery, dim)`, none of them a query.
        query_labels: `(queries,)`.
        gallery_labels: `(gallery,)`.
        rank_source: what the gallery is to a query.
    """
    queries, gallery, query_labels, gallery_labels = _check(queries, gallery, query_labels, gallery_labels)
    rows = _rank_rows(rank_source, query_labels, gallery_labels)
    highest = max(int(row.max()) for row in rows.values())
    device = _judging_device(queries)
    recall, discount = _recall_points(101, device), _discounts(len(gallery), None, device)
    judges: list[Judge] = [partial(_precisions, highest=rank, recall=recall) for rank in range(1, highest + 1)]
    judges += [partial(_gains, highest=highest, discount=discount), _order]
    *precisions, gain, order = _of_queries(queries, gallery, query_labels, rows, judges)
    curves = [_curve(recall, values, queries.device) for values in precisions]
    *averages, gains, orders = (_returned(values[:, 0], queries.device) for values in (*precisions, gain, order))
    return RankedRetrieval(curves, averages, gains, orders)


def _precisions(found: _Found, highest: int, recall: Tensor) -> Tensor:
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
    if points < 2:
        raise ConfigError(f"a curve has at least 2 points, got {points}")
    return torch.linspace(0, 1, points, dtype=torch.float64, device=device)


def _curve(recall: Tensor, values: Tensor, device: torch.device) -> PrecisionRecall:
    """From what `_precisions` gives."""
    means = values.nanmean(dim=0)
    return PrecisionRecall(_returned(recall, device), _returned(means[1:], device), float(means[0]))


def _returned(values: Tensor, device: torch.device) -> Tensor:
    """On the device of the queries; in float64 if that has it."""
    return values.to(device, torch.float64 if has_float64(device) else torch.float32)


def _gains(found: _Found, highest: int, discount: Tensor) -> Tensor:
    """`(queries, 1)`: discounted gain as a share of the best there could be."""
    summed = torch.cat([discount.new_zeros(1), discount.cumsum(0)])
    gains = (highest + 1 - found.ranks).double()
    shared = (summed[found.up_to] - summed[found.above]) / (found.up_to - found.above)
    ideal = (gains.sort(descending=True).values * discount[: len(gains)]).sum()
    return ((gains * shared).sum(dim=1) / ideal)[:, None]


def _discounts(gallery: int, k: int | None, device: torch.device) -> Tensor:
    discount = 1 / torch.arange(2, gallery + 2, dtype=torch.float64, device=device).log2()
    if k is not None:
        discount[k:] = 0
    return discount


def _order(found: _Found) -> Tensor:
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


def _of_queries(
    queries: Tensor, gallery: Tensor, query_labels: Tensor, rows: dict[int, Tensor], judges: Sequence[Judge]
) -> list[Tensor]:
    """For every judge `(queries, numbers)`, NaN for queries that have nothing to find.

    `rows` are the gallery's ranks for each label.
    """

    def work(block: tuple[Tensor, Tensor]) -> list[Tensor] | None:
        found = _find(queries[block[0]], gallery, block[1])
        return None if found is None else [judge(found) for judge in judges]

    blocks = list(_blocks(query_labels, len(gallery), rows))
    if queries.device.type == "cpu":
        # Each block takes one core: NumPy's sort, which takes most of the time, knows no threads but lets others run.
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            found = list(pool.map(work, blocks))
    else:
        found = list(map(work, blocks))
    of_judges = []
    for number in range(len(judges)):
        pairs = zip(blocks, found, strict=True)
        told = [(chosen, values[number]) for (chosen, _), values in pairs if values and values[number].shape[1]]
        if not told:
            raise DataError("no query has anything to find in the gallery; do queries and gallery share their labels?")
        whole = told[0][1].new_full((len(queries), told[0][1].shape[1]), torch.nan)
        whole[torch.cat([chosen for chosen, _ in told]).to(whole.device)] = torch.cat([values for _, values in told])
        of_judges.append(whole)
    return of_judges


def _blocks(query_labels: Tensor, gallery: int, rows: dict[int, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Queries of one label at a time, with the ranks of the gallery for them."""
    for label, ranks in rows.items():
        for chosen in (query_labels == label).nonzero().squeeze(1).split(_block_rows(gallery)):
            yield chosen, ranks


def _find(queries: Tensor, gallery: Tensor, ranks: Tensor) -> _Found | None:
    """Where the items of rank 1 and more stand in the order of all; None if there are none."""
    if (ranks == EXCLUDED).any():
        kept = ranks != EXCLUDED
        gallery, ranks = gallery[kept], ranks[kept]
    items = (ranks > 0).nonzero().squeeze(1)
    if len(items) == 0:
        return None
    ascending = queries @ gallery.T
    scores = ascending[:, items]
    if ascending.device.type == "cpu":
        ascending.numpy().sort(axis=1)  # a third of the time of torch.sort, which also moves indices
    else:
        ascending = ascending.sort(dim=1).values
    above = len(gallery) - torch.searchsorted(ascending, scores, right=True)
    up_to = len(gallery) - torch.searchsorted(ascending, scores)
    device = _judging_device(queries)
    return _Found(ranks[items].to(device), scores.to(device), above.to(device), up_to.to(device), len(gallery))


def _judging_device(queries: Tensor) -> torch.device:
    """Where counts become means: with the queries, or on the CPU. NDCG takes differences of sums over the gallery."""
    return queries.device if has_float64(queries.device) else torch.device("cpu")


def _rank_rows(rank_source: RankSource, query_labels: Tensor, gallery_labels: Tensor) -> dict[int, Tensor]:
    """The ranks of the gallery for each label of a query."""
    labels = query_labels.unique()
    rows = rank_source(labels, gallery_labels)
    if rows.shape != (len(labels), len(gallery_labels)):
        raise ShapeError(
            f"rank_source must give ranks of shape {(len(labels), len(gallery_labels))}, got {tuple(rows.shape)}"
        )
    return dict(zip(labels.tolist(), rows.to(gallery_labels.device), strict=True))


def _block_rows(gallery: int) -> int:
    return max(1, BLOCK_BYTES // (4 * gallery))


def _check(
    queries: Tensor, gallery: Tensor, query_labels: Tensor, gallery_labels: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    queries, gallery = unit_vectors(queries, "queries"), unit_vectors(gallery.to(queries.device), "gallery")
    if queries.shape[1] != gallery.shape[1]:
        raise ShapeError(
            f"queries and gallery must have vectors of one length, got {queries.shape[1]} and {gallery.shape[1]}"
        )
    return (
        queries,
        gallery,
        check_labels(query_labels, queries, "query_labels"),
        check_labels(gallery_labels, gallery, "gallery_labels"),
    )
