"""Whether a run has come to rest, told from its log: only then does the equilibrium say where its ranks lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rince.train.record import logged_lines

LAST, STILL, LEAST = 0.2, 0.02, 5  # the part that is looked at; how far a rank may move in it; lines that it takes


@dataclass(frozen=True)
class Rest:
    """What decides whether the prediction holds.

    Attributes:
        moved: of every rank, by how much its similarity moved in the last fifth of training; empty if the log is too
            short to tell.
        first: similarity of rank 1.
        starts: similarity of rank 1 from which on the ranks rest in order; None if they never do.
    """

    moved: tuple[float, ...]
    first: float
    starts: float | None

    @property
    def holds(self) -> bool:
        """Whether the ranks stand still, and rank 1 is close enough for them to be in order."""
        still = bool(self.moved) and max(map(abs, self.moved)) <= STILL
        return still and self.starts is not None and self.first >= self.starts

    @property
    def text(self) -> str:
        """A sentence for a person."""
        if not self.moved:
            return "the log is too short to tell whether it is at rest; read the prediction as where it is going"
        rank = max(range(len(self.moved)), key=lambda each: abs(self.moved[each]))
        if abs(self.moved[rank]) > STILL:
            return (
                f"not yet at rest: rank {rank + 1} moved by {self.moved[rank]:+.2f} in the last fifth of training; "
                "read the prediction as where it is going"
            )
        if self.starts is None:
            return "no rank moves any more, but these temperatures never rest in order: the prediction does not hold"
        if self.first < self.starts:
            return (
                f"no rank moves any more, but rank 1, at {self.first:.2f}, has not come to {self.starts:.2f}, from "
                "where on the ranks rest in order: the prediction does not hold; train longer, or at a higher rate"
            )
        return (
            f"at rest: no rank moved by more than {STILL} in the last fifth of training, and rank 1 is above "
            f"{self.starts:.2f}, from where on the ranks rest in order: the prediction holds"
        )


def rest_of(folder: Path, ranks: int, first: float, starts: float | None) -> Rest:
    """Of a run, by its log.

    Args:
        folder: of the run.
        ranks: how many.
        first: similarity of rank 1.
        starts: from which on they are in order.
    """
    return Rest(moved_in_the_end(logged_lines(folder), ranks), first, starts)


def moved_in_the_end(lines: Sequence[Mapping[str, float]], ranks: int) -> tuple[float, ...]:
    """By how much the similarity of every rank moved in the last fifth of training; empty if there is too little.

    Training is measured by the learning rate spent, not by steps: where the rate falls to zero everything stands still
    in the end, at rest or not. The move is that of a straight line through all points.

    Args:
        lines: of the log.
        ranks: how many.
    """
    names = [f"similarity/{rank}" for rank in range(1, ranks + 1)]
    having = [line for line in lines if all(name in line for name in names)]
    spent = np.cumsum([line.get("lr", 1.0) for line in having])
    if not len(spent) or spent[-1] <= 0:
        return ()
    last = spent >= (1 - LAST) * spent[-1]
    if last.sum() < LEAST:
        return ()
    places = spent[last] - spent[last].mean()
    values = np.array([[line[name] for name in names] for line in having])[last]
    slopes = places @ (values - values.mean(axis=0)) / (places**2).sum()
    return tuple(float(slope) * float(np.ptp(places)) for slope in slopes)
