"""The loss analysis: closed forms against autograd of the loss and plain sums; the appendix's observations; advice."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rince.analysis
from rince import ConfigError, DataError, RankTerm, ShapeError, ranked_info_nce
from rince.analysis import (
    RankBalance,
    advise,
    equilibrium_line,
    normal_negatives,
    push_of_terms,
    ranking_starts,
    relative_penalties,
    trade_off,
)
from rince.analysis.rest import moved_in_the_end, rest_of
from rince.config import load_recipe
from rince.train.record import logged_lines

NEGATIVES = normal_negatives()
LINE = torch.linspace(-0.2, 1, 61, dtype=torch.float64)
cosine = st.floats(-1, 1)
temperature = st.floats(0.05, 2)


def one_query(*groups):
    """Similarities and ranks of one query: a list for every rank from 1, the negatives last."""
    similarities = torch.tensor([[s for group in groups for s in group]], dtype=torch.float64, requires_grad=True)
    numbers = [*range(1, len(groups)), 0]
    ranks = torch.tensor([[rank for rank, group in zip(numbers, groups, strict=True) for _ in group]])
    return similarities, ranks


def doubles(values):
    return torch.tensor(values, dtype=torch.float64)


def gradient(similarities, ranks, terms, **options):
    loss = ranked_info_nce(similarities, ranks, terms, allow_any_order=True, **options)
    return torch.autograd.grad(loss, similarities)[0][0]


# Closed forms and autograd.


@settings(deadline=None, max_examples=60)
@given(cosine, cosine, temperature, temperature, st.lists(cosine, min_size=1, max_size=6))
def test_k_is_the_gradient_of_the_loss(first, second, one, two, negatives):
    similarities, ranks = one_query([first], [second], negatives)
    expected = gradient(similarities, ranks, [RankTerm(one), RankTerm(two)])[1]
    at = (torch.tensor(value, dtype=torch.float64) for value in (first, second))
    assert float(trade_off(*at, (one, two), torch.tensor(negatives, dtype=torch.float64)) - expected) == pytest.approx(
        0, abs=1e-9
    )


def test_k_is_the_formula_of_the_appendix():
    negatives, one, two = [0.3, -0.1, 0.2], 0.1, 0.25
    e = math.exp
    push = e(0.6 / one) / (sum(e(n / one) for n in negatives) + e(0.6 / one) + e(0.8 / one)) / one
    pulled = sum(e(n / two) for n in negatives)
    pull = pulled / (pulled + e(0.6 / two)) / two
    found = trade_off(doubles(0.8), doubles(0.6), (one, two), doubles(negatives))
    assert float(found) == pytest.approx(push - pull, abs=1e-9)


@settings(deadline=None, max_examples=60)
@given(
    cosine, st.lists(cosine, min_size=1, max_size=3), st.lists(cosine, min_size=1, max_size=5), temperature, temperature
)
def test_relative_penalties_are_ratios_of_gradients(first, seconds, negatives, one, two):
    """Of the term by itself: everything it pulls is one positive."""
    found = relative_penalties(doubles(seconds), doubles(negatives), (one, two))
    similarities, ranks = one_query([first], [*seconds, *negatives])  # what ℓ₁ sees: all are opponents
    gradients = gradient(similarities, ranks, [RankTerm(one)])
    if gradients[0].abs() > 1e-12:  # at 1e-17 of both the ratio is noise
        ratios = gradients[1:].abs() / gradients[0].abs()
        both = torch.cat([found.seconds_in_first, found.negatives_in_first])
        assert torch.allclose(both, ratios, atol=1e-9, rtol=1e-9)
    similarities, ranks = one_query([seconds[0]], negatives)
    gradients = gradient(similarities, ranks, [RankTerm(two)])
    if gradients[0].abs() > 1e-12:
        assert torch.allclose(found.negatives_in_second, gradients[1:].abs() / gradients[0].abs(), atol=1e-9, rtol=1e-9)


def test_relative_penalties_as_printed_leave_the_opponent_itself_out():
    seconds, negatives, one, two = [0.5, 0.6], [0.3, -0.1, 0.2], 0.1, 0.25
    e = math.exp
    found = relative_penalties(doubles(seconds), doubles(negatives), (one, two), as_printed=True)
    assert found.negatives_in_second[1] == pytest.approx(e(-0.1 / two) / (e(0.3 / two) + e(0.2 / two)), rel=1e-9)
    rest = e(-0.1 / one) + e(0.2 / one) + sum(e(s / one) for s in seconds)
    assert found.negatives_in_first[0] == pytest.approx(e(0.3 / one) / rest, rel=1e-9)
    rest = sum(e(n / one) for n in negatives) + e(0.5 / one)
    assert found.seconds_in_first[1] == pytest.approx(e(0.6 / one) / rest, rel=1e-9)


def test_push_of_terms_adds_up_to_the_gradient_of_the_loss():
    draws = torch.Generator().manual_seed(0)
    similarities = torch.rand(4, 9, generator=draws, dtype=torch.float64) * 2 - 1
    ranks = torch.tensor([[1, 1, 2, 3, 3, 0, 0, 0, -1]] * 4)
    terms = [RankTerm(0.1), RankTerm(0.2, "out"), RankTerm(0.3)]
    push = push_of_terms(similarities, ranks, terms)
    leaf = similarities.requires_grad_()
    (expected,) = torch.autograd.grad(ranked_info_nce(leaf, ranks, terms) * 4, leaf)
    assert torch.allclose(push.sum(dim=0), expected, atol=1e-12)
    assert (push[0, :, 5:8] > 0).all()
    assert (push[1, :, :2] == 0).all()  # rank 1 sits ℓ₂ out
    assert (push[2, :, 3:5] < 0).all()


@pytest.mark.parametrize("positives", ["in", "out"])
@pytest.mark.parametrize("over", ["mean", "sum"])
def test_gradients_of_many_ranks_are_those_of_the_loss(positives, over):
    """With several positives of each rank, not equally many at both points, and negatives summed up beforehand."""
    terms = [RankTerm(0.1, positives), RankTerm(0.2), RankTerm(0.3, positives)]
    negatives = doubles([0.2, -0.3, 0.1])
    sums = torch.stack([torch.logsumexp(negatives / term.temperature, dim=0) for term in terms])[None]
    counts = torch.tensor([[2, 3, 1], [1, 1, 4]])
    places = doubles([[0.9, 0.6, 0.3], [0.7, 0.8, -0.2]])
    found = RankBalance(terms, sums, counts, over).gradients(places)
    for count, place, row in zip(counts.tolist(), places.tolist(), found, strict=True):
        similarities, ranks = one_query(*([s] * c for s, c in zip(place, count, strict=True)), negatives.tolist())
        each = gradient(similarities, ranks, terms, over_positives=over)
        expected = [float(each[ranks[0] == rank].sum()) for rank in (1, 2, 3)]
        assert row.tolist() == pytest.approx(expected, abs=1e-9)


def test_two_ranks_come_to_rest_where_the_closed_form_says():
    for pair in ((0.1, 0.2), (0.1, 0.7), (0.2, 0.1)):
        line = equilibrium_line(LINE, pair, NEGATIVES)
        assert trade_off(LINE, line, pair, NEGATIVES).abs().max() < 1e-9
        found = RankBalance.from_negatives([RankTerm(t) for t in pair], NEGATIVES).equilibrium(LINE)
        assert torch.allclose(found[:, 1], line, atol=1e-9)
        assert torch.equal(found[:, 0], LINE)


def test_many_ranks_come_to_rest_where_gradient_descent_on_the_loss_does():
    terms, first = [RankTerm(0.1), RankTerm(0.3), RankTerm(0.6)], 0.85
    found = RankBalance.from_negatives(terms, NEGATIVES, [1, 2, 3]).equilibrium(torch.tensor([first]))[0]
    state = doubles([0.0, 0.0])
    for _ in range(3000):
        groups = ([first], [float(state[0])] * 2, [float(state[1])] * 3, NEGATIVES.tolist())
        similarities, ranks = one_query(*groups)
        each = gradient(similarities, ranks, terms)
        step = torch.stack([each[ranks[0] == rank].sum() for rank in (2, 3)])
        state -= 0.05 * step
        if step.abs().max() < 1e-9:
            break
    assert found[1:].tolist() == pytest.approx(state.tolist(), abs=1e-6)


def test_a_rank_without_positives_has_no_place_and_changes_nothing():
    terms = [RankTerm(t) for t in (0.1, 0.2, 0.7)]
    found = RankBalance.from_negatives(terms, NEGATIVES, [1, 0, 1]).equilibrium(torch.tensor([0.9]))[0]
    assert math.isnan(found[1])
    without = equilibrium_line(doubles([0.9]), (0.1, 0.7), NEGATIVES)
    assert float(found[2]) == pytest.approx(float(without), abs=1e-6)


def test_a_line_that_would_leave_the_cosines_ends_at_one():
    assert equilibrium_line(LINE, (0.2, 0.1), normal_negatives(4000)).min() == pytest.approx(1)
    assert ranking_starts((0.2, 0.1), normal_negatives(4000)) == math.inf


def test_negatives_are_spread_as_a_gaussian_is():
    many = normal_negatives(10_001, -0.2, 0.1)
    assert (float(many.mean()), float(many.std())) == (pytest.approx(-0.2), pytest.approx(0.1, rel=1e-3))
    assert float((many < -0.1).double().mean()) == pytest.approx(0.8413, abs=1e-3)
    assert float(normal_negatives(1000, 0.9, 0.3).max()) == 1


# The five observations of the appendix.


def test_observation_1_the_line_is_flat_while_rank_1_is_far():
    for pair in ((0.1, 0.2), (0.1, 0.7), (0.2, 0.1)):
        line = equilibrium_line(LINE[LINE <= 0.2], pair, NEGATIVES)
        assert line.max() - line.min() < 0.005


def test_observation_2_rank_2_grows_with_rank_1_if_its_temperature_is_higher():
    near = LINE[LINE >= 0.8]
    for pair in ((0.1, 0.2), (0.1, 0.7)):
        line = equilibrium_line(near, pair, NEGATIVES)
        slopes = line.diff() / near.diff()
        assert (equilibrium_line(LINE, pair, NEGATIVES).diff() > 0).all()
        assert slopes.min() > 0.6
        assert slopes.max() - slopes.min() < 0.35  # nearly straight: in proportion


def test_observation_3_rank_1_is_closer_where_it_matters_and_tau_2_says_from_where_on():
    starts = [ranking_starts((0.1, two), NEGATIVES) for two in (0.15, 0.2, 0.35, 0.7)]
    assert starts == sorted(starts, reverse=True)
    for two, start in zip((0.15, 0.2, 0.35, 0.7), starts, strict=True):
        line = equilibrium_line(LINE, (0.1, two), NEGATIVES)
        assert torch.equal(line < LINE, start < LINE)
        assert start < 0.75


def test_observation_4_a_higher_tau_2_lowers_the_line():
    low, high = (equilibrium_line(LINE, (0.1, two), NEGATIVES) for two in (0.2, 0.7))
    assert (high < low - 0.1).all()
    # Between close temperatures "overall" it is: the flat part falls, the end may rise.
    flat = [float(equilibrium_line(LINE[:1], (0.1, two), NEGATIVES)) for two in (0.1, 0.15, 0.2, 0.35, 0.7)]
    assert flat[1:] == sorted(flat[1:], reverse=True)


def test_observation_5_the_line_is_almost_constant_if_tau_1_is_higher():
    def rise(*pair):
        line = equilibrium_line(LINE, pair, NEGATIVES)
        return float(line.max() - line.min())

    rises = [rise(one, 0.1) for one in (0.1, 0.125, 0.15, 0.175, 0.2)]
    assert rises == sorted(rises, reverse=True)
    assert rises[-1] < 0.04
    assert rise(0.1, 0.2) > 0.33


def test_a_low_temperature_sees_close_negatives_and_a_high_one_all():
    """The first part of the appendix: r_{p₂}^{p₁} ≫ rₙ^{p₁}, and ℓ₂ spreads its push more evenly than ℓ₁."""
    found = relative_penalties(doubles([0.7]), NEGATIVES, (0.1, 0.2))
    assert found.seconds_in_first[0] > 10 * found.negatives_in_first.max()
    ratio_first = found.negatives_in_first.max() / found.negatives_in_first.min()
    ratio_second = found.negatives_in_second.max() / found.negatives_in_second.min()
    assert ratio_first == pytest.approx(float(ratio_second) ** 2, rel=1e-6)


# Advice.


@pytest.mark.parametrize(
    ("closest", "gap", "ranks"), [(0.9, 0.1, 2), (0.9, 0.2, 2), (0.9, 0.1, 3), (0.8, [0.1, 0.05], 3)]
)
def test_proposed_temperatures_lead_to_the_gap(closest, gap, ranks):
    advice = advise(closest, gap, [RankTerm(0.1)] * ranks, NEGATIVES)
    assert list(advice.temperatures) == sorted(advice.temperatures)
    assert advice.expected == pytest.approx(advice.wanted, abs=5e-3)  # temperatures are rounded
    found = RankBalance.from_negatives(advice.terms, NEGATIVES).equilibrium(torch.tensor([closest]))[0]
    gaps = [gap] * (ranks - 1) if isinstance(gap, float) else gap
    assert (-found.diff()).tolist() == pytest.approx(gaps, abs=5e-3)
    assert advice.starts is not None
    assert advice.starts < closest


def test_advice_on_two_ranks_says_where_ranking_starts():
    advice = advise(0.9, 0.15, [RankTerm(0.1)] * 2, NEGATIVES)
    exact = ranking_starts(advice.temperatures, NEGATIVES)
    assert advice.starts - 2 / 80 <= exact <= advice.starts
    line = equilibrium_line(doubles([0.9, 0.89]), advice.temperatures, NEGATIVES)
    assert advice.follows[1] == pytest.approx(float(line[0] - line[1]) / 0.01, rel=1e-3)


def test_advice_can_be_pasted_into_a_recipe():
    advice = advise(0.9, 0.1, [RankTerm(0.1, "out"), RankTerm(0.1)], NEGATIVES)
    for overrides in (advice.overrides, [advice.whole_override]):
        recipe = load_recipe("cifar100/rince-out-in", overrides)
        assert [term.temperature for term in recipe.terms] == list(advice.temperatures)
        assert [term.positives for term in recipe.terms] == ["out", "in"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.9, 0.01, [RankTerm(0.1)] * 2), r"cannot be held as close as 0\.89.*equal gaps from 0\.06 to 0\.2"),
        ((0.9, 0.8, [RankTerm(0.1)] * 2), r"cannot be kept as low as 0\.10.*can be had"),
        ((0.9, 0.1, [RankTerm(0.1)]), "two ranks or more"),
        ((0.9, [0.1, 0.1], [RankTerm(0.1)] * 2), "1 gaps between them, got 2"),
        ((0.9, -0.1, [RankTerm(0.1)] * 2), "leave the cosines"),
        ((0.0, 0.6, [RankTerm(0.1)] * 3), "leave the cosines"),
    ],
)
def test_what_cannot_be_had_is_said(arguments, message):
    with pytest.raises(ConfigError, match=message):
        advise(*arguments, NEGATIVES)


def test_bad_input_is_refused():
    one = torch.tensor([0.5])
    with pytest.raises(ConfigError, match="two positive numbers"):
        trade_off(one, one, (0.1, 0.0), NEGATIVES)
    with pytest.raises(ShapeError, match="negatives must be a vector"):
        trade_off(one, one, (0.1, 0.2), torch.tensor([]))
    with pytest.raises(DataError, match="seconds is empty"):
        relative_penalties(torch.tensor([]), one, (0.1, 0.2))
    with pytest.raises(ShapeError, match="vector of similarities"):
        relative_penalties(one, torch.tensor([1, 2]), (0.1, 0.2))
    with pytest.raises(ConfigError, match="two positive"):
        relative_penalties(one, one, (0.1, -0.2))
    with pytest.raises(ConfigError, match="at least 1 negative"):
        normal_negatives(0)
    with pytest.raises(ConfigError, match="spread"):
        normal_negatives(3, 0.1, -1)
    with pytest.raises(ShapeError, match="one column per term"):
        RankBalance([RankTerm(0.1)], torch.zeros(1, 2))
    with pytest.raises(DataError, match="positive of rank 1"):
        RankBalance.from_negatives([RankTerm(0.1)], NEGATIVES, [0])
    with pytest.raises(AttributeError, match="no attribute"):
        _ = rince.analysis.nothing
    assert all(hasattr(rince.analysis, name) for name in rince.analysis.__all__)


# Rest, told from a log.


def made_log(similarities, rates, every=10):
    """Lines as a run writes them: similarities of the ranks as functions of how much of the run is done."""
    done = [step / (len(rates) - 1) for step in range(len(rates))]
    return [
        {"step": every * step, "lr": rate}
        | {f"similarity/{rank}": of(part) for rank, of in enumerate(similarities, start=1)}
        for step, (rate, part) in enumerate(zip(rates, done, strict=True))
    ]


def test_what_moved_in_the_last_fifth_is_a_straight_line_through_it():
    lines = made_log([lambda part: 0.2 + 0.5 * part, lambda part: 0.3], [0.1] * 101)
    assert moved_in_the_end(lines, 2) == pytest.approx((0.1, 0.0), abs=0.006)  # a fifth of 0.5
    noise = np.random.default_rng(0).normal(0, 0.02, 5001)
    noisy = made_log([lambda part: 0.2 + 0.5 * part + noise[round(5000 * part)]], [0.1] * 5001)
    slope, _ = np.polyfit(range(4000, 5001), [line["similarity/1"] for line in noisy[4000:]], 1)
    assert moved_in_the_end(noisy, 1) == pytest.approx((1000 * slope,), abs=1e-4)


def test_a_rate_that_falls_to_zero_is_no_rest():
    """Similarities go on in proportion to the rate spent, so that by steps the last fifth looks still."""
    steps = np.arange(1001)
    rates = 0.1 * (1 + np.cos(np.pi * steps / 1000)) / 2
    spent = np.cumsum(rates) / rates.sum()
    lines = made_log([lambda part: 0.4 * spent[round(1000 * part)]], rates.tolist())
    assert lines[-1]["similarity/1"] - lines[800]["similarity/1"] < 0.02
    assert moved_in_the_end(lines, 1) == pytest.approx((0.08,), abs=0.002)


@pytest.mark.parametrize(
    ("lines", "first", "starts", "holds", "said"),
    [
        ([0.8, 0.5, 0.0], 0.8, 0.7, True, "above 0.70, from where on the ranks rest in order: the prediction holds"),
        ([0.8, 0.5, 0.5], 0.8, 0.7, False, "not yet at rest: rank 2 moved by +0.10 in the last fifth of training"),
        ([0.37, 0.3, 0.0], 0.37, 0.7, False, "rank 1, at 0.37, has not come to 0.70"),
        ([0.8, 0.5, 0.0], 0.8, None, False, "these temperatures never rest in order"),
    ],
)
def test_a_prediction_holds_at_rest_and_in_order(lines, first, starts, holds, said, tmp_path):
    rank_1, rank_2, rise = lines
    made = made_log([lambda part: rank_1, lambda part: rank_2 + rise * part], [0.1] * 201)
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in made))
    found = rest_of(tmp_path, 2, first, starts)
    assert found.holds is holds
    assert said in found.text


def test_a_log_is_read_to_its_last_whole_line_and_damage_is_told(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert logged_lines(tmp_path) == []
    path.write_bytes(b'{"step": 0}\n{"step": 1}\n{"st')  # killed, or still being written
    assert logged_lines(tmp_path) == [{"step": 0}, {"step": 1}]
    for damaged in (b'{"step": 0}\n\xff\n', b"[1]\n", b'{"step"\n', b"9" * 5000 + b"\n", b"[" * 10**5 + b"\n"):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"metrics.jsonl is damaged \(.*take the damaged line out"):
            logged_lines(tmp_path)


def test_a_log_may_be_too_short_to_tell(tmp_path):
    assert rest_of(tmp_path, 2, 0.9, 0.5).text.startswith("the log is too short to tell")
    assert moved_in_the_end(made_log([lambda part: 0.5], [0.1] * 12), 1) == ()
    assert moved_in_the_end(made_log([lambda part: 0.5], [0.0] * 500), 1) == ()
    assert moved_in_the_end(made_log([lambda part: 0.5], [0.1] * 500), 2) == ()  # nothing is logged of rank 2


@pytest.mark.parametrize("pair", [(0.1, 0.2), (0.1, 0.7), (0.2, 0.1)])
def test_order_starts_where_the_line_of_two_ranks_says(pair):
    terms = [RankTerm(temperature) for temperature in pair]
    expected = ranking_starts(pair, NEGATIVES)
    assert 0 <= RankBalance.from_negatives(terms, NEGATIVES).starts() - expected <= 1 / 40
    close = normal_negatives(5000, 0.5, 0.1)
    assert ranking_starts(pair, close) == math.inf
    assert RankBalance.from_negatives(terms, close).starts() is None
