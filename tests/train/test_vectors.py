"""Vectors as a source and the method in-batch: what the redesign is proved by. Both against plain loops."""

import json
import shutil

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
from rince.config.recipe import LossSettings
from rince.draws import uniform
from rince.evaluation import streamed
from rince.sources.vectors import VectorData
from rince.train.setup import build_encoder
from rince.train.validation import why_place
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
    assert f"next: rince neighbours {run}" in command("report", run, "--out", tmp_path / "page").stderr
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
    told = command("embed", run, tmp_path / "vectors", "--out", tmp_path / "alone.parquet").stderr
    assert "its split 'test' alone, not 'train'; --split, or the file of another, takes that" in told
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


def without_levels(folder):
    write_vectors(folder)
    for split in ("train", "test"):
        whole = np.load(folder / f"{split}.npz")
        np.savez(folder / f"{split}.npz", features=whole["features"], labels=whole["labels"])
    return folder


def test_vectors_without_levels_are_enough_where_none_are_needed(tmp_path):
    source, run = without_levels(tmp_path / "flat"), tmp_path / "run"
    few = ["train.epochs=1", "log.logger=none", "model.dim=8"]
    command("train", "vectors/scl-in", f"data.source={source}", *few, "--out", run)
    command("evaluate", run)
    metrics = json.loads((run / "results.json").read_text())["metrics"]
    assert "retrieval/class/recall@1" in metrics
    assert not [name for name in metrics if "superclass" in name]
    for recipe in ("rince-in", "scl-superclass", "two-heads"):
        refused = command("train", f"vectors/{recipe}", f"data.source={source}", "--dry-run", check=False)
        assert refused.returncode == 2
        assert "taxonomy 'column' needs a column for every level above the classes" in refused.stderr


def test_the_plan_counts_what_a_step_has(tmp_path):
    source = write_vectors(tmp_path / "vectors")  # 60 of them
    plans = ["data.validation=0", "train.epochs=1"], ["data.validation=0", "train.epochs=2", "train.batch=25"]
    one, several = (command("train", "vectors/scl-in", f"data.source={source}", *plan, "--dry-run") for plan in plans)
    assert "steps      1 epoch of 1 step of 60 vectors: 1 step\n" in one.stdout
    assert "steps      2 epochs of 3 steps of 25 vectors, the last of 10: 6 steps\n" in several.stdout


def test_one_name_is_a_list_of_one(tmp_path):
    source = write_vectors(tmp_path / "vectors")
    told = command("train", "vectors/rince-in", f"data.source={source}", "data.level_columns=group", "--dry-run")
    assert "classes from 'labels', levels above from 'group'" in told.stdout


def test_embed_makes_the_folder_it_writes_to(tmp_path):
    run, out = train(tmp_path, "train.epochs=1"), tmp_path / "new" / "folder" / "test.parquet"
    command("embed", run, tmp_path / "vectors" / "test.npz", "--out", out)
    assert len(pq.read_table(out)) == 60
    (tmp_path / "file").write_text("")
    refused = command(
        "embed", run, tmp_path / "vectors" / "test.npz", "--out", tmp_path / "file" / "v.parquet", check=False
    )
    assert refused.returncode == 2
    assert f"{tmp_path / 'file'} is no folder" in refused.stderr


@pytest.mark.parametrize(
    ("before", "after", "place", "why"),
    [
        (0.5, 0.5, "features", "a tie on validation"),
        (0.6, 0.5, "features", "better on validation"),
        (0.5, 0.6, "embeddings", "better on validation"),
        (0.5, 0.6, "features", "the head is a classifier"),
    ],
)
def test_why_vectors_are_taken_there(before, after, place, why, tmp_path):
    metrics = {"class/recall@1": before, "class/recall@1 after the head": after}
    (tmp_path / "validation.json").write_text(json.dumps({"metrics": metrics, "place": place}))
    assert why_place(tmp_path) == why


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


