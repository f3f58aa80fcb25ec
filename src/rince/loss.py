"""Ranking InfoNCE: InfoNCE applied rank by rank, each rank against everything further away.

`ranks` says what every candidate is to every query: `1` for the closest positives, `2` for the next, up to
`R`; `0` for a negative; `-1` for excluded. Term i pulls the positives of rank i towards the query and pushes
its opponents away: the negatives, and the positives of the ranks above i. Ranks below i sit this term out.

    ranks of one query      positives of ℓ₁   opponents of ℓ₁   positives of ℓ₂   opponents of ℓ₂
    [1, 2, 0, 2, -1]        column 0          columns 1, 2, 3   columns 1, 3      column 2

Everything is computed in log space and stays finite, gradient included, whatever the similarities.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, NamedTuple, Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rince.blockwise import LOG_OF_NOTHING, VANISHES, BlockwiseJob, RankRows, blockwise_loss
from rince.checks import (
    check_choice,
    check_divisor,
    check_embeddings,
    check_rank_values,
    check_ranks_tensor,
    check_similarities,
    checked_rows,
    divides,
    why_not_divided,
    why_not_finite,
)
from rince.devices import looking_is_free, nan_unless
from rince.errors import ConfigError, DataError, shown
from rince.first_look import FirstLook
from rince.inputs import Numbers, as_tensor, finite_number, unit_rows, whole_number
from rince.ranks import EXCLUDED, HIGHEST_RANK, NEGATIVE, all_allowed

Positives = Literal["in", "out"]
Denominator = Literal["own", "all"]
OverPositives = Literal["mean", "sum", "pooled"]
OverRanks = Literal["sum", "mean"]


@dataclass(frozen=True)
class RankTerm:
    """ℓᵢ, the part of the loss that one rank adds (Eq. 5 of the paper).

    Args:
        temperature: τᵢ > 0. A low one looks at the closest opponents only, a high one at all of them alike.
            Must not fall as the rank grows.
        positives: where the sum over the positives of this rank stands. `"in"` the log (Eq. 3): it is enough
            that some positives are close, so noisy ones are forgiven. `"out"` of the log (Eq. 2): every
            positive has to be close.
        includes_closer: count the positives of lower ranks as positives of this term too. Not in the paper. The
            authors' CIFAR code does so for rank 2, with a difference: there, the query's own key stays out of ℓ₂,
            while here it counts as all of rank 1 does.
        denominator: what stands below the fraction of an "out" term beside the opponents: each positive's `"own"`, as
            in the paper, or `"all"` positives of the term, which is SupCon. An "in" term always has all.
        weight: of ℓᵢ in the total.
    """

    temperature: float
    positives: Positives = "in"
    includes_closer: bool = False
    denominator: Denominator = "own"
    weight: float = 1.0

    def __post_init__(self) -> None:
        temperature = self.temperature
        if isinstance(temperature, bool) or not isinstance(temperature, (int, float)):
            raise ConfigError(f"temperature must be a number, got {temperature!r}")
        if not 0 < temperature <= sys.float_info.max:
            raise ConfigError(f"temperature must be positive, got {shown(temperature)}; common values are 0.07 to 0.5")
        check_choice("positives", self.positives, Positives)
        check_choice("denominator", self.denominator, Denominator)
        if self.denominator == "all" and self.positives == "in":
            raise ConfigError("denominator='all' is for positives='out'; an 'in' term has all positives there anyway")
        if isinstance(self.weight, bool) or not isinstance(self.weight, (int, float)):
            raise ConfigError(f"weight must be a number, got {self.weight!r}")
        if not 0 <= self.weight <= sys.float_info.max:
            raise ConfigError(f"weight must be at least 0, got {shown(self.weight)}")

    def positive_mask(self, rank: int, ranks: Tensor) -> Tensor:
        """Which candidates are positives of this term, standing at `rank`: bool, of the shape of `ranks`."""
        return (ranks >= 1) & (ranks <= rank) if self.includes_closer else ranks == rank


class LossOutput(NamedTuple):
    """What `RankedInfoNCE` returns.

    Attributes:
        total: the scalar to call `.backward()` on.
        per_rank: `(terms,)`, the value of every ℓᵢ, detached, for the log.
        queries_used: `(terms,)`, how many queries had a positive in term i. A term that stays at 0 never trains.
    """

    total: Tensor
    per_rank: Tensor
    queries_used: Tensor


class RankedLoss(Protocol):
    """A loss of queries and ranked candidates, such as `RankedInfoNCE`: what momentum contrast trains."""

    @property
    def rank_count(self) -> int:
        """How many ranks have a term."""
        ...

    def count(self, ranks: Tensor) -> Tensor:
        """`(terms,)`: what every ℓᵢ of these queries is divided by; adds up over the parts of a batch."""
        ...

    def from_embeddings(
        self, queries: Tensor, candidates: Tensor, ranks: Tensor, *, divisor: Tensor | None = None
    ) -> LossOutput:
        """The loss of `(queries, dim)` and `(candidates, dim)` embeddings of unit length and their ranks."""
        ...

    def explain(self, ranks: Tensor, **inputs: Tensor) -> DataError:
        """Why the loss of these inputs is NaN or infinite, as an error to raise."""
        ...


def ranked_info_nce(
    similarities: Numbers,
    ranks: Numbers,
    terms: Sequence[RankTerm],
    *,
    over_positives: OverPositives = "mean",
    over_ranks: OverRanks = "sum",
    allow_any_order: bool = False,
) -> Tensor:
    """Ranking InfoNCE of a batch, from its similarities. Differentiable in `similarities`.

    With Pᵢ the candidates of rank i and Oᵢ the negatives and all ranks above i, a query's value in term i is

        "in":    -log( Σ_P exp(s/τᵢ) / (Σ_P exp(s/τᵢ) + Σ_O exp(s/τᵢ)) )
        "out":   the mean (or sum) over p in Pᵢ of  -log( exp(s_p/τᵢ) / (exp(s_p/τᵢ) + Σ_O exp(s/τᵢ)) )

    ℓᵢ is the mean over the queries that have a positive of rank i, and 0 if there is none.

    Args:
        similarities: `(queries, candidates)` cosine similarities, before any temperature. Half precision is
            computed in float32. Here as everywhere, arrays and lists are taken as well as tensors.
        ranks: `(queries, candidates)` integers, int8 for choice: 1 … R, 0 negative, -1 excluded.
        terms: one per rank; see `RankTerm`.
        over_positives: how an "out" term adds up: `"mean"` over the positives of a query; their `"sum"`, the
            paper's equation to the letter; or `"pooled"`, one mean over all (query, positive) pairs of the
            batch, as in the authors' code. "in" terms need no such choice.
        over_ranks: `"sum"` of the terms, as in the paper, or their `"mean"`, as in the authors' code.
        allow_any_order: accept temperatures that fall as the rank grows, which the paper advises against.

    Returns:
        The scalar loss, in float32 or wider.

    Equals:
        One term and one positive per query: InfoNCE (Eq. 1), `F.cross_entropy(similarities / τ, index)`.
        One "out" term, pooled: pytorch-metric-learning's `NTXentLoss`. One "in" term: MIL-NCE, and the SupCon
        loss of solo-learn. Not the `SupConLoss` of pytorch-metric-learning, whose denominator keeps all positives.

    Example:
        >>> similarities = torch.tensor([[0.9, 0.5, 0.1, 0.0]])
        >>> ranks = torch.tensor([[1, 2, 0, 0]], dtype=torch.int8)
        >>> ranked_info_nce(similarities, ranks, [RankTerm(0.1), RankTerm(0.2)])
        tensor(0.2153)
    """
    loss = RankedInfoNCE(terms, over_positives=over_positives, over_ranks=over_ranks, allow_any_order=allow_any_order)
    return loss.forward(similarities, ranks).total


def ranked_info_nce_from_embeddings(  # noqa: D417 - the rest is documented once, in ranked_info_nce
    queries: Numbers,
    candidates: Numbers,
    ranks: Numbers | RankRows,
    terms: Sequence[RankTerm],
    *,
    over_positives: OverPositives = "mean",
    over_ranks: OverRanks = "sum",
    allow_any_order: bool = False,
    normalize: bool = False,
    block_size: int | None = None,
    compile: bool = False,
) -> Tensor:
    """`ranked_info_nce(queries @ candidates.T, ranks, …)` without the matrix of similarities in memory.

    The same number and the same gradients, for `queries` and for `candidates` where they require one; faster,
    and with memory for a block of queries only. The gradient is made in the forward pass, so `.backward()`
    costs nothing and cannot itself be differentiated.

    Args:
        queries: `(queries, dim)` embeddings, of unit length, if similarities are to be cosines.
        candidates: `(candidates, dim)` embeddings. Where they are the queries again, the diagonal of `ranks` has to be
            excluded, or every sample is its own positive.
        ranks: `(queries, candidates)` as in `ranked_info_nce`, or a function `(start, stop)` that returns these
            rows of it, called twice per block.
        normalize: give queries and candidates unit length first.
        block_size: queries per block; by default what keeps a block in cache.
        compile: run the inner block through `torch.compile`. The first call takes seconds longer. Needs a C++
            compiler; without one a single warning is given and the loss is computed without.

    Other arguments, and which losses of other libraries it equals, as in `ranked_info_nce`. The first call in a process
    (of a `RankedInfoNCE`: its first call) warns of vectors of another length, and of queries that are candidates of
    their own.

    Example:
        >>> embeddings = F.normalize(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.5, 0.5], [0.0, 1.0]]), dim=1)
        >>> ranks = torch.tensor([[1, 2, 0]], dtype=torch.int8)
        >>> ranked_info_nce_from_embeddings(embeddings[:1], embeddings[1:], ranks, [RankTerm(0.1), RankTerm(0.2)])
        tensor(0.0840)
    """
    loss = RankedInfoNCE(terms, over_positives=over_positives, over_ranks=over_ranks, allow_any_order=allow_any_order)
    loss.first_look = _LOOK_OF_THE_FUNCTION
    return loss.from_embeddings(
        queries, candidates, ranks, normalize=normalize, block_size=block_size, compile=compile
    ).total


_LOOK_OF_THE_FUNCTION = FirstLook()  # which makes a loss for every call


class RankedInfoNCE(nn.Module):
    """Ranking InfoNCE as a module that also reports every term. Arguments as in `ranked_info_nce`.

    The variants of the paper have names: `RankedInfoNCE.in_((0.1, 0.225))`, `.out(…)`, `.out_in(…)`, `.uni(…)`.

    Example:
        >>> loss = RankedInfoNCE.out_in((0.1, 0.225))
        >>> ranks = torch.tensor([[1, 2, 0], [1, 0, 0]], dtype=torch.int8)
        >>> loss(torch.tensor([[0.9, 0.5, 0.1], [0.8, 0.2, 0.1]]), ranks)
        LossOutput(total=tensor(0.1671), per_rank=tensor([0.0109, 0.1562]), queries_used=tensor([2, 1]))
    """

    def __init__(
        self,
        terms: Sequence[RankTerm],
        *,
        over_positives: OverPositives = "mean",
        over_ranks: OverRanks = "sum",
        allow_any_order: bool = False,
    ) -> None:
        super().__init__()
        check_choice("over_positives", over_positives, OverPositives)
        check_choice("over_ranks", over_ranks, OverRanks)
        self.terms = _checked_terms(terms, allow_any_order)
        self.over_positives: OverPositives = over_positives
        self.over_ranks: OverRanks = over_ranks
        self.first_look = FirstLook()

    @classmethod
    def in_(cls, temperatures: Sequence[float] | float, **options: object) -> Self:
        """RINCE-in (Eq. 14): the sum over positives stands inside the log. One temperature: SCL-in."""
        return cls([RankTerm(t, "in") for t in _one_or_more(temperatures)], **options)  # type: ignore[arg-type]

    @classmethod
    def out(cls, temperatures: Sequence[float] | float, **options: object) -> Self:
        """RINCE-out (Eq. 13): the sum over positives stands outside the log. One temperature: SCL-out."""
        return cls([RankTerm(t, "out") for t in _one_or_more(temperatures)], **options)  # type: ignore[arg-type]

    @classmethod
    def out_in(cls, temperatures: Sequence[float] | float, **options: object) -> Self:
        """RINCE-out-in (Eq. 15): outside for the clean rank 1, inside for the noisier ranks above."""
        terms = [RankTerm(t, "out" if i == 0 else "in") for i, t in enumerate(_one_or_more(temperatures))]
        return cls(terms, **options)  # type: ignore[arg-type]

    @classmethod
    def uni(cls, temperatures: Sequence[float] | float, **options: object) -> Self:
        """RINCE-uni (Eq. 12): one positive per rank, where inside and outside are the same."""
        return cls.in_(temperatures, **options)

    def forward(self, similarities: Numbers, ranks: Numbers, divisor: Numbers | None = None) -> LossOutput:
        """The loss of `(queries, candidates)` similarities and their ranks.

        Args:
            similarities: as in `ranked_info_nce`.
            ranks: as in `ranked_info_nce`.
            divisor: `(terms,)`, what every ℓᵢ is divided by where these queries are a part of a larger batch: the sum
                of `count(ranks)` over its parts. By default they are the batch.
        """
        similarities = as_tensor(similarities, "similarities")
        ranks = as_tensor(ranks, "ranks", like=similarities)
        check_similarities(similarities, ranks)
        if similarities.dtype in (torch.float16, torch.bfloat16):
            similarities = similarities.float()
        if similarities.shape[1] == 0:  # an excluded candidate changes nothing and spares an empty reduction
            similarities, ranks = F.pad(similarities, (0, 1)), F.pad(ranks, (0, 1), value=EXCLUDED)
        used, counted = self._count(ranks)
        divisor = counted if divisor is None else as_tensor(divisor, "divisor", like=similarities)
        check_divisor(divisor, len(self.terms))
        per_rank = self._share(similarities, ranks, divisor)
        total = self._weighed(per_rank)
        if not looking_is_free(similarities.device):
            total = nan_unless(all_allowed(ranks, len(self.terms)) & divides(divisor, counted), total)
        elif not torch.compiler.is_compiling():  # looking at values would break the graph
            check_rank_values(ranks, len(self.terms))
            if not divides(divisor, counted):
                raise why_not_divided(divisor)
            if not total.isfinite():
                raise why_not_finite(similarities=similarities)
        return LossOutput(total, per_rank.detach(), used)

    def from_embeddings(
        self,
        queries: Numbers,
        candidates: Numbers,
        ranks: Numbers | RankRows,
        *,
        divisor: Numbers | None = None,
        normalize: bool = False,
        block_size: int | None = None,
        compile: bool = False,
    ) -> LossOutput:
        """As `forward(queries @ candidates.T, ranks, divisor)`, see `ranked_info_nce_from_embeddings`."""
        candidates = as_tensor(candidates, "candidates", like=queries if isinstance(queries, Tensor) else None)
        queries = as_tensor(queries, "queries", like=candidates)
        ranks = ranks if callable(ranks) else as_tensor(ranks, "ranks", like=queries)
        check_embeddings(queries, candidates, ranks)
        if divisor is not None:
            divisor = as_tensor(divisor, "divisor", like=queries)
            check_divisor(divisor, len(self.terms))
        if block_size is not None:
            block_size = whole_number(block_size, "block_size")
        if queries.dtype in (torch.float16, torch.bfloat16):
            queries, candidates = queries.float(), candidates.float()
        rank_rows = checked_rows(ranks, len(candidates), queries.device)
        if self.first_look.is_due():
            self.first_look(queries, candidates, rank_rows, normalize=normalize)
        if normalize:
            same = queries is candidates  # whose gradients add up either way; this spares a pass
            queries = unit_rows(queries)
            candidates = queries if same else unit_rows(candidates)
        job = BlockwiseJob(
            rank_rows=rank_rows,
            temperatures=tuple(term.temperature for term in self.terms),
            count=self._checked_count,
            divisor=divisor,
            share=self._share,
            share_of_positives=self._share_of_positives,
            weigh=self._weighed,
            includes_closer=tuple(term.includes_closer for term in self.terms),
            key=(self.terms, self.over_positives),
            block_size=block_size,
            compile=compile,
        )
        output = LossOutput(*blockwise_loss(queries, candidates, job))
        if looking_is_free(queries.device) and not output.total.isfinite():
            raise why_not_finite(queries=queries, candidates=candidates)
        return output

    def explain(self, ranks: Tensor, **inputs: Tensor) -> DataError:
        """Why the loss of these inputs is NaN or infinite, as an error to raise.

        On the CPU the loss raises it by itself. On an accelerator a look at values would hold up the work, so what is
        wrong, with ranks, labels or inputs, makes the loss and its gradient NaN, and the weights with them: ask when a
        loss that you look at anyway is not finite. The cause may lie some steps back.

        Args:
            ranks: `(queries, candidates)` as given to the loss.
            inputs: the tensors given to the loss, by the names that the error is to call them.
        """
        try:
            check_rank_values(ranks, len(self.terms))
        except DataError as error:
            return error
        return why_not_finite(**inputs)

    @property
    def rank_count(self) -> int:
        """How many ranks have a term."""
        return len(self.terms)

    def count(self, ranks: Numbers) -> Tensor:
        """`(terms,)`: what every ℓᵢ of these queries is divided by; adds up over the parts of a batch."""
        ranks = as_tensor(ranks, "ranks")
        check_ranks_tensor(ranks, ranks.device)
        return self._checked_count(ranks)[1]

    def extra_repr(self) -> str:
        """The terms and reductions, for `print(loss)`."""
        return f"{list(self.terms)}, over_positives={self.over_positives!r}, over_ranks={self.over_ranks!r}"

    def _count(self, ranks: Tensor) -> tuple[Tensor, Tensor]:
        """Per term, queries with a positive, and what ℓᵢ is divided by: those, or all pairs if pooled."""
        used, divisor, closer = [], [], torch.zeros(len(ranks), dtype=torch.bool, device=ranks.device)
        for rank, term in enumerate(self.terms, start=1):
            has_rank = _contains(ranks, rank)
            closer = closer | has_rank
            used.append((closer if term.includes_closer else has_rank).sum())
            pooled = term.positives == "out" and self.over_positives == "pooled"
            divisor.append(term.positive_mask(rank, ranks).sum() if pooled else used[-1])
        return torch.stack(used), torch.stack(divisor)

    def _checked_count(self, ranks: Tensor) -> tuple[Tensor, Tensor]:
        if looking_is_free(ranks.device):
            check_rank_values(ranks, len(self.terms))
        return self._count(ranks.to(torch.int8))

    def _share(self, similarities: Tensor, ranks: Tensor, divisor: Tensor) -> Tensor:
        """`(terms,)`: what these queries add to every ℓᵢ, given what the whole batch divides by."""
        return _divided(term_values(similarities, ranks, self.terms, self.over_positives), divisor)

    def _share_of_positives(
        self, positives: Sequence[Tensor], masks: Sequence[Tensor], opponents: Tensor, divisor: Tensor
    ) -> Tensor:
        """The same from the positives of every term, `(queries, any)`, and log Σ_O exp(s/τᵢ), `(queries, terms)`."""
        given = zip(self.terms, positives, masks, opponents.unbind(dim=1), strict=True)
        values = [term_value(*each, self.over_positives) for each in given]
        return _divided(torch.stack(values, dim=1), divisor)

    def _weighed(self, per_rank: Tensor) -> Tensor:
        """The total of `(terms,)` values."""
        share = 1.0 if self.over_ranks == "sum" else 1.0 / len(self.terms)
        weights = [term.weight * share for term in self.terms]
        if len(set(weights)) == 1:
            return per_rank.sum() * weights[0]
        return torch.stack([value * weight for value, weight in zip(per_rank, weights, strict=True)]).sum()


def term_values(
    similarities: Tensor,
    ranks: Tensor,
    terms: Sequence[RankTerm],
    over_positives: OverPositives = "mean",
    outside: Tensor | None = None,
) -> Tensor:
    """Value of every term for every query, before weights.

    Args:
        similarities: `(queries, candidates)`, at least one candidate.
        ranks: `(queries, candidates)`.
        terms: one per rank.
        over_positives: `"mean"`, or else the sum over the positives of a query, in "out" terms.
        outside: `(queries, terms)`, log Σ exp(s/τᵢ) over the negatives, where none of them is among the candidates.

    Returns:
        `(queries, terms)`; exactly 0, with zero gradient, where a query has no positive of that rank.
    """
    values = []
    for rank, term in enumerate(terms, start=1):
        positive = term.positive_mask(rank, ranks)
        if outside is None:
            mask = _of_used_queries((ranks == NEGATIVE) | (ranks > rank), positive)
            opponents = _logsumexp(mask, similarities * (1.0 / term.temperature))
        elif rank < len(terms):
            farther = _logsumexp(ranks > rank, similarities * (1.0 / term.temperature))
            opponents = torch.logaddexp(farther, outside[:, rank - 1])
        else:
            opponents = outside[:, rank - 1]
        values.append(term_value(term, similarities, positive, opponents, over_positives))
    return torch.stack(values, dim=1)


def term_value(
    term: RankTerm, similarities: Tensor, positive: Tensor, opponents: Tensor, over_positives: OverPositives
) -> Tensor:
    """ℓᵢ of every query. This is the method; all else in this file is around it.

    Args:
        term: of the rank.
        similarities: `(queries, candidates)`.
        positive: `(queries, candidates)` bool, which of them are positives of the term.
        opponents: `(queries,)`, log Σ exp(s/τᵢ) over the opponents, wherever they are.
        over_positives: as in `term_values`.

    Returns:
        `(queries,)`; 0 where there is no positive.
    """
    logits = similarities * (1.0 / term.temperature)
    if term.positives == "in":
        positives = _logsumexp(positive, logits)
        vanished = positives < LOG_OF_NOTHING / 2  # there is none, or none above -inf; false for NaN
        missing = torch.where(_any(positive), torch.inf, 0.0)
        return torch.where(vanished, missing, _softplus(opponents - positives))
    number = torch.where(positive, 1.0, 0.0).sum(dim=1)
    if term.denominator == "own":
        apart = torch.where(positive, opponents[:, None] - logits, LOG_OF_NOTHING)  # whose softplus is exactly 0
        summed = _softplus(apart).sum(dim=1)
    else:
        everyone = torch.logaddexp(_logsumexp(positive, logits), opponents)
        summed = torch.where(positive, everyone[:, None] - logits, 0.0).sum(dim=1)
    return summed / number.clamp(min=1) if over_positives == "mean" else summed


def linear_temperatures(first: float, last: float, ranks: int) -> tuple[float, ...]:
    """Temperatures in equal steps from rank 1 to rank `ranks`, the way the paper chooses them.

    >>> linear_temperatures(0.1, 0.2, ranks=3)
    (0.1, 0.15, 0.2)
    """
    ranks = whole_number(ranks, "ranks")
    first, last = finite_number(first, "the first temperature"), finite_number(last, "the last temperature")
    steps = max(ranks - 1, 1)
    return tuple(round(first + (last - first) * i / steps, 12) for i in range(ranks))


def _one_or_more(temperatures: Any) -> Sequence[Any]:
    """One temperature for each rank; a number alone is that of rank 1."""
    if isinstance(temperatures, str | bytes | Mapping):
        raise ConfigError(f"temperatures must be one number for each rank, such as (0.1, 0.2); got {temperatures!r}")
    plain = temperatures.tolist() if hasattr(temperatures, "tolist") else temperatures  # of torch and numpy
    if isinstance(plain, Real):
        return (plain if isinstance(plain, int | float) else float(plain),)
    try:
        return [float(each) if isinstance(each, Real) and not isinstance(each, bool) else each for each in plain]
    except TypeError:
        raise ConfigError(
            f"temperatures must be one number for each rank, such as (0.1, 0.2); got {temperatures!r}"
        ) from None


def _divided(values: Tensor, divisor: Tensor) -> Tensor:
    """`(terms,)` from `(queries, terms)`; a term without positives has nothing to divide."""
    return values.sum(dim=0) / torch.where(divisor > 0, divisor, 1)


def _contains(ranks: Tensor, rank: int) -> Tensor:
    """`(queries,)`: whether a query has a candidate of this rank."""
    if ranks.dtype != torch.int8 or ranks.shape[1] == 0:
        return (ranks == rank).any(dim=1)
    # The same by vectorised instructions: torch compares int8 one by one, ten times slower.
    return (ranks.view(torch.uint8) ^ rank).amin(dim=1) == 0


def _any(mask: Tensor) -> Tensor:
    """`mask.any(dim=1)` by vectorised instructions."""
    return mask.view(torch.uint8).amax(dim=1) > 0


def _of_used_queries(opponents: Tensor, positive: Tensor) -> Tensor:
    """The mask for queries that have positives. Others have no opponents: no gradient reaches them, be they NaN."""
    used = _any(positive)
    if looking_is_free(used.device) and not torch.compiler.is_compiling() and used.all():
        return opponents  # as a rule, and a pass less
    return opponents & used[:, None]


def _logsumexp(mask: Tensor, logits: Tensor) -> Tensor:
    """Row-wise log Σ exp over the masked entries: `LOG_OF_NOTHING` where there are none, and gradients stay finite."""
    peak = torch.where(mask, logits, LOG_OF_NOTHING).amax(dim=1, keepdim=True).detach()
    return peak.squeeze(1) + torch.where(mask, logits - peak, VANISHES).exp().sum(dim=1).log()


def _softplus(x: Tensor) -> Tensor:
    """`log(1 + exp(x))`. `F.softplus` turns linear at 20, an error of 2e-9 that float64 would show."""
    return -F.logsigmoid(-x)


def _checked_terms(terms: Sequence[RankTerm], allow_any_order: bool) -> tuple[RankTerm, ...]:
    terms = tuple(terms)
    if not terms or not all(isinstance(term, RankTerm) for term in terms):
        raise ConfigError(f"terms must be one RankTerm per rank, such as [RankTerm(0.1), RankTerm(0.2)]; got {terms!r}")
    if len(terms) > HIGHEST_RANK:
        raise ConfigError(f"ranks are int8, so there are at most {HIGHEST_RANK} terms; got {len(terms)}")
    temperatures = [term.temperature for term in terms]
    if temperatures != sorted(temperatures) and not allow_any_order:
        raise ConfigError(
            f"temperatures must not fall as the rank grows, got {temperatures}: with a falling temperature the "
            "similarity of the next rank hardly follows that of the rank before, so no order is learned (paper, "
            "appendix); sort them, or pass allow_any_order=True to study it"
        )
    return terms
