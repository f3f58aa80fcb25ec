"""The ranked loss from embeddings: a block of queries at a time, value and gradient in one pass.

The loss is a sum over queries, so a block of query rows goes from similarities to gradient while it is in
cache, and the whole (queries, candidates) matrix never exists. Within a block

- the positives of every term, which are few, are gathered into a narrow padded matrix. The formula of
  `loss.term_value` runs on that and is differentiated by autograd; it is not repeated here;
- the opponents, which are many, reach a term through one number, log Σ exp(s/τ), whose gradient is a softmax. They get
  a handful of plain passes, which `torch.compile` fuses on request. A positive of a farther rank is an opponent like
  any other: rank after rank is taken out of the block, as its term is done.

How many positives there are is a value, and on an accelerator a look at a value waits for all work before it. There
the formula runs on the whole block instead, and no value is looked at.

How much that saves is in `benchmarks/loss_speed.csv`, beside the dense form and pytorch-metric-learning.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from rince.checks import divides, why_not_divided
from rince.devices import looking_is_free, nan_unless
from rince.ranks import all_allowed

# Stands for the logarithm of an empty sum. Finite, so that no `inf - inf` can turn a gradient into NaN.
LOG_OF_NOTHING = -1e30
# exp(-80) vanishes beside 1 in float32 and float64 alike and is still a normal float32. Where the argument is -inf
# or the result denormal, exp() of the CPU's vector library takes up to four times as long.
VANISHES = -80.0

# Similarities per block, and the fewest rows that keep a matrix product efficient; from a sweep over 16 … 512 rows
# at 4,096 and 65,536 candidates.
BLOCK, FEWEST_ROWS = 2**21, 64

HAS_NUMPY = find_spec("numpy") is not None  # torch does without
RankRows = Callable[[int, int], Tensor]
Share = Callable[[Tensor, Tensor, Tensor], Tensor]
ShareOfPositives = Callable[[list[Tensor], list[Tensor], Tensor, Tensor], Tensor]
Opponents = Callable[[Tensor, float, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class BlockwiseJob:
    """What to compute, apart from the embeddings.

    Attributes:
        rank_rows: `(start, stop)` → these rows of the rank matrix. Asked for twice.
        temperatures: one per term.
        count: ranks of some queries → `(terms,)` queries used, and `(terms,)` divisors of the terms.
        divisor: `(terms,)`, to be used instead of the counted one, or None.
        share: similarities, ranks, divisors → `(terms,)`, part of every ℓᵢ.
        share_of_positives: positives of every term and which they are, `(queries, any)`, log-sums of the opponents
            `(queries, terms)`, divisors → the same.
        weigh: `(terms,)`, every ℓᵢ → the total.
        includes_closer: per term, whether positives of closer ranks are its own.
        key: what `share_of_positives` depends on, so that its compiled form can be kept.
        block_size: rows per block, or None to choose.
        compile: whether to compile the inner block.
    """

    rank_rows: RankRows
    temperatures: tuple[float, ...]
    count: Callable[[Tensor], tuple[Tensor, Tensor]]
    divisor: Tensor | None
    share: Share
    share_of_positives: ShareOfPositives
    weigh: Callable[[Tensor], Tensor]
    includes_closer: tuple[bool, ...]
    key: Hashable
    block_size: int | None
    compile: bool


def blockwise_loss(queries: Tensor, candidates: Tensor, job: BlockwiseJob) -> tuple[Tensor, Tensor, Tensor]:
    """Total (differentiable), value of every term, queries used by every term."""
    total, per_rank, used, sound = _Blockwise.apply(queries, candidates, job)  # type: ignore[no-untyped-call]
    return total if looking_is_free(queries.device) else nan_unless(sound, total), per_rank, used


class _Blockwise(torch.autograd.Function):
    """Makes the gradient in the forward pass; the backward pass scales it."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, candidates: Tensor, job: BlockwiseJob) -> tuple[Tensor, ...]:
        wanted = (False, False) if torch.is_inference_mode_enabled() else ctx.needs_input_grad[:2]
        gradients = [
            torch.zeros_like(x) if want else None for x, want in zip((queries, candidates), wanted, strict=True)
        ]
        # Within a block autograd is used, which `torch.inference_mode` of the caller would forbid.
        with torch.inference_mode(False), torch.no_grad(), torch.autocast(queries.device.type, enabled=False):
            per_rank, used, sound = _all_blocks(queries, candidates, job, *gradients)
            total = job.weigh(per_rank)
            # An excluded NaN reaches the gradient alone, by 0 · NaN.
            looks = looking_is_free(queries.device)
            harm = looks and not _all_finite(gradients)
            if harm and not _without_excluded(queries, candidates, job, gradients, per_rank):
                total = total * torch.nan
        if not looks:
            for gradient in gradients:
                sound = sound if gradient is None else sound & gradient.isfinite().all()
        ctx.save_for_backward(*gradients)
        ctx.mark_non_differentiable(per_rank, used, sound)
        return total, per_rank, used, sound

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, of_total: Tensor, *_: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        of_queries, of_candidates = (None if g is None else g * of_total for g in ctx.saved_tensors)
        return of_queries, of_candidates, None


