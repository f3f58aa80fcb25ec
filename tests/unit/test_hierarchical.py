"""Metrics of hierarchies against loops that count, NetworkX and scikit-learn."""

import json
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
import torch
from sklearn.metrics import ndcg_score

from rince import DataError, ShapeError, TableRanks
from rince.cli import app, main
from rince.evaluation import (
    average_set_intersection,
    graded_ndcg,
    hierarchical_average_precision,
    mean_ancestor_height,
    mean_average_precision,
    retrieval,
)
from rince.evaluation import gallery as gallery_blocks
from rince.evaluation.judge import judge
from rince.evaluation.samples import Samples

PATHS = ("a/x/0", "a/x/1", "a/y/2", "b/z/3", "b/z/4")
RANKS = TableRanks.from_tree(PATHS)
GROUP, TOP = torch.tensor([0, 0, 1, 2, 2]), torch.tensor([0, 0, 0, 1, 1])


def some(seed=0, queries=15, gallery=60, dim=5, grid=False):
    """Many of class 0, few of the others, so that levels have sizes of all kinds; on a grid, many cosines are equal."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 12, (queries + gallery,), generator=generator).clamp(max=4)
    vectors = torch.randn(5, dim, generator=generator)[labels] + torch.randn(len(labels), dim, generator=generator)
    vectors = torch.where(vectors > 0, 1.0, -1.0) if grid else vectors
    return vectors[:queries], vectors[queries:], labels[:queries], labels[queries:]


@pytest.fixture(params=["distinct", "tied"])
def case(request):
    return some(grid=request.param == "tied", dim=4 if request.param == "tied" else 5)


@pytest.fixture(params=["one block", "blocks of a few rows"], autouse=True)
def blocks(request, monkeypatch):
    if request.param != "one block":
        monkeypatch.setattr(gallery_blocks, "BLOCK_BYTES", 4 * 60 * 2)


def cosines(queries, gallery):
    return (torch.nn.functional.normalize(queries, dim=1) @ torch.nn.functional.normalize(gallery, dim=1).T).tolist()


def naive_hap(scores, ranks):
    """H-AP by its definition: two loops over the items, relevances made falling."""
    highest, relevance, least = 3, {}, float("inf")
    for rank in (1, 2, 3):
        number = sum(r == rank for r in ranks)
        if number:
            least = min(least, (highest + 1 - rank) / highest / number)
            relevance[rank] = least
    total = 0.0
    for score, rank in zip(scores, ranks, strict=True):
        if rank > 0:
            others = [(s, r) for s, r in zip(scores, ranks, strict=True) if s >= score]
            total += sum(min(relevance[rank], relevance[r]) for _, r in others if r > 0) / len(others)
    return total / sum(relevance[r] for r in ranks if r > 0)


def naive_asi(scores, ranks):
    """ASI by its definition; items of one score are at each of their places with an equal part."""
    perfect = sorted(r for r in ranks if r > 0)
    among, places = dict.fromkeys((1, 2, 3), 0.0), []
    for score in sorted(set(scores), reverse=True):
        equal = [r for s, r in zip(scores, ranks, strict=True) if s == score]
        places += [{rank: equal.count(rank) / len(equal) for rank in (1, 2, 3)}] * len(equal)
    shares = []
    for n in range(1, len(perfect) + 1):
        for rank in (1, 2, 3):
            among[rank] += places[n - 1][rank]
        shares.append(sum(min(among[rank], perfect[:n].count(rank)) for rank in (1, 2, 3)) / n)
    return float(np.mean(shares))


@pytest.mark.parametrize(
    ("metric", "naive", "field"),
    [
        (hierarchical_average_precision, naive_hap, "hierarchical_precision"),
        (average_set_intersection, naive_asi, "set_intersection"),
    ],
)
def test_each_is_what_a_loop_counts(metric, naive, field, case):
    queries, gallery, query_labels, gallery_labels = case
    given = {"query_labels": query_labels, "gallery_labels": gallery_labels, "rank_source": RANKS}
    ranks = RANKS(query_labels, gallery_labels).tolist()
    expected = [naive(*both) for both in zip(cosines(queries, gallery), ranks, strict=True)]
    assert np.std(expected) > 0
    assert metric(queries, gallery, **given) == pytest.approx(np.mean(expected), abs=1e-6)
    each = getattr(retrieval.ranked_retrieval(queries, gallery, **given), field)
    assert each.numpy() == pytest.approx(np.array(expected), abs=1e-6)


@pytest.mark.parametrize(
    ("metric", "naive"), [(hierarchical_average_precision, naive_hap), (average_set_intersection, naive_asi)]
)
def test_a_sample_does_not_find_itself(metric, naive):
    vectors, _, labels, _ = some(queries=40)
    same, expected = torch.arange(40), []
    for row, scores in enumerate(cosines(vectors, vectors)):
        kept = [other for other in range(40) if other != row]
        ranks = RANKS(labels[row : row + 1], labels[kept])[0].tolist()
        expected.append(naive([scores[other] for other in kept], ranks))
    value = metric(vectors, vectors, query_labels=labels, gallery_labels=labels, rank_source=RANKS, same=same)
    assert value == pytest.approx(np.mean(expected), abs=1e-6)


def test_the_perfect_order_has_one_and_one_rank_is_average_precision(case):
    queries, gallery, query_labels, gallery_labels = case
    labels = {"query_labels": query_labels, "gallery_labels": gallery_labels}
    flat = TableRanks.from_tree(["0", "1", "2", "3", "4"])
    plain = mean_average_precision(queries, gallery, **labels)
    assert hierarchical_average_precision(queries, gallery, **labels, rank_source=flat) == pytest.approx(plain)
    # Vectors whose cosines are the tree itself.
    tree = torch.cat([torch.eye(5), torch.eye(3)[GROUP], torch.eye(2)[TOP]], dim=1)
    for metric in (hierarchical_average_precision, average_set_intersection):
        assert metric(tree[query_labels], tree[gallery_labels], **labels, rank_source=RANKS) == pytest.approx(1)


def test_heights_are_those_of_the_lowest_common_ancestors_of_networkx():
    queries, gallery, query_labels, gallery_labels = some()
    tree = nx.DiGraph()
    for path in PATHS:
        parts = path.split("/")
        nodes = ["", *("/".join(parts[: n + 1]) for n in range(3))]
        tree.add_edges_from(pairwise(nodes))
    near = np.argmax(cosines(queries, gallery), axis=1)
    expected = []
    for own, item in zip(query_labels.tolist(), gallery_labels[near].tolist(), strict=True):
        common = nx.lowest_common_ancestor(tree, PATHS[own], PATHS[item])
        expected.append(nx.shortest_path_length(tree, common, PATHS[own]))
    assert set(expected) >= {0, 3}
    levels = {
        "query_levels": [query_labels, GROUP[query_labels], TOP[query_labels]],
        "gallery_levels": [gallery_labels, GROUP[gallery_labels], TOP[gallery_labels]],
    }
    assert mean_ancestor_height(queries, gallery, **levels) == pytest.approx(np.mean(expected))
    train, test = (
        Samples(vectors, dict(zip(("class", "group", "top"), each, strict=True)))
        for vectors, each in ((gallery, levels["gallery_levels"]), (queries, levels["query_levels"]))
    )
    found = judge(train, test)
    assert found.metrics["ranking/ancestor_height"] == pytest.approx(np.mean(expected))
    assert found.queries["ranking/ancestor_height"].tolist() == expected
    assert found.metrics["ranking/mistake_severity"] == pytest.approx(np.mean([h for h in expected if h]))
    for level, groups in (("class", torch.arange(5)), ("group", GROUP), ("top", TOP)):
        drawn = [[float(groups[q] == groups[g]) for g in gallery_labels] for q in query_labels]
        assert found.metrics[f"retrieval/{level}/chance@1"] == pytest.approx(np.mean(drawn))


def test_the_chance_of_a_sample_that_lies_in_the_gallery():
    vectors, _, labels, _ = some(queries=30)
    samples = Samples(vectors, {"class": labels}, same=torch.arange(30))
    expected = np.mean([[float(a == b) for j, b in enumerate(labels) if j != i] for i, a in enumerate(labels)])
    assert judge(samples, samples).metrics["retrieval/class/chance@1"] == pytest.approx(expected)


@pytest.mark.parametrize("k", [None, 1, 7])
def test_ndcg_of_given_gains_equals_scikit_learn_ties_included(case, k):
    queries, gallery, _, _ = case
    gains = torch.randint(0, 4, (15, 60), generator=torch.Generator().manual_seed(3)) * 1.5
    gains[4] = 0  # gains nothing, and is left out
    kept = [row for row in range(15) if row != 4]
    scores = np.array(cosines(queries, gallery))
    expected = np.mean([ndcg_score(gains[[row]].numpy(), scores[[row]], k=k) for row in kept])
    assert graded_ndcg(queries, gallery, gains=gains, k=k) == pytest.approx(expected, abs=1e-6)
    by_rows = graded_ndcg(queries, gallery, gains=lambda start, stop: gains[start:stop], k=k)
    assert by_rows == pytest.approx(expected, abs=1e-6)


def test_gains_of_a_sample_to_itself_do_not_count():
    vectors, _, _, _ = some(queries=20)
    gains = torch.rand(20, 20, generator=torch.Generator().manual_seed(4))
    expected = []
    for row, scores in enumerate(cosines(vectors, vectors)):
        kept = [other for other in range(20) if other != row]
        expected.append(ndcg_score(gains[row, kept][None].numpy(), np.array(scores)[kept][None]))
    value = graded_ndcg(vectors, vectors, gains=gains, same=torch.arange(20))
    assert value == pytest.approx(np.mean(expected), abs=1e-6)


@pytest.mark.parametrize(
    ("gains", "error", "match"),
    [
        (torch.ones(15, 59), ShapeError, r"gains must have the shape \(queries, gallery\), \(15, 60\); got \(15, 59\)"),
        (-torch.ones(15, 60), DataError, "gains must be finite numbers of 0 or more"),
        (torch.zeros(15, 60), DataError, "all gains are 0"),
    ],
)
def test_bad_gains_are_named(gains, error, match):
    queries, gallery, _, _ = some()
    with pytest.raises(error, match=match):
        graded_ndcg(queries, gallery, gains=gains)


def test_levels_of_queries_and_gallery_must_agree():
    queries, gallery, query_labels, _ = some()
    with pytest.raises(ShapeError, match="the same levels, at least one: got 1 and 0"):
        mean_ancestor_height(queries, gallery, query_levels=[query_labels], gallery_levels=[])


def test_gains_come_from_a_file(tmp_path, capsys, monkeypatch):
    queries, gallery, query_labels, gallery_labels = some()
    gains = torch.rand(15, 60, generator=torch.Generator().manual_seed(3)).numpy()
    for name, vectors, labels in (("test", queries, query_labels), ("train", gallery, gallery_labels)):
        np.savez(tmp_path / f"{name}.npz", features=vectors.numpy(), labels=labels.numpy())
    np.save(tmp_path / "gains.npy", gains)
    np.save(tmp_path / "few.npy", gains[:3])
    monkeypatch.chdir(tmp_path)
    files = ["evaluate", "--embeddings", "train.npz", "test.npz"]
    app([*files, "--gains", "gains.npy", "--out", "numbers.json"], standalone_mode=False)
    found = json.loads((tmp_path / "numbers.json").read_text())["metrics"]["ranking/given/ndcg"]
    assert found == pytest.approx(ndcg_score(gains, np.array(cosines(queries, gallery))), abs=1e-6)
    with pytest.raises(SystemExit) as stopped:
        main(lambda: app([*files, "--gains", "few.npy"], standalone_mode=False))
    assert stopped.value.code == 2
    assert "a row for each of 15 test vectors" in capsys.readouterr().err
