"""A checkpoint that is not as it was written, or that no run can have written, is refused before anything is built."""

import random

import pytest
import torch

from rince.errors import DataError
from rince.train.checkpoint import FORMAT, UNSEALED, bytes_of, load_checkpoint, save_checkpoint
from train.tiny import rince, write_recipe

STATE = {
    "encoder": {"weight": torch.arange(6.0)},
    "bank": {"keys": torch.ones(2, 2)},
    "shape": [1, 2],
    "features": 3,
    "groups": [10, 3],
    "network": "",
    "steps_per_epoch": 7,
    "optimizer": {"state": {0: {"momentum_buffer": torch.ones(6)}}, "param_groups": [{"lr": 0.1, "params": [0]}]},
    "precision": {},
    "step": 3,
    "metrics_position": 12,
    "validation": [0.5],
    "best": {"step": 2, "score": 0.25},
}


def flip(path, bit):
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_every_flipped_bit_is_refused(tmp_path):
    path = tmp_path / "last.ckpt"
    save_checkpoint(path, STATE)
    bits = 8 * path.stat().st_size
    chosen = random.Random(0).sample(range(bits), 300) + list(range(bits - 8 * 80, bits))  # and all of the seal
    for bit in chosen:
        flip(path, bit)
        with pytest.raises(DataError, match=r"last.ckpt (is damaged|is not a checkpoint|cannot be read)"):
            load_checkpoint(path, {"encoder"})
        flip(path, bit)
    assert load_checkpoint(path, set(STATE))["step"] == 3
    assert torch.load(path, weights_only=True)["step"] == 3  # anybody's


def test_one_of_before_there_were_seals_is_read_by_what_its_archive_knows(tmp_path):
    path = tmp_path / "last.ckpt"
    torch.save({"format": UNSEALED, **STATE}, path)
    assert load_checkpoint(path, set(STATE))["step"] == 3
    place = path.read_bytes().index(STATE["encoder"]["weight"].numpy().tobytes())
    flip(path, 8 * place + 3)
    with pytest.raises(DataError, match="cannot be read: it is cut short, damaged"):
        load_checkpoint(path, {"encoder"})
    torch.save({"format": FORMAT, **STATE}, path)  # a seal was lost
    with pytest.raises(DataError, match="is not a checkpoint of rince"):
        load_checkpoint(path, {"encoder"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("step", -1),
        ("step", 2.0),
        ("step", True),
        ("steps_per_epoch", 0),
        ("metrics_position", -5),
        ("encoder", [torch.ones(2)]),
        ("encoder", {}),
        ("encoder", {"weight": 1.0}),
        ("bank", "nothing"),
        ("optimizer", {}),
        ("optimizer", {"state": {}, "param_groups": []}),
        ("optimizer", {"state": {5: {}}, "param_groups": [{"params": [0]}]}),
        ("optimizer", {"state": {0: {"momentum_buffer": "x"}}, "param_groups": [{"params": [0]}]}),
        ("groups", []),
        ("groups", [0]),
        ("shape", [1, -2]),
        ("features", 0),
        ("validation", [float("nan")]),
        ("validation", None),
        ("best", {"step": 1}),
        ("precision", None),
        ("network", 3),
    ],
)
def test_what_no_run_has_written_is_refused(tmp_path, key, value):
    save_checkpoint(tmp_path / "last.ckpt", STATE | {key: value})
    with pytest.raises(DataError, match=f"no checkpoint that a run has written: '{key}' must be "):
        load_checkpoint(tmp_path / "last.ckpt", {"encoder"})


def without_memory(state):
    state["optimizer"]["state"] = {}


def other_memory(state):
    state["optimizer"]["state"][0]["momentum_buffer"] = torch.ones(3)


def too_far(state):
    state["step"] = 99


def without_weights(state):
    state["optimizer"]["param_groups"][0]["params"] = []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_memory, "its optimizer has remembered nothing"),
        (other_memory, "momentum_buffer of weight 0 is"),
        (too_far, "is of step 99, and its run has 3"),
        (without_weights, "must be what an optimizer has remembered"),
    ],
)
def test_what_does_not_fit_the_run_is_refused_without_a_traceback(tmp_path, change, message):
    run = tmp_path / "run"
    rince("train", write_recipe(tmp_path), "train.max_steps=3", "--out", run)
    state = torch.load(run / "last.ckpt", weights_only=True)
    change(state)
    save_checkpoint(run / "last.ckpt", state)
    done = rince("train", "--resume", run, check=False)
    assert done.returncode == 2
    assert message in done.stderr


def test_bytes_are_those_of_all_tensors():
    assert bytes_of(STATE) == 4 * (6 + 4 + 6)
