"""From a run and samples to features and embeddings, kept beside the run until the checkpoint or the samples change."""

from __future__ import annotations

import glob
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import rince
from rince.config import DataSettings, Recipe
from rince.devices import best_device
from rince.encoders.encoder import Encoder
from rince.errors import DataError, RinceError
from rince.files import check_space, file_digest, fingerprint_of, write_whole
from rince.hierarchy.levels import class_paths
from rince.ranks import RankSource
from rince.seals import read_tensors, sealed_tensors
from rince.sources.feed import made_ahead
from rince.sources.part import Part, names_of, others, validation_rows
from rince.sources.source import Source, moved, rows_in
from rince.sources.splits import names_digest
from rince.terminal import Say, TellDone, mention, nobody
from rince.train.checkpoint import check_network, check_tensors, load_checkpoint
from rince.train.record import BEST, CHECKPOINT, check_recipe, comparable_data, noted_data, recipe_of
from rince.train.setup import NOTHING, Brought, build_encoder, build_ranks, ranks_fingerprint, total_steps
from rince.train.validation import Place, recorded

FEATURES = "features"  # folder of a run
FLOAT = 4  # bytes
SHARE = ".share-"  # in the names of features that one of several processes made
TRAINED, HELD_OUT = "trained on", "held out"  # the two parts of a training split with `data.validation`


class Embedded(NamedTuple):
    """What an encoder makes of samples."""

    features: Tensor
    """`(samples, feature_dim)`, before the head, of any length."""
    embeddings: Tensor
    """`(samples, dim)`, after the head, of unit length."""


