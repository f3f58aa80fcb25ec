"""Which triplets are violated, counted without ever making the product of positives and opponents."""

from __future__ import annotations

import torch
from torch import Tensor

from rince.devices import looking_is_free


@torch.no_grad()
def violated(reaches: Tensor, positives: Tensor, levels: Tensor, opponents: Tensor) -> tuple[Tensor, Tensor]:
    """How often every positive and every opponent of a query is in a violated triplet.

    A triplet is violated where the opponent's level lies below the positive's reach, by how much it is violated. So the
    violations of a query add up to `(counts * reaches).sum() - (beyond * levels).sum()`, whose gradient is theirs. Both
    counts come from one search of the opponents among the sorted positives.

    Args:
        reaches: `(queries, candidates)`, of positives.
        positives: `(queries, candidates)` bool, which candidates are.
        levels: `(queries, candidates)`, of opponents.
        opponents: `(queries, candidates)` bool, which candidates are.

    Returns:
        For every positive, how many opponents lie below its reach; for every opponent, how many positives reach beyond
        it; `(queries, candidates)` int64 each, 0 for all other candidates.
    """
    reach = _packed(reaches, positives).sort(dim=1).values
    passed = torch.searchsorted(reach, levels, right=True)  # positives that do not reach beyond an opponent
    beyond = (reach.shape[1] - passed) * opponents
    nearer = torch.zeros(len(reach), reach.shape[1] + 1, dtype=torch.int64, device=reach.device)
    nearer = nearer.scatter_add_(1, passed, opponents.long()).cumsum(dim=1)
    place = torch.searchsorted(reach, reaches)  # of a positive among its like; ties have equal counts
    return nearer.gather(1, place) * positives, beyond


def _packed(values: Tensor, chosen: Tensor) -> Tensor:
    """The chosen values of every row and -inf, which is below all of them, up to one width.

    On the CPU that width is the most that are chosen in a row. To know it elsewhere, the host would have to wait.
    """
    if not looking_is_free(values.device):
        return torch.where(chosen, values, -torch.inf)
    place = chosen.cumsum(dim=1)
    packed = values.new_full((len(values), max(1, int(place[:, -1].max()))), -torch.inf)
    rows, columns = chosen.nonzero(as_tuple=True)
    packed[rows, place[rows, columns] - 1] = values[rows, columns]
    return packed
