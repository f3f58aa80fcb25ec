"""Fast AP (Cakir et al., CVPR 2019): average precision by soft histograms, on batches of few categories.

With squared distances d of unit vectors in [0, 4] and bin centres z₀ … z_L, Δ = 4 / L apart, a distance counts
max{0, 1 - abs(d - z) / Δ} in a bin. With h⁺ the histogram of the positives, H⁺ and H the cumulated ones of positives
and of all, a query's average precision is about (1 / N⁺) Σ_l H⁺_l h⁺_l / H_l; the loss is 1 minus its mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rince.draws import uniform
from rince.errors import ConfigError, DataError

CATEGORY_VIEW, SAMPLE_VIEW = 2**31 - 2, 2**31 - 3  # view numbers no view uses


def fast_ap(embeddings: Tensor, labels: Tensor, *, bins: int = 5) -> Tensor:
    """The loss of a batch in which every sample is a query for all others.

    Equals: pytorch-metric-learning's `FastAPLoss(num_bins=bins)`.

    Args:
        embeddings: `(batch, dim)` of unit length.
        labels: `(batch,)` classes.
        bins: of the histogram, L.
    """
    if bins < 1:
        raise ConfigError(f"bins must be at least 1, got {bins}")
    distances = (2 - 2 * embeddings.float() @ embeddings.float().T).clamp(0, 4)
    others = ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    positive = (labels[:, None] == labels) & others
    width = 4 / bins
    centres = torch.arange(bins + 1, device=embeddings.device) * width
    pulse = (1 - (distances[:, :, None] - centres).abs() / width).clamp(min=0)
    near = (pulse * positive[:, :, None]).sum(dim=1)
    summed = near.cumsum(dim=1)
    everyone = (pulse * others[:, :, None]).sum(dim=1).cumsum(dim=1)
    precision = (near * summed / everyone.clamp(min=1e-12)).sum(dim=1)
    number = positive.sum(dim=1)
    used = number > 0
    if not used.any():
        return embeddings.sum() * 0
    return 1 - (precision[used] / number[used]).mean()


@dataclass(frozen=True)
class CategoryOrder:
    """Batches of a few categories each, the same number of samples from each of their classes.

    Seekable: what a step holds is a function of seed, epoch and step. An epoch has as many batches as samples would
    fill; a sample may come twice in it, or not at all.

    Args:
        labels: `(samples,)` classes.
        category_of: `(classes,)` categories (superclasses).
        batch: samples of a batch.
        categories: how many make a batch.
        seed: of the draws.
    """

    labels: Tensor
    category_of: Tensor
    batch: int
    categories: int
    seed: int

    def __post_init__(self) -> None:
        if self.categories > len(self.category_of.unique()):
            raise DataError(
                f"a batch of {self.categories} categories needs a taxonomy with at least as many superclasses, got "
                f"{len(self.category_of.unique())}; set data.taxonomy, or a smaller method.categories"
            )

    @property
    def steps_per_epoch(self) -> int:
        """How many batches an epoch has."""
        return max(1, len(self.labels) // self.batch)

    def ids(self, epoch: int, step: int, *, process: int = 0, processes: int = 1) -> Tensor:
        """Sample ids of a step of an epoch, or the part of them that one process takes."""
        names = self.category_of.unique()
        drawn = uniform(self.seed, epoch, CATEGORY_VIEW, torch.tensor([step]), len(names))[0]
        chosen = names[drawn.argsort()[: self.categories]]
        members = torch.isin(self.category_of[self.labels], chosen).nonzero().squeeze(1)
        keys = uniform(self.seed, epoch, SAMPLE_VIEW, step * len(self.labels) + members, 1)[:, 0]
        # Every class in its own random order; then the first of every class, the second of every class, and so on.
        members = members[keys.argsort(stable=True)]
        place = torch.zeros_like(members)
        for label in self.labels[members].unique():
            own = self.labels[members] == label
            place[own] = torch.arange(int(own.sum()))
        batch = members[place.argsort(stable=True)][: self.batch]
        return batch.tensor_split(processes)[process]
