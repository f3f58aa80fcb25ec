"""A last batch of one sample: batch normalisation has no variance of it, and a run goes on all the same."""

import copy

import pytest
import torch
from torch import nn

from rince.encoders.encoder import take_lone_samples
from rince.train.checkpoint import load_checkpoint
from train.tiny import TINY, rince, write_recipe

NOTE = "batches: the last of an epoch has 1 sample; batch normalisation with one value of a channel takes its running"
SMALL = {"views": TINY["views"] | {"size": 8}}  # pixels: the last layers see one of them


def recipe_of(folder, samples=33, **changes):
    data = TINY["data"] | {"limit": samples}
    return write_recipe(
        folder, **SMALL, data=data, train={"epochs": 2, "batch": 16} | changes.pop("train", {}), **changes
    )


def test_a_run_with_a_last_batch_of_one_sample_comes_to_its_end_and_goes_on_to_the_same_bits(tmp_path):
    recipe = recipe_of(tmp_path)
    said = rince("train", recipe, "--out", tmp_path / "whole").stderr
    assert said.count(NOTE) == 1
    rince("train", recipe, "train.max_steps=3", "--out", tmp_path / "parts")  # stops after the batch of one
    text = (tmp_path / "parts" / "recipe.yaml").read_text()
    (tmp_path / "parts" / "recipe.yaml").write_text(text.replace("max_steps: 3", "max_steps: null"))
    rince("train", "--resume", tmp_path / "parts")
    whole, parts = (load_checkpoint(tmp_path / run / "last.ckpt", {"recipe"}) for run in ("whole", "parts"))
    assert whole["step"] == parts["step"] == 6
    assert (tmp_path / "whole" / "metrics.jsonl").read_bytes() == (tmp_path / "parts" / "metrics.jsonl").read_bytes()
    for module in ("encoder", "twin", "bank"):
        for name, value in whole[module].items():
            assert torch.equal(value, parts[module][name]), name
            assert value.isfinite().all(), name


@pytest.mark.parametrize(
    ("samples", "changes", "note"),
    [
        (33, {"model": TINY["model"] | {"norm": "group"}}, ""),
        (34, {}, ""),
        (34, {"train": {"accumulate": 2}}, "the last of an epoch has 2 samples, in parts; batch normalisation"),
        (33, {"train": {"keep_last_batch": False}}, ""),
        (33, {"method": {"kind": "in-batch"}, "bank": None}, NOTE),
        (33, {"method": {"kind": "cross-entropy"}, "bank": None, "loss": None}, NOTE),
    ],
    ids=["group norm", "two samples", "two parts of one", "left out", "in-batch", "cross-entropy"],
)
def test_every_network_and_method_takes_the_last_batch(samples, changes, note, tmp_path):
    said = rince("train", recipe_of(tmp_path, samples, **changes), "--out", tmp_path / "run").stderr
    assert (note in said) if note else ("batches: the last" not in said)


@pytest.mark.parametrize("shape", [(5,), (5, 1, 1)])
def test_one_value_is_normalised_by_the_running_statistics_which_stay(shape):
    norm = nn.BatchNorm1d(5) if len(shape) == 1 else nn.BatchNorm2d(5)
    with torch.no_grad():
        for value in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            value.copy_(torch.rand(5) + 0.5)
    plain = copy.deepcopy(norm)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        plain(torch.rand(1, *shape))
    assert take_lone_samples(nn.Sequential(norm))
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    sample = torch.rand(1, *shape, requires_grad=True)
    mean, spread, weight, bias = (
        each.detach().view(1, *shape)
        for each in (norm.running_mean, (norm.running_var + norm.eps).sqrt(), norm.weight, norm.bias)
    )
    made = norm(sample)
    torch.testing.assert_close(made, (sample - mean) / spread * weight + bias)
    made.sum().backward()
    torch.testing.assert_close(sample.grad, weight / spread)
    assert norm.training
    for name, value in norm.state_dict().items():
        assert torch.equal(value, before[name]), name
    several = torch.rand(3, *shape)  # as ever
    assert torch.equal(norm(several), plain(several))
    assert torch.equal(norm.running_var, plain.running_var)


def test_frozen_normalisation_and_networks_without_are_left_alone():
    assert not take_lone_samples(nn.Sequential(nn.BatchNorm1d(5).eval(), nn.Linear(5, 5)))
