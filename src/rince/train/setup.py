"""From a recipe to the parts of a run: samples, ranks, order, encoder; or, where a user brings one, to that."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from rince.config import Recipe
from rince.encoders.encoder import Encoder, feature_width, take_lone_samples
from rince.errors import ConfigError, DataError
from rince.hierarchy.given import Ranked
from rince.hierarchy.levels import check_levels, class_levels, class_paths, group_numbers
from rince.ranked_batches import RankedBatchSampler
from rince.ranks import RankSource
from rince.sources.order import BalancedOrder, BatchOrder, OrderOfSome
from rince.sources.part import Part, names_of, others, shared_texts, validation_rows
from rince.sources.source import Source, alike_note, left_out_notes, unseen_note
from rince.sources.splits import names_digest
from rince.train.checkpoint import load_checkpoint
from rince.train.record import CHECKPOINT

NAMED = 5  # tensors that a message names
SOME = 64  # queries of a rehearsal


class Brought(NamedTuple):
    """What a user brings as objects, in place of what the recipe would build."""

    source: Source | None = None
    test_source: Source | None = None
    encoder: nn.Module | None = None
    rank_source: RankSource | None = None


NOTHING = Brought()
SHOWN = 6  # notes that are told in full


@dataclass(frozen=True)
class Parts:
    """Everything a run needs that its recipe decides."""

    source: Source
    paths: list[tuple[str, ...]]
    groups: list[Tensor]
    """For every level of the taxonomy from the fine end: `(classes,)`, the group of every class."""
    level_names: tuple[str, ...]
    """Of the same levels."""
    rank_source: RankSource | None
    rank_count: int
    order: BatchOrder
    held_out: Tensor
    """Ids, rising, of the samples that no epoch has: `data.validation`."""

    @property
    def validation(self) -> Part:
        """The samples held out."""
        return Part(self.source, self.held_out)

    @property
    def trained(self) -> Part:
        """The samples that are trained on."""
        return Part(self.source, others(self.held_out, len(self.source)))

    @property
    def told(self) -> list[str]:
        """What is not trained on, in sentences, and whether some of it is, in other rows."""
        held, things = len(self.held_out), f"{len(self.source):,} {self.source.thing}s"
        whole = "" if self.source.sample_groups is None else f" in {self._groups_held_out:,} whole groups"
        validation = f"validation: {held:,} of {things}{whole}, chosen in each class by their names, are not trained on"
        kept = others(self.held_out, len(self.source))
        shared = shared_texts(self.source, kept, self.held_out, "the part for validation")
        names = [alike_note(self.source.class_names), unseen_note(self.source)]
        return [
            *left_out_notes(self.source),
            *filter(None, [*names, self.source.set_aside, validation if held else "", shared]),
        ]

    @property
    def notes(self) -> list[str]:
        """The same, and what else a person should know of the samples before they are trained on; the first of it."""
        notes = list(dict.fromkeys([*self.told, *self.source.notes()]))
        return notes[:SHOWN] + ([f"… and {len(notes) - SHOWN:,} more"] if len(notes) > SHOWN else [])

    def noted(self, place: str) -> dict[str, Any]:
        """What a run must not go on without: fingerprints of the samples at a place, of ranks, of what is held out."""
        data = {"source": place, "train": self.source.fingerprint, "ranks": self.fingerprint}
        if len(self.held_out) == 0:
            return data
        names = names_of(self.source, self.held_out.tolist())
        groups = {} if self.source.sample_groups is None else {"groups": self._groups_held_out}
        return data | {"validation": {"samples": len(names), "names": names_digest(names)} | groups}

    @property
    def _groups_held_out(self) -> int:
        return len(set(self.validation.sample_groups or ()))

    @property
    def group_counts(self) -> list[int]:
        """How many classes, superclasses, … there are."""
        return [len(level.unique()) for level in self.groups]

    @property
    def fingerprint(self) -> str:
        """sha256 over what ranks are made from: a run must not go on with other ranks than it began with."""
        return ranks_fingerprint(self.paths, self.rank_source)


def check_brought(recipe: Recipe, brought: Brought) -> None:
    """Names all objects that a run was made from and that are not given again."""
    named = [part.brought_as for part in (recipe.data, recipe.model, recipe.ranks) if part is not None]
    absent = [name for name in named if name and getattr(brought, name) is None]
    if absent:
        again = ", ".join(f"{name}=…" for name in absent)
        raise ConfigError(
            f"this run was made from objects, which no file can hold; give them again: rince.open_run(FOLDER, {again})"
        )


def build_parts(recipe: Recipe, brought: Brought = NOTHING, *, check_terms: bool = True) -> Parts:
    """Loads the data and builds the rest around it; every mistake that can be found before training is found here.

    Args:
        recipe: of the run.
        brought: what the user brings.
        check_terms: also that every rank has a term, which only matters for training.
    """
    data = recipe.data
    found = brought.source or data.open(data.train_split, recipe.seen_views, own_keys=len(recipe.own_ranks))
    source: Source = recipe.prepared(found)
    by_levels = recipe.ranks is not None and recipe.ranks.needs_levels and brought.rank_source is None
    if by_levels or recipe.method.needs_superclasses:
        check_levels(source, data.taxonomy)
    paths = class_paths(source, data.taxonomy)
    levels = class_levels(source, data.taxonomy)
    groups = [group_numbers(names) for names in levels.values()]
    ranks = build_ranks(recipe, source, paths, brought)
    rank_count = max([ranks.ranks if ranks else 0, *recipe.own_ranks])
    if check_terms:
        _check_terms(recipe, rank_count)
    if recipe.method.needs_superclasses and len(groups) < 2:
        raise ConfigError(
            f"method {recipe.method.kind} with these settings needs superclasses, and the classes of "
            f"{data.source!r} have none; set data.taxonomy"
        )
    held_out = validation_rows(source, data.validation)
    order = _order(recipe, source, groups, held_out, ranks)
    return Parts(source, paths, groups, tuple(levels), ranks, rank_count, order, held_out)


def _order(
    recipe: Recipe, source: Source, groups: Sequence[Tensor], held_out: Tensor, ranks: RankSource | None
) -> BatchOrder:
    """Of the samples that are trained on: as the recipe wants its batches, or the method's own."""
    kept = others(held_out, len(source))
    labels, data, batch = source.labels[kept], recipe.data, recipe.train.batch
    order: BatchOrder
    if data.batches == "ranked":
        assert ranks is not None  # the recipe was checked
        ranked = labels if ranks.by == "class" else kept
        order = RankedBatchSampler(
            ranked, ranks, batch, per_class=data.per_class, seed=recipe.seed, balance=data.balance
        )
    elif data.balance == "classes":
        order = BalancedOrder(labels, batch, recipe.seed)
    else:
        order = recipe.method.order(recipe, labels, groups)
    return OrderOfSome(order, kept) if len(held_out) else order


