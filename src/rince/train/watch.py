"""What a person wants to know while a run goes on, and what is worth a warning."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

WATCHED = 64  # queries of a batch: enough to see how similarities go, where all would cost as much as the loss
COLLAPSED = 0.95


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


class Watch:
    """Says once what looks wrong.

    Args:
        rank_count: ranks that should have positives; 0 for methods without ranks.
        steps_per_epoch: a rank counts as empty when a whole epoch has shown none of it.
    """

    def __init__(self, rank_count: int, steps_per_epoch: int) -> None:
        self._seen_positive = torch.zeros(rank_count, dtype=torch.bool)
        self._left = steps_per_epoch
        self._said: set[str] = set()

    def look(self, line: dict[str, Any]) -> list[str]:
        """Warnings this line gives rise to."""
        warnings = []
        for i in range(len(self._seen_positive)):
            self._seen_positive[i] |= line[f"queries/{i + 1}"] > 0
        self._left -= 1
        if self._left <= 0 and not self._seen_positive.all() and "empty" not in self._said:
            self._said.add("empty")
            empty = [str(i + 1) for i, seen in enumerate(self._seen_positive) if not seen]
            warnings.append(
                f"rank {', '.join(empty)} was empty in every batch of an epoch, so its term trains nothing; check the "
                "taxonomy with `rince train … --dry-run`, or use a larger bank"
            )
        if line.get("similarity/negative", -1.0) > COLLAPSED and line["epoch"] >= 1 and "collapse" not in self._said:
            self._said.add("collapse")
            warnings.append(
                f"negatives are at a mean similarity of {line['similarity/negative']:.2f}: the embedding has "
                "collapsed; try a lower optimizer.lr, a lower temperature, or a larger bank"
            )
        return warnings
