"""Samples with several labels: ranks by overlap against plain loops over sets, judged by these ranks as scikit-learn does."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import ndcg_score

import rince
from oracles.naive_loss import naive_loss
from rince import ConfigError, DataError, LabelSetRanks, ShapeError
from rince.evaluation import graded_ndcg, mean_average_precision, ndcg, rank_order_accuracy, recall_at_k

drawn = random.Random(3)
SETS = [drawn.sample(["red", "blue", "car", "bus", "dog", "cat"], drawn.randint(0, 4)) for _ in range(14)]
THRESHOLDS = {"jaccard": [1 / 2, 1 / 3, 0.2], "shared": [3, 2, 1]}


def naive(a, b, overlap):
    """The rank of one sample to another."""
    ours, theirs = set(SETS[a]), set(SETS[b])
    shared = len(ours & theirs)
    value = shared if overlap == "shared" else shared / max(1, len(ours | theirs))
    return 1 if a == b else next((i for i, limit in enumerate(THRESHOLDS[overlap], start=1) if value >= limit), 0)


@pytest.mark.parametrize("overlap", THRESHOLDS)
def test_ranks_are_those_of_a_loop_over_sets(overlap):
    ranks, ids = LabelSetRanks(SETS, THRESHOLDS[overlap], overlap=overlap), torch.arange(len(SETS))
    expected = [[naive(a, b, overlap) for b in ids.tolist()] for a in ids.tolist()]
    assert ranks(ids, ids).tolist() == expected
    assert {0, 1, 2, 3} <= {rank for row in expected for rank in row}
    assert (ranks.ranks, ranks.by) == (3, "sample")
    assert ranks(ids[:1], torch.tensor([-1, -2])).tolist() == [[-1, 0]]  # unfilled, random
    names = sorted({label for labels in SETS for label in labels})
    members = torch.tensor([[name in labels for name in names] for labels in SETS])
    column = np.array([*SETS, None], dtype=object)[:-1]  # as pandas has it
    for given in (members, members.double().numpy(), column):
        same = LabelSetRanks(given, THRESHOLDS[overlap], overlap=overlap)
        assert same(ids, ids).tolist() == expected
    assert ranks.fingerprint != LabelSetRanks(SETS[::-1], THRESHOLDS[overlap], overlap=overlap).fingerprint


def test_a_batch_is_ranked_by_sample_ids():
    """Two views of some samples, against the paper's loss as a loop."""
    ids = [5, 2, 9, 11, 0]
    views = [F.normalize(torch.randn(5, 4, generator=torch.Generator().manual_seed(n)).double(), dim=1) for n in (1, 2)]
    batch = rince.in_batch(views, ids, LabelSetRanks(SETS, THRESHOLDS["jaccard"]))
    rows = [(view, number) for view in (0, 1) for number in ids]
    expected = [[-1 if a == b else naive(a[1], b[1], "jaccard") for b in rows] for a in rows]
    assert batch.ranks.tolist() == expected
    everything = torch.cat(views)
    value = batch.loss(rince.RankedInfoNCE.in_((0.1, 0.2, 0.3))).total
    terms = [(t, "in", False) for t in (0.1, 0.2, 0.3)]
    assert float(value) == pytest.approx(naive_loss((everything @ everything.T).tolist(), expected, terms), rel=1e-9)


def test_samples_are_judged_by_these_ranks():
    vectors = torch.randn(14, 4, generator=torch.Generator().manual_seed(5)).double()
    ranks, ids = LabelSetRanks(SETS, THRESHOLDS["jaccard"]), torch.arange(14)
    unit = F.normalize(vectors, dim=1).numpy()
    queries, items = ids[:5], ids[5:]
    cosines = unit[:5] @ unit[5:].T
    both = (vectors[:5], vectors[5:])
    labels = {"query_labels": queries, "gallery_labels": items, "rank_source": ranks}
    table = np.array([[naive(a, b, "jaccard") for b in items.tolist()] for a in queries.tolist()])
    highest = table.max()
    gains = np.where(table > 0, highest + 1 - table, 0)
    counts = gains.any(axis=1)
    assert ndcg(*both, **labels) == pytest.approx(ndcg_score(gains[counts], cosines[counts]), abs=1e-9)
    assert 0 < rank_order_accuracy(*both, **labels) < 1
    overlaps = [
        [len({*SETS[a]} & {*SETS[b]}) / max(1, len({*SETS[a]} | {*SETS[b]})) for b in items.tolist()]
        for a in queries.tolist()
    ]
    counts = np.array(overlaps).any(axis=1)
    found = graded_ndcg(*both, gains=ranks.overlaps(queries, items))
    assert found == pytest.approx(ndcg_score(np.array(overlaps)[counts], cosines[counts]), abs=1e-6)


@pytest.mark.parametrize("metric", [recall_at_k, mean_average_precision])
def test_metrics_of_classes_refuse_several_labels(metric):
    members = torch.ones(3, 2, dtype=torch.long)
    with pytest.raises(ShapeError, match=r"query_labels has several labels .* needs one; judge such samples by ranks"):
        metric(torch.eye(3), torch.eye(3), query_labels=members, gallery_labels=members)
    with pytest.raises(ShapeError, match=r"query_labels has several labels .* needs one; judge such samples by ranks"):
        metric(torch.eye(3), torch.eye(3), query_labels=SETS[:3], gallery_labels=SETS[:3])


@pytest.mark.parametrize(
    ("sets", "options", "error", "message"),
    [
        (SETS, {"thresholds": [0.2, 0.5]}, ConfigError, "thresholds must fall"),
        (SETS, {"thresholds": [0.5, 0.0]}, ConfigError, "stay above 0"),
        (SETS, {"thresholds": [2, 1]}, ConfigError, "at most 1, got .* overlap='shared'"),
        (SETS, {"thresholds": [1], "overlap": "cosine"}, ConfigError, "overlap must be 'jaccard' or 'shared'"),
        (["red", "car"], {"thresholds": [1]}, DataError, r"sets holds 'red' for sample 0; give a list of labels"),
        (torch.tensor([[0.5, 1]]), {"thresholds": [1]}, ShapeError, "of 0 and 1"),
        ([], {"thresholds": [1]}, DataError, "sets is empty"),
        ([[["red"]], ["car"]], {"thresholds": [1]}, DataError, "for sample 0; a label is a name or a number"),
        ([[1, 0, 0], [0, 1, 1]], {"thresholds": [1]}, DataError, "these repeat 0 or 1; a matrix is a tensor"),
        (SETS, {"thresholds": "0.5"}, DataError, "thresholds must be a tensor, an array or lists of numbers"),
        (SETS, {"thresholds": ["0.5"]}, DataError, "thresholds must be a tensor, an array or lists of numbers"),
    ],
)
def test_what_makes_no_ranks_is_refused(sets, options, error, message):
    with pytest.raises(error, match=message):
        LabelSetRanks(sets, **options)
    with pytest.raises(DataError, match="query_labels holds 14"):
        LabelSetRanks(SETS, [0.5])([14], [0])
