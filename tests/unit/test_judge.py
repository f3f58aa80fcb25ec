"""Every number of a verdict against scikit-learn or a plain loop: that the right vectors go the right way in."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from sklearn.mixture import GaussianMixture

from rince.evaluation.evidence import Evidence
from rince.evaluation.judge import judge
from rince.evaluation.metrics import shape
from rince.evaluation.samples import Samples

GROUP, DEPARTMENT = torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([0, 0, 0, 0, 1, 1])


def some(number, seed, *, noise=0.8, dim=5):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(number) % 6
    means = torch.randn(6, dim, generator=torch.Generator().manual_seed(1))
    means = means + 1.5 * torch.randn(3, dim, generator=torch.Generator().manual_seed(2))[GROUP]
    features = means[labels] + noise * torch.randn(number, dim, generator=generator)
    embeddings = torch.randn(number, 3, generator=generator) + means[labels, :3]
    return Samples(features, {"class": labels, "group": GROUP[labels], "department": DEPARTMENT[labels]}, embeddings)


@pytest.fixture(scope="module")
def sets():
    generator = torch.Generator().manual_seed(5)
    outliers = {
        "near": 1.2 * torch.randn(50, 5, generator=generator),
        "far": torch.randn(40, 5, generator=generator) + torch.tensor([5.0, 0, 0, 0, 0]),
    }
    return some(150, 3), some(66, 4), outliers


@pytest.fixture(scope="module")
def verdict(sets):
    train, test, outliers = sets
    return judge(train, test, outliers=outliers)


def unit(x):
    return torch.nn.functional.normalize(x.double(), dim=1).numpy()


def test_the_probe_learns_from_the_training_set(sets, verdict):
    train, test, _ = sets
    mean, std = train.features.numpy().mean(0), train.features.numpy().std(0)
    reference = LogisticRegression(C=1 / (1e-4 * 150), max_iter=5000, tol=1e-8)
    reference.fit((train.features.numpy() - mean) / std, train.labels)
    expected = reference.score((test.features.numpy() - mean) / std, test.labels)
    assert verdict.metrics["probe/accuracy"] == pytest.approx(expected, abs=1.01 / 66)
    right = 66 * verdict.metrics["probe/accuracy"]
    assert right == pytest.approx(round(right), abs=1e-9)  # of 66 samples, not of 150


@pytest.mark.parametrize("level", ["class", "group", "department"])
def test_every_test_sample_searches_the_training_set_at_every_level(level, sets, verdict):
    train, test, _ = sets
    cosines = unit(test.features) @ unit(train.features).T
    right = test.levels[level].numpy()[:, None] == train.levels[level].numpy()
    order = np.argsort(-cosines, axis=1)
    for k in (1, 5):
        found = np.take_along_axis(right, order[:, :k], axis=1).any(1).mean()
        assert verdict.metrics[f"retrieval/{level}/recall@{k}"] == pytest.approx(found, abs=1e-9)
    precision = [average_precision_score(r, c) for r, c in zip(right, cosines, strict=True)]
    assert verdict.metrics[f"retrieval/{level}/map"] == pytest.approx(np.mean(precision), abs=1e-6)
    curve = verdict.figures["curves"][level]
    assert len(curve["recall"]) == len(curve["precision"]) == 101
    assert curve["precision"][-1] == pytest.approx(
        np.mean([r.sum() / (1 + np.flatnonzero(r[o])[-1]) for r, o in zip(right, order, strict=True)]), rel=1e-4
    )


def ranks_between(one, other):
    same = [one.levels[level].numpy()[:, None] == other.levels[level].numpy() for level in one.levels]
    return np.where(same[0], 1, np.where(same[1], 2, np.where(same[2], 3, 0)))


def test_ranking_counts_all_levels(sets, verdict):
    train, test, _ = sets
    cosines, ranks = unit(test.features) @ unit(train.features).T, ranks_between(test, train)
    gains, discounts = np.where(ranks > 0, 4 - ranks, 0), 1 / np.log2(np.arange(150) + 2)
    found = np.take_along_axis(gains, np.argsort(-cosines, axis=1), axis=1) @ discounts
    best = -np.sort(-gains, axis=1) @ discounts
    assert verdict.metrics["ranking/ndcg"] == pytest.approx(np.mean(found / best), abs=1e-6)
    shares = []
    for row, of_row in zip(cosines, ranks, strict=True):
        per_rank = []
        for rank in (1, 2, 3):
            farther = (of_row > rank) | (of_row == 0)
            if (of_row == rank).any() and farther.any():
                per_rank.append((row[of_row == rank][:, None] > row[farther]).mean())
        shares.append(np.mean(per_rank))
    assert verdict.metrics["ranking/order_accuracy"] == pytest.approx(np.mean(shares), abs=1e-6)


def scores_by_hand(train, features):
    """Of the three scores: Gaussians of classes, Mahalanobis with one covariance, the neighbour that a class has samples."""
    known, labels, new = unit(train.features), train.labels.numpy(), unit(features)
    full = [GaussianMixture(1, reg_covar=1e-6).fit(known[labels == c]).score_samples(new) for c in range(6)]
    means = np.stack([known[labels == c].mean(0) for c in range(6)])
    centred = known - means[labels]
    precision = np.linalg.inv(centred.T @ centred / len(centred) + 1e-6 * np.eye(5))
    tied = [-np.einsum("nd,de,ne->n", new - mean, precision, new - mean) for mean in means]
    return {
        "": np.max(full, 0),
        "_tied": np.max(tied, 0),
        "_neighbours": np.sort(new @ known.T, axis=1)[:, -(len(known) // 6)],
    }


@pytest.mark.parametrize("name", ["near", "far"])
def test_test_samples_are_the_inliers(name, sets, verdict):
    train, test, outliers = sets
    inlier, outlier = scores_by_hand(train, test.features), scores_by_hand(train, outliers[name])
    truth = np.r_[np.ones(66), np.zeros(len(outliers[name]))]
    for score in inlier:
        expected = roc_auc_score(truth, np.r_[inlier[score], outlier[score]])
        assert expected > 0.6  # and so the other way round would be below a half
        assert verdict.metrics[f"outliers/{name}/auroc{score}"] == pytest.approx(expected, abs=2e-3), score
    false, true, _ = roc_curve(truth, np.r_[inlier[""], outlier[""]], drop_intermediate=False)
    expected = false[np.argmax(true >= 0.95)]
    assert verdict.metrics[f"outliers/{name}/fpr@95"] == pytest.approx(expected, abs=0.026)
    figure = verdict.figures["outliers"][name]
    # The bins of the figure are spread over all scores; inliers lie to the right of the outliers.
    centres = np.add(figure["edges"][1:], figure["edges"][:-1]) / 2
    assert sum(figure["inliers"]) == pytest.approx(1, abs=1e-3)
    assert sum(figure["outliers"]) == pytest.approx(1, abs=1e-3)
    assert centres @ figure["inliers"] > centres @ figure["outliers"]
    roc = figure["roc"]
    assert np.trapezoid(roc["true"], roc["false"]) == pytest.approx(verdict.metrics[f"outliers/{name}/auroc"], abs=0.02)


@pytest.mark.parametrize("side", ["train", "test"])
def test_geometry_is_of_both_sets(sets, verdict, side):
    samples, name = (sets[0], "train_") if side == "train" else (sets[1], "")
    vectors = unit(samples.features)
    squares = ((vectors[:, None] - vectors) ** 2).sum(-1)
    pairs = ~np.eye(len(vectors), dtype=bool)
    expected = np.log(np.exp(-2 * squares[pairs]).mean())
    assert verdict.metrics[f"geometry/{name}uniformity"] == pytest.approx(expected, abs=1e-5)
    for level, labels in samples.levels.items():
        same = (labels[:, None] == labels).numpy() & pairs
        assert verdict.metrics[f"geometry/{level}/{name}alignment"] == pytest.approx(squares[same].mean(), abs=1e-5)


def test_of_many_training_samples_a_balanced_part_is_measured(monkeypatch):
    monkeypatch.setattr(shape, "MOST", 6)
    train = Samples(torch.randn(20, 4), {"class": torch.arange(20) % 3})
    found = shape._trained(Evidence(train, train, {}))
    assert torch.equal(found.features, train.features[:6])
    assert found.labels.bincount().tolist() == [2, 2, 2]


@pytest.mark.parametrize("place", ["before", "after"])
def test_similarity_by_rank_is_a_mean_over_pairs_of_classes(place, sets, verdict):
    _, test, _ = sets
    vectors = unit(test.features if place == "before" else test.embeddings)
    labels = test.labels.numpy()
    table = np.empty((6, 6))
    for a in range(6):
        for b in range(6):
            cosines = vectors[labels == a] @ vectors[labels == b].T
            table[a, b] = cosines[~np.eye(len(cosines), dtype=bool)].mean() if a == b else cosines.mean()
    of_class = Samples(test.features[:6], {level: labels[:6] for level, labels in test.levels.items()})
    ranks = ranks_between(of_class, of_class)
    for rank, name in ((0, "negatives"), (1, "rank1"), (2, "rank2"), (3, "rank3")):
        expected = table[ranks == rank].mean()
        assert verdict.metrics[f"geometry/similarity/{place}/{name}"] == pytest.approx(expected, abs=1e-5)
    assert np.array(verdict.figures["class_similarity"][place]) == pytest.approx(table, rel=1e-4, abs=1e-5)


def test_the_papers_probe_learns_from_the_features_of_its_epochs(sets):
    train, test, _ = sets
    asked = []

    def epoch_features(epoch):
        asked.append(epoch)
        return train.features.roll(1, dims=0)  # of other samples: a probe that used them is no better than chance

    metrics = judge(train, test, probe="paper", epoch_features=epoch_features).metrics
    assert asked == list(range(100))
    assert metrics["probe/accuracy"] < 0.4
    assert judge(train, test, probe="paper").metrics["probe/accuracy"] > 0.6
