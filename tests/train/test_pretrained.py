"""Runs that start from a pretrained network: on features made once, or with all weights trained; against plain loops."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F
import yaml

import rince
from oracles.naive_loss import TENSORS, naive_loss
from rince.config import load_recipe
from rince.draws import NETWORK_DROPOUT, seed_of, uniform
from rince.encoders import huggingface as kind
from rince.encoders.features import Features
from rince.errors import DataError
from rince.train.loop import cost
from rince.train.setup import build_encoder, build_parts
from train.small_networks import (
    GROUPS,
    SIZE,
    write_bert,
    write_images,
    write_sentence_model,
    write_texts,
    write_vit,
)
from train.tiny import rince as command

QUICK = ["train.epochs=4", "train.batch=20", "log.logger=none", "log.every_steps=1", "model.dim=8", "data.validation=0"]
FINETUNE = ["model.tune=all", "optimizer.lr=0.01", "optimizer.backbone_lr=0.002", "optimizer.weight_decay=0.1"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    write_bert(folder / "bert")
    write_bert(folder / "still", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    write_vit(folder / "vit")
    write_texts(folder / "texts")
    write_images(folder / "photos")
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def seen(monkeypatch):
    """How many samples frozen networks see."""
    counts, through = [], Features._through

    def counting(self, batch):
        found = through(self, batch)
        counts.append(len(found))
        return found

    monkeypatch.setattr(Features, "_through", counting)
    return counts


def on_texts(made, *changes, recipe="text/rince-in", model="bert"):
    adapter = [] if "model.tune=all" in changes else ["model.standardise=false", "model.hidden=24"]
    model = ["model.kind=huggingface", f"model.name={made / model}", *adapter]
    return [recipe, f"data.source={made / 'texts'}", *model, *QUICK, *changes]


def lines_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def saved_of(run):
    return torch.load(run / "last.ckpt", weights_only=True)


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, other[name]), name
        elif isinstance(value, dict):
            assert_same(value, other[name])
        else:
            assert value == other[name], name


def test_features_are_made_once_for_all_runs_and_judging(made, seen, tmp_path):
    command("train", *on_texts(made), "--out", tmp_path / "run")
    assert sum(seen) == 60
    command("train", *on_texts(made, "seed=5"), "--out", tmp_path / "other")
    assert sum(seen) == 60
    command("evaluate", tmp_path / "run")
    assert sum(seen) == 120  # the test split
    command("evaluate", tmp_path / "other")
    command("train", "--resume", tmp_path / "run")
    assert sum(seen) == 120
    metrics = json.loads((tmp_path / "run" / "results.json").read_text())["metrics"]
    assert metrics["retrieval/class/recall@1"] > 0.3  # of four classes, by a network that knows nothing
    found = command("neighbours", tmp_path / "run", made / "texts" / "test.csv", made / "texts" / "train.csv").stdout
    folder = ["neighbours", tmp_path / "run", made / "texts" / "test.csv", made / "texts", "--split", "train"]
    of_split = [re.findall(r"\+0\.\d+", said) for said in (found, command(*folder).stdout)]
    assert of_split[0] == of_split[1]
    assert found.count("\n  ") == 60 * 5
    rows = [line.split(",")[0] for line in (made / "texts" / "train.csv").read_text().splitlines()[1:]]
    shown = found.splitlines()[1].split(maxsplit=2)  # cosine, place, text
    assert shown[2] == rows[int(shown[1].rpartition(":")[2]) - 2]
    assert "kept from before in" in command("train", *on_texts(made), "--dry-run").stdout


def test_a_run_notes_the_commit_of_a_network_from_the_hub(made, tmp_path):
    # As the hub's client keeps it, so that no network is needed.
    commit, kept = "0123456789abcdef0123456789abcdef01234567", tmp_path / "hub" / "hub" / "models--us--tiny-bert"
    shutil.copytree(made / "bert", kept / "snapshots" / commit)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text(commit)
    given = [each.replace(str(made / "bert"), "us/tiny-bert") for each in on_texts(made)]
    subprocess.run(
        [sys.executable, "-m", "rince", "train", *given, "--out", tmp_path / "run"],
        env=os.environ | {"HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"},
        check=True,
        capture_output=True,
    )
    notes = json.loads((tmp_path / "run" / "environment.json").read_text())["notes"]
    assert f"network: us/tiny-bert of the hub at commit {commit}" in notes


def without_times(told):
    """What a dry run says that is the same every time."""
    return re.sub(r"^time .*\n", "", told, flags=re.M)


@pytest.mark.parametrize("recipe", ["text/rince-in", "images/rince-in"])
def test_a_network_that_is_finetuned_learns_slowly_and_after_a_warm_up(recipe):
    frozen, whole = load_recipe(recipe), load_recipe(recipe, ["model.tune=all"])
    assert frozen.optimizer.backbone_lr is None
    assert whole.optimizer.backbone_lr * 5 <= whole.optimizer.lr
    assert whole.schedule.warmup_epochs > 0 == whole.schedule.warmup_from
    assert whole.train.batch < frozen.train.batch
    assert load_recipe(recipe, ["train.batch=7", "model.tune=all"]).train.batch == 7


def test_positives_are_expected_among_the_samples_that_there_are(made):
    whole = [*on_texts(made), "train.batch=512", "data.validation=0"]
    plan = command("train", *whole, "--dry-run").stdout
    assert "1: τ 0.1, in; 29.0 positives expected in a batch" in plan  # 60 texts, 4 classes, two views: 2 · 15 - 1
    assert "rank 1: 1.0 classes each, 29.0 positives expected in a batch" in command("ranks", "audit", *whole).stdout
    part = command("train", *whole, "train.batch=7", "--dry-run").stdout
    assert "1: τ 0.1, in; 3.8 positives expected in a batch" in part  # the other view, and 2 · 6 · 14 / 59


def test_what_a_run_costs_is_told_without_making_features(made, seen):
    found = cost(load_recipe(*on_texts(made)[:1], on_texts(made)[1:]))
    assert found.seconds > 0
    assert "once: about" in found.ahead[1]
    assert sum(seen) == 64  # twice the 32 that tell how long all take; not the 60 that there are
    frozen = cost(load_recipe("text/frozen", on_texts(made)[1:]))
    assert frozen.seconds == 0
    assert frozen.made_of == found.made_of


PROCESS = """
import json, sys
from rince.cli import app, main
for arguments in json.loads(sys.argv[1]):
    try:
        main(lambda: app(arguments))
    except SystemExit as error:
        assert not error.code
