"""Whose a run folder is: one trains in it, the other is told; what a start leaves that failed does not block it."""

import signal
import subprocess
import sys
import time

import pytest

from rince.config import load_recipe
from rince.errors import ConfigError
from rince.train.record import LOCK, locked, new_run
from train.forked import Forked, rince_forked
from train.tiny import rince, write_recipe

# Starts a run as soon as both are there, so that they meet where the folder is made.
START_TOGETHER = """
import sys, time
from pathlib import Path
from rince.train import loop
from rince.cli import main
new_run, (folder, name) = loop.new_run, sys.argv[1:3]
def meet(*given):
    (Path(folder) / name).touch()
    while len(list(Path(folder).glob("ready-*"))) < 2:
        time.sleep(0.001)
    return new_run(*given)
loop.new_run = meet
sys.argv = ["rince", *sys.argv[3:]]
main()
"""


def test_of_two_starts_in_one_folder_one_trains_and_the_other_is_told(tmp_path):
    recipe, run = write_recipe(tmp_path), tmp_path / "run"
    rince("train", recipe, "--out", tmp_path / "alone")
    starts = [
        Forked(
            [sys.executable, "-c", START_TOGETHER, tmp_path, f"ready-{n}", "train", recipe, "--out", run],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        for n in (1, 2)
    ]
    told = [start.communicate()[1] for start in starts]
    assert sorted(start.returncode for start in starts) == [0, 2]
    [message] = [text for start, text in zip(starts, told, strict=True) if start.returncode == 2]
    assert message.startswith("rince: ")
    assert message.count("\n") == 1
    assert "another process is training in" in message or "is not empty" in message
    assert (run / "metrics.jsonl").read_bytes() == (tmp_path / "alone" / "metrics.jsonl").read_bytes()


def test_whoever_comes_later_opens_the_same_lock(tmp_path):
    """A recipe that is written while another process holds the lock is where the second start used to get through."""
    recipe = load_recipe("demo/rince-in")
    with new_run(tmp_path / "run", recipe):
        for begin in (lambda: new_run(tmp_path / "run", recipe), lambda: locked(tmp_path / "run")):
            with pytest.raises(ConfigError, match="another process is training in"), begin():
                pytest.fail("two train in one folder")
    with locked(tmp_path / "run"):
        pass


def test_after_a_kill_the_folder_is_free(tmp_path):
    run = tmp_path / "run"
    process = rince_forked("train", write_recipe(tmp_path), "--out", run, stderr=subprocess.DEVNULL)
    while not (run / "last.ckpt").exists():
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    rince("train", "--resume", run)


def test_nothing_is_put_into_a_folder_that_is_refused(tmp_path):
    (tmp_path / "photo.jpg").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty"), new_run(tmp_path, load_recipe("demo/rince-in")):
        pytest.fail("it is not empty")
    assert [path.name for path in tmp_path.iterdir()] == ["photo.jpg"]
    (folder := tmp_path / "other").mkdir()
    for name in ("environment.json", "csv"):
        (folder / name).write_text("mine")
        with pytest.raises(ConfigError, match="is not empty"), new_run(folder, load_recipe("demo/rince-in")):
            pytest.fail("it is not empty")
        (folder / name).unlink()


@pytest.mark.parametrize(
    "left", [["recipe.yaml.0a1b2c3d.writing"], ["recipe.yaml"], ["recipe.yaml", "metrics.jsonl", "csv/metrics.csv"]]
)
def test_a_start_that_saved_nothing_does_not_block_its_folder(tmp_path, left):
    recipe, run = write_recipe(tmp_path), tmp_path / "run"
    rince("train", recipe, "train.max_steps=3", "--out", tmp_path / "whole")
    run.mkdir()
    (run / LOCK).touch()
    for name in left:
        whole = tmp_path / "whole" / name
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_bytes(whole.read_bytes() if whole.exists() else b"half")
    rince("train", recipe, "train.max_steps=3", "--out", run)
    assert (run / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    assert not list(run.glob("*.writing"))


def test_a_start_by_another_recipe_or_after_a_save_is_refused(tmp_path):
    recipe, run = write_recipe(tmp_path), tmp_path / "run"
    rince("train", recipe, "train.max_steps=3", "--out", run)
    again = rince("train", recipe, "train.max_steps=3", "--out", run, check=False)
    (run / "last.ckpt").unlink()
    other = rince("train", recipe, "train.max_steps=4", "--out", run, check=False)
    for done in (again, other):
        assert done.returncode == 2
        assert f"is not empty, and nothing in it will be overwritten; rince train --resume {run}" in done.stderr
