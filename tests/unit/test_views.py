"""Views against kornia and plain Python, both given the parameters that we drew.

kornia 0.9 defines brightness (`adjust_brightness_accumulative`), contrast (`..._with_mean_subtraction`), saturation
(`..._with_gray_subtraction`), hue and grayscale as torchvision does, so it is the oracle of all of them; the hue is
also compared with `colorsys`. Its `crop_and_resize` puts the corner pixels of the crop onto those of the view even
with `align_corners=False`, which torchvision does not, so the oracle of the crop is what kornia's `RandomResizedCrop`
does in its slicing mode: cut out each image by itself, and `kornia.geometry.resize` it.
"""

import colorsys
import math
import os
import subprocess
import sys

import kornia
import numpy as np
import pytest
import torch
from kornia.enhance import (
    adjust_brightness_accumulative,
    adjust_contrast_with_mean_subtraction,
    adjust_hue,
    adjust_saturation_with_gray_subtraction,
)
from PIL import Image
from scipy import stats

from rince import ConfigError, ShapeError
from rince.draws import uniform
from rince.views import tensors
from rince.views.pixels import CROP_DRAWS, ORDERS, PixelViews, ViewParameters, crop_boxes

KEY = {"seed": 3, "epoch": 2, "view": 1}
RGB = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.25, 0.3]}
GRAY = {"mean": [0.4], "std": [0.3]}
STEPS = [
    adjust_brightness_accumulative,
    adjust_contrast_with_mean_subtraction,
    adjust_saturation_with_gray_subtraction,
    lambda image, turns: adjust_hue(image, turns * 2 * math.pi),
]


def pictures(*shape):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def by_tensors(views, images, parameters):
    """What the views are on a device other than the CPU."""
    mean, std = torch.tensor(views.mean), torch.tensor(views.std)
    made = tensors.make_views(images.view(*images.shape[:2], -1, *images.shape[-2:]), parameters, mean, std, views.size)
    return made.view(*images.shape[:-2], views.size, views.size)


def oracle(image, views, box, flip, order, factors, grayscale):
    """One image `(channels, height, width)` by kornia, step by step."""
    top, left, height, width = box
    image = image[None, :, top : top + height, left : left + width] / 255
    image = kornia.geometry.resize(image, (views.size, views.size), align_corners=False)
    if flip:
        image = kornia.geometry.hflip(image)
    colour = image.shape[1] == 3
    for step in order:
        if colour or step < 2:  # a gray image has no saturation and no hue
            image = STEPS[step](image, factors[step])
    if grayscale and colour:
        image = kornia.color.rgb_to_grayscale(image).expand_as(image)
    return kornia.enhance.normalize(image, torch.tensor(views.mean), torch.tensor(views.std))[0]


@pytest.mark.parametrize("size", [32, 24, 37])
@pytest.mark.parametrize("channels", [3, 1])
def test_equals_kornia_image_by_image(channels, size):
    views = PixelViews(size=size, **(RGB if channels == 3 else GRAY))
    images, ids = pictures(40, channels, 32, 40), torch.arange(40)
    parameters = views.draw_parameters(32, 40, **KEY, sample_ids=ids)
    expected = [
        oracle(image, views, *drawn)
        for image, *drawn in zip(images, *(tensor.tolist() for tensor in parameters), strict=True)
    ]
    for result in (views(images, **KEY, sample_ids=ids), by_tensors(views, images, parameters)):
        assert result.dtype == torch.float32
        torch.testing.assert_close(result, torch.stack(expected), atol=5e-5, rtol=0)


def test_hue_equals_colorsys():
    views = PixelViews(size=4, jitter=(0, 0, 0, 0.5), crop_scale=(1, 1), crop_ratio=(1, 1), flip=0, grayscale=0,
                  mean=[0, 0, 0], std=[1, 1, 1])  # fmt: skip
    images, ids = pictures(30, 3, 4, 4), torch.arange(30)
    images[0, :, 0] = 77  # gray
    images[1, :, 0] = torch.tensor([[0], [255], [0]])
    images[2, :, 0] = torch.tensor([[200], [200], [9]])  # two largest
    images[3] = 0
    turns = views.draw_parameters(4, 4, **KEY, sample_ids=ids).factors[:, 3]
    assert (turns == 0).any()
    assert turns.min() < -0.3
    assert turns.max() > 0.3
    results = [
        views(images, **KEY, sample_ids=ids),
        by_tensors(views, images, views.draw_parameters(4, 4, **KEY, sample_ids=ids)),
    ]
    for image, turn, got in zip([*images, *images], turns.tolist() * 2, torch.cat(results), strict=True):
        for pixel, ours in zip(image.flatten(1).T.tolist(), got.flatten(1).T.tolist(), strict=True):
            hue, saturation, value = colorsys.rgb_to_hsv(*(channel / 255 for channel in pixel))
            assert ours == pytest.approx(colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value), abs=1e-5)


