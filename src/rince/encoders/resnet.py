"""Residual networks for images and clips: ResNet-18, 34 and 50, and narrow ones for small machines.

Deep Residual Learning for Image Recognition, He et al., CVPR 2016. A bottleneck that shrinks its input does so in its
3×3 convolution. For clips every convolution has one dimension more (3D-ResNet, Hara et al., CVPR 2018); the stem keeps
the number of frames, and time shrinks with height and width from there on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from rince.checks import check_choice
from rince.config import ModelSettings
from rince.errors import ConfigError, ShapeError

Stem = Literal["small", "small-stride2", "imagenet"]
Norm = Literal["batch", "group"]
Dims = Literal[2, 3]
Conv = nn.Conv2d | nn.Conv3d
NARROW = 16  # channels below which torch 2.13 crashes (oneDNN 3.12): see `_Block`


class ResNetModel(ModelSettings):
    """`model.kind=resnet`: from scratch, for images; 3D for clips."""

    kind: Literal["resnet"] = "resnet"
    depth: Literal[10, 18, 34, 50] = Field(50, description="layers; 50 has bottlenecks, 10 one block per stage")
    width: PositiveInt = Field(64, description="channels of the first stage; each of the four stages doubles them")
    stem: Stem = Field(
        "small", description="small: 3×3, stride 1 (CIFAR); small-stride2: a quarter of the work; imagenet: 7×7, pooled"
    )
    norm: Norm = Field("batch", description="batch, or group: a feature does not depend on the rest of its batch")
    channels_last: bool = Field(True, description="layout of images in memory, faster on CPUs and new GPUs")

    @property
    def tries_steps(self) -> bool:
        """A first step of a large network can take minutes and all memory of a machine that will not train it."""
        return False

    def build(self, shape: Sequence[int]) -> ResNet:
        """For images or clips of this shape."""
        if len(shape) not in (3, 4):
            raise ConfigError(
                f"model.kind=resnet takes images or clips, and a sample here has the shape {tuple(shape)}; use "
                "model.kind=adapter for vectors, sentence-transformers or huggingface for texts"
            )
        dims: Dims = 2 if len(shape) == 3 else 3
        network = resnet(self.depth, width=self.width, channels=shape[0], stem=self.stem, norm=self.norm, dims=dims)
        if self.channels_last:
            network.to(memory_format=torch.channels_last if dims == 2 else torch.channels_last_3d)  # type: ignore[call-overload]
        return network


def _norm(norm: Norm, channels: int, dims: Dims) -> nn.Module:
    if norm == "batch":
        return nn.BatchNorm2d(channels) if dims == 2 else nn.BatchNorm3d(channels)
    # As many groups as divide the channels, at most eight, each of two channels or more where that can be.
    groups = max(n for n in range(1, 9) if channels % n == 0 and (n == 1 or channels >= 2 * n))
    return nn.GroupNorm(groups, channels)


class _ClipConv(nn.Conv3d):
    """A convolution of clips that is right in bfloat16 on CPUs, too.

    There, where a clip has fewer frames than the kernel, torch 2.13 (oneDNN 3.12) leaves results as the memory was:
    with AVX-512, of two frames or more, the gradient of weights (and writes beyond it); with AMX, of one frame in few
    channels, the maps themselves. Frames of zeros change nothing.
    """

    def forward(self, maps: Tensor) -> Tensor:
        frames, kernel = maps.shape[2], self.kernel_size[0]
        if frames >= kernel or not _in_bfloat16_on_cpu(maps):
            return super().forward(maps)
        made = (frames - 1) // self.stride[0] + 1
        return super().forward(F.pad(maps, (0, 0, 0, 0, 0, kernel - frames)))[:, :, :made]


def _in_bfloat16_on_cpu(maps: Tensor) -> bool:
    cast = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16
    return maps.device.type == "cpu" and (cast or maps.dtype == torch.bfloat16)


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1, *, dims: Dims) -> Conv:
    kind = nn.Conv2d if dims == 2 else _ClipConv
    return kind(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


class _Block(nn.Module):
    """Adds what its branch computes to its input, which a 1×1 convolution fits to the branch where shapes differ.

    With few channels the input is thinned out before that convolution, not by it, which is the same: on CPUs with
    AVX-512, the gradient of a narrow one that strides reads beyond its memory if channels come last.
    """

    growth: int  # output channels per unit of width

    def __init__(self, layers: Sequence[Conv], *, inputs: int, stride: int, norm: Norm, dims: Dims) -> None:
        super().__init__()
        outputs = layers[-1].out_channels
        self.convs = nn.ModuleList(layers)
        self.norms = nn.ModuleList(_norm(norm, layer.out_channels, dims) for layer in layers)
        self.shortcut = nn.Sequential()
        thinning = stride if inputs < NARROW else 1
        self.thinned = (slice(None), slice(None), *[slice(None, None, thinning)] * dims)
        if stride != 1 or inputs != outputs:
            fitting = _conv(inputs, outputs, 1, stride // thinning, dims=dims)
            self.shortcut = nn.Sequential(fitting, _norm(norm, outputs, dims))

    def forward(self, maps: Tensor) -> Tensor:
        """`(batch, inputs, [time,] height, width)` to outputs with each of the latter divided by the stride."""
        branch = maps
        last = len(self.convs) - 1
        for index, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            branch = norm(conv(branch))
            if index < last:
                branch = F.relu(branch, inplace=True)
        branch += self.shortcut(maps[self.thinned])
        return F.relu(branch, inplace=True)


class _BasicBlock(_Block):
    """Two 3×3 convolutions; the first one strides."""

    growth = 1

    def __init__(self, inputs: int, width: int, *, stride: int, norm: Norm, dims: Dims) -> None:
        layers = [_conv(inputs, width, 3, stride, dims=dims), _conv(width, width, 3, dims=dims)]
        super().__init__(layers, inputs=inputs, stride=stride, norm=norm, dims=dims)


class _Bottleneck(_Block):
    """A 1×1, a 3×3 and a 1×1 convolution; the middle one strides, the last one widens four times."""

    growth = 4

    def __init__(self, inputs: int, width: int, *, stride: int, norm: Norm, dims: Dims) -> None:
        layers = [
            _conv(inputs, width, 1, dims=dims),
            _conv(width, width, 3, stride, dims=dims),
            _conv(width, 4 * width, 1, dims=dims),
        ]
        super().__init__(layers, inputs=inputs, stride=stride, norm=norm, dims=dims)


_DEPTHS: dict[int, tuple[type[_BasicBlock] | type[_Bottleneck], tuple[int, ...]]] = {
    10: (_BasicBlock, (1, 1, 1, 1)),
    18: (_BasicBlock, (2, 2, 2, 2)),
    34: (_BasicBlock, (3, 4, 6, 3)),
    50: (_Bottleneck, (3, 4, 6, 3)),
}


class ResNet(nn.Module):
    """A residual network up to and including global average pooling; made by `resnet`, which explains the arguments.

    Attributes:
        feature_dim: length of a feature.
        channels: channels that an image must have.
        dims: 2 for images, 3 for clips.
    """

    def __init__(
        self,
        block: type[_BasicBlock] | type[_Bottleneck],
        blocks: Sequence[int],
        *,
        width: int,
        channels: int,
        stem: Stem,
        norm: Norm,
        dims: Dims,
    ) -> None:
        super().__init__()
        self.channels, self.dims = channels, dims
        self.stem = _stem(stem, channels, width, norm, dims)
        self.stages = nn.Sequential()
        inputs = width
        for stage, count in enumerate(blocks):
            stage_width = width * 2**stage
            layers = nn.Sequential()
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                layers.append(block(inputs, stage_width, stride=stride, norm=norm, dims=dims))
                inputs = stage_width * block.growth
            self.stages.append(layers)
        self.feature_dim = inputs
        for module in self.modules():
            if isinstance(module, Conv):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Images or clips `(batch, channels, [time,] height, width)` to features `(batch, feature_dim)`."""
        if images.ndim != self.dims + 2 or images.shape[1] != self.channels:
            what, time = ("images", "") if self.dims == 2 else ("clips", "time, ")
            raise ShapeError(
                f"{what} must have the shape (batch, {self.channels}, {time}height, width): got "
                f"{tuple(images.shape)}; bring them into that order, or build the network with other channels"
            )
        if not images.is_floating_point():
            raise ShapeError(f"images must be floating point, got {images.dtype}; scale and normalise them first")
        maps: Tensor = self.stages(self.stem(images))
        return maps.mean(dim=tuple(range(2, maps.ndim)))


