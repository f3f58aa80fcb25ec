"""What must hold of the loss whatever the numbers."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.cases import as_tensors, as_terms, loss_cases
from rince import RankTerm, ranked_info_nce

many = settings(max_examples=150, deadline=None)


def value_and_gradient(similarities, ranks, case):
    similarities = similarities.clone().requires_grad_()
    options = {key: case[key] for key in ("over_positives", "over_ranks")}
    loss = ranked_info_nce(similarities, ranks, as_terms(case["terms"]), **options)
    return loss.detach(), torch.autograd.grad(loss, similarities)[0]


@given(case=loss_cases(), seed=st.integers(0, 2**31))
@many
def test_the_order_of_queries_and_candidates_does_not_matter(case, seed):
    similarities, ranks = as_tensors(case)
    generator = torch.Generator().manual_seed(seed)
    rows, columns = (torch.randperm(n, generator=generator) for n in ranks.shape)
    loss, gradient = value_and_gradient(similarities, ranks, case)
    moved, moved_gradient = value_and_gradient(similarities[rows][:, columns], ranks[rows][:, columns], case)
    torch.testing.assert_close(moved, loss)
    torch.testing.assert_close(moved_gradient, gradient[rows][:, columns])


@given(case=loss_cases(), other=st.floats(-1, 1))
@many
def test_excluded_is_the_same_as_deleted(case, other):
    similarities, ranks = as_tensors(case)
    loss, gradient = value_and_gradient(similarities, ranks, case)
    wider = torch.nn.functional.pad(similarities, (0, 1), value=other)
    more, more_gradient = value_and_gradient(wider, torch.nn.functional.pad(ranks, (0, 1), value=-1), case)
    torch.testing.assert_close(more, loss, rtol=1e-12, atol=0)
    torch.testing.assert_close(more_gradient[:, :-1], gradient)
    assert (more_gradient[:, -1] == 0).all()


@given(loss_cases())
@many
def test_rows_of_the_gradient_sum_to_zero(case):
    """Adding a constant to all similarities of a query changes nothing."""
    _, gradient = value_and_gradient(*as_tensors(case), case)
    torch.testing.assert_close(gradient.sum(dim=1), torch.zeros(len(gradient), dtype=torch.float64))


@given(case=loss_cases(max_candidates=6), over_positives=st.sampled_from(["mean", "sum"]))
@many
def test_with_one_positive_per_rank_in_is_out(case, over_positives):
    similarities, _ = as_tensors(case)
    number = similarities.shape[1]
    ranks = torch.tensor([[i + 1 if i < len(case["terms"]) else 0 for i in range(number)]] * len(similarities))
    temperatures = [t for t, *_ in case["terms"]]
    losses = [
        ranked_info_nce(similarities, ranks, [RankTerm(t, where) for t in temperatures], over_positives=over_positives)
        for where in ("in", "out")
    ]
    torch.testing.assert_close(*losses, rtol=1e-9, atol=1e-12)


@given(case=loss_cases(max_ranks=1), data=st.data())
@many
def test_one_rank_with_one_positive_is_info_nce(case, data):
    similarities, ranks = as_tensors(case)
    index = torch.tensor([data.draw(st.integers(0, ranks.shape[1] - 1)) for _ in range(len(ranks))])
    temperature = case["terms"][0][0]
    loss = ranked_info_nce(
        similarities, torch.nn.functional.one_hot(index, ranks.shape[1]), [RankTerm(temperature, case["terms"][0][1])]
    )
    expected = torch.nn.functional.cross_entropy(similarities / temperature, index)
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)


@given(loss_cases())
@many
def test_the_loss_is_never_negative(case):
    loss, _ = value_and_gradient(*as_tensors(case), case)
    assert loss >= 0


@given(loss_cases())
@many
def test_over_ranks_mean_is_the_sum_divided_by_the_number_of_terms(case):
    similarities, ranks = as_tensors(case)
    terms = as_terms(case["terms"])
    total, mean = (ranked_info_nce(similarities, ranks, terms, over_ranks=how) for how in ("sum", "mean"))
    assert mean.item() == pytest.approx(total.item() / len(terms), rel=1e-12)


def test_gradient_descent_finds_the_order():
    """Gradient descent on free similarities finds the order of the ranks: h(q,p₁) > h(q,p₂) > h(q,n)."""
    torch.manual_seed(0)
    directions = torch.nn.Parameter(torch.randn(1, 24, dtype=torch.float64) * 0.1)
    ranks = torch.tensor([[1] * 4 + [2] * 4 + [3] * 4 + [0] * 12])
    optimizer = torch.optim.SGD([directions], lr=0.05)
    terms = [RankTerm(0.1, "out"), RankTerm(0.2, "out"), RankTerm(0.4, "out")]
    for _ in range(2000):
        optimizer.zero_grad()
        ranked_info_nce(torch.tanh(directions), ranks, terms).backward()
        optimizer.step()
    means = [torch.tanh(directions)[ranks == rank].mean().item() for rank in (1, 2, 3, 0)]
    assert means == sorted(means, reverse=True)
    assert min(a - b for a, b in itertools.pairwise(means)) > 0.05
