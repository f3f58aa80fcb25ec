"""A practitioner's folder: photographs of many sizes, classes in nested folders, decoded by workers."""

import numpy as np
import pytest
import torch
from PIL import Image

from rince.config import load_recipe
from rince.data.folders import LargeImages
from rince.train.feed import Feed
from rince.train.setup import build_parts
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
        data={"source": str(photographs), "taxonomy": "folders", "workers": workers},
        views={"size": 24},
        train={"epochs": 2, "batch": 16},
        model=TINY["model"] | {"norm": "group"},
    )


def test_plan_of_a_folder(photographs):
    changes = [f"data.source={photographs}", "train.batch=16", "bank.size=64"]
    plan = rince("train", "folder/rince-in", *changes, "--dry-run").stdout
    assert "48 training images, 4 classes" in plan
    # Two of the four classes have one sibling: 64 · 1/4 · 1/2.
    assert "2: τ 0.2, in; 8.0 positives expected in the bank" in plan
    assert "empty for 2 of 4 classes: manx, oak" in plan
    assert "4: τ 0.4, in; never used: the taxonomy has no such rank" in plan


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


def test_steps_can_be_taken_up_anywhere(photographs, tmp_path):
    recipe = load_recipe(recipe_for(tmp_path, photographs, 0))
    parts = build_parts(recipe)
    assert isinstance(parts.images, LargeImages)
    feed = Feed(parts.images, parts.labels, parts.views, parts.order, seed=1, device=torch.device("cpu"))
    whole, later = list(feed.steps(0, 5)), list(feed.steps(3, 5))
    assert [step.step for step in later] == [3, 4]
    for one, other in zip(whole[3:], later, strict=True):
        assert torch.equal(one.labels, other.labels)
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
    (broken / "train/animal/dog/pug/3.jpg").write_bytes(b"\xff\xd8 not a photograph")
    for workers in (0, 2):
        run = tmp_path / f"run{workers}"
        done = rince("train", recipe_for(tmp_path, broken, workers), "train.batch=16", "--out", run, check=False)
        assert done.returncode == 2
        assert "3.jpg" in done.stderr
        assert "Traceback" not in done.stderr