def build_ranks(
    recipe: Recipe, source: Source, paths: list[tuple[str, ...]], brought: Brought = NOTHING
) -> RankSource | None:
    """The source of ranks of a run; None for methods without."""
    if recipe.ranks is None:
        return None
    if brought.rank_source is not None:
        return brought.rank_source
    found: Any = recipe.ranks.build(Ranked(source.class_names, paths, len(source), recipe.seed))
    check_rank_source(found, f"ranks.kind={recipe.ranks.kind}")
    ranked: RankSource = found
    return ranked


def ranks_fingerprint(paths: list[tuple[str, ...]], rank_source: RankSource | None) -> str:
    """sha256 over what ranks are made from, as a run notes it."""
    ranks = "" if rank_source is None else rank_source.fingerprint
    return hashlib.sha256(f"{paths!r} {ranks}".encode()).hexdigest()


def check_rank_source(found: Any, name: str) -> None:
    """Refuses what cannot rank: a source of ranks says `ranks`, `by` and `fingerprint`, and is called with labels."""
    absent = [each for each in ("ranks", "by", "fingerprint") if not hasattr(found, each)]
    if absent or not callable(found):
        raise ConfigError(
            f"{name} must say `ranks`, `by` and `fingerprint` and be called with labels, as rince.TableRanks is; "
            f"{type(found).__name__} lacks {', '.join(absent) or 'the call'}"
        )
    if found.by not in ("class", "sample"):
        raise ConfigError(f"{name}: `by` says what its labels are, 'class' or 'sample'; got {found.by!r}")


