"""Views of vectors: noise, and coordinates left out. What is drawn is a function of (seed, epoch, view, sample id)."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from rince.config.section import Section
from rince.draws import uniform


class VectorViewSettings(Section):
    """The section `views` of data that is vectors."""

    noise: Annotated[float, Field(ge=0)] = Field(
        0.02, description="standard deviation of what is added to every coordinate, as a share of the vector's length"
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="share of the coordinates that are 0 in a view; the others grow by as much"
    )

    @property
    def changes_nothing(self) -> bool:
        """Whether a view is the vector itself."""
        return not self.noise and not self.dropout

    def make(self, vectors: Tensor, *, seed: int, epoch: int, view: int, sample_ids: Tensor) -> Tensor:
        """A view of `(batch, dim)` vectors with these `(batch,)` ids, on their device."""
        if self.changes_nothing:
            return vectors
        dim = vectors.shape[1]
        drawn = uniform(seed, epoch, view, sample_ids, 2 * dim if self.dropout else dim)
        if self.noise:
            # The inverse of the normal distribution, infinite at its ends; in the middle of its 2⁻²⁴ no draw is at one.
            # In this order every sum is exact: `drawn + 2⁻²⁵` would round the largest to 1.
            normal = torch.erfinv(2 * drawn[:, :dim] - 1 + 2.0**-24).mul_(math.sqrt(2))
            lengths = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
            vectors = normal.mul_(self.noise * lengths).add_(vectors)
        if self.dropout:
            vectors = vectors * (drawn[:, dim:] >= self.dropout) / (1 - self.dropout)
        return vectors
