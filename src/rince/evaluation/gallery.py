"""What queries find in a gallery, in blocks: the queries × gallery matrix is never whole in memory.

Blocks of `BLOCK_BYTES` are worked on, one per core, or one after the other on the device of the queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

from rince.devices import has_float64
from rince.errors import DataError
from rince.evaluation.vectors import check_same, without_same
from rince.inputs import Numbers
from rince.ranks import EXCLUDED

BLOCK_BYTES = 2**25


class Found(NamedTuple):
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


Judge = Callable[[Found], Tensor]
"""From what a block of queries found to `(queries, numbers)`."""


class _Block(NamedTuple):
    """Queries that have as many items to find of each rank."""

    rows: Tensor
    """`(block,)`: of the queries."""
    ranks: Tensor
    """`(gallery,)`: of the items for them."""
    own: Tensor | None
    """`(block,)`: the row of each in the gallery, of one rank for all of them; None if none has any."""


def of_queries(
    queries: Tensor,
    gallery: Tensor,
    query_labels: Tensor,
    rows: dict[int, Tensor],
    judges: Sequence[Judge],
    same: Numbers | None = None,
) -> list[Tensor]:
    """For every judge `(queries, numbers)`, NaN for queries that have nothing to find.

    Args:
        queries: `(queries, dim)` unit vectors.
        gallery: `(gallery, dim)` unit vectors.
        query_labels: `(queries,)`.
        rows: the gallery's ranks for each label.
        judges: what becomes of what a block of queries finds.
        same: `(queries,)`: the row of each query in the gallery, which it does not find; -1 for none.
    """

    def work(block: _Block) -> list[Tensor] | None:
        found = _find(queries[block.rows], gallery, block.ranks, block.own)
        return None if found is None else [judge(found) for judge in judges]

    blocks = list(_blocks(query_labels, len(gallery), rows, check_same(same, queries, gallery)))
    if queries.device.type == "cpu":
        # Each block takes one core: NumPy's sort, which takes most of the time, knows no threads but lets others run.
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            found = list(pool.map(work, blocks))
    else:
        found = list(map(work, blocks))
    of_judges = []
    for number in range(len(judges)):
        pairs = zip(blocks, found, strict=True)
        told = [(block.rows, values[number]) for block, values in pairs if values and values[number].shape[1]]
        if not told:
            but = "" if same is None else " but itself"
            raise DataError(
                f"no query has anything to find in the gallery{but}; do queries and gallery share their labels?"
            )
        whole = told[0][1].new_full((len(queries), told[0][1].shape[1]), torch.nan)
        whole[torch.cat([chosen for chosen, _ in told]).to(whole.device)] = torch.cat([values for _, values in told])
        of_judges.append(whole)
    return of_judges


def _blocks(query_labels: Tensor, gallery: int, rows: dict[int, Tensor], same: Tensor | None) -> Iterator[_Block]:
    """Queries of one label at a time; of these, those that are not to find an item of one rank, themselves."""
    for label, ranks in rows.items():
        chosen = (query_labels == label).nonzero().squeeze(1)
        if same is None:
            left_out = torch.full_like(chosen, EXCLUDED)
        else:
            own = same[chosen]
            left_out = torch.where(own >= 0, ranks[own.clamp(min=0)].long(), EXCLUDED)
        for rank in left_out.unique().tolist():
            for part in chosen[left_out == rank].split(block_rows(gallery)):
                yield _Block(part, ranks, None if same is None or rank == EXCLUDED else same[part])


def _find(queries: Tensor, gallery: Tensor, ranks: Tensor, own: Tensor | None) -> Found | None:
    """Where the items of rank 1 and more stand in the order of all; None if there are none."""
    if (ranks == EXCLUDED).any():
        kept = ranks != EXCLUDED
        gallery, ranks = gallery[kept], ranks[kept]
        own = None if own is None else (kept.cumsum(0) - 1)[own]
    items = (ranks > 0).nonzero().squeeze(1)
    ranks = ranks[items]
    ascending = without_same(queries @ gallery.T, own)
    scores = ascending[:, items]
    if own is not None and bool((items == own[0]).any()):
        # One item less for every query, another one for each but of one rank: sorted by rank they still agree.
        by_rank = ranks.argsort(stable=True)
        others = items[by_rank] != own[:, None]
        scores = scores[:, by_rank][others].view(len(queries), len(items) - 1)
        ranks = ranks[by_rank][others[0]]
    if len(ranks) == 0:
        return None
    if ascending.device.type == "cpu":
        ascending.numpy().sort(axis=1)  # a third of the time of torch.sort, which also moves indices
    else:
        ascending = ascending.sort(dim=1).values
    above = len(gallery) - torch.searchsorted(ascending, scores, right=True)
    up_to = len(gallery) - torch.searchsorted(ascending, scores)
    device, number = judging_device(queries), len(gallery) - int(own is not None)
    return Found(ranks.to(device), scores.to(device), above.to(device), up_to.to(device), number)


def judging_device(queries: Tensor) -> torch.device:
    """Where counts become means: with the queries, or on the CPU. NDCG takes differences of sums over the gallery."""
    return queries.device if has_float64(queries.device) else torch.device("cpu")


def block_rows(gallery: int) -> int:
    """How many queries make a block."""
    return max(1, BLOCK_BYTES // (4 * gallery))