def rehearse(recipe: Recipe, parts: Parts, encoder: Encoder) -> None:
    """One small batch through everything a user brings, before a folder is made: what does not fit is told here."""
    ids = torch.arange(min(2, len(parts.source)))
    loaded = parts.source.load(ids, recipe.view_numbers, seed=recipe.seed, epoch=0)
    made = parts.source.finish(loaded, torch.device("cpu"))
    training = encoder.training
    encoder.eval()  # a dry run must leave no trace in running statistics
    for view in made.views:
        try:
            with torch.no_grad():
                encoder(view)
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, KeyError) as error:
            shapes = tuple(view.shape) if isinstance(view, Tensor) else {key: tuple(view[key].shape) for key in view}
            raise ConfigError(
                f"the network {type(encoder.backbone).__name__} cannot take a training batch of {parts.source.source}, "
                f"{shapes}: {str(error).strip().splitlines()[0]}; do `transform` and `feature_dim` fit it?"
            ) from None
    encoder.train(training)
    if parts.rank_source is None:
        return
    number = len(parts.paths) if parts.rank_source.by == "class" else len(parts.source)
    labels = torch.arange(number)
    found = parts.rank_source(labels[:SOME], labels)
    if not isinstance(found, Tensor) or found.shape != (min(SOME, number), number) or found.is_floating_point():
        what = f"{found.dtype} of shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise ConfigError(
            f"the source of ranks must give int8 ranks of shape (queries, candidates), {(min(SOME, number), number)} "
            f"here; got {what}"
        )


def total_steps(recipe: Recipe, steps_per_epoch: int) -> int:
    """How many steps a run has that comes to its end."""
    if not recipe.method.trains:
        return 0
    return min(recipe.train.epochs * steps_per_epoch, recipe.train.max_steps or 2**62)


def build_encoder(
    recipe: Recipe,
    shape: Sequence[int],
    groups: Sequence[int],
    *,
    brought: nn.Module | None = None,
    features: int | None = None,
    example: Any = None,
) -> Encoder:
    """The encoder at its start, a function of the seed and of what the user brings.

    Args:
        recipe: of the run.
        shape: of a sample.
        groups: how many classes, superclasses, … there are; a classifier has an output for each.
        brought: a network in place of the recipe's; an `Encoder` has its own head already.
        features: length of its features, if that is known.
        example: a batch to find it out with; zeros by default.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        backbone = recipe.model.build(shape) if brought is None else brought
        if isinstance(backbone, Encoder):
            if not recipe.method.own_head:
                raise ConfigError(
                    f"method.kind={recipe.method.kind} has heads of its own; give the network without its head"
                )
            return backbone
        if features is None:
            features = feature_width(backbone, torch.zeros(2, *shape) if example is None else example)
        return Encoder(backbone, recipe.method.head(features, recipe.model, groups), feature_dim=features)


def check_parts(recipe: Recipe, encoder: Encoder) -> None:
    """Refuses batch normalisation, which mixes a part's samples, where parts promise the gradient of the batch."""
    train = recipe.train
    if train.accumulate == 1 or train.batch_norm == "per-chunk" or not recipe.method.caches_batches:
        return
    if any(isinstance(each, nn.modules.batchnorm._BatchNorm) and each.training for each in encoder.modules()):
        raise ConfigError(
            f"train.accumulate={train.accumulate}: the encoder has batch normalisation, which mixes the samples of a "
            f"part, so that the gradients of method.kind={recipe.method.kind} are not those of the whole batch; use "
            "model.norm=group where the network has it, or accept that with train.batch_norm=per-chunk"
        )


