"""Vectors as a source and the method in-batch: what the redesign is proved by. Both against plain loops."""

import json

import numpy as np
import onnxruntime
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F
import yaml

import rince
from oracles.naive_loss import naive_loss
from rince.config import load_recipe
from rince.draws import uniform
from rince.sources.vectors import VectorData
from rince.train.setup import build_encoder
from rince.views.vectors import VectorViewSettings
from train.tiny import rince as command

GROUPS = ["dogs", "dogs", "cats", "trees"]
NAMES = ["poodle", "pug", "manx", "oak"]


def write_vectors(folder, number=60, dim=10, kind="npz"):
    """Classes at random places, two of them close; train.* and test.*."""
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(0)
    centres = random.normal(size=(4, dim)) + 2 * random.normal(size=(3, dim))[[0, 0, 1, 2]]
    for split, seed in (("train", 1), ("test", 2)):
        random = np.random.default_rng(seed)
        labels = np.arange(number) % 4
        vectors = (centres[labels] + 0.8 * random.normal(size=(number, dim))).astype(np.float32)
        levels = {"labels": np.array(NAMES)[labels], "group": np.array(GROUPS)[labels]}
        if kind == "npz":
            np.savez(folder / f"{split}.npz", features=vectors, **levels)
        else:
            table = pa.table({"vector": list(vectors), **{name: list(level) for name, level in levels.items()}})
            pq.write_table(table, folder / f"{split}.parquet")
    return folder


def train(folder, *changes):
    source = write_vectors(folder / "vectors")
    shared = ["train.epochs=8", "train.batch=20", "log.logger=none", "log.every_steps=1", "model.dim=8"]
    shared.append("data.validation=0")
    command("train", "vectors/rince-in", f"data.source={source}", *shared, *changes, "--out", folder / "run")
    return folder / "run"


def test_vectors_train_are_judged_shown_and_exported(tmp_path):
    run = train(tmp_path)
    np.savez(tmp_path / "far.npz", features=30 + np.random.default_rng(3).normal(size=(40, 10)))  # without labels
    command("evaluate", run, "--outliers", tmp_path / "far.npz")
    metrics = json.loads((run / "results.json").read_text())["metrics"]
    assert metrics["retrieval/class/recall@1"] > 0.6
    assert metrics["retrieval/superclass/recall@1"] > 0.7
    assert metrics["outliers/far.npz/auroc"] > 0.9
    audited = command("ranks", "audit", "vectors/rince-in", f"data.source={tmp_path / 'vectors'}").stdout
    assert "rank 2: 0.5 classes each" in audited
    assert "empty for 2 classes (manx, oak)" in audited
    command("report", run, "--out", tmp_path / "page")
    page = (tmp_path / "page" / "index.html").read_text()
    assert "60 test vectors of 4 classes" in page
    found = command("neighbours", run, tmp_path / "vectors" / "test.npz", tmp_path / "vectors" / "train.npz").stdout
    assert found.count("\n  ") == 60 * 5
    command("embed", run, tmp_path / "vectors" / "test.npz", "--out", tmp_path / "embedded.parquet")
    command("export", run, "--out", tmp_path / "exported")
    about = json.loads((tmp_path / "exported" / "encoder.json").read_text())
    assert about["input"] == {"name": "vectors", "shape": ["batch", 10]}
    session = onnxruntime.InferenceSession(tmp_path / "exported" / "encoder.onnx")
    vectors = np.load(tmp_path / "vectors" / "test.npz")["features"]
    features = session.run(["features"], {"vectors": vectors})[0]
    assert torch.from_numpy(features) == pytest.approx(
        rince.open_run(run).embed(str(tmp_path / "vectors" / "test.npz")), abs=1e-4
    )


