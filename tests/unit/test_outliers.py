"""Inlier scores and their judges against scikit-learn."""

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score, roc_curve
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import NearestNeighbors

from rince import ConfigError, DataError, ShapeError
from rince.config import load_recipe
from rince.evaluation import ClassGaussians, auroc, fpr_at_recall, neighbour_score
from rince.evaluation.outliers import shares_below
from rince.sources.images import load_images


def features(dim, samples=240, classes=4, seed=0, spread=0.4):
    """Class clusters of unequal sizes; and outliers from the space between them."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (samples,), generator=generator) ** 2
    means = torch.randn(classes**2, dim, generator=generator)
    # Three strong directions and a weak rest, as real features have them.
    shape = torch.cat([torch.full((3,), 1.0), torch.full((dim - 3,), 0.1)])
    inliers = means[labels] + spread * shape * torch.randn(samples, dim, generator=generator)
    outliers = means.mean(0) + spread * torch.randn(samples, dim, generator=generator) + 0.5 * means[labels]
    return inliers, labels, outliers


def mixture_scores(train, labels, test, reg_covar=1e-6):
    train, test = (torch.nn.functional.normalize(x.double(), dim=1).numpy() for x in (train, test))
    scores = [
        GaussianMixture(1, reg_covar=reg_covar).fit(train[labels.numpy() == label]).score_samples(test)
        for label in np.unique(labels)
    ]
    return np.max(scores, axis=0)


@pytest.mark.parametrize(("dim", "case"), [(8, "more samples than dimensions"), (200, "fewer"), (60, "about as many")])
def test_scores_are_those_of_gaussian_mixtures(dim, case):
    inliers, labels, outliers = features(dim)
    train, test, known = inliers[:160], inliers[160:], labels[:160]
    gaussians = ClassGaussians(train, known)
    expected = mixture_scores(train, known, torch.cat([test, outliers]))
    scores = gaussians.score(torch.cat([test, outliers])).numpy()
    assert scores == pytest.approx(expected, rel=1e-3, abs=0.5)
    truth = np.r_[np.ones(len(test)), np.zeros(len(outliers))]
    reference = roc_auc_score(truth, expected)
    assert 0.5 < reference <= 1
    assert auroc(gaussians.score(test), gaussians.score(outliers)) == pytest.approx(reference, abs=1e-3)


@pytest.mark.parametrize(("dim", "samples"), [(400, 400), (800, 2000)])
def test_a_look_in_half_precision_finds_the_best_class(dim, samples, monkeypatch):
    inliers, labels, outliers = features(dim, samples, classes=9, spread=1.5)
    both = torch.cat([inliers, outliers])
    gaussians = ClassGaussians(inliers[: samples // 2], labels[: samples // 2])
    monkeypatch.setattr("rince.evaluation.outliers.multiplies_bfloat16", lambda: False)
    plain = gaussians.score(both)
    monkeypatch.setattr("rince.evaluation.outliers.multiplies_bfloat16", lambda: True)
    judged = []
    whole = ClassGaussians._of_class
    monkeypatch.setattr(ClassGaussians, "_of_class", lambda self, x, n: judged.append(len(x)) or whole(self, x, n))
    torch.testing.assert_close(gaussians.score(both), plain, rtol=1e-6, atol=0.1)
    assert len(both) <= sum(judged) < len(both) * len(gaussians.classes) / 2  # few were looked at again


def test_half_precision_that_is_too_coarse_is_not_trusted(monkeypatch):
    inliers, labels, outliers = features(120)
    gaussians = ClassGaussians(inliers, labels)
    monkeypatch.setattr("rince.evaluation.outliers.multiplies_bfloat16", lambda: False)
    plain = gaussians.score(outliers)
    monkeypatch.setattr("rince.evaluation.outliers.multiplies_bfloat16", lambda: True)
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda self: (self * 1.1).to(torch.bfloat16))
    assert gaussians._screened_score(torch.nn.functional.normalize(outliers, dim=1)) is None
    assert torch.equal(gaussians.score(outliers), plain)


def test_regularisation_is_that_of_the_mixture():
    inliers, labels, outliers = features(50)
    scores = ClassGaussians(inliers, labels, regularisation=1e-2).score(outliers).numpy()
    assert scores == pytest.approx(mixture_scores(inliers, labels, outliers, reg_covar=1e-2), rel=1e-4, abs=1e-2)


def test_tied_covariance_orders_by_the_mahalanobis_distance():
    inliers, labels, outliers = features(12)
    unit = torch.nn.functional.normalize(inliers.double(), dim=1).numpy()
    names = np.unique(labels)
    means = np.stack([unit[labels.numpy() == label].mean(0) for label in names])
    centred = unit - means[np.searchsorted(names, labels.numpy())]
    precision = np.linalg.inv(centred.T @ centred / len(centred) + 1e-6 * np.eye(12))
    test = torch.nn.functional.normalize(outliers.double(), dim=1).numpy()
    distances = [np.einsum("nd,de,ne->n", test - mean, precision, test - mean) for mean in means]
    expected = -0.5 * np.min(distances, axis=0)
    scores = ClassGaussians(inliers, labels, covariance="tied").score(outliers).double().numpy()
    assert scores - scores.mean() == pytest.approx(expected - expected.mean(), rel=1e-3, abs=1e-2)


@pytest.mark.parametrize("dim", [12, 60], ids=["many samples", "few samples"])
def test_tied_likelihoods_are_those_of_normal_distributions(dim):
    inliers, labels, outliers = features(dim, samples=40)
    unit, test = (torch.nn.functional.normalize(each.double(), dim=1) for each in (inliers, outliers))
    means = torch.stack([unit[labels == label].mean(dim=0) for label in labels.unique()])
    centred = unit - means[torch.searchsorted(labels.unique(), labels)]
    covariance = centred.T @ centred / len(centred) + 1e-3 * torch.eye(dim, dtype=torch.float64)
    expected = torch.stack(
        [torch.distributions.MultivariateNormal(mean, covariance).log_prob(test) for mean in means], dim=1
    )
    found = ClassGaussians(inliers, labels, covariance="tied", regularisation=1e-3).log_likelihoods(outliers)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-2)


def test_a_class_of_one_sample_is_a_ball_around_it():
    inliers, labels, outliers = features(20)
    labels = labels.clone()
    labels[0] = 99
    scores = ClassGaussians(inliers, labels, regularisation=1e-3).score(outliers)
    assert scores.isfinite().all()
    assert scores.numpy() == pytest.approx(mixture_one(inliers, labels, outliers), rel=1e-3, abs=0.1)


def mixture_one(train, labels, test):
    """As the mixture, which refuses a single sample: there the density is N(sample, εI)."""
    several = labels != 99
    rest = mixture_scores(train[several], labels[several], test, reg_covar=1e-3)
    unit = torch.nn.functional.normalize(torch.cat([train[~several], test]).double(), dim=1)
    distance = (unit[1:] - unit[0]).square().sum(1) / 1e-3
    alone = -0.5 * (20 * np.log(2 * np.pi * 1e-3) + distance.numpy())
    return np.maximum(rest, alone)


def test_equal_embeddings_and_zero_rows_have_finite_scores():
    gaussians = ClassGaussians(torch.ones(6, 4), torch.arange(6) % 2)
    assert gaussians.score(torch.tensor([[1.0, 1, 1, 1], [0, 0, 0, 0]])).isfinite().all()


def test_auroc_and_fpr_are_those_of_scikit_learn_ties_included():
    generator = torch.Generator().manual_seed(3)
    inliers = (torch.randn(200, generator=generator) + 1).mul(4).round()
    outliers = torch.randn(150, generator=generator).mul(4).round()
    truth = np.r_[np.ones(200), np.zeros(150)]
    both = torch.cat([inliers, outliers]).numpy()
    assert auroc(inliers, outliers) == pytest.approx(roc_auc_score(truth, both), abs=1e-12)
    false, true, _ = roc_curve(truth, both, drop_intermediate=False)
    for recall in (0.5, 0.95, 1.0):
        assert fpr_at_recall(inliers, outliers, recall=recall) == pytest.approx(false[np.argmax(true >= recall)])


def test_scores_that_differ_in_the_tenth_digit_are_told_apart():
    """In float32 all of these would be one number."""
    generator = np.random.default_rng(0)
    inliers, outliers = 1 + 1e-9 * (generator.permutation(300) + 40), 1 + 1e-9 * generator.permutation(300)
    truth, both = np.r_[np.ones(300), np.zeros(300)], np.r_[inliers, outliers]
    given = torch.from_numpy(inliers), torch.from_numpy(outliers)
    expected = roc_auc_score(truth, both)
    assert 0.55 < expected < 0.7
    assert auroc(*given) == pytest.approx(expected, abs=1e-12)
    false, true, _ = roc_curve(truth, both, drop_intermediate=False)
    assert fpr_at_recall(*given) == pytest.approx(false[np.argmax(true >= 0.95)], abs=1e-12)


@pytest.mark.parametrize("some", [False, True])
def test_a_sample_is_no_neighbour_of_itself(some):
    known, _, _ = features(9)
    rows = torch.arange(0, len(known), 3)
    same = torch.where(rows % 2 == 0, rows, -1) if some else rows
    unit = torch.nn.functional.normalize(known, dim=1)
    cosines = (unit[rows] @ unit.T).numpy()
    expected = [np.sort(np.delete(row, own) if own >= 0 else row)[-4] for row, own in zip(cosines, same, strict=True)]
    assert neighbour_score(known[rows], known, k=4, same=same).numpy() == pytest.approx(np.array(expected), abs=1e-6)
    with pytest.raises(ConfigError, match="that are others"):
        neighbour_score(known[rows], known, k=len(known), same=same)


def test_neighbour_score_is_the_cosine_of_the_kth_neighbour():
    inliers, _, outliers = features(9)
    distances, _ = NearestNeighbors(n_neighbors=5, metric="cosine").fit(inliers).kneighbors(outliers)
    assert neighbour_score(outliers, inliers, k=5).numpy() == pytest.approx(1 - distances[:, -1], abs=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda f, y: ClassGaussians(f, y, covariance="diagonal"), ConfigError, "'full' or 'tied', got 'diagonal'"),
        (lambda f, y: ClassGaussians(f, y, regularisation=0), ConfigError, "must be positive"),
        (lambda f, y: ClassGaussians(f, y[:-1]), ShapeError, "labels must hold one integer"),
        (lambda f, y: ClassGaussians(f, y).score(f[:, :3]), ShapeError, "vectors of length 9, got 3"),
        (lambda f, y: neighbour_score(f, f, k=0), ConfigError, "k must be a whole number, at least 1; got 0"),
        (lambda f, y: neighbour_score(f, f[:, :3]), ShapeError, "must have one length, got 9 and 3"),
        (lambda f, y: auroc(torch.empty(0), torch.ones(3)), DataError, "inlier_scores is empty"),
        (lambda f, y: auroc(f, torch.ones(3)), ShapeError, "inlier_scores must be one real number per sample"),
        (lambda f, y: fpr_at_recall(f[:, 0], f[:, 0], recall=0), ConfigError, "recall must be above 0"),
        (lambda f, y: auroc(torch.tensor([float("nan")]), torch.ones(3)), DataError, "NaN or infinity"),
    ],
)
def test_bad_input_is_named(call, error, match):
    inliers, labels, _ = features(9)
    with pytest.raises(error, match=match):
        call(inliers, labels)


@pytest.mark.parametrize("steps", [3, 1000])  # with many ties, and with few
def test_shares_below_are_the_auroc_of_each_inlier(steps):
    draws = np.random.default_rng(steps)
    inliers, outliers = draws.integers(0, steps, 70) / 8.0, draws.integers(0, steps, 90) / 8.0 - 0.125 * steps / 4
    shares = shares_below(torch.tensor(inliers), torch.tensor(outliers))
    expected = [np.mean((outliers < one) + 0.5 * (outliers == one)) for one in inliers]
    assert shares.tolist() == pytest.approx(expected, abs=1e-12)
    whole = roc_auc_score(np.repeat([1, 0], [70, 90]), np.concatenate([inliers, outliers]))
    assert float(shares.mean()) == pytest.approx(whole, abs=1e-12)
    alone = [roc_auc_score([1] + 90 * [0], [one, *outliers]) for one in inliers]
    assert shares.tolist() == pytest.approx(alone, abs=1e-12)


def test_outliers_are_the_test_samples_of_their_data(tmp_path):
    """And not the training samples, of which there are more."""
    recipe = load_recipe("demo/rince-in")
    found = recipe.data.outliers("fashion", recipe.views)
    assert found.fingerprint == load_images("fashion", recipe.data.test_split).fingerprint
    assert found.fingerprint != load_images("fashion", recipe.data.train_split).fingerprint
    for split in ("train", "test"):
        for number in range(2):
            (tmp_path / split / "some").mkdir(parents=True, exist_ok=True)
            Image.new("L", (8, 8), number).save(tmp_path / split / "some" / f"{split}{number}.png")
    found = recipe.data.outliers(str(tmp_path), recipe.views)
    assert sorted(found.name(row).rpartition("/")[2] for row in range(len(found))) == ["test0.png", "test1.png"]
