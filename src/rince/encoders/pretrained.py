"""Networks that know something already: what all kinds of them have in common.

`model.tune` says how much of one is trained. With `adapter` it is frozen: it runs once over every sample, what it makes
is kept in the cache, and an adapter is trained on these vectors. With `all` it is finetuned with everything else.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from rince.encoders.adapter import AdaptedModel, Adapter
from rince.encoders.encoder import Encoder, shapes_of
from rince.encoders.features import Features, FeatureSettings
from rince.encoders.known import Facts, Loaded, count
from rince.errors import ConfigError
from rince.sources.part import Part
from rince.sources.source import Source
from rince.views.pixels import PixelViewSettings


@dataclass(frozen=True, eq=False, kw_only=True)
class Network(Facts):
    """A network, whose weights are loaded when they are asked for.

    Attributes:
        load: gives the network with its weights, always the same.
        fit: a source to one whose batches the module takes.
        about: in a few words, for a person.
        at_once: samples that it gets at a time.
    """

    load: Callable[[], Loaded]
    fit: Callable[[Source], Source]
    about: str
    at_once: int = 64

    @property
    def module(self) -> nn.Module:
        """A batch to features `(batch, width)`; not to be trained itself, `PretrainedModel.build` copies it."""
        return self.load().module

    @property
    def tokeniser(self) -> Any:
        """Of a network for texts: the library's, which can write its files."""
        return self.load().tokeniser


def at_hand(
    module: nn.Module, width: int, identity: str, fit: Callable[[Source], Source], about: str, at_once: int = 64
) -> Network:
    """A network that is loaded already."""
    facts = Facts(identity=identity, width=width, parameters=count(module))
    return Network(**vars(facts), load=lambda: Loaded(facts, module), fit=fit, about=about, at_once=at_once)


class PretrainedModel(AdaptedModel):
    """Settings of all kinds: which network, and how much of it is trained."""

    tune: Literal["adapter", "all"] = Field(
        "adapter",
        description="adapter: the network is frozen, runs once over every sample, and an adapter is trained on what it "
        "makes; all: everything is trained, the network at optimizer.backbone_lr",
    )
    features: FeatureSettings = Field(
        FeatureSettings(), description="with tune=adapter: how the features of a sample vary from view to view"
    )
    batch_norm: Literal["frozen", "trained"] = Field(
        "frozen", description="with tune=all: whether batch normalisation keeps its statistics and weights"
    )

    @property
    @abstractmethod
    def network(self) -> Network:
        """The network, the same all through a process."""

    @property
    def idle(self) -> set[str]:
        """What the other choice of `tune` would have."""
        return {"batch_norm"} if self.tune == "adapter" else {"hidden", "standardise", "features"}

    @model_validator(mode="after")
    def _no_setting_that_does_nothing(self) -> PretrainedModel:
        for name in sorted(self.idle):
            if getattr(self, name) != type(self).model_fields[name].get_default(call_default_factory=True):
                raise ValueError(f"{name} does nothing with tune={self.tune}; leave it out")
        return self

    @property
    def identity(self) -> str:
        """Of the network: a run must not be looked at with other weights than it was trained on."""
        return self.network.identity

    @property
    def starts_from_weights(self) -> bool:
        """The network does where it is trained; an adapter, where it starts from a run."""
        return self.tune == "all" or self.start_from is not None

    def prepare(self, source: Source, views: Any, *, facts: dict[str, Any], seed: int) -> Source:
        """What is trained on: with `adapter` the features of the samples, else what the network takes."""
        whole = source.whole if isinstance(source, Part) else source
        fitted = self.network.fit(whole)
        if self.tune == "adapter":
            if self.features.views and not getattr(fitted, "views_differ", True):
                raise ConfigError(
                    f"model.features.views={self.features.views} would all be the same: a frozen network has no "
                    f"dropout, so views of a {source.thing} differ only by the words left out; set views.word_dropout, "
                    "such as 0.1, or model.features.views=0 (views by dropout are those of model.tune=all)"
                )
            fitted = Features(
                fitted,
                self.network,
                self.features,
                seed=seed,
                standardise=self.standardise,
                seen=facts,
                drawn=views.model_dump(mode="json") if self.features.views else {},
                measured=source.part_rows if isinstance(source, Part) else None,
            )
        if isinstance(source, Part):  # features are made and kept of the whole
            return Part(fitted, source.part_rows, source.set_aside)
        return fitted

    def whole(self, encoder: Encoder) -> Encoder:
        """From samples to embeddings: an adapter comes after a copy of the network that it was trained on."""
        if self.tune == "all":
            return encoder
        return Encoder(Adapted(copy.deepcopy(self.network.module), encoder.backbone), encoder.head)

    def build(self, shape: Sequence[int]) -> nn.Module:
        """The adapter, or a copy of the network that is trained."""
        if self.tune == "adapter":
            return Adapter(shape[0], self.hidden, standardise=self.standardise)
        return Finetuned(
            copy.deepcopy(self.network.module), self.network.width, frozen_norm=self.batch_norm == "frozen"
        )


