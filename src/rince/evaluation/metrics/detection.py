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


def _each(scores_of: Callable[[Evidence], Scores], number: Callable[[Tensor, Tensor], float]) -> Measure:
    """One number for each set of outliers; no scores are made where there are none."""

    def measure(evidence: Evidence) -> dict[str, float]:
        if not evidence.outliers:
            return {}
        scores = scores_of(evidence)
        return {name: number(scores.inliers, found) for name, found in scores.outliers.items()}

    return measure


AUROC = Metric(
    pattern="outliers/{}/auroc",
    heading="AUROC",
    direction="up",
    unit=PERCENT,
    protocol=GAUSSIANS,
    measure=_each(lambda evidence: evidence.gaussian, auroc),
    group="Outliers: {}",
)
METRICS = (
    AUROC,
    Metric(
        pattern="outliers/{}/fpr@95",
        heading="FPR@95",
        direction="down",
        unit=PERCENT,
        protocol="share of outliers accepted where 95 % of the inliers are; score as of outliers/auroc",
        measure=_each(lambda evidence: evidence.gaussian, fpr_at_recall),
    ),
    Metric(
        pattern="outliers/{}/auroc_tied",
        heading="AUROC, tied",
        direction="up",
        unit=PERCENT,
        protocol="as outliers/auroc with one covariance for all classes (Mahalanobis)",
        measure=_each(lambda evidence: evidence.tied, auroc),
    ),
    Metric(
        pattern="outliers/{}/auroc_neighbours",
        heading="AUROC, neighbours",
        direction="up",
        unit=PERCENT,
        protocol="score: cosine with the {neighbour}th nearest training feature",
        measure=_each(lambda evidence: evidence.near, auroc),
    ),
)