@dataclass(frozen=True)
class TrainedRun:
    """A run with its encoder, ready to be looked at; at step `step` of `steps`."""

    folder: Path
    recipe: Recipe
    encoder: Encoder
    shape: tuple[int, ...]
    """Of a sample."""
    classes: int
    """That it was trained on."""
    step: int
    steps: int
    brought: Brought = NOTHING
    file: str = CHECKPOINT
    """That the weights are from."""
    taxonomy: str | None = None
    """That it was trained with, if it is looked at with another one."""

    @property
    def has_head(self) -> bool:
        """Whether embeddings after the head are vectors of their own: no classes, and not the features again."""
        return not self.recipe.method.classifies and any(True for _ in self.encoder.head.parameters())

    @cached_property
    def checkpoint(self) -> str:
        """sha256 of the checkpoint file."""
        return file_digest(self.folder / self.file)

    @property
    def place(self) -> Place | None:
        """Where R@1 was higher on validation, before or after the head; None if nobody looked."""
        return recorded(self.folder).get("place")

    @property
    def device(self) -> torch.device:
        """Where the encoder is, and so where everything is done."""
        return next(self.encoder.parameters()).device

    def open(self, split: str, data: DataSettings | None = None) -> Source:
        """The labelled samples of a split, of the run's own data or of other data of its kind.

        Of its own training split also one of two parts: `TRAINED`, or what was `HELD_OUT`.
        """
        if data is None and split in (TRAINED, HELD_OUT):
            return self._part(split)
        given = self.brought.source if split == self.recipe.data.train_split else self.brought.test_source
        if data is not None or given is None:
            given = (data or self.recipe.data).open(split, self.recipe.seen_views)
        source: Source = self.recipe.prepared(given)
        return source

    def looked_at(self, data: str | None = None, taxonomy: str | None = None) -> TrainedRun:
        """The same run, whose own data lies elsewhere, or whose classes are grouped otherwise than in training."""
        own = self.recipe.data
        changes = {"source": data, "taxonomy": taxonomy}
        moved_data = own.model_copy(update={key: value for key, value in changes.items() if value is not None})
        before = own.taxonomy if taxonomy is not None else self.taxonomy
        return replace(self, recipe=self.recipe.model_copy(update={"data": moved_data}), taxonomy=before)

    def _whole(self) -> Source:
        """The training samples as they were trained on: of clips, those that are long enough."""
        recipe = self.recipe
        found = self.brought.source or recipe.data.open(
            recipe.data.train_split, recipe.seen_views, own_keys=len(recipe.own_ranks)
        )
        whole: Source = recipe.prepared(found)
        return whole

    def noted(self, what: str) -> Any:
        """What the run noted of its data when it began; None if nobody knows, or an older rince noted it otherwise."""
        return comparable_data(self.folder).get(what)

    def check_trained_on(self, samples: Source) -> None:
        """Refuses training samples that are not those that it was trained on."""
        before = self.noted("train")
        if before in (None, samples.fingerprint) or before == self._whole().fingerprint:
            return
        raise DataError(
            f"the {samples.thing}s of {samples.source!r} are not those that {self.folder} was trained on "
            f"({samples.fingerprint[:12]} instead of {before[:12]}); restore them, or train it again"
        )

    def class_ranks(self, samples: Source, say: Say = nobody) -> RankSource | None:
        """The ranks of classes that it was trained with; None if there are none, or what they are made from changed.

        Args:
            samples: that it was trained on.
            say: is told if they have changed.
        """
        try:
            paths = class_paths(samples, self.taxonomy or self.recipe.data.taxonomy)
        except RinceError:
            if self.taxonomy is None:
                raise
            return None  # it is looked at with another taxonomy, and its own is not there
        ranks = build_ranks(self.recipe, samples, paths, self.brought)
        if ranks is None or ranks.by != "class":
            return None
        if self.noted("ranks") not in (None, ranks_fingerprint(paths, ranks)):
            say(f"{self.folder} was trained with other ranks than its taxonomy gives now: it is not judged by them")
            return None
        return ranks

    def _part(self, part: str) -> Part:
        """One of the two parts, of the samples as they were trained on."""
        whole, recipe = self._whole(), self.recipe
        self.check_trained_on(whole)
        rows = validation_rows(whole, recipe.data.validation)
        noted = noted_data(self.folder)[0].get("validation") or {}
        if noted.get("names") != names_digest(names_of(whole, rows.tolist())):
            raise DataError(
                f"what {self.folder} has held out for validation is not what would be held out now: its data has "
                "changed, or it was made by an older rince; restore the data, or start a new run"
            )
        return Part(whole, rows if part == HELD_OUT else others(rows, len(whole)))

    def trained_on(self, samples: Source) -> Tensor | None:
        """`(samples,)`: which of them it was trained on, not what it held out; None if its own data is gone."""
        try:
            whole = self._whole()
            rows = rows_in(samples, whole)
        except (RinceError, OSError) as error:
            if self._data_is_gone():
                return None
            raise DataError(
                f"nobody can tell which samples {self.folder} was trained on: its own data cannot be read ({error})"
            ) from None
        if rows is None:
            return torch.zeros(len(samples), dtype=torch.bool)
        learned = torch.ones(len(whole), dtype=torch.bool)
        if self.recipe.data.validation:
            learned[validation_rows(whole, self.recipe.data.validation)] = False
        return learned[rows.clamp(min=0)] & (rows >= 0)

    def _data_is_gone(self) -> bool:
        """Whether the training samples are not there, which is not to say that they cannot be read."""
        data = self.recipe.data
        if data.brought_as:
            return self.brought.source is None
        try:
            os.stat(data.source)
        except (FileNotFoundError, NotADirectoryError):
            return True  # of data from a hub, too, once it cannot be had
        except (OSError, ValueError):
            return False
        return False

    def find(self, place: str) -> Source:
        """Samples at a place that a person names, of the kind that the run was trained on."""
        source: Source = self.recipe.prepared(self.recipe.data.find(place, self.recipe.seen_views))
        return source

    def given(self, samples: Sequence[str]) -> Source:
        """Samples that a person writes down."""
        source: Source = self.recipe.prepared(self.recipe.data.given(samples, self.recipe.seen_views))
        return source

    def outliers(self, place: str | Source, *, classes: str | None = None) -> Source:
        """Samples of no class of the run."""
        found = place
        if isinstance(place, str):
            found = self.recipe.data.outliers(place, self.recipe.seen_views, classes=classes)
        source: Source = self.recipe.prepared(found)
        return source


