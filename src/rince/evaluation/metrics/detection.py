"""Detection of outliers: samples of no class against the test set, by three inlier scores."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from rince.evaluation.evidence import Evidence, Scores
from rince.evaluation.metrics.metric import PERCENT, Measure, Metric
from rince.evaluation.outliers import auroc, fpr_at_recall

GAUSSIANS = (
    "one full-covariance Gaussian per class on normalised training features, ε = 1e-6; score: largest log-likelihood; "
    "inliers: test set"
)
FALSE = "share of outliers accepted where 95 % of the inliers are; score as of outliers/auroc"
TIED = "as outliers/auroc with one covariance for all classes (Mahalanobis)"
NEAR = "score: cosine with the {neighbour}th nearest training feature"


def _each(scores_of: Callable[[Evidence], Scores], number: Callable[[Tensor, Tensor], float]) -> Measure:
    """One number for each set of outliers; no scores are made where there are none."""

    def measure(evidence: Evidence) -> dict[str, float]:
        if not evidence.outliers:
            return {}
        scores = scores_of(evidence)
        return {name: number(scores.inliers, found) for name, found in scores.outliers.items()}

    return measure


AUROC = Metric(
    "outliers/{}/auroc", "AUROC", "up", PERCENT, GAUSSIANS, _each(lambda e: e.gaussian, auroc), "Outliers: {}"
)
METRICS = (
    AUROC,
    Metric("outliers/{}/fpr@95", "FPR@95", "down", PERCENT, FALSE, _each(lambda e: e.gaussian, fpr_at_recall)),
    Metric("outliers/{}/auroc_tied", "AUROC, tied", "up", PERCENT, TIED, _each(lambda e: e.tied, auroc)),
    Metric("outliers/{}/auroc_neighbours", "AUROC, neighbours", "up", PERCENT, NEAR, _each(lambda e: e.near, auroc)),
)
