"""Exact search: the nearest items of a gallery, in blocks of queries, so that no whole matrix is in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from rince.evaluation.gallery import block_rows
from rince.evaluation.vectors import without_same


def nearest(queries: Tensor, gallery: Tensor, k: int, *, same: Tensor | None = None) -> Tensor:
    """`(queries, k)`: the nearest items of the gallery by inner product, nearest first; of equal ones, the first.

    Args:
        queries: `(queries, dim)`.
        gallery: `(gallery, dim)`.
        k: how many.
        same: `(queries,)`: the row of each query in the gallery, which comes after all others; -1 for none.
    """
    first = _first_of_equal(gallery)
    blocks = torch.arange(len(queries), device=queries.device).split(block_rows(len(gallery)))
    owns = [None if same is None else same[rows] for rows in blocks]
    found = [_nearest(_cosines(queries[rows], gallery, first), k, own) for rows, own in zip(blocks, owns, strict=True)]
    return torch.cat(found) if found else torch.empty(0, k, dtype=torch.int64, device=queries.device)


def _nearest(scores: Tensor, k: int, same: Tensor | None) -> Tensor:
    scores = without_same(scores, same)
    if k == 1:
        return scores.argmax(dim=1, keepdim=True)  # the first, where there are several
    found = scores.topk(min(k + 1, scores.shape[1]), dim=1)
    # `topk` takes any of equal ones, in any order: put in order what it took, and look again where it left some out.
    near = found.indices[:, :k].sort(dim=1).values
    near = near.gather(1, scores.gather(1, near).sort(dim=1, descending=True, stable=True).indices)
    split = (found.values[:, k - 1] == found.values[:, -1]).nonzero().squeeze(1)
    if k < scores.shape[1] and len(split):
        near[split] = scores[split].sort(dim=1, descending=True, stable=True).indices[:, :k]
    return near


def _cosines(queries: Tensor, gallery: Tensor, first: Tensor | None) -> Tensor:
    """`(queries, gallery)`, one number for equal items, which a product of matrices alone does not promise."""
    scores = queries @ gallery.T
    return scores if first is None else scores[:, first]


def _first_of_equal(gallery: Tensor) -> Tensor | None:
    """`(gallery,)`: the first item that equals each, if not itself; None if all items differ."""
    bits = (gallery.float() + 0.0).view(torch.int32)  # + 0.0: there are two zeros, and they are equal
    odd = 2 * torch.randint(2**30, bits.shape[1:], dtype=torch.int32, generator=torch.Generator().manual_seed(0)) + 1
    _, groups = (bits * odd.to(bits.device)).sum(dim=1).unique(return_inverse=True)
    rows = torch.arange(len(gallery), device=gallery.device)
    first = rows.scatter_reduce(0, groups, rows, "amin", include_self=False)[groups]
    again = (first != rows).nonzero().squeeze(1)
    again = again[(gallery[again] == gallery[first[again]]).all(dim=1)]  # others share a sum by chance
    if len(again) == 0:
        return None
    rows[again] = first[again]
    return rows


class Near(NamedTuple):
    """What queries find, nearest first."""

    cosines: Tensor
    """`(queries, k)`."""
    rows: Tensor
    """`(queries, k)` int64, in the gallery."""


def nearest_in_blocks(queries: Tensor, blocks: Iterable[Tensor], k: int) -> Near:
    """The k nearest items of a gallery that comes block by block; fewer if it has fewer. Of equal ones, the first.

    No more of the gallery than a block is in memory. The answer is exact.

    Args:
        queries: `(queries, dim)` unit vectors.
        blocks: `(some, dim)` unit vectors each, in the order of their rows.
        k: how many.
    """
    best, start = Near(queries.new_empty(len(queries), 0), queries.new_empty(len(queries), 0, dtype=torch.int64)), 0
    for block in blocks:
        items = block.to(queries.device)
        rows = nearest(queries, items, min(k, len(items)))
        cosines = (
            torch.cat([(part[:, None] * items[at]).sum(dim=2) for part, at in _in_parts(queries, rows)])
            if len(queries)
            else best.cosines
        )
        both = Near(torch.cat([best.cosines, cosines], dim=1), torch.cat([best.rows, rows + start], dim=1))
        order = both.cosines.sort(dim=1, descending=True, stable=True).indices[:, :k]
        best, start = Near(both.cosines.gather(1, order), both.rows.gather(1, order)), start + len(items)
    return best


def _in_parts(queries: Tensor, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Queries and what they found, so many at a time that the vectors found take no more than a block."""
    size = block_rows(max(1, rows.shape[1] * queries.shape[1]))
    yield from zip(queries.split(size), rows.split(size), strict=True)
