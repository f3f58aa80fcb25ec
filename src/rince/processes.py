"""Rows of all processes as one tensor, gradients included."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rince.errors import ConfigError, ShapeError


def process_count() -> int:
    """How many processes there are, or a clear error where nobody has set them up."""
    if not (dist.is_available() and dist.is_initialized()):
        raise ConfigError(
            "gather=True needs processes that know of each other: call torch.distributed.init_process_group first, or "
            "leave it out on one process"
        )
    return dist.get_world_size()


def summed(values: Tensor) -> Tensor:
    """Over processes; no gradient."""
    values = values.detach().clone()
    dist.all_reduce(values)
    return values


class Gathering:
    """How the rows of every process follow each other; made once, for all tensors of a batch.

    All processes make it, and gather with it, together and in the same order: also one that has no rows.

    Args:
        embeddings: `(samples, views, dim)` of this process.
        given: what else may be said of samples, and whether it is; whoever has samples must say the same.
    """

    def __init__(self, embeddings: Tensor, **given: bool) -> None:
        told = [*embeddings.shape, embeddings.requires_grad, embeddings.element_size(), *given.values()]
        mine = torch.tensor(told, device=embeddings.device)
        everyone = [torch.empty_like(mine) for _ in range(process_count())]
        dist.all_gather(everyone, mine)
        shapes = [tuple(each[:3].tolist()) for each in everyone]
        if len({each[1:] for each in shapes}) > 1:
            raise ShapeError(
                "all processes must bring as many views of one width; got (samples, views, dim) = "
                + ", ".join(map(str, shapes))
            )
        with_gradient, sizes, *whether = zip(*(each[3:].tolist() for each in everyone), strict=True)
        if len(set(sizes)) > 1:
            raise ShapeError(
                f"all processes must bring embeddings of one dtype; theirs have {', '.join(map(str, sizes))} bytes"
            )
        for name, by_process in zip(given, whether, strict=True):
            if len({has for has, (samples, *_) in zip(by_process, shapes, strict=True) if samples}) > 1:
                without = [number for number, has in enumerate(by_process) if not has]
                raise ConfigError(f"all processes must give {name}, or none; without are those of number {without}")
        self.sizes: list[int] = [each[0] for each in shapes]
        self.start = sum(self.sizes[: dist.get_rank()])
        # Where one process has gradients, all take part in the backward pass: whoever does not leaves the rest waiting.
        self.has_gradient = any(with_gradient)

    @property
    def own(self) -> slice:
        """The rows of this process."""
        return slice(self.start, self.start + self.sizes[dist.get_rank()])

    def __call__(self, rows: Tensor) -> Tensor:
        """Rows of all processes, in their order; no gradient."""
        rows = rows.detach()
        padded = rows.new_zeros(max(self.sizes), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in self.sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, self.sizes, strict=True)])

    def differentiably(self, rows: Tensor) -> Tensor:
        """The same; the gradient of a row is the sum of what it gets on all processes."""
        if self.has_gradient and not rows.requires_grad:
            rows = rows.detach().requires_grad_()
        gathered: Tensor = _Gathered.apply(rows, self)  # type: ignore[no-untyped-call]
        return gathered


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, gathering: Gathering) -> Tensor:
        ctx.own = gathering.own
        return gathering(rows)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return summed(gradient)[ctx.own], None
