"""Photographs are turned upright as EXIF says, wherever they are opened. Oracle: Pillow's `exif_transpose`."""

import io
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image, ImageOps

from rince.sources.image_file import OpenedImage
from rince.sources.image_files import ImageFiles
from rince.sources.images import load_images
from rince.sources.orientation import UPRIGHT, exif_orientation, jpeg_orientation, png_orientation
from rince.views.pixels import PixelViews

ORIENTATIONS = range(1, 9)
KINDS = [
    ("JPEG", "RGB", {"quality": 90}),
    ("JPEG", "L", {}),
    ("JPEG", "CMYK", {}),  # not for simplejpeg
    ("PNG", "RGB", {}),
    ("PNG", "L", {}),
    ("WEBP", "RGB", {"lossless": True}),
    ("TIFF", "RGB", {}),
]


def photograph(kind, mode, options, orientation, *, shape=(37, 61)):
    """Noise with soft edges, stored as a camera that was held this way stores it."""
    noise = np.random.default_rng(3).integers(0, 256, (*shape, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x010F] = "a maker, in front of the orientation"
    exif[0x0112] = orientation
    out = io.BytesIO()
    Image.fromarray(noise).convert(mode).save(out, kind, exif=exif, **options)
    return out.getvalue()


def seen(encoded):
    """As Pillow turns it, `(channels, height, width)`."""
    with Image.open(io.BytesIO(encoded)) as image:
        array = np.array(ImageOps.exif_transpose(image).convert("L" if image.mode == "L" else "RGB"))
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def as_png(pixels):
    out = io.BytesIO()
    Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(out, "PNG")
    return out.getvalue()


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize(("kind", "mode", "options"), KINDS)
def test_pixels_stand_upright(kind, mode, options, orientation):
    encoded = photograph(kind, mode, options, orientation)
    expected = seen(encoded)
    with OpenedImage(encoded, kind) as image:
        assert (image.height, image.width) == expected.shape[1:]
        assert np.array_equal(image.pixels(), expected)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("mode", ["RGB", "CMYK"])
def test_so_do_pixels_that_are_shrunk_while_decoding(mode, orientation):
    encoded = photograph("JPEG", mode, {}, orientation, shape=(67, 121))
    with OpenedImage(encoded, "jpeg") as image:
        found = image.pixels(4)
        assert (image.height, image.width) == ((67, 121) if orientation < 5 else (121, 67))
    with Image.open(io.BytesIO(encoded)) as stored:
        stored.draft(stored.mode, (121 // 4, 67 // 4))
        assert stored.size == (31, 17)
        expected = np.array(ImageOps.exif_transpose(stored).convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_crops_plain_views_and_previews_stand_upright(kind, orientation, tmp_path):
    """All that is made of a file is what is made of the same picture stored upright."""
    turned = [photograph(kind, "RGB", {}, orientation, shape=(190, 131)), photograph(kind, "RGB", {}, orientation)]
    files = [tmp_path / f"{number}.{kind.lower()}" for number in range(2)]
    for file, encoded in zip(files, turned, strict=True):
        file.write_bytes(encoded)
    maker = PixelViews(size=32, crop_scale=(0.02, 0.06), mean=[0.5] * 3, std=[0.5] * 3)  # too small to be shrunk
    common = {"labels": torch.zeros(2, dtype=torch.int64), "class_names": ("a",), "source": "photographs"}
    ours = ImageFiles(items=files, maker=maker, **common)
    straight = ImageFiles(items=[as_png(seen(encoded)) for encoded in turned], maker=maker, **common)
    ids = torch.arange(2)
    one, two = (images.load(ids, (0, 1), seed=5, epoch=1) for images in (ours, straight))
    assert torch.equal(one.crops, two.crops)
    assert torch.equal(one.parameters[1].boxes, two.parameters[1].boxes)
    for row in range(2):
        assert torch.equal(ours.preview(row).picture, straight.preview(row).picture)
    plain = ours.plain(ids)
    # The plain view of a JPEG is shrunk while decoding, so only its pixels nearly agree.
    torch.testing.assert_close(plain, straight.plain(ids), atol=0 if kind == "PNG" else 0.35, rtol=0)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_images_in_memory_stand_upright(orientation, tmp_path):
    encoded = photograph("JPEG", "RGB", {}, orientation)
    images = [{"bytes": encoded, "path": None}]
    pq.write_table(pa.table({"image": images, "label": [0]}), tmp_path / "train.parquet")
    loaded = load_images(str(tmp_path / "train.parquet"), "train")
    assert np.array_equal(loaded.images[0].numpy(), seen(encoded))


def test_the_note_of_a_png_may_stand_behind_its_pixels():
    encoded = photograph("PNG", "RGB", {}, 6)
    start = encoded.index(b"eXIf") - 4
    (length,) = struct.unpack_from(">I", encoded, start)
    chunk = encoded[start : start + 12 + length]
    moved = encoded[:start] + encoded[start + 12 + length : -12] + chunk + encoded[-12:]
    with OpenedImage(moved, "png") as image:
        assert (image.height, image.width) == (61, 37)
        assert np.array_equal(image.pixels(), seen(encoded))


def exif(order, *entries):
    """A directory of (tag, type, value) in both byte orders, after some room."""
    mark = b"II" if order == "<" else b"MM"
    body = b"".join(struct.pack(f"{order}HHIHH", tag, kind, 1, value, 0) for tag, kind, value in entries)
    return mark + struct.pack(f"{order}HI", 42, 12) + b"room" + struct.pack(f"{order}H", len(entries)) + body


@pytest.mark.parametrize("order", ["<", ">"])
def test_both_byte_orders_are_read(order):
    assert exif_orientation(exif(order, (1, 3, 9), (0x0112, 3, 8))) == 8
    assert exif_orientation(b"Exif\0\0" + exif(order, (0x0112, 3, 5))) == 5


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"II",
        b"Exif\0\0nonsense",
        exif("<", (0x0112, 3, 0)),
        exif("<", (0x0112, 3, 9)),
        exif("<", (0x0112, 2, 6)),  # not a number
        exif("<", (0x0112, 3, 6))[:-6],
        b"II*\0\xff\xff\xff\xff",
        b"II*\0\x08\0\0\0\xff\xff",
    ],
)
def test_broken_notes_mean_upright(broken):
    assert exif_orientation(broken) == UPRIGHT


def test_broken_headers_mean_upright():
    encoded = photograph("JPEG", "RGB", {}, 6)
    assert [jpeg_orientation(encoded[:end]) for end in range(0, 24)] == [UPRIGHT] * 24
    assert jpeg_orientation(encoded[:2] + b"\xff\xff\xff" + encoded[2:]) == 6  # filled up in front of a marker
    assert jpeg_orientation(b"\xff\xd8\xff\xe0\0\0" * 3) == UPRIGHT
    assert png_orientation(photograph("PNG", "RGB", {}, 6)[:40]) == UPRIGHT


def test_headers_alone_are_read_for_it(monkeypatch):
    """An upright photograph costs no second opening and no turning."""
    opened = []
    original = Image.open
    monkeypatch.setattr(Image, "open", lambda *args, **kwargs: opened.append(args) or original(*args, **kwargs))
    for orientation in (1, 6):
        with OpenedImage(photograph("JPEG", "RGB", {}, orientation), "jpeg") as image:
            image.pixels()
    assert not opened