def _stem(stem: Stem, channels: int, width: int, norm: Norm, dims: Dims) -> nn.Sequential:
    conv = _conv(channels, width, 7 if stem == "imagenet" else 3, stride=1 if stem == "small" else 2, dims=dims)
    if isinstance(conv, nn.Conv3d):
        conv.stride = (1, *conv.stride[1:])  # a clip has few frames: all of them go on
    layers = nn.Sequential(conv, _norm(norm, width, dims), nn.ReLU(inplace=True))
    if stem == "imagenet":
        layers.append((nn.MaxPool2d if dims == 2 else nn.MaxPool3d)(3, stride=2, padding=1))
    return layers


def resnet(
    depth: int,
    *,
    width: int = 64,
    channels: int = 3,
    stem: Stem = "small",
    norm: Norm = "batch",
    dims: Dims = 2,
) -> ResNet:
    """A residual network with fresh weights: Kaiming normal (fan-out), residual branches not started at zero.

    Args:
        depth: 18 and 34 have basic blocks, 50 has bottlenecks, 10 has one basic block per stage.
        width: channels of the first stage; each of the four stages doubles them. 64 is the paper's.
        channels: channels of an image.
        stem: `"small"`: 3×3 convolution, stride 1 (CIFAR). `"small-stride2"`: 3×3, stride 2, a quarter of the work.
            `"imagenet"`: 7×7, stride 2, and max-pooling, which halves the image again.
        norm: `"batch"`, or `"group"`, with which an image's feature does not depend on the rest of its batch.
        dims: 2 for images; 3 for clips, `(batch, channels, time, height, width)`.

    Example:
        >>> import torch
        >>> network = resnet(10, width=8, stem="small-stride2")
        >>> network(torch.zeros(2, 3, 32, 32)).shape, network.feature_dim
        (torch.Size([2, 64]), 64)
    """
    if depth not in _DEPTHS:
        raise ConfigError(f"depth must be one of {', '.join(map(str, _DEPTHS))}; got {depth!r}")
    check_choice("stem", stem, Stem)
    check_choice("norm", norm, Norm)
    check_choice("dims", dims, Dims)
    if width < 1:
        raise ConfigError(f"width must be at least 1, got {width}; 64 is the paper's")
    if channels < 1:
        raise ConfigError(f"channels must be at least 1, got {channels}; colour images have 3")
    block, blocks = _DEPTHS[depth]
    return ResNet(block, blocks, width=width, channels=channels, stem=stem, norm=norm, dims=dims)
