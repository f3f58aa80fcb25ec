"""Detection of outliers: samples of no class against the test set, by three inlier scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

from rince.evaluation.evidence import Evidence, Scores
from rince.evaluation.metrics.metric import PERCENT, Direction, Measure, Metric
from rince.evaluation.outliers import fpr_at_recall, shares_below

GAUSSIANS = (
    "one full-covariance Gaussian per class on the normalised training set, ε = 1e-6; score: largest log-likelihood; "
    "inliers: test set; {vectors}"
)
FALSE = "share of outliers accepted where 95 % of the inliers are; score as of outliers/auroc; {vectors}"
TIED = "as outliers/auroc with one covariance for all classes (Mahalanobis); {vectors}"
NEAR = "score: cosine with the {neighbour}th nearest of the training set; {vectors}"
Number = TypeVar("Number", float, Tensor)


def _each(
    scores_of: Callable[[Evidence], Scores], number: Callable[[Evidence, Tensor, Tensor], Number]
) -> Callable[[Evidence], dict[str, Number]]:
    """One number for each set of outliers, or one for each inlier; no scores are made where there are none."""

    def measure(evidence: Evidence) -> dict[str, Number]:
        if not evidence.outliers:
            return {}
        scores = scores_of(evidence)
        return {name: number(evidence, scores.inliers, found) for name, found in scores.outliers.items()}

    return measure


def _auroc(evidence: Evidence, inliers: Tensor, outliers: Tensor) -> Tensor:
    return evidence.counted(shares_below(inliers, outliers))


def _false(evidence: Evidence, inliers: Tensor, outliers: Tensor) -> float:
    return fpr_at_recall(inliers[evidence.known.to(inliers.device)], outliers)


def _metric(leaf: str, heading: str, direction: Direction, protocol: str, measure: Measure, group: str = "") -> Metric:
    return Metric(f"outliers/{{}}/{leaf}", heading, direction, PERCENT, protocol, measure, group, both_places=True)


AUROC = _metric("auroc", "AUROC", "up", GAUSSIANS, _each(lambda e: e.gaussian, _auroc), "Outliers: {}")
METRICS = (
    AUROC,
    _metric("fpr@95", "FPR@95", "down", FALSE, _each(lambda e: e.gaussian, _false)),
    _metric("auroc_tied", "AUROC, tied", "up", TIED, _each(lambda e: e.tied, _auroc)),
    _metric("auroc_neighbours", "AUROC, neighbours", "up", NEAR, _each(lambda e: e.near, _auroc)),
)
