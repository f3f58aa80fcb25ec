"""Ranks from anywhere: per sample, from text, from files; against plain loops and scikit-learn."""

import importlib.util

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from rince import ConfigError, DataError, SampleRanks, ShapeError, TableRanks
from rince.config import validate
from rince.hierarchy import text
from rince.hierarchy.from_taxonomy import flip_pairs
from rince.hierarchy.from_vectors import cluster_paths
from rince.hierarchy.given import Ranked
from rince.hierarchy.number_files import read_columns, read_similarity, read_vectors

NAMES = ("cat", "dog", "oak")


def recipe(**ranks):
    return validate(
        {"name": "t", "data": {"source": "fashion"}, "loss": {"terms": [{"temperature": 0.1}]}, "ranks": ranks}, "test"
    )


def rank_source(recipe, names, paths, samples):
    return recipe.ranks.build(Ranked(names, paths, samples, recipe.seed))


def naive(vectors, limits, euclidean, queries, candidates):
    rows = []
    for q in queries:
        row = []
        for c in candidates:
            if c < 0:
                row.append(-1 if c == -1 else 0)
                continue
            a, b = (np.asarray(vectors[i], dtype=np.float64) for i in (q, c))
            near = -np.linalg.norm(a - b) if euclidean else a @ b / np.linalg.norm(a) / np.linalg.norm(b)
            passed = [r for r, limit in enumerate(limits, 2) if near >= (-limit if euclidean else limit)]
            row.append(1 if q == c else min(passed, default=0))
        rows.append(row)
    return rows


@pytest.mark.parametrize(("metric", "limits"), [("cosine", [0.6, 0.1]), ("euclidean", [1.0, 2.5, 3.0])])
def test_samples_are_ranked_by_how_near_they_are(metric, limits):
    vectors = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    queries, candidates = [0, 7, 29], [*range(30), -1, -2]
    ranks = SampleRanks(vectors, limits, metric=metric)
    found = ranks(torch.tensor(queries), torch.tensor(candidates))
    assert found.tolist() == naive(vectors.tolist(), limits, metric == "euclidean", queries, candidates)
    assert ranks.ranks == len(limits) + 1
    assert found.dtype == torch.int8


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_the_nearest_samples_are_those_of_scikit_learn(metric):
    vectors = torch.randn(40, 5, generator=torch.Generator().manual_seed(1))
    found = SampleRanks.from_neighbours(vectors, [3, 8], metric=metric)(torch.arange(40), torch.arange(40))
    near = NearestNeighbors(n_neighbors=9, metric=metric).fit(vectors).kneighbors(vectors, return_distance=False)
    for sample in range(40):
        others = [n for n in near[sample].tolist() if n != sample]
        expected = {n: 2 if place < 3 else 3 for place, n in enumerate(others[:8])} | {sample: 1}
        assert {n: r for n, r in enumerate(found[sample].tolist()) if r} == expected


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: SampleRanks(torch.ones(3), [0.5]), ShapeError, "must be a matrix"),
        (lambda: SampleRanks(torch.tensor([[1.0], [float("nan")]]), [0.5]), DataError, "first in row 1"),
        (lambda: SampleRanks(torch.ones(3, 1), [0.1, 0.5]), ConfigError, "must fall"),
        (lambda: SampleRanks(torch.ones(3, 1), [5.0, 1.0], metric="euclidean"), ConfigError, "must grow"),
        (lambda: SampleRanks(torch.ones(3, 1), []), ShapeError, "one number per rank"),
        (lambda: SampleRanks(torch.ones(3, 1), [0.5], metric="taxi"), ConfigError, "got 'taxi'"),
        (lambda: SampleRanks.from_neighbours(torch.ones(3, 1), [2, 1]), ConfigError, "must grow"),
        (lambda: SampleRanks.from_neighbours(torch.ones(3, 1), [3]), ConfigError, "only 3 samples"),
        (lambda: SampleRanks(torch.ones(3, 1), [0.5])(torch.tensor([3]), torch.tensor([0])), DataError, "holds 3"),
    ],
)
def test_bad_vectors_and_limits_are_named(call, error, match):
    with pytest.raises(error, match=match):
        call()


needs_model = pytest.mark.skipif(
    importlib.util.find_spec("sentence_transformers") is None or importlib.util.find_spec(text.SHIPPED) is None,
    reason="needs the extra [text]",
)


@needs_model
@pytest.mark.slow
def test_text_puts_related_names_together_and_is_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    names = ["maple_tree", "oak_tree", "car", "automobile", "lion", "tiger"]
    similarity = text.name_similarity(names)
    assert torch.equal(similarity, similarity.T)
    assert (similarity.diagonal() == 1).all()
    nearest = similarity.clone().fill_diagonal_(-1).argmax(dim=1).tolist()
    assert nearest == [1, 0, 3, 2, 5, 4]
    monkeypatch.setattr(text, "_encode", lambda *_: pytest.fail("was not cached"))
    assert torch.equal(text.name_similarity(names), similarity)
    source = rank_source(recipe(kind="text", thresholds=[0.45]), names, [(n,) for n in names], 10)
    assert isinstance(source, TableRanks)
    assert source.table.tolist() == TableRanks.from_similarity(similarity, [0.45]).table.tolist()


