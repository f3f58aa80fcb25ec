"""Heads: what stands between a feature and an embedding while training, and is dropped afterwards."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rince.errors import ConfigError


def mlp_head(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Linear, ReLU, Linear; no batch normalisation. `(batch, inputs)` to `(batch, outputs)`.

    Example:
        >>> mlp_head(2048, 2048, 128)
        Sequential(
          (0): Linear(in_features=2048, out_features=2048, bias=True)
          (1): ReLU(inplace=True)
          (2): Linear(in_features=2048, out_features=128, bias=True)
        )
    """
    for name, value in (("inputs", inputs), ("hidden", hidden), ("outputs", outputs)):
        if value < 1:
            raise ConfigError(f"{name} of a head must be at least 1, got {value}; the paper's head is 2048, 2048, 128")
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, outputs))


class SideBySide(nn.Module):
    """Several heads on the same features, their outputs one after the other in one vector.

    Args:
        heads: each `(batch, inputs)` to `(batch, its outputs)`.

    Attributes:
        dim: length of the vector.
        widths: of its parts.
    """

    def __init__(self, heads: Sequence[nn.Module]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)
        lasts = [[m for m in head.modules() if isinstance(m, nn.Linear)][-1] for head in heads]
        self.widths = [last.out_features for last in lasts]
        self.dim = sum(self.widths)

    def forward(self, features: Tensor) -> Tensor:
        """`(batch, inputs)` to `(batch, dim)`."""
        return torch.cat([head(features) for head in self.heads], dim=1)


def side_by_side(heads: Sequence[nn.Module]) -> nn.Module:
    """One head as it is, several as `SideBySide`."""
    return heads[0] if len(heads) == 1 else SideBySide(heads)
