"""Metrics of a whole hierarchy in one number: hierarchical average precision, set intersection, common ancestors.

The first two are judges of what a block of queries finds, see `rince.evaluation.gallery`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rince.evaluation.gallery import Found


def hierarchical_precisions(found: Found, highest: int) -> Tensor:
    """`(queries, 1)`: hierarchical average precision, see `retrieval.hierarchical_average_precision`."""
    sizes = found.ranks.long().bincount(minlength=highest + 1)[1:].double()
    relevance = _relevance(sizes)
    ascending, order = found.scores.sort(dim=1)
    ranks = (found.ranks.long() - 1)[order]
    first_of_equal, up_to = torch.searchsorted(ascending, ascending), found.up_to.gather(1, order)
    summed = relevance.new_zeros(len(ascending))
    present = sizes.nonzero().squeeze(1)
    for rank in present.tolist():
        shared = relevance.clamp(max=float(relevance[rank]))[ranks]
        at_least_as_high = shared.flip(1).cumsum(1).flip(1).gather(1, first_of_equal)
        summed += (at_least_as_high / up_to).where(ranks == rank, 0).sum(dim=1)
    return (summed / (relevance * sizes)[present].sum())[:, None]


def _relevance(sizes: Tensor) -> Tensor:
    """`(ranks,)`: of an item of each rank; a level shares its weight among its items, and none outdoes a closer one."""
    levels = torch.arange(len(sizes), 0, -1, dtype=sizes.dtype, device=sizes.device) / len(sizes)
    return (levels / sizes).cummin(dim=0).values


def intersections(found: Found) -> Tensor:
    """`(queries, 1)`: average set intersection, see `retrieval.average_set_intersection`."""
    number, share = len(found.ranks), 1 / (found.up_to - found.above).double()
    places = torch.arange(1, number + 1, dtype=share.dtype, device=share.device)
    agreed, closer = share.new_zeros(len(share), number), 0
    for rank in found.ranks.unique():
        own = found.ranks == rank
        # An item stands at every place that it shares with its equals, with an equal part of itself.
        begins, ends = (each[:, own].clamp(max=number) for each in (found.above, found.up_to))
        parts = share.new_zeros(len(share), number + 1)
        parts.scatter_add_(1, begins, share[:, own]).scatter_add_(1, ends, -share[:, own])
        among_first = parts[:, :number].cumsum(1).cumsum(1)
        agreed += among_first.minimum((places - closer).clamp(0, int(own.sum())))
        closer += int(own.sum())
    return (agreed / places).mean(dim=1, keepdim=True)


def ancestor_heights(near: Tensor, query_levels: Sequence[Tensor], gallery_levels: Sequence[Tensor]) -> Tensor:
    """`(queries,)` int64: how many levels up the lowest common ancestor of a query and an item stands.

    0 where they are of one class, the number of levels where they have nothing in common but the root.

    Args:
        near: `(queries,)`: a row of the gallery for each query.
        query_levels: for every level, the classes first, `(queries,)` groups; below 0 for none.
        gallery_levels: the same for the gallery.
    """
    heights = torch.full_like(near, len(query_levels))
    for height, (own, others) in reversed(list(enumerate(zip(query_levels, gallery_levels, strict=True)))):
        shared = own.to(near.device) == others.to(near.device)[near]
        heights[shared & (own >= 0).to(near.device)] = height
    return heights


def chances(query_labels: Tensor, gallery_labels: Tensor, same: Tensor | None = None) -> Tensor:
    """`(queries,)`: share of the gallery that has the query's label: R@1 of a neighbour that is drawn blindly.

    Args:
        query_labels: `(queries,)`.
        gallery_labels: `(gallery,)`.
        same: `(queries,)`: the row of each query in the gallery, which it does not find; -1 for none. None: none has.
    """
    query_labels, gallery_labels = query_labels.cpu(), gallery_labels.cpu()
    labels, counts = gallery_labels.unique(return_counts=True)
    place = torch.searchsorted(labels, query_labels).clamp(max=len(labels) - 1)
    right = counts[place].where(labels[place] == query_labels, 0)
    itself = torch.zeros_like(right) if same is None else (same.cpu() >= 0).long()
    share: Tensor = (right - itself).clamp(min=0).double() / (len(gallery_labels) - itself).clamp(min=1)
    return share