print("loaded:", *(name for name in ("transformers", "sentence_transformers") if name in sys.modules))
"""


def run_of(folder):
    """Everything a run says, without times."""
    results = json.loads((folder / "results.json").read_text())
    return lines_of(folder), results["metrics"], json.loads((folder / "validation.json").read_text())


@pytest.mark.slow
def test_with_features_kept_the_network_is_not_loaded_and_all_is_the_same(made, tmp_path):
    write_sentence_model(made / "sentences")
    kind._network.cache_clear(), kind._input_of.cache_clear()  # which other tests have filled
    held_out = "data.validation=0.2"
    sentences = ["model.kind=sentence-transformers", f"model.name={made / 'sentences'}", "model.prompt=query"]
    images = ["model.kind=huggingface", f"model.name={made / 'vit'}", *QUICK, held_out]
    recipes = {
        "words": on_texts(made, held_out),
        "sentences": ["text/rince-in", f"data.source={made / 'texts'}", *sentences, *QUICK, held_out],
        "images": ["images/rince-in", f"data.source={made / 'photos'}", *images],
    }
    plans = ""
    for name, recipe in recipes.items():
        command("train", *recipe, "--out", tmp_path / name)
        command("evaluate", tmp_path / name)
        plans += without_times(command("train", *recipe, "--dry-run").stdout)
    assert plans.count("texts have more than 12 tokens, and are cut there") == 1  # those with a prompt
    again = [["train", *recipe, "--out", str(tmp_path / f"{name}-again")] for name, recipe in recipes.items()]
    judged = [["evaluate", str(tmp_path / f"{name}-again")] for name in recipes]
    planned = [["train", *recipe, "--dry-run"] for recipe in recipes.values()]
    for each, expected in (([*again, *judged], ""), (planned, plans)):
        done = subprocess.run(
            [sys.executable, "-c", PROCESS, json.dumps(each)], capture_output=True, text=True, check=True
        )
        assert without_times(done.stdout).endswith(f"{expected}loaded:\n"), done.stdout
    for name in recipes:
        assert run_of(tmp_path / name) == run_of(tmp_path / f"{name}-again")
        assert_same(saved_of(tmp_path / name), saved_of(tmp_path / f"{name}-again"))


def test_training_on_features_is_training_on_the_same_vectors(made, tmp_path):
    command("train", *on_texts(made), "--out", tmp_path / "texts")
    recipe = load_recipe(tmp_path / "texts" / "recipe.yaml")
    source = build_parts(recipe).source
    names = np.array(source.class_names)[source.labels.numpy()]
    (tmp_path / "vectors").mkdir()
    np.savez(
        tmp_path / "vectors" / "train.npz",
        features=source.values.numpy(),
        labels=names,
        group=np.array([GROUPS[name] for name in names]),
    )
    changes = [f"data.source={tmp_path / 'vectors'}", "model.hidden=24", "data.test_part=0", *QUICK]
    command("train", "vectors/rince-in", *changes, "--out", tmp_path / "run")
    assert lines_of(tmp_path / "run") == lines_of(tmp_path / "texts")
    assert_same(saved_of(tmp_path / "run")["encoder"], saved_of(tmp_path / "texts")["encoder"])
    assert len(lines_of(tmp_path / "run")) == 12


def test_images_train_on_features_are_judged_and_planned(made, seen, tmp_path):
    network = ["model.kind=huggingface", f"model.name={made / 'vit'}", "model.features.views=2"]
    changes = [f"data.source={made / 'photos'}", *network, *QUICK, "data.validation=0.2"]
    plan = command("train", "images/rince-in", *changes, "--dry-run").stdout
    assert "40 images in 3 views through" in plan
    assert re.search(r"^features   [1-9]\d* images through", plan, re.M)  # to judge on, as they are
    alone = [each.replace(f"{made / 'photos'}", f"{made / 'photos' / 'train'}") for each in changes]
    told = command("train", "images/rince-in", *alone, "--dry-run").stdout
    assert "are set aside" in told
    assert told.count("\nfeatures ") == 1  # the part to judge on is of the same whole, whose features are made once
    assert "frozen (" in plan
    assert "ms each, of 32), then 0.0 MB in" in plan
    assert re.search(r"^time       about \d+ s of training, here$", plan, re.M)
    assert "terms 3 to 8 have no rank here" in plan
    assert "(hidden 768, standardise, tune adapter, features (noise 0.02, dropout 0.0, views 2), name" in plan
    seen.clear()
    done = command("train", "images/rince-in", *changes, "--out", tmp_path / "run")
    assert sum(seen) == 3 * 40
    assert "ℓ2" in done.stderr
    assert "ℓ3" not in done.stderr
    assert done.stderr.count("have no rank here") == 1
    command("evaluate", tmp_path / "run")
    assert sum(seen) == 3 * 40 + 40  # of the test split the plain view
    saved = saved_of(tmp_path / "run")["encoder"]
    recipe = load_recipe(tmp_path / "run" / "recipe.yaml")
    assert recipe.seen_views.size == SIZE
    parts = build_parts(recipe)
    trained = parts.source.values[[i for i in range(40) if i not in parts.held_out.tolist()]].double()
    assert 0 < len(parts.held_out) < 40
    assert saved["backbone.mean"] == pytest.approx(trained.mean(dim=0).float(), abs=1e-5)
    assert saved["backbone.spread"] == pytest.approx(trained.std(dim=0, correction=0).float(), abs=1e-5)


def test_the_dry_run_advises_those_who_have_a_hub(made):
    plan = command("train", "images/rince-in", f"data.source={made / 'photos'}", "views.size=32", "--dry-run").stdout
    assert "DINOv2 gives better features: model.kind=huggingface model.name=facebook/dinov2-small" in plan
    assert "through EfficientNet-Lite0, frozen (3,371,008 weights)" in plan


def test_texts_train_on_fixed_views(made, seen, tmp_path):
    changes = on_texts(made, "model.features.views=2", "views.word_dropout=0.3")
    command("train", *changes, "--out", tmp_path / "run")
    assert sum(seen) == 60 * 2  # nobody asked for the plain view: nothing is standardised or judged
    done = command("train", *on_texts(made, "model.features.views=2"), "--out", tmp_path / "none", check=False)
    assert done.returncode == 2
    assert "set views.word_dropout" in done.stderr
    assert not (tmp_path / "none").exists()


def test_a_run_is_not_opened_with_other_weights(made, tmp_path):
    shutil.copytree(made / "bert", tmp_path / "bert")
    command("train", *on_texts(made, f"model.name={tmp_path / 'bert'}"), "--out", tmp_path / "run")
    shutil.rmtree(tmp_path / "bert")
    write_bert(tmp_path / "bert", seed=3)
    kind._network.cache_clear()
    done = command("evaluate", tmp_path / "run", check=False)
    assert done.returncode == 2
    assert "was trained on what other weights of model.kind=huggingface make of its samples" in done.stderr
    done = command("train", "--resume", tmp_path / "run", check=False)
    assert done.returncode == 2
    assert "other weights of model.kind=huggingface" in done.stderr


@pytest.mark.parametrize("changes", [["model.standardise=true"], [*FINETUNE, "views.word_dropout=0.2"]])
def test_a_run_that_goes_on_is_the_run_that_was_not_interrupted(changes, made, tmp_path):
    """With all weights trained, dropout of the network is drawn as if nothing had happened."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    command("train", *on_texts(made, *changes, "train.max_steps=7"), "--out", whole)
    command("train", *on_texts(made, *changes, "train.max_steps=4"), "--out", parts)
    text = (parts / "recipe.yaml").read_text()
    (parts / "recipe.yaml").write_text(text.replace("max_steps: 4", "max_steps: 7"))
    torch.rand(99)  # whatever others draw meanwhile
    command("train", "--resume", parts)
    assert lines_of(parts) == lines_of(whole)
    assert len({line["loss"] for line in lines_of(whole)}) == 7
    one, other = saved_of(whole), saved_of(parts)
    assert_same(one["encoder"], other["encoder"])
    assert_same(one["optimizer"]["state"], other["optimizer"]["state"])


