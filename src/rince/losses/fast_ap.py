"""Fast AP (Cakir et al., CVPR 2019): average precision by soft histograms, on batches of few categories.

With squared distances d of unit vectors in [0, 4] and bin centres z₀ … z_L, Δ = 4 / L apart, a distance counts
max{0, 1 - abs(d - z) / Δ} in a bin. With h⁺ the histogram of the positives, H⁺ and H the cumulated ones of positives
and of all, a query's average precision is about (1 / N⁺) Σ_l H⁺_l h⁺_l / H_l; the loss is 1 minus its mean.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rince.devices import looking_is_free
from rince.inputs import Numbers, as_tensor, whole_number


def fast_ap(embeddings: Numbers, labels: Numbers, *, bins: int = 5) -> Tensor:
    """The loss of a batch in which every sample is a query for all others.

    Equals: pytorch-metric-learning's `FastAPLoss(num_bins=bins)`.

    Args:
        embeddings: `(batch, dim)` of unit length.
        labels: `(batch,)` classes.
        bins: of the histogram, L.
    """
    bins = whole_number(bins, "bins")
    embeddings = as_tensor(embeddings, "embeddings")
    labels = as_tensor(labels, "labels", like=embeddings)
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
    if not looking_is_free(embeddings.device):  # the same without choosing rows, whose number the host would wait for
        mean = (precision / number.clamp(min=1) * used).sum() / used.sum().clamp(min=1)
        return (1 - mean) * used.any()
    if not used.any():
        return embeddings.sum() * 0
    return 1 - (precision[used] / number[used]).mean()
