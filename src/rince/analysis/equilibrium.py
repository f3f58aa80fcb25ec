"""Where opposing terms come to rest: ℓ₁ pushes the positives of rank 2 away, ℓ₂ pulls them closer (appendix).

K(h(q,p₁), h(q,p₂)) = ∂ℓ₁/∂h(q,p₂) + ∂ℓ₂/∂h(q,p₂) says who wins. Where K > 0, ℓ₁ does, and h(q,p₂) falls; where K < 0,
ℓ₂ does, and it grows. The line K = 0 is where training can leave it. As long as all positives of a rank are equally
close, every ℓᵢ is convex in the similarities of the ranks, so that there is exactly one such place for each h(q,p₁).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

import torch
from torch import Tensor

from rince.errors import ConfigError, DataError, ShapeError
from rince.loss import OverPositives, RankTerm, term_values
from rince.ranks import EXCLUDED

NEGATIVES, MEAN, SPREAD = 100, 0.1, 0.1
"""The paper's N(0.1, 0.1); it does not say how many. With a hundred all lines of its figures lie within cosines."""
HALVINGS, SWEEPS, CLOSE_ENOUGH = 44, 200, 1e-10
LINE = torch.linspace(-1, 1, 81, dtype=torch.float64)  # similarities of rank 1


def normal_negatives(number: int = NEGATIVES, mean: float = MEAN, spread: float = SPREAD) -> Tensor:
    """`(number,)` float64: negatives spread evenly over the quantiles of a Gaussian, cut off at cosines ±1.

    >>> normal_negatives(3, mean=0.1, spread=0.1)
    tensor([0.0033, 0.1000, 0.1967], dtype=torch.float64)
    """
    if number < 1:
        raise ConfigError(f"there must be at least 1 negative, got {number}")
    if not (spread >= 0 and -1 <= mean <= 1):
        raise ConfigError(f"negatives need a mean within ±1 and a spread of at least 0, got {mean} and {spread}")
    quantiles = (torch.arange(number, dtype=torch.float64) + 0.5) / number
    standard: Tensor = torch.special.ndtri(quantiles)
    return (mean + spread * standard).clamp(-1, 1)


def trade_off(first: Tensor, second: Tensor, temperatures: tuple[float, float], negatives: Tensor) -> Tensor:
    """K of the appendix in closed form, for one positive of each rank. Positive: h(q,p₂) is pushed down.

    Args:
        first: h(q,p₁), of any shape.
        second: h(q,p₂), of a shape that goes with it.
        temperatures: τ₁ and τ₂, in any order.
        negatives: `(negatives,)` similarities.

    Example:
        >>> first, second = torch.tensor(0.9), torch.tensor([0.2, 0.95])
        >>> trade_off(first, second, (0.1, 0.2), normal_negatives().float())
        tensor([-4.9195,  3.0124])
    """
    one, two = _checked(temperatures)
    if negatives.ndim != 1 or len(negatives) == 0:
        raise ShapeError(f"negatives must be a vector of at least one similarity, got shape {tuple(negatives.shape)}")
    in_first, in_second = (torch.logsumexp(negatives / t, dim=0) for t in (one, two))
    all_of_first = torch.logaddexp(torch.logaddexp(first / one, second / one), in_first)
    push = (second / one - all_of_first).exp() / one
    pull = torch.sigmoid(in_second - second / two) / two
    return push - pull


def equilibrium_line(first: Tensor, temperatures: tuple[float, float], negatives: Tensor) -> Tensor:
    """The equilibrium line: h(q,p₂) with K = 0 for every h(q,p₁).

    A cosine cannot leave [-1, 1]: where no K = 0 lies within, the end that the gradient leads to.

    Args:
        first: h(q,p₁), of any shape.
        temperatures: τ₁ and τ₂, in any order.
        negatives: `(negatives,)` similarities.

    Example:
        >>> equilibrium_line(torch.tensor([0.2, 0.9]), (0.1, 0.2), normal_negatives().float())
        tensor([0.5920, 0.8494])
    """
    ends = torch.ones_like(first)
    return _rising_root(lambda second: trade_off(first, second, temperatures, negatives), -ends, ends)


def ranking_starts(temperatures: tuple[float, float], negatives: Tensor) -> float:
    """The smallest h(q,p₁) from which on the equilibrium has h(q,p₂) below it; infinite if no cosine is enough."""
    one = torch.ones((), dtype=torch.float64)
    if trade_off(one, one, temperatures, negatives) <= 0:
        return math.inf
    return float(_rising_root(lambda both: trade_off(both, both, temperatures, negatives), -one, one))


