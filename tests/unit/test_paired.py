"""Paired differences against scipy's bootstrap, and what an interval promises: to hold the truth in 95 of 100 cases."""

import numpy as np
import pytest
import torch
from scipy.stats import bootstrap

from rince.errors import ConfigError, DataError
from rince.evaluation.paired import interval_of_means, paired_difference
from rince.evaluation.queries import Queries, mean_over_seeds, numbered, read_queries, write_queries


def seeds(seed, number, queries=400, gain=0.0):
    """Right or wrong on queries of which some are hard for all."""
    draws = np.random.default_rng(seed)
    ease = np.random.default_rng(99).random(queries)
    return [torch.tensor((draws.random(queries) < ease + gain).astype(np.float32)) for _ in range(number)]


def test_mean_and_interval_are_those_of_scipy():
    ours, theirs = seeds(1, 3, gain=0.06), seeds(2, 2)
    found = paired_difference(ours, theirs)
    difference = np.subtract(*(np.mean([x.double().numpy() for x in side], axis=0) for side in (ours, theirs)))
    expected = bootstrap(
        (difference,), np.mean, n_resamples=10_000, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    width = expected.high - expected.low
    assert found.mean == pytest.approx(difference.mean(), abs=1e-6)
    assert found.low == pytest.approx(expected.low, abs=0.04 * width)
    assert found.high == pytest.approx(expected.high, abs=0.04 * width)
    assert paired_difference(theirs, ours).mean == pytest.approx(-found.mean)


def test_pairs_are_kept_together():
    theirs = seeds(3, 1)[0]
    found = paired_difference([theirs + 0.01], [theirs])
    assert found == pytest.approx((0.01, 0.01, 0.01), abs=1e-6)  # the same for every query: there is no doubt
    apart = paired_difference([theirs.flip(0) + 0.01], [theirs])
    assert apart.high - apart.low > 0.1


def test_the_interval_holds_the_truth_as_often_as_it_says():
    held = 0
    for case in range(300):
        draws = np.random.default_rng(case)
        difference = torch.tensor(draws.exponential(1.0, 120) - 0.7)
        found = interval_of_means([difference], resamples=500, seed=case)[0]
        held += found.low <= 0.3 <= found.high
    assert 0.91 <= held / 300 <= 0.97


def test_the_same_seed_gives_the_same_and_columns_do_not_move_each_other(monkeypatch):
    one, other, short = seeds(4, 1)[0], seeds(5, 1)[0], seeds(6, 1, queries=50)[0]
    alone = [interval_of_means([values])[0] for values in (one, short, other)]
    assert interval_of_means([one, short, other]) == [pytest.approx(each, abs=1e-12) for each in alone]
    assert paired_difference([one], [other], seed=1) != paired_difference([one], [other], seed=2)
    monkeypatch.setattr("rince.evaluation.paired.CELLS", 400 * 7)  # blocks of a few draws
    assert interval_of_means([one])[0] == pytest.approx(alone[0], abs=0.01)


def test_queries_that_do_not_count_are_as_good_as_absent():
    values = seeds(7, 1)[0].double()
    values[:100] = torch.nan
    found, rest = interval_of_means([values])[0], interval_of_means([values[100:]])[0]
    assert found.mean == pytest.approx(rest.mean, abs=1e-12)
    assert found == pytest.approx(rest, abs=0.006)


def in_groups(case, groups=30, share=0.8):
    """Numbers of groups of one to nine queries, most of which is common to a group; in any order."""
    draws = np.random.default_rng(case)
    of = np.repeat(np.arange(groups), draws.integers(1, 10, groups))
    draws.shuffle(of)
    return of, share * draws.normal(size=groups)[of] + (1 - share) * draws.normal(size=len(of))


def test_whole_groups_are_drawn_as_in_a_plain_loop():
    of, values = in_groups(1)
    values[[3, 40]] = np.nan
    draws, means = np.random.default_rng(0), []
    for _ in range(4000):
        drawn = [values[of == group] for group in draws.integers(0, 30, 30)]
        means.append(np.nanmean(np.concatenate(drawn)))
    low, high = np.quantile(means, [0.025, 0.975])
    found = paired_difference([values], [np.zeros(len(of))], groups=7 * of - 3)  # any integers
    assert found.mean == pytest.approx(np.nanmean(values), abs=1e-12)
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.05 * (high - low))
    plain = paired_difference([values], [np.zeros(len(of))])
    assert found.high - found.low > 1.5 * (plain.high - plain.low)  # one that passes over groups says too much
    alone = paired_difference([values], [np.zeros(len(of))], groups=np.arange(len(of)))
    assert alone == pytest.approx(plain, abs=1e-12)
    one_each = [bootstrap_of_sums(values, of, 30)]
    assert (found.low, found.high) == pytest.approx(one_each[0], abs=0.05 * (high - low))


