"""All of rince on the pretend device, with float64 as CUDA has it and without as on MPS: the numbers of the CPU.

`docs/devices.md` tells what this shows and what it does not.
"""

import json
import shutil
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from oracles.coded_videos import write_video
from oracles.pretend_device import PretendDevice, pretend_runtime
from rince import DataError, open_run
from rince.config import load_recipe, validate
from rince.config.reading import with_overrides
from rince.evaluation import finetune, probe
from rince.evaluation.evaluate import evaluate
from rince.evaluation.export import export
from rince.evaluation.trained import open_trained
from rince.hierarchy import text
from rince.registry import BUILT_IN
from rince.sources.feed import Feed
from rince.sources.images import load_images
from rince.train.checkpoint import load_checkpoint
from rince.train.loop import train
from rince.train.runtime import Runtime
from rince.views import pixels, tensors
from train.test_methods import METHODS, OWN_LOSS
from train.tiny import TINY, write_recipe

TRAINED = METHODS | {
    "contrast": {},
    "in-batch": {"method": {"kind": "in-batch"}, "bank": None},
    "contrast in parts": {"train": TINY["train"] | {"accumulate": 2}},
}
STILL = {"frozen"}  # has no steps, and is judged below
FEW = "test[:20]"  # of every class
ACCELERATORS = {"with float64": True, "without float64": False}


@pytest.fixture(autouse=True)
def same_pixels(monkeypatch):
    """On the CPU views are made as everywhere else, to the bit, and not by the kernel."""
    monkeypatch.setattr(pixels, "_kernel", lambda: tensors.make_views)


@pytest.fixture(autouse=True)
def short_probes(monkeypatch):
    """Two epochs of the paper's probe, 20 iterations of the fast one: every operation of theirs, in seconds."""
    monkeypatch.setattr(probe, "EPOCHS", 2)
    monkeypatch.setattr(probe._converged, "__defaults__", (20,))


@contextmanager
def accelerator(*, float64):
    with PretendDevice(float64=float64) as pretend, pretend_runtime():
        yield pretend