def ranks_of(source, labels):
    """-1 for itself, 1 for the same class, 2 for the same group, by the names."""
    names = [source.class_names[label] for label in labels.tolist()]
    ranks = [[1 if a == b else 2 if GROUPS[a] == GROUPS[b] else 0 for b in names] for a in names]
    for i in range(len(names)):
        ranks[i][i] = -1
    return ranks


def first_step(run, seed_dropout):
    """The first step of a run by a plain loop: the encoder at its start, its loss, and its gradients by name."""
    recipe = load_recipe(run / "recipe.yaml")
    parts = build_parts(recipe)
    encoder = build_encoder(recipe, parts.source.shape, parts.group_counts)
    ids = uniform(recipe.seed, 0, 2**31 - 1, torch.arange(60), 1)[:, 0].argsort(stable=True)[:20]
    views = parts.source.finish(parts.source.load(ids, (0, 1), seed=recipe.seed, epoch=0), torch.device("cpu")).views
    if seed_dropout:
        torch.manual_seed(seed_of(recipe.seed, 0, NETWORK_DROPOUT, 0))
    embeddings = torch.cat([encoder(view) for view in views])
    return recipe, parts.source, encoder, embeddings, parts.source.labels[ids].repeat(2)


def naive_value(embeddings, ranks, terms):
    rows = [[(a * b).sum() for b in embeddings] for a in embeddings]
    return naive_loss(rows, ranks, terms, ops=TENSORS)


