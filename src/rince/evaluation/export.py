"""`rince export`: the encoder for other programs, as safetensors weights and as ONNX."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import warnings
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from rince.errors import ConfigError
from rince.evaluation.trained import TrainedRun
from rince.files import write_whole

WEIGHTS, ONNX, ABOUT = "encoder.safetensors", "encoder.onnx", "encoder.json"


class _Both(nn.Module):
    """The encoder with both of its outputs."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Features and embeddings."""
        embeddings, features = self.encoder(samples, with_features=True)
        return features, embeddings


def export(run: TrainedRun, folder: Path) -> list[Path]:
    """Writes the encoder's weights, an ONNX graph of it, and what its input has to look like; returns the files.

    The graph takes `(batch, *shape of a sample)` float32, called `images`, `videos` or `vectors` and made as
    `encoder.json` says, and gives `features` `(batch, feature_dim)` before the head and `embeddings` `(batch, dim)` of
    unit length; `place` in `encoder.json` says which of the two was better on validation, `features` if nobody looked.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty, and nothing in it will be overwritten; choose another --out")
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror}; choose another --out") from None
    weights, graph, about = folder / WEIGHTS, folder / ONNX, folder / ABOUT
    encoder = copy.deepcopy(run.encoder).cpu()  # a file is the same wherever the run was opened
    state = {name: tensor.contiguous() for name, tensor in encoder.state_dict().items()}
    write_whole(weights, save(state, metadata={"recipe": run.recipe.name, "checkpoint": run.checkpoint}))
    shape, called = list(run.shape), run.recipe.data.input_name
    _write_onnx(_Both(encoder), torch.zeros(2, *shape), called, graph)
    facts = {
        "recipe": run.recipe.name,
        "checkpoint": run.checkpoint,
        "input": {"name": called, "shape": ["batch", *shape], **run.recipe.data.input_facts(run.recipe.seen_views)},
        "outputs": {"features": run.encoder.feature_dim, "embeddings": run.encoder.dim},
        "place": run.place or "features",
        "model": run.recipe.model.model_dump(mode="json"),
    }
    write_whole(about, json.dumps(facts, indent=2) + "\n")
    return [weights, graph, about]


def _write_onnx(model: nn.Module, example: Tensor, called: str, path: Path) -> None:
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
                input_names=[called],
                output_names=["features", "embeddings"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                dynamo=True,
                verbose=False,
            )
        assert program is not None
        write_whole(path, program.model_proto.SerializeToString())
    finally:
        quiet.setLevel(level)
