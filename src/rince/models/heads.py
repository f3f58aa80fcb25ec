"""Heads: what stands between a feature and an embedding while training, and is dropped afterwards."""

from __future__ import annotations

from torch import nn

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
