"""How the similarities of a step lie, rank by rank."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

from torch import Tensor

WATCHED = 64  # queries of a batch: enough to see how similarities go, where all would cost as much as the loss


def similarity_summary(similarities: Tensor, ranks: Tensor, terms: int) -> dict[str, float]:
    """Mean similarity per rank and of negatives, and the share of violated orders between neighbouring ranks.

    An order is violated where a positive of rank i is no closer to the query than one of rank i + 1 (for the last rank:
    than a negative).

    Args:
        similarities: `(queries, candidates)`.
        ranks: likewise.
        terms: how many ranks there are.
    """
    summary = {}
    for rank in (*range(1, terms + 1), 0):
        chosen = similarities[ranks == rank]
        if len(chosen):
            summary[f"similarity/{rank or 'negative'}"] = chosen.mean().item()
    order = similarities.argsort(dim=1, descending=True, stable=True)
    ordered = ranks.gather(1, order)
    for rank in range(1, terms + 1):
        closer, further = ordered == rank, ordered == (rank + 1 if rank < terms else 0)
        pairs = (closer.sum(dim=1) * further.sum(dim=1)).sum().item()
        if pairs:
            wrong = (further.cumsum(dim=1) * closer).sum().item()
            summary[f"violated/{rank}"] = wrong / pairs
    return summary


def own_key_summary(similarities: Mapping[str, Tensor]) -> dict[str, float]:
    """Mean similarity of each kind of own key, and the share of queries to which the next kind is at least as close.

    Args:
        similarities: kind, from that which should be closest on → `(queries,)`; NaN for queries that lack it.
    """
    summary = {f"similarity/{kind}": values.nanmean().item() for kind, values in similarities.items()}
    for (closer, first), (further, second) in pairwise(similarities.items()):
        both = ~(first.isnan() | second.isnan())
        summary[f"violated/{closer}-{further}"] = (second >= first)[both].float().mean().item()
    return {name: value for name, value in summary.items() if not math.isnan(value)}  # no query has it
