"""Randomness as a function: a random number is computed from what it is for, never taken from a generator.

The draws of a sample depend on (seed, epoch, view, sample id) alone. They are the same in any batch, process or
worker, and after any restart; there is no state to save.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from rince.errors import ShapeError

# What draws are for. Views of a sample count from 0 (the query); all else has a number of its own down here, so that no
# two draws of one run can be the same. A number is part of every result drawn with it: add, never change.
QUERY_VIEW: Final = 0
KEY_VIEW: Final = 1
ORDER: Final = 2**31 - 1
CLIP_PLACES: Final = 2**31 - 2
DROPOUT: Final = 2**31 - 3
NEIGHBOURHOOD_CLASSES: Final = 2**31 - 4
NEIGHBOURHOOD_SIBLINGS: Final = 2**31 - 5
NEIGHBOURHOOD_SAMPLES: Final = 2**31 - 6
NEIGHBOURHOOD_REST: Final = 2**31 - 7
FAST_AP_CATEGORIES: Final = 2**31 - 8
FAST_AP_SAMPLES: Final = 2**31 - 9
FLIPPED_PAIRS: Final = 2**31 - 10
NETWORK_DROPOUT: Final = 2**31 - 11
RANKED_SAMPLES: Final = 2**31 - 12
RANKED_CLASSES: Final = 2**31 - 13
RANKED_PARTNERS: Final = 2**31 - 14
RANKED_PLACES: Final = 2**31 - 15
BALANCED_CLASSES: Final = 2**31 - 16
FIXED_VIEW: Final = 2**31 - 1000  # and up, one for every view of a step

# The increment and the two multipliers of splitmix64 (Steele, Lea and Flood, 2014).
STEP = 0x9E3779B97F4A7C15
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
WORD = (1 << 64) - 1


def uniform(seed: int, epoch: int, view: int, sample_ids: Tensor, count: int) -> Tensor:
    """`count` uniform numbers for every sample, a counter-based hash of what they are for.

    Args:
        seed: of the run; any integer, taken modulo 2⁶⁴. So are epoch and view.
        epoch: of the training; the validation data may use one of its own, such as -1.
        view: which of the views of the sample.
        sample_ids: `(samples,)` integers.
        count: how many numbers a sample needs. Asking for more leaves the first ones as they are.

    Returns:
        `(samples, count)` float32 in [0, 1), multiples of 2⁻²⁴, on the device of `sample_ids`.

    Example:
        >>> ids = torch.tensor([7, 8])
        >>> one, other = uniform(0, 3, 1, ids, count=2), uniform(0, 3, 1, ids.flip(0), count=4)
        >>> torch.equal(one, other.flip(0)[:, :2])
        True
    """
    if sample_ids.ndim != 1 or sample_ids.is_floating_point() or sample_ids.dtype == torch.bool:
        raise ShapeError(
            f"sample_ids must be a vector of integers, got {sample_ids.dtype} of shape {tuple(sample_ids.shape)}"
        )
    if count < 0:
        raise ShapeError(f"count must not be negative, got {count}")
    key = 0
    for word in (seed, epoch, view):
        key = _mix((key ^ word) + STEP)  # mixed after each, so that no two of them can stand for one another
    samples = _mix_tensor(sample_ids.long() * _signed(STEP) + _signed(key))
    counter = torch.arange(1, count + 1, device=sample_ids.device) * _signed(STEP)
    words = _mix_tensor(samples[:, None] + counter)
    return _shifted(words, 40).to(torch.float32).mul_(2.0**-24)


def seed_of(seed: int, epoch: int, view: int, sample_id: int) -> int:
    """A seed below 2⁶³ for generators of others, a function of what it is for."""
    key = 0
    for word in (seed, epoch, view, sample_id):
        key = _mix((key ^ word) + STEP)
    return key >> 1


def _mix(word: int) -> int:
    """The finaliser of splitmix64: every bit of the input turns half of the bits of the output. One to one."""
    word &= WORD
    word = ((word ^ (word >> 30)) * FIRST) & WORD
    word = ((word ^ (word >> 27)) * SECOND) & WORD
    return word ^ (word >> 31)


def _mix_tensor(words: Tensor) -> Tensor:
    """`_mix` of every int64, in place; products wrap around as those of 64-bit words do."""
    words.bitwise_xor_(_shifted(words, 30)).mul_(_signed(FIRST))
    words.bitwise_xor_(_shifted(words, 27)).mul_(_signed(SECOND))
    return words.bitwise_xor_(_shifted(words, 31))


def _shifted(words: Tensor, bits: int) -> Tensor:
    """Shift to the right with zeros coming in; torch's own repeats the sign."""
    return (words >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    """The int64 with the bits of an unsigned 64-bit word."""
    return word - (1 << 64) if word >> 63 else word
