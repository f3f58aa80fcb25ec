"""Retrieval metrics against scikit-learn, query by query."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, ndcg_score, roc_auc_score
from sklearn.metrics import precision_recall_curve as sklearn_curve
from sklearn.neighbors import NearestNeighbors

from rince import ConfigError, DataError, InstanceRanks, ShapeError, TableRanks
from rince.evaluation import gallery as gallery_blocks
from rince.evaluation import (
    mean_average_precision,
    ndcg,
    precision_recall_curve,
    rank_order_accuracy,
    recall_at_k,
    retrieval,
)
from rince.evaluation import nearest as search

RANKS = TableRanks.from_tree(["a/x/0", "a/x/1", "a/y/2", "b/z/3", "b/z/4"])


def embeddings(seed=0, queries=37, gallery=211, dim=6, grid=False):
    """Clusters around class means; on a grid of few values, so that many cosines are exactly equal, if asked."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 5, (queries + gallery,), generator=generator)
    means = torch.randn(5, dim, generator=generator)
    vectors = means[labels] + 1.5 * torch.randn(queries + gallery, dim, generator=generator)
    if grid:
        vectors = torch.where(vectors > 0, 1.0, -1.0)
    return vectors[:queries], vectors[queries:], labels[:queries], labels[queries:]


def cosines(queries, gallery):
    return (torch.nn.functional.normalize(queries, dim=1) @ torch.nn.functional.normalize(gallery, dim=1).T).numpy()


@pytest.fixture(params=["distinct", "tied"])
def case(request):
    return embeddings(grid=request.param == "tied", dim=4 if request.param == "tied" else 6)


@pytest.fixture(params=["one block", "blocks of a few rows"], autouse=True)
def blocks(request, monkeypatch):
    if request.param != "one block":
        monkeypatch.setattr(gallery_blocks, "BLOCK_BYTES", 4 * 211 * 3)


@pytest.mark.parametrize("k", [1, 3, 10])
def test_recall_equals_the_nearest_neighbours_of_scikit_learn(k):
    queries, gallery, query_labels, gallery_labels = embeddings()
    near = NearestNeighbors(n_neighbors=k, metric="cosine").fit(gallery).kneighbors(queries, return_distance=False)
    expected = (gallery_labels.numpy()[near] == query_labels.numpy()[:, None]).any(1).mean()
    assert 0 < expected < 1
    value = recall_at_k(queries, gallery, query_labels=query_labels, gallery_labels=gallery_labels, k=k)
    assert value == pytest.approx(expected, abs=1e-12)


def test_map_equals_scikit_learn_ties_included(case):
    queries, gallery, query_labels, gallery_labels = case
    scores = cosines(queries, gallery)
    expected = np.mean(
        [
            average_precision_score(gallery_labels.numpy() == int(q), row)
            for q, row in zip(query_labels, scores, strict=True)
        ]
    )
    value = mean_average_precision(queries, gallery, query_labels=query_labels, gallery_labels=gallery_labels)
    assert value == pytest.approx(expected, abs=1e-6)


def test_the_curve_passes_through_the_points_of_scikit_learn():
    queries, gallery, query_labels, gallery_labels = embeddings()
    curve = precision_recall_curve(
        queries, gallery, query_labels=query_labels, gallery_labels=gallery_labels, points=11
    )
    rows = []
    for label, row in zip(query_labels, cosines(queries, gallery), strict=True):
        precision, recall, _ = sklearn_curve(gallery_labels.numpy() == int(label), row)
        # At recall r the first threshold, from high to low, that finds at least a share r.
        precision, recall = precision[-2::-1], recall[-2::-1]
        rows.append([precision[np.argmax(recall >= max(r, 1e-9) - 1e-9)] for r in np.linspace(0, 1, 11)])
    # scikit-learn has points between two hits as well: at recall 0 its first is the best score, right or wrong.
    expected = np.mean(rows, axis=0)
    assert curve.precision[1:].numpy() == pytest.approx(expected[1:], abs=1e-6)
    assert curve.recall.tolist() == pytest.approx(np.linspace(0, 1, 11))
    assert curve.average == pytest.approx(
        mean_average_precision(queries, gallery, query_labels=query_labels, gallery_labels=gallery_labels), abs=1e-12
    )


