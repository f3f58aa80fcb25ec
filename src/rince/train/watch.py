"""What a person wants to know while a run goes on, and what is worth a warning."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

COLLAPSED = 0.95
EQUAL = 0.45  # of the pairs of two ranks, the share in the wrong order, from which neither is the closer one
RECENT, FEW = 20, 5  # lines that tell how a run ends, and how many of them are too few
FIRST, APART = 0.1, 0.125  # temperatures of the paper: τᵢ = 0.1 + 0.125 (i − 1)


class Watch:
    """Says once what looks wrong.

    Args:
        rank_count: ranks that should have positives; 0 for methods without ranks.
        steps_per_epoch: a rank counts as empty when a whole epoch has shown none of it.
        temperatures: of the ranks.
    """

    def __init__(self, rank_count: int, steps_per_epoch: int, temperatures: Sequence[float] = ()) -> None:
        self._temperatures = temperatures[:rank_count]
        self._wrong: dict[int, deque[float]] = {rank: deque(maxlen=RECENT) for rank in range(1, rank_count)}
        self._ranks = range(1, rank_count + 1)
        self._most: Tensor | None = None
        self._left = steps_per_epoch
        self._said: set[str] = set()

    def count(self, values: dict[str, Tensor]) -> None:
        """Takes note of a step, without a look at its values."""
        self._left -= 1
        if self._ranks and "empty" not in self._said:
            now = torch.stack([values[f"queries/{rank}"] for rank in self._ranks])
            self._most = now if self._most is None else torch.maximum(self._most, now)

    def look(self, line: dict[str, Any]) -> list[str]:
        """Warnings that the steps so far, and this line, give rise to."""
        warnings = []
        for rank, wrong in self._wrong.items():
            if f"violated/{rank}" in line:
                wrong.append(line[f"violated/{rank}"])
        if self._left <= 0 and self._most is not None and "empty" not in self._said:
            self._said.add("empty")  # looked at once: after an epoch, or never
            empty = [str(rank) for rank, most in zip(self._ranks, self._most.tolist(), strict=True) if most == 0]
            if empty:
                warnings.append(
                    f"rank {', '.join(empty)} was empty in every batch of an epoch, so its term trains nothing; check "
                    "the taxonomy with `rince train … --dry-run`, or use a larger bank"
                )
        if line.get("similarity/negative", -1.0) > COLLAPSED and line["epoch"] >= 1 and "collapse" not in self._said:
            self._said.add("collapse")
            warnings.append(
                f"negatives are at a mean similarity of {line['similarity/negative']:.2f}: the embedding has "
                "collapsed; try a lower optimizer.lr, a lower temperature, or a larger bank"
            )
        return warnings

    def end(self) -> list[str]:
        """Warnings that the last lines of a run that came to its end give rise to."""
        warnings = []
        for rank, wrong in self._wrong.items():
            if len(wrong) < FEW or len(self._temperatures) <= rank or sum(wrong) / len(wrong) < EQUAL:
                continue
            now, rule = self._temperatures[rank], FIRST + APART * rank
            wider = round(rule if now < rule else now + APART, 4)
            warnings.append(
                f"ranks {rank} and {rank + 1} end equally close: {100 * sum(wrong) / len(wrong):.0f} % of their pairs "
                f"stand in the wrong order. No temperature is sure to part them; try a wider gap, "
                f"loss.terms.{rank}.temperature={wider:g} (now {now:g}; the paper's are 0.1 + 0.125 (rank - 1)), or "
                "more epochs; `rince analyse run` tells what these temperatures can do"
            )
        return warnings
