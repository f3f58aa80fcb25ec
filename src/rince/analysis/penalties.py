"""Relative penalties: how much of a term's push each of its opponents gets (appendix; Wang and Liu 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rince.checks import check_similarities
from rince.errors import ConfigError, DataError, ShapeError
from rince.loss import OverPositives, RankTerm, term_values


class RelativePenalties(NamedTuple):
    """The three of the appendix, for two ranks.

    Attributes:
        negatives_in_second: `(negatives,)`, rₙ^{p₂}: of a negative, with respect to p₂ in ℓ₂.
        negatives_in_first: `(negatives,)`, rₙ^{p₁}: of a negative, with respect to p₁ in ℓ₁.
        seconds_in_first: `(seconds,)`, r_{p₂}^{p₁}: of a positive of rank 2, with respect to p₁ in ℓ₁.
    """

    negatives_in_second: Tensor
    negatives_in_first: Tensor
    seconds_in_first: Tensor


def relative_penalties(
    seconds: Tensor, negatives: Tensor, temperatures: tuple[float, float], *, as_printed: bool = False
) -> RelativePenalties:
    """`|∂ℓ/∂s_opponent|` / `|∂ℓ/∂s_positive|` in closed form: exp(s/τ) over its sum for all opponents of the term.

    Args:
        seconds: `(seconds,)` similarities of the positives of rank 2; they are opponents of ℓ₁.
        negatives: `(negatives,)` similarities.
        temperatures: τ₁ and τ₂.
        as_printed: leave the opponent itself out of the sum below the bar, as the appendix prints it. By its own
            definition, the ratio of gradients, it is in. The printed value is r / (1 - r) of the exact one.

    Example:
        >>> seconds, negatives = torch.tensor([0.6]), torch.tensor([0.3, 0.1])
        >>> relative_penalties(seconds, negatives, (0.1, 0.2)).negatives_in_second
        tensor([0.7311, 0.2689])
    """
    _check_vector("seconds", seconds)
    _check_vector("negatives", negatives)
    if len(temperatures) != 2 or not min(temperatures) > 0:
        raise ConfigError(f"temperatures must be two positive numbers, τ₁ and τ₂; got {tuple(temperatures)}")
    first, second = temperatures
    in_second = (negatives / second).softmax(dim=0)
    in_first = (torch.cat([negatives, seconds]) / first).softmax(dim=0)
    if as_printed:
        in_second, in_first = in_second / (1 - in_second), in_first / (1 - in_first)
    return RelativePenalties(in_second, in_first[: len(negatives)], in_first[len(negatives) :])


def push_of_terms(
    similarities: Tensor, ranks: Tensor, terms: Sequence[RankTerm], *, over_positives: OverPositives = "mean"
) -> Tensor:
    """How hard every term of the loss pushes every candidate away, by autograd, for any number of ranks.

    Args:
        similarities: `(queries, candidates)`.
        ranks: `(queries, candidates)`.
        terms: one per rank.
        over_positives: as in `ranked_info_nce`.

    Returns:
        `(terms, queries, candidates)`: ∂ℓᵢ/∂s of a query by itself; negative where ℓᵢ pulls. A row divided by what
        its term pulls, `-push.clamp(max=0).sum()`, gives relative penalties.
    """
    check_similarities(similarities, ranks)
    leaf = similarities.detach().requires_grad_()
    values = term_values(leaf, ranks, terms, over_positives)
    return torch.stack([torch.autograd.grad(values[:, i].sum(), leaf, retain_graph=True)[0] for i in range(len(terms))])


def _check_vector(name: str, similarities: Tensor) -> None:
    if similarities.ndim != 1 or not similarities.is_floating_point():
        raise ShapeError(
            f"{name} must be a vector of similarities, got {similarities.dtype} of shape {tuple(similarities.shape)}"
        )
    if len(similarities) == 0:
        raise DataError(f"{name} is empty; give at least one similarity")