def test_the_network_has_a_rate_of_its_own(made, tmp_path):
    """One step of AdamW by its formula, with the decay on the weights themselves."""
    run = tmp_path / "run"
    command("train", *on_texts(made, *FINETUNE, "train.max_steps=1", model="still"), "--out", run)
    _, source, encoder, embeddings, labels = first_step(run, seed_dropout=False)
    terms = [(0.1, "in", False), (0.225, "in", False)]
    loss = naive_value(embeddings, ranks_of(source, labels), terms)
    assert lines_of(run)[0]["loss"] == pytest.approx(float(loss.detach()), abs=1e-4)
    assert lines_of(run)[0]["lr"] == 0.01
    loss.backward()
    saved, checked = saved_of(run)["encoder"], {"backbone": 0, "head": 0}
    for name, parameter in encoder.named_parameters():
        if parameter.grad is None:
            continue
        rate = 0.002 if name.startswith("backbone.") else 0.01
        start, gradient = parameter.detach(), parameter.grad
        expected = start * (1 - rate * 0.1) - rate * gradient / (gradient.abs() + 1e-8)
        clear = gradient.abs() > 1e-4  # of others the sign is chance
        checked[name.partition(".")[0]] += int(clear.sum())
        assert saved[name][clear] == pytest.approx(expected[clear], abs=2e-6), name
    assert checked["backbone"] > 1000  # gradients reach the network
    assert checked["head"] > 100


