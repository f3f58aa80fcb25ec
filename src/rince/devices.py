"""What differs between devices: whether looking at a value is free, whether there is float64; and which to use."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rince.errors import ConfigError


def looking_is_free(device: torch.device) -> bool:
    """Whether the host can look at a value without holding up the work.

    An accelerator works through a queue, and a look at a value waits until the queue is empty. There, nothing is looked
    at between two lines of the log: what is wrong turns the loss into NaN, by `nan_unless`, and stays in the weights
    until the next line shows it.
    """
    return device.type == "cpu"


def nan_unless(sound: Tensor, total: Tensor) -> Tensor:
    """The total where `sound` holds, else NaN, gradient included; both 0-dim. Looks at neither."""
    return total * torch.ones_like(total, requires_grad=False).masked_fill_(~sound, torch.nan)


def has_float64(device: torch.device) -> bool:
    """Whether the device has float64; MPS has not."""
    if device.type == "cpu":
        return True
    try:
        torch.empty((), dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):
        return False
    return True


def in_float64(values: Tensor) -> Tensor:
    """The values in float64: where they are, or, where the device has none, on the CPU."""
    return values.double() if has_float64(values.device) else values.cpu().double()


def multiplies_bfloat16() -> bool:
    """Whether the processor has instructions for it; without them it is slower than float32."""
    capabilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


@functools.lru_cache(maxsize=64)
def constant(values: Sequence[Any] | int, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """A few numbers, a tuple, or one, as a tensor that is sent to the device once. Not to be written to."""
    with torch.inference_mode(False):  # it may serve a training later
        return torch.tensor(values, dtype=dtype, device=device)


def best_device(accelerator: str = "auto") -> torch.device:
    """The device that was asked for; by default the first accelerator there is, else the CPU."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if accelerator == "auto":
        return torch.device(next(name for name, usable in there.items() if usable))
    if not there.get(accelerator.partition(":")[0]):
        usable = ", ".join(name for name, is_there in there.items() if is_there)
        raise ConfigError(f"there is no accelerator {accelerator!r} here; there are auto, {usable}")
    return torch.device(accelerator)