class RankBalance:
    """The same for any number of ranks, by autograd of the loss itself.

    Every point is a query whose positives of one rank are all equally close; so its state is one similarity per rank.

    Args:
        terms: one per rank, of any kind.
        log_negatives: `(points or 1, ranks)`: log Σ exp(s/τᵢ) over the negatives. See `from_negatives`.
        counts: `(points or 1, ranks)` integers: positives of every rank; by default one of each.
        over_positives: as in `ranked_info_nce`.
    """

    def __init__(
        self,
        terms: Sequence[RankTerm],
        log_negatives: Tensor,
        counts: Tensor | None = None,
        over_positives: OverPositives = "mean",
    ) -> None:
        self.terms, self.over_positives = tuple(terms), over_positives
        number = len(self.terms)
        counts = torch.ones(1, number, dtype=torch.int64) if counts is None else counts
        for name, given in (("log_negatives", log_negatives), ("counts", counts)):
            if given.ndim != 2 or given.shape[1] != number:
                raise ShapeError(f"{name} must be (points, {number}), one column per term; got {tuple(given.shape)}")
        if int(counts.min()) < 0 or int(counts[:, 0].min()) < 1:
            raise DataError("every point needs a positive of rank 1, and no count may be negative")
        self.log_negatives, self.counts = log_negatives.double(), counts
        most = counts.amax(dim=0).tolist()
        self._columns = torch.cat([torch.full((m,), rank) for rank, m in enumerate(most)])
        place = torch.cat([torch.arange(m) for m in most])
        present = place < counts[:, self._columns]
        self._ranks = torch.where(present, self._columns + 1, EXCLUDED).to(torch.int8)

    @classmethod
    def from_negatives(
        cls,
        terms: Sequence[RankTerm],
        negatives: Tensor,
        counts: Sequence[int] | None = None,
        over_positives: OverPositives = "mean",
    ) -> Self:
        """With the same `(negatives,)` and positives at all points."""
        sums = [torch.logsumexp(negatives.double() / term.temperature, dim=0) for term in terms]
        table = None if counts is None else torch.tensor([list(counts)])
        return cls(terms, torch.stack(sums)[None], table, over_positives)

    def gradients(self, similarities: Tensor) -> Tensor:
        """`(points, ranks)`: for each rank K, the sum of the gradients of all terms on its similarity.

        Args:
            similarities: `(points, ranks)`.
        """
        leaf = similarities.detach().double().requires_grad_()
        candidates = leaf[:, self._columns]
        ranks, outside = (x.expand(len(leaf), -1) for x in (self._ranks, self.log_negatives))
        values = term_values(candidates, ranks, self.terms, self.over_positives, outside).unbind(dim=1)
        weighed = [term.weight * value.sum() for term, value in zip(self.terms, values, strict=True)]
        return torch.autograd.grad(torch.stack(weighed).sum(), leaf)[0]

    def equilibrium(self, first: Tensor) -> Tensor:
        """Where all ranks come to rest: `(points, ranks)`, the first column as given, NaN for a rank without positives.

        Rank after rank is brought to K = 0, again and again until none moves; the loss is convex, so they settle.

        Args:
            first: `(points,)` similarities of rank 1, which nothing pushes away and so has no equilibrium of its own.
        """
        now = first.double()[:, None].repeat(1, len(self.terms))

        def at(rank: int, value: Tensor) -> Tensor:
            now[:, rank] = value
            return self.gradients(now)[:, rank]

        reach, halvings = 2.0, HALVINGS
        for _ in range(SWEEPS):
            before = now.clone()
            for rank in range(1, len(self.terms)):
                place = now[:, rank].clone()
                low, high = (place - reach).clamp(min=-1), (place + reach).clamp(max=1)
                now[:, rank] = _rising_root(partial(at, rank), low, high, halvings)
            moved = float((now - before).abs().max())
            if moved < CLOSE_ENOUGH:
                break
            reach, halvings = 2 * moved, HALVINGS // 4  # from now on they only creep
        return torch.where(self.counts.expand_as(now) > 0, now, torch.nan)

    def starts(self) -> float | None:
        """The similarity of rank 1 from which on all ranks rest in order, in steps of 1/40; None if they never do."""
        lines = self.equilibrium(LINE)
        ordered = (lines.diff(dim=1) < -1e-5).all(dim=1).tolist()  # at 1 they may stop just below
        wrong = max((place for place, right in enumerate(ordered) if not right), default=-1)
        return float(LINE[wrong + 1]) if wrong + 1 < len(LINE) else None


def _rising_root(function: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, halvings: int = HALVINGS) -> Tensor:
    """Where a rising function is 0 between `low` and `high`, elementwise, by bisection; the end it would leave by."""
    for _ in range(halvings):
        middle = (low + high) / 2
        below = function(middle) < 0
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2


def _checked(temperatures: tuple[float, float]) -> tuple[float, float]:
    if len(temperatures) != 2 or not all(math.isfinite(t) and t > 0 for t in temperatures):
        raise ConfigError(f"temperatures must be two positive numbers, τ₁ and τ₂; got {tuple(temperatures)}")
    one, two = temperatures
    return one, two
