"""The encoder: a batch of samples to features (before the head) and to embeddings of unit length (after it)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rince.encoders.heads import SideBySide
from rince.errors import ConfigError


class Encoder(nn.Module):
    """A network and a head.

    Args:
        backbone: a batch to features `(batch, feature_dim)`.
        head: features to vectors `(batch, dim)`, such as `mlp_head(...)`; its last linear layer gives `dim`. A head
            without one, such as `nn.Identity()`, keeps `feature_dim`.
        feature_dim: length of a feature; by default what the network has as its attribute `feature_dim`.

    Attributes:
        feature_dim: length of a feature.
        dim: length of an embedding.

    Example:
        >>> from rince.encoders.heads import mlp_head
        >>> from rince.encoders.resnet import resnet
        >>> encoder = Encoder(resnet(10, width=8), mlp_head(64, 64, 16))
        >>> encoder(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 16])
        >>> encoder.features(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 64])
    """

    def __init__(self, backbone: nn.Module, head: nn.Module, *, feature_dim: int | None = None) -> None:
        super().__init__()
        feature_dim = getattr(backbone, "feature_dim", None) if feature_dim is None else feature_dim
        if not isinstance(feature_dim, int):
            raise ConfigError(
                f"the backbone {type(backbone).__name__} must have an integer attribute feature_dim, got "
                f"{feature_dim!r}; set it to the length of its output, or give Encoder(…, feature_dim=…)"
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

    def features(self, batch: Any) -> Tensor:
        """Features `(batch, feature_dim)`, not normalised."""
        features: Tensor = self.backbone(batch)
        return features

    def forward(self, batch: Any, *, with_features: bool = False, raw: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Embeddings `(batch, dim)` of unit length, at least in float32; a head's output of zero stays zero.

        Args:
            batch: what the network takes: a tensor, or a dict of tensors, with a row for every sample.
            with_features: return `(embeddings, features)`, which also works through DDP and other wrappers that only
                know `forward`.
            raw: return what the head gives, for a classifier.
        """
        features = self.features(batch)
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


def feature_width(backbone: nn.Module, batch: Any) -> int:
    """Length of the features a network gives: what it says itself, or what a dry forward shows.

    Args:
        backbone: any module.
        batch: a batch as it will get them, on its device.
    """
    said = getattr(backbone, "feature_dim", None)
    if isinstance(said, int):
        return said
    training = backbone.training
    backbone.eval()  # a dry run must leave no trace in running statistics
    try:
        with torch.no_grad():
            found = backbone(batch)
    except Exception as error:  # whatever a network of others raises
        raise ConfigError(
            f"the network {type(backbone).__name__} cannot take a test batch of this source, {shapes_of(batch)} "
            f"({type(error).__name__}: {error}); let a transform make what it takes, and test_transform too"
        ) from error
    finally:
        backbone.train(training)
    if not isinstance(found, Tensor) or found.ndim != 2 or not found.is_floating_point():
        what = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise ConfigError(
            f"the network {type(backbone).__name__} must give a matrix (batch, features), and gives {what}; wrap it in "
            "a module that pools or takes out the features"
        )
    return found.shape[1]


def take_lone_samples(network: nn.Module) -> bool:
    """Lets batch normalisation train on one sample: one value of a channel has no variance, and torch refuses it.

    Such a layer normalises such a batch by its running statistics, which stay as they are. Nothing else changes.

    Returns:
        Whether there is such a layer.
    """
    norms = [each for each in network.modules() if isinstance(each, nn.modules.batchnorm._BatchNorm) and each.training]
    for norm in norms:
        norm.register_forward_pre_hook(_judge_lone_sample)
        norm.register_forward_hook(_train_again, always_call=True)
    return bool(norms)


def _judge_lone_sample(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    values = inputs[0]
    if norm.training and values.numel() == values.shape[1]:
        norm.lone, norm.training = True, False  # type: ignore[assignment]


def _train_again(norm: nn.Module, *_: Any) -> None:
    if norm.__dict__.pop("lone", False):
        norm.training = True


def shapes_of(batch: Any) -> str:
    """What a batch looks like, for a person."""
    if isinstance(batch, dict):
        return ", ".join(f"{name}: {shapes_of(each)}" for name, each in batch.items())
    return f"{str(batch.dtype).removeprefix('torch.')} {tuple(batch.shape)}"
