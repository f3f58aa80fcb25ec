"""Views on the CPU: every image goes through crop, jitter and normalisation in one piece, while it is in the cache.

Compiled by numba on first use (about three seconds, kept in the user's cache). Tensor operations,
which see the whole batch once for every step, took 13 ms for 512 images of 32 × 32 when they were arranged for one
core; this takes 2.5 (AMD EPYC, torch 2.13). Those of `views.tensors` are arranged for devices that start them slowly.

Indices are unsigned where they come from memory: numba looks at every signed one for being negative, which made the
crop five times as slow.
"""

from __future__ import annotations

import itertools
import threading

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rince.views.kept_code import compiled
from rince.views.tensors import ViewParameters

Floats = NDArray[np.float32]
Indices = NDArray[np.uint32]

# Constants of the pixels' own precision: a plain Python number would make everything float64.
single = np.float32
ZERO, HALF, ONE, TWO, THREE, FOUR, SIX, WHITE = (single(x) for x in (0, 0.5, 1, 2, 3, 4, 6, 255))
RED, GREEN, BLUE = single(0.299), single(0.587), single(0.114)  # how bright they are to the eye
TINY = single(1e-30)
STEPS_TO_ONE = single(2**23)  # float32 numbers from 1 to 2 are multiples of its inverse
# Values to make (a millisecond's work) that pay for another thread. Right after a step of training torch's own threads
# still hold the other cores: there, two threads took 8.9 ms for two views of 256 images of 32 × 32, one took 6.6.
ENOUGH = 1 << 19


