"""`rince evaluate`, `embed`, `neighbours` and `export`, on a run that trained for a second."""

import json
import os
import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file, save_file

import rince as rince_package
from rince.config import load_recipe
from rince.errors import DataError
from rince.evaluation import (
    ClassGaussians,
    auroc,
    fpr_at_recall,
    linear_probe,
    mean_average_precision,
    neighbour_score,
    recall_at_k,
)
from rince.evaluation.evaluate import evaluate
from rince.evaluation.judge import judge
from rince.evaluation.lookup import CAPTION, MARGIN, THUMB
from rince.evaluation.metrics import parse
from rince.evaluation.queries import read_queries
from rince.evaluation.samples import Samples, read_samples
from rince.evaluation.trained import Embedded, embed_once, made_of, open_trained
from rince.sources.image_files import find_images
from rince.sources.images import load_images
from rince.train.checkpoint import save_checkpoint
from rince.views.pixels import PixelViews
from train.tiny import STEPS, rince, write_recipe


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    rince("train", write_recipe(folder), "--out", folder / "run")
    return folder / "run"


@pytest.fixture
def run(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Some test images as files, one of them RGB and larger."""
    folder = tmp_path_factory.mktemp("pictures")
    images = load_images("fashion", "test").images[:6, 0].numpy()
    for number, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{number}.png")
    Image.fromarray(images[0]).convert("RGB").resize((56, 56)).save(folder / "large.jpg")
    return folder


def features_by_hand(run, images):
    trained = open_trained(run)
    with torch.no_grad():
        return trained.encoder.features(trained.recipe.views.build().resize_and_normalise(images))


def test_results_are_what_the_functions_give_on_features_made_by_hand(run):
    shown = rince("evaluate", run).stdout
    results = json.loads((run / "results.json").read_text())
    train, test = load_images("fashion", "train", limit=200), load_images("fashion", "test")
    train_features, test_features = features_by_hand(run, train.images), features_by_hand(run, test.images)
    groups = {"T-shirt/top": 0, "Shirt": 0, "Trouser": 1, "Dress": 1, "Pullover": 2, "Coat": 2, "Bag": 4}
    group = torch.tensor([groups.get(name, 3) for name in train.class_names])
    labels = {"query_labels": test.labels, "gallery_labels": train.labels}
    coarse = {"query_labels": group[test.labels], "gallery_labels": group[train.labels]}
    expected = {
        "retrieval/class/recall@1": recall_at_k(test_features, train_features, **labels),
        "retrieval/group/recall@1": recall_at_k(test_features, train_features, **coarse),
        "retrieval/class/map": mean_average_precision(test_features, train_features, **labels),
        "retrieval/group/map": mean_average_precision(test_features, train_features, **coarse),
        "probe/accuracy": linear_probe(
            train_features, test_features, train_labels=train.labels, test_labels=test.labels
        ).accuracy,
    }
    for name, value in expected.items():
        assert results["metrics"][name] == pytest.approx(value, abs=2e-3), name
        assert name in shown
    assert {"ranking/ndcg", "ranking/order_accuracy", "geometry/uniformity", "geometry/department/alignment"} <= set(
        results["metrics"]
    )
    assert results["step"] == results["of_steps"] == STEPS
    noted = json.loads((run / "figures.json").read_text())["sets"]["fashion"]
    assert {side: len(noted[side]["labels"]) for side in ("train", "test")} == {"train": 200, "test": 2000}
    judged = {"train": load_images("fashion", "train", limit=200), "test": load_images("fashion", "test")}
    assert results["data"] == {"fashion": {side: images.fingerprint for side, images in judged.items()}}
    assert results["data"]["fashion"] == {side: noted[side]["fingerprint"] for side in judged}
    assert results["protocol"].keys() == {parse(name).protocol for name in results["metrics"]}
    assert "L-BFGS" in results["protocol"]["probe/accuracy"]


def test_embeddings_after_the_head_are_judged_beside_the_features(run, pictures):
    rince("evaluate", run, "--outliers", pictures)
    metrics = json.loads((run / "results.json").read_text())["metrics"]
    kept = {name: load_file(run / "features" / f"{name}.safetensors")["embeddings"] for name in
            ("train", "test", f"outliers-{pictures.name}")}  # fmt: skip
    train, test, outliers = kept.values()
    labels = [load_images("fashion", split, limit=limit).labels for split, limit in (("train", 200), ("test", None))]
    asked = {"query_labels": labels[1], "gallery_labels": labels[0]}
    gaussians = ClassGaussians(train, labels[0])
    expected = {
        "retrieval/class/recall@1": recall_at_k(test, train, **asked),
        "retrieval/class/map": mean_average_precision(test, train, **asked),
        "probe/accuracy": linear_probe(train, test, train_labels=labels[0], test_labels=labels[1]).accuracy,
        f"outliers/{pictures.name}/auroc": auroc(gaussians.score(test), gaussians.score(outliers)),
    }
    for name, value in expected.items():
        assert metrics[f"{name} after the head"] == pytest.approx(value, abs=1e-6), name
        assert metrics[f"{name} after the head"] != metrics[name]
    found = read_queries(run)
    assert found.checkpoint == json.loads((run / "results.json").read_text())["checkpoint"]
    noted = json.loads((run / "figures.json").read_text())["sets"]["fashion"]
    assert found.tests == {"": noted["test"]["fingerprint"]}
    assert len(found.values) == 2 * (1 + 9 + 4 + 5 + 3)  # probe, found, means over classes of groups, ranking, outliers
    for name, values in found.values.items():
        assert values.shape == (2000,)
        assert values.dtype == torch.float32
        assert float(values.double().nanmean()) == pytest.approx(metrics[name], abs=1e-6), name
    (run / "queries.safetensors").write_bytes(b"cut short")
    assert read_queries(run) is None


@pytest.mark.parametrize("changes", [{"classifies": True}, {"head": torch.nn.Identity()}], ids=["classes", "no head"])
def test_what_is_no_head_is_not_judged_again(changes, run, monkeypatch):
    trained = open_trained(run)
    assert trained.has_head
    if "head" in changes:
        trained.encoder.head = changes["head"]
    else:
        monkeypatch.setattr(type(trained.recipe.method), "classifies", True)
    assert not trained.has_head
    monkeypatch.setattr("rince.evaluation.evaluate.open_trained", lambda *_, **__: trained)
    monkeypatch.setattr("rince.evaluation.evaluate.classify", lambda run, source, **_: source.labels)
    assert all(parse(name).place == "before" for name in evaluate(run).metrics)


def test_features_are_kept_until_the_checkpoint_changes(run):
    rince("evaluate", run)
    kept = run / "features" / "test.safetensors"
    before, first = kept.stat().st_mtime_ns, json.loads((run / "results.json").read_text())
    rince("evaluate", run)
    assert kept.stat().st_mtime_ns == before
    checkpoint = torch.load(run / "last.ckpt", weights_only=True)
    generator = torch.Generator().manual_seed(0)
    for tensor in checkpoint["encoder"].values():
        if tensor.is_floating_point() and tensor.ndim > 1:
            tensor.add_(torch.randn(tensor.shape, generator=generator))
    save_checkpoint(run / "last.ckpt", checkpoint)
    rince("evaluate", run)
    assert kept.stat().st_mtime_ns != before
    assert json.loads((run / "results.json").read_text())["metrics"] != first["metrics"]


def test_a_damaged_cache_is_made_again(run):
    rince("evaluate", run)
    first = json.loads((run / "results.json").read_text())
    (run / "features" / "test.safetensors").write_bytes(b"cut short")
    rince("evaluate", run)
    assert json.loads((run / "results.json").read_text()) == first


def test_outliers_of_another_size_are_resized_and_that_is_said(run, pictures):
    done = rince("evaluate", run, "--outliers", pictures)
    assert f"outliers {pictures.name}: 7 images, resized to 16" in done.stderr
    results = json.loads((run / "results.json").read_text())
    assert results["outliers"] == {pictures.name: find_images(str(pictures)).fingerprint}
    metrics = results["metrics"]
    train, test = load_images("fashion", "train", limit=200), load_images("fashion", "test")
    known, inliers = features_by_hand(run, train.images), features_by_hand(run, test.images)
    outliers = load_file(run / "features" / f"outliers-{pictures.name}.safetensors")["features"]
    assert len(outliers) == 7
    torch.testing.assert_close(outliers[:6], inliers[:6], rtol=1e-4, atol=1e-4)  # the pictures are test images
    full, tied = ClassGaussians(known, train.labels), ClassGaussians(known, train.labels, covariance="tied")
    expected = {
        "auroc": auroc(full.score(inliers), full.score(outliers)),
        "fpr@95": fpr_at_recall(full.score(inliers), full.score(outliers)),
        "auroc_tied": auroc(tied.score(inliers), tied.score(outliers)),
        "auroc_neighbours": auroc(*(neighbour_score(x, known, k=20) for x in (inliers, outliers))),  # of a class
    }
    for name, value in expected.items():
        assert metrics[f"outliers/{pictures.name}/{name}"] == pytest.approx(value, abs=5e-3), name
    figures = json.loads((run / "figures.json").read_text())
    assert sum(figures["outliers"][pictures.name]["inliers"]) == pytest.approx(1, abs=1e-3)


def test_the_papers_probe_says_which_epoch_was_best(trained, tmp_path):
    recipe = yaml.safe_load((trained / "recipe.yaml").read_text())
    assert recipe["views"]["size"] == 16
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    rince("evaluate", run, "--probe", "paper")
    results = json.loads((run / "results.json").read_text())
    # The same with features made by hand: crop and flip, drawn anew every epoch, and nothing else.
    made = open_trained(run)
    views = PixelViews(size=16, jitter=None, grayscale=0.0, mean=[0.3], std=[0.3])
    train, test = load_images("fashion", "train", limit=200), load_images("fashion", "test")

    def features(epoch):
        with torch.no_grad():
            images = views(train.images, seed=made.recipe.seed, epoch=epoch, view=0, sample_ids=torch.arange(200))
            return made.encoder.features(images)

    expected = linear_probe(
        features,
        features_by_hand(run, test.images),
        train_labels=train.labels,
        test_labels=test.labels,
        protocol="paper",
    )
    wanted = expected._asdict() | {"right": None}
    for name in ("accuracy", "best_test_accuracy", "best_test_epoch"):
        assert results["metrics"][f"probe/{name}"] == pytest.approx(wanted[name], abs=2e-3)
    assert results["protocol"]["probe/accuracy after the head"].startswith("logistic regression")
    assert expected.best_test_accuracy > expected.accuracy > 0.2
    assert "100 epochs" in results["protocol"]["probe/accuracy"]


def test_a_run_that_did_not_finish_is_refused_unless_asked_for(tmp_path):
    recipe = write_recipe(tmp_path)
    rince("train", recipe, "train.max_steps=3", "--out", tmp_path / "run")
    text = (tmp_path / "run" / "recipe.yaml").read_text()
    (tmp_path / "run" / "recipe.yaml").write_text(text.replace("max_steps: 3", "max_steps: null"))
    done = rince("evaluate", tmp_path / "run", check=False)
    assert done.returncode == 2
    assert f"stopped at step 3 of {STEPS}" in done.stderr
    assert "--resume" in done.stderr
    assert not (tmp_path / "run" / "results.json").exists()
    rince("evaluate", tmp_path / "run", "--unfinished")
    assert json.loads((tmp_path / "run" / "results.json").read_text())["step"] == 3


def test_a_checkpoint_of_another_architecture_is_refused(run):
    text = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(text.replace("width: 4", "width: 6"))
    done = rince("evaluate", run, check=False)
    assert done.returncode == 2
    assert "model.width is 6, was 4. Restore it" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (run / "results.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name runs to evaluate"),
        (["nowhere"], "nowhere is no run"),
        (["RUN", "--outliers", "nowhere"], "'nowhere' does not exist"),
        (["RUN", "--outliers", "a/x", "--outliers", "b/x"], "two outlier sets are called 'x'"),
        (["RUN", "--embeddings", "a.npz", "b.npz"], "name runs to evaluate, or two files"),
        (["RUN", "--out", "x.json"], "--out and --gains go with --embeddings"),
        (["--embeddings", "a.npz", "b.npz"], "there is no file a.npz"),
        (["--embeddings", "a.txt", "b.npz"], "vectors come as .parquet, .npz, .npy or .safetensors, got a.txt"),
    ],
)
def test_bad_input_is_named(run, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = rince("evaluate", *(run if argument == "RUN" else argument for argument in arguments), check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (run / "results.json").exists()


def saved_vectors(seed, number):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (number,), generator=generator)
    means = torch.randn(4, 6, generator=torch.Generator().manual_seed(9))
    return means[labels] + torch.randn(number, 6, generator=generator), labels


def write_vectors(path, vectors, labels):
    above, names = (labels // 2).numpy(), np.array(["ant", "bee", "cat", "dog"])[labels]
    if path.suffix == ".npz":
        np.savez(path, features=vectors.numpy(), labels=names, superclass=above)
    elif path.suffix == ".safetensors":
        save_file({"features": vectors, "labels": labels, "superclass": labels // 2}, path)
    else:
        columns = {"path": [f"{i}.png" for i in range(len(labels))], "vector": list(vectors.numpy())}
        pq.write_table(pa.table(columns | {"label": names, "superclass": above}), path)
    return path


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".parquet"])
def test_vectors_of_any_library_are_judged(suffix, tmp_path):
    (train, train_labels), (test, test_labels) = saved_vectors(0, 120), saved_vectors(1, 50)
    files = [
        write_vectors(tmp_path / f"{name}{suffix}", vectors, labels)
        for name, vectors, labels in (("train", train, train_labels), ("test", test, test_labels))
    ]
    rince("evaluate", "--embeddings", *files, "--out", tmp_path / "numbers.json")
    metrics = json.loads((tmp_path / "numbers.json").read_text())["metrics"]
    expected = recall_at_k(test, train, query_labels=test_labels // 2, gallery_labels=train_labels // 2)
    assert metrics["retrieval/superclass/recall@1"] == pytest.approx(expected, abs=1e-9)
    expected = mean_average_precision(test, train, query_labels=test_labels, gallery_labels=train_labels)
    assert metrics["retrieval/class/map"] == pytest.approx(expected, abs=1e-9)
    assert "geometry/similarity/before/rank2" in metrics


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_levels_are_put_in_order_whatever_the_order_of_the_file(suffix, tmp_path):
    labels = torch.arange(160) % 8
    vectors = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))[labels]
    vectors = vectors + torch.randn(160, 6, generator=torch.Generator().manual_seed(1))
    entries = {"features": vectors, "labels": labels, "a_department": labels // 4, "group": labels // 2}
    path = tmp_path / f"v{suffix}"
    if suffix == ".npz":
        np.savez(path, **{name: tensor.numpy() for name, tensor in entries.items()})
    else:
        save_file(entries, path)
    train, test = read_samples(path, path)
    assert list(train.levels) == list(test.levels) == ["class", "group", "a_department"]
    metrics = judge(train, test).metrics
    for level, group in (("group", labels // 2), ("a_department", labels // 4)):
        expected = mean_average_precision(vectors, vectors, query_labels=group, gallery_labels=group)
        assert metrics[f"retrieval/{level}/map"] == pytest.approx(expected, abs=1e-6)


def test_what_is_no_level_is_said_and_missing_labels_are_named(tmp_path):
    np.savez(tmp_path / "v.npz", features=np.eye(4), labels=[0, 0, 1, 1], camera=[0, 1, 0, 1])
    said = []
    assert list(read_samples(tmp_path / "v.npz", say=said.append)[0].levels) == ["class"]
    assert said[-1].endswith("camera is no level above the classes: class '0' is in '0' and in '1'")
    with pytest.raises(DataError, match=r"none that groups them; .*; camera is no level above the classes"):
        read_samples(tmp_path / "v.npz", taxonomy="column")
    pq.write_table(pa.table({"vector": [[1.0, 2.0], [2.0, 1.0]], "label": ["a", None]}), tmp_path / "v.parquet")
    with pytest.raises(DataError, match="without a label"):
        read_samples(tmp_path / "v.parquet")


def test_a_test_set_of_one_image_per_class_has_all_numbers_but_the_widths(run, tmp_path):
    generator = torch.Generator().manual_seed(0)
    train = Samples(torch.randn(40, 5, generator=generator), {"class": torch.arange(40) % 4})
    test = Samples(torch.randn(4, 5, generator=generator), {"class": torch.arange(4)})
    verdict = judge(train, test)
    assert "geometry/class/alignment" not in verdict.metrics
    assert {"probe/accuracy", "retrieval/class/map", "geometry/uniformity"} <= verdict.metrics.keys()
    assert [row[i] for i, row in enumerate(verdict.figures["class_similarity"]["before"])] == [None] * 4


def test_another_split_can_be_judged_and_no_sample_finds_itself(run, pictures):
    done = rince("evaluate", run, "--split", "train", "--outliers", pictures)
    results = json.loads((run / "results.json").read_text())
    assert results["split"] == "train"
    assert done.stdout.splitlines()[0] == f"{run}, split 'train'"
    told = (
        "200 of 200 test samples lie in the training set, too: in retrieval and by nearest neighbours none finds itself"
    )
    assert told in done.stderr
    assert told in results["protocol"]["shared samples"]
    train = load_images("fashion", "train", limit=200)
    features = features_by_hand(run, train.images)
    cosines = torch.nn.functional.normalize(features, dim=1) @ torch.nn.functional.normalize(features, dim=1).T
    cosines.fill_diagonal_(-2)
    metrics = results["metrics"]
    found = (train.labels[cosines.argmax(dim=1)] == train.labels).float().mean()
    assert metrics["retrieval/class/recall@1"] == pytest.approx(float(found), abs=5e-3)
    same = {"query_labels": train.labels, "gallery_labels": train.labels, "same": torch.arange(200)}
    assert metrics["retrieval/class/map"] == pytest.approx(mean_average_precision(features, features, **same), abs=2e-3)
    outliers = load_file(run / "features" / f"outliers-{pictures.name}.safetensors")["features"]
    inliers = cosines.sort(dim=1, descending=True).values[:, 18]  # of the 19 others of a class
    expected = auroc(inliers, neighbour_score(outliers, features, k=19))
    assert metrics[f"outliers/{pictures.name}/auroc_neighbours"] == pytest.approx(expected, abs=5e-3)


def test_a_file_of_vectors_judged_against_itself_finds_others(tmp_path):
    labels = np.arange(60) % 4
    vectors = np.random.default_rng(0).normal(size=(60, 5)) + np.eye(5)[labels]
    np.savez(tmp_path / "v.npz", features=vectors, labels=labels)
    done = rince("evaluate", "--embeddings", tmp_path / "v.npz", tmp_path / "v.npz", "--out", tmp_path / "found.json")
    assert "60 of 60 test samples lie in the training set, too" in done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit.T - 3 * np.eye(60)
    assert found["metrics"]["retrieval/class/recall@1"] == pytest.approx((labels[cosines.argmax(1)] == labels).mean())
    assert "60 of 60" in found["protocol"]["shared samples"]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"labels": np.arange(3)}, "has no vectors, a matrix (samples, dim)"),
        (
            {"features": np.ones((3, 2))},
            "needs the classes, called labels or named by data.label_column; it holds features",
        ),
        ({"features": np.ones((3, 2)), "labels": np.arange(2)}, "labels of"),
        ({"features": np.ones((3, 2)), "labels": np.ones(3)}, "one integer or text per vector: got float64"),
        ({"features": np.array([["a"]], dtype=object), "labels": np.arange(1)}, "cannot be read as .npz"),
    ],
)
def test_files_that_lack_something_are_named(entries, message, tmp_path):
    np.savez(tmp_path / "a.npz", **entries)
    done = rince("evaluate", "--embeddings", tmp_path / "a.npz", tmp_path / "a.npz", check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert "a.npz" in done.stderr


def test_embed_writes_a_row_for_every_image(run, pictures, tmp_path):
    rince("embed", run, pictures, "--out", tmp_path / "vectors.parquet")
    table = pq.read_table(tmp_path / "vectors.parquet")
    assert table["path"].to_pylist() == [str(pictures / f"{n}.png") for n in range(6)] + [str(pictures / "large.jpg")]
    expected = features_by_hand(run, load_images("fashion", "test").images[:6]).numpy()
    assert np.stack(table["vector"].to_numpy())[:6] == pytest.approx(expected, abs=1e-5)
    assert table.column_names == ["path", "vector"]
    for split in ([], ["--split", "test"]):
        rince("embed", run, "fashion", *split, "--out", tmp_path / "labelled.parquet")
        labelled, test = pq.read_table(tmp_path / "labelled.parquet"), load_images("fashion", "test")
        assert labelled.column_names == ["path", "vector", "label", "group", "department"]
        names = [test.class_names[label] for label in test.labels]
        assert labelled["label"].to_pylist() == names
        assert set(zip(names, labelled["group"].to_pylist(), strict=True)) >= {("Bag", "accessories/bags")}
    rince("embed", run, pictures / "0.png", "--out", tmp_path / "one.parquet", "--which", "embeddings")
    one = np.stack(pq.read_table(tmp_path / "one.parquet")["vector"].to_numpy())
    assert one.shape == (1, 8)
    assert np.linalg.norm(one) == pytest.approx(1, abs=1e-5)


def test_neighbours_are_the_nearest_and_never_the_query_itself(run, pictures, tmp_path):
    done = rince("neighbours", run, pictures / "0.png", pictures, "-k", 2, "--picture", tmp_path / "near.png")
    features = torch.nn.functional.normalize(features_by_hand(run, load_images("fashion", "test").images[:6]), dim=1)
    order = (features[1:] @ features[0]).argsort(descending=True) + 1
    assert f"1 of 1 queries lie in {str(pictures)!r}, too; none is shown as its own neighbour" in done.stderr
    assert f"next: rince index {run} {pictures} --out" in done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == str(pictures / "0.png")
    shown = [line.split()[-1] for line in lines[1:3]]
    assert str(pictures / "0.png") not in shown
    assert next(line for line in shown if not line.endswith("large.jpg")) == str(pictures / f"{int(order[0])}.png")
    with Image.open(tmp_path / "near.png") as picture:
        assert picture.size == (3 * MARGIN + 3 * (THUMB + MARGIN), THUMB + CAPTION + 2 * MARGIN)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["embed", "RUN", "nowhere", "--out", "v.parquet"], "no file and no folder 'nowhere'"),
        (["embed", "RUN", "PICTURES", "--out", "v.csv"], "end in .parquet, got v.csv"),
        (["embed", "RUN", "EMPTY", "--out", "v.parquet"], "no file under"),
        (["embed", "RUN", "PICTURES", "--out", "file/v.parquet"], "cannot write file/v.parquet"),
        (["neighbours", "RUN", "nowhere", "PICTURES"], "no file and no folder 'nowhere'"),
        (["export", "nowhere", "--out", "x"], "nowhere is no run"),
        (["export", "RUN", "--out", "PICTURES"], "is not empty"),
    ],
)
def test_bad_input_of_the_other_commands_is_named(run, pictures, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    places = {"RUN": run, "PICTURES": pictures, "EMPTY": tmp_path / "empty"}
    done = rince(*(places.get(argument, argument) for argument in arguments), check=False)
    assert done.returncode == 2, done.stdout
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("*.writing"))


def test_export_gives_the_same_features_in_onnx_runtime(run, tmp_path):
    import onnxruntime  # noqa: PLC0415 - heavy, used here alone

    rince("export", run, "--out", tmp_path / "exported")
    images = load_images("fashion", "test").images[:5]
    trained = open_trained(run)
    batch = trained.recipe.views.build().resize_and_normalise(images)
    session = onnxruntime.InferenceSession(tmp_path / "exported" / "encoder.onnx")
    features, embeddings = session.run(["features", "embeddings"], {"images": batch.numpy()})
    with torch.no_grad():
        expected_embeddings, expected = trained.encoder(batch, with_features=True)
    assert features == pytest.approx(expected.numpy(), abs=1e-4)
    assert embeddings == pytest.approx(expected_embeddings.numpy(), abs=1e-4)
    weights = load_file(tmp_path / "exported" / "encoder.safetensors")
    assert weights.keys() == trained.encoder.state_dict().keys()
    assert all(torch.equal(weights[name], value) for name, value in trained.encoder.state_dict().items())
    about = json.loads((tmp_path / "exported" / "encoder.json").read_text())
    assert about["input"]["mean"] == [0.3]
    assert about["outputs"] == {"features": 32, "embeddings": 8}


def test_images_that_were_painted_over_are_embedded_again(run, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for seed in (0, 1):
        pixels = np.random.default_rng(seed).integers(0, 256, (120, 120), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "a.bmp")  # the same size whatever is in it
        os.utime(folder / "a.bmp", (seed + 1, seed + 1))
        opened = open_trained(run)
        made = embed_once(opened, opened.find(str(folder)), "painted")
        if seed == 0:
            first = made
    assert not torch.equal(first.features, made.features)


def test_features_are_kept_for_a_copy_and_made_again_for_other_views_settings_and_versions(run, tmp_path, monkeypatch):
    folder = tmp_path / "images"
    folder.mkdir()
    Image.new("L", (120, 120), 9).save(folder / "a.bmp")
    shutil.copytree(folder, tmp_path / "copy")
    made = []
    monkeypatch.setattr(
        "rince.evaluation.trained.embed", lambda *_, **__: made.append(1) or Embedded(*torch.zeros(2, 1, 3))
    )

    def asked(place=folder, **settings):
        opened = open_trained(run)
        opened = replace(opened, recipe=opened.recipe.model_copy(update=settings))
        before = len(made)
        embed_once(opened, opened.find(str(place)), "copied")
        return len(made) - before

    assert [asked(), asked(), asked(tmp_path / "copy")] == [1, 0, 0]
    recipe = open_trained(run).recipe
    for section, setting in (("views", {"mean": [0.4]}), ("data", {"image_column": "x"})):
        changed = {section: getattr(recipe, section).model_copy(update=setting)}
        assert [asked(**changed), asked(**changed)] == [1, 0]
    opened = open_trained(run)
    assert made_of(opened, "samples") == made_of(opened, "samples", rince_package.__version__)
    assert made_of(opened, "samples") != made_of(opened, "samples", "0.1.0")


def test_a_run_on_images_is_judged_on_other_images_and_finetuned_on_them(run, tmp_path, monkeypatch):
    source = load_images("fashion", "test", limit=60)
    for number, (image, label) in enumerate(zip(source.images, source.labels.tolist(), strict=True)):
        if label < 3:
            folder = tmp_path / "other" / ("test" if number % 2 else "train") / f"kind{label}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[0].numpy()).save(folder / f"{number:02}.png")
    short = load_recipe("video/finetune", ["train.epochs=2", "train.batch=8", "log.logger=none"])
    monkeypatch.setattr("rince.evaluation.finetune.load_recipe", lambda *_: short)
    other = str(tmp_path / "other")
    said = rince("evaluate", run, "--on", "fashion", "--on", other, "--finetune").stderr
    assert f"finetuning on other: 2 epochs, in {run / 'finetune' / 'other'}" in said
    results = json.loads((run / "results.json").read_text())
    train, test = load_images(other, "train"), load_images(other, "test")
    vectors = [features_by_hand(run, each.images) for each in (test, train)]
    labels = {"query_labels": test.labels, "gallery_labels": train.labels}
    own, on_other = ({n for n in results["metrics"] if n.endswith(" on other") == other} for other in (False, True))
    assert {"retrieval/class/map", "retrieval/group/map", "finetune/accuracy"} < own
    assert {"retrieval/class/map on other", "finetune/accuracy on other"} < on_other
    assert not any("group" in name for name in on_other), "it has no taxonomy"
    expected = mean_average_precision(*vectors, **labels)
    assert results["metrics"]["retrieval/class/map on other"] == pytest.approx(expected, abs=1e-5)
    tuned = open_trained(run / "finetune" / "other")
    assert (tuned.recipe.model.start_from, tuned.classes) == (str(run.resolve()), 3)
    with torch.no_grad():
        outputs = tuned.encoder(tuned.recipe.views.build().resize_and_normalise(test.images), raw=True)
    right = (outputs.argmax(dim=1) == test.labels).double().mean()
    assert results["metrics"]["finetune/accuracy on other"] == pytest.approx(float(right))
    assert "finetuning" not in rince("evaluate", run, "--on", other, "--finetune").stderr
    for options, message in (
        (["--on", other, "--outliers", "fashion"], "--outliers are judged against the run's own data"),
        (["--on", other, "--on", f"{other}/../other"], "two sets of data are called 'other'"),
    ):
        done = rince("evaluate", run, *options, check=False)
        assert done.returncode == 2
        assert message in done.stderr


def test_neighbours_and_predict_read_what_embed_wrote(run, pictures, tmp_path):
    for name, place in (("all", pictures), ("one", pictures / "0.png")):
        rince("embed", run, place, "--out", tmp_path / f"{name}.parquet")
    drawn = tmp_path / "plain.png"
    plain = rince("neighbours", run, pictures / "0.png", pictures, "-k", 2, "--picture", drawn).stdout
    plain = plain.replace(f"wrote {drawn}\n", "")
    ways = [(pictures / "0.png", tmp_path / "all.parquet"), (tmp_path / "one.parquet", pictures)]
    for query, gallery in [*ways, (tmp_path / "one.parquet", tmp_path / "all.parquet")]:
        seen = tmp_path / "seen.png"
        done = rince("neighbours", run, query, gallery, "-k", 2, "--picture", seen)
        assert done.stdout == f"{plain}wrote {seen}\n"  # the same, and never the query itself
        assert seen.read_bytes() == drawn.read_bytes()  # of the files, which are still there
        assert "taken as the features that `rince embed` wrote" in done.stderr
    rince("embed", run, "fashion", "--split", "test", "--out", tmp_path / "labelled.parquet")
    asked = [pictures / "0.png", pictures / "1.png"]
    from_samples = rince("predict", run, "fashion", *asked, "--split", "test", "--precision", 0.5)
    from_file = rince("predict", run, tmp_path / "labelled.parquet", *asked, "--precision", 0.5)
    assert from_file.stdout == from_samples.stdout
    assert f"next: rince neighbours {run} {pictures / '0.png'} {tmp_path / 'labelled.parquet'}" in from_file.stderr
    done = rince(
        "predict", run, tmp_path / "labelled.parquet", tmp_path / "one.parquet", "--which", "embeddings", check=False
    )
    assert done.returncode == 2
    assert "holds vectors of the length" in done.stderr
    assert "say --which as they were embedded" in done.stderr