@pytest.mark.parametrize(
    ("names", "match"),
    [(["a", " _ "], "class 1 has no name"), (["red_fox", "red fox"], "two classes are called 'red fox'")],
)
def test_names_that_text_cannot_use_are_named(names, match):
    with pytest.raises(DataError, match=match):
        text.embed_names(names)


@needs_model
@pytest.mark.slow
def test_a_text_model_that_cannot_be_had_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"the text model '.*nowhere' cannot be loaded"):
        text.embed_names(["a", "b"], str(tmp_path / "nowhere"))


def test_similarity_from_files_in_any_order_of_names(tmp_path):
    matrix = np.array([[1, 0.8, 0.1], [0.8, 1, 0.2], [0.1, 0.2, 1]], dtype=np.float32)
    np.savez(tmp_path / "s.npz", similarity=matrix)
    (tmp_path / "s.csv").write_text(",oak,cat,dog\noak,1,0.1,0.2\ncat,0.1,1,0.8\ndog,0.2,0.8,1\n")
    for name in ("s.npz", "s.csv"):
        assert read_similarity(tmp_path / name, NAMES).numpy() == pytest.approx(matrix)
        source = rank_source(
            recipe(kind="similarity", file=str(tmp_path / name), thresholds=[0.5, 0.15]),
            NAMES,
            [(n,) for n in NAMES],
            9,
        )
        assert source.table.tolist() == [[1, 2, 0], [2, 1, 3], [0, 3, 1]]


def test_embeddings_of_classes_by_threshold_and_by_neighbours(tmp_path):
    vectors = np.array([[1, 0.1], [1, 0], [0, 1]], dtype=np.float32)
    np.savez(tmp_path / "v.npz", features=vectors[[2, 0, 1]], labels=np.array(["oak", "cat", "dog"]))
    assert read_vectors(tmp_path / "v.npz", NAMES).numpy() == pytest.approx(vectors)
    common = {"kind": "embedding", "file": str(tmp_path / "v.npz")}
    paths = [(n,) for n in NAMES]
    by_limit = rank_source(recipe(**common, thresholds=[0.9]), NAMES, paths, 9)
    assert by_limit.table.tolist() == [[1, 2, 0], [2, 1, 0], [0, 0, 1]]
    by_count = rank_source(recipe(**common, nearest=[1]), NAMES, paths, 9)
    assert by_count.table.tolist() == [[1, 2, 0], [2, 1, 0], [2, 0, 1]]


def test_embeddings_of_samples_and_positions(tmp_path):
    np.save(tmp_path / "v.npy", np.array([[1, 0.1], [1, 0], [0, 1]], dtype=np.float32))
    (tmp_path / "p.csv").write_text("frame,x,y\na,0,0\nb,0,2\nc,9,9\n")
    paths = [(n,) for n in NAMES]
    near = rank_source(
        recipe(kind="embedding", file=str(tmp_path / "v.npy"), per="sample", thresholds=[0.9]), NAMES, paths, 3
    )
    ids = torch.arange(3)
    assert near(ids, ids).tolist() == [[1, 2, 0], [2, 1, 0], [0, 0, 1]]
    place = rank_source(
        recipe(kind="position", file=str(tmp_path / "p.csv"), columns=["x", "y"], thresholds=[2.5]), NAMES, paths, 3
    )
    assert place(ids, ids).tolist() == [[1, 2, 0], [2, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize("method", ["kmeans", "agglomerative"])
def test_clusters_of_clusters_give_a_tree(method):
    corners = torch.tensor([[1.0, 0, 0], [0.9, 0.3, 0], [0, 0, 1.0]])
    vectors = corners.repeat_interleave(3, dim=0) + 0.02 * torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
    table = TableRanks.from_tree(cluster_paths(vectors, [3, 2], method, seed=0)).table
    group, family = torch.arange(9) // 3, torch.tensor([0] * 6 + [1] * 3)
    expected = torch.where(group[:, None] == group, 2, torch.where(family[:, None] == family, 3, 0))
    assert table.tolist() == expected.fill_diagonal_(1).tolist()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda f: read_similarity(f / "none.npz", NAMES), "there is no file"),
        (lambda f: read_similarity(_saved(f, np.ones((3, 2))), NAMES), "a row and a column for each of 3 classes"),
        (
            lambda f: read_similarity(_text(f, ",cat,dog\ncat,1,0\ndog,0,1\n"), NAMES),
            "lacks 1 of 3 classes, 'oak' first",
        ),
        (lambda f: read_similarity(_text(f, ",cat,cat\ncat,1,0\n"), NAMES), "has 'cat' twice"),
        (lambda f: read_similarity(_text(f, ",cat,dog,oak\ncat,x,0,1\n"), NAMES), "names and numbers"),
        (lambda f: read_vectors(_saved(f, np.ones((2, 4))), NAMES), "2 vectors for 3 classes"),
        (lambda f: read_vectors(_saved(f, np.ones(4)), NAMES), "must hold a matrix"),
        (lambda f: read_columns(_text(f, "x\n1\n2\n"), ["y"], 2), "no column 'y'; it has x"),
        (lambda f: read_columns(_text(f, "x\n1\n2\n"), ["x"], 3), "2 rows for 3 training images"),
        (lambda f: read_columns(_text(f, "x\n1\nleft\n"), ["x"], 2), "must hold numbers in x"),
        (lambda f: cluster_paths(torch.eye(3), [3], "kmeans", 0), "ranks.counts must fall"),
        (
            lambda f: TableRanks.from_similarity(read_similarity(_saved(f, np.full((3, 3), np.nan)), NAMES), [0.5]),
            "is NaN",
        ),
        (
            lambda f: TableRanks.from_similarity(read_similarity(_saved(f, np.triu(np.ones((3, 3)))), NAMES), [0.5]),
            "symmetric",
        ),
    ],
)
def test_files_that_lack_something_are_named(make, match, tmp_path):
    with pytest.raises((DataError, ConfigError), match=match):
        make(tmp_path)