class Finetuned(nn.Module):
    """A pretrained network that is trained on.

    Args:
        network: a batch to features.
        width: of a feature.
        frozen_norm: keep batch normalisation as it is, statistics and weights.
    """

    def __init__(self, network: nn.Module, width: int, *, frozen_norm: bool) -> None:
        super().__init__()
        self.network, self.feature_dim, self.frozen_norm = network, width, frozen_norm
        network.requires_grad_(True)
        for norm in self._norms() if frozen_norm else ():
            norm.requires_grad_(False)
        self.train()  # a network is loaded in the state of testing, without dropout

    def forward(self, batch: Any) -> Any:
        """What the network makes of a batch."""
        return self.network(batch)

    def train(self, mode: bool = True) -> Finetuned:
        """All but frozen normalisation."""
        super().train(mode)
        for norm in self._norms() if self.frozen_norm else ():
            norm.eval()
        return self

    def _norms(self) -> list[nn.Module]:
        return [each for each in self.network.modules() if isinstance(each, nn.modules.batchnorm._BatchNorm)]


class Adapted(nn.Module):
    """A frozen network, and the adapter of its features.

    Args:
        network: a batch to features.
        adapter: features to features.
    """

    def __init__(self, network: nn.Module, adapter: nn.Module) -> None:
        super().__init__()
        self.network, self.adapter, self.feature_dim = network, adapter, adapter.feature_dim

    def forward(self, batch: Any) -> Any:
        """What the adapter makes of what the network makes of a batch."""
        return self.adapter(self.network(batch).float())  # as features are kept, whatever the network computes in


class PretrainedImages(PretrainedModel):
    """Settings of networks for images: size, mean and std of a view are the network's own where the recipe has none."""

    standardise: bool = Field(True, description="shift and scale every coordinate of the features first")

    @abstractmethod
    def input_of(self) -> tuple[int, Sequence[float], Sequence[float]]:
        """Pixels of a side, mean and std of the images that the network was trained on."""

    def fit_views(self, views: Any) -> Any:
        """Size, mean and std filled in."""
        if not isinstance(views, PixelViewSettings):
            raise ConfigError(f"model.kind={self.kind} takes images; choose another for this kind of data")
        size, mean, std = self.input_of()
        return views.filled(size, mean, std)


def takes_images(source: Source) -> Source:
    """A source of images in colour, as it is."""
    if len(source.shape) != 3 or source.shape[0] != 3:
        looks = f" of the shape {source.shape}" if source.shape else ""
        gray = ", or for images in gray give views.mean and views.std three numbers" if len(source.shape) == 3 else ""
        raise ConfigError(
            f"the network takes images in colour, and {source.source!r} holds {source.thing}s{looks}; choose another "
            f"model{gray}"
        )
    return source


@torch.inference_mode()
def width_of(module: nn.Module, batch: Any, name: str) -> int:
    """Length of the features of a network, as a dry forward shows it; refuses what gives no matrix.

    Args:
        module: in the state of testing.
        batch: as it will get them.
        name: of the network, for messages.
    """
    try:
        found = module(batch)
    except ConfigError:
        raise
    except Exception as error:  # whatever a network raises
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"model.name={name} cannot take {shapes_of(batch)} ({reason[:200]})") from None
    if not isinstance(found, Tensor) or found.ndim != 2:
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ConfigError(f"model.name={name} must give a matrix (batch, features), and gives {shape}; take another")
    return found.shape[1]
