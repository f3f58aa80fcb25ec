"""Triplet loss with a margin for every rank (the paper's "Triplet" row).

    max{d(q, p) - d(q, n) + mᵢ, 0},   p of rank i, n of a higher rank or negative, d the euclidean distance

over all triplets of a query and its candidates, the same own key and bank that RINCE has. The paper found m₁ = 0.5,
m₂ = 1 and a learning rate of 0.75 to work best; which triplets it takes it does not say. We take all, and average over
those that are violated, as most implementations do: the others have no gradient and would only shrink it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rince.checks import (
    check_divisor,
    check_rank_values,
    check_similarities,
    divides,
    why_not_divided,
    why_not_finite,
)
from rince.devices import looking_is_free, nan_unless
from rince.errors import ConfigError, DataError
from rince.inputs import Numbers, as_tensor
from rince.loss import LossOutput
from rince.losses.counting import violated
from rince.ranks import all_allowed


class RankedTriplet(nn.Module):
    """Has the face of `rince.RankedInfoNCE`, so that momentum contrast trains either.

    Args:
        margins: one for every rank, positive.

    Example:
        >>> loss = RankedTriplet((0.5, 1.0))
        >>> loss(torch.tensor([[1.0, 0.5, -1.0]]), torch.tensor([[1, 2, 0]], dtype=torch.int8)).total
        tensor(0.)
    """

    def __init__(self, margins: Sequence[float]) -> None:
        super().__init__()
        if not margins or not all(0 < margin < math.inf for margin in margins):
            raise ConfigError(f"margins must be positive, one for every rank; got {tuple(margins)}")
        self.margins = tuple(margins)

    @property
    def rank_count(self) -> int:
        """How many ranks have a term."""
        return len(self.margins)

    def forward(self, similarities: Numbers, ranks: Numbers, divisor: Numbers | None = None) -> LossOutput:
        """Mean over queries, per rank and in all.

        Args:
            similarities: `(queries, candidates)` cosines.
            ranks: `(queries, candidates)` integers.
            divisor: `(ranks,)`: divide by this instead of the number of queries that have a positive.
        """
        similarities = as_tensor(similarities, "similarities")
        ranks = as_tensor(ranks, "ranks", like=similarities)
        check_similarities(similarities, ranks)
        distances = (2 - 2 * similarities.float()).clamp(min=1e-12).sqrt()
        used = self.count(ranks)
        terms = [
            _violated_mean(distances, ranks == rank, (ranks == 0) | (ranks > rank), margin).sum()
            for rank, margin in enumerate(self.margins, start=1)
        ]
        divisor = used if divisor is None else as_tensor(divisor, "divisor", like=similarities)
        check_divisor(divisor, self.rank_count)
        per_rank = torch.stack(terms) / divisor.clamp(min=1e-12)
        total = per_rank.sum()
        if not looking_is_free(similarities.device):
            # The gradient alone would be finite: the least distance has none, and NaN passes for it.
            total = nan_unless(all_allowed(ranks, self.rank_count) & divides(divisor, used) & total.isfinite(), total)
        else:
            check_rank_values(ranks, self.rank_count)
            if not divides(divisor, used):
                raise why_not_divided(divisor)
            if not total.isfinite():
                raise why_not_finite(similarities=similarities)
        return LossOutput(total, per_rank.detach(), used)

    def from_embeddings(
        self, queries: Numbers, candidates: Numbers, ranks: Numbers, *, divisor: Numbers | None = None
    ) -> LossOutput:
        """The same from `(queries, dim)` and `(candidates, dim)` vectors of unit length."""
        candidates = as_tensor(candidates, "candidates", like=queries if isinstance(queries, Tensor) else None)
        queries = as_tensor(queries, "queries", like=candidates)
        return self.forward(queries @ candidates.T, ranks, divisor)

    def count(self, ranks: Numbers) -> Tensor:
        """`(ranks,)`: how many queries have a positive of each rank."""
        ranks = as_tensor(ranks, "ranks")
        return torch.stack([(ranks == rank).any(dim=1).sum() for rank in range(1, self.rank_count + 1)])

    def explain(self, ranks: Tensor, **inputs: Tensor) -> DataError:
        """Why the loss of these inputs is NaN or infinite, as an error to raise; see `RankedInfoNCE.explain`."""
        try:
            check_rank_values(ranks, self.rank_count)
        except DataError as error:
            return error
        return why_not_finite(**inputs)


def _violated_mean(distances: Tensor, positives: Tensor, opponents: Tensor, margin: float) -> Tensor:
    """`(queries,)`: mean of d(q, p) + m - d(q, n) over a query's triplets where that is positive, else 0."""
    counts, beyond = violated(distances + margin, positives, distances, opponents)
    violation = (counts * (distances + margin)).sum(dim=1) - (beyond * distances).sum(dim=1)
    return violation / counts.sum(dim=1).clamp(min=1)
