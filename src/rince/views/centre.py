"""What testing sees of an image: the whole resized, and of that the centre. Only the centre is ever computed.

An image larger than the view keeps some room around the centre: its shorter side is brought to 256/224 of the size. One
that is not larger has nothing to spare: its shorter side is brought to the size itself.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

ROOM = 256 / 224  # ImageNet's: 256 pixels resized, 224 seen


def resized_sides(height: int, width: int, size: int) -> tuple[int, int]:
    """Height and width that an image is resized to before the centre of `size` is cut out."""
    shorter = min(height, width)
    target = round(size * ROOM) if shorter > size else size
    return height * target // shorter, width * target // shorter


def resized_centre(pixels: Tensor, size: int) -> Tensor:
    """`(…, height, width)` → `(…, size, size)` float32, bilinear and antialiased, on the device of the pixels.

    A product with a matrix for either side: of a picture of 1 × 10,000 pixels nobody needs the rest.
    """
    height, width = pixels.shape[-2:]
    high, wide = resized_sides(height, width, size)
    rows, down = _shares(height, high, size)
    columns, across = _shares(width, wide, size)
    seen = pixels[..., rows, columns].to(torch.float32)
    if high != height:
        seen = down.to(seen.device) @ seen
    if wide != width:
        seen = seen @ across.T.to(seen.device)
    return seen


def _shares(length: int, resized: int, size: int) -> tuple[slice, Tensor]:
    """The pixels that the centre needs along one side, and `(size, pixels)` what each gives: a triangle around each."""
    scale = length / resized
    start = round((resized - size) / 2)  # as torchvision's `CenterCrop` rounds it
    reach = max(scale, 1)
    places = (torch.arange(start, start + size, dtype=torch.float64) + 0.5) * scale
    first = max(0, math.floor(float(places[0]) - reach + 0.5))
    last = min(length, math.ceil(float(places[-1]) + reach - 0.5) + 1)
    if resized == length:
        first, last = start, start + size
    away = (torch.arange(first, last, dtype=torch.float64) + 0.5 - places[:, None]).abs()
    shares = (1 - away / reach).clamp(min=0)
    return slice(first, last), (shares / shares.sum(dim=1, keepdim=True)).to(torch.float32)