def test_what_embed_writes_is_trained_and_judged_on_as_it_is(tmp_path):
    run = train(tmp_path, "train.epochs=2")
    for split in ("train", "test"):
        command("embed", run, tmp_path / "vectors", "--split", split, "--out", tmp_path / f"{split}.parquet")
    table = pq.read_table(tmp_path / "test.parquet")
    assert table.column_names == ["path", "vector", "label", "superclass"]
    written = np.load(tmp_path / "vectors" / "test.npz")
    assert table["label"].to_pylist() == written["labels"].tolist()
    assert table["superclass"].to_pylist() == written["group"].tolist()
    features = rince.open_run(run).embed(tmp_path / "vectors" / "test.npz")
    assert np.stack(table["vector"].to_numpy()) == pytest.approx(features.numpy())
    command("evaluate", run)
    judged = json.loads((run / "results.json").read_text())["metrics"]
    files = [tmp_path / f"{split}.parquet" for split in ("train", "test")]
    command("evaluate", "--embeddings", *files, "--out", tmp_path / "numbers.json")
    again = json.loads((tmp_path / "numbers.json").read_text())["metrics"]
    for name in ("retrieval/class/map", "retrieval/superclass/map", "ranking/ndcg", "retrieval/superclass/recall@1"):
        assert again[name] == pytest.approx(judged[name], abs=1e-6), name
    folder = tmp_path / "again"
    folder.mkdir()
    for file in files:
        file.rename(folder / file.name)
    said = command("train", "vectors/rince-in", f"data.source={folder}", "data.validation=0", "--dry-run").stdout
    assert "60 training vectors, 4 classes" in said
    assert "classes from 'label', levels above from 'superclass'" in said


def test_files_are_judged_with_outliers_and_a_taxonomy_of_their_own(tmp_path):
    folder = write_vectors(tmp_path / "vectors", kind="parquet")
    random = np.random.default_rng(3)
    np.savez(tmp_path / "far.npz", features=30 + random.normal(size=(40, 10)))  # without labels
    np.save(
        tmp_path / "near.npy", np.load(write_vectors(tmp_path / "more") / "test.npz")["features"][:20].astype(float)
    )
    (tmp_path / "tree.csv").write_text("sort,class\nx,poodle\nx,oak\ny,manx\ny,pug\n")
    files = [folder / "train.parquet", folder / "test.parquet"]
    far = ["--outliers", tmp_path / "far.npz", "--outliers", tmp_path / "near.npy"]
    options = ["--taxonomy", tmp_path / "tree.csv", "--out", tmp_path / "numbers.json"]
    command("evaluate", "--embeddings", *files, *far, *options)
    found = json.loads((tmp_path / "numbers.json").read_text())
    assert (found["taxonomy"], found["outliers"]) == (str(tmp_path / "tree.csv"), [str(far[1]), str(far[3])])
    tables = [pq.read_table(file) for file in files]
    train, test = (np.stack(table["vector"].to_numpy()) for table in tables)
    sorts = [
        [{"poodle": 0, "oak": 0, "manx": 1, "pug": 1}[name] for name in table["labels"].to_pylist()] for table in tables
    ]
    assert found["metrics"]["retrieval/sort/map"] == pytest.approx(naive_map(test, train, sorts[1], sorts[0]), abs=1e-6)
    assert "retrieval/group/map" not in found["metrics"]
    assert found["metrics"]["outliers/far.npz/auroc"] == 1
    assert found["metrics"]["outliers/near.npy/auroc"] == pytest.approx(0.5, abs=0.15)
    np.save(tmp_path / "short.npy", np.ones((3, 9)))
    done = command("evaluate", "--embeddings", *files, "--outliers", tmp_path / "short.npy", check=False)
    assert done.returncode == 2
    assert "outliers must be vectors of the length 10, as all others; " in done.stderr


def naive_map(queries, gallery, query_labels, gallery_labels):
    values = []
    for query, label in zip(queries, query_labels, strict=True):
        cosines = gallery @ query / np.linalg.norm(gallery, axis=1)
        right = np.array(gallery_labels)[np.argsort(-cosines)] == label
        values.append(np.mean([right[: place + 1].mean() for place in np.flatnonzero(right)]))
    return np.mean(values)


def test_the_page_and_the_neighbours_say_what_a_vector_is_called(tmp_path):
    folder = write_vectors(tmp_path / "vectors", kind="parquet")
    for split in ("train", "test"):
        table = pq.read_table(folder / f"{split}.parquet")
        texts = [f"what {split} says of {row}" for row in range(len(table))]
        pq.write_table(table.append_column("text", [texts]), folder / f"{split}.parquet")
    few = ["train.epochs=1", "train.batch=20", "log.logger=none", "model.dim=8"]
    run = rince.fit("vectors/rince-in", *few, source=folder, out=tmp_path / "run")
    found = run.neighbours(folder / "test.parquet", folder / "train.parquet", k=1)
    assert found[3].place == "what test says of 3"
    assert found[3].near[0].place == f"what train says of {found[3].near[0].row}"
    run.evaluate()
    page = run.report(tmp_path / "page").read_text()
    assert '"words": ["what test says of 0", ' in page or '"words":["what test says of 0",' in page
    assert f"what train says of {found[0].near[0].row}" in page


