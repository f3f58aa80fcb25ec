"""Hierarchical triplet loss (Ge et al., ECCV 2018) with the hierarchy given, as the paper uses it.

    1 / (2Z) Σ max{‖a - p‖² - ‖a - n‖² + α, 0}        α = β + d_H(a, n) - s(a)

over all Z triplets of a batch. s(a) is the mean squared distance within the anchor's class. Classes are the nodes of
level 0 of the tree, its root is level L, and nodes closer than d_l are merged on level l: d_l = d₀ + l (4 - d₀) / L,
with d₀ the mean of s over the classes and 4 the largest squared distance of unit vectors. H(a, n) is the level on which
the classes of a and n are merged into one node of the next: 0 for siblings, L - 1 for classes that share the root
alone. At s(a) within its class an anchor is thus asked for β + d_H from a negative, which is never more than 4: where β
would make it so, 4 is asked for. Ge et al. measure s once per epoch; here it is a running mean, kept in the checkpoint.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rince.devices import looking_is_free
from rince.inputs import Numbers, as_tensor
from rince.losses.counting import violated
from rince.ranks import TableRanks

FOLLOW = 0.9  # of the running mean
FARTHEST = 4.0  # squared distance of opposite unit vectors


class HierarchicalTriplet(nn.Module):
    """The loss of a batch; remembers how wide classes are.

    Args:
        ranks: of classes to each other: 1 the class itself, i + 1 if they meet i levels up, 0 if they never do.
        slack: β.
    """

    within: Tensor

    def __init__(self, ranks: TableRanks, *, slack: float = 0.1) -> None:
        super().__init__()
        # The level of the node that two classes share; those that meet nowhere share a root above the highest rank.
        shared = torch.where(ranks.table == 0, ranks.ranks, ranks.table.long() - 1)
        self.levels = max(1, int(shared.max()))
        self.register_buffer("merged_on", (shared - 1).clamp(min=0), persistent=False)
        self.register_buffer("within", torch.ones(len(shared)))
        self.slack = slack

    def forward(self, embeddings: Numbers, labels: Numbers) -> Tensor:
        """The loss of `(batch, dim)` embeddings of unit length with `(batch,)` classes."""
        embeddings = as_tensor(embeddings, "embeddings", like=self.within)
        labels = as_tensor(labels, "labels", like=embeddings)
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
        merged_on: Tensor = self.get_buffer("merged_on")[labels][:, labels]
        asked = self.slack + start + merged_on * (FARTHEST - start) / self.levels
        return asked.clamp(max=FARTHEST) - self.within[labels][:, None]

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
