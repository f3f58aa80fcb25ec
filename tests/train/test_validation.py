"""A part that is not trained on: held out by every method, judged as the run goes, resumed to the bit."""

import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from sklearn.neighbors import KNeighborsClassifier

from oracles.held_out import held_out_by_name
from rince.config import load_recipe
from rince.encoders.encoder import Encoder
from rince.evaluation.places import recall_by_place
from rince.evaluation.trained import open_trained
from rince.run import fit, open_run
from rince.sources import from_dataset
from rince.sources.images import load_images
from rince.train.checkpoint import save_checkpoint
from rince.train.record import Metrics
from rince.train.setup import build_parts
from rince.train.validation import better_place
from train.test_methods import METHODS
from train.test_resume import assert_same
from train.tiny import TINY, rince, write_recipe

HELD = {"data": TINY["data"] | {"validation": 0.2}}
JUDGED = HELD | {"train": {"epochs": 4, "batch": 32, "judge_every": 2}}
LEVELS = ("class", "group", "department")


class StoppedError(Exception):
    """A run that ends at any moment."""


def lines(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def checkpoint(run, name="last.ckpt"):
    return torch.load(run / name, weights_only=True)


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("judged")
    rince("train", write_recipe(folder, **JUDGED), "--out", folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def held_out():
    labels = load_images("fashion", "train", limit=200).labels.tolist()
    return held_out_by_name(map(str, range(200)), labels, 0.2)


@pytest.mark.parametrize("name", [*METHODS, "in-batch"])
def test_no_method_trains_on_what_is_held_out(name, tmp_path, held_out):
    in_batch = {"method": {"kind": "in-batch"}, "bank": None}
    recipe = load_recipe(write_recipe(tmp_path, **(METHODS.get(name, in_batch) | HELD)))
    parts = build_parts(recipe)
    assert parts.held_out.tolist() == held_out
    steps = parts.order.steps_per_epoch
    seen = {int(i) for epoch in range(12) for step in range(steps) for i in parts.order.ids(epoch, step)}
    assert seen.isdisjoint(held_out)
    assert len(seen) > 150  # of 160; methods that draw their batches may miss a few
    assert max(seen) > 190  # ids are those of the whole


def test_it_is_recorded_and_said(judged, held_out, tmp_path):
    noted = json.loads((judged / "environment.json").read_text())
    assert noted["data"]["validation"]["samples"] == len(held_out) == 40
    said = "validation: 40 of 200 images, chosen in each class by their names, are not trained on"
    assert noted["notes"] == [said]
    text = rince("train", write_recipe(tmp_path, **JUDGED), "--dry-run").stdout
    assert said in text
    assert "160 training images" in text
    assert said in rince("train", write_recipe(tmp_path, **JUDGED), "train.max_steps=1", "--out", tmp_path / "r").stderr


def recalls(run, held_out, file="last.ckpt"):
    """R@1 by scikit-learn, at both places, from the checkpoint and the samples themselves."""
    trained = open_trained(run, accelerator="cpu", file=file)
    whole = trained.open("train")
    kept = [row for row in range(len(whole)) if row not in set(held_out)]
    with torch.inference_mode():
        embeddings, features = trained.encoder(whole.plain(torch.arange(len(whole))), with_features=True)
    groups = build_parts(trained.recipe).groups
    found = {}
    for place, vectors in (("", features), (" after the head", embeddings)):
        unit = torch.nn.functional.normalize(vectors, dim=1).double().numpy()
        for level, group in zip(LEVELS, groups, strict=True):
            labels = group[whole.labels].numpy()
            knn = KNeighborsClassifier(1, algorithm="brute").fit(unit[kept], labels[kept])
            found[f"{level}/recall@1{place}"] = float(np.mean(knn.predict(unit[held_out]) == labels[held_out]))
    return found


def test_r_at_1_is_logged_every_few_epochs_and_the_best_is_kept(judged, held_out):
    logged = [line for line in lines(judged) if "validation/class/recall@1" in line]
    assert [line["step"] for line in logged] == [9, 19]  # after two epochs of five steps, and after four
    last = {name.removeprefix("validation/"): value for name, value in logged[-1].items() if "recall@1" in name}
    assert last == pytest.approx(recalls(judged, held_out))
    scores = [
        max(np.mean([line[f"validation/{level}/recall@1{place}"] for level in LEVELS]) for place in ("", " after the head"))
        for line in logged
    ]  # fmt: skip
    best = checkpoint(judged, "best.ckpt")
    expected = [10, 20][int(np.argmax(scores))]
    assert best["step"] == best["best"]["step"] == checkpoint(judged)["best"]["step"] == expected
    assert best["best"]["score"] == pytest.approx(max(scores))
    assert [line["validation/best_step"] for line in logged] == [10, expected]
    at_best = logged[int(np.argmax(scores))]
    again = recalls(judged, held_out, "best.ckpt")
    assert {name: at_best[f"validation/{name}"] for name in again} == pytest.approx(again)


def test_judging_changes_nothing_that_is_trained(judged, tmp_path):
    recipe = write_recipe(tmp_path, **HELD, train={"epochs": 4, "batch": 32})
    rince("train", recipe, "--out", tmp_path / "run")
    for key in ("encoder", "twin", "bank", "optimizer"):
        assert_same(checkpoint(tmp_path / "run")[key], checkpoint(judged)[key], key)
    assert not (tmp_path / "run" / "best.ckpt").exists()
    assert (tmp_path / "run" / "validation.json").read_bytes() == (judged / "validation.json").read_bytes()


def train_and_stop(recipe, run, stopped, monkeypatch):
    """Dies when it would log a later step than `stopped`."""
    whole = Metrics.write

    def write(self, values):
        if values["step"] > stopped:
            raise StoppedError
        whole(self, values)

    with monkeypatch.context() as patch:
        patch.setattr(Metrics, "write", write)
        with pytest.raises(StoppedError):
            rince("train", recipe, "--out", run)


@pytest.mark.parametrize("stopped", [11, 17])
def test_a_judged_run_goes_on_to_the_same_bits(stopped, judged, tmp_path, monkeypatch):
    """Stopped after the first look, with or without a checkpoint of the best that is ahead of the last."""
    run = tmp_path / "run"
    recipe = write_recipe(tmp_path, **JUDGED)

    train_and_stop(recipe, run, stopped, monkeypatch)
    assert checkpoint(run)["step"] < 20
    rince("train", "--resume", run)
    assert (run / "metrics.jsonl").read_bytes() == (judged / "metrics.jsonl").read_bytes()
    for name in ("last.ckpt", "best.ckpt"):
        assert_same(checkpoint(run, name), checkpoint(judged, name), name)
    assert (run / "validation.json").read_bytes() == (judged / "validation.json").read_bytes()


def test_of_two_equal_ones_the_earlier_is_best(tmp_path, monkeypatch):
    """Weights that do not move, and no statistics that would; stopped between the two looks."""
    model = TINY["model"] | {"norm": "group"}
    recipe = write_recipe(tmp_path, **JUDGED | {"model": model, "optimizer": {"lr": 1e-30}, "schedule": {}})
    train_and_stop(recipe, tmp_path / "run", 17, monkeypatch)
    assert 10 < checkpoint(tmp_path / "run")["step"] < 20
    rince("train", "--resume", tmp_path / "run")
    assert checkpoint(tmp_path / "run")["best"]["step"] == 10


def test_the_place_that_is_better_at_the_end_is_recorded_and_taken(judged, held_out, tmp_path):
    found = json.loads((judged / "validation.json").read_text())
    assert (found["step"], found["samples"]) == (20, 40)
    assert found["metrics"] == pytest.approx(recalls(judged, held_out))
    before, after = (
        np.mean([found["metrics"][f"{level}/recall@1{place}"] for level in LEVELS]) for place in ("", " after the head")
    )
    assert found["place"] == ("embeddings" if after > before else "features")
    other = {"features": "embeddings", "embeddings": "features"}[found["place"]]
    images = load_images("fashion", "test", limit=20)
    queries = tmp_path / "queries"
    queries.mkdir()
    for number, pixels in enumerate(images.images):
        Image.fromarray(pixels[0].numpy()).save(queries / f"{number}.png")
    for place, words in ((found["place"], "better on validation"), (other, "better on validation")):
        (judged / "validation.json").write_text(json.dumps(found | {"place": place}))
        run = open_run(judged)
        assert run.place == place
        assert torch.equal(run.embed(queries, accelerator="cpu"), run.embed(queries, which=place, accelerator="cpu"))
        near = run.neighbours(queries, queries, k=2, accelerator="cpu")
        assert near == run.neighbours(queries, queries, k=2, which=place, accelerator="cpu")
        done = rince("embed", judged, queries, "--out", tmp_path / "out.parquet")
        assert f"{judged}: {place}, {'before' if place == 'features' else 'after'} the head ({words})" in done.stderr
        assert "the head" not in rince(
            "embed", judged, queries, "--which", other, "--out", tmp_path / "out.parquet"
        ).stderr.replace(str(judged), "")
        rince("evaluate", judged)
        assert json.loads((judged / "results.json").read_text())["place"] == place
    (judged / "validation.json").write_text("{}")
    assert "validation.json is damaged" in rince("embed", judged, queries, "--out", "o.parquet", check=False).stderr
    (judged / "validation.json").write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")


def test_the_better_place():
    def place(before, after, **options):
        found = {"features": {"a": before, "b": 0.2}, "embeddings": {"a": after, "b": 0.2}}
        return better_place(found, **({"classifies": False} | options))

    assert place(0.1, 0.2) == "embeddings"
    assert place(0.2, 0.1) == place(0.2, 0.2) == "features"
    assert place(0.1, 0.2, classifies=True) == "features"


def test_the_judge_leaves_the_encoder_as_it_was():
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    encoder = Encoder(network, torch.nn.Linear(4, 2), feature_dim=4)
    source = from_dataset(torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), labels=[0, 1] * 4)
    state = {name: value.clone() for name, value in encoder.state_dict().items()}
    for training in (True, False):
        encoder.train(training)
        found = recall_by_place(encoder, source, source, {"class": torch.tensor([0, 1]), "all": torch.tensor([0, 0])})
        assert found == {place: {"class": 1.0, "all": 1.0} for place in ("features", "embeddings")}
        assert all(module.training == training for module in encoder.modules())
    assert all(torch.equal(value, state[name]) for name, value in encoder.state_dict().items())


def test_evaluation_on_validation_never_finds_itself(judged, held_out):
    rince("evaluate", judged)
    done = rince("evaluate", judged, "--split", "validation")
    assert f"{judged / 'results.json'} had numbers of split 'test': they are replaced" in done.stderr
    assert done.stdout.splitlines()[0] == f"{judged}, split 'validation'"
    results = json.loads((judged / "results.json").read_text())
    assert results["split"] == "validation"
    assert results["samples"] == {"fashion": {"train": 160, "test": 40}}
    assert "held out by data.validation" in results["protocol"]["samples"]
    noted = json.loads((judged / "figures.json").read_text())["sets"]["fashion"]
    whole = load_images("fashion", "train", limit=200).labels
    assert noted["test"]["labels"] == whole[held_out].tolist()
    for level in LEVELS:
        expected = json.loads((judged / "validation.json").read_text())["metrics"][f"{level}/recall@1"]
        assert results["metrics"][f"retrieval/{level}/recall@1"] == expected
    rince("evaluate", judged)  # and the gallery of the test split is the whole training split
    results = json.loads((judged / "results.json").read_text())
    assert results["samples"]["fashion"]["train"] == 200


def test_the_best_checkpoint_is_judged_where_asked_for(judged, tmp_path):
    before = json.loads((judged / "results.json").read_text()) if (judged / "results.json").exists() else None
    rince("evaluate", judged, "--checkpoint", "best")
    results = json.loads((judged / "results.json").read_text())
    assert (results["checkpoint_file"], results["step"]) == ("best.ckpt", checkpoint(judged, "best.ckpt")["step"])
    rince("report", judged, "--out", tmp_path / "page")
    assert before is None or before["checkpoint_file"] == "last.ckpt"
    rince("train", write_recipe(tmp_path, **HELD), "train.max_steps=2", "--out", tmp_path / "run")
    done = rince("evaluate", tmp_path / "run", "--checkpoint", "best", check=False)
    assert done.returncode == 2
    assert "has no best.ckpt, which is kept where a run is judged as it goes: train.judge_every=1" in done.stderr


def test_every_command_takes_the_best_checkpoint(judged, tmp_path):
    run = shutil.copytree(judged, tmp_path / "run")
    state = checkpoint(run, "best.ckpt")
    state["encoder"] = {name: value.flip(0) if value.ndim else value for name, value in state["encoder"].items()}
    save_checkpoint(run / "best.ckpt", {name: value for name, value in state.items() if name != "format"})
    photo = tmp_path / "photo.png"
    Image.fromarray(np.arange(784, dtype=np.uint8).reshape(28, 28)).save(photo)
    best = open_run(run, checkpoint="best")
    expected = best.embed(photo, which="embeddings")
    assert not torch.equal(expected, open_run(run).embed(photo, which="embeddings"))
    rince("embed", run, photo, "--which", "embeddings", "--checkpoint", "best", "--out", tmp_path / "best.parquet")
    assert torch.tensor(pq.read_table(tmp_path / "best.parquet")["vector"].to_pylist()).equal(expected)
    for command in (
        ["export", run, "--out", tmp_path / "exported"],
        ["index", run, photo, "--out", tmp_path / "index.parquet"],
        ["neighbours", run, photo, tmp_path / "index.parquet"],
    ):
        rince(*command, "--checkpoint", "best")
    assert (
        json.loads((tmp_path / "exported" / "encoder.json").read_text())["checkpoint"] == best.trained("cpu").checkpoint
    )
    refused = rince("neighbours", run, photo, tmp_path / "index.parquet", check=False)
    assert "make it again: rince index" in refused.stderr


def test_a_run_that_held_out_others_is_not_gone_on_with(judged, tmp_path):
    run = tmp_path / "run"
    rince("train", write_recipe(tmp_path, **HELD), "train.max_steps=3", "--out", run)
    noted = json.loads((run / "environment.json").read_text())
    chosen = noted["data"].pop("validation")  # as a rince that chose by seed has left it
    (run / "environment.json").write_text(json.dumps(noted))
    done = rince("train", "--resume", run, check=False)
    assert done.returncode == 2
    assert "which chose its validation differently; it can be evaluated as it is, but not gone on with" in done.stderr
    done = rince("evaluate", run, "--split", "validation", check=False)
    assert done.returncode == 2
    assert "is not what would be held out now" in done.stderr
    rince("evaluate", run)
    noted["data"]["validation"] = chosen | {"names": "0" * 64}
    (run / "environment.json").write_text(json.dumps(noted))
    done = rince("train", "--resume", run, check=False)
    assert f"{chosen['names'][:12]} instead of 000000000000" in done.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["train.judge_every=1"], "train.judge_every looks at samples that are not trained on, and data.validation is 0"),
        (["schedule={kind: plateau}"], "schedule.kind=plateau looks at samples that are not trained on"),
        (["data.validation=1.0"], "data.validation"),
        (["schedule.held_out=0.1"], "schedule.held_out: unknown key"),
    ],
)  # fmt: skip
def test_recipes_that_hold_out_nothing(change, message, tmp_path):
    done = rince("train", write_recipe(tmp_path), *change, "--dry-run", check=False)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_part_of_objects_is_held_out_too(tmp_path):
    images = load_images("fashion", "train", limit=100)
    source = from_dataset(images.images.float() / 255, labels=images.labels)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 16))
    changes = ("data.validation=0.1", "train.judge_every=1", "train.epochs=2", "train.batch=30", "log.logger=none")
    run = fit(write_recipe(tmp_path), *changes, source=source, encoder=network, out=tmp_path / "run", accelerator="cpu")
    assert run.log[-1]["validation/best_step"] in (3, 6)
    assert json.loads((tmp_path / "run" / "validation.json").read_text())["samples"] == 10
    run.evaluate(split="validation", accelerator="cpu")
    assert list(run.results["samples"].values()) == [{"train": 90, "test": 10}]
