"""Where a careless loss overflows, divides by zero or returns NaN: ours stays finite, and right."""

import math

import pytest
import torch
import torch.nn.functional as F

from oracles.naive_loss import naive_loss
from rince import (
    DataError,
    RankedInfoNCE,
    RankTerm,
    ShapeError,
    ranked_info_nce,
    ranked_info_nce_from_embeddings,
)

VARIANTS = ["in_", "out", "out_in"]


def value_and_gradient(similarities, ranks, name="in_", temperatures=(0.1, 0.2)):
    similarities = similarities.clone().requires_grad_()
    output = getattr(RankedInfoNCE, name)(temperatures)(similarities, ranks)
    (gradient,) = torch.autograd.grad(output.total, similarities)
    assert output.total.isfinite()
    assert gradient.isfinite().all()
    return output.total, gradient


@pytest.mark.parametrize("name", VARIANTS)
def test_saturated_cosines_at_a_low_temperature(name):
    """Worst case: every positive at -1, every negative at 1. The exact value is 200 for each of the two terms."""
    similarities = torch.tensor([[-1.0, -1.0, 1.0]])
    ranks = torch.tensor([[1, 2, 0]])
    total, gradient = value_and_gradient(similarities, ranks, name, (0.01, 0.01))
    assert total.item() == pytest.approx(400.0, rel=1e-6)
    torch.testing.assert_close(gradient, torch.tensor([[-100.0, -100.0, 200.0]]))


@pytest.mark.parametrize("name", VARIANTS)
def test_solved_cosines_at_a_low_temperature(name):
    total, gradient = value_and_gradient(
        torch.tensor([[1.0, 0.0, -1.0]]), torch.tensor([[1, 2, 0]]), name, (0.01, 0.01)
    )
    assert 0 <= total.item() < 1e-30
    assert gradient.abs().max() < 1e-30


