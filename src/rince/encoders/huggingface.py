"""Networks of Hugging Face's transformers, for images and for texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from rince.encoders.known import Facts, Loaded, count, lazily, remembered
from rince.encoders.pretrained import Network, PretrainedModel, takes_images, width_of
from rince.encoders.tokens import Tokens, tokenising
from rince.encoders.weights import (
    SAFE,
    SOME_TEXT,
    check_tokeniser,
    check_whole,
    digest_of_tensors,
    digest_of_tokeniser,
    facts_of_config,
    hub_notes,
    key_of,
    loaded,
    model_place,
)
from rince.errors import ConfigError
from rince.files import fingerprint_of
from rince.views.pixels import PixelViewSettings

Input = tuple[int, tuple[float, ...], tuple[float, ...]]
Pool = Literal["cls", "mean", "pooler"]
INSTALL = 'pip install "rince[pretrained]"'
LONGEST = 512  # tokens, where neither tokeniser nor network says
UNSAID = 10**18  # tokens: what a tokeniser that does not know gives is higher
COLOURS = 3
SIZE = 224  # pixels, of networks that do not say


class HuggingFaceModel(PretrainedModel):
    """`model.kind=huggingface`: any model of images or texts, by folder or hub name."""

    kind: Literal["huggingface"]
    name: str = Field(description="folder or hub name, such as facebook/dinov2-small")
    revision: str | None = Field(None, description="of a model on the hub: a commit, branch or tag")
    pool: Pool = Field(
        "mean",
        description="what a feature is: the first token (cls), the mean over tokens that are no padding or over places "
        "of an image (mean), or the model's own (pooler)",
    )
    standardise: bool = Field(True, description="shift and scale every coordinate of the features first")

    @property
    def network(self) -> Network:
        """Of whatever kind it is."""
        return _network(self.name, self.revision, self.pool)

    @property
    def notes(self) -> list[str]:
        """Which commit of the hub it is."""
        return hub_notes(self.name, self.revision)

    def fit_views(self, views: Any) -> Any:
        """For images: size, mean and std of the model's processor where the recipe says nothing."""
        if not isinstance(views, PixelViewSettings) or None not in (views.size, views.mean, views.std):
            return views
        if self.network.longest is not None:
            raise ConfigError(f"model.name={self.name} reads texts, and the data is images; name a model for those")
        return views.filled(*_input_of(self.name, self.revision))


def _transformers() -> Any:
    try:
        import transformers  # noqa: PLC0415 - heavy, and an extra
    except ImportError:
        raise ConfigError(f"model.kind=huggingface needs the extra: {INSTALL}") from None
    return transformers


@lru_cache(maxsize=2)
def _network(name: str, revision: str | None, pool: Pool) -> Network:
    key = key_of(name, "transformers", revision=revision, pool=pool, of="tower, with its longest text, in float32")
    facts, load = lazily(name, lambda: _load(name, revision, pool), key)
    if facts.longest is None:
        return Network(**vars(facts), load=load, fit=takes_images, about=name, at_once=32)
    return Network(**vars(facts), load=load, fit=tokenising(facts, load, f"model.name={name}"), about=name)


def _load(name: str, revision: str | None, pool: Pool) -> Loaded:
    transformers, place = _transformers(), model_place(name)
    options = {"revision": revision, "trust_remote_code": False}
    model = _tower(loaded(lambda: _opened(transformers, place, options), name))
    reads = "pixel_values" if model.main_input_name == "pixel_values" else "input_ids"
    module = (PooledImages if reads == "pixel_values" else PooledTexts)(model, pool).eval().requires_grad_(False)
    if reads == "pixel_values":
        size = getattr(model.config, "image_size", SIZE)
        high, wide = size if isinstance(size, list | tuple) else (size, size)
        image = torch.rand(1, 3, high, wide, generator=torch.Generator().manual_seed(0))
        width = width_of(module, image, name)
        check_whole([model], lambda: module(image), name)
        identity = fingerprint_of(**_made_from(model, pool))
        return Loaded(Facts(identity=identity, width=width, parameters=count(module)), module)
    tokeniser = loaded(lambda: transformers.AutoTokenizer.from_pretrained(place, **options), name)
    check_tokeniser(tokeniser, name)
    longest = _longest(tokeniser, model)
    text = _batch(tokeniser, [SOME_TEXT], longest)
    width = width_of(module, text, name)
    check_whole([model], lambda: module(text), name)
    identity = fingerprint_of(**_made_from(model, pool), longest=longest, tokeniser=digest_of_tokeniser(tokeniser))

    def tokenise(texts: Sequence[str], *, cut: bool = True) -> Tokens:
        limit = {"truncation": True, "max_length": longest} if cut else {"truncation": False, "verbose": False}
        made = tokeniser(list(texts), **limit)
        return {key: [list(row) for row in rows] for key, rows in made.items()}

    padding = int(tokeniser.pad_token_id or 0)
    known = Facts(identity=identity, width=width, parameters=count(module), longest=longest, padding=padding)
    return Loaded(known, module, tokeniser, tokenise)


def _made_from(model: Any, pool: Pool) -> dict[str, Any]:
    """What the features of a network depend on, besides how texts become tokens."""
    weights, config = digest_of_tensors(model.state_dict()), facts_of_config(model.config)
    return {"kind": "huggingface", "pool": pool, "weights": weights, "config": config}