@pytest.mark.parametrize("shape", [(3, 32, 32), (3, 3, 15, 17), (1, 13, 9)])
def test_a_sample_has_the_same_pixels_in_any_batch(shape):
    views = PixelViews(size=15, **(RGB if shape[0] == 3 else GRAY))
    images, ids = pictures(61, *shape), torch.arange(61) * 7
    result = views(images, **KEY, sample_ids=ids)
    order = torch.randperm(61, generator=torch.Generator().manual_seed(1))
    assert torch.equal(views(images[order], **KEY, sample_ids=ids[order]), result[order])
    for size in (1, 7, 33):
        batches = zip(images.split(size), ids.split(size), strict=True)
        assert torch.equal(torch.cat([views(i, **KEY, sample_ids=s) for i, s in batches]), result)


def test_a_large_image_has_the_same_pixels_alone():
    views = PixelViews(size=224, grayscale=0, jitter_probability=1, **RGB)
    images, ids = pictures(5, 3, 230, 240), torch.arange(5)
    result = views(images, **KEY, sample_ids=ids)
    assert all(torch.equal(views(images[i : i + 1], **KEY, sample_ids=ids[i : i + 1])[0], result[i]) for i in range(5))


@pytest.mark.parametrize(("shape", "size"), [((150, 3, 32, 32), 33), ((9, 3, 2, 45, 61), 32), ((1, 3, 230, 240), 224)])
def test_a_sample_has_the_same_pixels_on_any_number_of_threads(shape, size):
    views, threads = PixelViews(size=size, grayscale=0, jitter_probability=1, **RGB), torch.get_num_threads()
    results = []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            results += [views(pictures(*shape), **KEY, sample_ids=torch.arange(shape[0]) + i) for i in range(3)]
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, other) for one, other in zip(results, results[3:], strict=False))


@pytest.mark.parametrize("change", [{"seed": 4}, {"epoch": 3}, {"view": 0}])
def test_another_seed_epoch_or_view_is_another_picture(change):
    views, images, ids = PixelViews(size=16, **RGB), pictures(1, 3, 16, 16).expand(20, -1, -1, -1), torch.arange(20)
    one, other = (views(images, **key, sample_ids=ids) for key in (KEY, KEY | change))
    assert ((one - other).abs().amax(dim=(1, 2, 3)) > 0.1).all()
    assert ((one[1:] - one[:-1]).abs().amax(dim=(1, 2, 3)) > 0.1).all()  # and so is another sample


@pytest.mark.parametrize("shape", [(3, 32, 32), (3, 3, 15, 17), (1, 13, 9)])
def test_tensors_and_the_kernel_make_the_same_view(shape):
    views = PixelViews(size=21, jitter_probability=1, **(RGB if shape[0] == 3 else GRAY))
    images, ids = pictures(50, *shape), torch.arange(50)
    parameters = views.draw_parameters(*shape[-2:], **KEY, sample_ids=ids)
    one, other = views.apply(images, parameters), by_tensors(views, images, parameters)
    torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
    assert torch.equal(by_tensors(views, images[7:8], ViewParameters(*(x[7:8] for x in parameters))), other[7:8])


def test_images_that_are_no_block_of_memory():
    views, images, ids = PixelViews(size=16, **RGB), pictures(9, 20, 24, 3), torch.arange(9)
    channels_last = images.permute(0, 3, 1, 2)
    result = views(channels_last, **KEY, sample_ids=ids)
    assert torch.equal(result, views(channels_last.contiguous(), **KEY, sample_ids=ids))
    every_other = views(channels_last[::2], **KEY, sample_ids=ids[::2])
    assert torch.equal(every_other, result[::2])