@pytest.mark.parametrize("k", [None, 1, 7])
def test_ndcg_equals_scikit_learn_ties_included(case, k):
    queries, gallery, query_labels, gallery_labels = case
    ranks = RANKS(query_labels, gallery_labels).numpy()
    grades = np.where(ranks > 0, RANKS.ranks + 1 - ranks, 0)
    expected = np.mean(
        [ndcg_score(g[None], s[None], k=k) for g, s in zip(grades, cosines(queries, gallery), strict=True)]
    )
    value = ndcg(queries, gallery, query_labels=query_labels, gallery_labels=gallery_labels, rank_source=RANKS, k=k)
    assert value == pytest.approx(expected, abs=1e-6)


def test_rank_order_accuracy_is_the_auroc_of_each_rank_against_all_farther(case):
    queries, gallery, query_labels, gallery_labels = case
    expected = []
    for ranks, row in zip(RANKS(query_labels, gallery_labels).numpy(), cosines(queries, gallery), strict=True):
        order = np.where(ranks > 0, ranks, 99)
        shares = [
            roc_auc_score(order[order >= rank] == rank, row[order >= rank])
            for rank in np.unique(ranks[ranks > 0])
            if (order > rank).any()
        ]
        expected.append(np.mean(shares))
    value = rank_order_accuracy(
        queries, gallery, query_labels=query_labels, gallery_labels=gallery_labels, rank_source=RANKS
    )
    assert value == pytest.approx(np.mean(expected), abs=1e-6)


def test_all_at_once_is_what_each_gives_alone(case):
    queries, gallery, query_labels, gallery_labels = case
    labels = {"query_labels": query_labels, "gallery_labels": gallery_labels}
    found = retrieval.ranked_retrieval(queries, gallery, **labels, rank_source=RANKS)
    gain = ndcg(queries, gallery, **labels, rank_source=RANKS)
    assert float(found.ndcg.nanmean()) == pytest.approx(gain, abs=1e-12)
    order = rank_order_accuracy(queries, gallery, **labels, rank_source=RANKS)
    assert float(found.order_accuracy.nanmean()) == pytest.approx(order, abs=1e-12)
    levels = (torch.arange(5), torch.tensor([0, 0, 1, 2, 2]), torch.tensor([0, 0, 0, 1, 1]))
    assert len(found.curves) == len(levels)
    for curve, group in zip(found.curves, levels, strict=True):
        alone = precision_recall_curve(
            queries, gallery, query_labels=group[query_labels], gallery_labels=group[gallery_labels]
        )
        assert curve.average == pytest.approx(alone.average, abs=1e-6)
        assert curve.precision.numpy() == pytest.approx(alone.precision.numpy(), abs=1e-6)


def test_every_query_has_its_own_numbers(case):
    queries, gallery, query_labels, gallery_labels = case
    query_labels = torch.where(torch.arange(37) < 4, 77, query_labels)  # a label that the gallery lacks
    table = torch.zeros(78, 78, dtype=torch.int8)
    table[:5, :5] = RANKS.table
    labels = {"query_labels": query_labels, "gallery_labels": gallery_labels}
    found = retrieval.ranked_retrieval(queries, gallery, **labels, rank_source=TableRanks(table))
    of_queries = [*found.average_precisions, found.ndcg, found.order_accuracy]
    assert len(of_queries) == 5
    assert all(values.shape == (37,) and values[:4].isnan().all() for values in of_queries)
    for number, scores in enumerate(cosines(queries, gallery)):
        if number < 4:
            continue
        ranks = RANKS(query_labels[number : number + 1], gallery_labels)[0].numpy()
        for rank, values in enumerate(found.average_precisions, 1):
            expected = average_precision_score((ranks > 0) & (ranks <= rank), scores)
            assert float(values[number]) == pytest.approx(expected, abs=1e-6)
        grades = np.where(ranks > 0, RANKS.ranks + 1 - ranks, 0)
        assert float(found.ndcg[number]) == pytest.approx(ndcg_score(grades[None], scores[None]), abs=1e-6)
        order = np.where(ranks > 0, ranks, 99)
        closer = [rank for rank in np.unique(ranks[ranks > 0]) if (order > rank).any()]
        shares = [roc_auc_score(order[order >= rank] == rank, scores[order >= rank]) for rank in closer]
        assert float(found.order_accuracy[number]) == pytest.approx(np.mean(shares), abs=1e-6)
    for rank, curve in enumerate(found.curves):
        assert curve.average == pytest.approx(float(found.average_precisions[rank][4:].mean()), abs=1e-12)