def _opened(transformers: Any, place: str, options: dict[str, Any]) -> Any:
    """The model without a head for any task; where there is only a backbone, that."""
    try:
        return transformers.AutoModel.from_pretrained(place, **options, **SAFE)
    except ValueError as error:
        if "Unrecognized configuration class" not in str(error):
            raise
        # What `AutoBackbone` does, which would ask the hub even for a folder.
        config = transformers.AutoConfig.from_pretrained(place, **options)
        backbone = transformers.MODEL_FOR_BACKBONE_MAPPING.get(type(config), None)
        if backbone is None:
            raise
        return backbone.from_pretrained(place, config=config, **options, **SAFE)


def _tower(model: Any) -> Any:
    """The part that makes features: the encoder of what also decodes, the one for images of what also reads texts."""
    if getattr(model, "vision_model", None) is not None and getattr(model, "text_model", None) is not None:
        return model.vision_model
    return model.get_encoder() if model.config.is_encoder_decoder else model


class PooledTexts(nn.Module):
    """Tokens to one feature for a text."""

    def __init__(self, model: Any, pool: Pool) -> None:
        super().__init__()
        self.model, self.pool = model, pool

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """`(batch, width)`; the mean is over tokens that are no padding."""
        outputs = self.model(**batch)
        if self.pool == "pooler":
            return _pooler(outputs)
        states: Tensor = outputs.last_hidden_state
        if self.pool == "cls":
            return states[:, 0]
        mask = batch["attention_mask"].unsqueeze(2).to(states.dtype)
        return (states * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)


class PooledImages(nn.Module):
    """Pixels to one feature for an image."""

    def __init__(self, model: Any, pool: Pool) -> None:
        super().__init__()
        self.model, self.pool = model, pool

    def forward(self, images: Tensor) -> Tensor:
        """`(batch, 3, size, size)` to `(batch, width)`; the mean is over the places of the image, or its tokens."""
        outputs = self.model(pixel_values=images)
        if self.pool == "pooler":
            return _pooler(outputs).flatten(1)
        states: Tensor = outputs.feature_maps[-1] if hasattr(outputs, "feature_maps") else outputs.last_hidden_state
        if states.ndim == 4:
            if self.pool == "cls":
                raise ConfigError("model.pool=cls: this network has no first token; use mean or pooler")
            return states.mean(dim=(2, 3))
        return states[:, 0] if self.pool == "cls" else states.mean(dim=1)


def _pooler(outputs: Any) -> Tensor:
    found: Tensor | None = getattr(outputs, "pooler_output", None)
    if found is None:
        raise ConfigError("model.pool=pooler: this network has no pooler; use mean or cls")
    return found


def _batch(tokeniser: Any, texts: list[str], longest: int) -> dict[str, Tensor]:
    return dict(tokeniser(texts, truncation=True, max_length=longest, padding=True, return_tensors="pt"))


def _longest(tokeniser: Any, model: Any) -> int:
    """Tokens that both tokeniser and network can take; `LONGEST` where neither says."""
    said = [tokeniser.model_max_length] if tokeniser.model_max_length < UNSAID else []
    places = getattr(model.config, "max_position_embeddings", None)
    if places:
        # RoBERTa and its kin count places from behind the padding's number.
        table = next((each for path, each in model.named_modules() if path.endswith("position_embeddings")), None)
        before = getattr(table, "padding_idx", None)
        said.append(places if before is None else places - before - 1)
    return int(min(said, default=LONGEST))


@lru_cache(maxsize=4)
def _input_of(name: str, revision: str | None) -> Input:
    """Size, mean and std by the model's image processor."""
    key = key_of(name, "transformers", revision=revision, of="input, as its processor rescales")
    return remembered(key, Input, lambda: _read_input(name, revision))


def _read_input(name: str, revision: str | None) -> Input:
    transformers, place = _transformers(), model_place(name)
    processor = loaded(
        lambda: transformers.AutoImageProcessor.from_pretrained(place, revision=revision, trust_remote_code=False),
        name,
        wrong="has no image processor that can be read",
        instead="give views.size, views.mean and views.std in the recipe",
    )
    sizes = getattr(processor, "crop_size", None) or getattr(processor, "size", None)
    mean, std = _normalisation(processor, name)
    sides = {int(each) for each in (dict(sizes).values() if sizes else ()) if each}
    if len(sides) != 1 or mean is None or std is None or not len(mean) == len(std) == COLOURS:
        raise ConfigError(
            f"the processor of model.name={name} does not fit: it must say a size, and image_mean and image_std of "
            f"three colours, and says {sizes}, {mean}, {std}; give views.size, views.mean and views.std to a model "
            "whose processor does"
        )
    return sides.pop(), tuple(mean), tuple(std)


def _normalisation(processor: Any, name: str) -> tuple[Sequence[float] | None, Sequence[float] | None]:
    """Mean and std of pixels from 0 to 1 that do what the processor does to pixels from 0 to 255."""
    if getattr(processor, "rescale_offset", False) or getattr(processor, "offset", False):
        raise ConfigError(
            f"the processor of model.name={name} shifts pixels when it rescales them, which views do not; give "
            "views.mean and views.std that come to the same"
        )
    mean, std = getattr(processor, "image_mean", None), getattr(processor, "image_std", None)
    if getattr(processor, "do_normalize", True) is False:
        mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    factor = getattr(processor, "rescale_factor", 1 / 255) if getattr(processor, "do_rescale", True) else 1.0
    if mean is None or std is None or math.isclose(255 * factor, 1):
        return mean, std
    if factor <= 0:
        raise ConfigError(f"the processor of model.name={name} has rescale_factor {factor}; it must be above 0")
    return [each / (255 * factor) for each in mean], [each / (255 * factor) for each in std]
