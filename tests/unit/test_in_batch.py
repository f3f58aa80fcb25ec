"""The batch as its own candidates: ranks by loops over samples and views, losses of other libraries and naive ones."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning.losses import NTXentLoss

import rince
from oracles.naive_loss import naive_loss

PATHS = ["a/x/1", "a/x/2", "a/y/3", "b/z/4"]
TERMS = [(0.1, "in", False), (0.2, "in", False), (0.3, "out", False)]
LOSS = rince.RankedInfoNCE([rince.RankTerm(*term) for term in TERMS])


def embeddings(*views, samples, dim=6, seed=0):
    torch.manual_seed(seed)
    return [F.normalize(torch.randn(samples, dim, dtype=torch.float64), dim=1).requires_grad_() for _ in views]


def naive_ranks(ids, labels, tree, views, own_ranks, present):
    """Every embedding by its sample and view, all samples of a view after each other."""
    rows = [(sample, view) for view in range(views) for sample in range(len(ids))]
    matrix = [[0] * len(rows) for _ in rows]
    for (i, (q, u)), (j, (c, v)) in itertools.product(enumerate(rows), enumerate(rows)):
        if not (present[q][u] and present[c][v]) or (ids[q] == ids[c] and u == v):
            matrix[i][j] = -1
        elif ids[q] == ids[c]:
            matrix[i][j] = own_ranks[u][v]
        else:
            matrix[i][j] = tree[labels[q]][labels[c]]
    return matrix


@pytest.mark.parametrize("views", [1, 2, 3])
def test_ranks_are_those_of_a_loop(views):
    ids, labels = [5, 9, 5, 2, 7, 9], [0, 1, 0, 2, 0, 1]  # two samples stand in the batch twice
    source = rince.TableRanks.from_tree(PATHS)
    own = [[1, 2, 3], [3, 1, -1], [0, 1, 2]]
    own = [row[:views] for row in own[:views]]
    present = torch.rand(6, views, generator=torch.Generator().manual_seed(0)) > 0.2
    given = embeddings(*range(views), samples=6)
    batch = rince.in_batch(given, labels, source, ids=ids, own_ranks=torch.tensor(own), present=present)
    expected = naive_ranks(ids, labels, source.table.tolist(), views, own, present.tolist())
    assert batch.ranks.dtype == torch.int8
    assert batch.ranks.tolist() == expected
    assert torch.equal(batch.queries, torch.cat(given))
    assert torch.equal(batch.candidates, torch.cat(given))
    total = batch.loss(LOSS).total
    assert float(total.detach()) == pytest.approx(naive_loss(batch.similarities.tolist(), expected, TERMS), rel=1e-9)


def test_ranks_by_a_matrix_and_by_samples():
    given = embeddings(1, 2, samples=3)
    between = torch.tensor([[9, 1, 0], [1, 9, 2], [0, 2, 9]])
    by_matrix = rince.in_batch(given, ranks=between).ranks
    assert by_matrix[:3, 3:].tolist() == [[1, 1, 0], [1, 1, 2], [0, 2, 1]]
    assert by_matrix[:3, :3].tolist() == [[-1, 1, 0], [1, -1, 2], [0, 2, -1]]
    places = rince.SampleRanks([[0.0], [0.5], [9.0], [0.6]], [1.0], metric="euclidean")
    assert rince.in_batch(given, [0, 3, 2], places).ranks[:3, 3:].tolist() == [[1, 2, 0], [2, 1, 0], [0, 0, 1]]
    assert torch.equal(
        rince.in_batch(given, [0, 3, 2], places).ranks, rince.in_batch(given, None, places, ids=[0, 3, 2]).ranks
    )
    assert rince.in_batch(given, None, places).ranks[:3, 3:].tolist() == [[1, 2, 0], [2, 1, 0], [0, 0, 1]]


def test_views_of_a_sample_in_two_rows_meet_by_id():
    """A view is told from another by its number, whichever row it stands in."""
    given = embeddings(1, samples=4)[0]
    halves = [given[:2], given[2:]]
    together = rince.in_batch(halves, [0, 1]).ranks
    apart = [rince.in_batch(half, [0, 1], ids=[0, 1], view_numbers=[number]) for number, half in enumerate(halves)]
    assert together[:2, :2].tolist() == apart[0].ranks.tolist() == apart[1].ranks.tolist() == [[-1, 0], [0, -1]]


def test_any_function_of_labels_ranks():
    given = embeddings(1, samples=3)
    batch = rince.in_batch(given, [0, 1, 0], lambda queries, candidates: (queries[:, None] == candidates).long())
    assert batch.ranks.tolist() == rince.in_batch(given, [0, 1, 0]).ranks.tolist()
    assert batch.ranks.dtype == torch.int8


def test_queries_without_candidates_count_nothing():
    assert rince.RankedInfoNCE.in_([0.1, 0.2]).count(torch.zeros(2, 0, dtype=torch.int8)).tolist() == [0, 0]


def test_no_labels_is_simclr_and_labels_are_ntxent():
    leaves = embeddings(1, 2, samples=8)
    one, two = (F.normalize(leaf, dim=1) for leaf in leaves)  # theirs does so too, and the gradient is that before
    pooled = rince.RankedInfoNCE.out((0.2,), over_positives="pooled")
    both, labels = torch.cat([one, two]), torch.arange(8) % 3
    for given, theirs in ((None, torch.arange(8)), (labels, labels)):
        ours = rince.in_batch([one, two], given).loss(pooled).total
        expected = NTXentLoss(temperature=0.2)(both, theirs.repeat(2))
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=0)
        gradients = (torch.autograd.grad(each, leaves, retain_graph=True) for each in (ours, expected))
        for mine, other in zip(*gradients, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-7, atol=1e-12)


def test_two_towers_are_clip():
    images, captions = embeddings(1, 2, samples=8)
    similarities = images @ captions.T / 0.1
    expected = (F.cross_entropy(similarities, torch.arange(8)) + F.cross_entropy(similarities.T, torch.arange(8))) / 2
    output = rince.two_towers(images, captions).loss(rince.RankedInfoNCE.in_((0.1,)))
    torch.testing.assert_close(output.total, expected, rtol=1e-9, atol=0)
    gradients = (torch.autograd.grad(each, (images, captions)) for each in (output.total, expected))
    for mine, other in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-7, atol=1e-12)
    assert output.queries_used.tolist() == [16]


def test_two_towers_mean_both_directions_of_ranks_that_are_not_symmetric():
    images, captions = embeddings(1, 2, samples=3)
    between, ids = torch.tensor([[0, 2, 3], [2, 0, 0], [0, 0, 0]]), [0, 1, 0]  # rows 0 and 2 show one image
    batch = rince.two_towers(images, captions, ranks=between, ids=ids)
    expected = [[1, 2, 1], [2, 1, 0], [1, 0, 1]]
    assert batch.forth.ranks.tolist() == batch.back.ranks.tolist() == expected
    similarities = (images @ captions.T).detach()
    directions = [naive_loss(s.tolist(), expected, TERMS) for s in (similarities, similarities.T)]
    assert float(batch.loss(LOSS).total.detach()) == pytest.approx(sum(directions) / 2, rel=1e-9)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"labels": [0, 1]}, rince.ShapeError, "labels must hold one integer for each of 3 samples, got"),
        ({"labels": [0.5, 1, 2]}, rince.ShapeError, "labels must hold one integer for each of 3 samples"),
        ({"ids": [0, 1]}, rince.ShapeError, "ids must hold one integer for each of 3 samples"),
        ({"rank_source": rince.TableRanks([[1]])}, rince.ConfigError, "give labels, one for every sample"),
        ({"labels": [0, 0, 0], "ranks": torch.ones(3, 3).int()}, rince.ConfigError, "give either ranks, or labels"),
        ({"ranks": torch.ones(3, 4).int()}, rince.ShapeError, r"shape \(samples, samples\) = \(3, 3\), one row"),
        ({"ranks": torch.ones(3, 3)}, rince.ShapeError, "ranks must be integers"),
        ({"labels": [0, 1, 2], "rank_source": torch.eye(3)}, rince.ConfigError, "rank_source is called with labels"),
        (
            {"labels": [0, 1, 2], "rank_source": lambda a, _: a},
            rince.ShapeError,
            "what rank_source returns must be int",
        ),
        ({"view_numbers": [0.5, 1]}, rince.ConfigError, "each of view_numbers must be a whole number, at least 0"),
        ({"view_numbers": "ab"}, rince.DataError, "view_numbers must be a tensor, an array or lists of numbers"),
        ({"view_numbers": [0, 0]}, rince.ConfigError, r"2 different numbers, one for every view; got \[0, 0\]"),
        ({"own_ranks": 200}, rince.DataError, "a rank is an integer between -1 and 127, got 200"),
        ({"own_ranks": [[1, 2]]}, rince.ShapeError, r"a square matrix \(views, views\)"),
        ({"own_ranks": [[1]]}, rince.ShapeError, "own_ranks has 1 views, and there is a view 1"),
        ({"present": torch.ones(2, 3).bool()}, rince.ShapeError, r"\(samples, views\) = \(3, 2\)"),
        ({"gather": True}, rince.ConfigError, "call torch.distributed.init_process_group first"),
    ],
)
def test_what_does_not_fit_is_refused(options, error, said):
    with pytest.raises(error, match=said):
        rince.in_batch(embeddings(1, 2, samples=3), **options)


def test_views_that_do_not_fit_are_refused():
    with pytest.raises(rince.ShapeError, match=r"view 0 is \(2, 4\), view 1 is torch.float32 of shape \(3, 4\)"):
        rince.in_batch([torch.ones(2, 4), torch.ones(3, 4)])
    with pytest.raises(rince.ConfigError, match="views is empty"):
        rince.in_batch([])
