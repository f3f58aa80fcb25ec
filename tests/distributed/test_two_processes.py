"""Two gloo processes train to the weights of one, and hold the same bank."""

import json
import os
import subprocess
import sys
import time

import pytest
import torch

from train.forked import two_forked
from train.tiny import TINY, rince, rince_process, write_recipe

STEPS = 20
# Group norm does not depend on how a batch is split; 200 images in batches of 33 make uneven parts and a smaller last one.
MODEL = TINY["model"] | {"norm": "group"}
TRAIN = {"epochs": 4, "batch": 33, "max_steps": STEPS}
KEEP_THE_BANK = """
import atexit, os, sys, torch
from pathlib import Path
from rince.bank import MemoryBank
push, folder = MemoryBank.push, Path(sys.argv.pop())
def push_and_keep(bank, keys, labels):
    push(bank, keys, labels)
    torch.save(bank.state_dict(), folder / f"bank{os.environ['RANK']}.pt")
MemoryBank.push = push_and_keep
def keep_whether_they_are_together():  # asked last of all, before Python ends
    (folder / f"together{os.environ['RANK']}").write_text(str(torch.distributed.is_initialized()))
atexit.register(keep_whether_they_are_together)
from rince.cli import main
main()
"""

DIE = """
import os, signal
from rince.bank import MemoryBank
push, pushed = MemoryBank.push, []
def push_and_die(bank, keys, labels):
    push(bank, keys, labels)
    pushed.append(1)
    if os.environ.get("LOCAL_RANK", "0") == os.environ["DIES"] and len(pushed) == 13:
        os.kill(os.getpid(), signal.SIGKILL)
MemoryBank.push = push_and_die
from rince.cli import main
main()
"""


def run(folder, *options, **changes):
    folder.mkdir()
    recipe = write_recipe(folder, **{"model": MODEL, "train": TRAIN} | changes)
    command = ["train", recipe, "--out", folder / "run", "--accelerator", "cpu", *options]
    if options:
        assert rince_process(*command).wait() == 0
    else:
        rince(*command)
    return folder / "run"


def state_of(run):
    return torch.load(run / "last.ckpt", weights_only=True)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return run(tmp_path_factory.mktemp("alone") / "one")


def assert_close(one, other):
    assert one["step"] == other["step"] == STEPS
    for part in ("encoder", "twin", "bank"):
        assert one[part].keys() == other[part].keys()
        for name, value in one[part].items():
            torch.testing.assert_close(other[part][name], value, rtol=0, atol=1e-4, msg=f"{part} {name}")


def test_two_processes_train_to_the_weights_of_one(alone, tmp_path):
    two = run(tmp_path / "two", "--devices", 2)
    assert_close(state_of(alone), state_of(two))
    lines = [[json.loads(line) for line in (r / "metrics.jsonl").read_text().splitlines()] for r in (alone, two)]
    assert len(lines[0]) == len(lines[1]) == STEPS // 2
    for one, other in zip(*lines, strict=True):
        for name in ("loss", "term/1", "term/2", "term/3", "queries/1", "queries/2"):
            assert other[name] == pytest.approx(one[name], abs=1e-3), (one["step"], name)


def test_torchrun_and_the_same_bank_everywhere(alone, tmp_path):
    """The same command under torchrun; shuffled keys come back in order."""
    recipe = write_recipe(tmp_path, model=MODEL, train=TRAIN | {"batch_norm": "shuffled"})
    script = tmp_path / "keep.py"
    script.write_text(KEEP_THE_BANK)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=29617", script]
    command = [
        *torchrun,
        "train",
        recipe,
        "--devices",
        "2",
        "--accelerator",
        "cpu",
        "--out",
        tmp_path / "run",
        tmp_path,
    ]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    banks = [torch.load(tmp_path / f"bank{process}.pt", weights_only=True) for process in (0, 1)]
    for name, value in banks[0].items():
        assert torch.equal(banks[1][name], value), name
    assert [(tmp_path / f"together{process}").read_text() for process in (0, 1)] == ["False", "False"]
    assert_close(state_of(alone), state_of(tmp_path / "run"))


