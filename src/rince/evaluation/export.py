"""`rince export`: the encoder for other programs, as safetensors weights and as ONNX; of texts with all they need."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save
from torch import Tensor, nn

from rince.encoders.encoder import Encoder
from rince.encoders.heads import SideBySide
from rince.encoders.pretrained import Network, PretrainedModel
from rince.encoders.tokens import Tokenised
from rince.errors import ConfigError
from rince.evaluation.lookup import Which, check_which
from rince.evaluation.sentences import sentence_transformer, write_sentence_transformer
from rince.evaluation.trained import TrainedRun
from rince.files import write_whole, written_folder
from rince.sources.source import Batch
from rince.sources.texts import UNLABELLED, Texts
from rince.terminal import Say, nobody

WEIGHTS, ONNX, ABOUT, SENTENCES = "encoder.safetensors", "encoder.onnx", "encoder.json", "sentence-transformer"
OUTPUTS = ("features", "embeddings")
EXAMPLES = ("A text.", "Another text, which is a little longer than the first.")


class _Taken(NamedTuple):
    """What the graph takes: a batch of it, the axes that are not fixed, and what `encoder.json` says of it."""

    batch: Batch
    axes: Any
    facts: dict[str, Any]

    @property
    def names(self) -> list[str]:
        """Of the inputs."""
        return list(self.batch) if isinstance(self.batch, dict) else [self.facts["name"]]


class _Both(nn.Module):
    """The encoder with both of its outputs."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Features and embeddings."""
        embeddings, features = self.encoder(batch, with_features=True)
        return features, embeddings


def export(run: TrainedRun, folder: Path, *, which: Which | None = None, say: Say = nobody) -> list[Path]:
    """Writes the encoder's weights, an ONNX graph of it, and what its input has to look like; returns what it wrote.

    The graph takes `(batch, *shape of a sample)` float32, called `images`, `videos` or `vectors` and made as
    `encoder.json` says, and gives `features` `(batch, feature_dim)` before the head and `embeddings` `(batch, dim)` of
    unit length; `place` in `encoder.json` says which of the two to take.
    A frozen network that the run was trained on is part of weights and graph. That of texts takes `input_ids`,
    `attention_mask` and what else the network knows, `(batch, length)` int64, made by the tokeniser whose files are
    written beside it; a folder `sentence-transformer` is for the library of this name. All computes in float32.

    Args:
        run: whose encoder it is.
        folder: to write to; new or empty, and left so if something fails.
        which: of the two outputs to take, and to give `sentence-transformer`; by default the one that was better on
            validation, `features` if nobody looked.
        say: is told what could not be written, and why.
    """
    if which is not None:
        check_which(which)
    with written_folder(folder) as new:
        own = copy.deepcopy(run.encoder).cpu()  # a file is the same wherever the run was opened
        encoder: Encoder = run.recipe.model.whole(own).cpu().float().eval()
        network = _network_of_texts(run)
        taken = _taken(run) if network is None else _texts_taken(network, run.recipe.seen_views)
        tensors = encoder.state_dict().items()
        state = {name: each.clone(memory_format=torch.contiguous_format) for name, each in tensors}  # none is shared
        write_whole(new / WEIGHTS, save(state, metadata={"recipe": run.recipe.name, "checkpoint": run.checkpoint}))
        _write_onnx(_Both(encoder), taken, new / ONNX)
        facts = {
            "recipe": run.recipe.name,
            "checkpoint": run.checkpoint,
            "input": taken.facts,
            "outputs": {"features": encoder.feature_dim, "embeddings": encoder.dim},
            "place": which or run.place or "features",
            "model": run.recipe.model.model_dump(mode="json"),
        }
        more = [] if network is None else _write_texts(encoder, network, taken, new, facts, say)
        write_whole(new / ABOUT, json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
        beside = [path.name for path in new.glob(f"{ONNX}?*")]  # weights of a graph that is too large for one file
    return [folder / name for name in (WEIGHTS, ONNX, ABOUT, *beside, *more)]


def _network_of_texts(run: TrainedRun) -> Network | None:
    model = run.recipe.model
    return model.network if isinstance(model, PretrainedModel) and model.network.tokeniser is not None else None


def _taken(run: TrainedRun) -> _Taken:
    """Of samples that are one tensor."""
    recipe, shape = run.recipe, run.shape
    if isinstance(recipe.model, PretrainedModel) and recipe.model.tune == "adapter":  # whose own input are features
        given = run.brought.source
        shape = recipe.data.usual_shape(recipe.seen_views) if given is None else given.shape
    facts = {"name": recipe.data.input_name, "shape": ["batch", *shape], **recipe.data.input_facts(recipe.seen_views)}
    return _Taken(torch.zeros(2, *shape), {0: torch.export.Dim("batch")}, facts)


def _texts_taken(network: Network, views: Any) -> _Taken:
    labels = torch.zeros(len(EXAMPLES), dtype=torch.int64)
    tokens = network.fit(Texts("examples", EXAMPLES, labels, UNLABELLED, views))
    assert isinstance(tokens, Tokenised)
    batch = tokens.plain(torch.arange(len(tokens)))
    assert isinstance(batch, dict)
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=tokens.longest)}
    facts = {
        "names": list(batch),
        "shape": ["batch", "length"],
        "type": "int64",
        "longest": tokens.longest,
        "prompt": network.prompt,
        "tokens": "tokenizer(prompt + text, truncation=True, padding=True), of the tokenizer's files in this folder",
    }
    return _Taken(batch, dict.fromkeys(batch, axes), facts)


