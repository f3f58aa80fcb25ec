"""What testing sees of image files. Oracle: Pillow's resize of the whole image, then its crop."""

import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.profiler import ProfilerActivity, profile

from rince.evaluation.lookup import THUMB, Found, Neighbour, draw_neighbours
from rince.sources.image_files import ImageFiles
from rince.sources.images import ImageData
from rince.views.centre import resized_centre, resized_sides
from rince.views.pixels import PixelViews, PixelViewSettings

PLAIN = {"mean": [0.0] * 3, "std": [1 / 255] * 3}  # so that a view holds pixels


def files(*arrays, size, kind="PNG"):
    encoded = []
    for array in arrays:
        out = io.BytesIO()
        Image.fromarray(array).save(out, kind)
        encoded.append(out.getvalue())
    labels = torch.zeros(len(arrays), dtype=torch.int64)
    return ImageFiles(items=encoded, labels=labels, class_names=("a",), maker=PixelViews(size=size, **PLAIN))


def noise(height, width):
    return np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)


def by_pillow(array, sides, size):
    whole = Image.fromarray(array).resize(sides[::-1], Image.Resampling.BILINEAR)
    top, left = (round((side - size) / 2) for side in sides)
    return np.array(whole.crop((left, top, left + size, top + size)))


@pytest.mark.parametrize(
    ("shape", "size", "sides"),
    [
        ((500, 375), 224, (341, 256)),  # ImageNet's own numbers
        ((300, 1000), 112, (128, 426)),
        ((100, 97), 48, (56, 55)),
        ((49, 60), 48, (55, 67)),  # hardly larger than the view
        ((48, 60), 48, (48, 60)),  # no larger: nothing is resized
        ((48, 48), 48, (48, 48)),
        ((20, 30), 48, (48, 72)),  # smaller: made larger, and all of the shorter side is seen
    ],
)
def test_large_images_keep_room_around_the_centre(shape, size, sides):
    array = noise(*shape)
    sides = tuple(side * min(sides) // min(shape) for side in shape)
    assert resized_sides(*shape, size) == sides
    expected = by_pillow(array, sides, size)
    seen = files(array, size=size).plain(torch.tensor([0]))[0].permute(1, 2, 0).numpy()
    assert np.abs(seen - expected).max() <= 1.001  # Pillow rounds in between


def test_the_centre_of_a_jpeg_that_is_shrunk_while_decoding():
    y, x = np.mgrid[0:900, 0:1300]
    slopes = np.stack([255 * y / 900, 255 * x / 1300, 127 * (x / 1300 + y / 900)], axis=-1).astype(np.uint8)
    images = files(slopes, size=112, kind="JPEG")
    with images.opened(0) as opened:
        assert opened.shrinkage(900, 128) == 4
    seen = images.plain(torch.tensor([0]))[0].permute(1, 2, 0).numpy()
    assert np.abs(seen - by_pillow(slopes, (128, 184), 112)).max() <= 4


@pytest.mark.parametrize("shape", [(1, 10_000), (10_000, 1), (3, 4000)])
def test_a_thin_picture_is_never_made_whole(shape):
    """224 × 2,240,000 pixels would take gigabytes; what is seen of them depends on a few in the middle."""
    array = noise(*shape)
    middle = tuple(slice((side - min(side, 100)) // 2, (side + min(side, 100)) // 2) for side in shape)
    expected = by_pillow(array[middle], tuple(min(side, 100) * 224 // min(shape) for side in shape), 224)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        seen = files(array, size=224).plain(torch.tensor([0]))[0].permute(1, 2, 0).numpy()
    assert max(event.cpu_memory_usage for event in watched.events()) < 2**22  # bytes
    assert np.abs(seen - expected).max() <= 1.001


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@pytest.mark.parametrize("shape", [(1, 10_000), (10_000, 1), (3, 4000)])
def test_a_crop_of_a_thin_picture_is_all_that_training_makes_of_it(shape, kind):
    images = files(noise(*shape), size=224, kind=kind)
    pixels = torch.from_numpy(images.pixels(0)).permute(1, 2, 0).numpy()
    images.load(torch.tensor([0]), [0], seed=0, epoch=9)  # whatever is kept from a first time
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        made = images.load(torch.tensor([0]), [0, 1], seed=0, epoch=0)
    assert max(event.cpu_memory_usage for event in watched.events()) < 2**22  # bytes
    for crop, drawn in zip(made.crops[0], made.parameters, strict=True):
        top, left, height, width = drawn.boxes[0].tolist()
        assert height * width <= min(shape) * 4 * min(shape)  # a crop is hardly longer than wide, and so is small
        box = (left, top, left + width, top + height)
        expected = np.array(Image.fromarray(pixels).crop(box).resize((224, 224), Image.Resampling.BILINEAR))
        assert np.abs(crop.permute(1, 2, 0).numpy().astype(int) - expected).max() <= 1


def test_a_thin_picture_can_be_seen_among_neighbours(tmp_path):
    gallery = files(np.full((1, 10_000, 3), 10, np.uint8), np.full((20, 30, 3), 20, np.uint8), size=8)
    draw_neighbours([Found("", 0, [Neighbour("", 1.0, 1, "")], "")], gallery, gallery, tmp_path / "seen.png")
    seen = np.asarray(Image.open(tmp_path / "seen.png"))
    where = [np.argwhere((seen == value).all(axis=2)) for value in (10, 20)]
    assert [(np.ptp(place, axis=0) + 1).tolist() for place in where] == [[1, THUMB], [round(THUMB * 2 / 3), THUMB]]


@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 40))
def test_only_pixels_that_matter_are_looked_at(height, width, size):
    """The same as the centre of the whole, in floats. (Torch's own resizing is wrong where a side becomes 1 pixel.)"""
    pixels = np.random.default_rng(size).uniform(0, 255, (height, width)).astype(np.float32)
    expected = by_pillow(pixels, resized_sides(height, width, size), size)
    assert resized_centre(torch.from_numpy(pixels), size).numpy() == pytest.approx(expected, abs=1e-3)


def test_an_export_says_so():
    data = ImageData(source="photographs")
    assert (
        "to 128 if it is above 112, else to 112, centre of 112"
        in data.input_facts(PixelViewSettings(size=112))["pixels"]
    )
    told = data.input_facts(PixelViewSettings(size=112, mean=[0.1, 0.2, 0.3], std=[0.4, 0.5, 0.6]))
    assert (told["mean"], told["std"]) == ([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])