def test_an_index_answers_as_its_samples_do(tmp_path):
    run, vectors = rince.open_run(train(tmp_path)), write_vectors(tmp_path / "vectors", number=400)
    test, said = vectors / "test.npz", []
    index = run.index(vectors / "train.npz", tmp_path / "index.parquet", say=said.append)
    near, by_index = (run.neighbours(test, place, k=3) for place in (vectors / "train.npz", index))
    assert [[each.row for each in found.near] for found in near] == [[n.row for n in found.near] for found in by_index]
    answers, again = (
        run.predict(place, test, precision=0.9, say=said.append) for place in (vectors / "train.npz", index)
    )
    assert [(each.level, each.group) for each in answers] == [(each.level, each.group) for each in again]
    truth = [f"{GROUPS[n % 4]}/{NAMES[n % 4]}" for n in range(400)]
    right = [each.group in (path, path.partition("/")[0]) for each, path in zip(answers, truth, strict=True)]
    given = [each.group != "unknown" for each in answers]
    assert sum(given) > 300
    assert sum(right) > 0.9 * sum(given)
    assert all(each.level in ("class", "superclass") for each in answers if each.group != "unknown")
    assert any(line.startswith("class: from 0.") for line in said)
    # Rows of the same data are the same samples, in an index too: none is its own neighbour.
    assert all(each.row != own.row for own in run.neighbours(vectors / "train.npz", index, k=2) for each in own.near)
    # Vectors of no class are unknown.
    np.savez(tmp_path / "far.npz", features=-np.load(test)["features"].mean(axis=0, keepdims=True).repeat(5, axis=0))
    assert {each.group for each in run.predict(index, tmp_path / "far.npz")} == {"unknown"}
    for wrong, match in (
        ({"which": "embeddings"}, "is of features, not of embeddings"),
        ({"k": 3}, "was made for 10 neighbours"),
        ({"precision": 2.0}, "precision must be above 0 and below 1"),
        ({"split": "train"}, "leave out split"),
    ):
        with pytest.raises(rince.RinceError, match=match):
            run.predict(index, test, **wrong)
    other = command(
        "train", "vectors/rince-in", f"data.source={vectors}", "train.epochs=1", "--out", tmp_path / "other"
    )
    assert other.returncode == 0
    refused = command("predict", tmp_path / "other", index, test, check=False).stderr
    assert "was made by other weights" in refused
    printed = command("predict", run.folder, index, test, "--precision", "0.9").stdout.splitlines()
    assert [line.split("\t")[-1] for line in printed] == [each.group for each in answers]


def damage_a_vector(path):
    number = np.float32(pq.read_table(path)["vector"][3].as_py()[1]).tobytes()
    content = path.read_bytes()
    path.write_bytes(content.replace(number, bytes([number[0] ^ 1]) + number[1:]))
    assert path.read_bytes() != content


def test_an_index_that_is_damaged_is_not_searched(tmp_path):
    run, vectors = rince.open_run(train(tmp_path)), write_vectors(tmp_path / "vectors")
    index = run.index(vectors / "train.npz", tmp_path / "index.parquet")
    damage_a_vector(tmp_path / "index.parquet")
    with pytest.raises(rince.RinceError, match=r"index.parquet is damaged: .*'vector' does not fit its digest"):
        run.neighbours(vectors / "test.npz", tmp_path / "index.parquet")
    with pytest.raises(rince.RinceError, match=r"index.parquet is damaged: "):
        run.predict(index, vectors / "test.npz")


def test_training_data_that_cannot_be_read_is_not_gone(tmp_path):
    """An index says how many of its samples were trained on; nobody knows only where the data is gone."""
    run, others = rince.open_run(train(tmp_path)), write_vectors(tmp_path / "others")

    def trained():
        index = pq.read_schema(run.index(others / "test.npz", tmp_path / "index.parquet"))
        return json.loads(index.metadata[b"rince.index"])["calibration"]["trained"]

    assert trained() == 0
    own = tmp_path / "vectors" / "train.npz"
    content = own.read_bytes()
    own.write_bytes(content[:-100])
    with pytest.raises(rince.RinceError, match=r"nobody can tell which samples .* was trained on: its own data"):
        trained()
    shutil.rmtree(tmp_path / "vectors")
    assert trained() is None


