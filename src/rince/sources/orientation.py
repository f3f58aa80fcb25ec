"""How a camera was held: the EXIF orientation of an encoded image, and pixels turned upright by it.

Only headers are read. What is broken or missing means upright: a picture is not lost for its notes.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

ORIENTATION = 0x0112  # the tag
SHORT = 3  # its type: two bytes
UPRIGHT = 1
SIDEWAYS = (5, 6, 7, 8)  # height and width change places
# Whether rows and columns of the stored pixels change places, and then along which of the two they are mirrored.
TURNS = {
    2: (False, (1,)),
    3: (False, (0, 1)),
    4: (False, (0,)),
    5: (True, ()),
    6: (True, (1,)),
    7: (True, (0, 1)),
    8: (True, (0,)),
}
JPEG_APP1, JPEG_SCAN = 0xE1, 0xDA


def upright(pixels: np.ndarray[Any, np.dtype[np.uint8]], orientation: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """`(height, width[, channels])` pixels as a person sees them; the same array if nothing has to be done."""
    if orientation == UPRIGHT:
        return pixels
    swapped, mirrored = TURNS[orientation]
    return np.ascontiguousarray(np.flip(pixels.swapaxes(0, 1) if swapped else pixels, mirrored))


def jpeg_orientation(encoded: bytes) -> int:
    """1 to 8, from the Exif segment before the first scan of a JPEG."""
    place = 2
    while place + 4 <= len(encoded) and encoded[place] == 0xFF and encoded[place + 1] != JPEG_SCAN:
        if encoded[place + 1] == 0xFF:  # a marker may be filled up in front
            place += 1
            continue
        length = int.from_bytes(encoded[place + 2 : place + 4], "big")
        if encoded[place + 1] == JPEG_APP1 and encoded.startswith(b"Exif\0\0", place + 4):
            return exif_orientation(encoded[place + 4 : place + 2 + length])
        place += 2 + length
    return UPRIGHT


def png_orientation(encoded: bytes) -> int:
    """1 to 8, from the eXIf chunk of a PNG, which may stand before or after the pixels."""
    place = 8
    while place + 8 <= len(encoded):
        length, kind = struct.unpack_from(">I4s", encoded, place)
        if kind == b"eXIf":
            return exif_orientation(encoded[place + 8 : place + 8 + length])
        place += 12 + length
    return UPRIGHT


def exif_orientation(exif: bytes) -> int:
    """1 to 8, from EXIF data: a small TIFF file whose first directory has the tag."""
    exif = exif.removeprefix(b"Exif\0\0")
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    if order is None:
        return UPRIGHT
    try:
        (directory,) = struct.unpack_from(f"{order}I", exif, 4)
        (entries,) = struct.unpack_from(f"{order}H", exif, directory)
        for place in range(directory + 2, directory + 2 + 12 * entries, 12):
            tag, kind, _, value = struct.unpack_from(f"{order}HHIH", exif, place)
            if tag == ORIENTATION:
                return value if kind == SHORT and value in TURNS else UPRIGHT
    except struct.error:  # it breaks off
        pass
    return UPRIGHT
