"""The equilibrium turned round: from the similarities one wants to the temperatures that lead there."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rince.analysis.equilibrium import RankBalance
from rince.errors import ConfigError
from rince.loss import OverPositives, RankTerm

HIGHEST = 2.0  # cosines differ by 2 at most: above this, a term sees all of its opponents alike
NARROWEST = 0.02


@dataclass(frozen=True)
class Advice:
    """Temperatures, and what to expect of them.

    Attributes:
        terms: one per rank.
        wanted: the similarity that was asked for, of every rank.
        expected: the equilibrium of every rank with these (rounded) temperatures, rank 1 being where it should be.
        starts: similarity of rank 1 from which on all ranks are in order; None if they never are.
        follows: by how much every rank moves when rank 1 moves by 1, from 0 (not at all) on.
        negatives: their mean similarity.
    """

    terms: tuple[RankTerm, ...]
    wanted: tuple[float, ...]
    expected: tuple[float, ...]
    starts: float | None
    follows: tuple[float, ...]
    negatives: float

    @property
    def temperatures(self) -> tuple[float, ...]:
        """Of the terms."""
        return tuple(term.temperature for term in self.terms)

    @property
    def overrides(self) -> list[str]:
        """To paste behind `rince train RECIPE`, for a recipe that has as many terms."""
        return [f"loss.terms.{i}.temperature={t:g}" for i, t in enumerate(self.temperatures)]

    @property
    def whole_override(self) -> str:
        """The same for any recipe: it replaces the list of terms, and needs quotes in a shell."""
        terms = ", ".join(f"{{temperature: {t.temperature:g}, positives: {t.positives}}}" for t in self.terms)
        return f"loss.terms=[{terms}]"


def advise(
    closest: float,
    gap: float | Sequence[float] | None,
    terms: Sequence[RankTerm],
    negatives: Tensor,
    *,
    counts: Sequence[int] | None = None,
    over_positives: OverPositives = "mean",
) -> Advice:
    """Temperatures whose equilibrium leaves `gap` between the similarities of neighbouring ranks.

    Rank after rank: K of rank r depends on no temperature above τᵣ, so each is one root to find, and the first, which
    has none, stays as given. Of two roots it is the higher, where a higher temperature lowers the rank.

    Args:
        closest: the similarity that rank 1 will reach.
        gap: wanted between a rank and the next; one for all, or one for each step. None: what spreads the ranks evenly
            from rank 1 to the mean of the negatives, or comes nearest to that among what can be had.
        terms: one per rank; of all but the first, the temperature is replaced.
        negatives: `(negatives,)` similarities.
        counts: positives that a query has of every rank; by default one of each.
        over_positives: as in `ranked_info_nce`.

    Raises:
        ConfigError: where no temperature leads there, with the gaps that can be had.
    """
    terms = tuple(terms)
    if len(terms) < 2:
        raise ConfigError(f"advice is about two ranks or more, got {len(terms)}")
    scene = _Scene(negatives.double(), counts, over_positives)
    if gap is None:
        even = (closest - float(scene.negatives.mean())) / len(terms)
        gap = min(_reachable(scene, terms, closest), key=lambda one: abs(one - even), default=max(even, NARROWEST))
    gaps = [gap] * (len(terms) - 1) if isinstance(gap, int | float) else list(gap)
    if len(gaps) != len(terms) - 1:
        raise ConfigError(f"{len(terms)} ranks have {len(terms) - 1} gaps between them, got {len(gaps)}")
    if not (-1 < closest <= 1 and min(gaps) > 0 and closest - sum(gaps) >= -1):
        raise ConfigError(
            f"rank 1 at {closest:g} and gaps of {', '.join(f'{one:g}' for one in gaps)} leave the cosines; gaps must "
            "be positive, and end above -1"
        )
    wanted = list(itertools.accumulate(gaps, lambda place, one: place - one, initial=closest))
    found = scene.solve(terms, wanted)
    if isinstance(found, str):
        raise ConfigError(f"{found}; {_what_can_be_had(scene, terms, closest)}")
    rounded = tuple(replace(term, temperature=float(f"{term.temperature:.3g}")) for term in found)
    return _told(scene, rounded, wanted)


@dataclass(frozen=True)
class _Scene:
    """What stays the same while temperatures are tried."""

    negatives: Tensor
    counts: Sequence[int] | None
    over_positives: OverPositives

    def balance(self, terms: Sequence[RankTerm]) -> RankBalance:
        return RankBalance.from_negatives(terms, self.negatives, self.counts, self.over_positives)

    def solve(self, terms: Sequence[RankTerm], wanted: Sequence[float], tries: int = 60) -> tuple[RankTerm, ...] | str:
        """The terms with temperatures found, or what stands in the way."""
        now, place = list(terms), torch.tensor([list(wanted)], dtype=torch.float64)

        def net(rank: int, temperature: float) -> float:
            now[rank] = replace(terms[rank], temperature=temperature)
            return float(self.balance(now).gradients(place)[0, rank])

        for rank in range(1, len(terms)):
            lowest = now[rank - 1].temperature
            ratio = (HIGHEST / lowest) ** (1 / tries)
            grid = [lowest * ratio**i for i in range(tries + 1)]
            values = [net(rank, temperature) for temperature in grid]
            if values[-1] < 0:
                return f"rank {rank + 1} cannot be kept as low as {wanted[rank]:.2f}: even τ = {HIGHEST:g} pulls it up"
            rises = [i for i in range(tries) if values[i] < 0 <= values[i + 1]]
            if not rises:
                return (
                    f"rank {rank + 1} cannot be held as close as {wanted[rank]:.2f}: no temperature from {lowest:.3g} "
                    "on pulls hard enough"
                )
            low, high = grid[rises[-1]], grid[rises[-1] + 1]
            for _ in range(30):
                middle = (low + high) / 2
                low, high = (middle, high) if net(rank, middle) < 0 else (low, middle)
            now[rank] = replace(terms[rank], temperature=(low + high) / 2)
        return tuple(now)


def _reachable(scene: _Scene, terms: Sequence[RankTerm], closest: float) -> list[float]:
    """The gaps for which there is an answer, in steps."""
    steps = int((closest + 1) / (len(terms) - 1) / NARROWEST)
    return [
        gap
        for gap in (NARROWEST * i for i in range(1, steps + 1))
        if not isinstance(scene.solve(terms, [closest - gap * i for i in range(len(terms))], tries=20), str)
    ]


def _what_can_be_had(scene: _Scene, terms: Sequence[RankTerm], closest: float) -> str:
    gaps, first = _reachable(scene, terms, closest), f"with τ1 = {terms[0].temperature:g} and rank 1 at {closest:.2f}"
    if not gaps:
        return f"{first} no equal gaps can be had; try another τ1"
    return f"{first}, equal gaps from {min(gaps):.2f} to {max(gaps):.2f} can be had"


def _told(scene: _Scene, terms: tuple[RankTerm, ...], wanted: Sequence[float]) -> Advice:
    balance, step = scene.balance(terms), 0.01
    found = balance.equilibrium(torch.tensor([wanted[0], wanted[0] - step], dtype=torch.float64))
    return Advice(
        terms,
        tuple(wanted),
        tuple(found[0].tolist()),
        balance.starts(),
        tuple(((found[0] - found[1]) / step).tolist()),
        float(scene.negatives.mean()),
    )


def advice_text(advice: Advice) -> str:
    """For a terminal: the proposal, what to expect, and what to paste."""
    lines = ["temperatures: " + ", ".join(f"τ{i} = {t:g}" for i, t in enumerate(advice.temperatures, 1))]
    for rank, (similarity, wanted, follows) in enumerate(
        zip(advice.expected, advice.wanted, advice.follows, strict=True), start=1
    ):
        if rank == 1:
            lines.append(f"rank 1: taken to reach {similarity:.2f}; nothing opposes it")
            continue
        moves = (
            "follows it closely" if follows > 0.6 else "follows it halfway" if follows > 0.2 else "hardly follows it"
        )
        lines.append(
            f"rank {rank}: expect about {similarity:.2f} (wanted {wanted:.2f}); when rank 1 moves, it {moves} "
            f"({follows:+.2f} for +1)"
        )
    lines.append(f"negatives: taken to lie at {advice.negatives:.2f} on average; training may move them")
    lines.append(
        f"the ranks are in order once rank 1 is above {advice.starts:.2f}; before that, early in training, they are not"
        if advice.starts is not None
        else "the ranks are never all in order, however close rank 1 gets; ask for a wider gap"
    )
    lines += [
        "",
        "paste behind `rince train RECIPE`, for a recipe with as many terms:",
        "  " + " ".join(advice.overrides),
    ]
    lines += ["or, for any recipe:", f"  '{advice.whole_override}'"]
    return "\n".join(lines)
