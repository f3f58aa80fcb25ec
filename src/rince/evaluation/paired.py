"""Whether one method is better than another: the difference on the same test queries, and how sure it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rince.errors import DataError
from rince.inputs import Numbers, as_tensor, whole_number

CELLS = 2**20  # of a block of draws: it stays in the cache while they are counted
LOW, HIGH = 0.025, 0.975


class Difference(NamedTuple):
    """A difference of means over test queries, and its 95 % interval."""

    mean: float
    low: float
    high: float


def paired_difference(
    ours: Sequence[Numbers],
    theirs: Sequence[Numbers],
    *,
    groups: Numbers | None = None,
    resamples: int = 10_000,
    seed: int = 0,
) -> Difference:
    """How much larger our numbers are than theirs, query by query. Above 0, ours are larger.

    Every query has the mean over all seeds of each side. The interval is a bootstrap over the queries (percentiles):
    what other test samples would have given, not other seeds. Oracle: `scipy.stats.bootstrap`.

    Args:
        ours: for each seed `(queries,)`; NaN for a query that does not count.
        theirs: the same of other runs, on the same queries.
        groups: `(queries,)` integers, equal for queries that belong together, such as pieces of one film, which are
            right or wrong together. Whole groups are drawn then; else the interval would be too narrow.
        resamples: how many test sets are drawn.
        seed: of the draws.

    Example:
        >>> right, wrong = torch.tensor([1.0, 1, 1, 0]), torch.tensor([0.0, 1, 0, 0])
        >>> paired_difference([right], [wrong])
        Difference(mean=0.5, low=0.0, high=1.0)
    """
    if not ours or not theirs:
        raise DataError("a difference needs at least one seed of each side")
    named = {"ours": ours, "theirs": theirs}
    seeds = [[as_tensor(values, name).double() for values in side] for name, side in named.items()]
    lengths = {tuple(values.shape) for side in seeds for values in side}
    if len(lengths) > 1:
        raise DataError(f"paired numbers are of the same test queries; got shapes {', '.join(map(str, lengths))}")
    sides = [torch.stack(side).mean(dim=0) for side in seeds]
    together = None if groups is None else as_tensor(groups, "groups")
    return interval_of_means([sides[0] - sides[1]], groups=[together], resamples=resamples, seed=seed)[0]


def interval_of_means(
    columns: Sequence[Tensor],
    *,
    groups: Sequence[Tensor | None] | None = None,
    resamples: int = 10_000,
    seed: int = 0,
) -> list[Difference]:
    """For each column of `(queries,)` numbers, its mean and the 95 % bootstrap interval of that; NaN does not count.

    Columns of as many queries, or groups of them, share their draws, which is most of the work.

    Args:
        columns: of numbers.
        groups: for each column `(queries,)` integers, as of `paired_difference`; None where each query is by itself.
        resamples: how many test sets are drawn.
        seed: of the draws.
    """
    resamples = whole_number(resamples, "resamples")
    if not all(len(column) for column in columns):
        raise DataError("there are no test queries to draw from")
    groups = [None] * len(columns) if groups is None else groups
    found: list[Difference] = [Difference(torch.nan, torch.nan, torch.nan)] * len(columns)
    units = [_units(column, group) for column, group in zip(columns, groups, strict=True)]
    for number in {len(unit.counted) for unit in units}:
        places = [place for place, unit in enumerate(units) if len(unit.counted) == number]
        means = torch.stack([units[place].mean for place in places])
        around, counted = (
            torch.stack([getattr(units[place], what) for place in places], dim=1) for what in ("around", "counted")
        )
        drawn = torch.cat([(counts @ around) / (counts @ counted) for counts in _draws(number, resamples, seed)])
        # A draw of queries none of which counts says nothing.
        low, high = (means + drawn.nanquantile(share, dim=0) for share in (LOW, HIGH))
        for place, *numbers in zip(places, means.tolist(), low.tolist(), high.tolist(), strict=True):
            found[place] = Difference(*numbers)
    return found


class _Units(NamedTuple):
    """What is drawn: queries, or groups of them."""

    mean: Tensor
    """Of all queries."""
    around: Tensor
    """`(units,)`: sum over its queries of what they are above the mean; such small numbers lose no digits in a sum."""
    counted: Tensor
    """`(units,)`: how many of its queries count."""


def _units(column: Tensor, groups: Tensor | None) -> _Units:
    column = column.cpu().double()
    mean = column.nanmean()
    around, counted = (column - mean).nan_to_num(), (~column.isnan()).double()
    if groups is None:
        return _Units(mean, around, counted)
    if groups.shape != column.shape:
        raise DataError(
            f"every query has a group: got groups of shape {tuple(groups.shape)} for {tuple(column.shape)} queries"
        )
    names, numbers = groups.cpu().unique(return_inverse=True)
    sums = (torch.zeros(len(names), dtype=torch.float64).index_add(0, numbers, each) for each in (around, counted))
    return _Units(mean, *sums)


def _draws(units: int, resamples: int, seed: int) -> Iterator[Tensor]:
    """`(some, units)`: how often each query or group is drawn, in test sets of as many."""
    generator = torch.Generator().manual_seed(seed)
    for rows in torch.arange(resamples).split(max(1, CELLS // units)):
        cells = torch.randint(units, (len(rows), units), generator=generator)
        cells += torch.arange(len(rows))[:, None] * units
        yield cells.flatten().bincount(minlength=cells.numel()).view(len(rows), units).double()