def test_two_views_of_a_text_are_two_draws_of_dropout(made, tmp_path):
    run = tmp_path / "run"
    command("train", *on_texts(made, *FINETUNE, "train.max_steps=2"), "--out", run)
    _, source, encoder, embeddings, labels = first_step(run, seed_dropout=True)
    embeddings = embeddings.detach()
    assert float((embeddings[:20] * embeddings[20:]).sum(dim=1).max()) < 0.9999
    value = naive_value(embeddings, ranks_of(source, labels), [(0.1, "in", False), (0.225, "in", False)])
    assert lines_of(run)[0]["loss"] == pytest.approx(float(value), abs=1e-4)
    encoder.eval()
    tokens = source.plain(torch.arange(5))
    assert torch.equal(encoder(tokens), encoder(tokens))
    plan = command("train", *on_texts(made, *FINETUNE), "--dry-run").stdout
    assert "; of the network 0.2 of that" in plan
    assert "(tune all, batch_norm frozen, name" in plan
    assert "features   " not in plan


def test_images_are_finetuned_too(made, tmp_path):
    network = ["model.kind=huggingface", f"model.name={made / 'vit'}", *FINETUNE]
    changes = [f"data.source={made / 'photos'}", *network, *QUICK, "train.epochs=1"]
    command("train", "images/scl-out", *changes, "--out", tmp_path / "run")
    start = kind._network(str(made / "vit"), None, "mean").module.state_dict()
    saved = saved_of(tmp_path / "run")["encoder"]
    moved = [name for name, value in start.items() if not torch.equal(value, saved[f"backbone.network.{name}"])]
    assert any("encoder" in name or "layers" in name for name in moved)
    command("evaluate", tmp_path / "run")
    done = command(
        "train", "images/scl-out", *changes, "views.size=24", "--out", tmp_path / "size", check=False
    )  # which this network cannot take
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "size").exists()


