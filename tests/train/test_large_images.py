"""A practitioner's folder: photographs of many sizes, classes in nested folders, decoded by workers."""

import io
import threading
import time

import numpy as np
import pytest
import torch
from PIL import Image

from rince import DataError
from rince.config import load_recipe
from rince.evaluation.trained import open_trained
from rince.sources import feed, image_files
from rince.sources.feed import Feed
from rince.sources.image_file import OpenedImage
from rince.sources.image_files import ImageFiles, cut
from rince.sources.images import load_images
from rince.sources.order import Order
from rince.train.setup import build_parts
from rince.views.pixels import PixelViews
from train.tiny import TINY, rince, write_recipe

CLASSES = ["animal/dog/poodle", "animal/dog/pug", "animal/cat/manx", "plant/tree/oak"]


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    root = tmp_path_factory.mktemp("photographs")
    generator = np.random.default_rng(0)
    for label, path in enumerate(CLASSES):
        folder = root / "train" / path
        folder.mkdir(parents=True)
        for i in range(12):
            height, width = generator.integers(100, 180, 2)
            pixels = generator.integers(0, 80, (height, width, 3)) + 40 * label
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.jpg")
    return root


def recipe_for(folder, photographs, workers):
    return write_recipe(
        folder,
        data={"source": str(photographs), "taxonomy": "folders", "workers": workers, "test_part": 0},
        views={"size": 24},
        train={"epochs": 2, "batch": 16},
        model=TINY["model"] | {"norm": "group"},
    )


def test_plan_of_a_folder(photographs):
    changes = [f"data.source={photographs}", "data.validation=0", "train.batch=16", "bank.size=64"]
    changes += ["method.kind=contrast", "model.kind=resnet", "model.depth=10", "views.size=24"]
    plan = rince("train", "images/rince-in", *changes, "--dry-run").stdout
    assert "40 training images, 4 classes" in plan
    assert "there is no split 'test': 8 of 48 images, 20 % of each class by their names, are set aside as it" in plan
    # Two of the four classes have one sibling: 64 · 1/4 · 1/2.
    assert "2: τ 0.225, in; 8.0 positives expected in the bank" in plan
    assert "empty for 2 of 4 classes: manx, oak" in plan
    assert "terms 4 to 8 have no rank here" in plan


def test_any_number_of_workers_trains_to_the_same_bits(photographs, tmp_path):
    states = []
    for workers in (0, 2):
        folder = tmp_path / str(workers)
        folder.mkdir()
        rince("train", recipe_for(folder, photographs, workers), "--out", folder / "run")
        states.append(torch.load(folder / "run/last.ckpt", weights_only=True))
    for name, value in states[0]["encoder"].items():
        assert torch.equal(states[1]["encoder"][name], value), name
    assert torch.equal(states[0]["bank"]["keys"], states[1]["bank"]["keys"])


@pytest.mark.parametrize("workers", [0, 2])
def test_the_bank_holds_the_second_views_of_the_photographs(workers, photographs, tmp_path):
    """Keys of the first step, made by hand: the box cut out of the whole photograph and resized, then the view."""
    path = recipe_for(tmp_path, photographs, workers)
    still = ["optimizer.lr=1e-30", "schedule.kind=constant", "schedule.warmup_epochs=0"]
    rince("train", path, *still, "train.max_steps=1", "views.crop_scale=[0.05, 0.1]", "--out", tmp_path / "run")
    run, bank = open_trained(tmp_path / "run"), torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)["bank"]
    images, views = load_images(str(photographs), "train"), run.recipe.views.build()
    order = Order(48, 16, run.recipe.seed)
    ids, whole, made = order.ids(0, 0), torch.tensor([[0, 0, 24, 24]]), []
    for sample in ids.tolist():
        with Image.open(images.items[sample]) as opened:
            pixels = torch.from_numpy(np.array(opened)).permute(2, 0, 1)
        drawn = views.draw_parameters(
            *pixels.shape[1:], seed=run.recipe.seed, epoch=0, view=1, sample_ids=torch.tensor([sample])
        )
        top, left, high, wide = drawn.boxes[0].tolist()
        part = pixels[None, :, top : top + high, left : left + wide]
        part = torch.nn.functional.interpolate(part, (24, 24), mode="bilinear", antialias=True)
        made.append(views.apply(part, drawn._replace(boxes=whole)))
    with torch.no_grad():
        keys = run.encoder(torch.cat(made))
    torch.testing.assert_close(bank["keys"][:16], keys, rtol=1e-3, atol=1e-3)
    assert bank["labels"][:16].tolist() == [
        sorted(CLASSES).index(str(images.items[sample].parent.relative_to(photographs / "train")))
        for sample in ids.tolist()
    ]