def test_the_frames_of_a_clip_share_one_draw():
    views, clips, ids = PixelViews(size=16, **RGB), pictures(12, 3, 4, 20, 24), torch.arange(12)
    result = views(clips, **KEY, sample_ids=ids)
    assert result.shape == (12, 3, 4, 16, 16)
    for time in range(4):
        assert torch.equal(result[:, :, time], views(clips[:, :, time], **KEY, sample_ids=ids))


def test_parameters_cover_their_ranges():
    views, number = PixelViews(size=32, **RGB), 4000
    drawn = views.draw_parameters(32, 32, **KEY, sample_ids=torch.arange(number))
    jittered = (drawn.factors != torch.tensor([1.0, 1.0, 1.0, 0.0])).any(dim=1)
    for mask, probability in ((drawn.flip, 0.5), (jittered, 0.8), (drawn.grayscale, 0.2)):
        assert stats.binomtest(int(mask.sum()), number, probability).pvalue > 1e-4
    for column, (low, high) in zip(drawn.factors[jittered].T, [(0.6, 1.4)] * 3 + [(-0.1, 0.1)], strict=True):
        assert stats.kstest(column.numpy(), "uniform", (low, high - low)).pvalue > 1e-4
    orders, counts = drawn.order.unique(dim=0, return_counts=True)
    assert sorted(map(tuple, orders.tolist())) == sorted(ORDERS)
    assert len(ORDERS) == 24
    assert stats.chisquare(counts.numpy()).pvalue > 1e-4
    columns = [drawn.flip, jittered, drawn.grayscale, *drawn.boxes.T, *drawn.order.T[:3], *drawn.factors.T]
    correlations = torch.corrcoef(torch.stack([column.float() for column in columns])[:6])[:3, :]
    assert (correlations - torch.eye(3, 6)).abs().max() < 5 / number**0.5


def test_saturation_hue_and_grayscale_change_no_bit_of_a_gray_image():
    images, ids = pictures(20, 1, 16, 16), torch.arange(20)
    coloured = PixelViews(size=16, jitter=(0, 0, 0.4, 0.1), grayscale=1, **GRAY)(images, **KEY, sample_ids=ids)
    assert torch.equal(coloured, PixelViews(size=16, jitter=None, grayscale=0, **GRAY)(images, **KEY, sample_ids=ids))


def test_factors_are_never_negative():
    views = PixelViews(size=8, jitter=(2, 2, 2, 0), jitter_probability=1, **RGB)
    factors = views.draw_parameters(8, 8, **KEY, sample_ids=torch.arange(500)).factors
    assert factors[:, :3].min() >= 0
    assert factors[:, :3].max() > 2.9