def test_outliers_are_noted_as_they_lie_there_whatever_a_network_is_given(made, tmp_path):
    (tmp_path / "far.txt").write_text("z z z\ny y\nx\n")
    noted = []
    for name, changes in (("adapter", []), ("finetuned", FINETUNE)):
        command("train", *on_texts(made, *changes, "train.epochs=1"), "--out", tmp_path / name)
        command("evaluate", tmp_path / name, "--outliers", tmp_path / "far.txt")
        noted.append(json.loads((tmp_path / name / "results.json").read_text())["outliers"])
    assert noted[0] == noted[1]
    assert list(noted[0]) == ["far.txt"]


def test_a_size_that_a_frozen_network_cannot_take_is_one_clear_error(made, tmp_path):
    network = ["model.kind=huggingface", f"model.name={made / 'vit'}", "views.size=24"]
    changes = ["images/rince-in", f"data.source={made / 'photos'}", *network]
    done = command("train", *changes, "--out", tmp_path / "run", check=False)
    assert done.returncode == 2
    assert "cannot take float32 (32, 3, 24, 24)" in done.stderr


def test_nothing_is_trained_by_frozen(made, tmp_path):
    run = tmp_path / "run"
    frozen = on_texts(made, recipe="text/frozen")
    assert "steps      none: nothing is trained" in command("train", *frozen, "--dry-run").stdout
    command("train", *frozen, "--out", run)
    assert lines_of(run) == []
    features = rince.open_run(run).embed(made / "texts" / "test.csv")
    network = kind._network(str(made / "bert"), None, "mean")
    opened = load_recipe(run / "recipe.yaml").data.open("test", load_recipe(run / "recipe.yaml").views)
    with torch.no_grad():
        assert features == pytest.approx(network.module(network.fit(opened).plain(torch.arange(60))), abs=1e-5)
    assert_same(network.module.state_dict(), kind._network(str(made / "bert"), None, "mean").module.state_dict())
    written = list(opened.texts[:3])
    for given, expected in ((written, features[:3]), (opened, features)):  # words, and a source as it was opened
        assert rince.open_run(run).embed(given) == pytest.approx(expected, abs=1e-5)
    with pytest.raises(DataError, match="text 1 of 2 is empty; take it out"):
        rince.open_run(run).embed(["a text", " "])
    command("evaluate", run)
    metrics = json.loads((run / "results.json").read_text())["metrics"]
    assert metrics["retrieval/class/recall@1"] > 0.2
    assert not any("after the head" in name for name in metrics)
    command("train", "--resume", run)
    assert saved_of(run)["step"] == 0


@pytest.mark.parametrize("positives", ["in", "out"])
def test_the_first_step_of_two_heads_is_that_of_a_naive_loop(positives, made, tmp_path):
    run = tmp_path / "run"
    changes = ["train.max_steps=1", "method.superclass_weight=0.4", "optimizer.weight_decay=0.1"]
    command("train", *on_texts(made, *changes, recipe=f"text/scl-{positives}-two-heads"), "--out", run)
    recipe, source, encoder, _, labels = first_step(run, seed_dropout=False)
    assert recipe.method.kind == "in-batch-two-heads"
    ids = uniform(recipe.seed, 0, 2**31 - 1, torch.arange(60), 1)[:, 0].argsort(stable=True)[:20]
    views = source.finish(source.load(ids, (0, 1), seed=recipe.seed, epoch=0), torch.device("cpu")).views
    features = encoder.features(torch.cat(views))
    fine, superclass = (F.normalize(head(features), dim=1) for head in encoder.head.heads)
    ranks = ranks_of(source, labels)
    by_class = [[1 if r == 1 else -1 if r == -1 else 0 for r in row] for row in ranks]
    by_group = [[1 if r in (1, 2) else -1 if r == -1 else 0 for r in row] for row in ranks]
    parts = [
        naive_value(embeddings, wanted, [(0.1, positives, False)])
        for embeddings, wanted in ((fine, by_class), (superclass, by_group))
    ]
    loss = 0.6 * parts[0] + 0.4 * parts[1]
    logged = lines_of(run)[0]
    assert logged["loss"] == pytest.approx(float(loss.detach()), abs=1e-4)
    assert logged["term/fine"] == pytest.approx(float(parts[0].detach()), abs=1e-4)
    assert logged["term/superclass"] == pytest.approx(float(parts[1].detach()), abs=1e-4)
    loss.backward()
    saved, checked = saved_of(run)["encoder"], 0
    for name, parameter in encoder.named_parameters():
        start, gradient = parameter.detach(), parameter.grad
        expected = start * (1 - 0.001 * 0.1) - 0.001 * gradient / (gradient.abs() + 1e-8)
        clear = gradient.abs() > 1e-4
        checked += int(clear.sum())
        assert saved[name][clear] == pytest.approx(expected[clear], abs=2e-6), name
    assert checked > 500