def lines(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def trained_alike(recipe, folder, *, float64=False):
    """Trains on the CPU and on the device; the logs must agree."""
    train(recipe, folder / "cpu", Runtime(accelerator="cpu"), resume=False)
    with accelerator(float64=float64) as pretend:
        runtime = Runtime()
        assert runtime.device == pretend.device
        train(recipe, folder / "device", runtime, resume=False)
    cpu, device = lines(folder / "cpu"), lines(folder / "device")
    assert len(cpu) == len(device) == recipe.train.max_steps
    for one, other in zip(cpu, device, strict=True):
        # Shares of pairs are counts: one pair of ten thousand may be as close to the next as numbers of two devices are.
        shares = {key for key in one if key.startswith("violated/")}
        assert {key: other[key] for key in shares} == pytest.approx({key: one[key] for key in shares}, abs=3e-4)
        assert {k: v for k, v in other.items() if k not in shares} == pytest.approx(
            {k: v for k, v in one.items() if k not in shares}, rel=1e-4, abs=1e-5
        )
    return cpu


# Methods and ranks


def test_every_method_is_here():
    named = {changes.get("method", {}).get("kind", "contrast") for changes in TRAINED.values()}
    assert named == set(BUILT_IN["methods"]) - STILL


@pytest.mark.parametrize("name", TRAINED)
def test_a_method_learns_the_same_on_a_device(name, tmp_path):
    steps = 8 if "plateau" in name else 3  # an epoch has seven, less what is held out
    changes = [f"train.max_steps={steps}", "log.every_steps=1"]
    logged = trained_alike(load_recipe(write_recipe(tmp_path, **TRAINED[name]), changes), tmp_path)
    assert any("validation/loss" in line for line in logged) == ("plateau" in name)


def rank_files(folder):
    """What sources of ranks read: of ten classes, or of 200 samples."""
    generator = np.random.default_rng(0)
    classes, samples = generator.normal(size=(10, 4)), generator.normal(size=(200, 4))
    np.save(folder / "classes.npy", classes)
    np.save(folder / "samples.npy", samples)
    cosines = np.corrcoef(classes)
    np.save(folder / "similarity.npy", (cosines + cosines.T) / 2)
    rows = "\n".join(f"{x},{y}" for x, y in samples[:, :2])
    (folder / "positions.csv").write_text(f"x,y\n{rows}\n")


RANKS = {
    "tree": {},
    "classes": {},
    "parents": {},
    "instances": {},
    "text": {"thresholds": [0.3]},
    "wordnet": {"file": "wordnet.csv", "thresholds": [2, 4]},
    "similarity": {"file": "similarity.npy", "thresholds": [0.5, 0.0]},
    "embedding": {"file": "classes.npy", "nearest": [2, 4]},
    "embedding of samples": {"kind": "embedding", "file": "samples.npy", "per": "sample", "thresholds": [0.9, 0.5]},
    "neighbours of samples": {"kind": "embedding", "file": "samples.npy", "per": "sample", "nearest": [5, 20]},
    "clusters": {"file": "classes.npy", "counts": [5, 2]},
    "position": {"file": "positions.csv", "columns": ["x", "y"], "thresholds": [0.5, 1.0]},
}


def test_every_source_of_ranks_is_here():
    named = {settings.get("kind", name) for name, settings in RANKS.items()}
    assert named == set(BUILT_IN["ranks"]) - {"given", "clips"}  # clips are trained on below


OF_SAMPLES = (
    "instances",
    "embedding of samples",
    "neighbours of samples",
    "position",
)  # the others are one table in the end


@pytest.mark.parametrize(
    ("name", "method"),
    [*((name, "contrast") for name in RANKS), *((name, "in-batch") for name in ("tree", *OF_SAMPLES))],
)
def test_ranks_are_the_same_on_a_device(name, method, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(
        text, "embed_names", lambda names, _: torch.tensor([[len(n), n.count("o")] for n in names]) - 4.5
    )
    rank_files(tmp_path)
    names = load_images("fashion", "test").class_names
    (tmp_path / "wordnet.csv").write_text(
        "child,parent\na,top\nb,top\n" + "".join(f"{label},{'ab'[i % 2]}\n" for i, label in enumerate(names))
    )
    settings = {"kind": name} | RANKS[name]
    if "file" in settings:
        settings["file"] = str(tmp_path / settings["file"])
    recipe = load_recipe(
        write_recipe(tmp_path, **TRAINED[method], ranks=settings), ["train.max_steps=3", "log.every_steps=1"]
    )
    logged = trained_alike(recipe, tmp_path)
    assert logged[-1]["queries/1"] > 0


# Between two lines of the log

BETWEEN_LOGS = {  # method: reads, uploads with float64, uploads without
    "contrast": (0, 1, 11),
    "contrast in parts": (0, 1, 11),
    "in-batch": (0, 1, 11),
    "scl-two-heads": (0, 1, 11),
    "scl-two-heads in a batch": (0, 1, 11),
    "triplet": (0, 1, 11),
    "cross-entropy": (0, 1, 6),
    "two-heads": (0, 1, 6),
    "hierarchical-triplet": (0, 1, 6),
    "fast-ap": (0, 1, 6),
}


@contextmanager
def counted_steps(pretend, monkeypatch):
    """Gives a list that gets, for every step, the lines that made the host and the device wait for each other."""
    steps, found = Feed.steps, []

    def watched(feed, first, stop):
        for step in steps(feed, first, stop):
            yield step
            found.append((list(pretend.reads), list(pretend.uploads)))  # of all that led up to the next step
            pretend.forget()

    with monkeypatch.context() as patch:
        patch.setattr(Feed, "steps", watched)
        yield found


@pytest.mark.parametrize("float64", ACCELERATORS.values(), ids=ACCELERATORS)
@pytest.mark.parametrize("name", BETWEEN_LOGS)
def test_how_often_the_host_and_the_device_wait_for_each_other(name, float64, tmp_path, monkeypatch):
    kinds = {TRAINED[name].get("method", {}).get("kind", "contrast") for name in BETWEEN_LOGS}
    assert kinds == set(BUILT_IN["methods"]) - STILL
    changes = ["train.max_steps=5", "log.every_steps=1000", "save.every_steps=1000"]
    recipe = load_recipe(write_recipe(tmp_path, **TRAINED[name]), changes)
    with accelerator(float64=float64) as pretend, counted_steps(pretend, monkeypatch) as found:
        train(recipe, tmp_path / "run", Runtime(), resume=False)
    assert len(found[0][0]) > 0  # the first step is logged
    reads, *uploads = BETWEEN_LOGS[name]
    for read, uploaded in found[2:-1]:  # a few constants are sent once, with the first steps; the last one saves
        assert len(read) == reads, read
        assert len(uploaded) == uploads[0 if float64 else 1], uploaded


def test_an_epoch_ends_without_a_look(tmp_path, monkeypatch):
    """Whether a rank was empty throughout is looked at once, with the next line of the log."""
    changes = ["train.max_steps=11", "log.every_steps=9", "save.every_steps=1000"]
    recipe = load_recipe(write_recipe(tmp_path), changes)
    with accelerator(float64=True) as pretend, counted_steps(pretend, monkeypatch) as found:
        train(recipe, tmp_path / "run", Runtime(), resume=False)
    looked = [number for number, (reads, _) in enumerate(found[:-1]) if reads]  # the last one saves
    assert looked == [0, 9]


# What is wrong is said when it is seen


@pytest.mark.parametrize(
    "name", ["contrast", "contrast in parts", "in-batch", "scl-two-heads", "scl-two-heads in a batch", "triplet"]
)
def test_a_label_that_no_rank_knows_is_named(name, tmp_path, monkeypatch):
    steps = Feed.steps

    def wrong(feed, first, stop):
        for step in steps(feed, first, stop):
            classes = step.classes.clone()
            classes[-1] = 77 if step.step == 1 else classes[-1]
            yield step._replace(classes=classes)

    monkeypatch.setattr(Feed, "steps", wrong)
    recipe = load_recipe(write_recipe(tmp_path, **TRAINED[name]), ["log.every_steps=2"])
    with (
        accelerator(float64=False),
        pytest.raises(DataError, match=r"step 2: .*(mark of a label|queries holds|embeddings holds)"),
    ):
        train(recipe, tmp_path / "late", Runtime(), resume=False)
    recipe = load_recipe(write_recipe(tmp_path, **TRAINED[name]), ["log.every_steps=1"])
    with (
        accelerator(float64=False),
        pytest.raises(DataError, match=r"step 1: .*mark of a label that the source of ranks does not know"),
    ):
        train(recipe, tmp_path / "at once", Runtime(), resume=False)


def test_no_checkpoint_holds_nan(tmp_path, monkeypatch):
    steps = Feed.steps

    def wrong(feed, first, stop):
        for step in steps(feed, first, stop):
            yield step._replace(views=[view * torch.nan for view in step.views]) if step.step == 4 else step

    monkeypatch.setattr(Feed, "steps", wrong)
    recipe = load_recipe(write_recipe(tmp_path), ["log.every_steps=1000", "save.every_steps=3"])
    with accelerator(float64=False), pytest.raises(DataError, match=r"step 5: the loss is nan\. The last checkpoint"):
        train(recipe, tmp_path / "run", Runtime(), resume=False)
    saved = load_checkpoint(tmp_path / "run/last.ckpt", {"encoder", "step"})
    assert saved["step"] == 3
    assert all(value.isfinite().all() for value in saved["encoder"].values())


# Clips and vectors

CLIPS = {
    "data": {
        **{"frames": 4, "stride": 2, "gap": 6, "short": "drop-rank", "short_side": 24, "test_clips": 2, "workers": 0},
        "validation": 0.2,
    },
    "views": {"size": 16},
    "model": TINY["model"],
    "bank": {"size": 16},
    "schedule": {"kind": "plateau", "patience": 0, "factor": 0.5},
    "train": {"epochs": 3, "batch": 4, "max_steps": 4},
    "log": {"every_steps": 1, "logger": "none"},
}


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    root = tmp_path_factory.mktemp("data") / "films"
    for split, lengths in (("train", (40, 30, 18, 40, 40)), ("test", (20, 16))):
        for label in ("jump", "run"):
            for number, length in enumerate(lengths):
                first = 200 * number + (1500 if label == "run" else 0) + (90 if split == "test" else 0)
                write_video(root / split / label / f"{number}.mp4", length, first=first)
    return root


def judged_alike(folder, *, float64=False, **options):
    """Evaluates a run on the CPU and on the device; all numbers must agree."""
    folders = {place: folder.parent / f"{folder.name}-{place}-{float64}" for place in ("cpu", "device")}
    for each in folders.values():
        shutil.copytree(folder, each)
    cpu = evaluate(folders["cpu"], accelerator="cpu", **options)
    with accelerator(float64=float64) as pretend:
        device = evaluate(folders["device"], **options)
        assert pretend.uploads  # it was done there
    assert device.metrics == pytest.approx(cpu.metrics, rel=1e-3, abs=1e-4)
    assert device.protocol == cpu.protocol
    made = sorted(path.name for path in (folders["cpu"] / "features").iterdir())
    assert sorted(path.name for path in (folders["device"] / "features").iterdir()) == made
    return cpu.metrics


def clips_recipe(films, *changes):
    values = load_recipe("video/rince-uni").model_dump(mode="json")
    for key, above in (CLIPS | {"data": CLIPS["data"] | {"source": str(films), "test_split": "test"}}).items():
        values[key] |= above
    return validate(with_overrides(values, changes), "clips")


@pytest.mark.parametrize("float64", ACCELERATORS.values(), ids=ACCELERATORS)
def test_clips_learn_and_are_judged_the_same_on_a_device(films, float64, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    given = clips_recipe(films)
    logged = trained_alike(given, tmp_path, float64=float64)
    assert {"queries/3", "validation/loss"} <= set().union(*logged)

    original = finetune.finetune_recipe

    def for_a_moment(*about):
        recipe = original(*about)
        shorter = recipe.train.model_copy(update={"epochs": 1, "batch": 4, "keep_last_batch": False})
        return recipe.model_copy(update={"train": shorter, "log": given.log})

    monkeypatch.setattr(finetune, "finetune_recipe", for_a_moment)
    found = judged_alike(tmp_path / "cpu", float64=float64, unfinished=True, finetune=True)
    assert any(name.startswith("finetune") for name in found)


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    root, generator = tmp_path_factory.mktemp("vectors"), np.random.default_rng(1)
    for split, number in (("train", 120), ("test", 40)):
        labels = np.arange(number) % 6
        features = np.eye(6)[labels] + 0.3 * generator.normal(size=(number, 6))
        np.savez(root / f"{split}.npz", features=features, labels=labels, family=labels // 2)
    (root / "others").mkdir()
    np.savez(
        root / "others/strangers.npz", features=generator.normal(size=(30, 6)), labels=np.zeros(30, dtype=np.int64)
    )
    return root


def vectors_recipe(vectors, *changes):
    settings = ["train.batch=32", "train.epochs=2", "train.max_steps=4", "schedule.warmup_epochs=0", "log.logger=none"]
    settings += [f"data.source={vectors}", "views.dropout=0.2", "log.every_steps=1"]
    return load_recipe("vectors/rince-in", [*settings, *changes])


@pytest.mark.parametrize("float64", ACCELERATORS.values(), ids=ACCELERATORS)
def test_vectors_learn_and_are_judged_the_same_on_a_device(vectors, float64, tmp_path):
    trained_alike(vectors_recipe(vectors), tmp_path, float64=float64)
    strangers = str(vectors / "others/strangers.npz")
    found = judged_alike(tmp_path / "cpu", float64=float64, unfinished=True, outliers=[strangers])
    assert any(name.startswith("outliers/strangers") for name in found)


# Photographs of many sizes, decoded on the CPU


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    root, generator = tmp_path_factory.mktemp("photographs"), np.random.default_rng(3)
    for label in range(4):
        folder = root / "train" / "ab"[label % 2] / str(label)
        folder.mkdir(parents=True)
        for number in range(6):
            height, width = generator.integers(100, 130, 2)
            picture = generator.integers(0, 80, (height, width, 3)) + 40 * label
            Image.fromarray(picture.astype(np.uint8)).save(folder / f"{number}.jpg")
    return root


def photographs_recipe(photographs, folder, *changes):
    data = {"source": str(photographs), "taxonomy": "folders", "workers": 2}
    path = write_recipe(folder, data=data, views={"size": 24}, train={"epochs": 2, "batch": 8, "max_steps": 4})
    return load_recipe(path, ["log.every_steps=1", *changes])


def test_photographs_learn_the_same_on_a_device(photographs, tmp_path):
    trained_alike(photographs_recipe(photographs, tmp_path), tmp_path)


SENT = {  # data: uploads of a step between two lines of the log, with float64 and without
    "images in memory": (1, 11),
    "photographs": (10, 10),
    "clips": (19, 19),
    "vectors": (1, 1),
}


@pytest.mark.parametrize("float64", ACCELERATORS.values(), ids=ACCELERATORS)
@pytest.mark.parametrize("name", SENT)
def test_how_much_is_sent_to_the_device(name, float64, films, vectors, photographs, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    changes = ["train.max_steps=5", "log.every_steps=1000", "save.every_steps=1000"]
    recipe = {
        "images in memory": lambda: load_recipe(write_recipe(tmp_path), changes),
        "photographs": lambda: photographs_recipe(photographs, tmp_path, *changes),
        "clips": lambda: clips_recipe(films, *changes, "schedule.kind=constant"),
        "vectors": lambda: vectors_recipe(vectors, *changes),
    }[name]()
    with accelerator(float64=float64) as pretend, counted_steps(pretend, monkeypatch) as found:
        train(recipe, tmp_path / "run", Runtime(), resume=False)
    for read, uploaded in found[2:-1]:
        assert read == []
        assert len(uploaded) == SENT[name][0 if float64 else 1], uploaded


# Looking at a run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    train(load_recipe(write_recipe(folder)), folder / "run", Runtime(accelerator="cpu"), resume=False)
    return folder / "run"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder, generator = tmp_path_factory.mktemp("pictures"), np.random.default_rng(2)
    for number in range(20):
        pixels_ = generator.integers(0, 256, (28 + number % 3, 28, 3), dtype=np.uint8)
        Image.fromarray(pixels_).save(folder / f"{number}.png")
    return folder


@pytest.mark.parametrize("float64", ACCELERATORS.values(), ids=ACCELERATORS)
@pytest.mark.parametrize("protocol", ["fast", "paper"])
def test_a_run_is_judged_the_same_on_a_device(run, pictures, protocol, float64, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    found = judged_alike(copy, float64=float64, split=FEW, probe=protocol, outliers=[str(pictures)])
    assert {name.split("/")[0] for name in found} >= {"probe", "retrieval", "outliers"}


@pytest.mark.parametrize("method", ["cross-entropy", *STILL])
def test_a_method_without_embeddings_is_judged_the_same_on_a_device(method, tmp_path):
    recipe = load_recipe(write_recipe(tmp_path, method={"kind": method}, **OWN_LOSS), ["train.max_steps=8"])
    train(recipe, tmp_path / "run", Runtime(accelerator="cpu"), resume=False)
    assert judged_alike(tmp_path / "run", split=FEW)


@pytest.mark.parametrize("float64", ACCELERATORS.values(), ids=ACCELERATORS)
def test_a_run_embeds_and_finds_neighbours_on_a_device(run, pictures, float64, tmp_path):
    opened = open_run(run)
    for which in ("features", "embeddings"):
        expected = opened.embed(pictures, which=which, accelerator="cpu")
        near = opened.neighbours(pictures, pictures, k=3, which=which, accelerator="cpu")
        with accelerator(float64=float64):
            found = opened.embed(pictures, which=which, out=tmp_path / f"{which}.parquet")
            assert found.device.type == "cpu"  # made on the device, handed out where anything can be done with it
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            again = opened.neighbours(pictures, pictures, k=3, which=which)
        assert (tmp_path / f"{which}.parquet").exists()
        for one, other in zip(near, again, strict=True):
            assert [each.place for each in other.near] == [each.place for each in one.near]
            assert [each.cosine for each in other.near] == pytest.approx([each.cosine for each in one.near], abs=1e-5)


def test_an_export_is_the_same_wherever_the_run_was_opened(run, tmp_path):
    expected = open_run(run).export(tmp_path / "cpu")
    with accelerator(float64=False) as pretend:
        trained = open_trained(run)
        found = export(trained, tmp_path / "device")
        assert trained.device == pretend.device  # and stays there
        assert open_run(run).trained("cpu").device == torch.device("cpu")  # what `Run.export` opens
    for name, value in load_file(expected[0]).items():
        assert torch.equal(load_file(found[0])[name], value), name
    assert [path.read_bytes() for path in found[1:]] == [path.read_bytes() for path in expected[1:]]


def test_a_run_goes_on_where_another_device_stopped(tmp_path):
    """A checkpoint of one device is read on the other; the log is that of a run that never moved."""
    path = write_recipe(tmp_path, **TRAINED["contrast"])
    for folder, stop in (("whole", 6), ("moved", 3)):
        recipe = load_recipe(path, [f"train.max_steps={stop}", "log.every_steps=1"])
        train(recipe, tmp_path / folder, Runtime(accelerator="cpu"), resume=False)
    text_ = (tmp_path / "moved/recipe.yaml").read_text()
    (tmp_path / "moved/recipe.yaml").write_text(text_.replace("max_steps: 3", "max_steps: 5"))
    with accelerator(float64=False):
        open_run(tmp_path / "moved").train(resume=True)
    (tmp_path / "moved/recipe.yaml").write_text(text_.replace("max_steps: 3", "max_steps: 6"))
    open_run(tmp_path / "moved").train(resume=True, accelerator="cpu")
    for one, other in zip(lines(tmp_path / "whole"), lines(tmp_path / "moved"), strict=True):
        assert other == pytest.approx(one, rel=1e-4, abs=1e-5)
