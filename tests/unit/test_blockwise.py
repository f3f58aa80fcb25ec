"""The loss from embeddings is the dense loss: same value, same gradients, whatever the blocks."""

import re
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.cases import OVER_POSITIVES, OVER_RANKS, as_terms, loss_cases
from oracles.naive_loss import naive_loss
from rince import DataError, RankedInfoNCE, RankTerm, TableRanks, blockwise, ranked_info_nce_from_embeddings

VARIANTS = ["in_", "out", "out_in"]


def embeddings(queries, candidates, dim=16, dtype=torch.float64):
    return [F.normalize(torch.randn(n, dim, dtype=dtype), dim=1).requires_grad_() for n in (queries, candidates)]


def both(loss, queries, candidates, ranks, **options):
    """(total, per rank, used, gradients) of the dense loss and of the one from embeddings."""
    results = []
    for output in (
        loss(queries @ candidates.T, ranks),
        loss.from_embeddings(queries, candidates, ranks, **options),
    ):
        gradients = torch.autograd.grad(output.total * 3.0, (queries, candidates))
        results.append((*output, *gradients))
    return results


@given(case=loss_cases(max_queries=5, max_candidates=9), block_size=st.sampled_from([None, 1, 2, 3]))
@settings(max_examples=200, deadline=None)
def test_equals_the_dense_loss(case, block_size):
    torch.manual_seed(0)
    ranks = torch.tensor(case["ranks"], dtype=torch.int8)
    loss = RankedInfoNCE(as_terms(case["terms"]), over_positives=case["over_positives"], over_ranks=case["over_ranks"])
    dense, blockwise = both(loss, *embeddings(*ranks.shape), ranks, block_size=block_size)
    for expected, value in zip(dense, blockwise, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("over_positives", OVER_POSITIVES)
@pytest.mark.parametrize("over_ranks", OVER_RANKS)
@pytest.mark.parametrize("name", VARIANTS)
def test_equals_the_naive_loops(name, over_positives, over_ranks):
    torch.manual_seed(1)
    queries, candidates = embeddings(6, 30)
    ranks = torch.randint(-1, 4, (6, 30))
    loss = getattr(RankedInfoNCE, name)((0.05, 0.1, 0.3), over_positives=over_positives, over_ranks=over_ranks)
    total = loss.from_embeddings(queries, candidates, ranks, block_size=4).total
    terms = [(t.temperature, t.positives, t.includes_closer) for t in loss.terms]
    similarities = (queries @ candidates.T).tolist()
    assert total.item() == pytest.approx(naive_loss(similarities, ranks.tolist(), terms, over_positives, over_ranks))


@pytest.mark.parametrize(("name", "queries"), [("in_", 33), ("out_in", 33), ("in_", 40)])  # last blocks of 1, 8
@pytest.mark.slow
def test_compiled_equals_eager(name, queries):
    torch.manual_seed(2)
    loss = getattr(RankedInfoNCE, name)((0.1, 0.225))
    inputs = embeddings(queries, 70, dtype=torch.float32)
    ranks = torch.randint(-1, 3, (queries, 70), dtype=torch.int8)
    dense, compiled = both(loss, *inputs, ranks, compile=True, block_size=16)
    for expected, value in zip(dense, compiled, strict=True):
        torch.testing.assert_close(value, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.filterwarnings("ignore:.*candidates hold the queries")  # it is about something else
def test_saturated_at_a_low_temperature(name):
    """Positives opposite to the query, negatives on it, at τ = 0.01, in float32: exactly 200 per term."""
    queries = torch.tensor([[1.0, 0.0]], requires_grad=True)
    candidates = torch.tensor([[-1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]], requires_grad=True)
    ranks = torch.tensor([[1, 2, 0]])
    dense, blockwise = both(getattr(RankedInfoNCE, name)((0.01, 0.01)), queries, candidates, ranks)
    assert blockwise[0].item() == pytest.approx(400.0)
    for expected, value in zip(dense, blockwise, strict=True):
        torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("row", [[0, 0], [-1, -1], [1, 1], [1, -1]])
def test_rows_with_nothing_to_contrast(row):
    queries, candidates = embeddings(1, 2)
    output = RankedInfoNCE.out_in((0.1, 0.2)).from_embeddings(queries, candidates, torch.tensor([row]))
    gradients = torch.autograd.grad(output.total, (queries, candidates))
    assert output.total.item() == 0.0
    assert all((g == 0).all() for g in gradients)


def test_rows_of_ranks_from_a_function():
    source = TableRanks.from_superclasses([0, 0, 1, 1])
    query_labels, candidate_labels = torch.randint(0, 4, (10,)), torch.randint(-2, 4, (25,))
    queries, candidates = embeddings(10, 25)
    terms = [RankTerm(0.1), RankTerm(0.2)]
    calls = []

    def rows(start, stop):
        calls.append((start, stop))
        return source(query_labels[start:stop], candidate_labels)

    loss = ranked_info_nce_from_embeddings(queries, candidates, rows, terms, block_size=4)
    expected = ranked_info_nce_from_embeddings(queries, candidates, source(query_labels, candidate_labels), terms)
    torch.testing.assert_close(loss, expected)
    assert calls == [(0, 4), (4, 8), (8, 10)] * 2


def test_only_the_gradients_that_are_wanted_are_made():
    queries, candidates = embeddings(4, 9)
    ranks = torch.randint(0, 2, (4, 9))
    loss = ranked_info_nce_from_embeddings(queries, candidates.detach(), ranks, [RankTerm(0.1)])
    loss.backward()
    assert queries.grad is not None
    assert candidates.grad is None
    with torch.no_grad():
        assert not ranked_info_nce_from_embeddings(queries, candidates, ranks, [RankTerm(0.1)]).requires_grad


@pytest.mark.parametrize("rank", [1, 0])
def test_nan_is_named(rank):
    queries, candidates = embeddings(4, 9)
    candidates = candidates.detach()
    candidates[3, 0] = float("nan")
    ranks = torch.tensor([[1, 0, 0, rank, 0, 0, 0, 0, 0]] * 4)
    with pytest.raises(DataError, match=re.escape("candidates holds 1 values that are NaN or infinite, of 144")):
        ranked_info_nce_from_embeddings(queries, candidates, ranks, [RankTerm(0.1)])


@pytest.mark.slow
def test_the_matrix_is_never_whole_in_memory():
    """512 × 65,536 similarities are 134 MB; a fresh process that takes the loss in small blocks stays far below."""
    code = """
import resource, torch, rince
queries, candidates = torch.randn(512, 8, requires_grad=True), torch.randn(65536, 8)
ranks = lambda start, stop: torch.zeros(stop - start, 65536, dtype=torch.int8).index_fill_(1, torch.tensor([0]), 1)
def loss():
    rince.ranked_info_nce_from_embeddings(queries, candidates, ranks, [rince.RankTerm(0.1)], block_size=16).backward()
torch.zeros(64, 64) @ torch.zeros(64, 64)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
loss()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 60


@pytest.mark.slow
def test_without_a_compiler_it_warns_once_and_goes_on():
    code = """
import warnings, torch, rince
loss = rince.RankedInfoNCE.in_((0.1,))
queries, candidates, ranks = torch.eye(3), torch.eye(3), torch.eye(3, dtype=torch.int8)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    values = [loss.from_embeddings(queries, candidates, ranks, compile=True).total.item() for _ in range(3)]
assert values == [loss.from_embeddings(queries, candidates, ranks).total.item()] * 3
print([str(w.message) for w in caught if "compile=True" in str(w.message)])
"""
    environment = {"CXX": "/no/such/compiler", "PATH": "/nowhere", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("compile=True needs a compiler") == 1


def test_parts_of_a_batch_add_up_with_its_divisor():
    """What several processes, or several parts of an accumulated batch, need: the sum over parts is the whole."""
    torch.manual_seed(3)
    queries, candidates = embeddings(7, 20)
    ranks = torch.randint(-1, 4, (7, 20))
    loss = RankedInfoNCE.out_in((0.1, 0.2, 0.4), over_positives="pooled")
    divisor = loss.count(ranks[:3]) + loss.count(ranks[3:])
    assert torch.equal(divisor, loss.count(ranks))
    whole = loss(queries @ candidates.T, ranks).total
    for of in (
        lambda rows: loss(queries[rows] @ candidates.T, ranks[rows], divisor),
        lambda rows: loss.from_embeddings(queries[rows], candidates, ranks[rows], divisor=divisor),
    ):
        parts = of(slice(0, 3)).total + of(slice(3, 7)).total
        torch.testing.assert_close(parts, whole)


def test_without_numpy_it_is_the_same(monkeypatch):
    """Which torch does not bring along; then `Tensor.numpy` fails, as it does here."""
    queries, candidates = embeddings(12, 30)
    ranks = torch.randint(-1, 4, (12, 30), dtype=torch.int8)
    loss = RankedInfoNCE.out_in((0.1, 0.2, 0.3))
    expected, found = both(loss, queries, candidates, ranks, block_size=5)
    monkeypatch.setattr(blockwise, "HAS_NUMPY", False)
    monkeypatch.setattr(torch.Tensor, "numpy", None)
    monkeypatch.setattr(torch, "from_numpy", None)
    _, alone = both(loss, queries, candidates, ranks, block_size=5)
    for one, other in zip(found, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    torch.testing.assert_close(expected[0], alone[0])
