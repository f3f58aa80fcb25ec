import itertools

import pytest
import torch
from scipy import stats

from rince import ShapeError
from rince.draws import uniform

IDS = torch.arange(4000)
WORD = (1 << 64) - 1


def splitmix(word):
    """The published finaliser, on Python integers."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & WORD
    return word ^ (word >> 31)


@pytest.mark.parametrize("key", [(0, 0, 0), (1, 0, 0), (-3, 400, 1), (1 << 63, 2, 7)])
def test_equals_the_hash_in_python_integers(key):
    ids = [0, 1, 7, 123456789012, -1]
    step, state = 0x9E3779B97F4A7C15, 0
    for word in key:
        state = splitmix(((state ^ word) + step) & WORD)
    expected = [
        [splitmix((splitmix((i * step + state) & WORD) + j * step) & WORD) >> 40 for j in range(1, 6)] for i in ids
    ]
    draws = uniform(*key, torch.tensor(ids), count=5)
    assert (draws * 2**24).long().tolist() == expected
    assert draws.dtype == torch.float32


def test_published_value_of_splitmix():
    """The first output for seed 1234567, as published with the reference code of splitmix64."""
    assert splitmix((1234567 + 0x9E3779B97F4A7C15) & WORD) == 6457827717110365317


def test_the_numbers_never_change():
    """Frozen: a change here makes every run of the past irreproducible."""
    draws = uniform(0, 1, 2, torch.tensor([3, 4]), count=3)
    assert (draws * 2**24).long().tolist() == [[7188711, 10178278, 8506634], [1850619, 3623686, 4671717]]


@pytest.mark.parametrize("key", [(0, 0, 0), (1, 5, 1), (12345, 499, 3)])
def test_uniform_in_every_column(key):
    draws = uniform(*key, IDS, count=30)
    assert 0 <= draws.min() < 1e-3
    assert 1 - 1e-3 < draws.max() < 1
    for column in draws.T:
        assert stats.kstest(column.numpy(), "uniform").pvalue > 1e-4
    assert stats.chisquare(torch.histc(draws, 64, 0, 1).numpy()).pvalue > 1e-4


def test_uniform_over_seeds_epochs_and_views_of_one_sample():
    one = torch.tensor([17])
    keys = itertools.product(range(10), range(20), range(10))
    draws = torch.cat([uniform(*key, one, count=1) for key in keys]).flatten()
    assert len(draws.unique()) > 0.999 * len(draws)
    assert stats.kstest(draws.numpy(), "uniform").pvalue > 1e-4


def test_draws_of_a_sample_are_uncorrelated():
    correlations = torch.corrcoef(uniform(0, 0, 0, IDS, count=30).T) - torch.eye(30)
    assert correlations.abs().max() < 5 / len(IDS) ** 0.5


@pytest.mark.parametrize(
    "other", [(1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (0, 0, 0, 2), (1, -1, 0, 0), (-1, 0, 1, 0)]
)
def test_neighbouring_seeds_epochs_views_and_ids_are_uncorrelated(other):
    seed, epoch, view, offset = other
    one, two = uniform(5, 5, 5, IDS, count=4), uniform(5 + seed, 5 + epoch, 5 + view, IDS + offset, count=4)
    correlations = torch.corrcoef(torch.cat([one, two], dim=1).T)[:4, 4:]
    assert correlations.abs().max() < 5 / len(IDS) ** 0.5
    assert (one == two).float().mean() < 1e-3


def test_seed_epoch_and_view_do_not_stand_for_one_another():
    draws = [uniform(*key, IDS[:50], count=4) for key in itertools.permutations((1, 2, 3))]
    assert len(torch.stack(draws).flatten(1).unique(dim=0)) == 6


def test_a_sample_draws_the_same_in_any_batch_and_leaves_the_generator_alone():
    state = torch.get_rng_state()
    draws = uniform(3, 2, 1, IDS, count=30)
    order = torch.randperm(len(IDS), generator=torch.Generator().manual_seed(0))
    assert torch.equal(uniform(3, 2, 1, IDS[order], count=30), draws[order])
    assert torch.equal(torch.cat([uniform(3, 2, 1, ids, count=30) for ids in IDS.split(37)]), draws)
    assert torch.equal(uniform(3, 2, 1, IDS.to(torch.int32), count=7), draws[:, :7])
    assert torch.equal(torch.get_rng_state(), state)


def test_nothing_to_draw():
    assert uniform(0, 0, 0, IDS[:0], count=3).shape == (0, 3)
    assert uniform(0, 0, 0, IDS[:3], count=0).shape == (3, 0)


@pytest.mark.parametrize(
    ("ids", "count", "message"),
    [
        (torch.zeros(3), 1, r"vector of integers, got torch.float32 of shape \(3,\)"),
        (torch.zeros(3, 1, dtype=torch.long), 1, r"shape \(3, 1\)"),
        (torch.zeros(3, dtype=torch.bool), 1, r"torch\.bool"),
        (IDS, -1, "must not be negative, got -1"),
    ],
)
def test_bad_input(ids, count, message):
    with pytest.raises(ShapeError, match=message):
        uniform(0, 0, 0, ids, count)