def test_the_first_step_is_that_of_a_naive_loop(tmp_path):
    """Noise, adapter, head, loss within the batch without a view of its own, AdamW; all by hand."""
    run = train(tmp_path, "train.max_steps=1", "views.dropout=0.2", "optimizer.weight_decay=0.01")
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    data = VectorData(kind="vectors", source=str(tmp_path / "vectors"))
    source = data.open("train", VectorViewSettings(noise=0.02, dropout=0.2))
    seed = recipe["seed"]
    ids = uniform(seed, 0, 2**31 - 1, torch.arange(60), 1)[:, 0].argsort(stable=True)[:20]
    parts = []
    for view in (0, 1):
        drawn = uniform(seed, 0, view, ids, 20).double()
        x = source.vectors[ids].double()
        noise = torch.distributions.Normal(0.0, 1.0).icdf(drawn[:, :10] + 2.0**-25)
        x = x + 0.02 * x.norm(dim=1, keepdim=True) * noise
        parts.append(x * (drawn[:, 10:] >= 0.2) / 0.8)
    made = source.finish(source.load(ids, (0, 1), seed=seed, epoch=0), torch.device("cpu"))
    for view, expected in zip(made.views, parts, strict=True):
        assert view == pytest.approx(expected.float(), abs=1e-4)
    encoder = rince.open_run(run).trained().encoder  # after one step
    with torch.random.fork_rng():
        first = build_encoder(load_recipe(run / "recipe.yaml"), (10,), [4, 3])
    embeddings = first(torch.cat(made.views))
    similarities = (embeddings @ embeddings.T).detach().double()
    labels = source.labels[ids].repeat(2)
    groups = torch.tensor([0, 0, 1, 2])[torch.tensor([NAMES.index(source.class_names[label]) for label in labels])]
    ranks = torch.where(labels[:, None] == labels, 1, torch.where(groups[:, None] == groups, 2, 0))
    ranks.fill_diagonal_(-1)
    terms = [(0.1, "in", False), (0.225, "in", False), (0.35, "in", False), (0.475, "in", False)]
    logged = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    value = naive_loss(similarities.tolist(), ranks.tolist(), terms)
    assert logged["loss"] == pytest.approx(value, abs=1e-4)
    loss = rince.ranked_info_nce(embeddings @ embeddings.T, ranks.to(torch.int8), [rince.RankTerm(*t) for t in terms])
    optimizer = torch.optim.AdamW(first.parameters(), lr=logged["lr"], weight_decay=0.01)
    loss.backward()
    optimizer.step()
    for name, parameter in first.named_parameters():
        assert encoder.get_parameter(name).detach() == pytest.approx(parameter.detach(), abs=2e-5), name


def test_a_vector_is_never_its_own_candidate_and_gradients_reach_both_sides(tmp_path):
    run = train(tmp_path, "train.epochs=2")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(line["queries/1"] == 40 for line in lines)  # two views of twenty samples, each the other's positive
    assert all(line["similarity/1"] < 0.99999 for line in lines)


def test_resume_is_exact(tmp_path):
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    whole, parts = train(tmp_path / "a", "train.max_steps=7"), train(tmp_path / "b", "train.max_steps=4")
    text = (parts / "recipe.yaml").read_text()
    (parts / "recipe.yaml").write_text(text.replace("max_steps: 4", "max_steps: 7"))
    command("train", "--resume", parts)
    one, other = (torch.load(run / "last.ckpt", weights_only=True)["encoder"] for run in (whole, parts))
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_parquet_and_npz_are_the_same_data(tmp_path):
    views = VectorViewSettings()
    sources = [
        VectorData(kind="vectors", source=str(write_vectors(tmp_path / kind, kind=kind))).open("test", views)
        for kind in ("npz", "parquet")
    ]
    assert torch.equal(sources[0].vectors, sources[1].vectors)
    assert sources[0].class_names == sources[1].class_names == ("manx", "oak", "poodle", "pug")
    assert sources[0].own_paths("column") == [("cats", "manx"), ("trees", "oak"), ("dogs", "poodle"), ("dogs", "pug")]
    assert sources[0].fingerprint == sources[1].fingerprint


