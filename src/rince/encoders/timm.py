"""Networks of timm by their name, with the weights it knows for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from rince.encoders.pretrained import Network, PretrainedImages, at_hand, takes_images, width_of
from rince.encoders.weights import digest_of_tensors
from rince.errors import ConfigError
from rince.files import fingerprint_of


class TimmModel(PretrainedImages):
    """`model.kind=timm`: any image model of timm."""

    kind: Literal["timm"]
    name: str = Field(
        description="such as vit_small_patch14_dinov2.lvd142m; `timm.list_models(pretrained=True)` lists them"
    )

    @property
    def network(self) -> Network:
        """As timm makes it, without its classifier."""
        return _network(self.name)

    def input_of(self) -> tuple[int, Sequence[float], Sequence[float]]:
        """What timm says of its pretraining."""
        config: dict[str, Any] = self.network.module.model.pretrained_cfg  # type: ignore[assignment, union-attr]
        return _size(config, self.name), tuple(config["mean"]), tuple(config["std"])


class _Features(nn.Module):
    """A network of timm without its classifier."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """`(batch, 3, size, size)` to `(batch, num_features)`."""
        found: Tensor = self.model(images)
        return found


@lru_cache(maxsize=2)
def _network(name: str) -> Network:
    try:
        import timm  # type: ignore[import-not-found]  # noqa: PLC0415 - not one of our extras: it needs torchvision
    except ImportError as error:
        raise ConfigError(
            f"model.kind=timm needs the package timm with a torchvision that fits your torch ({error}); or take "
            "model.kind=huggingface or efficientnet-lite"
        ) from None
    try:
        model = timm.create_model(name, pretrained=True, num_classes=0)
    except Exception as error:  # the hub, the file system and the name each have their own
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(f"timm cannot make model.name={name} ({reason[:200]})") from None
    module = _Features(model).eval().requires_grad_(False)
    size = _size(model.pretrained_cfg, name)
    width = width_of(module, torch.zeros(1, 3, size, size), name)  # not always `num_features`
    identity = fingerprint_of(kind="timm", name=name, weights=digest_of_tensors(module.state_dict()))
    # Where its weights are, timm alone knows, so that nobody can tell what they are before it has loaded them.
    return at_hand(module, width, identity, takes_images, f"timm's {name}", at_once=32)


def _size(config: dict[str, Any], name: str) -> int:
    _, height, width = config["input_size"]
    if height != width:
        raise ConfigError(f"model.name={name} takes images of {height} × {width} pixels; only squares are made here")
    return int(height)
