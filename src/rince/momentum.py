"""The momentum twin: a slowly following copy of the encoder, which makes the keys."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rince.errors import ConfigError, ShapeError
from rince.inputs import finite_number


class MomentumTwin(nn.Module):
    """A copy of a module that shares no storage with it, takes no gradient, and follows it slowly.

    Args:
        module: what to copy.
        momentum: m in `twin = m · twin + (1 - m) · module`; the paper uses 0.99.
        buffers: what happens to buffers such as the running statistics of batch normalisation. `"own"`: the twin keeps
            its own, from what passes through it (the paper's code). `"copy"`: they are copied at every update.

    Example:
        >>> encoder = nn.Linear(2, 1, bias=False)
        >>> twin = MomentumTwin(encoder, momentum=0.9)
        >>> with torch.no_grad():
        ...     _ = encoder.weight.add_(1.0)
        >>> before = twin.module.weight.clone()
        >>> twin.update(encoder)
        >>> (twin.module.weight - before)
        tensor([[0.1000, 0.1000]])
    """

    def __init__(self, module: nn.Module, momentum: float = 0.99, *, buffers: Literal["own", "copy"] = "own") -> None:
        super().__init__()
        if not 0.0 <= finite_number(momentum, "momentum") < 1.0:
            raise ConfigError(f"momentum must be at least 0 and below 1, got {momentum}; the paper uses 0.99")
        if buffers not in ("own", "copy"):
            raise ConfigError(f"buffers must be 'own' or 'copy', got {buffers!r}")
        with torch.inference_mode(False), torch.no_grad():  # parameters made in that mode could never be updated
            self.module = copy.deepcopy(module).requires_grad_(False)
        self.momentum = momentum
        self.buffers_policy = buffers

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """The twin's output; never part of a graph."""
        with torch.no_grad():
            return self.module(*inputs, **options)

    @torch.no_grad()
    def update(self, source: nn.Module) -> None:
        """Moves a step of 1 - m towards `source`, all parameters in one call."""
        own, new = dict(self.module.named_parameters()), dict(source.named_parameters())
        _check_same(own, new)
        torch._foreach_lerp_(list(own.values()), [new[name].detach() for name in own], 1.0 - self.momentum)
        if self.buffers_policy == "copy":
            new_buffers = dict(source.named_buffers())
            for name, buffer in self.module.named_buffers():
                buffer.copy_(new_buffers[name])

    def extra_repr(self) -> str:
        """Momentum and buffer policy, for `print(twin)`."""
        return f"momentum={self.momentum}, buffers={self.buffers_policy!r}"


def _check_same(own: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> None:
    for name in sorted(own.keys() ^ new.keys()):
        where = "the twin" if name in own else "the source"
        raise ShapeError(
            f"parameter {name!r} is only in {where}; update() takes the module the twin was made from (unwrap DDP and "
            "torch.compile first)"
        )
    for name, parameter in own.items():
        if parameter.shape != new[name].shape:
            raise ShapeError(
                f"parameter {name!r} has shape {tuple(new[name].shape)} in the source and {tuple(parameter.shape)} in "
                "the twin; update() takes the module the twin was made from"
            )


@contextmanager
def as_it_was(module: nn.Module) -> Iterator[None]:
    """Gives a module its buffers back: what goes through it meanwhile leaves no trace in batch statistics."""
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    yield
    for name, buffer in module.named_buffers():
        buffer.copy_(before[name])
