"""Which device to use, where no training loop chooses one."""

from __future__ import annotations

import torch

from rince.errors import ConfigError


def best_device(accelerator: str = "auto") -> torch.device:
    """The device that was asked for; by default the first accelerator there is, else the CPU."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if accelerator == "auto":
        return torch.device(next(name for name, usable in there.items() if usable))
    if not there.get(accelerator.partition(":")[0]):
        usable = ", ".join(name for name, is_there in there.items() if is_there)
        raise ConfigError(f"there is no accelerator {accelerator!r} here; there are auto, {usable}")
    return torch.device(accelerator)
