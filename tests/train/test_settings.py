"""What a recipe says reaches the run: the first step of a baseline by hand, and settings that must change something."""

import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from oracles.held_out import held_out_by_name
from rince.config import load_recipe
from rince.encoders.heads import mlp_head
from rince.encoders.resnet import resnet
from rince.evaluation.trained import open_trained
from rince.sources.feed import Feed
from rince.sources.image_files import find_images
from rince.sources.images import load_images
from rince.sources.order import OneByOne, Order
from rince.sources.vectors import Vectors
from rince.train.checkpoint import load_checkpoint
from rince.train.loop import _log_every, training_seconds
from rince.train.setup import build_parts
from rince.views.pixels import PixelViews
from rince.views.vectors import VectorViewSettings
from train.tiny import TINY, rince, write_recipe

STILL = ["optimizer.lr=1e-30", "schedule.kind=constant", "schedule.warmup_epochs=0"]
GROUP = {"T-shirt/top": 0, "Shirt": 0, "Trouser": 1, "Dress": 1, "Pullover": 2, "Coat": 2, "Bag": 4}  # the rest: 3


def lines(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def classified(encoder, views, labels, group, weight=0.0, smoothing=0.0):
    """Cross-entropy of classes and of groups; a class shares `smoothing` among the others of its group."""
    outputs = encoder(views[0], raw=True)
    fine = coarse = 0.0
    for output, label in zip(outputs, labels.tolist(), strict=True):
        logs = output[:10].log_softmax(0)
        siblings = [other for other in range(10) if group[other] == group[label] and other != label]
        share = smoothing if siblings else 0.0
        fine = fine - (1 - share) * logs[label] - sum(share / len(siblings) * logs[other] for other in siblings)
        if weight:
            coarse = coarse - output[10:].log_softmax(0)[group[label]]
    return ((1 - weight) * fine + weight * coarse) / len(labels)


def two_heads(encoder, views, labels, group, weight):
    """A head for classes and one for groups. The bank is random, negatives for everyone, so both have one positive."""
    queries, keys = encoder(views[0]), encoder(views[1]).detach()
    losses = []
    for head in range(2):
        query, key = (F.normalize(both.chunk(2, dim=1)[head], dim=1) for both in (queries, keys))
        noise = torch.randn(40, 16, generator=torch.Generator().manual_seed(3))
        bank = F.normalize(noise, dim=1).chunk(2, dim=1)[head]
        own, others = (query * key).sum(dim=1, keepdim=True) / 0.1, query @ bank.T / 0.1
        losses.append(F.cross_entropy(torch.cat([own, others], dim=1), torch.zeros_like(labels)))
    return (1 - weight) * losses[0] + weight * losses[1]


BASELINES = {
    "classes": ({"kind": "cross-entropy"}, classified, {}),
    "smooth": ({"kind": "cross-entropy", "smoothing": 0.3}, classified, {"smoothing": 0.3}),
    "classes and groups": ({"kind": "cross-entropy", "superclass_weight": 0.3}, classified, {"weight": 0.3}),
    "two heads": ({"kind": "contrast-two-heads", "superclass_weight": 0.4}, two_heads, {"weight": 0.4}),
}


@pytest.mark.parametrize("name", BASELINES)
def test_the_first_step_of_a_baseline_is_the_gradient_of_its_loss(name, tmp_path):
    method, loss_of, settings = BASELINES[name]
    path = write_recipe(
        tmp_path,
        seed=3,
        method=method,
        loss={"terms": [{"temperature": 0.1}]} if name == "two heads" else None,
        bank={"size": 40, "start": "random"} if name == "two heads" else None,
        model=TINY["model"] | {"norm": "group"},
        optimizer={"lr": 0.5, "weight_decay": 0.01},
        schedule={"kind": "constant"},
        train={"epochs": 1, "batch": 20, "max_steps": 1},
    )
    recipe = load_recipe(path)
    rince("train", path, "--out", tmp_path / "run")
    rince("train", path, *STILL, "--out", tmp_path / "start")
    encoder = open_trained(tmp_path / "start").encoder.train()
    images = load_images("fashion", "train", limit=200)
    group = torch.tensor([GROUP.get(name, 3) for name in images.class_names])
    appeared = {number: place for place, number in enumerate(dict.fromkeys(group.tolist()))}
    group = torch.tensor([appeared[number] for number in group.tolist()])  # outputs are in order of appearance
    ids = Order(200, 20, 3).ids(0, 0)
    views = [
        PixelViews(**dict(recipe.views))(images.images[ids], seed=3, epoch=0, view=v, sample_ids=ids) for v in (0, 1)
    ]
    loss = loss_of(encoder, views, images.labels[ids], group, **settings)
    gradients = torch.autograd.grad(loss, list(encoder.parameters()))
    line = lines(tmp_path / "run")[0]
    assert line["loss"] == pytest.approx(float(loss.detach()), rel=1e-4)
    if loss_of is classified:
        said = encoder(views[0], raw=True)[:, :10].argmax(dim=1)
        assert line["accuracy"] == pytest.approx(float((said == images.labels[ids]).float().mean()))
    saved = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)["encoder"]
    found = {name: saved[name] for name, _ in encoder.named_parameters()}
    expected = {
        name: weight.detach() - 0.5 * (gradient + 0.01 * weight.detach())
        for (name, weight), gradient in zip(encoder.named_parameters(), gradients, strict=True)
    }
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-5)
    assert max(float(gradient.abs().max()) for gradient in gradients) > 0.01