def test_a_hard_positive_among_easy_ones_keeps_its_gradient():
    """Probability e^-200: the authors' code drops such a pair from value and gradient."""
    similarities = torch.tensor([[1.0, -1.0, 1.0]])
    total, gradient = value_and_gradient(similarities, torch.tensor([[1, 1, 0]]), "out", (0.01,))
    assert total.item() == pytest.approx((math.log(2) + 200) / 2, rel=1e-6)
    assert gradient[0, 1].item() == pytest.approx(-50.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", VARIANTS)
def test_half_precision_is_computed_in_float32(name, dtype):
    torch.manual_seed(0)
    similarities = (torch.rand(4, 30) * 2 - 1).to(dtype).requires_grad_()
    ranks = torch.randint(-1, 3, (4, 30), dtype=torch.int8)
    loss = getattr(RankedInfoNCE, name)((0.01, 0.02))
    output = loss(similarities, ranks)
    assert output.total.dtype == torch.float32
    assert output.total.item() == loss(similarities.float(), ranks).total.item()
    (gradient,) = torch.autograd.grad(output.total, similarities)
    assert gradient.dtype == dtype
    assert gradient.isfinite().all()


def test_half_precision_embeddings_and_autocast():
    torch.manual_seed(0)
    queries, keys = (F.normalize(torch.randn(n, 8), dim=1) for n in (4, 20))
    ranks = torch.randint(0, 3, (4, 20), dtype=torch.int8)
    terms = [RankTerm(0.1), RankTerm(0.2)]
    expected = ranked_info_nce_from_embeddings(queries.bfloat16().float(), keys.bfloat16().float(), ranks, terms)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = ranked_info_nce_from_embeddings(queries.bfloat16(), keys.bfloat16(), ranks, terms)
    assert loss.dtype == torch.float32
    assert loss.item() == expected.item()


@pytest.mark.parametrize("name", VARIANTS)
def test_empty_rank_adds_nothing(name):
    similarities = torch.rand(3, 5)
    ranks = torch.tensor([[1, 0, 0, 0, 0]] * 3)
    total, gradient = value_and_gradient(similarities, ranks, name)
    one_rank, one_gradient = value_and_gradient(similarities, ranks, name, (0.1,))
    assert total.item() == one_rank.item()
    torch.testing.assert_close(gradient, one_gradient, rtol=0, atol=0)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize(
    "ranks",
    [[[0, 0, 0]], [[-1, -1, -1]], [[1, 1, 1]], [[1, -1, -1]]],
    ids=["no positive", "all excluded", "no negative", "only a positive"],
)
def test_nothing_to_contrast_is_zero_with_zero_gradient(name, ranks):
    total, gradient = value_and_gradient(torch.rand(1, 3), torch.tensor(ranks), name)
    assert total.item() == 0.0
    assert (gradient == 0).all()


@pytest.mark.parametrize("name", VARIANTS)
def test_a_row_without_positives_leaves_the_others_alone(name):
    similarities, ranks = torch.rand(2, 4), torch.tensor([[1, 2, 0, 0], [0, 0, -1, 0]])
    total, gradient = value_and_gradient(similarities, ranks, name)
    alone, alone_gradient = value_and_gradient(similarities[:1], ranks[:1], name)
    assert total.item() == pytest.approx(alone.item())
    torch.testing.assert_close(gradient[:1], alone_gradient)
    assert (gradient[1] == 0).all()


@pytest.mark.parametrize(("queries", "candidates"), [(0, 4), (3, 0), (0, 0)])
def test_zero_queries_or_candidates(queries, candidates):
    similarities = torch.zeros(queries, candidates, requires_grad=True)
    ranks = torch.zeros(queries, candidates, dtype=torch.int8)
    output = RankedInfoNCE.out_in((0.1, 0.2))(similarities, ranks)
    output.total.backward()
    assert output.total.item() == 0.0
    assert output.queries_used.tolist() == [0, 0]
    assert similarities.grad.shape == (queries, candidates)
    embeddings = [torch.zeros(n, 3, requires_grad=True) for n in (queries, candidates)]
    loss = ranked_info_nce_from_embeddings(*embeddings, ranks, [RankTerm(0.1), RankTerm(0.2)])
    loss.backward()
    assert loss.item() == 0.0
    assert all((e.grad == 0).all() for e in embeddings)


def test_an_excluded_nan_does_no_harm():
    similarities = torch.tensor([[0.9, 0.1, math.nan]], requires_grad=True)
    loss = ranked_info_nce(similarities, torch.tensor([[1, 0, -1]]), [RankTerm(0.1)])
    (gradient,) = torch.autograd.grad(loss, similarities)
    assert loss.isfinite()
    assert gradient.isfinite().all()
    assert gradient[0, 2] == 0


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("where", [(0, 3), (1, 0), (1, 2), (1, 3)], ids=["excluded", "nothing", "unused", "all"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_takes_no_part_may_be_anything(name, where, value):
    """An excluded candidate, and all candidates of a query without positives: value and gradient as without them."""
    similarities = torch.tensor([[0.9, 0.5, 0.1, 0.3], [0.2, 0.4, 0.1, 0.3]])
    ranks = torch.tensor([[1, 2, 0, -1], [0, 0, 0, -1]])
    expected, expected_gradient = value_and_gradient(similarities[:1, :3], ranks[:1, :3], name)
    similarities[where] = value
    total, gradient = value_and_gradient(similarities, ranks, name)
    assert total.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(gradient[:1, :3], expected_gradient)
    assert (gradient[0, 3] == 0) & (gradient[1] == 0).all()


@pytest.mark.parametrize("name", ["in_", "out"])
@pytest.mark.parametrize("ranks", [[1, 0, 0], [1, 2, 0], [2, 1, 0]])
def test_a_positive_that_is_infinitely_far_is_no_missing_one(name, ranks):
    """-log 0 is infinite: that is said, and does not pass for a rank without positives."""
    similarities = torch.tensor([[-math.inf, 0.1, 0.2]])
    with pytest.raises(DataError, match="similarities holds 1 values that are NaN or infinite"):
        getattr(RankedInfoNCE, name)((0.1, 0.2))(similarities, torch.tensor([ranks]))


def test_a_positive_beside_one_infinitely_far_counts_alone():
    similarities, ranks = torch.tensor([[-math.inf, 0.1, 0.2]]), torch.tensor([[1, 1, 0]])
    expected = math.log(1 + math.exp((0.2 - 0.1) / 0.1))
    assert value_and_gradient(similarities, ranks, "in_", (0.1,))[0].item() == pytest.approx(expected)


@pytest.mark.parametrize("name", VARIANTS)
def test_opponents_infinitely_far_are_none(name):
    similarities, ranks = torch.tensor([[0.3, -math.inf, -math.inf]]), torch.tensor([[1, 0, 0]])
    assert value_and_gradient(similarities, ranks, name)[0].item() == 0


@pytest.mark.parametrize("where", ["in", "out"])
def test_as_many_terms_as_there_are_ranks(where):
    """The highest rank of int8 is one like any other, dense and by blocks."""
    generator = torch.Generator().manual_seed(0)
    queries, candidates = (
        F.normalize(torch.randn(n, 6, generator=generator, dtype=torch.float64), dim=1) for n in (3, 200)
    )
    ranks = torch.randint(-1, 128, (3, 200), generator=generator)
    ranks[:, :2] = torch.tensor([127, 126])
    terms = [(0.1 + rank / 1000, where, False) for rank in range(127)]
    expected = naive_loss((queries @ candidates.T).tolist(), ranks.tolist(), terms)
    given = [RankTerm(*term) for term in terms]
    for kind in (torch.int8, torch.int64):
        dense = ranked_info_nce(queries @ candidates.T, ranks.to(kind), given)
        blockwise = ranked_info_nce_from_embeddings(queries, candidates, ranks.to(kind), given)
        assert dense.item() == pytest.approx(expected, rel=1e-9)
        assert blockwise.item() == pytest.approx(expected, rel=1e-9)


DIVISORS = [
    ([0, 1], DataError, r"divisor must be positive for every term that has positives, got \[0"),
    ([1, -1], DataError, "divisor must be positive"),
    ([1, math.nan], DataError, "divisor must be positive"),
    ([1, math.inf], DataError, "divisor must be positive"),
    ([1], ShapeError, r"one number for each of 2 terms, got torch\.\w+ of shape \(1,\)"),
]


@pytest.mark.parametrize(("divisor", "error", "text"), DIVISORS)
@pytest.mark.filterwarnings("ignore:.*candidates hold the queries")  # it is about something else
def test_what_divides_nothing_is_refused(divisor, error, text):
    queries, candidates, ranks = torch.eye(3)[:1], torch.eye(3), torch.tensor([[1, 2, 0]])
    loss = RankedInfoNCE.in_((0.1, 0.2))
    with pytest.raises(error, match=text):
        loss(queries @ candidates.T, ranks, torch.tensor(divisor))
    with pytest.raises(error, match=text):
        loss.from_embeddings(queries, candidates, ranks, divisor=torch.tensor(divisor))


@pytest.mark.filterwarnings("ignore:.*candidates hold the queries")  # it is about something else
def test_a_term_without_positives_may_be_divided_by_nothing():
    """So it is in a batch of several parts, none of which has the rank."""
    queries, candidates, ranks = torch.eye(3)[:1], torch.eye(3), torch.tensor([[1, 0, 0]])
    loss, divisor = RankedInfoNCE.in_((0.1, 0.2)), torch.tensor([2.0, 0.0])
    alone = loss(queries @ candidates.T, ranks).total.item()
    assert loss(queries @ candidates.T, ranks, divisor).total.item() == pytest.approx(alone / 2)
    assert loss.from_embeddings(queries, candidates, ranks, divisor=divisor).total.item() == pytest.approx(alone / 2)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.filterwarnings("ignore:1 of 5 queries")
def test_what_is_excluded_everywhere_does_no_harm_to_gradients_of_embeddings(name, value):
    """The value, and the gradients, are those without the candidate and the query that nobody asks."""
    random = torch.Generator().manual_seed(0)
    queries, candidates = (
        F.normalize(torch.randn(rows, 6, generator=random, dtype=torch.float64), dim=1) for rows in (5, 9)
    )
    ranks = torch.randint(0, 3, (5, 9), generator=random)
    ranks[:, 4], ranks[3] = -1, -1
    ranks[3, :4] = 0  # opponents alone
    queries[3, 1] = candidates[4, 2] = value
    given = [each.clone().requires_grad_() for each in (queries, candidates)]
    loss = getattr(RankedInfoNCE, name)((0.1, 0.2))
    total = loss.from_embeddings(*given, ranks).total
    rows, columns = torch.arange(5) != 3, torch.arange(9) != 4
    kept = [queries[rows].clone().requires_grad_(), candidates[columns].clone().requires_grad_()]
    dense = loss(kept[0] @ kept[1].T, ranks[rows][:, columns]).total
    torch.testing.assert_close(total, dense)
    found, expected = torch.autograd.grad(total, given), torch.autograd.grad(dense, kept)
    for gradient, other, chosen in zip(found, expected, (rows, columns), strict=True):
        torch.testing.assert_close(gradient[chosen], other)
        assert (gradient[~chosen].abs() < 1e-30).all()
    ranks[0, 4] = 0
    with pytest.raises(DataError, match="holds 1 values that are NaN or infinite"):
        loss.from_embeddings(*given, ranks)
