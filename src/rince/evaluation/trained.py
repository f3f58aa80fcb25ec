"""From a run and samples to features and embeddings, kept beside the run until the checkpoint or the samples change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from rince.config import DataSettings, Recipe
from rince.encoders.encoder import Encoder
from rince.errors import DataError
from rince.files import file_digest, write_whole
from rince.sources.feed import made_ahead
from rince.sources.source import Source, moved
from rince.terminal import TellDone
from rince.train.checkpoint import load_checkpoint
from rince.train.device import best_device
from rince.train.record import CHECKPOINT, recipe_of
from rince.train.setup import NOTHING, Brought, build_encoder, total_steps

FEATURES = "features"  # folder of a run


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

    @cached_property
    def checkpoint(self) -> str:
        """sha256 of the checkpoint file."""
        return file_digest(self.folder / CHECKPOINT)

    @property
    def device(self) -> torch.device:
        """Where the encoder is, and so where everything is done."""
        return next(self.encoder.parameters()).device

    def open(self, split: str, data: DataSettings | None = None) -> Source:
        """The labelled samples of a split, of the run's own data or of other data of its kind."""
        given = self.brought.source if split == self.recipe.data.train_split else self.brought.test_source
        if data is None and given is not None:
            return given
        source: Source = (data or self.recipe.data).open(split, self.recipe.views)
        return source

    def find(self, place: str) -> Source:
        """Samples at a place that a person names, of the kind that the run was trained on."""
        source: Source = self.recipe.data.find(place, self.recipe.views)
        return source


def open_trained(folder: Path, brought: Brought = NOTHING, *, accelerator: str = "auto") -> TrainedRun:
    """The run in a folder, with the weights of its last checkpoint: all of them, and no others.

    Args:
        folder: of the run.
        brought: what the run was given as objects.
        accelerator: where to put the encoder: `"auto"`, `"cpu"`, `"cuda"` or `"mps"`.
    """
    recipe = recipe_of(folder)
    saved = load_checkpoint(folder / CHECKPOINT, {"encoder", "groups", "step", "steps_per_epoch"})
    shape = tuple(saved.get("shape") or recipe.data.usual_shape(recipe.views))
    encoder = build_encoder(recipe, shape, saved["groups"], brought=brought.encoder, features=saved.get("features"))
    try:
        encoder.load_state_dict(saved["encoder"], strict=True)
    except RuntimeError as error:
        first = " ".join(str(error).split("\n\t")[1:2]) or str(error)
        raise DataError(
            f"{folder / CHECKPOINT} holds another architecture than {folder}/recipe.yaml describes: {first.strip()} "
            "Was one of the two replaced?"
        ) from None
    encoder = encoder.eval().to(best_device(accelerator))
    steps = total_steps(recipe, int(saved["steps_per_epoch"]))
    return TrainedRun(folder, recipe, encoder, shape, int(saved["groups"][0]), int(saved["step"]), steps, brought)


def embed(run: TrainedRun, source: Source, *, tell: TellDone | None = None) -> Embedded:
    """Features and embeddings of samples as testing sees them, where the encoder is."""

    def outputs(batch: Any) -> tuple[Tensor, Tensor]:
        embeddings, features = run.encoder(batch, with_features=True)
        return features.float(), embeddings

    features, embeddings = _averaged(run, source, outputs, tell)
    return Embedded(features, embeddings if source.copies == 1 else F.normalize(embeddings, dim=1))


def classify(run: TrainedRun, source: Source, *, tell: TellDone | None = None) -> Tensor:
    """`(samples,)`: the class that a run trained as a classifier finds most probable, mean over a sample's copies."""

    def outputs(batch: Any) -> tuple[Tensor]:
        return (run.encoder(batch, raw=True).float()[:, : run.classes].softmax(dim=1),)

    return _averaged(run, source, outputs, tell)[0].argmax(dim=1)


def _averaged(
    run: TrainedRun, source: Source, outputs: Callable[[Any], tuple[Tensor, ...]], tell: TellDone | None
) -> list[Tensor]:
    """What the encoder makes of all samples, block by block, mean over the copies of each."""
    if source.shape != run.shape:
        raise DataError(
            f"{run.folder} was trained on samples of the shape {run.shape}, and those of {source.source!r} have "
            f"{source.shape}; give data made alike"
        )
    found: list[tuple[Tensor, ...]] = []
    blocks = torch.arange(len(source)).split(source.at_once)
    workers = 0 if source.in_memory else torch.get_num_threads()  # decoding lets other threads work
    with torch.no_grad():
        for rows, batch in zip(blocks, made_ahead(source.plain, blocks, workers), strict=True):
            made = outputs(moved(batch, run.device))
            if source.copies > 1:
                made = tuple(each.view(len(rows), source.copies, -1).mean(dim=1) for each in made)
            found.append(made)
            if tell:
                tell(int(rows[-1]) + 1, len(source))
    return [torch.cat(parts) for parts in zip(*found, strict=True)]


def embed_once(run: TrainedRun, source: Source, name: str, *, tell: TellDone | None = None) -> Embedded:
    """The same, read from `features/NAME.safetensors` beside the run if made from this checkpoint and these samples."""
    made = {"samples": source.fingerprint, "changed": str(source.changed), "data": _how(run)}
    kept = kept_features(run, name, made) if source.knows_content else None
    if kept is not None:
        return kept
    found = embed(run, source, tell=tell)
    tensors = {"features": found.features.cpu(), "embeddings": found.embeddings.cpu()}
    path = run.folder / FEATURES / f"{name}.safetensors"
    path.parent.mkdir(exist_ok=True)
    write_whole(path, save(tensors, metadata={"checkpoint": run.checkpoint, **made}))
    return found


def kept_features(run: TrainedRun, name: str, made: dict[str, str]) -> Embedded | None:
    """Features of this name that were made by this checkpoint, and from what `made` says; None if there are none."""
    try:
        with safe_open(run.folder / FEATURES / f"{name}.safetensors", framework="pt") as file:
            noted = file.metadata()
            if noted.get("checkpoint") != run.checkpoint or any(noted.get(key) != made[key] for key in made):
                return None
            found = Embedded(file.get_tensor("features"), file.get_tensor("embeddings"))
            return Embedded(*(tensor.to(run.device) for tensor in found))
    except (OSError, SafetensorError):
        return None  # not there, or damaged: to be made again


def _how(run: TrainedRun) -> str:
    """The settings that decide what testing sees of a sample."""
    data = run.recipe.data.model_dump_json(
        include=set(type(run.recipe.data).model_fields) - set(DataSettings.model_fields)
    )
    # The facts tell the rules by which pixels are made: features made by other rules are made again.
    return f"{data} {run.recipe.views!r} {run.recipe.data.input_facts(run.recipe.views)}"