def test_hits_are_those_of_each_query():
    queries, gallery, query_labels, gallery_labels = embeddings()
    labels = {"query_labels": query_labels, "gallery_labels": gallery_labels}
    order = np.argsort(-cosines(queries, gallery), axis=1)[:, :3]
    expected = (gallery_labels.numpy()[order] == query_labels.numpy()[:, None]).any(axis=1)
    assert retrieval.hits_at_k(queries, gallery, **labels, k=3).tolist() == expected.tolist()


def test_excluded_items_are_as_good_as_absent():
    queries, gallery, query_labels, gallery_labels = embeddings()
    kept = gallery_labels != 2
    table = RANKS.table.clone()
    table[:, 2] = -1
    whole = {"query_labels": query_labels, "gallery_labels": gallery_labels, "rank_source": TableRanks(table)}
    part = {"query_labels": query_labels, "gallery_labels": gallery_labels[kept], "rank_source": TableRanks(table)}
    for metric in (ndcg, rank_order_accuracy):
        assert metric(queries, gallery, **whole) == pytest.approx(metric(queries, gallery[kept], **part), abs=1e-12)


def test_queries_with_nothing_to_find_are_left_out_and_none_at_all_is_an_error():
    queries, gallery, query_labels, gallery_labels = embeddings()
    alone = query_labels.clone()
    alone[:5] = 77
    value = mean_average_precision(queries, gallery, query_labels=alone, gallery_labels=gallery_labels)
    rest = mean_average_precision(queries[5:], gallery, query_labels=alone[5:], gallery_labels=gallery_labels)
    assert value == pytest.approx(rest, abs=1e-12)
    with pytest.raises(DataError, match="share their labels"):
        mean_average_precision(queries, gallery, query_labels=alone * 0 + 77, gallery_labels=gallery_labels)


def test_all_equal_embeddings_are_at_chance_and_zero_rows_at_cosine_zero():
    _, _, query_labels, gallery_labels = embeddings()
    same, others = torch.ones(37, 6), torch.ones(211, 6)
    labels = {"query_labels": query_labels, "gallery_labels": gallery_labels}
    share = np.mean([(gallery_labels == q).double().mean() for q in query_labels])
    # A matrix product may round equal cosines differently at the edge of a block.
    assert mean_average_precision(same, others, **labels) == pytest.approx(share, abs=0.01)
    assert rank_order_accuracy(same, others, **labels, rank_source=RANKS) == pytest.approx(0.5, abs=0.01)
    assert mean_average_precision(0 * same, others, **labels) == pytest.approx(share, abs=1e-12)


def test_instances_find_their_own_other_view():
    vectors = torch.nn.functional.normalize(torch.randn(20, 8, generator=torch.Generator().manual_seed(1)), dim=1)
    ids = torch.arange(20)
    value = ndcg(vectors, vectors, query_labels=ids, gallery_labels=ids, rank_source=InstanceRanks())
    assert value == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"queries": torch.ones(37)}, ShapeError, "queries must be a matrix"),
        ({"queries": torch.ones(37, 5)}, ShapeError, "vectors of one length, got 5 and 6"),
        ({"gallery": torch.empty(0, 6)}, DataError, "gallery is empty"),
        ({"queries": torch.full((37, 6), float("nan"))}, DataError, "NaN or infinity in 37 of 37 rows, first in row 0"),
        ({"query_labels": torch.zeros(36, dtype=torch.long)}, ShapeError, "query_labels must hold one integer"),
        (
            {"gallery_labels": torch.zeros(211)},
            ShapeError,
            "gallery_labels must hold one integer per vector: got torch.float32",
        ),
        ({"k": 0}, ConfigError, "k must be a whole number, at least 1; got 0"),
        ({"k": 212}, ConfigError, "k must be from 1 to the size of the gallery, 211"),
    ],
)
def test_bad_input_is_named(change, error, match):
    queries, gallery, query_labels, gallery_labels = embeddings()
    given = {"queries": queries, "gallery": gallery, "query_labels": query_labels, "gallery_labels": gallery_labels}
    given |= change
    with pytest.raises(error, match=match):
        recall_at_k(given.pop("queries"), given.pop("gallery"), **given)


