"""The linear probe against scikit-learn, and against a plain loop with torch's own parts."""

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from rince import ConfigError, DataError, ShapeError
from rince.evaluation import linear_probe


def data(train=700, test=300, dim=10, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 6, (train + test,), generator=generator) * 3
    means = torch.randn(20, dim, generator=generator)
    scale = torch.logspace(-1, 1, dim)
    features = (means[labels] + 1.3 * torch.randn(train + test, dim, generator=generator)) * scale + 2
    given = {"train_labels": labels[:train], "test_labels": labels[train:]}
    return features[:train], features[train:], given


def test_the_fast_probe_is_converged_logistic_regression():
    train, test, labels = data()
    scaler = StandardScaler().fit(train)
    reference = LogisticRegression(C=1 / (1e-4 * len(train)), max_iter=5000, tol=1e-8)
    reference.fit(scaler.transform(train), labels["train_labels"])
    expected = reference.score(scaler.transform(test), labels["test_labels"])
    assert 0.3 < expected < 0.95
    result = linear_probe(train, test, **labels)
    assert result.accuracy == pytest.approx(expected, abs=0.0034)  # one test sample
    assert result.best_test_accuracy == result.accuracy


def test_the_penalty_is_of_the_weights_on_standardised_features():
    train, test, labels = data(test=4000)
    mixed = torch.randn(10, 10, generator=torch.Generator().manual_seed(1)) ** 3  # features that go together
    train, test = train @ mixed, test @ mixed
    scaler = StandardScaler().fit(train)
    reference = LogisticRegression(C=1 / (0.3 * len(train)), max_iter=5000, tol=1e-8)
    reference.fit(scaler.transform(train), labels["train_labels"])
    expected = reference.predict(scaler.transform(test)) == labels["test_labels"].numpy()
    right = linear_probe(train, test, **labels, l2=0.3).right
    assert (right.numpy() != expected).mean() < 0.002


def test_the_test_set_is_measured_by_the_training_set():
    """A test set of other classes' shares, or elsewhere, is not moved to where the training set was."""
    train, test, labels = data()
    test = test * 1.5 + 4
    scaler = StandardScaler().fit(train)
    reference = LogisticRegression(C=1 / (1e-4 * len(train)), max_iter=5000, tol=1e-8)
    reference.fit(scaler.transform(train), labels["train_labels"])
    expected = reference.score(scaler.transform(test), labels["test_labels"])
    moved = reference.score(StandardScaler().fit_transform(test), labels["test_labels"])
    assert abs(expected - moved) > 0.1
    assert linear_probe(train, test, **labels).accuracy == pytest.approx(expected, abs=0.0034)


def test_the_papers_probe_is_sgd_with_its_schedule():
    train, test, labels = data()
    shrink = 0.1 / train.std(0)  # so that a rate of 5 does not amplify the last bit
    train, test = (train - 2) * shrink, (test - 2) * shrink
    result = linear_probe(train, test, **labels, protocol="paper", seed=7)
    generator = torch.Generator().manual_seed(7)
    weight = torch.empty(6, 10).uniform_(-(10**-0.5), 10**-0.5, generator=generator)
    bias = torch.empty(6).uniform_(-(10**-0.5), 10**-0.5, generator=generator)
    momentum_w, momentum_b, rate = torch.zeros_like(weight), torch.zeros_like(bias), 5.0
    targets, answers = labels["train_labels"] // 3, labels["test_labels"] // 3
    accuracies = []
    for epoch in range(100):
        if epoch in (60, 75, 90):
            rate *= 0.2
        for rows in torch.randperm(700, generator=generator).split(512):
            x = train[rows]
            error = torch.softmax(x @ weight.T + bias, 1) - torch.eye(6)[targets[rows]]
            momentum_w = 0.9 * momentum_w + error.T @ x / len(rows)
            momentum_b = 0.9 * momentum_b + error.mean(0)
            weight, bias = weight - rate * momentum_w, bias - rate * momentum_b
        accuracies.append(((test @ weight.T + bias).argmax(1) == answers).double().mean().item())
    assert result.accuracy == pytest.approx(accuracies[-1], abs=0.0034)
    assert result.best_test_accuracy == pytest.approx(max(accuracies), abs=0.0034)
    assert max(accuracies) > accuracies[-1] + 0.0034  # or the best could be the last
    assert accuracies[result.best_test_epoch - 1] == pytest.approx(max(accuracies), abs=0.0034)


def test_the_papers_probe_asks_for_the_features_of_every_epoch():
    train, test, labels = data()
    asked = []
    seen = []
    linear_probe(
        lambda epoch: asked.append(epoch) or train,
        test,
        **labels,
        protocol="paper",
        progress=lambda done, of: seen.append((done, of)),
    )
    assert asked == list(range(100))
    assert seen[-1] == (100, 100)


def test_a_class_that_was_never_trained_on_is_never_right():
    train, test, labels = data()
    labels["test_labels"] = labels["test_labels"] * 0 + 4
    assert linear_probe(train, test, **labels).accuracy == 0


def test_a_constant_feature_does_no_harm():
    train, test, labels = data()
    train[:, 0] = test[:, 0] = 5
    assert linear_probe(train, test, **labels).accuracy > 0.3


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"protocol": "slow"}, ConfigError, "'fast' or 'paper', got 'slow'"),
        ({"train_labels": torch.zeros(700, dtype=torch.long)}, DataError, "two classes"),
        ({"train_labels": torch.arange(699)}, ShapeError, "train_labels must hold one integer"),
        ({"test_labels": torch.arange(3)}, ShapeError, "test_labels must hold one integer"),
    ],
)
def test_bad_input_is_named(change, error, match):
    train, test, labels = data()
    with pytest.raises(error, match=match):
        linear_probe(train, test, **(labels | change))


def test_the_fast_probe_wants_a_matrix():
    train, test, labels = data()
    with pytest.raises(ConfigError, match="not a function"):
        linear_probe(lambda epoch: train, test, **labels)