def bootstrap_of_sums(values, of, groups):
    """The same by scipy: a group is a pair of a sum and a count, and the statistic their ratio."""
    known = ~np.isnan(values)
    sums, counts = np.bincount(of[known], values[known], groups), np.bincount(of[known], minlength=groups)
    found = bootstrap(
        (sums, counts),
        lambda s, c, axis=-1: s.sum(axis=axis) / c.sum(axis=axis),
        paired=True,
        vectorized=True,
        n_resamples=4000,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return found.low, found.high


def test_an_interval_over_groups_holds_the_truth_and_one_over_queries_does_not():
    held = {True: 0, False: 0}
    for case in range(200):
        of, values = in_groups(case, groups=60)
        for whole in held:
            groups = [torch.tensor(of)] if whole else None
            found = interval_of_means([torch.tensor(values)], groups=groups, resamples=400, seed=case)[0]
            held[whole] += found.low <= 0 <= found.high
    assert 0.9 <= held[True] / 200 <= 0.98
    assert held[False] / 200 < 0.75


@pytest.mark.parametrize(
    ("ours", "theirs", "error", "match"),
    [
        ([], [torch.ones(3)], DataError, "at least one seed of each side"),
        ([torch.ones(3)], [torch.ones(4)], DataError, r"the same test queries; got shapes .*\(4,\)"),
        ([torch.ones(0)], [torch.ones(0)], DataError, "no test queries"),
    ],
)
def test_bad_input_is_named(ours, theirs, error, match):
    with pytest.raises(error, match=match):
        paired_difference(ours, theirs)
    with pytest.raises(ConfigError, match="resamples must be a whole number, at least 1; got 0"):
        paired_difference([torch.ones(3)], [torch.ones(3)], resamples=0)
    with pytest.raises(DataError, match=r"every query has a group: got groups of shape \(2,\) for \(3,\) queries"):
        paired_difference([torch.ones(3)], [torch.ones(3)], groups=[0, 1])


def test_seeds_are_averaged_where_they_saw_the_same_samples(tmp_path):
    def run(number, own, other):
        values = {"probe/accuracy": torch.full((3,), number), "probe/accuracy on x": torch.full((3,), 10 * number)}
        return Queries("check", {"": own, "x": other}, values, {"": torch.tensor([0, 1, 0])})

    means = mean_over_seeds([run(1.0, "a", "b"), run(4.0, "a", "c")])
    assert {name: each.tolist() for name, each in means.items()} == {"probe/accuracy": [2.5] * 3}
    write_queries(tmp_path, run(1.0, "a", "b"))
    found = read_queries(tmp_path)
    assert found[:2] == ("check", {"": "a", "x": "b"})
    assert {name: each.tolist() for name, each in found.values.items()} == {
        "probe/accuracy": [1.0] * 3,
        "probe/accuracy on x": [10.0] * 3,
    }
    assert {on: each.tolist() for on, each in found.groups.items()} == {"": [0, 1, 0]}
    assert numbered(["b", "a", "b"]).tolist() == [0, 1, 0]
    assert read_queries(tmp_path / "nowhere") is None