def naive_box(draws, height, width, scale, ratio):
    """torchvision's `RandomResizedCrop.get_params`, fed with our draws."""
    for area, shape in zip(draws[:10], draws[10:20], strict=True):
        target = height * width * (scale[0] + area * (scale[1] - scale[0]))
        aspect = math.exp(math.log(ratio[0]) + shape * (math.log(ratio[1]) - math.log(ratio[0])))
        w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < w <= width and 0 < h <= height:
            return [int(draws[20] * (height - h + 1)), int(draws[21] * (width - w + 1)), h, w]
    h, w = height, width
    if width / height < ratio[0]:
        h = round(width / ratio[0])
    elif width / height > ratio[1]:
        w = round(height * ratio[1])
    return [(height - h) // 2, (width - w) // 2, h, w]


@pytest.mark.parametrize("shape", [(32, 32), (100, 40), (20, 200), (200, 20), (1, 1), (3, 5)])
@pytest.mark.parametrize("scale", [(0.2, 1.0), (0.9, 1.0), (0.05, 0.06)])
def test_crops_equal_torchvisions(shape, scale):
    draws, ratio = uniform(0, 0, 0, torch.arange(300), CROP_DRAWS), (3 / 4, 4 / 3)
    boxes = crop_boxes(draws, *shape, scale, ratio)
    assert boxes.tolist() == [naive_box(row, *shape, scale, ratio) for row in draws.tolist()]
    top, left, height, width = boxes.unbind(1)
    assert bool((boxes >= 0).all())
    assert int((top + height).max()) <= shape[0]
    assert int((left + width).max()) <= shape[1]


def test_crops_of_images_of_different_sizes():
    draws = uniform(0, 0, 0, torch.arange(50), CROP_DRAWS)
    heights, widths = torch.arange(50) * 3 + 10, torch.arange(50).flip(0) * 5 + 20
    boxes = crop_boxes(draws, heights, widths, (0.2, 1), (0.75, 1.33))
    each = [crop_boxes(draws[i : i + 1], int(heights[i]), int(widths[i]), (0.2, 1), (0.75, 1.33)) for i in range(50)]
    assert torch.equal(boxes, torch.cat(each))


def test_crops_reach_every_corner_and_size():
    boxes = crop_boxes(uniform(0, 0, 0, torch.arange(4000), CROP_DRAWS), 32, 32, (0.2, 1), (3 / 4, 4 / 3))
    top, left, height, width = boxes.unbind(1)
    assert top.min() == left.min() == 0
    assert (top + height).max() == (left + width).max() == 32
    assert height.max() == width.max() == 32
    share = height * width / 32**2
    assert 0.18 < share.min() < 0.22
    assert 0.95 < share.max() <= 1
    assert 0.7 < (width / height).min() < 0.8
    assert 1.25 < (width / height).max() < 1.43


def test_nothing_random_left_is_the_picture_itself():
    views = PixelViews(size=16, crop_scale=(1, 1), crop_ratio=(1, 1), flip=0, jitter=None, grayscale=0, **RGB)
    images = pictures(6, 3, 16, 16)
    result = views(images, **KEY, sample_ids=torch.arange(6))
    torch.testing.assert_close(result, views.resize_and_normalise(images), atol=1e-4, rtol=0)
    mirrored = PixelViews(size=16, crop_scale=(1, 1), crop_ratio=(1, 1), flip=1, jitter=None, grayscale=0, **RGB)
    torch.testing.assert_close(mirrored(images, **KEY, sample_ids=torch.arange(6)), result.flip(-1), atol=1e-4, rtol=0)


def by_pillow(plane, width, height, corner):
    """Pillow smooths when it makes an image smaller, which is what the resize of torchvision does."""
    image = Image.fromarray(plane.float().numpy()).resize((width, height), Image.Resampling.BILINEAR)
    return torch.tensor(np.array(image.crop((*corner, corner[0] + 32, corner[1] + 32))))


@pytest.mark.parametrize("shape", [(32, 32), (40, 60), (61, 45), (20, 20), (33, 33), (32, 50), (9, 31), (1, 96)])
def test_the_test_view(shape):
    """Larger images are resized to 256/224 of the size, 37; others to the size itself, 32."""
    views, images = PixelViews(size=32, **RGB), pictures(3, 3, *shape)
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in (views.mean, views.std))
    target = 37 if min(shape) > 32 else 32
    height, width = (side * target // min(shape) for side in shape)
    box = (round((width - 32) / 2), round((height - 32) / 2))  # left and top, as torchvision's CenterCrop has them
    pixels = torch.stack([by_pillow(plane, width, height, box) for plane in images.flatten(0, 1)]).view(3, 3, 32, 32)
    torch.testing.assert_close(views.resize_and_normalise(images), (pixels / 255 - mean) / std, atol=1e-4, rtol=0)
    clips = images[:, :, None].expand(-1, -1, 2, -1, -1)
    assert torch.equal(views.resize_and_normalise(clips)[:, :, 1], views.resize_and_normalise(images))


def test_images_are_left_alone_and_an_empty_batch_is_fine():
    views, images = PixelViews(size=16, **RGB), pictures(4, 3, 16, 16)
    copy = images.clone()
    views(images, **KEY, sample_ids=torch.arange(4))
    views.resize_and_normalise(images)
    assert torch.equal(images, copy)
    assert views(images[:0], **KEY, sample_ids=torch.arange(0)).shape == (0, 3, 16, 16)


@pytest.mark.parametrize(
    ("images", "ids", "message"),
    [
        (torch.zeros(2, 3, 8, 8), 2, r"images must be uint8, from 0 to 255, got torch.float32 of shape \(2, 3, 8, 8\)"),
        (pictures(3, 8, 8), 3, r"got shape \(3, 8, 8\)"),
        (pictures(2, 4, 8, 8), 2, r"1 or 3 channels, got shape \(2, 4, 8, 8\)"),
        (pictures(2, 1, 8, 8), 2, "images have 1 channels, but mean and std have 3"),
        (pictures(2, 3, 8, 8), 3, r"one id per image: got shape \(3,\) for 2 images"),
    ],
)
def test_bad_images(images, ids, message):
    with pytest.raises(ShapeError, match=message):
        PixelViews(size=8, **RGB)(images, **KEY, sample_ids=torch.arange(ids))


def test_parameters_of_another_batch():
    views = PixelViews(size=8, **RGB)
    parameters = views.draw_parameters(8, 8, **KEY, sample_ids=torch.arange(3))
    with pytest.raises(ShapeError, match=r"one row per image: got \[3, 3, 3, 3, 3\] rows for 2 images"):
        views.apply(pictures(2, 3, 8, 8), parameters)
    for box in ([0, 0, 9, 8], [-1, 0, 4, 4], [5, 5, 4, 2], [0, 0, 0, 3]):
        outside = parameters._replace(boxes=torch.tensor([[0, 0, 8, 8], box, [0, 0, 8, 8]]))
        with pytest.raises(ShapeError, match="boxes must lie within the images, of 8 × 8 pixels"):
            views.apply(pictures(3, 3, 8, 8), outside)
    with pytest.raises(ShapeError, match=r"order must hold 0 \(brightness\)"):
        views.apply(pictures(3, 3, 8, 8), parameters._replace(order=torch.full((3, 4), 4)))
    with pytest.raises(ShapeError, match=r"one row per image: got \[3, 2, 3, 3, 3\] rows for 3 images"):
        views.apply(pictures(3, 3, 8, 8), parameters._replace(flip=parameters.flip[:2]))
    with pytest.raises(ShapeError, match=r"draws must be \(batch, 22\), got shape \(2, 5\)"):
        crop_boxes(torch.rand(2, 5), 8, 8, (0.2, 1), (1, 1))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"size": 0}, "at least one pixel, got 0"),
        ({"crop_scale": (1.0, 0.2)}, r"crop_scale .* got \(1.0, 0.2\)"),
        ({"crop_scale": (0.2, 1.2)}, "at most 1"),
        ({"crop_ratio": (0, 1)}, "crop_ratio must be two positive numbers"),
        ({"flip": 1.5}, "flip is a probability, between 0 and 1; got 1.5"),
        ({"jitter": (0.4, 0.4, 0.4, 0.6)}, "hue at most 0.5"),
        ({"std": [1, 1, 0]}, "std positive"),
        ({"mean": [1]}, "one number per channel"),
    ],
)
def test_bad_settings(setting, message):
    with pytest.raises(ConfigError, match=message):
        PixelViews(**({"size": 8} | RGB | setting))