def lone_samples(recipe: Recipe, order: BatchOrder, encoder: Encoder, processes: int) -> str:
    """Makes an encoder ready for one sample at a time, if a batch can have a part of one; says so in a sentence."""
    last = len(order.ids(0, order.steps_per_epoch - 1))
    if not recipe.method.trains or last // processes // recipe.train.accumulate > 1 or not take_lone_samples(encoder):
        return ""
    return (
        f"batches: the last of an epoch has {last} sample{'s' if last > 1 else ''}"
        + (", in parts" if last > 1 else "")
        + "; batch normalisation with one value of a channel takes its running statistics"
    )


def start_from(encoder: Encoder, place: Path) -> str:
    """Starts an encoder, but for its head, from weights: all of its tensors, or a clear account of what did not fit.

    Args:
        encoder: to start.
        place: folder of a run, or a `.safetensors` file; names may start as those that `rince export` writes.

    Returns:
        What was found, in a sentence.
    """
    saved = _saved_weights(place)
    wanted = encoder.backbone.state_dict()
    prefixes = ("backbone.adapter.", "backbone.")  # an export has an adapter after the network that it belongs to
    prefix = next((each for each in prefixes if any(each + name in saved for name in wanted)), "")
    found = {name: saved[prefix + name] for name in wanted if prefix + name in saved}
    absent = [name for name in wanted if name not in found]
    unlike = [
        f"{name} {tuple(found[name].shape)} for {tuple(value.shape)}"
        for name, value in wanted.items()
        if name in found and found[name].shape != value.shape
    ]
    if absent or unlike:
        fits = len(wanted) - len(absent) - len(unlike)
        lacks = f"; {len(absent)} are not there ({_few(absent)})" if absent else ""
        other = f"; {len(unlike)} have another shape ({_few(unlike)})" if unlike else ""
        raise ConfigError(
            f"model.start_from: of the {len(wanted)} tensors of this network, {fits} fit those of {place}{lacks}{other}"
            ". Give `model` the settings of that network"
        )
    encoder.backbone.load_state_dict({name: found[name] for name in wanted})
    used = {prefix + name for name in wanted}
    unused = [name for name in saved if name not in used]
    return f"start: all {len(wanted)} tensors of the network from {place}" + (
        f"; not used: {_few(unused)}" if unused else ""
    )


def _saved_weights(place: Path) -> dict[str, Tensor]:
    if place.suffix != ".safetensors":
        if not place.is_dir():
            raise DataError(f"model.start_from: there is no run {place}; give its folder, or a .safetensors file")
        saved: dict[str, Tensor] = load_checkpoint(place / CHECKPOINT, {"encoder"})["encoder"]
        return saved
    if not place.is_file():
        raise DataError(f"model.start_from: there is no file {place}")
    try:
        return load_file(place)
    except (SafetensorError, OSError) as error:
        raise DataError(f"model.start_from: {place} cannot be read as safetensors ({error})") from None


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def without_rank(recipe: Recipe, parts: Parts) -> str:
    """Which terms of the loss have no rank, in a few words; empty if all have one."""
    first, last = parts.rank_count + 1, len(recipe.terms)
    if recipe.ranks is None or first > last:
        return ""
    return f"term {last} has no rank here" if first == last else f"terms {first} to {last} have no rank here"


def _check_terms(recipe: Recipe, rank_count: int) -> None:
    if recipe.ranks is None:
        return
    what, terms = recipe.method.rank_terms or ("loss.terms", len(recipe.terms_for(rank_count)))
    if terms < rank_count:
        raise ConfigError(
            f"the taxonomy gives {rank_count} ranks but {what} has {terms}; add one for every rank (a temperature must "
            "not fall; three or more at equal steps go on by themselves), or choose ranks.kind=classes"
        )
