"""The dense loss against oracles that are not ours: naive loops, F.cross_entropy, pytorch-metric-learning."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from pytorch_metric_learning.losses import NTXentLoss, SupConLoss

from oracles.cases import OVER_POSITIVES, OVER_RANKS, as_tensors, as_terms, loss_cases
from oracles.naive_loss import naive_loss, naive_loss_and_gradient, naive_terms
from rince import RankedInfoNCE, RankTerm, TableRanks, linear_temperatures, ranked_info_nce
from rince.errors import ConfigError


@given(loss_cases())
@settings(max_examples=400, deadline=None)
def test_value_and_gradient_equal_the_naive_loops(case):
    similarities, ranks = as_tensors(case)
    similarities.requires_grad_()
    options = {key: case[key] for key in ("over_positives", "over_ranks")}
    loss = ranked_info_nce(similarities, ranks, as_terms(case["terms"]), **options)
    expected, gradient = naive_loss_and_gradient(case["similarities"], case["ranks"], case["terms"], **options)
    assert loss.item() == pytest.approx(expected, rel=1e-9, abs=1e-12)
    (ours,) = torch.autograd.grad(loss, similarities)
    torch.testing.assert_close(ours, gradient, rtol=1e-8, atol=1e-11)


@given(loss_cases())
@settings(max_examples=100, deadline=None)
def test_per_rank_values_and_counts_equal_the_naive_loops(case):
    similarities, ranks = as_tensors(case)
    output = RankedInfoNCE(as_terms(case["terms"]), over_positives=case["over_positives"])(similarities, ranks)
    expected = naive_terms(case["similarities"], case["ranks"], case["terms"], case["over_positives"])
    assert output.per_rank.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12)
    for i, (_, _, includes_closer, *_) in enumerate(case["terms"], start=1):
        wanted = set(range(1, i + 1)) if includes_closer else {i}
        assert output.queries_used[i - 1] == sum(bool(wanted & set(row)) for row in case["ranks"])


def test_one_positive_is_cross_entropy():
    similarities = torch.randn(16, 50, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, 50, (16,))
    ranks = F.one_hot(target, 50).to(torch.int8)
    expected = F.cross_entropy(similarities / 0.2, target)
    (expected_gradient,) = torch.autograd.grad(expected, similarities)
    for where in ("in", "out"):
        loss = ranked_info_nce(similarities, ranks, [RankTerm(0.2, where)])
        torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
        (gradient,) = torch.autograd.grad(loss, similarities)
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-9, atol=1e-14)


def test_pooled_out_is_the_ntxent_of_pytorch_metric_learning():
    features = torch.randn(24, 16, dtype=torch.float64, requires_grad=True)
    embeddings = F.normalize(features, dim=1)  # as theirs does inside, so that gradients compare
    labels = torch.arange(24) % 5
    expected = NTXentLoss(temperature=0.1)(embeddings, labels)
    (expected_gradient,) = torch.autograd.grad(expected, features, retain_graph=True)
    ranks = (labels[:, None] == labels).to(torch.int8).fill_diagonal_(-1)
    loss = ranked_info_nce(embeddings @ embeddings.T, ranks, [RankTerm(0.1, "out")], over_positives="pooled")
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)
    (gradient,) = torch.autograd.grad(loss, features)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-8, atol=1e-12)


def test_all_in_the_denominator_is_the_supcon_of_pytorch_metric_learning():
    """Dense, and from embeddings; a class of one sample has no positive, which their reducer leaves out too."""
    features = torch.randn(24, 16, dtype=torch.float64, requires_grad=True)
    embeddings = F.normalize(features, dim=1)
    labels = (torch.arange(24) % 5).index_fill(0, torch.tensor([7]), 9)
    expected = SupConLoss(temperature=0.1)(embeddings, labels)
    (expected_gradient,) = torch.autograd.grad(expected, features, retain_graph=True)
    ranks = (labels[:, None] == labels).to(torch.int8).fill_diagonal_(-1)
    supcon = RankedInfoNCE([RankTerm(0.1, "out", denominator="all")])
    for output in (supcon(embeddings @ embeddings.T, ranks), supcon.from_embeddings(embeddings, embeddings, ranks)):
        torch.testing.assert_close(output.total, expected, rtol=1e-9, atol=0)
        (gradient,) = torch.autograd.grad(output.total, features, retain_graph=True)
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-7, atol=1e-11)


def test_supcon_of_many_ranks_is_theirs_with_closer_ranks_taken_out():
    """Term i of a tree: SupCon on groups of level i, without the pairs that are closer."""
    embeddings = F.normalize(torch.randn(30, 16, dtype=torch.float64), dim=1)
    labels = torch.randint(0, 8, (30,))
    source = TableRanks.from_tree([f"{c // 4}/{c // 2}/{c}" for c in range(8)])
    ranks = source(labels, labels).fill_diagonal_(-1)
    terms = [RankTerm(t, "out", denominator="all", weight=w) for t, w in ((0.1, 1.0), (0.2, 0.5), (0.3, 2.0))]
    output = RankedInfoNCE(terms)(embeddings @ embeddings.T, ranks)
    expected = []
    for rank, term in enumerate(terms, start=1):
        pairs = [(ranks == rank).nonzero(as_tuple=True), ((ranks == 0) | (ranks > rank)).nonzero(as_tuple=True)]
        loss = SupConLoss(temperature=term.temperature)
        expected.append(float(loss(embeddings, indices_tuple=(*pairs[0], *pairs[1]))))
    assert output.per_rank.tolist() == pytest.approx(expected, rel=1e-6)
    assert output.total.item() == pytest.approx(expected[0] + 0.5 * expected[1] + 2 * expected[2], rel=1e-6)


def test_one_in_term_is_the_supcon_of_solo_learn_and_mil_nce():
    """Both written out: -log of the share that the positives have of all."""
    similarities, positive = torch.randn(6, 20, dtype=torch.float64), torch.rand(6, 20) < 0.3
    positive[:, 0] = True
    shares = torch.softmax(similarities / 0.2, dim=1)
    expected = -(shares * positive).sum(dim=1).log().mean()
    torch.testing.assert_close(ranked_info_nce(similarities, positive.to(torch.int8), [RankTerm(0.2)]), expected)


def test_paper_equation_to_the_letter():
    """RINCE-out-in (Eq. 15) with sums, written out for one query by hand."""
    p1, p2, p3, n = 0.8, 0.7, 0.4, 0.1
    t1, t2 = 0.1, 0.225

    def e(s, t):
        return math.exp(s / t)

    first = sum(-math.log(e(p, t1) / (e(p, t1) + e(p3, t1) + e(n, t1))) for p in (p1, p2))
    second = -math.log(e(p3, t2) / (e(p3, t2) + e(n, t2)))
    loss = RankedInfoNCE.out_in((t1, t2), over_positives="sum")
    output = loss(torch.tensor([[p1, p2, p3, n]], dtype=torch.float64), torch.tensor([[1, 1, 2, 0]]))
    assert output.total.item() == pytest.approx(first + second, rel=1e-12)
    assert output.per_rank.tolist() == pytest.approx([first, second], rel=1e-12)


@pytest.mark.parametrize("over_positives", OVER_POSITIVES)
@pytest.mark.parametrize("over_ranks", OVER_RANKS)
@pytest.mark.parametrize("name", ["in_", "out", "out_in", "uni"])
def test_gradcheck(name, over_positives, over_ranks):
    torch.manual_seed(0)
    loss = getattr(RankedInfoNCE, name)((0.1, 0.2, 0.4), over_positives=over_positives, over_ranks=over_ranks)
    ranks = torch.randint(-1, 4, (3, 9))
    similarities = torch.rand(3, 9, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: loss(s, ranks).total, similarities)


@pytest.mark.parametrize(
    ("name", "where"),
    [("in_", "in in in"), ("out", "out out out"), ("out_in", "out in in"), ("uni", "in in in")],
)
def test_named_variants(name, where):
    loss = getattr(RankedInfoNCE, name)((0.1, 0.2, 0.3))
    assert [(t.temperature, t.positives) for t in loss.terms] == list(zip((0.1, 0.2, 0.3), where.split(), strict=True))
    assert not any(term.includes_closer for term in loss.terms)


@pytest.mark.slow
def test_the_dense_loss_is_captured_whole_by_compile():
    loss = RankedInfoNCE.out_in((0.1, 0.225))
    ranks = torch.randint(-1, 3, (6, 40), dtype=torch.int8)
    similarities = torch.rand(6, 40, requires_grad=True)
    # Captured, forward and backward; what a compiler makes of it is the compiler's, and takes it half a minute.
    compiled = torch.compile(lambda s, r: ranked_info_nce(s, r, loss.terms), fullgraph=True, backend="aot_eager")
    expected, value = loss(similarities, ranks).total, compiled(similarities, ranks)
    torch.testing.assert_close(value, expected)
    gradients = [torch.autograd.grad(v, similarities)[0] for v in (value, expected)]
    torch.testing.assert_close(*gradients)


def test_linear_temperatures_are_the_papers():
    assert linear_temperatures(0.1, 0.2, 3) == (0.1, 0.15, 0.2)
    assert linear_temperatures(0.1, 0.6, 1) == (0.1,)


def test_naive_oracle_disagrees_with_a_wrong_loss():
    """The oracle can fail: SupCon's denominator, which keeps all positives, is another number."""
    similarities, ranks = [[0.9, 0.5, 0.1]], [[1, 1, 0]]
    supcon = -sum(math.log(math.exp(s / 0.1) / sum(math.exp(x / 0.1) for x in similarities[0])) for s in (0.9, 0.5))
    assert naive_loss(similarities, ranks, [(0.1, "out", False)], "sum") != pytest.approx(supcon, rel=1e-3)