def open_trained(
    folder: Path, brought: Brought = NOTHING, *, accelerator: str = "auto", file: str = CHECKPOINT
) -> TrainedRun:
    """The run in a folder, with the weights of its last checkpoint: all of them, and no others.

    Args:
        folder: of the run.
        brought: what the run was given as objects.
        accelerator: where to put the encoder: `"auto"`, `"cpu"`, `"cuda"` or `"mps"`.
        file: another checkpoint of it, `best.ckpt`.
    """
    recipe = recipe_of(folder)
    if file == BEST and not (folder / BEST).is_file():
        raise DataError(f"{folder} has no {BEST}, which is kept where a run is judged as it goes: train.judge_every=1")
    saved = load_checkpoint(folder / file, {"encoder", "groups", "step", "steps_per_epoch"})
    check_recipe(folder, recipe, saved)
    check_network(saved, recipe.model, folder)
    shape = tuple(saved.get("shape") or recipe.data.usual_shape(recipe.seen_views))
    if saved["step"] > recipe.train.epochs * saved["steps_per_epoch"]:
        raise DataError(f"{folder / file} is of step {saved['step']}, which is more than its run has; it is damaged")
    try:
        encoder = build_encoder(recipe, shape, saved["groups"], brought=brought.encoder, features=saved.get("features"))
    except (RuntimeError, MemoryError) as error:  # of a shape that no sample has
        raise DataError(f"{folder / file} holds the shape {shape}: {str(error).splitlines()[0]}") from None
    check_tensors(saved["encoder"], encoder.state_dict(), "encoder", folder / file)
    try:
        encoder.load_state_dict(saved["encoder"], strict=True)
    except RuntimeError as error:
        first = " ".join(str(error).split("\n\t")[1:2]) or str(error)
        raise DataError(
            f"{folder / file} holds another architecture than {folder}/recipe.yaml describes: {first.strip()} "
            "Was one of the two replaced?"
        ) from None
    recipe = recipe.model_copy(update={"data": _located(recipe.data, folder)})
    encoder = encoder.eval().to(best_device(accelerator))
    steps = total_steps(recipe, int(saved["steps_per_epoch"]))
    classes, step = int(saved["groups"][0]), int(saved["step"])
    return TrainedRun(folder, recipe, encoder, shape, classes, step, steps, brought, file)


def _located(data: DataSettings, folder: Path) -> DataSettings:
    """Settings whose relative places are those below the run's folder, where they are there: the two moved together."""
    below = {
        key: str(folder / value)
        for key in ("source", "taxonomy", "classes")
        if (value := getattr(data, key)) and not Path(value).is_absolute() and os.path.exists(folder / value)
    }
    return data.model_copy(update=below)


def embed(run: TrainedRun, source: Source, *, tell: TellDone | None = None) -> Embedded:
    """Features and embeddings of samples as testing sees them, where the encoder is."""
    _check_shape(run, source)
    return embed_by(run.encoder, source, tell=tell)


def embed_by(encoder: Encoder, source: Source, *, tell: TellDone | None = None) -> Embedded:
    """The same by an encoder, which is in the state of testing."""

    def outputs(batch: Any) -> tuple[Tensor, Tensor]:
        embeddings, features = encoder(batch, with_features=True)
        return features.float(), embeddings

    device = next(encoder.parameters()).device
    features, embeddings = _averaged(device, source, outputs, tell)
    return Embedded(features, embeddings if source.copies == 1 else F.normalize(embeddings, dim=1))


def classify(run: TrainedRun, source: Source, *, tell: TellDone | None = None) -> Tensor:
    """`(samples,)`: the class that a run trained as a classifier finds most probable, mean over a sample's copies."""

    def outputs(batch: Any) -> tuple[Tensor]:
        return (run.encoder(batch, raw=True).float()[:, : run.classes].softmax(dim=1),)

    _check_shape(run, source)
    return _averaged(run.device, source, outputs, tell)[0].argmax(dim=1)


def _check_shape(run: TrainedRun, source: Source) -> None:
    if source.shape != run.shape:
        raise DataError(
            f"{run.folder} was trained on samples of the shape {run.shape}, and those of {source.source!r} have "
            f"{source.shape}; give data made alike"
        )


def _averaged(
    device: torch.device, source: Source, outputs: Callable[[Any], tuple[Tensor, ...]], tell: TellDone | None
) -> list[Tensor]:
    """What an encoder makes of all samples, block by block, mean over the copies of each."""
    found: list[tuple[Tensor, ...]] = []
    blocks = torch.arange(len(source)).split(source.at_once)
    workers = 0 if source.in_memory else torch.get_num_threads()  # decoding lets other threads work
    with torch.no_grad():
        for rows, batch in zip(blocks, made_ahead(source.plain, blocks, workers), strict=True):
            made = outputs(moved(batch, device))
            if source.copies > 1:
                made = tuple(each.view(len(rows), source.copies, -1).mean(dim=1) for each in made)
            found.append(made)
            if tell:
                tell(int(rows[-1]) + 1, len(source))
    return [torch.cat(parts) for parts in zip(*found, strict=True)]


