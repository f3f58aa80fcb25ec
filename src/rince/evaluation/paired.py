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
    ours: Sequence[Numbers], theirs: Sequence[Numbers], *, resamples: int = 10_000, seed: int = 0
) -> Difference:
    """How much larger our numbers are than theirs, query by query. Above 0, ours are larger.

    Every query has the mean over all seeds of each side. The interval is a bootstrap over the queries (percentiles):
    what other test samples would have given, not other seeds. Oracle: `scipy.stats.bootstrap`.

    Args:
        ours: for each seed `(queries,)`; NaN for a query that does not count.
        theirs: the same of other runs, on the same queries.
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
    return interval_of_means([sides[0] - sides[1]], resamples=resamples, seed=seed)[0]


def interval_of_means(columns: Sequence[Tensor], *, resamples: int = 10_000, seed: int = 0) -> list[Difference]:
    """For each column of `(queries,)` numbers, its mean and the 95 % bootstrap interval of that; NaN does not count.

    Columns of the same length share their draws, which is most of the work.
    """
    resamples = whole_number(resamples, "resamples")
    if not all(len(column) for column in columns):
        raise DataError("there are no test queries to draw from")
    found: list[Difference] = [Difference(torch.nan, torch.nan, torch.nan)] * len(columns)
    for length in {len(column) for column in columns}:
        places = [place for place, column in enumerate(columns) if len(column) == length]
        table = torch.stack([columns[place].cpu().double() for place in places], dim=1)
        counted = (~table.isnan()).double()
        means = table.nanmean(dim=0)
        around = (table - means).nan_to_num()  # small numbers lose no digits in a sum
        drawn = torch.cat([(counts @ around) / (counts @ counted) for counts in _draws(length, resamples, seed)])
        # A draw of queries none of which counts says nothing.
        low, high = (means + drawn.nanquantile(share, dim=0) for share in (LOW, HIGH))
        for place, *numbers in zip(places, means.tolist(), low.tolist(), high.tolist(), strict=True):
            found[place] = Difference(*numbers)
    return found


def _draws(queries: int, resamples: int, seed: int) -> Iterator[Tensor]:
    """`(some, queries)`: how often each query is drawn, in test sets of the same size."""
    generator = torch.Generator().manual_seed(seed)
    for rows in torch.arange(resamples).split(max(1, CELLS // queries)):
        cells = torch.randint(queries, (len(rows), queries), generator=generator)
        cells += torch.arange(len(rows))[:, None] * queries
        yield cells.flatten().bincount(minlength=cells.numel()).view(len(rows), queries).double()
