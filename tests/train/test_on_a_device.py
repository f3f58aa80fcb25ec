"""Whole trainings on the pretend device, without float64: the log of the CPU."""

import json

import pytest

from oracles.pretend_device import PretendDevice, pretend_runtime
from rince.config import load_recipe
from rince.train.loop import train
from rince.train.runtime import Runtime
from rince.views import tensors as view_tensors
from rince.views import views
from train.test_methods import METHODS
from train.tiny import write_recipe

DIVISOR = "contrast.step takes the divisor in float64"
VALIDATE = "validate adds up in float64, and stacks a number of the CPU with one of the device"
BREAKS = {"contrast": DIVISOR, "triplet": DIVISOR, "plateau": DIVISOR, "cross-entropy-plateau": VALIDATE}
NAMES = ["contrast", *METHODS]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.xfail(strict=True, reason=BREAKS[name]) if name in BREAKS else ())
        for name in NAMES
    ],
)
def test_a_method_learns_the_same_on_a_device(name, tmp_path, monkeypatch):
    monkeypatch.setattr(views, "_kernel", lambda: view_tensors.make_views)  # the same pixels to the bit on both
    path = write_recipe(tmp_path, **METHODS.get(name, {}))
    steps = 6 if "plateau" in name else 3
    recipe = load_recipe(str(path), [f"train.max_steps={steps}", "log.every_steps=1"])
    train(recipe, tmp_path / "cpu", Runtime(accelerator="cpu"), resume=False)
    with PretendDevice(float64=False) as pretend, pretend_runtime():
        runtime = Runtime()
        assert runtime.device == pretend.device
        train(recipe, tmp_path / "device", runtime, resume=False)
    logs = [(tmp_path / run / "metrics.jsonl").read_text().splitlines() for run in ("cpu", "device")]
    assert len(logs[0]) == len(logs[1]) == steps
    for one, other in zip(*logs, strict=True):
        assert json.loads(other) == pytest.approx(json.loads(one), rel=1e-4, abs=1e-5)