def test_steps_can_be_taken_up_anywhere(photographs, tmp_path):
    recipe = load_recipe(recipe_for(tmp_path, photographs, 0))
    parts = build_parts(recipe)
    assert isinstance(parts.source, ImageFiles)
    feed = Feed(parts.source, parts.order, seed=1, device=torch.device("cpu"))
    whole, later = list(feed.steps(0, 5)), list(feed.steps(3, 5))
    assert [step.step for step in later] == [3, 4]
    for one, other in zip(whole[3:], later, strict=True):
        assert torch.equal(one.ids, other.ids)
        assert torch.equal(one.classes, other.classes)
        assert torch.equal(one.views[0], other.views[0])
        assert torch.equal(one.views[1], other.views[1])
        assert not torch.equal(one.views[0], one.views[1])
    assert one.views[0].shape == (16, 3, 24, 24)


def test_a_broken_photograph_is_named(photographs, tmp_path):
    broken = tmp_path / "broken"
    for path in CLASSES[:2]:
        folder = broken / "train" / path
        folder.mkdir(parents=True)
        for i in range(8):
            Image.new("RGB", (100 + i, 120)).save(folder / f"{i}.jpg")
    spoilt = broken / "train/animal/dog/pug/3.jpg"
    Image.effect_noise((120, 120), 90).save(spoilt)
    whole = spoilt.read_bytes()
    spoilt.write_bytes(whole[: len(whole) // 2] + whole[-2:])  # its header and its end tell nothing
    for workers in (0, 2):
        run = tmp_path / f"run{workers}"
        done = rince("train", recipe_for(tmp_path, broken, workers), "train.batch=16", "--out", run, check=False)
        assert done.returncode == 2
        assert "3.jpg" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_photograph_that_breaks_off_is_named_too(photographs, tmp_path):
    """Its size can be read, so it is opened together with others before its pixels are asked for."""
    folder = tmp_path / "broken/train/a"
    folder.mkdir(parents=True)
    for i in range(8):
        Image.effect_noise((200 + i, 150), 60).convert("RGB").save(folder / f"{i}.jpg")
    whole = (folder / "3.jpg").read_bytes()
    (folder / "3.jpg").write_bytes(whole[: len(whole) // 2])
    images = ImageFiles(
        items=sorted(folder.iterdir()),
        labels=torch.zeros(8, dtype=torch.int64),
        class_names=("a",),
        source="broken",
        maker=PixelViews(size=24, mean=[0.5] * 3, std=[0.5] * 3),
    )
    with pytest.raises(DataError, match=r"3\.jpg' of 'broken' does not decode as an image"):
        images.load(torch.arange(8), (0, 1), seed=0, epoch=0)


def jpeg(array, **options):
    out = io.BytesIO()
    Image.fromarray(array).save(out, "JPEG", quality=95, **options)
    return out.getvalue()


def smooth(height, width):
    """Three slopes, which any good resizing keeps."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([255 * y / height, 255 * x / width, 127 * (x / width + y / height)], axis=-1).astype(np.uint8)


@pytest.mark.parametrize(
    ("boxes", "shrinkage"),
    [
        ([[0, 0, 401, 602], [10, 20, 391, 388]], 8),
        ([[0, 0, 401, 602], [101, 37, 199, 230]], 4),
        ([[300, 501, 101, 97], [0, 0, 401, 602]], 2),
        ([[0, 0, 401, 602], [17, 300, 95, 95]], 1),
    ],
)
def test_a_crop_is_the_part_of_the_photograph_in_its_box(boxes, shrinkage):
    """Against Pillow's own crop and resize of the whole image; shrunk while decoding only as far as the view allows."""
    array = smooth(401, 602)
    image = OpenedImage(jpeg(array), "slopes")
    assert (image.height, image.width) == (401, 602)
    assert image.shrinkage(min(min(box[2:]) for box in boxes), 48) == shrinkage
    out = torch.empty(2, 3, 48, 48, dtype=torch.uint8)
    cut(image, boxes, out)
    for box, crop in zip(boxes, out, strict=True):
        top, left, height, width = box
        area = (left, top, left + width, top + height)
        expected = np.asarray(Image.fromarray(array).resize((48, 48), Image.Resampling.BILINEAR, box=area))
        off = np.abs(crop.permute(1, 2, 0).numpy().astype(int) - expected)
        # A box in shrunk pixels is off by up to one of them: shrinkage / 401 of 255 for the steepest slope.
        assert off.max() <= 3 + 2 * 255 * shrinkage / 401
        assert off.mean() <= 1 + 255 * shrinkage / 401


def test_only_jpegs_are_shrunk_while_decoding():
    out = io.BytesIO()
    Image.fromarray(smooth(400, 400)).save(out, "PNG")
    with OpenedImage(out.getvalue(), "png") as image:
        assert image.shrinkage(400, 40) == 1
        assert image.pixels().shape == (3, 400, 400)
    for mode, channels in (("L", 1), ("CMYK", 3)):
        encoded = io.BytesIO()
        Image.fromarray(smooth(403, 400)).convert(mode).save(encoded, "JPEG")
        with OpenedImage(encoded.getvalue(), mode) as image:
            assert image.pixels(image.shrinkage(400, 100)).shape == (channels, 101, 100)


def test_a_sample_gets_the_same_crops_in_any_batch(photographs, tmp_path, monkeypatch):
    images = build_parts(load_recipe(recipe_for(tmp_path, photographs, 0))).source

    def load(ids):
        return images.load(torch.tensor(ids), (0, 1), seed=7, epoch=2)

    many, drawn, present = load(range(len(images)))
    assert present is None
    assert many.shape == (48, 2, 3, 24, 24)
    assert torch.equal(many[41], load([41]).crops[0])
    monkeypatch.setattr(image_files, "OPEN", 7)
    again = load(range(48))
    assert torch.equal(again.crops, many)
    for one, other in zip(drawn, again.parameters, strict=True):
        assert all(map(torch.equal, one, other))
    height, width = images.pixels(41).shape[1:]
    boxes = [
        images.maker.draw_parameters(height, width, seed=7, epoch=2, view=view, sample_ids=torch.tensor([41])).boxes[0]
        for view in (0, 1)
    ]
    out = torch.empty(2, 3, 24, 24, dtype=torch.uint8)
    with images.opened(41) as image:
        cut(image, [box.tolist() for box in boxes], out)
    assert torch.equal(out, many[41])


def pillows(encoded, mode, shrinkage):
    image = Image.open(io.BytesIO(encoded))
    image.draft(image.mode, (image.width // shrinkage, image.height // shrinkage))
    array = np.array(image.convert("L" if mode == "L" else "RGB"))
    return array[None] if mode == "L" else array.transpose(2, 0, 1)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}, {"quality": 30}])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("shrinkage", [1, 2, 4, 8])
def test_a_jpeg_has_pillows_pixels(mode, options, shrinkage):
    out = io.BytesIO()
    Image.effect_noise((171, 93), 60).convert("RGB").convert(mode).save(out, "JPEG", **options)
    with OpenedImage(out.getvalue(), mode) as image:
        assert (image.height, image.width) == (93, 171)
        assert np.array_equal(image.pixels(shrinkage), pillows(out.getvalue(), mode, shrinkage))


def test_a_jpeg_with_something_behind_it_still_decodes():
    encoded = jpeg(smooth(60, 50))
    with OpenedImage(encoded + b"and more", "trailing") as image:
        assert np.array_equal(image.pixels(), pillows(encoded, "RGB", 1))


def test_a_jpeg_too_large_to_be_true_is_refused(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(DataError, match=r"'bomb' does not decode as an image .*decompression bomb"):
        OpenedImage(jpeg(smooth(60, 50)), "'bomb'")


def test_threads_keep_the_order_and_stop_at_an_error():
    def halved(number):
        time.sleep(0.002 * (number % 3))
        if number == 30:
            raise DataError("thirty does not decode")
        return number // 2

    for workers in (0, 1, 3):
        assert list(feed.made_ahead(halved, range(20), workers)) == [number // 2 for number in range(20)]
        made = feed.made_ahead(halved, range(25, 40), workers)
        assert [next(made) for _ in range(5)] == [12, 13, 13, 14, 14]
        with pytest.raises(DataError, match="thirty"):
            next(made)


def test_no_thread_outlives_a_loader_that_is_left_early():
    before = threading.active_count()
    made = feed.made_ahead(lambda number: number, range(1000), 2)
    assert next(made) == 0
    made.close()
    for _ in range(100):
        time.sleep(0.01)
        if threading.active_count() <= before:
            return
    raise AssertionError("threads are still there")