def test_classes_and_limit_take_a_part(tmp_path):
    source = str(write_vectors(tmp_path / "vectors"))
    (tmp_path / "list.txt").write_text("pug\nmanx\n")
    data = VectorData(kind="vectors", source=source, classes=str(tmp_path / "list.txt"), limit=7)
    part = data.open("train", VectorViewSettings())
    assert part.class_names == ("manx", "pug")
    assert part.labels.bincount().tolist() == [3, 4]  # the first of each class, then the second, …; pugs come first
    assert len(data.open("test", VectorViewSettings())) == 30


def test_columns_that_are_no_levels_are_said_when_training_begins(tmp_path):
    source = write_vectors(tmp_path / "vectors")
    damaged(source, group=None, lang=np.array(["en", "de", "en"] * 20))  # the groups of test.npz tell of all classes
    done = command("train", "vectors/rince-in", f"data.source={source}", "train.epochs=1", "--out", tmp_path / "run")
    assert "classes from 'labels', levels above from 'group'" in done.stderr
    assert "lang is no level above the classes: class 'manx' is in 'de' and in 'en'" in done.stderr


def damaged(folder, **changes):
    arrays = dict(np.load(folder / "train.npz")) | changes
    np.savez(folder / "train.npz", **{name: array for name, array in arrays.items() if array is not None})


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"features": np.full((60, 10), np.nan, np.float32)}, "NaN or infinity in 60 of 60 vectors"),
        ({"labels": None}, "train.npz has no column 'labels', which test.npz has"),
        ({"features": np.ones((60, 9), np.float32)}, "differ in length between splits"),
        ({"group": np.array(["cats", "dogs"] * 30)}, "has none that groups them; name them with data.level_columns"),
    ],
)
def test_bad_vectors_are_named(tmp_path, changes, match):
    source = write_vectors(tmp_path / "vectors")
    damaged(source, **changes)
    done = command("train", "vectors/rince-in", f"data.source={source}", "--out", tmp_path / "run", check=False)
    assert done.returncode == 2
    assert match in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (["model={kind: resnet}"], "use model.kind=adapter for vectors"),
        (["views.size=32"], "unknown key"),
        (["train.accumulate=2"], "compares all samples of a batch"),
        (["bank.size=64"], "has no bank; leave out `bank`"),
        (["data.source=nowhere"], "there is no file and no folder 'nowhere'"),
        (["data.test_split=dev", "data.train_split=dev"], "has no split 'dev'"),
    ],
)
def test_what_does_not_fit_vectors_is_refused(tmp_path, changes, match):
    source = write_vectors(tmp_path / "vectors")
    done = command(
        "train", "vectors/rince-in", f"data.source={source}", *changes, "--out", tmp_path / "run", check=False
    )
    assert done.returncode == 2
    assert match in done.stderr


def test_noise_is_as_large_as_said():
    vectors = F.normalize(torch.randn(500, 40, generator=torch.Generator().manual_seed(0)), dim=1) * 3
    ids = torch.arange(500)
    view = VectorViewSettings(noise=0.05).make(vectors, seed=1, epoch=2, view=0, sample_ids=ids)
    assert float((view - vectors).std()) == pytest.approx(0.15, rel=0.02)
    assert float((view - vectors).mean()) == pytest.approx(0, abs=0.005)
    kept = VectorViewSettings(noise=0, dropout=0.25).make(vectors, seed=1, epoch=2, view=0, sample_ids=ids)
    assert float((kept == 0).float().mean()) == pytest.approx(0.25, abs=0.01)
    assert kept[kept != 0] == pytest.approx(vectors[kept != 0] / 0.75)


def test_training_starts_at_the_identity(tmp_path):
    run = rince.open_run(train(tmp_path, "train.max_steps=1", "optimizer.lr=1e-30"))
    vectors = torch.from_numpy(np.load(tmp_path / "vectors" / "test.npz")["features"])
    assert run.embed(str(tmp_path / "vectors" / "test.npz")) == pytest.approx(vectors, abs=1e-6)