def _all_finite(gradients: Sequence[Tensor | None]) -> bool:
    return all(gradient is None or bool(gradient.isfinite().all()) for gradient in gradients)


def _without_excluded(
    queries: Tensor, candidates: Tensor, job: BlockwiseJob, gradients: Sequence[Tensor | None], per_rank: Tensor
) -> bool:
    """Makes the gradients once more without rows that are not finite; whether the loss is the same, so none counts."""
    clean = [torch.where(rows.isfinite().all(dim=1, keepdim=True), rows, 0) for rows in (queries, candidates)]
    for gradient in gradients:
        if gradient is not None:
            gradient.zero_()
    again, _, _ = _all_blocks(clean[0], clean[1], job, *gradients)
    return torch.equal(again, per_rank) and _all_finite(gradients)


def _all_blocks(
    queries: Tensor, candidates: Tensor, job: BlockwiseJob, of_queries: Tensor | None, of_candidates: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Value and count of every term, and whether all ranks have a meaning; fills the gradients that are wanted."""
    per_rank = queries.new_zeros(len(job.temperatures))
    used = torch.zeros(len(job.temperatures), dtype=torch.long, device=queries.device)
    divisor, sound = used.clone(), torch.ones((), dtype=torch.bool, device=queries.device)
    if len(candidates) == 0:
        return per_rank, used, sound
    size = job.block_size or max(FEWEST_ROWS, BLOCK // len(candidates))
    blocks = [(start, min(start + size, len(queries))) for start in range(0, len(queries), size)]
    for start, stop in blocks:
        more_used, more_divisor = job.count(job.rank_rows(start, stop))
        used += more_used
        divisor += more_divisor
    if job.divisor is not None:
        sound = sound & divides(job.divisor, divisor)
        if looking_is_free(queries.device) and not sound:
            raise why_not_divided(job.divisor)
        divisor = job.divisor
    inner, looks = _Inner(job, queries.device.type), looking_is_free(queries.device)
    buffers_needed = len(job.temperatures) if looks else 1
    workspace = [queries.new_empty(min(size, len(queries)), len(candidates)) for _ in range(buffers_needed)]
    for start, stop in blocks:
        similarities, *buffers = (buffer[: stop - start] for buffer in workspace)
        torch.mm(queries[start:stop], candidates.T, out=similarities)
        ranks = job.rank_rows(start, stop)
        if looks:  # and has looked at the ranks, in job.count
            share, gradient = _block(similarities, ranks.to(torch.int8).contiguous(), divisor, job, inner, buffers)
        else:
            sound = sound & all_allowed(ranks, len(job.temperatures))
            share, gradient = _whole_block(similarities, ranks, divisor, job)
        per_rank += share
        if of_queries is not None:
            torch.mm(gradient, candidates, out=of_queries[start:stop])
        if of_candidates is not None:
            of_candidates.addmm_(gradient.T, queries[start:stop])
    return per_rank, used, sound


def _block(
    similarities: Tensor, ranks: Tensor, divisor: Tensor, job: BlockwiseJob, inner: _Inner, buffers: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """`(terms,)` values, and the gradient of the total in the similarities of a block, which are overwritten."""
    flat = similarities.view(-1)
    if ranks.amin() < 0:
        # As a rule few, such as the diagonal: to find them first takes a fifth of the time of a mask.
        flat.index_fill_(0, _places(_searched(ranks) < 0), -torch.inf)
    known = _searched(ranks)
    places = [_places(known == rank) for rank in range(1, len(job.temperatures) + 1)]
    gathered = [
        _gather(similarities, _places((known > 0) & (known <= rank)) if closer else places[rank - 1])
        for rank, closer in enumerate(job.includes_closer, start=1)
    ]
    exponentials, sums, log_sums = [*buffers, similarities], [], []
    for temperature, place, out in zip(job.temperatures, places, exponentials, strict=True):
        flat.index_fill_(0, place, -torch.inf)
        total, log_total = inner.opponents(similarities, temperature, out)
        sums.append(total)
        log_sums.append(log_total)
    opponents = torch.stack(log_sums, dim=1).requires_grad_()
    positives = [each.similarities.requires_grad_() for each in gathered]
    with torch.enable_grad():
        share = inner.share(positives, [each.mask for each in gathered], opponents, divisor)
        of_opponents, *of_positives = torch.autograd.grad(job.weigh(share), (opponents, *positives))
    weights = of_opponents / (torch.stack(sums, dim=1) * opponents.new_tensor(job.temperatures))
    gradient = exponentials[0].mul_(weights[:, :1])
    for i, exponential in enumerate(exponentials[1:], start=1):
        gradient.addcmul_(exponential, weights[:, i : i + 1])
    for each, of_term in zip(gathered, of_positives, strict=True):
        gradient.view(-1).index_add_(0, each.place, of_term.view(-1).index_select(0, each.slot))
    return share.detach(), gradient


def _whole_block(similarities: Tensor, ranks: Tensor, divisor: Tensor, job: BlockwiseJob) -> tuple[Tensor, Tensor]:
    """As `_block`, in more passes over the block and without a look at any value."""
    similarities = similarities.detach().requires_grad_()
    with torch.enable_grad():
        share = job.share(similarities, ranks, divisor)
        (gradient,) = torch.autograd.grad(job.weigh(share), similarities)
    return share.detach(), gradient


def _opponents(similarities: Tensor, temperature: float, out: Tensor) -> tuple[Tensor, Tensor]:
    """Writes exp((s - peak)/τ) into `out`, which may be `similarities`.

    Where `similarities` is -inf there is no opponent: exp(-80) remains, nothing beside the 1 of the peak.

    Returns:
        Their sums, and log Σ exp(s/τ): `(rows,)` each.
    """
    peak = similarities.amax(dim=1, keepdim=True).clamp_(min=LOG_OF_NOTHING)
    inverse = 1.0 / temperature
    torch.add(peak * -inverse, similarities, alpha=inverse, out=out).clamp_(min=VANISHES).exp_()
    total = out.sum(dim=1)
    return total, (peak.squeeze(1) * inverse + total.log()).clamp_(min=LOG_OF_NOTHING)


class _Gathered(NamedTuple):
    """Some entries of a block, those of every row packed to the left.

    Attributes:
        similarities: `(rows, width)`, 0 where a row has fewer than the longest.
        mask: `(rows, width)` bool, where it has not.
        place: of every entry in the flattened block.
        slot: of every entry in the flattened packed matrix.
    """

    similarities: Tensor
    mask: Tensor
    place: Tensor
    slot: Tensor


def _gather(similarities: Tensor, place: Tensor) -> _Gathered:
    """The entries at these places, which rise."""
    rows, candidates = similarities.shape
    row = torch.arange(rows)
    first = torch.searchsorted(place, torch.arange(rows + 1) * candidates)
    number = first.diff()
    width = max(1, int(number.max()))
    slot = torch.arange(len(place)) + torch.repeat_interleave(row * width - first[:-1], number)
    packed = similarities.new_zeros(rows * width).index_copy_(0, slot, similarities.view(-1).index_select(0, place))
    return _Gathered(packed.view(rows, width), torch.arange(width) < number[:, None], place, slot)


def _searched(ranks: Tensor) -> Any:
    """Ranks as what `_places` searches: an array of NumPy where that is installed, which torch does not ask for.

    Blocks like this are on the CPU, where NumPy's search takes half as long as torch's on one core, as long on two.
    """
    return ranks.numpy() if HAS_NUMPY else ranks


def _places(mask: Any) -> Tensor:
    """Where a mask of NumPy or torch holds, in its flattened form."""
    found = mask.ravel().nonzero()
    return found[:, 0] if isinstance(found, Tensor) else torch.from_numpy(found[0])


class _Inner:
    """The two inner functions of a block, compiled where that is wanted and there is a compiler."""

    _compiled: ClassVar[dict[Hashable, tuple[ShareOfPositives, Opponents]]] = {}

    def __init__(self, job: BlockwiseJob, device: str) -> None:
        self.share: ShareOfPositives = job.share_of_positives
        self.opponents: Opponents = _opponents
        if job.compile and _compiler_works(device):
            if job.key not in self._compiled:
                # The longest row of positives differs between blocks: dynamic=True spares a compilation for each.
                share = torch.compile(job.share_of_positives, dynamic=True)
                self._compiled[job.key] = (share, torch.compile(_opponents))
            self.share, self.opponents = self._compiled[job.key]


@functools.cache
def _compiler_works(device: str) -> bool:
    """Compiles something tiny; says once why that is impossible, if it is."""
    try:
        torch.compile(torch.neg)(torch.ones(2, device=device))
    except torch._dynamo.exc.BackendCompilerFailed as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        warnings.warn(
            "compile=True needs a compiler and found none that works, so the loss runs without, in up to twice the "
            f"time; on Debian, `apt-get install g++` brings one ({reason.strip()})",
            stacklevel=2,
        )
        return False
    return True
