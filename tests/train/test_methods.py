"""Every method trains through the same loop: learns, resumes to the same bits, is evaluated."""

import json

import pytest
import torch

from rince.train.checkpoint import load_checkpoint
from train.tiny import TINY, rince, write_recipe

OWN_LOSS = {"loss": None, "bank": None}  # sections that the method does not have
PLATEAU = {
    "data": TINY["data"] | {"validation": 0.1},
    "schedule": {"kind": "plateau", "patience": 0, "factor": 0.5},
}
METHODS = {
    "cross-entropy": {"method": {"kind": "cross-entropy"}, **OWN_LOSS},
    "smooth-labels": {"method": {"kind": "cross-entropy", "smoothing": 0.2}, **OWN_LOSS},
    "two-heads": {"method": {"kind": "cross-entropy", "superclass_weight": 0.3}, **OWN_LOSS},
    "scl-two-heads": {
        "method": {"kind": "contrast-two-heads", "superclass_weight": 0.4},
        "loss": {"terms": [{"temperature": 0.1}]},
    },
    "scl-two-heads in a batch": {
        "method": {"kind": "in-batch-two-heads", "superclass_weight": 0.4},
        "loss": {"terms": [{"temperature": 0.1}]},
        "bank": None,
    },
    "triplet": {"method": {"kind": "triplet", "margins": [0.3, 0.6, 0.9]}, "loss": None},
    "hierarchical-triplet": {
        "method": {"kind": "hierarchical-triplet", "anchors": 3, "near": 4, "random": 17},
        **OWN_LOSS,
    },
    "fast-ap": {"method": {"kind": "fast-ap", "categories": 2}, **OWN_LOSS},
    "dropout": {"method": {"kind": "cross-entropy", "dropout": 0.3}, **OWN_LOSS},
    "ranked batches": {"data": TINY["data"] | {"batches": "ranked", "balance": "classes", "validation": 0.1}},
    "plateau": PLATEAU,
    "cross-entropy-plateau": {
        "method": {"kind": "cross-entropy"},
        **PLATEAU,
        **OWN_LOSS,
    },
}


