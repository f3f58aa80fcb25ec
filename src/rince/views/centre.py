"""What testing sees of an image: the whole resized, and of that the centre. Only the centre is ever computed.

An image larger than the view keeps some room around the centre: its shorter side is brought to 256/224 of the size. One
that is not larger has nothing to spare: its shorter side is brought to the size itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROOM = 256 / 224  # ImageNet's: 256 pixels resized, 224 seen


def resized_sides(height: int, width: int, size: int) -> tuple[int, int]:
    """Height and width that an image is resized to before the centre of `size` is cut out."""
    shorter = min(height, width)
    target = round(size * ROOM) if shorter > size else size
    return height * target // shorter, width * target // shorter


def centre_of_tensor(pixels: Tensor, size: int) -> Tensor:
    """`(…, height, width)` floats → `(…, size, size)`, bilinear and antialiased, on the device of the pixels."""
    height, width = pixels.shape[-2:]
    high, wide = resized_sides(height, width, size)
    if high != height:
        pixels = _shares(height, high, size, pixels.device) @ pixels
    if wide != width:
        pixels = pixels @ _shares(width, wide, size, pixels.device).T
    top, left = (_start(side, size) if side > size else 0 for side in pixels.shape[-2:])
    return pixels[..., top : top + size, left : left + size]


def centre_box(height: int, width: int, size: int) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of what the centre shows, in pixels of the image."""
    high, wide = resized_sides(height, width, size)
    top, left = _start(high, size), _start(wide, size)
    return left * width / wide, top * height / high, (left + size) * width / wide, (top + size) * height / high


def _start(side: int, size: int) -> int:
    """Where the centre begins, rounded as torchvision's `CenterCrop` does."""
    return round((side - size) / 2)


def _shares(length: int, resized: int, size: int, device: torch.device) -> Tensor:
    """`(size, length)`: what every pixel gives to those of the centre along one side, a triangle around each."""
    scale = length / resized
    places = (torch.arange(size, dtype=torch.float64) + _start(resized, size) + 0.5) * scale
    away = (torch.arange(length, dtype=torch.float64) + 0.5 - places[:, None]).abs()
    shares = (1 - away / max(scale, 1)).clamp(min=0)
    return (shares / shares.sum(dim=1, keepdim=True)).to(torch.float32).to(device)