def make_views(images: Tensor, parameters: ViewParameters, mean: Tensor, std: Tensor, size: int) -> Tensor:
    """Images `(batch, channels, time, height, width)` uint8 to views `(batch, channels, time, size, size)`.

    The cores that torch uses share the batch, if there is enough for each.
    """
    views = torch.empty(*images.shape[:-2], size, size)
    cores = max(1, min(torch.get_num_threads(), len(images), views.numel() // ENOUGH))
    arrays = [tensor.contiguous().numpy() for tensor in (images, *parameters, mean, std)]
    out = views.view(*images.shape[:3], size * size).numpy()
    ends = [len(images) * core // cores for core in range(cores + 1)]
    # New threads each time: a pool would not survive the fork of a process.
    threads = [
        threading.Thread(target=_make_some, args=(*arrays, out, first, last))
        for first, last in itertools.pairwise(ends[1:])
    ]
    for thread in threads:
        thread.start()
    _make_some(*arrays, out, 0, ends[1])
    for thread in threads:
        thread.join()
    return views


@compiled
def _make_some(
    images: NDArray[np.uint8],
    boxes: NDArray[np.int64],
    flip: NDArray[np.bool_],
    order: NDArray[np.int64],
    factors: Floats,
    grayscale: NDArray[np.bool_],
    mean: Floats,
    std: Floats,
    views: Floats,
    first: int,
    last: int,
) -> None:
    """The views from `first` to `last`."""
    channels, time, height, width = images.shape[1:]
    size = int(np.sqrt(views.shape[3]))
    row, rows = np.empty(width, np.float32), np.empty((height, size), np.float32)
    left_of, right_of, across = np.empty(size, np.uint32), np.empty(size, np.uint32), np.empty(size, np.float32)
    above, below, down = np.empty(size, np.uint32), np.empty(size, np.uint32), np.empty(size, np.float32)
    for i in range(first, last):
        top, left, high, wide = boxes[i]
        _find_neighbours(left, wide, flip[i], left_of, right_of, across)
        _find_neighbours(top, high, False, above, below, down)
        for t in range(time):
            for c in range(channels):
                for y in range(np.uint32(top), np.uint32(top + high)):
                    _resize_row(images[i, c, t, y], row, left_of, right_of, across, rows[y])
                _mix_rows(rows, above, below, down, views[i, c, t])
            if channels == 3:
                _recolour(views[i, 0, t], views[i, 1, t], views[i, 2, t], order[i], factors[i], grayscale[i])
            else:
                _relight(views[i, 0, t], order[i], factors[i])
            for c in range(channels):
                _normalise(views[i, c, t], mean[c], std[c])


@compiled
def _find_neighbours(start: int, length: int, flip: bool, before: Indices, after: Indices, share: Floats) -> None:
    """The two pixels of the image between which each pixel of the view lies, and the share of the second.

    Pixel i of `size` has its centre at (i + ½)/size of the box. Centres outside those of the outermost pixels of the
    box move onto them, as if the box had been cut out first: nothing from beyond it shows.
    """
    size = share.size
    for i in range(size):
        at = (single(i) + HALF) / single(size) * single(length) - HALF
        at = min(max(at, ZERO), single(length - 1))
        whole = int(at)
        place = size - 1 - i if flip else i
        before[place], after[place] = start + whole, start + min(whole + 1, length - 1)
        share[place] = at - single(whole)


@compiled
def _resize_row(
    pixels: NDArray[np.uint8], row: Floats, before: Indices, after: Indices, share: Floats, out: Floats
) -> None:
    for x in range(row.size):
        row[x] = single(pixels[x])
    for x in range(out.size):
        value = row[before[x]]
        out[x] = value + (row[after[x]] - value) * share[x]


@compiled
def _mix_rows(rows: Floats, above: Indices, below: Indices, share: Floats, plane: Floats) -> None:
    """Rows of the image to those of the view, from 0 to 1."""
    size = share.size
    for y in range(size):
        upper, lower, out = rows[above[y]], rows[below[y]], plane[y * size : (y + 1) * size]
        part = share[y] / WHITE
        rest = (ONE - share[y]) / WHITE
        for x in range(size):
            value = upper[x] * rest + lower[x] * part
            out[x] = value if value < ONE else ONE


@compiled
def _recolour(
    red: Floats, green: Floats, blue: Floats, order: NDArray[np.int64], factors: Floats, grayscale: bool
) -> None:
    """Brightness, contrast, saturation and hue in this order, then grayscale; factors (1, 1, 1, 0) change nothing."""
    for step in order:
        factor = factors[step]
        if step == 0 and factor != ONE:
            for plane in (red, green, blue):
                _scale(plane, factor, ZERO)
        elif step == 1 and factor != ONE:
            shift = _mean_luma(red, green, blue) * (ONE - factor)
            for plane in (red, green, blue):
                _scale(plane, factor, shift)
        elif step == 2 and factor != ONE:
            _saturate(red, green, blue, factor)
        elif step == 3 and factor != ZERO:
            _turn_hue(red, green, blue, factor)
    if grayscale:
        for i in range(red.size):
            red[i] = green[i] = blue[i] = _luma(red[i], green[i], blue[i])


@compiled
def _relight(plane: Floats, order: NDArray[np.int64], factors: Floats) -> None:
    """Brightness and contrast of a gray image, which has neither saturation nor hue."""
    for step in order:
        factor = factors[step]
        if step == 0 and factor != ONE:
            _scale(plane, factor, ZERO)
        elif step == 1 and factor != ONE:
            _scale(plane, factor, _mean(plane) * (ONE - factor))


@compiled
def _scale(plane: Floats, factor: np.float32, shift: np.float32) -> None:
    for i in range(plane.size):
        plane[i] = _between_0_and_1(plane[i] * factor + shift)


@compiled
def _saturate(red: Floats, green: Floats, blue: Floats, factor: np.float32) -> None:
    rest = ONE - factor
    for i in range(red.size):
        luma = _luma(red[i], green[i], blue[i]) * rest
        red[i] = _between_0_and_1(red[i] * factor + luma)
        green[i] = _between_0_and_1(green[i] * factor + luma)
        blue[i] = _between_0_and_1(blue[i] * factor + luma)


@compiled
def _turn_hue(red: Floats, green: Floats, blue: Floats, turns: np.float32) -> None:
    """As `views.tensors._turn_hue` explains it."""
    opposite_red = np.mod(ZERO - SIX * turns, SIX) - THREE
    opposite_green = np.mod(TWO - SIX * turns, SIX) - THREE
    opposite_blue = np.mod(FOUR - SIX * turns, SIX) - THREE
    for i in range(red.size):
        r, g, b = red[i], green[i], blue[i]
        largest = g if g > b else b
        largest = largest if largest > r else r
        smallest = b if g > b else g
        smallest = smallest if smallest < r else r
        spread = largest - smallest
        spread = spread if spread > TINY else TINY
        hue = (g + b - r - smallest) / spread + ONE
        hue = hue if g >= b else -hue
        red[i] = _channel(hue - opposite_red, largest, spread)
        green[i] = _channel(hue - opposite_green, largest, spread)
        blue[i] = _channel(hue - opposite_blue, largest, spread)


@compiled
def _channel(from_opposite: np.float32, largest: np.float32, spread: np.float32) -> np.float32:
    distance = abs(abs(from_opposite) - THREE)
    distance = distance if distance > ONE else ONE
    distance = distance if distance < TWO else TWO
    return largest + spread - distance * spread


@compiled
def _mean_luma(red: Floats, green: Floats, blue: Floats) -> np.float32:
    total = np.int64(0)
    for i in range(red.size):
        total += _steps(_luma(red[i], green[i], blue[i]))
    return single(total / (red.size * STEPS_TO_ONE) - 1.0)


@compiled
def _mean(plane: Floats) -> np.float32:
    total = np.int64(0)
    for i in range(plane.size):
        total += _steps(plane[i])
    return single(total / (plane.size * STEPS_TO_ONE) - 1.0)


@compiled
def _steps(value: np.float32) -> np.int64:
    """1 + value as a whole number of 2⁻²³: whole numbers can be added in any order."""
    return np.int64((value + ONE) * STEPS_TO_ONE)


@compiled
def _luma(red: np.float32, green: np.float32, blue: np.float32) -> np.float32:
    return red * RED + green * GREEN + blue * BLUE


@compiled
def _between_0_and_1(value: np.float32) -> np.float32:
    value = value if value > ZERO else ZERO
    return value if value < ONE else ONE


@compiled
def _normalise(plane: Floats, mean: np.float32, std: np.float32) -> None:
    for i in range(plane.size):
        plane[i] = (plane[i] - mean) / std
