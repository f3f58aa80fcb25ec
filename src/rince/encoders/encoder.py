"""The encoder: images or clips to features (before the head) and to embeddings of unit length (after it)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rince.errors import ConfigError
from rince.encoders.heads import SideBySide, mlp_head, side_by_side
from rince.encoders.resnet import Dims, Norm, Stem, resnet


class Encoder(nn.Module):
    """A backbone and a head.

    Args:
        backbone: images to features `(batch, feature_dim)`; it has the attribute `feature_dim`.
        head: features to vectors `(batch, dim)`, such as `mlp_head(...)`; its last linear layer gives `dim`. A head
            without one, such as `nn.Identity()`, keeps `feature_dim`.

    Attributes:
        feature_dim: length of a feature.
        dim: length of an embedding.

    Example:
        >>> encoder = Encoder(resnet(10, width=8), mlp_head(64, 64, 16))
        >>> encoder(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 16])
        >>> encoder.features(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 64])
    """

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        feature_dim = getattr(backbone, "feature_dim", None)
        if not isinstance(feature_dim, int):
            raise ConfigError(
                f"the backbone {type(backbone).__name__} must have an integer attribute feature_dim, got "
                f"{feature_dim!r}; set it to the length of its output"
            )
        linears = [module for module in head.modules() if isinstance(module, nn.Linear)]
        if linears and linears[0].in_features != feature_dim:
            raise ConfigError(
                f"the head takes {linears[0].in_features} numbers and the backbone gives {feature_dim}; build the head "
                "with inputs=backbone.feature_dim"
            )
        self.backbone = backbone
        self.head = head
        self.feature_dim = feature_dim
        self.dim = int(getattr(head, "dim", linears[-1].out_features if linears else feature_dim))

    def features(self, images: Tensor) -> Tensor:
        """Features `(batch, feature_dim)` of images, not normalised."""
        features: Tensor = self.backbone(images)
        return features

    def forward(
        self, images: Tensor, *, with_features: bool = False, raw: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Embeddings `(batch, dim)` of unit length, at least in float32; a head's output of zero stays zero.

        Args:
            images: `(batch, channels, height, width)`.
            with_features: return `(embeddings, features)`, which also works through DDP and other wrappers that only
                know `forward`.
            raw: return what the head gives, for a classifier.
        """
        features = self.features(images)
        vectors: Tensor = self.head(features)
        if raw:
            return vectors
        if vectors.dtype in (torch.float16, torch.bfloat16):
            vectors = vectors.float()
        if isinstance(self.head, SideBySide):  # each head's part by itself, as it is trained
            parts = vectors.split(self.head.widths, dim=1)
            embeddings = torch.cat([F.normalize(part, dim=1) for part in parts], dim=1) / len(parts) ** 0.5
        else:
            embeddings = F.normalize(vectors, dim=1)
        return (embeddings, features) if with_features else embeddings


def build_encoder(
    *,
    depth: int,
    width: int,
    stem: Stem,
    channels: int,
    norm: Norm,
    head_hidden: int | None,
    dim: int,
    heads: int = 1,
    classes: Sequence[int] = (),
    blocks: Sequence[int] | None = None,
    dims: Dims = 2,
    dropout: float = 0.0,
) -> Encoder:
    """A residual network with an MLP head; `resnet` explains the first arguments and `blocks`.

    Args:
        depth: 10, 18, 34 or 50.
        width: channels of the first stage.
        stem: how the image enters.
        channels: channels of an image.
        norm: `"batch"` or `"group"`.
        head_hidden: hidden units of the head; None is as many as the feature has (the paper on CIFAR-100).
        dim: length of an embedding; 128 in the paper.
        heads: how many MLP heads stand side by side.
        classes: linear classifiers with so many outputs each, in place of MLP heads.
        blocks: blocks per stage, in place of those that `depth` stands for.
        dims: 2 for images, 3 for clips.
        dropout: share of a feature that a classifier does not see in a step of training.
    """
    backbone = resnet(depth, width=width, channels=channels, stem=stem, blocks=blocks, norm=norm, dims=dims)
    inputs = backbone.feature_dim
    if classes:
        linears: list[nn.Module] = [nn.Linear(inputs, outputs) for outputs in classes]
        classifiers = [nn.Sequential(nn.Dropout(dropout), linear) for linear in linears] if dropout else linears
        return Encoder(backbone, side_by_side(classifiers))
    hidden = inputs if head_hidden is None else head_hidden
    return Encoder(backbone, side_by_side([mlp_head(inputs, hidden, dim) for _ in range(heads)]))