def _write_texts(
    encoder: Encoder, network: Network, taken: _Taken, folder: Path, facts: dict[str, Any], say: Say
) -> list[str]:
    """The tokeniser's files, and the folder for sentence-transformers; returns their names, and adds to the facts."""
    tokeniser, longest, place = copy.deepcopy(network.tokeniser), taken.facts["longest"], facts["place"]
    tokeniser.model_max_length = longest
    tokeniser(list(EXAMPLES), truncation=True, padding=True)  # its file says so from then on
    written = (Path(path).name for path in tokeniser.save_pretrained(folder))
    names = sorted(name for name in written if (folder / name).exists())
    if isinstance(encoder.head, SideBySide) and place == "embeddings":  # parts of one vector are normalised separately
        say(f"{SENTENCES} gives features: the library has no modules for two heads side by side")
        place = "features"
    with torch.no_grad():
        made = dict(zip(OUTPUTS, _Both(encoder)(taken.batch), strict=True))
    try:
        model = sentence_transformer(encoder, network, longest=longest, place=place)
        write_sentence_transformer(model, folder / SENTENCES, EXAMPLES, made[place])
    except ConfigError as error:
        say(f"no folder {SENTENCES} is written: {error}")
        return names
    facts[SENTENCES] = {"place": place}
    return [*names, SENTENCES]


def _write_onnx(model: nn.Module, taken: _Taken, path: Path) -> None:
    quiet = logging.getLogger("torch.onnx")
    level = quiet.level
    quiet.setLevel(logging.ERROR)
    try:
        # The exporter talks about its own progress and its own deprecations; what goes wrong is raised.
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                model.eval(),
                kwargs={"batch": taken.batch},
                input_names=taken.names,
                output_names=list(OUTPUTS),
                dynamic_shapes={"batch": taken.axes},
                dynamo=True,
                verbose=False,
            )
            assert program is not None
            program.save(path)
    except torch.onnx.errors.OnnxExporterError as error:
        raise ConfigError(
            f"the encoder cannot be written as ONNX: {_reason(error)}; its weights are in the checkpoint of the run"
        ) from error
    finally:
        quiet.setLevel(level)


def _reason(error: BaseException) -> str:
    """What lies at the bottom of an error."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
