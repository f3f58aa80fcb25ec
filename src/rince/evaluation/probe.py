"""The linear probe: how well a linear classifier on frozen features does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rince.devices import in_float64
from rince.errors import ConfigError, DataError
from rince.evaluation.vectors import check_labels, check_vectors, finite_vectors, share
from rince.inputs import Numbers, as_tensor, finite_number

ProbeKind = Literal["fast", "paper"]
# The paper's protocol on CIFAR-100.
EPOCHS, BATCH, RATE, MOMENTUM, MILESTONES, DECAY = 100, 512, 5.0, 0.9, (60, 75, 90), 0.2


class ProbeResult(NamedTuple):
    """What a probe reached on the test set."""

    accuracy: float
    """Share of right answers after the last epoch, from 0 to 1: the number to report."""
    best_test_accuracy: float
    """The largest after any epoch: chosen by looking at the test set, which flatters."""
    best_test_epoch: int
    """When that was, counted from 1."""
    right: Tensor
    """`(test,)` bools: the samples whose share `accuracy` is."""


@torch.inference_mode(False)  # it learns, with gradients, whatever mode it is called in
def linear_probe(
    train_features: Numbers | Callable[[int], Numbers],
    test_features: Numbers,
    *,
    train_labels: Numbers,
    test_labels: Numbers,
    protocol: ProbeKind = "fast",
    l2: float = 1e-4,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> ProbeResult:
    """Trains a linear classifier on features, on the device of the test features. Higher is better, from 0 to 1.

    - `"fast"`: multinomial logistic regression on standardised features, by L-BFGS until it converges. Oracle:
      scikit-learn's `LogisticRegression`.
    - `"paper"`: SGD with learning rate 5, momentum 0.9 and no weight decay, batches of 512, 100 epochs, the rate times
      0.2 after epochs 60, 75 and 90, features as they are. Oracle: the same with torch's own optimizer and schedule.

    Args:
        train_features: `(train, dim)`; for `"paper"` also a function from the epoch (from 0) to such a matrix, so that
            every epoch has its own crops.
        test_features: `(test, dim)`.
        train_labels: `(train,)`.
        test_labels: `(test,)`.
        protocol: `"fast"` or `"paper"`.
        l2: of `"fast"`: λ in mean cross-entropy + λ/2 ‖weights‖².
        seed: of `"paper"`: first weights and order.
        progress: called with (epochs or iterations done, of how many at most).
    """
    if protocol not in get_args(ProbeKind):
        raise ConfigError(f"protocol must be 'fast' or 'paper', got {protocol!r}")
    l2 = finite_number(l2, "l2", lowest=0)
    test = finite_vectors(test_features, "test_features")
    test_labels = check_labels(test_labels, test, "test_labels")
    # Labels may have gaps; the classifier has an output for every label of the training set.
    given = as_tensor(train_labels, "train_labels")
    classes, targets = check_labels(given, given.flatten(), "train_labels").unique(return_inverse=True)
    if len(classes) < 2:
        raise DataError(f"a probe needs two classes, got labels of {len(classes)}")
    classes, targets = classes.to(test.device), targets.to(test.device)
    place = torch.searchsorted(classes, test_labels).clamp(max=len(classes) - 1)
    answers = torch.where(classes[place] == test_labels, place, -1)  # a class never trained on is never right
    if protocol == "paper":
        test = check_vectors(test, "test_features")
        return _paper(train_features, test, targets, answers, len(classes), seed, progress)
    if callable(train_features):
        raise ConfigError("the fast probe computes features once; give it a matrix, not a function of the epoch")
    train = finite_vectors(as_tensor(train_features, "train_features").to(test.device), "train_features")
    check_labels(targets, train, "train_labels")
    return _converged(*_of_usual_size(train, test), targets, answers, len(classes), l2, progress)


def _of_usual_size(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Both in float32, divided by one power of two: standardised they are the same, and no square is lost."""
    largest = float(torch.linalg.vector_norm(train, ord=torch.inf))
    size = math.ldexp(1.0, math.frexp(largest)[1])
    return check_vectors(train / size, "train_features"), check_vectors(test / size, "test_features")