def test_the_first_weights_are_a_function_of_the_seed(tmp_path):
    path = write_recipe(tmp_path, train={"epochs": 1, "batch": 20, "max_steps": 1})
    for seed in (3, 4):
        rince("train", path, *STILL, f"seed={seed}", "--out", tmp_path / str(seed))
        saved = load_checkpoint(tmp_path / str(seed) / "last.ckpt", {"encoder"})["encoder"]
        torch.manual_seed(seed)
        encoder = nn.Module()
        encoder.backbone = resnet(10, width=4, channels=1, stem="small-stride2")
        encoder.head = mlp_head(32, 16, 8)
        for name, value in encoder.named_parameters():
            torch.testing.assert_close(saved[name], value.detach(), rtol=0, atol=1e-6, msg=name)


def test_the_validation_loss_of_a_classifier_is_that_of_testing(tmp_path):
    """With the statistics of training, and nothing hidden; no weight moves."""
    path = write_recipe(
        tmp_path,
        data=TINY["data"] | {"limit": 60, "validation": 0.3},
        method={"kind": "cross-entropy", "dropout": 0.5},
        loss=None,
        bank=None,
        optimizer={"lr": 1e-30},
        schedule={"kind": "plateau"},
        train={"epochs": 1, "batch": 14},
    )
    recipe = load_recipe(path)
    rince("train", path, "--out", tmp_path / "run")
    images = load_images("fashion", "train", limit=60)
    held_out = torch.tensor(held_out_by_name(map(str, range(60)), images.labels.tolist(), 0.3))
    views = PixelViews(**dict(recipe.views))(
        images.images[held_out], seed=recipe.seed, epoch=-1, view=0, sample_ids=held_out
    )
    with torch.no_grad():
        outputs = open_trained(tmp_path / "run").encoder.eval()(views, raw=True)[:, :10]
    expected = F.cross_entropy(outputs, images.labels[held_out])
    assert lines(tmp_path / "run")[-1]["validation/loss"] == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize("in_memory", [True, False])
def test_every_epoch_has_views_of_its_own(in_memory, tmp_path):
    images = load_images("fashion", "train", limit=3)
    channels = 1 if in_memory else 3
    views = PixelViews(size=12, mean=[0.3] * channels, std=[0.3] * channels, jitter=None, grayscale=0.0)
    for row, image in enumerate(images.images):
        Image.fromarray(image[0].numpy()).save(tmp_path / f"{row}.png")
    source = replace(images if in_memory else find_images(str(tmp_path)), maker=views)
    feed = Feed(source, OneByOne(3, 3), seed=5, device=torch.device("cpu"), numbers=(0,))
    steps = list(feed.steps(0, 3))
    assert [step.epoch for step in steps] == [0, 1, 2]
    pixels = images.images.repeat(1, channels, 1, 1)
    for step in steps:
        expected = views(pixels, seed=5, epoch=step.epoch, view=0, sample_ids=step.ids)
        # Files are resized as they are decoded, in bytes and antialiased: alike, not the same.
        assert (step.views[0] - expected).abs().mean() < (1e-6 if in_memory else 0.2)
    assert (steps[0].views[0] - steps[1].views[0]).abs().mean() > 0.3


def test_every_epoch_has_noise_of_its_own():
    maker = VectorViewSettings(noise=0.5, dropout=0.0)
    source = Vectors("vectors", torch.ones(3, 8), torch.zeros(3, dtype=torch.int64), ("a",), maker)
    feed = Feed(source, OneByOne(3, 3), seed=5, device=torch.device("cpu"), numbers=(1,))
    made = [step.views[0] for step in feed.steps(0, 3)]
    for epoch, view in enumerate(made):
        assert view.equal(maker.make(torch.ones(3, 8), seed=5, epoch=epoch, view=1, sample_ids=torch.arange(3)))
    assert (made[0] - made[1]).abs().mean() > 0.1


