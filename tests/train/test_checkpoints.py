"""A checkpoint that is not as it was written, or that no run can have written, is refused before anything is built."""

import random
import shutil

import pytest
import torch

from rince.errors import DataError
from rince.evaluation.trained import open_trained
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
        ("optimizer", {"state": {}, "param_groups": [{"params": 0}]}),
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


def put(*places, to):
    """Changes one thing in a state."""

    def change(state):
        *way, last = places
        for place in way:
            state = state[place]
        state[last] = to(state.get(last)) if callable(to) else to

    return change


def first(kind):
    """The first tensor of a module as another kind."""
    return lambda tensors: {name: each.to(kind) if i == 0 else each for i, (name, each) in enumerate(tensors.items())}


MOMENTUM = ("optimizer", "state", 0, "momentum_buffer")
GROUP = ("optimizer", "param_groups", 0)
CHANGES = [
    (put("optimizer", "state", to={}), "its optimizer has remembered nothing"),
    (put(*MOMENTUM, to=torch.ones(3)), "momentum_buffer of weight 0 is torch.float32 of shape (3,)"),
    (put(*MOMENTUM, to=lambda old: old.to(torch.complex64)), "momentum_buffer of weight 0 is torch.complex64"),
    (put("step", to=99), "is of step 99, and its run has 3"),
    (put(*GROUP, "params", to=[]), "must be what an optimizer has remembered"),
    (put(*GROUP, "lr", to="x"), "'lr' of its optimizer is 'x'"),
    (put(*GROUP, "lr", to=float("nan")), "'lr' of its optimizer is nan"),
    (put(*GROUP, "momentum", to=0.1), "'momentum' of its optimizer is 0.1"),
    (put("metrics_position", to=1), "has no line that ends where its checkpoint says"),
    (put("encoder", to=first(torch.int64)), "of its encoder is torch.int64, and must be torch.float32"),
    (put("encoder", to=first(torch.complex64)), "of its encoder is torch.complex64, and must be torch.float32"),
    (put("bank", to=first(torch.int64)), "of its bank is torch.int64"),
    (put("steps_per_epoch", to=9), "'steps_per_epoch' is 9, and must be 7"),
    (put("shape", to=[10**12]), "'shape' must be whole numbers from 1 on"),
    (put("shape", to=[1, 17, 16]), "'shape' is [1, 17, 16], and must be [1, 16, 16]"),
    (put("groups", to=[10**12]), "'groups' must be whole numbers from 1 on"),
    (put("groups", to=[11]), "'groups' is [11], and must be"),
    (put("features", to=3), "'features' is 3, and must be"),
    (put("precision", to={"a": 1}), "{'a': 1} is no state of its precision"),
    (put("best", to={"step": 10**9, "score": 0.5}), "its best step is after its last"),
    (put("more", to={"weight": torch.ones(2)}), "nothing takes its 'more'"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    rince("train", write_recipe(folder), "train.max_steps=3", "--out", folder / "run")
    return folder / "run"


def changed(trained, folder, change):
    run = shutil.copytree(trained, folder / "run")
    state = torch.load(run / "last.ckpt", weights_only=True)
    change(state)
    save_checkpoint(run / "last.ckpt", state)
    return run


@pytest.mark.parametrize(("change", "message"), CHANGES, ids=[message[:40] for _, message in CHANGES])
def test_what_does_not_fit_the_run_is_refused_without_a_traceback(trained, tmp_path, change, message):
    run = changed(trained, tmp_path, change)
    done = rince("train", "--resume", run, check=False)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("encoder", to=first(torch.int64)), "of its encoder is torch.int64"),
        (put("step", to=10**9), "is of step 1000000000, which is more than its run has"),
        (put("shape", to=[10**12]), "'shape' must be whole numbers from 1 on"),
    ],
)
def test_nor_is_it_judged(trained, tmp_path, change, message):
    with pytest.raises(DataError) as refused:
        open_trained(changed(trained, tmp_path, change))
    assert message in str(refused.value)


def test_bytes_are_those_of_all_tensors():
    assert bytes_of(STATE) == 4 * (6 + 4 + 6)
