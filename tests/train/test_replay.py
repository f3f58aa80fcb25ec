"""The first steps of a run, made again by a plain loop: order, views, loss, weights, twin, bank, metrics.

The run is driven from the command line and looked at on disk, so that these tests stay as they are when its insides
move; of those, only what makes images, views and the network is taken.
"""

import json

import pytest
import torch

from oracles.held_out import held_out_by_name
from oracles.naive_loss import naive_loss
from oracles.plain_training import assert_replayed, cosine_rate, plain_training
from rince.config import load_recipe
from rince.evaluation.trained import open_trained
from rince.sources.images import load_images
from rince.sources.order import Order
from rince.views.pixels import PixelViews
from train.tiny import TINY, rince, write_recipe

STILL = ["optimizer.lr=1e-30", "schedule.kind=constant", "schedule.warmup_epochs=0", "train.max_steps=1"]
STEPS = 4
# Numbers of their own wherever there is a default, so that a default in their place shows. Four batches of 16 are more
# than the bank of 40 holds; the last one of an epoch is smaller.
BASE = {
    "seed": 3,
    "data": {"source": "fashion", "taxonomy": "fashion", "limit": 56},
    "model": TINY["model"] | {"norm": "group", "channels_last": False},
    "bank": {"size": 40},
    "twin": {"momentum": 0.7},
    "optimizer": {"lr": 0.2, "momentum": 0.8, "weight_decay": 0.05},
    "schedule": {"kind": "cosine", "warmup_epochs": 0, "floor": 0.1},
    "train": {"epochs": 3, "batch": 16, "max_steps": STEPS},
    "log": {"every_steps": 1, "logger": "none"},
}


def terms(*positives, closer=False):
    return [{"temperature": 0.15 + 0.1 * i, "positives": p, "includes_closer": closer} for i, p in enumerate(positives)]


CASES = {
    "in, out, in": {},
    "out, a sum over positives, a mean over ranks": {
        "loss": {"terms": terms("out", "in", "out"), "over_positives": "sum", "over_ranks": "mean"}
    },
    "out, pooled, closer ranks included": {
        "loss": {"terms": terms("out", "out", "out", closer=True), "over_positives": "pooled"}
    },
    "adam, a random bank": {
        "optimizer": {"kind": "adam", "lr": 0.003, "weight_decay": 0.3},
        "bank": {"size": 40, "start": "random"},
        "loss": {"terms": terms("in", "in", "in")},
    },
    "statistics of batches, the twin's its own": {"model": TINY["model"]},
    "statistics of batches, copied to the twin": {
        "model": TINY["model"],
        "twin": {"momentum": 0.7, "buffers": "copy"},
    },
    "temperatures that fall": {"loss": {"terms": terms("out", "in", "in")[::-1], "allow_any_order": True}},
    "in two parts": {"train": BASE["train"] | {"accumulate": 2}, "loss": {"terms": terms("in", "out", "in")}},
    "a warm-up over an epoch": {
        "schedule": {"kind": "cosine", "warmup_epochs": 1, "warmup_from": 0.05},
        "data": BASE["data"] | {"limit": 32},
    },
}
GROUPS = {
    "clothing": ({"T-shirt/top", "Shirt"}, {"Trouser", "Dress"}, {"Pullover", "Coat"}),
    "accessories": ({"Sandal", "Sneaker", "Ankle boot"}, {"Bag"}),
}


def rank_of(query, candidate):
    """Of two names of classes: the same, of one group, of one department."""
    if query == candidate:
        return 1
    of_query = next(groups for groups in GROUPS.values() if any(query in group for group in groups))
    if any({query, candidate} <= group for group in of_query):
        return 2
    return 3 if any(candidate in group for group in of_query) else 0