# Queries that lie in the gallery: a loop over queries, each with a gallery of its own, from which its item is gone.

ALIKE = TableRanks.from_tree(["a/x/0", "a/x/1", "a/y/2", "b/z/3", "b/w/4"])  # each class has the highest rank
LONELY = torch.tensor([7])  # a class of one sample: without itself it has nothing of its class to find


@pytest.fixture(params=["all of them", "some of them", "under other labels"])
def shared(request, case):
    """Queries that lie in the gallery, all or some; as a rule under their own label."""
    _, gallery, _, labels = case
    rows = torch.randperm(len(gallery), generator=torch.Generator().manual_seed(1))[:60]
    queries, query_labels, same = gallery[rows].clone(), labels[rows].clone(), rows.clone()
    if request.param == "some of them":
        same[::3] = -1
    if request.param == "under other labels":
        query_labels[::4] = (query_labels[::4] + 1) % 5
    return queries, gallery, query_labels, labels, same


def alone(shared):
    """Query after query with the gallery that it has to itself."""
    queries, gallery, query_labels, labels, same = shared
    for row in range(len(queries)):
        kept = torch.arange(len(gallery)) != same[row]
        given = {"query_labels": query_labels[row : row + 1], "gallery_labels": labels[kept]}
        yield (queries[row : row + 1], gallery[kept]), given


def of_all(shared):
    queries, gallery, query_labels, labels, same = shared
    return (queries, gallery), {"query_labels": query_labels, "gallery_labels": labels, "same": same}


@pytest.mark.parametrize(
    ("metric", "options"),
    [
        (recall_at_k, {"k": 1}),
        (recall_at_k, {"k": 4}),
        (mean_average_precision, {}),
        (ndcg, {"rank_source": ALIKE}),
        (ndcg, {"rank_source": ALIKE, "k": 5}),
        (rank_order_accuracy, {"rank_source": ALIKE}),
    ],
)
def test_a_sample_does_not_find_itself(metric, options, shared):
    vectors, given = of_all(shared)
    expected = np.mean([metric(*one, **labels, **options) for one, labels in alone(shared)])
    assert metric(*vectors, **given, **options) == pytest.approx(expected, abs=1e-9)
    given["same"] = None
    assert metric(*vectors, **given, **options) != pytest.approx(expected, abs=1e-4)


def test_nor_in_all_metrics_at_once(shared):
    vectors, given = of_all(shared)
    found = retrieval.ranked_retrieval(*vectors, **given, rank_source=ALIKE)
    each = [retrieval.ranked_retrieval(*one, **labels, rank_source=ALIKE) for one, labels in alone(shared)]
    assert found.ndcg.numpy() == pytest.approx(torch.cat([one.ndcg for one in each]).numpy(), abs=1e-9)
    orders = torch.cat([one.order_accuracy for one in each])
    assert found.order_accuracy.numpy() == pytest.approx(orders.numpy(), abs=1e-9)
    for level, curve in enumerate(found.curves):
        averages = torch.cat([one.average_precisions[level] for one in each])
        assert found.average_precisions[level].numpy() == pytest.approx(averages.numpy(), abs=1e-9)
        precision = torch.stack([one.curves[level].precision for one in each]).mean(dim=0)
        assert curve.precision.numpy() == pytest.approx(precision.numpy(), abs=1e-9)


