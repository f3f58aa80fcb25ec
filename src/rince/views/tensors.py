"""Views by tensor operations, on any device; `views.kernel` does the same on the CPU, many times as fast.

Each operation is applied to the whole batch and kept for the samples that are to have it: more work than choosing them
first, but nothing to wait for between the host and a device. Products and sums are separate steps, and means are added
up in a way that no order can change, so that a sample gets the same pixels in any batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rince.devices import constant, has_float64

IDENTITY = (1.0, 1.0, 1.0, 0.0)  # the factors of brightness, contrast, saturation and hue that change nothing
LUMA = (0.299, 0.587, 0.114)  # how bright red, green and blue are to the eye
OWN_HUES = (0.0, 2.0, 4.0)  # theirs, in sixths of a turn


class ViewParameters(NamedTuple):
    """What one view does to each sample of a batch."""

    boxes: Tensor
    """`(batch, 4)` int64: top, left, height and width of the crop, in pixels."""
    flip: Tensor
    """`(batch,)` bool: mirrored left to right."""
    order: Tensor
    """`(batch, 4)` int64: 0 brightness, 1 contrast, 2 saturation, 3 hue, in the order they are applied."""
    factors: Tensor
    """`(batch, 4)` float32: factors of the first three, shift of the hue in turns; (1, 1, 1, 0) changes nothing."""
    grayscale: Tensor
    """`(batch,)` bool: all colour taken out."""

    def to(self, device: torch.device | str) -> ViewParameters:
        """The same on another device."""
        return ViewParameters(*(tensor.to(device) for tensor in self))


def joined(parts: Sequence[ViewParameters]) -> ViewParameters:
    """The parameters of several batches as those of one."""
    return ViewParameters(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def make_views(images: Tensor, parameters: ViewParameters, mean: Tensor, std: Tensor, size: int) -> Tensor:
    """Images `(batch, channels, time, height, width)` uint8 to views `(batch, channels, time, size, size)`."""
    boxes, flip, order, factors, grayscale = parameters
    batch, channels, time = images.shape[:3]
    pixels = _crop(images.flatten(1, 2), boxes, flip, size).view(batch, channels, time, size * size)
    operations = OPERATIONS if channels == 3 else OPERATIONS[:2]  # a gray image has neither saturation nor hue
    for step in order.unbind(1):
        for kind, operation in enumerate(operations):
            changes = (step == kind) & (factors[:, kind] != IDENTITY[kind])
            changed = operation(pixels, factors[:, kind, None, None, None])
            pixels = torch.where(changes[:, None, None, None], changed, pixels)
    pixels = torch.where(grayscale[:, None, None, None], _luma(pixels), pixels)
    pixels = (pixels - mean.view(-1, 1, 1)) / std.view(-1, 1, 1)
    return pixels.view(batch, channels, time, size, size)


def _crop(images: Tensor, boxes: Tensor, flip: Tensor, size: int) -> Tensor:
    """The boxes of `(batch, planes, height, width)`, brought to `(batch, planes, size, size)` from 0 to 1, bilinear."""
    planes, width = images.shape[1], images.shape[3]
    top, left, high, wide = boxes.to(torch.float32)[:, :, None].unbind(1)
    centres = (torch.arange(size, device=images.device, dtype=torch.float32) + 0.5) / size
    above, below, down = (x[:, None, :, None] for x in _neighbours(centres, top, high))
    centres = torch.where(flip[:, None], centres.flip(0), centres)
    before, after, across = (x[:, None, None, :] for x in _neighbours(centres, left, wide))
    upper, lower = (images.gather(2, y.expand(-1, planes, -1, width)).float() for y in (above, below))
    rows = upper * ((1 - down) / 255) + lower * (down / 255)
    start, end = (rows.gather(3, x.expand(-1, planes, size, -1)) for x in (before, after))
    return (start + (end - start) * across).clamp(max=1)


def _neighbours(centres: Tensor, start: Tensor, length: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The two pixels of the image between which each pixel of the view lies, and the share of the second.

    Pixel i of `size` has its centre at (i + ½)/size of the box. Centres outside those of the outermost pixels of the
    box move onto them, as if the box had been cut out first: nothing from beyond it shows.
    """
    at = start + torch.minimum((centres * length - 0.5).clamp(min=0), length - 1)
    first = at.floor()
    return first.long(), at.ceil().long(), at - first


def _brighten(pixels: Tensor, factor: Tensor) -> Tensor:
    return (pixels * factor).clamp(0, 1)


def _contrast(pixels: Tensor, factor: Tensor) -> Tensor:
    """Towards the mean of each frame, or away from it."""
    return (pixels * factor + _exact_mean(_luma(pixels)) * (1 - factor)).clamp(0, 1)


def _saturate(pixels: Tensor, factor: Tensor) -> Tensor:
    return (pixels * factor + _luma(pixels) * (1 - factor)).clamp(0, 1)


def _turn_hue(pixels: Tensor, turns: Tensor) -> Tensor:
    """The hue of HSV moved by a part of a turn; value and saturation stay.

    Both stay if the largest and the smallest channel do. In sixths of a turn, a channel is at its largest up to 1 from
    its own hue (red 0, green 2, blue 4), at its smallest from 2 on, and linear between; so the hue is 1 + (green + blue
    - red - smallest) / (largest - smallest) from red, towards green or blue. From a channel's own hue it is 3 less the
    distance from the opposite one, which is turned the other way, in place of the pixels, from -3 to 3 like them.
    """
    opposite = torch.remainder(constant(OWN_HUES, pixels.device).view(3, 1, 1) - 6 * turns, 6) - 3
    red, green, blue = pixels.chunk(3, dim=1)
    largest, smallest = pixels.amax(dim=1, keepdim=True), pixels.amin(dim=1, keepdim=True)
    spread = (largest - smallest).clamp(min=1e-30)  # 0 in gray pixels
    hue = ((green + blue - red - smallest) / spread + 1).copysign(green - blue)
    distance = ((hue - opposite).abs() - 3).abs().clamp(1, 2)
    return largest + spread - distance * spread


OPERATIONS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (_brighten, _contrast, _saturate, _turn_hue)


def _luma(pixels: Tensor) -> Tensor:
    """`(batch, channels, time, n)` → `(batch, 1, time, n)`."""
    if pixels.shape[1] == 1:
        return pixels
    red, green, blue = pixels.chunk(3, dim=1)
    return red * LUMA[0] + green * LUMA[1] + blue * LUMA[2]


def _exact_mean(values: Tensor) -> Tensor:
    """Mean over the last axis of numbers between 0 and 1, the same in any order of adding.

    Between 1 and 2, float32 numbers are multiples of 2⁻²³; float64 adds up to 2³⁰ of those without rounding. Where
    there is no float64, int64 counts them; the mean then differs in the last bit at most.
    """
    if not has_float64(values.device):
        number = values.shape[-1]
        total = ((values + 1) * 2**23).long().sum(dim=-1, keepdim=True) - number * 2**23
        return (total // number + (total % number).float() / number) * 2.0**-23
    total = (values + 1).double().sum(dim=-1, keepdim=True)
    return (total / values.shape[-1] - 1).to(torch.float32)
