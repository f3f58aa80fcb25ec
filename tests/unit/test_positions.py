"""Ranks by distance in real coordinates: latitudes, metres of UTM, unix seconds. The oracle is NumPy, in float64."""

import csv
import math

import numpy as np
import pytest
import torch

from rince import SampleRanks
from rince.hierarchy.from_vectors import PositionSettings
from rince.hierarchy.given import Ranked

SEED = np.random.default_rng(7)
PLACES = {
    "latitude and longitude": ((48.1, 11.5), 1e-4),
    "utm metres": ((691_607.25, 5_334_760.5), 2.0),
    "unix seconds": ((1_700_000_000.0,), 1.5),
    "beside the origin": ((0.0, 0.0, 0.0), 1.0),
}


def walk(name, samples=60):
    """A walk around a place, in steps of about `step`; and two limits between which many distances lie."""
    origin, step = PLACES[name]
    return np.array(origin) + SEED.normal(size=(samples, len(origin))).cumsum(axis=0) * step, [1.5 * step, 4 * step]


def by_numpy(positions, limits):
    """Ranks of all samples for all."""
    distances = np.sqrt(((positions[:, None] - positions[None]) ** 2).sum(axis=2))
    ranks = np.zeros(distances.shape, dtype=np.int8)
    for rank, limit in reversed(list(enumerate(limits, start=2))):
        ranks[distances <= limit] = rank
    np.fill_diagonal(ranks, 1)
    return ranks


def test_places_a_step_apart_on_a_street():
    positions = torch.tensor([[48.1 + i * 1e-4, 11.5] for i in range(30)])
    ranks = SampleRanks(positions, [1.5e-4], metric="euclidean")(torch.arange(30), torch.arange(30))
    apart = (torch.arange(30)[:, None] - torch.arange(30)).abs()
    assert ranks.equal(torch.where(apart == 0, 1, torch.where(apart == 1, 2, 0)).to(torch.int8))


@pytest.mark.parametrize("name", PLACES)
def test_every_rank_is_that_of_the_exact_distance(name):
    positions, limits = walk(name)
    expected = by_numpy(positions, limits)
    assert set(np.unique(expected)) == {0, 1, 2, 3}
    ids = torch.arange(len(positions))
    for given in (positions, torch.from_numpy(positions), positions.tolist()):
        ranks = SampleRanks(given, limits, metric="euclidean")
        assert np.array_equal(ranks(ids, ids).numpy(), expected)
        assert np.array_equal(ranks(ids[:3], ids).numpy(), expected[:3])  # whatever the number of rows


@pytest.mark.parametrize("name", PLACES)
def test_positions_of_a_file_keep_all_digits(name, tmp_path):
    positions, limits = walk(name)
    columns = [f"c{number}" for number in range(positions.shape[1])]
    with (tmp_path / "positions.csv").open("w", newline="") as file:
        csv.writer(file).writerows([columns, *(map(repr, row) for row in positions.tolist())])
    settings = PositionSettings(
        kind="position", file=str(tmp_path / "positions.csv"), columns=columns, thresholds=limits
    )
    ids = torch.arange(len(positions))
    given = Ranked(paths=None, class_names=("a",), samples=len(positions), seed=0)
    assert np.array_equal(settings.build(given)(ids, ids).numpy(), by_numpy(positions, limits))


@pytest.mark.parametrize("name", PLACES)
def test_the_nearest_in_space_are_the_nearest(name):
    positions, _ = walk(name)
    distances = np.sqrt(((positions[:, None] - positions[None]) ** 2).sum(axis=2))
    nearest = distances.argsort(axis=1)[:, 1:4]
    ids = torch.arange(len(positions))
    ranks = SampleRanks.from_neighbours(positions, [3], metric="euclidean")(ids, ids).numpy()
    assert all(set(np.flatnonzero(row == 2)) == set(near) for row, near in zip(ranks, nearest, strict=True))


def test_a_distance_of_exactly_the_limit_is_within():
    """0.7 is less in float32 than in float64."""
    ranks = SampleRanks([[0.0], [0.7], [0.71]], [0.7], metric="euclidean")([0], [0, 1, 2])
    assert ranks.tolist() == [[1, 2, 0]]


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_other_vectors_are_other_ranks(metric):
    """The limits alone do not tell them apart: a run must not go on with ranks of other samples."""
    positions = walk("beside the origin")[0]
    moved = positions.copy()
    moved[5, 0] += 1e-3
    limits = [0.9, 0.5] if metric == "cosine" else [0.5, 0.9]
    first, again, other = (SampleRanks(each, limits, metric=metric) for each in (positions, positions.copy(), moved))
    assert first.fingerprint == again.fingerprint
    assert first.fingerprint != other.fingerprint
    assert first.fingerprint != SampleRanks(positions, [limit / 2 for limit in limits], metric=metric).fingerprint


@pytest.mark.parametrize("size", [1e200, 1e-200, 1.0])
def test_positions_of_any_size(size):
    """Squares of 1e200 are infinite and those of 1e-200 are 0; distances are neither."""
    places = torch.tensor([[0.0, 0.0], [3.0, 4.0], [6.0, 8.0], [30.0, 40.0]], dtype=torch.float64) * size
    ranks = SampleRanks(places, [7 * size, 20 * size], metric="euclidean")
    found = ranks(torch.arange(4), torch.arange(4))
    exact = [[math.dist(one, other) for other in places.tolist()] for one in places.tolist()]
    assert found.tolist() == [
        [1 if i == j else 2 if each <= 7 * size else 3 if each <= 20 * size else 0 for j, each in enumerate(row)]
        for i, row in enumerate(exact)
    ]
    assert torch.allclose(
        -ranks.nearness(torch.arange(4), torch.arange(4)) / size, torch.tensor(exact, dtype=torch.float64) / size
    )
