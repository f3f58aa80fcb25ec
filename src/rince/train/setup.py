"""From a recipe to the parts of a run: data, ranks, views, encoder, loss."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from rince.losses.fast_ap import CategoryOrder
from rince.losses.hierarchical_triplet import NeighbourhoodOrder
from rince.config import ClipRanks, CrossEntropyMethod, FastAPMethod, HierarchicalTripletMethod, Recipe
from rince.hierarchy.levels import class_levels, class_paths, group_numbers
from rince.sources.image_files import LargeImages
from rince.sources.images import ImageSet, load_images
from rince.sources.order import Order
from rince.sources.videos import VideoSet, load_videos
from rince.views.pixels import CLIP_VIEWS, KEY_VIEW, Views
from rince.errors import ConfigError
from rince.hierarchy.sources import rank_source
from rince.loss import RankedInfoNCE, RankTerm
from rince.encoders.encoder import Encoder, build_encoder
from rince.ranks import EXCLUDED, InstanceRanks, RankSource, SampleRanks, TableRanks
from rince.train.checkpoint import load_checkpoint
from rince.train.record import CHECKPOINT


class BatchOrder(Protocol):
    """Which samples make the batch of a step; a function of its arguments, so that any step can be found."""

    @property
    def steps_per_epoch(self) -> int:
        """How many batches an epoch has."""
        ...

    def ids(self, epoch: int, step: int, *, process: int = 0, processes: int = 1) -> Tensor:
        """Sample ids of a step of an epoch, or the part of them that one process takes."""
        ...


@dataclass(frozen=True)
class Parts:
    """Everything a run needs that its recipe decides."""

    images: ImageSet | LargeImages | VideoSet
    paths: list[tuple[str, ...]]
    groups: list[Tensor]
    """For every level of the taxonomy from the fine end: `(classes,)`, the group of every class."""
    rank_source: RankSource
    rank_count: int
    views: Views
    order: BatchOrder
    own_keys: dict[int, int] = field(default_factory=lambda: {KEY_VIEW: 1})
    """Views of a sample that are its own keys, and the rank of each."""

    @property
    def labels(self) -> Tensor:
        """What ranks are made from: classes, or, without labels, sample ids."""
        by_sample = isinstance(self.rank_source, InstanceRanks | SampleRanks)
        return torch.arange(len(self.images)) if by_sample else self.images.labels

    @property
    def fingerprint(self) -> str:
        """sha256 over what ranks are made from: a run must not go on with other ranks than it began with."""
        digest = hashlib.sha256(repr(self.paths).encode())
        if isinstance(self.rank_source, TableRanks):
            digest.update(self.rank_source.table.cpu().numpy().tobytes())
        if isinstance(self.rank_source, SampleRanks):
            digest.update(self.rank_source.vectors.cpu().numpy().tobytes())
        return digest.hexdigest()

    @property
    def channels(self) -> int:
        """Of the images."""
        return int(self.images.images.shape[1]) if isinstance(self.images, ImageSet) else 3


def build_parts(recipe: Recipe, *, check_terms: bool = True) -> Parts:
    """Loads the data and builds the rest around it; every mistake that can be found before training is found here.

    Args:
        recipe: of the run.
        check_terms: also that every rank has a term, which only matters for training.
    """
    data = recipe.data
    images = _load(recipe)
    channels = int(images.images.shape[1]) if isinstance(images, ImageSet) else 3
    if channels != len(recipe.views.mean):
        raise ConfigError(
            f"images of {data.source!r} have {channels} channel(s), but views.mean has {len(recipe.views.mean)} "
            "number(s); give views.mean and views.std one number per channel"
        )
    paths = class_paths(images, data.taxonomy)
    groups = [group_numbers(names) for names in class_levels(images, data.taxonomy).values()]
    source = rank_source(recipe, images.class_names, paths, len(images))
    own_keys = {KEY_VIEW: 1}
    if isinstance(recipe.ranks, ClipRanks):
        own_keys = {view: rank for view, rank in zip(CLIP_VIEWS, recipe.ranks.own, strict=True) if rank != EXCLUDED}
    rank_count = max(source.ranks, *own_keys.values())
    if check_terms:
        _check_terms(recipe, rank_count)
    if recipe.needs_superclasses and len(groups) < 2:
        raise ConfigError(
            f"method {recipe.method.kind} with these settings needs superclasses, and the classes of "
            f"{data.source!r} have none; set data.taxonomy"
        )
    return Parts(
        images=images,
        paths=paths,
        groups=groups,
        rank_source=source,
        rank_count=rank_count,
        views=Views(**dict(recipe.views)),
        order=_order(recipe, images.labels, groups),
        own_keys=own_keys,
    )


def _load(recipe: Recipe) -> ImageSet | LargeImages | VideoSet:
    data = recipe.data
    if recipe.clips is not None:
        return load_videos(
            data.source, data.train_split, recipe.clips, positives=recipe.method.kind == "contrast", limit=data.limit
        )
    return load_images(
        data.source,
        data.train_split,
        image_column=data.image_column,
        label_column=data.label_column,
        superclass_column=data.superclass_column,
        classes=data.classes,
        limit=data.limit,
    )


def _order(recipe: Recipe, labels: Tensor, groups: list[Tensor]) -> BatchOrder:
    method = recipe.method
    if isinstance(method, FastAPMethod):
        return CategoryOrder(labels, groups[1], recipe.train.batch, method.categories, recipe.seed)
    if isinstance(method, HierarchicalTripletMethod):
        ranks = TableRanks.from_tree(
            [tuple(str(int(level[c])) for level in reversed(groups)) for c in range(len(groups[0]))]
        )
        return NeighbourhoodOrder(labels, ranks, method.anchors, method.near, method.random, recipe.seed)
    held_out = recipe.schedule.held_out if recipe.schedule.kind == "plateau" else 0.0
    return Order(len(labels), recipe.train.batch, recipe.seed, recipe.train.keep_last_batch, held_out)


def total_steps(recipe: Recipe, steps_per_epoch: int) -> int:
    """How many steps a run has that comes to its end."""
    return min(recipe.train.epochs * steps_per_epoch, recipe.train.max_steps or 2**62)


def build_loss(recipe: Recipe) -> RankedInfoNCE:
    """The ranked loss of a recipe."""
    assert recipe.loss is not None  # the recipe was checked
    return RankedInfoNCE(
        [RankTerm(term.temperature, term.positives, term.includes_closer) for term in recipe.loss.terms],
        over_positives=recipe.loss.over_positives,
        over_ranks=recipe.loss.over_ranks,
        allow_any_order=recipe.loss.allow_any_order,
    )


def build_seeded_encoder(recipe: Recipe, channels: int, groups: Sequence[int] = ()) -> Encoder:
    """The encoder at its start, a function of the seed alone.

    Args:
        recipe: of the run.
        channels: of an image.
        groups: how many classes, superclasses, … there are; a classifier has an output for each.
    """
    model, method = recipe.model, recipe.method
    classes: Sequence[int] = ()
    if isinstance(method, CrossEntropyMethod):
        classes = groups[:2] if method.superclass_weight else groups[:1]
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
            heads=2 if method.kind == "contrast-two-heads" else 1,
            classes=classes,
            dims=2 if recipe.clips is None else 3,
            dropout=method.dropout if isinstance(method, CrossEntropyMethod) else 0.0,
        )


def load_backbone(encoder: Encoder, folder: Path) -> None:
    """Starts an encoder, but for its head, from the weights of a run: all of them, and no others."""
    saved = load_checkpoint(folder / CHECKPOINT, {"encoder"})["encoder"]
    found = {name.removeprefix("backbone."): value for name, value in saved.items() if name.startswith("backbone.")}
    try:
        encoder.backbone.load_state_dict(found, strict=True)
    except RuntimeError as error:
        first = " ".join(str(error).split("\n\t")[1:2]) or str(error)
        raise ConfigError(
            f"model.start_from: {folder} holds another network than this recipe describes: {first.strip()} "
            "Give `model` the settings of that run"
        ) from None


def memory_format(recipe: Recipe) -> torch.memory_format:
    """Channels last, for images or for clips."""
    return torch.channels_last if recipe.clips is None else torch.channels_last_3d


def _check_terms(recipe: Recipe, rank_count: int) -> None:
    if recipe.method.kind == "triplet":
        terms, what = len(recipe.method.margins), "method.margins"
    elif recipe.method.kind == "contrast":
        terms, what = len(recipe.terms), "loss.terms"
    else:
        return
    if terms < rank_count:
        raise ConfigError(
            f"the taxonomy gives {rank_count} ranks but {what} has {terms}; add one for every rank (a temperature must "
            "not fall), or choose ranks.kind=classes"
        )
