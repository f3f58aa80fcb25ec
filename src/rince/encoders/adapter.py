"""The adapter: what is trained on top of vectors that a pretrained network has made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from rince.config import ModelSettings
from rince.errors import ConfigError


class AdapterModel(ModelSettings):
    """`model.kind=adapter`."""

    kind: Literal["adapter"] = "adapter"
    hidden: PositiveInt = Field(768, description="width of its hidden layer")

    def build(self, shape: Sequence[int]) -> Adapter:
        """For vectors of this length."""
        if len(shape) != 1:
            raise ConfigError(
                f"model.kind=adapter takes vectors, and a sample here has the shape {tuple(shape)}; use "
                "model.kind=resnet for pixels, sentence-transformers or huggingface for texts"
            )
        return Adapter(shape[0], self.hidden)


class Adapter(nn.Module):
    """x + W₂ relu(W₁ x): starts at the identity, so that training begins from what the vectors already know.

    Example:
        >>> import torch
        >>> vectors = torch.randn(2, 8)
        >>> torch.equal(Adapter(8, 16)(vectors), vectors)
        True
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.feature_dim = width
        self.inner = nn.Linear(width, hidden)
        self.outer = nn.Linear(hidden, width)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(self, vectors: Tensor) -> Tensor:
        """`(batch, width)` to `(batch, width)`."""
        changed: Tensor = vectors + self.outer(F.relu(self.inner(vectors)))
        return changed
