"""One encoded image: its size first, its pixels when they are asked for, as small as they may be."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import torch
from PIL import Image
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from rince.errors import DataError

# Nothing else is tried: Pillow would start other programs for some formats (EPS).
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
GRAY = {"1", "L"}
SHRINKAGES = (8, 4, 2)  # that JPEG decodes to
DEEP = {"I", "F", "I;16", "I;16B", "I;16L", "I;16N"}
Pixels = np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]


class OpenedImage:
    """An image before it is decoded, in a `with` statement. Whatever is wrong with it becomes a message that names it.

    Args:
        item: path or encoded bytes.
        name: for messages.

    Attributes:
        height: as it is stored.
        width: likewise.
    """

    def __init__(self, item: Path | bytes, name: str) -> None:
        self._name = name
        with self._named_errors():
            self._image = Image.open(io.BytesIO(item) if isinstance(item, bytes) else item, formats=FORMATS)
        self.width, self.height = self._image.size

    def __enter__(self) -> OpenedImage:
        return self

    def __exit__(self, *_: object) -> None:
        self._image.close()

    def shrinkage(self, shortest: int, size: int) -> int:
        """By how much to shrink while decoding: 1, 2, 4 or 8. JPEG leaves out what only the finest details need.

        Args:
            shortest: side of what will be cut out, in pixels of the stored image.
            size: what has to be left of it at least.
        """
        if self._image.format != "JPEG":
            return 1
        return next((factor for factor in SHRINKAGES if shortest // factor >= size), 1)

    def pixels(self, shrinkage: int = 1) -> Pixels:
        """uint8 `(1 or 3, height, width)`, sides divided by `shrinkage` and rounded up. To be asked for once."""
        array = np.array(self._decoded(shrinkage))
        self._image.close()
        return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)

    def padded(self, shrinkage: int = 1) -> Tensor:
        """The same, in the memory that Pillow decoded it to, without a copy: colours come as RGB and a fourth channel.

        What is in the fourth channel means nothing. Not to be written to.
        """
        image = self._decoded(shrinkage)
        try:
            flat = pa.array(image)
            flat = flat.flatten() if pa.types.is_fixed_size_list(flat.type) else flat
            pixels: Tensor = from_dlpack(flat).view(image.height, image.width, -1).permute(2, 0, 1)
        except (ValueError, TypeError):  # a large image in several blocks of memory, or an old Pillow
            return torch.from_numpy(self.pixels(shrinkage))
        self._image.close()  # others may be open; what is needed of it lives on with the tensor
        return pixels

    def _decoded(self, shrinkage: int) -> Image.Image:
        with self._named_errors():
            if shrinkage > 1:
                self._image.draft(self._image.mode, (self.width // shrinkage, self.height // shrinkage))
            self._image.load()
            if self._image.mode in DEEP:
                raise DataError(
                    f"{self._name} has more than 8 bits per pixel (mode {self._image.mode}); convert it to 8"
                )
            return _without_palette(self._image)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except DataError:
            raise
        except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error, … on bad images
            reason = str(error).partition(" <_io")[0].replace("\n", " ") or type(error).__name__
            raise DataError(f"{self._name} does not decode as an image ({reason}); mend it or take it out") from error


def _without_palette(image: Image.Image) -> Image.Image:
    """8-bit grayscale stays so, anything else becomes RGB without alpha."""
    if image.mode in GRAY:
        return image.convert("L")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # straight to RGB, Pillow warns about such palettes
    return image if image.mode == "RGB" else image.convert("RGB")
