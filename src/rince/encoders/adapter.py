"""The adapter: what is trained on top of vectors that a pretrained network has made."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from rince.config import ModelSettings
from rince.errors import ConfigError

FLAT = 1e-6  # spread of a coordinate below which it says nothing


class AdaptedModel(ModelSettings):
    """Settings of models that train an adapter."""

    hidden: PositiveInt = Field(768, description="width of the adapter's hidden layer")
    standardise: bool = Field(
        False, description="shift and scale every coordinate to mean 0 and spread 1 over the training samples, first"
    )


class AdapterModel(AdaptedModel):
    """`model.kind=adapter`: two layers on top of vectors."""

    kind: Literal["adapter"] = "adapter"

    def build(self, shape: Sequence[int]) -> nn.Module:
        """For vectors of this length."""
        if len(shape) != 1:
            raise ConfigError(
                f"model.kind=adapter takes vectors, and a sample here has the shape {tuple(shape)}; use "
                "model.kind=resnet for pixels, sentence-transformers or huggingface for texts"
            )
        return Adapter(shape[0], self.hidden, standardise=self.standardise)


def statistics(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and spread of every coordinate of `(samples, width)`; a spread of nothing counts as 1."""
    spread, mean = torch.std_mean(rows.double(), dim=0, correction=0)
    return mean.float(), torch.where(spread > FLAT, spread, 1.0).float()


class Standardised(nn.Module):
    """A network that first shifts and scales every coordinate by the statistics of the training samples, or may."""

    standardise: bool

    @abstractmethod
    def start_on(self, rows: Tensor) -> None:
        """Takes the statistics of the training samples."""


class Adapter(Standardised):
    """x + W₂ relu(W₁ x): starts at the identity, so that training begins from what the vectors already know.

    Args:
        width: of a vector.
        hidden: width of the hidden layer.
        standardise: shift and scale coordinates first, by the statistics that `start_on` finds.

    Example:
        >>> import torch
        >>> vectors = torch.randn(2, 8)
        >>> torch.equal(Adapter(8, 16)(vectors), vectors)
        True
    """

    mean: Tensor
    spread: Tensor

    def __init__(self, width: int, hidden: int, *, standardise: bool = False) -> None:
        super().__init__()
        self.feature_dim, self.standardise = width, standardise
        self.inner = nn.Linear(width, hidden)
        self.outer = nn.Linear(hidden, width)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)
        if standardise:
            self.register_buffer("mean", torch.zeros(width))
            self.register_buffer("spread", torch.ones(width))

    def start_on(self, rows: Tensor) -> None:
        """Takes the statistics of the training vectors `(samples, width)`."""
        if self.standardise:
            mean, spread = statistics(rows)
            self.mean.copy_(mean)
            self.spread.copy_(spread)

    def forward(self, vectors: Tensor) -> Tensor:
        """`(batch, width)` to `(batch, width)`."""
        if self.standardise:
            vectors = (vectors - self.mean) / self.spread
        changed: Tensor = vectors + self.outer(F.relu(self.inner(vectors)))
        return changed
