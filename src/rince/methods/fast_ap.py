"""Fast AP, on batches of few categories. The loss is `rince.losses.fast_ap`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from rince.config import Recipe
from rince.draws import FAST_AP_CATEGORIES, FAST_AP_SAMPLES, uniform
from rince.errors import DataError
from rince.losses.fast_ap import fast_ap
from rince.methods.batch_loss import BatchLoss
from rince.methods.method import Method, MethodKind
from rince.sources.order import DrawnBatches


class FastAP(BatchLoss):
    """Average precision by soft histograms."""

    def loss(self, embeddings: Tensor, classes: Tensor) -> Tensor:
        """As the settings say."""
        assert isinstance(self.recipe.method, FastAPSettings)
        return fast_ap(embeddings, classes, bins=self.recipe.method.bins)


class FastAPSettings(MethodKind):
    """`method.kind=fast-ap`: average precision of a batch, by histograms."""

    caches_batches: ClassVar[bool] = True
    makes_batches: ClassVar[bool] = True
    keys: ClassVar[bool] = False
    method: ClassVar[type[Method]] = FastAP

    kind: Literal["fast-ap"]
    bins: PositiveInt = Field(5, description="of the histogram of distances that stands for their order")
    categories: PositiveInt = Field(2, description="superclasses that make a batch")

    @property
    def spans_processes(self) -> bool:
        """No: its loss is of the samples of one process."""
        return False

    @property
    def needs_superclasses(self) -> bool:
        """Batches are made of them."""
        return True

    def order(self, recipe: Recipe, labels: Tensor, groups: Sequence[Tensor]) -> CategoryOrder:
        """Batches of a few superclasses each."""
        return CategoryOrder(labels, groups[1], recipe.train.batch, self.categories, recipe.seed)


@dataclass(frozen=True)
class CategoryOrder(DrawnBatches):
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

    def ids(self, epoch: int, step: int) -> Tensor:
        """Sample ids of a step of an epoch."""
        names = self.category_of.unique()
        drawn = uniform(self.seed, epoch, FAST_AP_CATEGORIES, torch.tensor([step]), len(names))[0]
        chosen = names[drawn.argsort()[: self.categories]]
        members = torch.isin(self.category_of[self.labels], chosen).nonzero().squeeze(1)
        keys = uniform(self.seed, epoch, FAST_AP_SAMPLES, step * len(self.labels) + members, 1)[:, 0]
        # Every class in its own random order; then the first of every class, the second of every class, and so on.
        members = members[keys.argsort(stable=True)]
        place = torch.zeros_like(members)
        for label in self.labels[members].unique():
            own = self.labels[members] == label
            place[own] = torch.arange(int(own.sum()))
        return members[place.argsort(stable=True)][: self.batch]