def test_a_text_is_a_query_never_a_gallery_and_files_keep_their_labels(made, tmp_path):
    run, gallery, out = tmp_path / "run", made / "texts" / "test.csv", tmp_path / "vectors.parquet"
    command("train", *on_texts(made), "--out", run)
    done = command("neighbours", run, "a small dog", gallery, "-k", 2)
    assert done.stderr.count("taken as one text: 'a small dog'") == 1
    assert f"next: rince index {run}" in done.stderr  # there is no picture of a text to hint at
    assert len(done.stdout.splitlines()) == 3
    missing = command("neighbours", run, "a small dog", "no-such-folder", check=False)
    assert missing.returncode == 2
    assert "'no-such-folder' does not exist; give a file or a folder" in missing.stderr
    with pytest.raises(DataError, match="'no-such-folder' does not exist"):
        rince.open_run(run).embed(Path("no-such-folder"))
    assert "taken as one text: 'oak'" in command("embed", run, "oak", "--out", out).stderr
    assert pq.read_table(out).column_names == ["path", "vector"]
    assert "taken as" not in command("embed", run, gallery, "--out", out).stderr
    table, rows = pq.read_table(out), [line.split(",") for line in gallery.read_text().splitlines()[1:]]
    assert table["label"].to_pylist() == [label for _, label, _ in rows]
    assert table[table.column_names[3]].to_pylist() == [group for *_, group in rows]


def test_settings_that_do_not_fit_are_refused(made, tmp_path):
    for change, reason in (
        ("optimizer.backbone_lr=0.1", "optimizer.backbone_lr is for a network that starts from weights"),
        ("model.tune=some", "'adapter' or 'all'"),
    ):
        done = command("train", *on_texts(made, change), "--dry-run", check=False)
        assert done.returncode == 2
        assert reason in done.stderr
    command("train", *on_texts(made, "train.epochs=1"), "--out", tmp_path / "run")
    start = [f"model.start_from={tmp_path / 'run'}", "optimizer.backbone_lr=0.0001"]
    command("train", *on_texts(made, *start, "train.epochs=1"), "--out", tmp_path / "again")


def test_a_recipe_may_hold_the_model_as_it_is(made, tmp_path):
    command("train", *on_texts(made, "train.max_steps=1"), "--out", tmp_path / "run")
    said = yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())["model"]
    assert said["features"] == {"noise": 0.02, "dropout": 0.0, "views": 0}
    assert (said["tune"], said["pool"], said["revision"]) == ("adapter", "mean", None)


def test_terms_without_a_rank_take_no_part(made, tmp_path):
    """With two levels, "SCL summed over levels" is the sum of two losses, however many terms the recipe has."""
    run = tmp_path / "run"
    command("train", *on_texts(made, "train.max_steps=1", recipe="text/scl-levels"), "--out", run)
    recipe, source, _, embeddings, labels = first_step(run, seed_dropout=False)
    assert len(recipe.terms) == 8
    expected = naive_value(embeddings.detach(), ranks_of(source, labels), [(0.1, "in", True), (0.1, "in", True)])
    (logged,) = lines_of(run)
    assert logged["loss"] == pytest.approx(float(expected), abs=1e-4)
    assert [name for name in logged if name.startswith("term/")] == ["term/1", "term/2"]