def embed_once(run: TrainedRun, source: Source, name: str, *, tell: TellDone | None = None) -> Embedded:
    """The same, read from `features/NAME.safetensors` beside the run if made from what it would be made from now."""
    made_from = made_of(run, source.fingerprint)
    kept = kept_features(run, name, made_from) if source.knows_content else None
    if kept is not None:
        return kept
    folder = run.folder / FEATURES
    shares = sorted(folder.glob(f"{glob.escape(name)}{SHARE}*.safetensors"))
    if source.knows_content:
        each = (run.encoder.feature_dim + run.encoder.dim) * FLOAT
        check_space(folder, each * len(source), f"to keep the features of {name}")
    found = _joined(run, shares, made_from, len(source))
    if found is None:
        found = embed(run, source, tell=tell)
    tensors = {"features": found.features.cpu(), "embeddings": found.embeddings.cpu()}
    folder.mkdir(exist_ok=True)
    write_whole(folder / f"{name}.safetensors", sealed_tensors(tensors, {"made_from": made_from}))
    for share in shares:
        share.unlink(missing_ok=True)
    return found


def embed_share(run: TrainedRun, source: Source, name: str, process: int, processes: int) -> None:
    """Embeds the share of one of several processes of what `embed_once` is going to be asked for.

    A share is some of the blocks that one process would embed, so that it makes the same numbers.
    """
    made_from = made_of(run, source.fingerprint)
    if not source.knows_content or kept_features(run, name, made_from) is not None:
        return
    blocks = math.ceil(len(source) / source.at_once)
    first, end = (min(len(source), blocks * each // processes * source.at_once) for each in (process, process + 1))
    (run.folder / FEATURES).mkdir(exist_ok=True)
    if first < end:
        found = embed(run, Part(source, torch.arange(first, end)))
        tensors = {"features": found.features.cpu(), "embeddings": found.embeddings.cpu()}
        path = run.folder / FEATURES / f"{name}{SHARE}{first:012}-{end:012}.safetensors"
        write_whole(path, sealed_tensors(tensors, {"made_from": made_from}))


def _joined(run: TrainedRun, shares: Sequence[Path], made_from: str, samples: int) -> Embedded | None:
    """What several processes have made, if one share follows the other from the first sample to the last."""
    found: list[Embedded] = []
    reached = 0
    for path in shares:
        first, end = map(int, path.stem.rpartition(SHARE)[2].split("-"))
        share = kept_features(run, path.stem, made_from) if first == reached else None
        if share is not None:
            found.append(share)
            reached = end
    return Embedded(*map(torch.cat, zip(*found, strict=True))) if reached == samples else None


def kept_features(run: TrainedRun, name: str, made_from: str) -> Embedded | None:
    """Features of this name, if what they were made from has this fingerprint; None if there are none."""
    try:
        tensors, noted = read_tensors(run.folder / FEATURES / f"{name}.safetensors")
        if noted.get("made_from") != made_from:
            return None
        return Embedded(*(tensors[place].to(run.device) for place in Embedded._fields))
    except (OSError, KeyError):
        return None
    except DataError as error:
        mention(f"{error}; these features are not used")
        return None


def made_of(run: TrainedRun, samples: str, version: str = rince.__version__) -> str:
    """The fingerprint of what features are made from: weights, samples, what testing sees of a sample, and by whom.

    Args:
        run: with its checkpoint.
        samples: the fingerprint of the samples.
        version: of rince that made them.
    """
    data, views = run.recipe.data, run.recipe.seen_views
    return fingerprint_of(
        checkpoint=run.checkpoint,
        samples=samples,
        data=data.model_dump(mode="json", include=set(type(data).model_fields) - set(DataSettings.model_fields)),
        views=views.model_dump(mode="json"),
        pixels=data.input_facts(views),  # by which rules they are made
        rince=version,
    )
