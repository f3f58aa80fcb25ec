"""Hierarchical triplet loss (Ge et al., ECCV 2018) with the hierarchy given, as the paper uses it.

    1 / (2Z) Σ max{‖a - p‖² - ‖a - n‖² + α, 0}        α = β + d_H(a, n) - s(a)

over all Z triplets of a batch. s(a) is the mean squared distance within the anchor's class; d_H(a, n) belongs to the
level l at which the classes of a and n meet in the hierarchy of L levels: d₀ + l (4 - d₀) / L, with d₀ the mean of s
over the classes and 4 the largest squared distance of unit vectors. Ge et al. measure s once per epoch; here it is a
running mean, kept in the checkpoint.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rince.devices import looking_is_free
from rince.losses.counting import violated
from rince.ranks import TableRanks

FOLLOW = 0.9  # of the running mean


class HierarchicalTriplet(nn.Module):
    """The loss of a batch; remembers how wide classes are.

    Args:
        ranks: of classes to each other: 1 the class itself, i + 1 if they meet i levels up, 0 if they never do.
        slack: β.
    """

    within: Tensor

    def __init__(self, ranks: TableRanks, *, slack: float = 0.1) -> None:
        super().__init__()
        self.levels = ranks.ranks  # meeting nowhere is one level above the highest rank
        meeting = torch.where(ranks.table == 0, self.levels, ranks.table.long() - 1)
        self.register_buffer("meeting", meeting, persistent=False)
        self.register_buffer("within", torch.ones(len(meeting)))
        self.slack = slack

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The loss of `(batch, dim)` embeddings of unit length with `(batch,)` classes."""
        distances = (2 - 2 * embeddings.float() @ embeddings.float().T).clamp(min=0)
        same = labels[:, None] == labels
        pairs = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        if not looking_is_free(distances.device):
            return self._unseen(distances, pairs, same, labels)
        self._remember(distances.detach(), pairs, labels)
        anchors, positives = pairs.nonzero(as_tuple=True)
        if len(anchors) == 0 or bool(same.all()):
            return embeddings.sum() * 0
        margins = self._margins(labels)
        violation = distances[anchors, positives][:, None] + (margins - distances)[anchors]
        negatives = ~same[anchors]
        return (violation.clamp(min=0) * negatives).sum() / (2 * negatives.sum())

    def _margins(self, labels: Tensor) -> Tensor:
        """`(batch, batch)`: α of an anchor and a negative."""
        start = self.within.mean()
        meeting: Tensor = self.get_buffer("meeting")[labels][:, labels]
        return self.slack + start + meeting * (4 - start) / self.levels - self.within[labels][:, None]

    def _unseen(self, distances: Tensor, pairs: Tensor, same: Tensor, labels: Tensor) -> Tensor:
        """The same on an accelerator, where choosing pairs would make the host wait for their number."""
        with torch.no_grad():
            of_class = (torch.arange(len(self.within), device=labels.device)[:, None] == labels).float()
            number = of_class @ pairs.sum(dim=1).float()
            mean = of_class @ (distances * pairs).sum(dim=1) / number.clamp(min=1)
            self.within.copy_(torch.where(number > 0, FOLLOW * self.within + (1 - FOLLOW) * mean, self.within))
            triplets = (pairs.sum(dim=1) * (~same).sum(dim=1)).sum()
        levels = distances - self._margins(labels)
        counts, beyond = violated(distances, pairs, levels, ~same)
        return ((counts * distances).sum() - (beyond * levels).sum()) / (2 * triplets.clamp(min=1))

    def _remember(self, distances: Tensor, pairs: Tensor, labels: Tensor) -> None:
        for label in labels.unique():
            rows = labels == label
            chosen = pairs[rows][:, rows]
            if chosen.any():
                mean = distances[rows][:, rows][chosen].mean()
                self.within[label] = FOLLOW * self.within[label] + (1 - FOLLOW) * mean