FAST_AP = {"method": {"kind": "fast-ap"}, "loss": None, "bank": None}
TRIPLET = {"method": {"kind": "triplet", "margins": [0.2, 0.4, 0.6]}, "loss": None}
HIERARCHICAL = {
    "method": {"kind": "hierarchical-triplet", "anchors": 3, "near": 4, "random": 17},
    "loss": None,
    "bank": None,
}


@pytest.mark.parametrize(
    ("changes", "override"),
    [
        (FAST_AP, "method.bins=9"),
        (FAST_AP, "method.categories=4"),
        (HIERARCHICAL, "method.slack=0.9"),
        (TRIPLET, "method.margins=[0.6, 0.4, 0.2]"),
        ({"method": {"kind": "cross-entropy"}, "loss": None, "bank": None}, "method.dropout=0.9"),
        ({}, "loss.over_ranks=mean"),
        ({}, "loss.over_positives=sum"),
        ({}, "loss.terms.1.positives=in"),
        ({}, "ranks.kind=parents"),
        ({}, "ranks.kind=instances"),
        ({}, "ranks={kind: tree, flipped: 0.4}"),
        ({}, "views.flip=0"),
        ({}, "views.crop_scale=[0.9, 1.0]"),
        ({}, "views.jitter=[0.9, 0.9, 0, 0]"),
        ({}, "model.norm=group"),
        ({}, "seed=1"),
    ],
)
def test_a_setting_changes_the_loss_of_the_second_step(changes, override, tmp_path):
    """The second, when something is in the bank."""
    path = write_recipe(tmp_path, **changes, log={"every_steps": 1, "logger": "none"})
    losses = []
    for number, more in enumerate(([], [override])):
        rince("train", path, "train.max_steps=2", *STILL, *more, "--out", tmp_path / str(number))
        losses.append(lines(tmp_path / str(number))[1]["loss"])
    assert abs(losses[0] - losses[1]) > 1e-4


def test_what_dropout_hides_differs_from_step_to_step(tmp_path):
    """There is one image, its view is always the whole of it, and no weight moves."""
    path = write_recipe(
        tmp_path,
        method={"kind": "cross-entropy", "dropout": 0.5},
        loss=None,
        bank=None,
        data={"source": "fashion", "taxonomy": "fashion", "limit": 1},
        model=TINY["model"] | {"norm": "group"},
        views=TINY["views"] | {"flip": 0.0, "crop_scale": [1.0, 1.0], "crop_ratio": [1.0, 1.0]},
        train={"epochs": 3, "batch": 1},
        log={"every_steps": 1, "logger": "none"},
    )
    rince("train", path, *STILL, "--out", tmp_path / "hidden")
    assert len({round(line["loss"], 3) for line in lines(tmp_path / "hidden")}) == 3
    rince("train", path, *STILL, "method.dropout=0", "--out", tmp_path / "whole")
    assert len({round(line["loss"], 3) for line in lines(tmp_path / "whole")}) == 1


def test_the_last_batch_of_an_epoch_is_kept_or_not(tmp_path):
    path = write_recipe(tmp_path, log={"every_steps": 1, "logger": "none"})
    for keep, steps in ((True, 14), (False, 12)):
        rince("train", path, "train.epochs=2", f"train.keep_last_batch={keep}", "--out", tmp_path / str(keep))
        assert len(lines(tmp_path / str(keep))) == steps


@pytest.mark.parametrize(("minutes", "saved"), [(1e-9, True), (10, False)])
def test_a_checkpoint_is_written_when_enough_minutes_have_passed(minutes, saved, tmp_path):
    """A run that breaks down writes none at its end."""
    path = write_recipe(tmp_path, optimizer={"lr": 1e30}, save={"every_steps": 1000, "every_minutes": minutes})
    assert rince("train", path, "--out", tmp_path / "run", check=False).returncode == 2
    assert (tmp_path / "run" / "last.ckpt").exists() == saved


def test_a_short_run_has_a_line_for_every_point_of_a_curve(tmp_path):
    """Without `log.every_steps`: the paper's 10 steps would leave 3 of these 28, and of a small folder's 20 only 2."""
    path = write_recipe(tmp_path, log={"logger": "none"})
    rince("train", path, "--out", tmp_path / "run")
    assert [line["step"] for line in lines(tmp_path / "run")] == list(range(28))
    assert [_log_every(load_recipe(path), steps) for steps in (1, 99, 100, 499, 500, 10_000)] == [1, 1, 2, 9, 10, 10]
    assert _log_every(load_recipe(path, ["log.every_steps=3"]), 28) == 3


def test_the_time_of_epochs_of_one_step_is_measured(tmp_path):
    """By steps after the first, which warms up; epochs of a single step have none of their own."""
    recipe = load_recipe(write_recipe(tmp_path), ["data.limit=16", "train.epochs=100"])
    parts = build_parts(recipe)
    assert parts.order.steps_per_epoch == 1
    assert training_seconds(recipe, parts, limit=0.0) > 0.01