def _converged(
    train: Tensor,
    test: Tensor,
    targets: Tensor,
    answers: Tensor,
    classes: int,
    l2: float,
    progress: Callable[[int, int], None] | None,
    limit: int = 500,
) -> ProbeResult:
    mean, std = train.mean(dim=0), train.std(dim=0, correction=0).clamp(min=1e-6)
    train, test = (train - mean) / std, (test - mean) / std
    # Where the loss is about as steep in all directions, half as many steps lead to the same classifier (157 for 365 on
    # features of CIFAR-100, 73 s for 151 s): the penalty is still that of the weights on standardised features.
    even = _even_steepness(train, l2 * classes)
    train, test = train @ even, test @ even
    weight = torch.zeros(classes, train.shape[1], device=train.device, requires_grad=True)
    bias = torch.zeros(classes, device=train.device, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight, bias], max_iter=20, tolerance_grad=1e-5, tolerance_change=1e-9, line_search_fn="strong_wolfe"
    )

    def objective() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(F.linear(train, weight, bias), targets) + l2 / 2 * (weight @ even).square().sum()
        loss.backward()
        return loss.detach()

    before, done = float("inf"), 0
    while done < limit:
        now = float(optimizer.step(objective))
        done = optimizer.state[weight]["n_iter"]
        if progress:
            progress(min(done, limit), limit)
        gradient = max(float(p.grad.abs().max()) for p in (weight, bias) if p.grad is not None)
        if gradient <= 1e-5 or abs(before - now) <= 1e-6 * abs(now):
            break
        before = now
    with torch.no_grad():
        right = F.linear(test, weight, bias).argmax(dim=1) == answers
    return ProbeResult(share(right), share(right), done, right)


def _even_steepness(standardised: Tensor, ridge: float) -> Tensor:
    """`(dim, dim)`: (C + ridge)^-½ of the covariance C; at the start, cross-entropy has the Hessian C / classes.

    Args:
        standardised: `(samples, dim)`.
        ridge: what the penalty adds to that Hessian, times the classes.
    """
    covariance = in_float64(standardised.T @ standardised / len(standardised))
    sizes, directions = torch.linalg.eigh(covariance)
    even: Tensor = (directions * (sizes + ridge).clamp(min=1e-6).rsqrt()) @ directions.T
    return even.to(standardised.device, standardised.dtype)


def _paper(
    train: Numbers | Callable[[int], Numbers],
    test: Tensor,
    targets: Tensor,
    answers: Tensor,
    classes: int,
    seed: int,
    progress: Callable[[int, int], None] | None,
) -> ProbeResult:
    generator = torch.Generator().manual_seed(seed)  # of the CPU: the same start and order on every device
    probe = nn.Linear(test.shape[1], classes)
    bound = test.shape[1] ** -0.5  # torch's own start of a linear layer, from our generator
    with torch.no_grad():
        for parameter in probe.parameters():
            parameter.uniform_(-bound, bound, generator=generator)
    probe.to(test.device)
    optimizer = torch.optim.SGD(probe.parameters(), lr=RATE, momentum=MOMENTUM)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, MILESTONES, DECAY)
    accuracies = []
    for epoch in range(EPOCHS):
        with torch.no_grad():
            features = as_tensor(train(epoch) if callable(train) else train, "train_features")
        features = check_vectors(features.to(test.device), "train_features")
        check_labels(targets, features, "train_labels")
        for rows in torch.randperm(len(features), generator=generator).to(test.device).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(probe(features[rows]), targets[rows]).backward()
            optimizer.step()
        schedule.step()
        with torch.no_grad():
            right = probe(test).argmax(dim=1) == answers
        accuracies.append(share(right))
        if progress:
            progress(epoch + 1, EPOCHS)
    if not all(parameter.isfinite().all() for parameter in probe.parameters()):
        raise DataError("the paper's probe takes features as they are, and diverged on these; use the fast one")
    best = max(range(EPOCHS), key=accuracies.__getitem__)
    return ProbeResult(accuracies[-1], accuracies[best], best + 1, right)