def _saved(folder, array):
    np.save(folder / "a.npy", array)
    return folder / "a.npy"


def _text(folder, content):
    (folder / "a.csv").write_text(content)
    return folder / "a.csv"


@pytest.mark.parametrize(
    ("ranks", "match"),
    [
        ({"kind": "text", "thresholds": [0.3, 0.5]}, "must fall from rank to rank"),
        ({"kind": "embedding", "file": "x.npy"}, "either thresholds or nearest"),
        ({"kind": "embedding", "file": "x.npy", "nearest": [5, 2]}, "must grow from rank to rank"),
        ({"kind": "text", "threshold": [0.3]}, "did you mean 'thresholds'?"),
        ({"kind": "texts"}, "'texts'"),
    ],
)
def test_bad_settings_are_named(ranks, match):
    with pytest.raises(ConfigError, match=match):
        recipe(**ranks)


def test_a_share_of_the_pairs_is_flipped():
    clean = TableRanks.from_tree([f"{c // 8}/{c // 4}/{c}" for c in range(24)])
    before = clean.table.tolist()
    changed = {}
    for share in (0.0, 0.1, 0.3, 1.0):
        after = flip_pairs(clean, share, seed=5).table.tolist()
        pairs = [(i, j) for i in range(24) for j in range(i + 1, 24)]
        changed[share] = {(i, j) for i, j in pairs if after[i][j] != before[i][j]}
        assert len(changed[share]) == round(share * len(pairs))
        for i, j in changed[share]:
            assert after[i][j] == (0 if before[i][j] else 3)
        assert all(after[i][j] == after[j][i] for i, j in pairs)
        assert all(after[i][i] == 1 for i in range(24))
    assert changed[0.1] < changed[0.3]
    assert flip_pairs(clean, 0.1, seed=6).table.tolist() != flip_pairs(clean, 0.1, seed=5).table.tolist()


def test_flipped_pairs_are_a_setting_of_the_tree():
    paths = [("animal", "cat"), ("animal", "dog"), ("plant", "oak")]
    source = rank_source(recipe(kind="tree", flipped=1.0), NAMES, paths, 3)
    assert source.table.tolist() == [[1, 0, 2], [0, 1, 2], [2, 2, 1]]
    with pytest.raises(ConfigError, match=r"ranks\.flipped: unknown key"):
        recipe(kind="classes", flipped=0.5)


def test_samples_are_ranked_by_an_encoder_of_ones_own():
    images = torch.randn(10, 3, 2, 2, generator=torch.Generator().manual_seed(2))
    sizes = []

    def encode(batch):
        sizes.append(len(batch))
        assert not torch.is_grad_enabled()
        return batch.mean(dim=(2, 3))

    everybody = torch.arange(10)
    found = SampleRanks.from_encoder(encode, images, limits=[0.5, 0.0], batch=4)
    expected = naive(images.mean(dim=(2, 3)).tolist(), [0.5, 0.0], False, range(10), range(10))
    assert found(everybody, everybody).tolist() == expected
    assert sizes == [4, 4, 2]
    near = SampleRanks.from_encoder(encode, images, counts=[2], metric="euclidean")(everybody, everybody)
    assert ((near == 2).sum(dim=1) == 2).all()
    for wrong in ({}, {"limits": [0.5], "counts": [1]}):
        with pytest.raises(ConfigError, match="either limits or counts"):
            SampleRanks.from_encoder(encode, images, **wrong)
    with pytest.raises(ShapeError, match="a vector for each image, got 1 for 10"):
        SampleRanks.from_encoder(lambda batch: batch.mean(dim=0, keepdim=True), images, counts=[1])


def test_parents_are_one_rank_and_classes_another():
    paths = [("animal", "cat"), ("animal", "dog"), ("plant", "oak")]
    tables = {
        "parents": [[1, 1, 0], [1, 1, 0], [0, 0, 1]],
        "classes": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
        "tree": [[1, 2, 0], [2, 1, 0], [0, 0, 1]],
    }
    for kind, table in tables.items():
        assert rank_source(recipe(kind=kind), NAMES, paths, 3).table.tolist() == table