@pytest.fixture
def cores():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_the_number_of_cores_changes_no_pixel(cores):
    images = torch.randint(0, 256, (300, 3, 40, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(4))
    views = PixelViews(size=32, mean=[0.5] * 3, std=[0.25] * 3)
    made = {}
    for number in (1, 2, 3):
        cores(number)
        made[number] = views(images, seed=1, epoch=2, view=0, sample_ids=torch.arange(300))
        assert torch.get_num_threads() == number
        with torch.inference_mode():
            again = views(images, seed=1, epoch=2, view=0, sample_ids=torch.arange(300))
        assert torch.equal(again, made[number])
    assert torch.equal(made[1], made[2])
    assert torch.equal(made[1], made[3])


MAKE_ONE = """
import torch
from rince.views.pixels import PixelViews
views = PixelViews(size=4, mean=[0.5], std=[0.5])
print(views(torch.zeros(1, 1, 4, 4, dtype=torch.uint8), seed=0, epoch=0, view=0, sample_ids=torch.arange(1)).sum().item())
"""


def run_python(code, **variables):
    options = {"capture_output": True, "text": True, "timeout": 120, "env": os.environ | variables}
    return subprocess.run([sys.executable, "-c", code], check=False, **options)


@pytest.mark.slow
def test_without_numba_the_extra_is_named():
    done = run_python("import sys; sys.modules['numba'] = None" + MAKE_ONE)
    assert 'ConfigError: views on the CPU need numba: pip install "rince[train]"' in done.stderr


@pytest.mark.slow
def test_nowhere_to_keep_the_kernel_is_no_error(tmp_path):
    """As in a container whose disk is read-only."""
    (tmp_path / "file").touch()
    done = run_python(MAKE_ONE, XDG_CACHE_HOME=str(tmp_path / "file"))
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == -16
