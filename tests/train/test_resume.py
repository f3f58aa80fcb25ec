"""A run killed at any moment and resumed is the run that was not: weights, bank, optimizer, metrics, to the bit."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
import yaml
from lightning_fabric.plugins.precision import MixedPrecision

from rince.errors import DataError
from rince.sources.images import load_images
from rince.train import record
from rince.train.checkpoint import load_checkpoint, save_checkpoint
from rince.train.record import locked
from rince.train.runtime import Runtime
from train.forked import Forked, rince_forked
from train.tiny import STEPS, rince, write_recipe

DIE_WHILE_WRITING = """
import os, signal, sys
import torch
from rince.train import checkpoint
whole, written = torch.save, []
def half_and_die(state, file):
    written.append(state)
    if len(written) < 3:
        return whole(state, file)
    import io
    buffer = io.BytesIO()
    whole(state, buffer)
    file.write(buffer.getvalue()[: len(buffer.getvalue()) // 2])
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
torch.save = half_and_die
sys.argv = ["rince", *sys.argv[1:]]
from rince.cli import main
main()
"""

NAMES = list(load_images("fashion", "train", limit=10).class_names)


def state_of(run):
    return torch.load(run / "last.ckpt", weights_only=True)


def assert_same(one, other, where=""):
    assert type(one) is type(other), where
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_same(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), where
        for i, pair in enumerate(zip(one, other, strict=True)):
            assert_same(*pair, f"{where}/{i}")
    else:
        assert one == other, where


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    rince("train", write_recipe(folder), "--out", folder / "run")
    assert state_of(folder / "run")["step"] == STEPS
    return folder / "run"


def finish_and_compare(run, uninterrupted):
    rince("train", "--resume", run)
    assert_same(state_of(run), state_of(uninterrupted))
    assert (run / "metrics.jsonl").read_bytes() == (uninterrupted / "metrics.jsonl").read_bytes()
    assert not list(run.glob("*.writing*"))  # a file that was half written is overwritten and renamed


def test_killed_at_several_moments(tmp_path, uninterrupted):
    """SIGKILL again and again, whenever some more lines have been written, until it is through."""
    run = tmp_path / "run"
    arguments = ["train", write_recipe(tmp_path), "--out", run]
    kills = 0
    for lines in (2, 6, 9):
        process = rince_forked(*arguments, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        while process.poll() is None:
            metrics = run / "metrics.jsonl"
            if metrics.exists() and metrics.read_bytes().count(b"\n") >= lines:
                process.send_signal(signal.SIGKILL)
                kills += process.wait() == -signal.SIGKILL
            time.sleep(0.001)
        arguments = ["train", "--resume", run]
    assert kills >= 2
    finish_and_compare(run, uninterrupted)


def test_killed_while_a_checkpoint_is_written(tmp_path, uninterrupted):
    run = tmp_path / "run"
    arguments = ["train", str(write_recipe(tmp_path)), "--out", str(run)]
    process = Forked([sys.executable, "-c", DIE_WHILE_WRITING, *arguments], stderr=subprocess.DEVNULL)
    assert process.wait() == -signal.SIGKILL
    [left] = run.glob("last.ckpt.*.writing")
    assert left.stat().st_size > 0
    assert state_of(run)["step"] == 6  # the one before is whole
    finish_and_compare(run, uninterrupted)


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path, uninterrupted):
    run = tmp_path / "run"
    process = rince_forked("train", write_recipe(tmp_path), "--out", run, stderr=subprocess.PIPE)
    while not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").stat().st_size:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, message = process.communicate()
    assert process.returncode == 130
    assert f"rince train --resume {run}" in message
    assert 0 < state_of(run)["step"] < STEPS
    finish_and_compare(run, uninterrupted)


def test_resuming_a_finished_run_changes_nothing(uninterrupted):
    before = (uninterrupted / "last.ckpt").read_bytes()
    rince("train", "--resume", uninterrupted)
    assert (uninterrupted / "last.ckpt").read_bytes() == before


def copy_of(run, folder):
    target = folder / "copy"
    target.mkdir()
    for file in run.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def test_the_scale_of_gradients_goes_on_where_it_was(tmp_path, monkeypatch):
    """On the CPU no precision has one, so it is given one, which doubles its scale after every second step."""

    def scaled(self, *arguments, **options):
        before(self, *arguments, **options)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
        self.fabric.strategy.precision = MixedPrecision("16-mixed", "cpu", scaler)
        self.fabric.strategy.precision._desired_input_dtype = torch.bfloat16

    before = Runtime.__init__
    monkeypatch.setattr(Runtime, "__init__", scaled)
    recipe = write_recipe(tmp_path, optimizer={"lr": 0.01})
    rince("train", recipe, "train.max_steps=7", "--out", tmp_path / "whole")
    rince("train", recipe, "train.max_steps=3", "--out", tmp_path / "parts")
    text = (tmp_path / "parts" / "recipe.yaml").read_text()
    (tmp_path / "parts" / "recipe.yaml").write_text(text.replace("max_steps: 3", "max_steps: 7"))
    rince("train", "--resume", tmp_path / "parts")
    whole, parts = (state_of(tmp_path / run) for run in ("whole", "parts"))
    assert whole["precision"]["scale"] == 4.0 * 2**3
    assert whole["precision"]["_growth_tracker"] == 1
    assert parts["precision"] == whole["precision"]
    assert_same(parts["encoder"], whole["encoder"])


def truncate(run):
    os.truncate(run / "last.ckpt", 1000)


def foreign(run):
    torch.save({"weights": torch.zeros(2)}, run / "last.ckpt")


def other_architecture(run):
    """Of a run of before, whose checkpoint does not hold its recipe."""
    text = (run / "recipe.yaml").read_text()
    assert "width: 4\n" in text
    (run / "recipe.yaml").write_text(text.replace("width: 4\n", "width: 8\n"))
    state = load_checkpoint(run / "last.ckpt", {"recipe"})
    del state["recipe"]
    save_checkpoint(run / "last.ckpt", state)


def other_data(run):
    facts = json.loads((run / "environment.json").read_text())
    facts["data"]["train"] = "0" * 64
    (run / "environment.json").write_text(json.dumps(facts))


def lost_metrics(run):
    (run / "metrics.jsonl").write_text("")


def hostile(run):
    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(run / "boom"),))

    torch.save({"format": "rince checkpoint 1", "encoder": Bomb()}, run / "last.ckpt")


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (truncate, "cannot be read: it is cut short"),
        (foreign, "is not a checkpoint of rince"),
        (other_architecture, "does not fit the recipe of its run"),
        (other_data, "the data is not what"),
        (lost_metrics, "is shorter than its checkpoint says"),
        (hostile, "holds more than tensors and plain values"),
    ],
)
def test_damage_is_refused_and_nothing_is_overwritten(damage, text, uninterrupted, tmp_path):
    run = copy_of(uninterrupted, tmp_path)
    damage(run)
    before = {file.name: file.read_bytes() for file in run.iterdir()}
    done = rince("train", "--resume", run, check=False)
    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert {file.name: file.read_bytes() for file in run.iterdir()} == before


def test_a_copy_of_the_data_elsewhere_is_the_same_data(tmp_path):
    record.write_environment(tmp_path, {"source": "here", "train": "a" * 64, "ranks": "b" * 64}, ["a note"])
    record.check_data(tmp_path, {"source": "elsewhere", "train": "a" * 64, "ranks": "b" * 64}, goes_on=True)
    with pytest.raises(
        DataError, match=r"the data is not what .* was started on: cccccccccccc instead of aaaaaaaaaaaa"
    ):
        record.check_data(tmp_path, {"source": "here", "train": "c" * 64, "ranks": "b" * 64}, goes_on=True)
    (tmp_path / "environment.json").unlink()
    with pytest.raises(DataError, match=r"environment.json is gone, so nobody can tell"):
        record.check_data(tmp_path, {"source": "here", "train": "a" * 64, "ranks": "b" * 64}, goes_on=True)
    assert not (tmp_path / "environment.json").exists()


def test_a_checkpoint_is_on_the_disk_before_it_takes_the_place_of_the_old_one(tmp_path, monkeypatch):
    done = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: done.append("on disk") or fsync(file))
    monkeypatch.setattr(os, "replace", lambda *paths: done.append("in place") or replace(*paths))
    save_checkpoint(tmp_path / "last.ckpt", {"step": 1})
    assert done.index("on disk") < done.index("in place")


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "last.ckpt"
    save_checkpoint(path, {"step": 1})
    with pytest.raises(Exception, match=r"pickle|local"):
        save_checkpoint(path, {"step": lambda: 2})
    assert torch.load(path, weights_only=True)["step"] == 1


def test_a_run_does_not_go_on_with_another_taxonomy(tmp_path):
    tree = {"clothing": {"tops": NAMES[:5]}, "other": {"rest": NAMES[5:]}}
    (tmp_path / "tree.yaml").write_text(yaml.safe_dump(tree))
    data = {"source": "fashion", "limit": 200, "taxonomy": str(tmp_path / "tree.yaml")}
    recipe = write_recipe(tmp_path, data=data)
    rince("train", recipe, "train.max_steps=3", "--out", tmp_path / "run")
    tree = {"clothing": {"tops": NAMES[:4]}, "other": {"rest": NAMES[4:]}}
    (tmp_path / "tree.yaml").write_text(yaml.safe_dump(tree))
    done = rince("train", "--resume", tmp_path / "run", check=False)
    assert done.returncode == 2
    assert "the taxonomy or rank source is not what" in done.stderr


@pytest.mark.parametrize(
    ("ranks", "first", "then"),
    [
        ({"kind": "similarity", "thresholds": [0.5]}, np.eye(10), np.ones((10, 10))),
        ({"kind": "embedding", "per": "sample", "nearest": [3]}, np.eye(200, 7), np.ones((200, 7))),
    ],
)
def test_a_run_does_not_go_on_with_ranks_from_another_file(ranks, first, then, tmp_path):
    """Of classes and of samples; the taxonomy is the same."""
    file = tmp_path / "ranks.npy"
    np.save(file, first)
    recipe = write_recipe(tmp_path, ranks=ranks | {"file": str(file)})
    rince("train", recipe, "train.max_steps=3", "--out", tmp_path / "run")
    rince("train", "--resume", tmp_path / "run")
    np.save(file, then)
    done = rince("train", "--resume", tmp_path / "run", check=False)
    assert done.returncode == 2
    assert "the taxonomy or rank source is not what" in done.stderr


def test_two_processes_do_not_train_in_one_folder(tmp_path):
    rince("train", write_recipe(tmp_path), "train.max_steps=3", "--out", tmp_path / "run")
    with locked(tmp_path / "run"):
        done = rince("train", "--resume", tmp_path / "run", check=False)
    assert done.returncode == 2
    assert "another process is training in" in done.stderr
    rince("train", "--resume", tmp_path / "run")


def test_a_damaged_environment_is_named(tmp_path):
    rince("train", write_recipe(tmp_path), "train.max_steps=3", "--out", tmp_path / "run")
    (tmp_path / "run" / "environment.json").write_text("{}")
    done = rince("train", "--resume", tmp_path / "run", check=False)
    assert done.returncode == 2
    assert "environment.json is damaged" in done.stderr