@pytest.mark.parametrize("case", CASES)
def test_the_first_steps_are_those_of_a_plain_loop(case, tmp_path):
    path = write_recipe(tmp_path, **(BASE | CASES[case]))
    recipe = load_recipe(path)
    rince("train", path, "--out", tmp_path / "run")
    rince("train", path, *STILL, "--out", tmp_path / "start")  # one step, too small to change a weight
    encoder = open_trained(tmp_path / "start").encoder.train()
    for name, buffer in encoder.named_buffers():  # that step has moved the running statistics
        buffer.fill_(name.endswith("running_var"))
    start = {name: value.detach().clone() for name, value in encoder.named_parameters()}

    images = load_images("fashion", "train", limit=recipe.data.limit)
    views, order = PixelViews(**dict(recipe.views)), Order(len(images), recipe.train.batch, recipe.seed)
    keys, labels = torch.zeros(40, recipe.model.dim), torch.full((40,), -1)
    if recipe.bank.start == "random":
        noise = torch.randn(40, recipe.model.dim, generator=torch.Generator().manual_seed(recipe.seed))
        keys, labels = noise / noise.norm(dim=1, keepdim=True), labels - 1

    def bank_rank(query, candidate):
        if candidate < 0:
            return {-1: -1, -2: 0}[candidate]
        return rank_of(images.class_names[query], images.class_names[candidate])

    def batches():
        for step in range(STEPS):
            epoch, within = divmod(step, order.steps_per_epoch)
            ids = order.epoch(epoch)[16 * within : 16 * (within + 1)]
            pair = [views(images.images[ids], seed=recipe.seed, epoch=epoch, view=v, sample_ids=ids) for v in (0, 1)]
            yield (
                pair,
                images.labels[ids],
                [(1,)] * len(ids),
                bank_rank,
                cosine_rate(step, recipe, -(-len(images) // 16)),
            )

    twin, lines = plain_training(recipe, encoder, (keys, labels), batches())
    assert_replayed(tmp_path / "run", encoder, twin, (keys, labels), lines)
    moved = max(float((value.detach() - start[name]).abs().max()) for name, value in encoder.named_parameters())
    assert moved > 0.003  # or all of this would have compared the start with itself


def test_the_loss_of_samples_held_out_is_their_mean_without_batch_statistics(tmp_path):
    """After an epoch in which no weight moves, so that everything it is made from lies in the checkpoint."""
    path = write_recipe(
        tmp_path,
        **BASE
        | {
            "model": TINY["model"],
            "data": BASE["data"] | {"limit": 90, "validation": 0.3},
            "schedule": {"kind": "plateau"},
            "optimizer": {"lr": 1e-30},
            "train": {"epochs": 1, "batch": 20},
        },
    )
    recipe = load_recipe(path)
    rince("train", path, "--out", tmp_path / "run")
    logged = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    saved = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)
    encoder, twin = (open_trained(tmp_path / "run").encoder.eval() for _ in range(2))
    twin.load_state_dict({name.removeprefix("module."): value for name, value in saved["twin"].items()})
    images = load_images("fashion", "train", limit=90)
    held_out = torch.tensor(held_out_by_name(map(str, range(90)), images.labels.tolist(), 0.3))
    assert len(held_out) == 30  # three of the nine of each class
    views, names = PixelViews(**dict(recipe.views)), images.class_names
    labels = saved["bank"]["labels"].tolist()
    assert min(labels) >= 0  # the bank is full
    total = 0.0
    for ids in held_out.split(20):  # two batches, which do not weigh the same
        query, key = (views(images.images[ids], seed=recipe.seed, epoch=-1, view=v, sample_ids=ids) for v in (0, 1))
        with torch.no_grad():
            queries, keys = encoder(query).double(), twin(key).double()
        own = (queries * keys).sum(dim=1, keepdim=True)
        similarities = torch.cat([own, queries @ saved["bank"]["keys"].double().T], dim=1)
        ranks = [[1, *(rank_of(names[int(images.labels[i])], names[label]) for label in labels)] for i in ids]
        terms = [(t.temperature, t.positives, t.includes_closer) for t in recipe.loss.terms]
        total += naive_loss(similarities.tolist(), ranks, terms) * len(ids)
    assert logged["validation/loss"] == pytest.approx(total / 30, rel=1e-4)
    assert saved["validation"] == [logged["validation/loss"]]
