"""Hierarchical triplets, on batches in which close classes meet. The loss is `rince.losses.hierarchical_triplet`.

A batch has l′ random classes with one sample each, c samples from a class close to each of them, and t random samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from rince.config import Recipe
from rince.draws import (
    NEIGHBOURHOOD_CLASSES,
    NEIGHBOURHOOD_REST,
    NEIGHBOURHOOD_SAMPLES,
    NEIGHBOURHOOD_SIBLINGS,
    uniform,
)
from rince.losses.hierarchical_triplet import HierarchicalTriplet
from rince.methods.batch_loss import BatchLoss
from rince.methods.method import Given, Method, MethodKind
from rince.ranks import TableRanks
from rince.sources.order import DrawnBatches


class HierarchicalTriplets(BatchLoss):
    """Margins by hierarchy; remembers how wide classes are."""

    def __init__(self, recipe: Recipe, given: Given) -> None:
        super().__init__(recipe, given)
        assert isinstance(recipe.method, HierarchicalTripletSettings)
        ranks = tree_of(given.groups)
        self.remembers = HierarchicalTriplet(ranks, slack=recipe.method.slack).to(given.runtime.device)

    def modules(self) -> dict[str, nn.Module]:
        """How wide classes are."""
        return {"loss": self.remembers}

    def loss(self, embeddings: Tensor, classes: Tensor) -> Tensor:
        """With the margins as they are now."""
        value: Tensor = self.remembers(embeddings, classes)
        return value


class HierarchicalTripletSettings(MethodKind):
    """`method.kind=hierarchical-triplet`: margins by the taxonomy, batches of close classes."""

    caches_batches: ClassVar[bool] = True
    makes_batches: ClassVar[bool] = True
    keys: ClassVar[bool] = False
    method: ClassVar[type[Method]] = HierarchicalTriplets

    kind: Literal["hierarchical-triplet"]
    anchors: PositiveInt = Field(30, description="l′: classes drawn per batch, one sample each")
    near: PositiveInt = Field(10, description="c: samples from a class close to each of them")
    random: Annotated[int, Field(ge=0)] = Field(182, description="t: samples from all")
    slack: Annotated[float, Field(ge=0)] = Field(0.1, description="β, part of every margin")

    @property
    def spans_processes(self) -> bool:
        """No: its loss is of the samples of one process."""
        return False

    @property
    def needs_superclasses(self) -> bool:
        """Margins come from them."""
        return True

    def check(self, recipe: Recipe) -> None:
        """The batch is what the settings add up to."""
        wanted = self.anchors * (1 + self.near) + self.random
        if recipe.train.batch != wanted:
            raise ValueError(
                f"train.batch must be anchors · (1 + near) + random of the method, {wanted}; got {recipe.train.batch}"
            )

    def order(self, recipe: Recipe, labels: Tensor, groups: Sequence[Tensor]) -> NeighbourhoodOrder:
        """Batches in which close classes meet."""
        return NeighbourhoodOrder(labels, tree_of(groups), self.anchors, self.near, self.random, recipe.seed)


def tree_of(groups: Sequence[Tensor]) -> TableRanks:
    """How classes are related by the levels of their taxonomy."""
    return TableRanks.from_tree(
        [tuple(str(int(level[label])) for level in reversed(groups)) for label in range(len(groups[0]))]
    )


@dataclass(frozen=True)
class NeighbourhoodOrder(DrawnBatches):
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
    def batch(self) -> int:  # type: ignore[override]
        """Samples of a batch."""
        return self.anchors * (1 + self.near) + self.random

    def ids(self, epoch: int, step: int) -> Tensor:
        """Sample ids of a step of an epoch. No sample comes twice."""
        present = self.labels.unique()
        drawn = uniform(self.seed, epoch, NEIGHBOURHOOD_CLASSES, torch.tensor([step]), len(present))[0]
        classes = present[drawn.argsort()[: self.anchors]].tolist()
        keys = uniform(
            self.seed, epoch, NEIGHBOURHOOD_SAMPLES, step * len(self.labels) + torch.arange(len(self.labels)), 1
        )[:, 0]
        shuffled = keys.argsort(stable=True)
        queues = {label: shuffled[self.labels[shuffled] == label].tolist() for label in present.tolist()}
        picks = uniform(self.seed, epoch, NEIGHBOURHOOD_SIBLINGS, torch.tensor([step]), len(classes))[0].tolist()
        batch = [queues[label].pop() for label in classes if queues[label]]
        for label, pick in zip(classes, picks, strict=True):
            close = self._closest(label, present)
            queue = queues[close[int(pick * len(close))]]
            batch += [queue.pop() for _ in range(min(self.near, len(queue)))]
        rest = torch.tensor([i for queue in queues.values() for i in queue])
        order = uniform(self.seed, epoch, NEIGHBOURHOOD_REST, step * len(self.labels) + rest, 1)[:, 0].argsort(
            stable=True
        )
        batch += rest[order[: self.batch - len(batch)]].tolist()  # fills up what small classes could not give
        return torch.tensor(batch)

    def _closest(self, label: int, present: Tensor) -> list[int]:
        """The other classes of the lowest rank; the class itself if there is none."""
        row = self.ranks.table[label][present].long()
        others = torch.where(row > 1, row, 2**31)
        lowest = others.min()
        return [label] if lowest == 2**31 else present[others == lowest].tolist()