def test_one_temperature_may_be_a_number_alone():
    for make in (RankedInfoNCE.in_, RankedInfoNCE.out, RankedInfoNCE.out_in, RankedInfoNCE.uni):
        assert make(0.1).terms == make((0.1,)).terms


@pytest.mark.parametrize("make", [RankedInfoNCE.in_, RankedInfoNCE.out, RankedInfoNCE.out_in, RankedInfoNCE.uni])
@pytest.mark.parametrize(
    "one",
    [
        0.25,
        Fraction(1, 4),
        np.float32(0.25),
        np.array(0.25),
        np.array([0.25]),
        torch.tensor(0.25),
        torch.tensor([0.25]),
    ],
    ids=repr,
)
def test_a_temperature_may_be_any_real_number(make, one):
    assert [term.temperature for term in make(one).terms] == [0.25]


def test_temperatures_may_be_an_array_and_nothing_else_is_taken():
    for several in (np.array([0.25, 0.5]), torch.tensor([0.25, 0.5]), (np.float64(0.25), Fraction(1, 2))):
        assert [term.temperature for term in RankedInfoNCE.in_(several).terms] == [0.25, 0.5]
    for wrong in ("0.1", b"0.1", {0.1: 1}, None, object(), True, [True], [None], ["0.1"], [[0.1]], torch.eye(2)):
        with pytest.raises(ConfigError):
            RankedInfoNCE.in_(wrong)
