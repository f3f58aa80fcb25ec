"""The ranked loss from embeddings: a block of queries at a time, value and gradient in one pass.

The loss is a sum over queries, so a block of query rows goes from similarities to gradient while it is in
cache, and the whole (queries, candidates) matrix never exists. Within a block

- the positives, which are few, are gathered into a narrow padded matrix. The formula of `loss.term_values` runs
  on that and is differentiated by autograd; it is not repeated here;
- the negatives, which are many, reach the loss through one number per temperature, log Σ exp(s/τ), whose
  gradient is a softmax. They get a handful of plain passes, which `torch.compile` fuses on request.

How many positives there are is a value, and on an accelerator a look at a value waits for all work before it. There
the formula runs on the whole block instead, and no value is looked at.

How much that saves is in `benchmarks/loss_speed.csv`, beside the dense form and pytorch-metric-learning.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

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

RankRows = Callable[[int, int], Tensor]
Share = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
Negatives = Callable[[Tensor, tuple[float, ...], list[Tensor]], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class BlockwiseJob:
    """What to compute, apart from the embeddings.

    Attributes:
        rank_rows: `(start, stop)` → these rows of the rank matrix. Asked for twice.
        temperatures: one per term.
        count: ranks of some queries → `(terms,)` queries used, and `(terms,)` divisors of the terms.
        divisor: `(terms,)`, to be used instead of the counted one, or None.
        share: similarities, ranks, divisors, log-sums of further negatives or None → `(terms,)`, part of every ℓᵢ.
        key: what `share` depends on, so that its compiled form can be kept.
        rank_weight: weight of every ℓᵢ in the total.
        block_size: rows per block, or None to choose.
        compile: whether to compile the inner block.
    """

    rank_rows: RankRows
    temperatures: tuple[float, ...]
    count: Callable[[Tensor], tuple[Tensor, Tensor]]
    divisor: Tensor | None
    share: Share
    key: Hashable
    rank_weight: float
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
        total = per_rank.sum() * job.rank_weight
        # An excluded NaN reaches the gradient alone, by 0 · NaN: let the caller see it.
        if looking_is_free(queries.device):
            if not all(gradient is None or gradient.isfinite().all() for gradient in gradients):
                total = total * torch.nan
        else:
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
            share, gradient = _whole_block(similarities, ranks, divisor, job, inner)
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
    if ranks.amin() < 0:
        # As a rule few, such as the diagonal: to find them first takes a fifth of the time of a mask.
        similarities.view(-1).index_fill_(0, _places(ranks.numpy() < 0), -torch.inf)
        ranks = ranks.clamp(min=0)
    positives, positive_ranks, place, slot = _gather_positives(similarities, ranks)
    similarities.view(-1).index_fill_(0, place, -torch.inf)
    sums, log_sums = inner.negatives(similarities, job.temperatures, buffers)
    exponentials = [*buffers, similarities]
    with torch.enable_grad():
        share = inner.share(positives.requires_grad_(), positive_ranks, divisor, log_sums.requires_grad_())
        of_positives, of_log_sums = torch.autograd.grad(share.sum() * job.rank_weight, (positives, log_sums))
    weights = of_log_sums / (sums * sums.new_tensor(job.temperatures))
    gradient = exponentials[0].mul_(weights[:, :1])
    for i, exponential in enumerate(exponentials[1:], start=1):
        gradient.addcmul_(exponential, weights[:, i : i + 1])
    gradient.view(-1).index_copy_(0, place, of_positives.view(-1).index_select(0, slot))
    return share.detach(), gradient


def _whole_block(
    similarities: Tensor, ranks: Tensor, divisor: Tensor, job: BlockwiseJob, inner: _Inner
) -> tuple[Tensor, Tensor]:
    """As `_block`, in more passes over the block and without a look at any value."""
    similarities = similarities.detach().requires_grad_()
    with torch.enable_grad():
        share = inner.share(similarities, ranks, divisor, None)
        (gradient,) = torch.autograd.grad(share.sum() * job.rank_weight, similarities)
    return share.detach(), gradient


def _negatives(similarities: Tensor, temperatures: tuple[float, ...], buffers: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Writes exp((s - peak)/τᵢ) into the buffers, one per temperature, and for the last one over `similarities`.

    Where `similarities` is -inf there is no negative: exp(-80) remains, nothing beside the 1 of the peak.

    Returns:
        Their sums, and log Σ exp(s/τᵢ): `(rows, temperatures)` each.
    """
    peak = similarities.amax(dim=1, keepdim=True).clamp_(min=LOG_OF_NOTHING)
    sums = []
    for t, out in zip(temperatures, [*buffers, similarities], strict=True):
        exponential = torch.add(peak / -t, similarities, alpha=1.0 / t, out=out).clamp_(min=VANISHES).exp_()
        sums.append(exponential.sum(dim=1))
    total = torch.stack(sums, dim=1)
    return total, (peak / total.new_tensor(temperatures) + total.log()).clamp_(min=LOG_OF_NOTHING)


def _gather_positives(similarities: Tensor, ranks: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Positives of every row, padded with excluded entries to the longest row.

    Returns:
        `(rows, width)` similarities and ranks; and for every positive its place in the flattened block and its slot
        in the flattened padded matrix.
    """
    rows, candidates = ranks.shape
    place = _places(ranks.numpy() != 0)
    first = torch.searchsorted(place, torch.arange(rows + 1) * candidates)
    number = first.diff()
    width = max(1, int(number.max()))
    row = torch.arange(rows)
    slot = torch.arange(len(place)) + torch.repeat_interleave(row * width - first[:-1], number)
    positives = similarities.new_zeros(rows * width).index_copy_(0, slot, similarities.view(-1).index_select(0, place))
    padded_ranks = torch.full((rows * width,), -1, dtype=torch.int32)
    padded_ranks.index_copy_(0, slot, ranks.view(-1).index_select(0, place).to(torch.int32))
    return positives.view(rows, width), padded_ranks.view(rows, width), place, slot


def _places(mask: Any) -> Tensor:
    """Where a mask of NumPy holds, in its flattened form.

    Blocks like this are on the CPU, where NumPy's search takes half as long as torch's on one core, as long on two.
    """
    return torch.from_numpy(mask.ravel().nonzero()[0])


class _Inner:
    """The two inner functions of a block, compiled where that is wanted and there is a compiler."""

    _compiled: ClassVar[dict[Hashable, tuple[Share, Negatives]]] = {}

    def __init__(self, job: BlockwiseJob, device: str) -> None:
        self.share: Share = job.share
        self.negatives: Negatives = _negatives
        if job.compile and _compiler_works(device):
            if job.key not in self._compiled:
                # The longest row of positives differs between blocks: dynamic=True spares a compilation for each.
                self._compiled[job.key] = (torch.compile(job.share, dynamic=True), torch.compile(_negatives))
            self.share, self.negatives = self._compiled[job.key]


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