def lines(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def state(run):
    return load_checkpoint(run / "last.ckpt", {"encoder"})


@pytest.mark.parametrize("name", METHODS)
def test_a_method_learns_resumes_and_is_evaluated(name, tmp_path):
    recipe = write_recipe(tmp_path, **METHODS[name], train={"epochs": 6, "batch": 32})
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    rince("train", recipe, "--out", whole)
    rince("train", recipe, "train.max_steps=9", "--out", parts)
    text = (parts / "recipe.yaml").read_text()
    (parts / "recipe.yaml").write_text(text.replace("max_steps: 9", "max_steps: null"))
    rince("train", "--resume", parts)
    assert (whole / "metrics.jsonl").read_bytes() == (parts / "metrics.jsonl").read_bytes()
    one, other = state(whole), state(parts)
    assert one.keys() == other.keys()
    for key in ("encoder", "optimizer", *(k for k in ("twin", "bank", "loss") if k in one)):
        flat, again = (torch.utils._pytree.tree_leaves(each[key]) for each in (one, other))
        assert all(
            torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(flat, again, strict=True)
        )
    logged = lines(whole)
    if "plateau" in name:
        losses = [line["validation/loss"] for line in logged if "validation/loss" in line]
        assert losses == one["validation"]
        assert len(losses) == 6  # after every epoch
        rises = sum(later > min(losses[: place + 1]) for place, later in enumerate(losses[1:-1]))
        assert logged[-1]["lr"] == pytest.approx(0.1 * 0.5**rises if rises < 10 else 1e-4)
    # The bank of a contrastive method is empty at its first steps, so the loss is compared from the second epoch on.
    early, late = ([line["loss"] for line in logged if low <= line["epoch"] < high] for low, high in ((1, 2), (5, 6)))
    if name != "fast-ap":  # its loss depends more on which two superclasses make a batch than on a few epochs
        assert sum(late) / len(late) < sum(early) / len(early)
    rince("evaluate", whole)
    metrics = json.loads((whole / "results.json").read_text())["metrics"]
    assert metrics["retrieval/class/recall@1"] > 0.2  # ten classes


def test_the_terms_of_two_heads_are_logged_and_mixed(tmp_path):
    rince("train", write_recipe(tmp_path, **METHODS["two-heads"]), "train.max_steps=3", "--out", tmp_path / "run")
    for line in lines(tmp_path / "run"):
        mixed = 0.7 * line["term/fine"] + 0.3 * line["term/superclass"]
        assert line["loss"] == pytest.approx(mixed, abs=1e-6)
        right = 32 * line["accuracy"]
        assert right == pytest.approx(round(right), abs=1e-5)  # a share of 32 images
        assert 0 <= right <= 32


IN_BATCH = {"in-batch": {"method": {"kind": "in-batch"}, "bank": None}}  # candidates have gradients: by caching


@pytest.mark.parametrize(
    "name",
    [
        "cross-entropy",
        "two-heads",
        "scl-two-heads",
        "triplet",
        "in-batch",
        "scl-two-heads in a batch",
        "fast-ap",
        "hierarchical-triplet",
    ],
)
def test_a_batch_in_parts_has_the_gradient_of_the_whole(name, tmp_path):
    model = TINY["model"] | {"norm": "group"}
    recipe = write_recipe(tmp_path, **(METHODS | IN_BATCH)[name], model=model)
    # Two steps: after more, a unit that is barely on in one run and off in the other would show.
    rince("train", recipe, "train.max_steps=2", "--out", tmp_path / "whole")
    rince("train", recipe, "train.max_steps=2", "train.accumulate=4", "--out", tmp_path / "parts")
    whole, parts = state(tmp_path / "whole")["encoder"], state(tmp_path / "parts")["encoder"]
    for key, value in whole.items():
        assert parts[key] == pytest.approx(value, abs=1e-5), key


def test_batch_norm_sees_a_part_only_where_it_is_told_to(tmp_path):
    """Where candidates have gradients, a batch in parts promises those of the whole batch."""
    recipe = write_recipe(tmp_path, **IN_BATCH["in-batch"])
    command = ["train", recipe, "train.accumulate=2", "train.max_steps=1"]
    for option in (["--out", tmp_path / "run"], ["--dry-run"]):
        done = rince(*command, *option, check=False)
        assert done.returncode == 2
        assert "accept that with train.batch_norm=per-chunk" in done.stderr
        assert not (tmp_path / "run").exists()
    rince(*command, "train.batch_norm=per-chunk", "--out", tmp_path / "run")
    statistics = state(tmp_path / "run")["encoder"]["backbone.stem.1.num_batches_tracked"]
    assert statistics == 4  # two parts of two views


@pytest.mark.parametrize(
    ("changes", "overrides", "message"),
    [
        ({"method": {"kind": "cross-entropy"}}, [], "has a loss of its own; leave out `loss`"),
        ({"loss": None}, [], "needs loss.terms"),
        ({"method": {"kind": "tripled"}, "loss": None}, [], "'tripled'"),
        ({"method": {"kind": "triplet", "margin": [1]}, "loss": None}, [], "did you mean 'margins'?"),
        ({"method": {"kind": "triplet", "margins": [1]}, "loss": None}, [], "gives 3 ranks but method.margins has 1"),
        (METHODS["hierarchical-triplet"], ["train.batch=33"], "train.batch must be anchors · (1 + near) + random"),
        (METHODS["fast-ap"], ["train.batch_norm=per-chunk"], "is of train.accumulate, which is 1; leave it out"),
        (METHODS["fast-ap"], ["data.taxonomy=none"], "needs superclasses"),
        (METHODS["two-heads"], ["data.taxonomy=none"], "needs superclasses, and the classes of 'fashion' have none"),
        (
            METHODS["scl-two-heads"],
            ["data.taxonomy=none"],
            "needs superclasses, and the classes of 'fashion' have none",
        ),
        (METHODS["scl-two-heads"] | {"loss": TINY["loss"]}, [], "one term for both heads, got 3"),
    ],
)
def test_bad_settings_are_named(changes, overrides, message, tmp_path):
    done = rince("train", write_recipe(tmp_path, **changes), *overrides, "--out", tmp_path / "run", check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_loss_between_the_samples_of_a_batch_wants_one_device(tmp_path):
    recipe = write_recipe(tmp_path, **METHODS["fast-ap"])
    done = rince("train", recipe, "--devices", 2, "--accelerator", "cpu", "--out", tmp_path / "run", check=False)
    assert done.returncode == 2
    assert "use one device" in done.stderr
    assert not (tmp_path / "run").exists()


def test_ranked_batches_within_a_batch_have_every_rank_from_the_first_step(tmp_path):
    """No bank to hold the ranks: what a batch of 24 lacks no query has. Its samples come four of a class."""
    data = TINY["data"] | {"batches": "ranked", "per_class": 4}
    changes = {"method": {"kind": "in-batch"}, "bank": None, "train": {"epochs": 2, "batch": 24, "max_steps": 4}}
    rince("train", write_recipe(tmp_path, **changes, data=data), "--out", tmp_path / "run")
    steps = [line for line in lines(tmp_path / "run") if "loss" in line]
    assert steps
    for step in steps:
        used = [value for name, value in step.items() if name.startswith("queries/")]
        assert len(used) == 3, step
        assert min(used) > 0, step


def test_a_dry_run_names_the_method(tmp_path):
    shown = rince("train", write_recipe(tmp_path, **METHODS["triplet"]), "--dry-run").stdout
    assert "method     triplet: margins [0.3, 0.6, 0.9]" in shown


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"method": {"kind": "fast-ap"}, **OWN_LOSS},
            "fast-ap makes batches of its own kind; leave out data.batches=ranked",
        ),
        (
            {"method": {"kind": "cross-entropy"}, **OWN_LOSS},
            "data.batches=ranked needs ranks, which method.kind=cross-ent",
        ),
        (
            {"data": TINY["data"] | {"per_class": 4}},
            "data.per_class=4 is of data.batches=ranked, which is not asked for",
        ),
    ],
)
def test_ranked_batches_are_refused_where_there_is_nothing_to_make_them_of(changes, reason, tmp_path):
    recipe = write_recipe(tmp_path, **{"data": TINY["data"] | {"batches": "ranked"}} | changes)
    done = rince("validate", recipe, check=False)
    assert done.returncode == 2
    assert reason in " ".join(done.stderr.split())
