"""Geometry against plain loops over all pairs."""

import itertools
import math

import numpy as np
import pytest
import torch

from rince import ConfigError, DataError
from rince.evaluation import alignment, class_similarity, geometry, tsne, uniformity


def samples(seed=0, number=23):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(number, 5, generator=generator) * 3, torch.randint(0, 4, (number,), generator=generator) * 2


def unit(vectors):
    return [[x / math.sqrt(sum(y * y for y in row)) for x in row] for row in vectors.double().tolist()]


def squared_distance(a, b):
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def test_alignment_is_the_mean_over_pairs_of_one_label():
    vectors, labels = samples()
    rows = unit(vectors)
    pairs = [(i, j) for i, j in itertools.combinations(range(23), 2) if labels[i] == labels[j]]
    expected = sum(squared_distance(rows[i], rows[j]) for i, j in pairs) / len(pairs)
    assert alignment(vectors, labels) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("rows_at_once", [1000, 4])
def test_uniformity_is_the_log_mean_potential_over_pairs(rows_at_once, monkeypatch):
    monkeypatch.setattr(geometry, "BLOCK_BYTES", 4 * 23 * rows_at_once)
    vectors, _ = samples()
    rows = unit(vectors)
    potentials = [math.exp(-2 * squared_distance(a, b)) for a, b in itertools.combinations(rows, 2)]
    assert uniformity(vectors) == pytest.approx(math.log(sum(potentials) / len(potentials)), abs=1e-5)
    faster = [math.exp(-3 * squared_distance(a, b)) for a, b in itertools.combinations(rows, 2)]
    assert uniformity(vectors, t=3) == pytest.approx(math.log(sum(faster) / len(faster)), abs=1e-5)


def test_class_similarity_is_the_mean_cosine_between_classes():
    vectors, labels = samples()
    labels[labels == 6] = 4
    vectors, labels = torch.cat([vectors, torch.ones(1, 5)]), torch.cat([labels, torch.tensor([9])])
    rows, names = unit(vectors), labels.unique().tolist()
    similarity = class_similarity(vectors, labels)
    assert similarity.shape == (len(names), len(names))
    for (a, first), (b, second) in itertools.product(enumerate(names), repeat=2):
        cosines = [
            sum(x * y for x, y in zip(rows[i], rows[j], strict=True))
            for i, j in itertools.product(range(24), repeat=2)
            if labels[i] == first and labels[j] == second and i != j
        ]
        expected = float(np.mean(cosines)) if cosines else math.nan
        assert float(similarity[a, b]) == pytest.approx(expected, abs=1e-6, nan_ok=True)
    assert math.isnan(similarity[-1, -1])


def test_all_equal_embeddings_are_perfectly_aligned_and_not_uniform():
    same = torch.ones(6, 3)
    assert alignment(same, torch.zeros(6, dtype=torch.long)) == pytest.approx(0, abs=1e-6)
    assert uniformity(same) == pytest.approx(0, abs=1e-5)


def test_too_few_samples_are_named():
    with pytest.raises(DataError, match="every label has only one sample"):
        alignment(torch.eye(3), torch.arange(3))
    with pytest.raises(DataError, match="at least two samples"):
        uniformity(torch.ones(1, 3))
    with pytest.raises(ConfigError, match="at least 3 samples"):
        tsne(torch.ones(2, 3))


def test_the_map_keeps_clusters_together_and_repeats_itself():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 3
    features = torch.eye(8)[labels] + 0.05 * torch.randn(60, 8, generator=generator)
    places = tsne(features, seed=1)
    assert places.shape == (60, 2)
    distances = torch.cdist(places, places).fill_diagonal_(math.inf)
    assert (labels[distances.argmin(1)] == labels).all()
    assert torch.equal(places, tsne(features, seed=1))
