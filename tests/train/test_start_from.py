"""`model.start_from`: the network of another run, without its head."""

import shutil

import torch

from train.tiny import TINY, rince, write_recipe

STILL = ["optimizer.lr=1e-30", "schedule.kind=constant", "schedule.warmup_epochs=0", "train.max_steps=1"]


def weights(run):
    saved = torch.load(run / "last.ckpt", weights_only=True)
    names = {name for name in saved["encoder"] if f"module.{name}" in saved["twin"]}
    assert len(names) == len(saved["encoder"]) > 20
    return saved["encoder"], {name: saved["twin"][f"module.{name}"] for name in names}


def test_a_run_starts_from_the_network_of_another_but_not_from_its_head(tmp_path):
    recipe = write_recipe(tmp_path, model=TINY["model"] | {"norm": "group"})
    rince("train", recipe, "train.max_steps=3", "--out", tmp_path / "first")
    rince("train", recipe, *STILL, "seed=5", "--out", tmp_path / "fresh")
    rince("train", recipe, *STILL, "seed=5", f"model.start_from={tmp_path / 'first'}", "--out", tmp_path / "second")
    (first, _), (fresh, _), (second, twin) = (weights(tmp_path / name) for name in ("first", "fresh", "second"))
    body = [name for name in first if name.startswith("backbone.")]
    head = [name for name in first if name.startswith("head.")]
    assert len(body) + len(head) == len(first)
    assert len(head) == 4
    for name in body:
        assert torch.equal(second[name], first[name]), name
    for name in head:
        assert torch.equal(second[name], fresh[name]), name
    assert not any(torch.equal(first[name], fresh[name]) for name in (*body, *head) if first[name].ndim > 1)
    for name in first:  # the twin starts from the same network, not from the one of the seed
        assert torch.equal(twin[name], second[name]), name


def test_a_run_that_goes_on_does_not_start_from_there_again(tmp_path):
    recipe = write_recipe(tmp_path)
    rince("train", recipe, "train.max_steps=3", "--out", tmp_path / "first")
    changes = [f"model.start_from={tmp_path / 'first'}", "seed=5"]
    rince("train", recipe, *changes, "train.max_steps=6", "--out", tmp_path / "whole")
    rince("train", recipe, *changes, "train.max_steps=3", "--out", tmp_path / "parts")
    text = (tmp_path / "parts" / "recipe.yaml").read_text()
    (tmp_path / "parts" / "recipe.yaml").write_text(text.replace("max_steps: 3", "max_steps: 6"))
    shutil.rmtree(tmp_path / "first")  # and so does not need it any more
    rince("train", "--resume", tmp_path / "parts")
    (whole, _), (parts, _) = (weights(tmp_path / name) for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
