"""Hierarchical triplet loss (Ge et al., ECCV 2018) with the hierarchy given, as the paper uses it.

    1 / (2Z) Σ max{‖a - p‖² - ‖a - n‖² + α, 0}        α = β + d_H(a, n) - s(a)

over all Z triplets of a batch. s(a) is the mean squared distance within the anchor's class; d_H(a, n) belongs to the
level l at which the classes of a and n meet in the hierarchy of L levels: d₀ + l (4 - d₀) / L, with d₀ the mean of s
over the classes and 4 the largest squared distance of unit vectors. Ge et al. measure s once per epoch; here it is a
running mean, kept in the checkpoint.

A batch has l′ random classes with one sample each, c samples from a class close to each of them, and t random samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rince.draws import uniform
from rince.ranks import TableRanks

CLASS_VIEW, SIBLING_VIEW, SAMPLE_VIEW, RANDOM_VIEW = (2**31 - n for n in (4, 5, 6, 7))  # numbers no view uses
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
        self._remember(distances.detach(), pairs, labels)
        anchors, positives = pairs.nonzero(as_tuple=True)
        if len(anchors) == 0 or bool(same.all()):
            return embeddings.sum() * 0
        start = self.within.mean()
        meeting: Tensor = self.get_buffer("meeting")[labels][:, labels]
        margins = self.slack + start + meeting * (4 - start) / self.levels - self.within[labels][:, None]
        violation = distances[anchors, positives][:, None] + (margins - distances)[anchors]
        negatives = ~same[anchors]
        return (violation.clamp(min=0) * negatives).sum() / (2 * negatives.sum())

    def _remember(self, distances: Tensor, pairs: Tensor, labels: Tensor) -> None:
        for label in labels.unique():
            rows = labels == label
            chosen = pairs[rows][:, rows]
            if chosen.any():
                mean = distances[rows][:, rows][chosen].mean()
                self.within[label] = FOLLOW * self.within[label] + (1 - FOLLOW) * mean


@dataclass(frozen=True)
class NeighbourhoodOrder:
    """Batches in which close classes meet. Seekable: a step is a function of seed, epoch and step.

    Args:
        labels: `(samples,)` classes.
        ranks: of classes to each other; the closest other class has the lowest rank above 1.
        anchors: l′, classes drawn per batch.
        near: c, samples drawn from a class close to each of them.
        random: t, samples drawn from all.
        seed: of the draws.
    """

    labels: Tensor
    ranks: TableRanks
    anchors: int
    near: int
    random: int
    seed: int

    @property
    def batch(self) -> int:
        """Samples of a batch."""
        return self.anchors * (1 + self.near) + self.random

    @property
    def steps_per_epoch(self) -> int:
        """How many batches an epoch has: as many as samples would fill."""
        return max(1, len(self.labels) // self.batch)

    def ids(self, epoch: int, step: int, *, process: int = 0, processes: int = 1) -> Tensor:
        """Sample ids of a step of an epoch, or the part of them that one process takes. No sample comes twice."""
        present = self.labels.unique()
        drawn = uniform(self.seed, epoch, CLASS_VIEW, torch.tensor([step]), len(present))[0]
        classes = present[drawn.argsort()[: self.anchors]].tolist()
        keys = uniform(self.seed, epoch, SAMPLE_VIEW, step * len(self.labels) + torch.arange(len(self.labels)), 1)[:, 0]
        shuffled = keys.argsort(stable=True)
        queues = {label: shuffled[self.labels[shuffled] == label].tolist() for label in present.tolist()}
        picks = uniform(self.seed, epoch, SIBLING_VIEW, torch.tensor([step]), len(classes))[0].tolist()
        batch = [queues[label].pop() for label in classes if queues[label]]
        for label, pick in zip(classes, picks, strict=True):
            close = self._closest(label, present)
            queue = queues[close[int(pick * len(close))]]
            batch += [queue.pop() for _ in range(min(self.near, len(queue)))]
        rest = torch.tensor([i for queue in queues.values() for i in queue])
        order = uniform(self.seed, epoch, RANDOM_VIEW, step * len(self.labels) + rest, 1)[:, 0].argsort(stable=True)
        batch += rest[order[: self.batch - len(batch)]].tolist()  # fills up what small classes could not give
        return torch.tensor(batch).tensor_split(processes)[process]

    def _closest(self, label: int, present: Tensor) -> list[int]:
        """The other classes of the lowest rank; the class itself if there is none."""
        row = self.ranks.table[label][present].long()
        others = torch.where(row > 1, row, 2**31)
        lowest = others.min()
        return [label] if lowest == 2**31 else present[others == lowest].tolist()