def test_an_interrupted_index_goes_on_where_it_stopped(tmp_path, monkeypatch):
    run, vectors = rince.open_run(train(tmp_path)), write_vectors(tmp_path / "vectors", number=100)
    monkeypatch.setattr(streamed, "SIZE", 16)
    whole, embedded = run.index(vectors / "train.npz", tmp_path / "whole.parquet"), streamed.vectors_of
    run.embed_into(tmp_path / "embedded.parquet", vectors / "train.npz")
    run.embed(vectors / "train.npz", out=tmp_path / "at_once.parquet")
    at_once, in_parts = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("at_once", "embedded"))
    assert in_parts.drop_columns("vector").equals(at_once.drop_columns("vector"))
    # Of 16 samples and of 100 a product of matrices may be another sum.
    torch.testing.assert_close(*(torch.tensor(each["vector"].to_pylist()) for each in (in_parts, at_once)))
    made = []

    def stops(opened, part, *rest):
        if len(made) == 3:
            raise KeyboardInterrupt
        made.append(len(part))
        return embedded(opened, part, *rest)

    monkeypatch.setattr(streamed, "vectors_of", stops)
    again = tmp_path / "again.parquet"
    with pytest.raises(KeyboardInterrupt):
        run.index(vectors / "train.npz", again)
    assert not again.exists()
    damage_a_vector(sorted((tmp_path / "again.parquet.parts").iterdir())[1])
    monkeypatch.setattr(streamed, "vectors_of", lambda *given: made.append(len(given[1])) or embedded(*given))
    said = []
    run.index(vectors / "train.npz", again, say=said.append)
    assert made == [16] * 7 + [4]
    assert "000001.parquet is damaged" in said[0]
    assert said[0].endswith("this part is made again")
    assert said[1:] == [f"goes on with {again}: 32 of 100 are there"]
    assert pq.read_table(again).equals(pq.read_table(whole), check_metadata=True)
    assert [path.name for path in tmp_path.glob("*.parts")] == []
    # So does embedding.
    made.clear()
    monkeypatch.setattr(streamed, "vectors_of", stops)
    with pytest.raises(KeyboardInterrupt):
        run.embed_into(tmp_path / "half.parquet", vectors / "train.npz")
    monkeypatch.setattr(streamed, "vectors_of", lambda *given: made.append(len(given[1])) or embedded(*given))
    run.embed_into(tmp_path / "half.parquet", vectors / "train.npz")
    assert made == [16] * 6 + [4]
    assert pq.read_table(tmp_path / "half.parquet").equals(in_parts)
    # Parts of other samples are not gone on with.
    made.clear()
    monkeypatch.setattr(streamed, "vectors_of", stops)
    with pytest.raises(KeyboardInterrupt):
        run.index(vectors / "test.npz", again)
    monkeypatch.setattr(streamed, "vectors_of", embedded)
    said.clear()
    run.index(vectors / "train.npz", again, say=said.append)
    assert said == []
    assert pq.read_table(again).equals(pq.read_table(whole), check_metadata=True)


def test_temperatures_go_on_for_as_many_levels_as_there_are(tmp_path):
    """Class c is related to class 0 from the level c on: ten ranks, where the recipe writes eight terms."""
    classes = [number % 11 for number in range(44)]
    levels = {f"up{level}": ["near" if c <= level else f"far{c}" for c in classes] for level in range(1, 10)}
    table = {
        "vector": [[float(c), 1.0, float(n % 4)] for n, c in enumerate(classes)],
        "label": [f"c{c}" for c in classes],
    }
    pq.write_table(pa.table(table | levels), tmp_path / "train.parquet")
    changes = [f"data.source={tmp_path / 'train.parquet'}", "train.epochs=1", "train.batch=16"]
    for row, last in (("rince-in", "τ 1.225, in"), ("rince-out-in", "τ 1.225, in"), ("scl-levels", "τ 0.1, in")):
        assert f"           10: {last}; " in command("train", f"vectors/{row}", *changes, "--dry-run").stdout
    command("train", "vectors/rince-in", *changes, "log.every_steps=1", "--out", tmp_path / "run")
    logged = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert [f"term/{rank}" in logged for rank in (1, 8, 9, 10, 11)] == [True, True, True, True, False]


def test_terms_that_follow_no_rule_do_not_go_on():
    def temperatures(given, ranks=5, **last):
        terms = [{"temperature": each} for each in given]
        found = LossSettings(terms=[*terms[:-1], terms[-1] | last]).terms_for(ranks)
        return [term.temperature for term in found]

    assert temperatures([0.1, 0.225, 0.35]) == pytest.approx([0.1 + 0.125 * (i - 1) for i in range(1, 6)], abs=1e-12)
    assert temperatures([0.1, 0.225, 0.35], ranks=2) == [0.1, 0.225]
    for no_rule in ([0.1], [0.1, 0.225], [0.1, 0.225, 0.4]):
        assert temperatures(no_rule) == no_rule
    assert temperatures([0.1, 0.225, 0.35], positives="out") == [0.1, 0.225, 0.35]


def test_training_says_at_once_that_it_cannot_be_judged(tmp_path):
    source = write_vectors(tmp_path / "vectors")
    test = np.load(source / "test.npz")
    vectors = test["features"].copy()
    vectors[3, 0] = np.nan
    np.savez(source / "test.npz", features=vectors, labels=test["labels"], group=test["group"])
    shared = ["train.epochs=1", "train.batch=20", "log.logger=none", "data.validation=0"]
    told = command("train", "vectors/rince-in", f"data.source={source}", *shared, "--out", tmp_path / "run").stderr
    before, _, after = told.partition("none to judge on")
    assert "split 'test': " in before
    assert "NaN or infinity in 1 of 60 vectors, the first in row 3" in after.splitlines()[0]
    assert "step" not in before  # before the first line of the log
