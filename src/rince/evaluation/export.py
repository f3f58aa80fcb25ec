"""`rince export`: the encoder for other programs, as safetensors weights and as ONNX."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import warnings
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from rince.errors import ConfigError
from rince.evaluation.trained import TrainedRun
from rince.train.record import write_whole

WEIGHTS, ONNX, ABOUT = "encoder.safetensors", "encoder.onnx", "encoder.json"


class _Both(nn.Module):
    """The encoder with both of its outputs."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features and embeddings."""
        embeddings, features = self.encoder(images, with_features=True)
        return features, embeddings


def export(run: TrainedRun, folder: Path) -> list[Path]:
    """Writes the encoder's weights, an ONNX graph of it, and what its input has to look like; returns the files.

    The graph takes `images` `(batch, channels, [frames,] size, size)` float32, normalised as `encoder.json` says, and
    gives `features` `(batch, feature_dim)` before the head and `embeddings` `(batch, dim)` of unit length.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty, and nothing in it will be overwritten; choose another --out")
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror}; choose another --out") from None
    settings = run.recipe.views
    weights, graph, about = folder / WEIGHTS, folder / ONNX, folder / ABOUT
    state = {name: tensor.contiguous() for name, tensor in run.encoder.state_dict().items()}
    weights.with_suffix(".writing").write_bytes(
        save(state, metadata={"recipe": run.recipe.name, "checkpoint": run.checkpoint})
    )
    os.replace(weights.with_suffix(".writing"), weights)
    frames = [] if run.recipe.clips is None else [run.recipe.clips.frames]
    shape = [run.channels, *frames, settings.size, settings.size]
    example = torch.zeros(2, *shape)
    _write_onnx(_Both(run.encoder), example, graph)
    facts = {
        "recipe": run.recipe.name,
        "checkpoint": run.checkpoint,
        "input": {
            "name": "images",
            "shape": ["batch", *shape],
            "pixels": "from 0 to 1, shorter side resized (bilinear, antialiased), centre cut out, (pixel - mean) / std",
            "mean": list(settings.mean),
            "std": list(settings.std),
        },
        "outputs": {"features": run.encoder.feature_dim, "embeddings": run.encoder.dim},
        "model": run.recipe.model.model_dump(mode="json"),
    }
    write_whole(about, json.dumps(facts, indent=2) + "\n")
    return [weights, graph, about]


def _write_onnx(model: nn.Module, example: Tensor, path: Path) -> None:
    temporary = path.with_suffix(".writing")
    quiet = logging.getLogger("torch.onnx")
    level = quiet.level
    quiet.setLevel(logging.ERROR)
    try:
        # The exporter talks about its own progress and its own deprecations; what goes wrong is raised.
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                model.eval(),
                (example,),
                input_names=["images"],
                output_names=["features", "embeddings"],
                dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
                dynamo=True,
                verbose=False,
            )
        assert program is not None
        program.save(temporary, external_data=False)
    finally:
        quiet.setLevel(level)
    os.replace(temporary, path)
