"""Test sets that are not what they seem: classes that training lacks, copies of training samples, names unlike."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import recall_score

from rince.config import load_recipe
from rince.evaluation.evaluate import evaluate_files
from rince.evaluation.judge import judge
from rince.evaluation.samples import Samples
from rince.train.setup import build_parts
from train.tiny import rince

GROUPS = {"poodle": "dogs", "pug": "dogs", "manx": "cats", "oak": "trees"}
FAST = ["train.epochs=1", "train.batch=20", "log.logger=none", "model.dim=8", "data.validation=0"]


def vectors_of(classes, number, seed, dim=6):
    centres = {name: np.random.default_rng(sum(map(ord, name))).normal(size=dim) for name in GROUPS}
    names = np.array([classes[i % len(classes)] for i in range(number)])
    noise = np.random.default_rng(seed).normal(size=(number, dim))
    return (np.stack([centres[name] for name in names]) + 0.7 * noise).astype(np.float32), names


def write(path, vectors, names):
    path.parent.mkdir(exist_ok=True)
    np.savez(path, features=vectors, labels=names, group=np.array([GROUPS[name] for name in names]))
    return path


@pytest.fixture(scope="module")
def lacking(tmp_path_factory):
    """Training lacks pug, whose group it has, and oak, whose group it lacks."""
    folder = tmp_path_factory.mktemp("lacking") / "vectors"
    write(folder / "train.npz", *vectors_of(["poodle", "manx"], 40, 1))
    write(folder / "test.npz", *vectors_of(list(GROUPS), 42, 2))
    return folder


def test_classes_of_the_test_set_alone_do_not_count_by_class_but_by_a_group_that_training_has(lacking):
    said = []
    found = evaluate_files(lacking / "train.npz", lacking / "test.npz", say=said.append)
    train, test = (np.load(lacking / f"{split}.npz") for split in ("train", "test"))
    unit = [each["features"] / np.linalg.norm(each["features"], axis=1, keepdims=True) for each in (test, train)]
    near = (unit[0] @ unit[1].T).argmax(1)
    for level, known in (("labels", ["poodle", "manx"]), ("group", ["dogs", "cats"])):
        counts = np.isin(test[level], known)
        right = train[level][near] == test[level]
        name = "class" if level == "labels" else "group"
        assert found.metrics[f"retrieval/{name}/recall@1"] == pytest.approx(right[counts].mean())
        assert np.isnan(found.queries[f"retrieval/{name}/recall@1"].numpy()).tolist() == (~counts).tolist()
        chance = [(train[level] == each).mean() for each in test[level][counts]]
        assert found.metrics[f"retrieval/{name}/chance@1"] == pytest.approx(np.mean(chance))
        means = recall_score(test[level][counts], train[level][near][counts], average="macro", labels=known)
        uneven = f"retrieval/{name}/class_mean_recall@1"
        assert found.metrics.get(uneven, means) == pytest.approx(means)
    counts = np.isin(test["labels"], ["poodle", "manx"])
    for name in ("probe/accuracy", "ranking/ndcg", "ranking/order_accuracy", "ranking/ancestor_height"):
        assert found.queries[name].isnan().tolist() == (~counts).tolist(), name
    [told] = [line for line in said if "no training sample" in line]
    assert "2 classes of the test set have no training sample: 'oak', 'pug'; 21 test samples" in told


def test_outliers_are_told_from_samples_of_known_classes(lacking):
    (train, of_train), (test, of_test) = vectors_of(["poodle", "manx"], 40, 1), vectors_of(list(GROUPS), 42, 2)
    numbers = {name: number for number, name in enumerate(GROUPS)}
    sets = [
        Samples(torch.from_numpy(vectors), {"class": torch.tensor([numbers[name] for name in names])})
        for vectors, names in ((train, of_train), (test, of_test))
    ]
    known = torch.isin(sets[1].labels, sets[0].labels)
    only = Samples(sets[1].features[known], {"class": sets[1].labels[known]})
    far = {"far": torch.randn(30, 6, generator=torch.Generator().manual_seed(0)) + 1}
    all_of_them, some = (judge(sets[0], each, outliers=far) for each in (sets[1], only))
    for name in ("outliers/far/auroc", "outliers/far/fpr@95", "outliers/far/auroc_neighbours", "probe/accuracy"):
        assert all_of_them.metrics[name] == pytest.approx(some.metrics[name]), name


def test_a_class_that_training_lacks_is_said_by_every_command_and_recorded(lacking, tmp_path):
    changes = ["vectors/rince-in", f"data.source={lacking}", *FAST]
    told = rince("train", *changes, "--dry-run").stdout
    assert "2 classes have no training vector: 'oak', 'pug'; nothing is learned of them, nor judged by class" in told
    assert "split 'test': 21 vectors of classes that training has none of" in told
    trained = rince("train", *changes, "--out", tmp_path / "run")
    assert "2 classes have no training vector: 'oak', 'pug'" in trained.stderr + trained.stdout
    said = rince("evaluate", tmp_path / "run").stderr
    assert "2 classes of the test set have no training sample: 'oak', 'pug'; 21 test samples of them left out" in said
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["unseen"] == {"vectors": {"oak": 10, "pug": 11}}
    assert "'oak'" in results["protocol"]["classes of the test set alone"]


def test_a_test_set_of_other_classes_alone_is_refused(tmp_path):
    train = write(tmp_path / "train.npz", *vectors_of(["poodle", "manx"], 20, 1))
    test = write(tmp_path / "test.npz", *vectors_of(["pug"], 20, 2))
    done = rince("evaluate", "--embeddings", train, test, check=False)
    assert done.returncode == 2
    assert "no test sample is of a class that the training set has" in done.stderr


def test_copies_of_training_samples_are_counted_and_said(tmp_path):
    train, names = vectors_of(list(GROUPS), 40, 1)
    test, of_test = vectors_of(list(GROUPS), 20, 2)
    test[3], test[7] = train[3], train[11]
    folder = tmp_path / "vectors"
    files = [write(folder / "train.npz", train, names), write(folder / "test.npz", test, of_test)]
    said = rince("evaluate", "--embeddings", *files, "--out", tmp_path / "numbers.json").stderr
    assert "next: rince train vectors/rince-in" in said
    assert "2 of 20 test samples have the content of a training sample" in said
    assert json.loads((tmp_path / "numbers.json").read_text())["copies"] == 2
    rince("train", "vectors/rince-in", f"data.source={folder}", *FAST, "--out", tmp_path / "run")
    said = rince("evaluate", tmp_path / "run").stderr
    assert "2 of 20 test samples have the content of a training sample" in said
    assert json.loads((tmp_path / "run" / "results.json").read_text())["copies"] == {"vectors": 2}


def test_classes_whose_names_look_alike_are_said_wherever_data_is_opened(tmp_path):
    vectors, names = vectors_of(["poodle", "manx"], 20, 1)
    composed, apart = "caf\u00e9", "cafe\u0301"
    there = {"train": ["poodle", composed], "test": ["Poodle", apart]}
    for split, (one, other) in there.items():
        (tmp_path / "data").mkdir(exist_ok=True)
        called = np.where(names == "poodle", one, other)
        called[:2] = there["train"]  # both splits have something in common
        np.savez(tmp_path / "data" / f"{split}.npz", features=vectors + len(split), labels=called)
    told = r"differ by case or Unicode form alone count as different ones: 'Poodle' and 'poodle'; 'cafe\u0301' and"
    changes = ["vectors/rince-in", f"data.source={tmp_path / 'data'}", "ranks={kind: classes}", *FAST]
    assert told in rince("train", *changes, "--dry-run").stdout
    trained = rince("train", *changes, "--out", tmp_path / "run")
    assert told in trained.stdout + trained.stderr
    assert told in rince("evaluate", tmp_path / "run").stderr
    files = [tmp_path / "data" / f"{split}.npz" for split in ("train", "test")]
    assert told in rince("evaluate", "--embeddings", *files).stderr


@pytest.mark.parametrize("kind", ["folders", "csv"])
def test_names_alike_are_said_of_images_and_texts(kind, tmp_path):
    data = tmp_path / "data"
    if kind == "folders":
        for place in ("train/Cat", "train/dog", "test/cat", "test/dog"):
            (data / place).mkdir(parents=True)
            for number in range(3):
                Image.new("RGB", (32, 32), (10 * number, 9, 9)).save(data / place / f"{number}.png")
        parts = build_parts(load_recipe("images/rince-in", [f"data.source={data}", "ranks={kind: classes}"]))
    else:
        data.mkdir()
        for split, name in (("train", "Cat"), ("test", "cat")):
            (data / f"{split}.csv").write_text(f"text,label\na b,{name}\nb c,{name}\nc d,dog\nd e,dog\n")
        changes = [f"data.source={data}", "ranks={kind: classes}", "data.validation=0"]
        parts = build_parts(load_recipe("text/rince-in", changes))
    assert any("'Cat' and 'cat'" in note for note in parts.told)
