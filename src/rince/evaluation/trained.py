"""From a run and images to features and embeddings, kept beside the run until the checkpoint or the images change."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from rince.config import Clips, Recipe
from rince.sources.image_files import LargeImages
from rince.sources.images import ImageSet
from rince.views.pixels import Views
from rince.errors import ConfigError, DataError
from rince.encoders.encoder import Encoder
from rince.train.checkpoint import load_checkpoint
from rince.train.record import CHECKPOINT, open_run
from rince.train.setup import build_seeded_encoder, memory_format, total_steps

FEATURES = "features"  # folder of a run
BATCH = 256
Tell = Callable[[int, int], None]
"""Is called with (images done, of how many)."""


class Embedded(NamedTuple):
    """What an encoder makes of images."""

    features: Tensor
    """`(images, feature_dim)`, before the head, of any length."""
    embeddings: Tensor
    """`(images, dim)`, after the head, of unit length."""


@dataclass(frozen=True)
class TrainedRun:
    """A run with its encoder, ready to be looked at; at step `step` of `steps`."""

    folder: Path
    recipe: Recipe
    encoder: Encoder
    views: Views
    step: int
    steps: int

    @property
    def channels(self) -> int:
        """That the encoder takes."""
        return len(self.recipe.views.mean)

    @property
    def clips(self) -> Clips:
        """Of a run on videos."""
        if self.recipe.clips is None:
            raise ConfigError(f"{self.folder} was trained on images, not on videos")
        return self.recipe.clips

    @cached_property
    def checkpoint(self) -> str:
        """sha256 of the checkpoint file."""
        digest = hashlib.sha256()
        with (self.folder / CHECKPOINT).open("rb") as file:
            while part := file.read(2**22):
                digest.update(part)
        return digest.hexdigest()


def open_trained(folder: Path) -> TrainedRun:
    """The run in a folder, with the weights of its last checkpoint: all of them, and no others."""
    recipe = open_run(folder)
    saved = load_checkpoint(folder / CHECKPOINT, {"encoder", "groups", "step", "steps_per_epoch"})
    encoder = build_seeded_encoder(recipe, len(recipe.views.mean), saved["groups"])
    try:
        encoder.load_state_dict(saved["encoder"], strict=True)
    except RuntimeError as error:
        first = " ".join(str(error).split("\n\t")[1:2]) or str(error)
        raise DataError(
            f"{folder / CHECKPOINT} holds another architecture than {folder}/recipe.yaml describes: {first.strip()} "
            "Was one of the two replaced?"
        ) from None
    if recipe.model.channels_last:
        encoder.to(memory_format=memory_format(recipe))  # type: ignore[call-overload]
    steps = total_steps(recipe, int(saved["steps_per_epoch"]))
    return TrainedRun(folder, recipe, encoder.eval(), Views(**dict(recipe.views)), int(saved["step"]), steps)


def embed(run: TrainedRun, images: ImageSet | LargeImages, *, tell: Tell | None = None) -> Embedded:
    """Features and embeddings of images under the test view: the shorter side resized, the centre cut out."""
    features, embeddings = [], []
    with torch.inference_mode():
        for batch in _batches(run, images):
            embedding, feature = run.encoder(batch, with_features=True)
            features.append(feature.float())
            embeddings.append(embedding)
            if tell:
                tell(sum(map(len, features)), len(images))
    return Embedded(torch.cat(features).clone(), torch.cat(embeddings).clone())


def embed_once(run: TrainedRun, images: ImageSet | LargeImages, name: str, *, tell: Tell | None = None) -> Embedded:
    """The same, read from `features/NAME.safetensors` beside the run if made from this checkpoint and these images."""
    changed = images.changed if isinstance(images, LargeImages) else 0
    source = {"images": images.fingerprint, "changed": str(changed)}
    return made_once(run, name, source, lambda: embed(run, images, tell=tell))


def made_once(run: TrainedRun, name: str, source: dict[str, str], make: Callable[[], Embedded]) -> Embedded:
    """What `make` gives, or what it gave before for this checkpoint and this source."""
    path = run.folder / FEATURES / f"{name}.safetensors"
    wanted = {"checkpoint": run.checkpoint, **source}
    try:
        with safe_open(path, framework="pt") as file:
            if file.metadata() == wanted:
                return Embedded(file.get_tensor("features"), file.get_tensor("embeddings"))
    except (OSError, SafetensorError):
        pass  # not there, or damaged: made again below
    made = make()
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(path.name + ".writing")
    temporary.write_bytes(save({"features": made.features, "embeddings": made.embeddings}, metadata=wanted))
    os.replace(temporary, path)
    return made


def _batches(run: TrainedRun, images: ImageSet | LargeImages) -> Iterator[Tensor]:
    if isinstance(images, ImageSet):
        for batch in images.images.split(BATCH):
            yield run.views.resize_and_normalise(with_channels(batch, run.channels))
        return

    def prepare(index: int) -> Tensor:
        with images.opened(index) as opened:
            shrinkage = opened.shrinkage(min(opened.height, opened.width), run.views.size)
            image = torch.from_numpy(opened.pixels(shrinkage))
        return run.views.resize_and_normalise(with_channels(image[None], run.channels))

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # Pillow decodes without holding up other threads
        for rows in torch.arange(len(images)).split(BATCH):
            yield torch.cat(list(pool.map(prepare, rows.tolist())))


def with_channels(images: Tensor, channels: int) -> Tensor:
    """`(batch, 1 or 3, …)` uint8 images with the channels an encoder takes: gray repeated, colour made gray."""
    if images.shape[1] == channels:
        return images
    if channels == 3:
        return images.expand(-1, 3, *images.shape[2:])
    weights = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, *[1] * (images.ndim - 2))
    return (images.float() * weights).sum(dim=1, keepdim=True).round().to(torch.uint8)
