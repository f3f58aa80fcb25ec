"""All numbers of a pair of train and test sets, and what figures are drawn from. Knows vectors and labels only."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rince.errors import ConfigError
from rince.evaluation.geometry import alignment, class_similarity, uniformity
from rince.evaluation.outliers import ClassGaussians, auroc, fpr_at_recall, neighbour_score
from rince.evaluation.probe import Protocol, linear_probe
from rince.evaluation.retrieval import ranked_retrieval, recall_at_k
from rince.evaluation.samples import Samples, ranks_of

NEIGHBOUR = 50
BINS = 60
Tell = Callable[[str, int, int], None]
"""Is called with (what is going on, done, of how many)."""

RETRIEVAL = "queries: test set, gallery: training set; features before the head, cosine"
PROTOCOLS = {
    "probe/fast": "logistic regression on standardised features, computed once; λ = 1e-4, L-BFGS to convergence",
    "probe/paper": "SGD, learning rate 5, momentum 0.9, batch 512, 100 epochs, ×0.2 after 60, 75, 90; crop and flip "
    "drawn anew every epoch; accuracy after the last epoch",
    "retrieval/recall@k": RETRIEVAL + "; an item of the query's own label among the k nearest",
    "retrieval/map": RETRIEVAL + "; mean average precision over the whole gallery",
    "ranking/ndcg": RETRIEVAL + "; gain R + 1 - rank, whole gallery",
    "ranking/order_accuracy": RETRIEVAL
    + "; share of pairs of two ranks in the right order, mean over ranks and queries",
    "outliers/auroc": "one full-covariance Gaussian per class on normalised training features, ε = 1e-6; score: "
    "largest log-likelihood; inliers: test set",
    "outliers/fpr@95": "share of outliers accepted where 95 % of the inliers are; same score",
    "outliers/auroc_tied": "the same with one covariance for all classes (Mahalanobis)",
    "outliers/auroc_neighbours": f"score: cosine with the {NEIGHBOUR}th nearest training feature",
    "geometry/alignment": "mean squared distance of test samples of one label; normalised features before the head",
    "geometry/uniformity": "log mean exp(-2 d²) over pairs of test samples; normalised features before the head",
    "geometry/similarity": "mean cosine of test samples of two classes, by their rank, before and after the head",
}


def nobody(*_: object) -> None:
    """Is told how far something is, and does not listen."""


def by_name(sources: Sequence[str], name_of: Callable[[str], str], what: str) -> dict[str, str]:
    """Sources by the short name that their metrics carry; two of one name are refused."""
    named: dict[str, str] = {}
    for source in sources:
        name = name_of(source)
        if name in named:
            raise ConfigError(f"two {what} are called {name!r}: {named[name]} and {source}; rename one")
        named[name] = source
    return named


class Verdict(NamedTuple):
    """What there is to say about an embedding."""

    metrics: dict[str, float]
    """Flat names to numbers."""
    protocol: dict[str, str]
    """How each kind of number was made."""
    figures: dict[str, Any]
    """Plain values that figures are drawn from."""


def judge(
    train: Samples,
    test: Samples,
    *,
    outliers: dict[str, Tensor] | None = None,
    probe: Protocol = "fast",
    epoch_features: Callable[[int], Tensor] | None = None,
    tell: Tell = nobody,
) -> Verdict:
    """Judges features of a test set against those of a training set.

    Args:
        train: gallery, what the probe and the Gaussians learn from.
        test: queries and inliers.
        outliers: name → `(samples, dim)` features of things that are of no class.
        probe: which protocol.
        epoch_features: for the paper's probe, the training features of an epoch; without, they stay the same.
        tell: is told how far it is.
    """
    outliers = outliers or {}
    metrics: dict[str, float] = {}
    figures: dict[str, Any] = {"curves": {}, "outliers": {}, "class_similarity": {}}
    steps = 1 + len(train.levels) + 1 + (3 if outliers else 0) + 2
    done = 0

    def next_step(what: str) -> None:
        nonlocal done
        tell(what, done, steps)
        done += 1

    next_step("probe")
    result = linear_probe(
        epoch_features or train.features if probe == "paper" else train.features,
        test.features,
        train_labels=train.labels,
        test_labels=test.labels,
        protocol=probe,
        progress=lambda now, of: tell(f"probe {now}/{of}", done, steps),
    )
    metrics["probe/accuracy"] = result.accuracy
    if probe == "paper":
        metrics["probe/best_test_accuracy"] = result.best_test_accuracy
        metrics["probe/best_test_epoch"] = result.best_test_epoch
    _judge_retrieval(train, test, metrics, figures, next_step)
    if outliers:
        _judge_outliers(train, test, outliers, metrics, figures, next_step)
    _judge_geometry(train, test, metrics, figures, next_step)
    tell("done", steps, steps)
    used = {f"probe/{probe}", *(name for name in PROTOCOLS if not name.startswith(("probe/", "outliers/")))}
    used |= {name for name in PROTOCOLS if name.startswith("outliers/") and outliers}
    return Verdict(metrics, {name: text for name, text in PROTOCOLS.items() if name in used}, figures)


def _judge_retrieval(
    train: Samples,
    test: Samples,
    metrics: dict[str, float],
    figures: dict[str, Any],
    next_step: Callable[[str], None],
) -> None:
    for level, query_labels in test.levels.items():
        next_step(f"recall, {level}")
        for k in (1, 5):
            if k <= len(train.features):
                metrics[f"retrieval/{level}/recall@{k}"] = recall_at_k(
                    test.features, train.features, query_labels=query_labels, gallery_labels=train.levels[level], k=k
                )
    next_step("ranking")
    found = ranked_retrieval(
        test.features,
        train.features,
        query_labels=test.labels,
        gallery_labels=train.labels,
        rank_source=ranks_of(train, test),
    )
    # The items of ranks 1 to i are those that share the query's group at level i; levels above the highest rank have
    # the groups of the last one.
    for number, level in enumerate(test.levels):
        curve = found.curves[min(number, len(found.curves) - 1)]
        metrics[f"retrieval/{level}/map"] = curve.average
        figures["curves"][level] = {"recall": _plain(curve.recall), "precision": _plain(curve.precision)}
    metrics["ranking/ndcg"], metrics["ranking/order_accuracy"] = found.ndcg, found.order_accuracy


def _judge_geometry(
    train: Samples,
    test: Samples,
    metrics: dict[str, float],
    figures: dict[str, Any],
    next_step: Callable[[str], None],
) -> None:
    next_step("geometry")
    if len(test.features) > 1:
        metrics["geometry/uniformity"] = uniformity(test.features)
    for level, level_labels in test.levels.items():
        if len(level_labels.unique()) < len(level_labels):  # else there is no pair of one label to measure
            metrics[f"geometry/{level}/alignment"] = alignment(test.features, level_labels)
    next_step("similarity of classes")
    table = ranks_of(train, test).table
    for place, vectors in (("before", test.features), ("after", test.embeddings)):
        if vectors is not None:
            similarity = class_similarity(vectors, test.labels)
            figures["class_similarity"][place] = _plain(similarity)
            metrics.update(_similarity_by_rank(similarity, table, test.labels, place))


def _judge_outliers(
    train: Samples,
    test: Samples,
    outliers: dict[str, Tensor],
    metrics: dict[str, float],
    figures: dict[str, Any],
    next_step: Callable[[str], None],
) -> None:
    k = min(NEIGHBOUR, len(train.features))
    next_step("Gaussians")
    full = ClassGaussians(train.features, train.labels)
    tied = ClassGaussians(train.features, train.labels, covariance="tied")
    scores: dict[str, Callable[[Tensor], Tensor]] = {
        "": full.score,
        "_tied": tied.score,
        "_neighbours": lambda features: neighbour_score(features, train.features, k=k),
    }
    next_step("inlier scores")
    inliers = {name: score(test.features) for name, score in scores.items()}
    next_step("outlier scores")
    for outlier, features in outliers.items():
        for name, score in scores.items():
            found = score(features)
            metrics[f"outliers/{outlier}/auroc{name}"] = auroc(inliers[name], found)
            if name == "":
                metrics[f"outliers/{outlier}/fpr@95"] = fpr_at_recall(inliers[name], found)
                figures["outliers"][outlier] = _score_figure(inliers[name], found)


def _score_figure(inliers: Tensor, outliers: Tensor) -> dict[str, Any]:
    """Histograms of both scores on common bins, and the ROC curve at 201 points."""
    both = torch.cat([inliers, outliers]).double()
    low, high = (float(both.quantile(q)) for q in (0.005, 0.995))  # a few far scores would flatten all bins
    edges = torch.linspace(low, high if high > low else low + 1, BINS + 1, dtype=torch.float64)
    counts = [
        torch.histogram(scores.double().clamp(edges[0], edges[-1]), edges).hist / len(scores)
        for scores in (inliers, outliers)
    ]
    false = torch.linspace(0, 1, 201, dtype=torch.float64)
    thresholds = (
        outliers.double()
        .sort(descending=True)
        .values[(false * len(outliers)).ceil().long().clamp(1, len(outliers)) - 1]
    )
    true = (inliers.double()[None] >= thresholds[:, None]).double().mean(dim=1)
    true[0] = 0
    return {
        "edges": _plain(edges),
        "inliers": _plain(counts[0]),
        "outliers": _plain(counts[1]),
        "roc": {"false": _plain(false), "true": _plain(true)},
    }


def _similarity_by_rank(similarity: Tensor, table: Tensor, labels: Tensor, place: str) -> dict[str, float]:
    """Mean of a class similarity matrix over the pairs of classes of each rank; 0 is the negatives."""
    classes = labels.unique()
    ranks = table[classes][:, classes]
    found = {}
    for rank in sorted(set(ranks.flatten().tolist())):
        values = similarity[(ranks == rank) & similarity.isfinite()]
        if len(values):
            name = "negatives" if rank == 0 else f"rank{rank}"
            found[f"geometry/similarity/{place}/{name}"] = float(values.mean())
    return found


def _plain(values: Tensor) -> Any:
    """Nested lists of numbers to five digits; NaN as None, which JSON knows."""
    if values.ndim > 1:
        return [_plain(row) for row in values]
    return [None if math.isnan(value) else float(f"{value:.5g}") for value in values.tolist()]