def test_average_precision_without_oneself_by_a_loop(shared):
    """With nothing of our own: cosines, a loop over the gallery, scikit-learn's average precision."""
    (queries, gallery), given = of_all(shared)
    expected = []
    for scores, label, own in zip(cosines(queries, gallery), given["query_labels"], given["same"], strict=True):
        kept = [row for row in range(len(gallery)) if row != own]
        right = [int(given["gallery_labels"][row] == label) for row in kept]
        expected.append(average_precision_score(right, scores[kept]))
    assert mean_average_precision(queries, gallery, **given) == pytest.approx(np.mean(expected), abs=1e-6)


def test_who_has_nothing_but_itself_to_find_is_left_out():
    _, gallery, _, labels = embeddings()
    labels = torch.cat([labels, LONELY])
    gallery = torch.cat([gallery, gallery[:1]])
    given = {"query_labels": labels[-6:], "gallery_labels": labels, "same": torch.arange(len(labels))[-6:]}
    value = mean_average_precision(gallery[-6:], gallery, **given)
    rest = {"query_labels": labels[-6:-1], "gallery_labels": labels, "same": torch.arange(len(labels))[-6:-1]}
    assert value == pytest.approx(mean_average_precision(gallery[-6:-1], gallery, **rest), abs=1e-9)
    assert recall_at_k(gallery[-1:], gallery, query_labels=LONELY, gallery_labels=labels, same=given["same"][-1:]) == 0
    everything = {"query_labels": LONELY, "gallery_labels": labels, "same": given["same"][-1:], "k": len(gallery)}
    assert recall_at_k(gallery[-1:], gallery, **everything) == 0


@pytest.mark.parametrize(
    ("same", "match"),
    [
        (torch.tensor([0, 5, 211]), "from 0 to 210, or -1 for none; got 0 to 211"),
        (torch.tensor([1]), "same must hold one"),
    ],
)
def test_rows_that_are_not_in_the_gallery_are_refused(same, match):
    queries, gallery, query_labels, gallery_labels = embeddings(queries=3)
    with pytest.raises(ShapeError, match=match):
        recall_at_k(queries, gallery, query_labels=query_labels, gallery_labels=gallery_labels, same=same)


# Ties: among items of equal cosine the first of the gallery is the nearest.


@pytest.mark.parametrize("k", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("dim", [1, 5, 64])
def test_of_equal_items_the_first_of_the_gallery_is_the_nearest(k, dim):
    """Every item of the gallery stands there many times, in a mixed order."""
    generator = torch.Generator().manual_seed(dim)
    distinct = torch.nn.functional.normalize(torch.randn(11, dim, generator=generator), dim=1)
    chosen = torch.randint(0, 11, (230,), generator=generator)
    gallery = distinct[chosen]
    queries = torch.nn.functional.normalize(torch.randn(29, dim, generator=generator), dim=1)
    scores = (queries @ distinct.T)[:, chosen].numpy()  # made once for equal items, so that they are equal
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    assert np.array_equal(search.nearest(queries, gallery, k).numpy(), expected)
    labels, names = torch.arange(230) % 6, torch.arange(29) % 6
    value = recall_at_k(queries, gallery, query_labels=names, gallery_labels=labels, k=k)
    hits = [any(labels[row] == names[query] for row in rows) for query, rows in enumerate(expected)]
    assert value == pytest.approx(np.mean(hits), abs=1e-12)


def test_items_are_equal_only_if_they_are():
    gallery = torch.tensor([[1.0, 0.0], [0.5, 2.0], [1.0, -0.0], [0.5, 2.0], [2.0, 0.5]])
    assert search._first_of_equal(gallery).tolist() == [0, 1, 0, 1, 4]
    assert search._first_of_equal(gallery[1:3]) is None
    chosen = torch.randint(0, 50, (400,), generator=torch.Generator().manual_seed(2))
    expected = [chosen.tolist().index(number) for number in chosen.tolist()]
    assert search._first_of_equal(torch.randn(50, 9)[chosen]).tolist() == expected


def test_equal_items_after_the_query_itself_is_left_out():
    gallery = torch.eye(3).repeat(4, 1)
    near = search.nearest(gallery, gallery, 3, same=torch.arange(12))
    assert near[0].tolist() == [3, 6, 9]
    assert near[6].tolist() == [0, 3, 9]
    assert near[11].tolist() == [2, 5, 8]
