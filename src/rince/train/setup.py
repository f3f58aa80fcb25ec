"""From a recipe to the parts of a run: data, ranks, views, encoder, loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rince.config import Recipe
from rince.data.classes import class_paths
from rince.data.folders import LargeImages
from rince.data.images import ImageSet, load_images
from rince.data.order import Order
from rince.data.views import Views
from rince.errors import ConfigError
from rince.loss import RankedInfoNCE, RankTerm
from rince.models.encoder import Encoder, build_encoder
from rince.ranks import InstanceRanks, RankSource, TableRanks


@dataclass(frozen=True)
class Parts:
    """Everything a run needs that its recipe decides."""

    images: ImageSet | LargeImages
    paths: list[tuple[str, ...]]
    rank_source: RankSource
    rank_count: int
    views: Views
    order: Order
    loss: RankedInfoNCE

    @property
    def labels(self) -> Tensor:
        """What ranks are made from: classes, or, without labels, sample ids."""
        return torch.arange(len(self.images)) if isinstance(self.rank_source, InstanceRanks) else self.images.labels

    @property
    def channels(self) -> int:
        """Of the images."""
        return int(self.images.images.shape[1]) if isinstance(self.images, ImageSet) else 3


def build_parts(recipe: Recipe) -> Parts:
    """Loads the data and builds the rest around it; every mistake that can be found before training is found here."""
    data = recipe.data
    images = load_images(
        data.source,
        data.train_split,
        image_column=data.image_column,
        label_column=data.label_column,
        superclass_column=data.superclass_column,
        limit=data.limit,
    )
    paths = class_paths(images, data.taxonomy)
    source, rank_count = _rank_source(recipe, paths)
    _check_terms(recipe, rank_count)
    return Parts(
        images=images,
        paths=paths,
        rank_source=source,
        rank_count=rank_count,
        views=Views(**dict(recipe.views)),
        order=Order(len(images), recipe.train.batch, recipe.seed, recipe.train.keep_last_batch),
        loss=build_loss(recipe),
    )


def total_steps(recipe: Recipe, samples: int) -> int:
    """How many steps a run has that comes to its end."""
    order = Order(samples, recipe.train.batch, recipe.seed, recipe.train.keep_last_batch)
    return min(recipe.train.epochs * order.steps_per_epoch, recipe.train.max_steps or 2**62)


def build_loss(recipe: Recipe) -> RankedInfoNCE:
    """The loss of a recipe."""
    return RankedInfoNCE(
        [RankTerm(term.temperature, term.positives, term.includes_closer) for term in recipe.loss.terms],
        over_positives=recipe.loss.over_positives,
        over_ranks=recipe.loss.over_ranks,
        allow_any_order=recipe.loss.allow_any_order,
    )


def build_seeded_encoder(recipe: Recipe, channels: int) -> Encoder:
    """The encoder at its start, a function of the seed alone."""
    model = recipe.model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return build_encoder(
            depth=model.depth,
            width=model.width,
            stem=model.stem,
            channels=channels,
            norm=model.norm,
            head_hidden=model.head_hidden,
            dim=model.dim,
        )


def _rank_source(recipe: Recipe, paths: list[tuple[str, ...]]) -> tuple[RankSource, int]:
    if recipe.ranks.kind == "instances":
        return InstanceRanks(), 1
    if recipe.ranks.kind == "classes":
        table = TableRanks(torch.eye(len(paths), dtype=torch.int8))
    elif recipe.ranks.kind == "parents":
        if any(len(path) < 2 for path in paths):
            raise ConfigError("ranks.kind=parents needs classes with a parent; set data.taxonomy")
        tree = TableRanks.from_tree(paths).table
        table = TableRanks(((tree == 1) | (tree == 2)).to(torch.int8))
    else:
        table = TableRanks.from_tree(paths)
    return table, table.ranks


def _check_terms(recipe: Recipe, rank_count: int) -> None:
    terms = len(recipe.loss.terms)
    if terms < rank_count:
        raise ConfigError(
            f"the taxonomy gives {rank_count} ranks but loss.terms has {terms}; add a term for every rank, with a "
            "temperature that does not fall, or choose ranks.kind=classes"
        )