def test_a_larger_effective_batch_by_accumulation(alone, tmp_path):
    parts = run(tmp_path / "parts", train=TRAIN | {"accumulate": 3})
    assert_close(state_of(alone), state_of(parts))


@pytest.mark.parametrize("who", ["0", "1"])
def test_one_of_two_is_killed_the_other_ends_and_the_run_goes_on(alone, tmp_path, who):
    recipe = write_recipe(tmp_path, model=MODEL, train=TRAIN, save={"every_steps": 5})
    (tmp_path / "die.py").write_text(DIE)
    command = ["train", recipe, "--out", tmp_path / "run", "--accelerator", "cpu", "--devices", "2"]
    with (tmp_path / "told").open("w") as told:
        subprocess.run(
            [sys.executable, tmp_path / "die.py", *map(str, command)],
            env=os.environ | {"DIES": who},
            stderr=told,
            check=False,
            timeout=200,
        )
    began = time.monotonic()
    while "has lost another one" not in (tmp_path / "told").read_text():
        assert time.monotonic() - began < 60
        time.sleep(0.2)
    said = (tmp_path / "told").read_text()
    assert f"process {2 - int(who)} of 2" in said
    assert f"rince train --resume {tmp_path / 'run'}" in said
    assert "Traceback" not in said
    assert state_of(tmp_path / "run")["step"] == 10
    devices = 2 - int(who)  # goes on with as many processes, or with one
    command = ["train", "--resume", tmp_path / "run", "--accelerator", "cpu", "--devices", devices]
    if devices == 2:
        assert rince_process(*command).wait(200) == 0
    else:
        rince(*command)
    assert_close(state_of(alone), state_of(tmp_path / "run"))


IN_BATCH = {"method": {"kind": "in-batch"}, "bank": None, "twin": None}
SHARED = {
    # Also the step of 200 images in batches of 33 that has 2 left, one on either process.
    "in-batch": (7, IN_BATCH),
    "in parts": (3, IN_BATCH | {"train": TRAIN | {"accumulate": 3}}),
    "ranked batches": (3, IN_BATCH | {"data": TINY["data"] | {"batches": "ranked", "per_class": 4}}),
    "two heads": (
        3,
        IN_BATCH | {"method": {"kind": "in-batch-two-heads"}, "loss": {"terms": [{"temperature": 0.1}]}},
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_a_batch_that_is_its_own_candidates_is_shared(name, tmp_path):
    steps, changes = SHARED[name]
    train = changes.get("train", TRAIN) | {"max_steps": steps}
    log = {"every_steps": 1, "logger": "none"}
    recipe = write_recipe(tmp_path, **{"model": MODEL} | changes | {"train": train, "log": log})
    alone, two = tmp_path / "one", tmp_path / "two"
    rince("train", recipe, "--accelerator", "cpu", "--out", alone)
    two_forked("train", recipe, "--accelerator", "cpu", "--devices", 2, "--out", two)
    one, other = (torch.load(folder / "last.ckpt", weights_only=True)["encoder"] for folder in (alone, two))
    for key, value in one.items():
        torch.testing.assert_close(other[key], value, rtol=0, atol=1e-4, msg=key)
    lines = [[json.loads(line) for line in (r / "metrics.jsonl").read_text().splitlines()] for r in (alone, two)]
    assert len(lines[0]) == len(lines[1]) == steps
    for line, same in zip(*lines, strict=True):
        told = [key for key in line if key.startswith(("loss", "term/", "queries/"))]
        assert len(told) >= 3
        for key in told:
            assert same[key] == pytest.approx(line[key], abs=1e-3), (line["step"], key)
