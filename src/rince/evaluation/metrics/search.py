"""Search: test samples look for training samples, level by level and rank by rank."""

from __future__ import annotations

from torch import Tensor

from rince.evaluation.evidence import Evidence
from rince.evaluation.metrics.metric import PERCENT, PLAIN, Measure, Metric, Unit
from rince.evaluation.retrieval import RankedRetrieval, hits_among

RETRIEVAL = "queries: test set, gallery: training set; {vectors}, cosine; "
FIRST = RETRIEVAL + "the nearest item has the query's own label"
FIVE = RETRIEVAL + "an item of the query's own label among the 5 nearest"
AVERAGE = RETRIEVAL + "mean average precision over the whole gallery"
GAIN = RETRIEVAL + "gain R + 1 - rank, whole gallery; ranks: "
ORDER = RETRIEVAL + "share of pairs of two ranks in the right order, mean over ranks and queries; ranks: "
OF_LEVELS, OF_TRAINING = "from the levels of the taxonomy", "those of training, {ranks}"
SAME, LEVELS, TRAINED = "Same {}", "Order of ranks", "Order of trained ranks"


def _recall(k: int) -> Measure:
    def measure(evidence: Evidence) -> dict[str, Tensor]:
        train, test = evidence.train, evidence.test
        if k > len(train.features):
            return {}
        near = evidence.nearest[:, :k]
        return {
            level: hits_among(near, query_labels=labels, gallery_labels=train.levels[level], same=test.same)
            for level, labels in test.levels.items()
        }

    return measure


def _gain(found: RankedRetrieval | None) -> dict[str, Tensor]:
    return {"": found.ndcg} if found else {}


def _order(found: RankedRetrieval | None) -> dict[str, Tensor]:
    return {"": found.order_accuracy} if found else {}


def _metric(
    pattern: str, heading: str, unit: Unit, protocol: str, measure: Measure, group: str = "", column: str = ""
) -> Metric:
    return Metric(pattern, heading, "up", unit, protocol, measure, group, column, both_places=True)


RECALL = _metric("retrieval/{}/recall@1", "R@1", PERCENT, FIRST, _recall(1), SAME)
MAP = _metric("retrieval/{}/map", "mAP", PLAIN, AVERAGE, lambda e: e.average_precisions, SAME)
METRICS = (
    RECALL,
    _metric("retrieval/{}/recall@5", "R@5", PERCENT, FIVE, _recall(5)),
    MAP,
    _metric("ranking/ndcg", "NDCG", PLAIN, GAIN + OF_LEVELS, lambda e: _gain(e.ranked), LEVELS),
    _metric(
        "ranking/order_accuracy",
        "rank order",
        PERCENT,
        ORDER + OF_LEVELS,
        lambda e: _order(e.ranked),
        LEVELS,
        "in order",
    ),
    _metric(
        "ranking/trained/ndcg",
        "NDCG, trained ranks",
        PLAIN,
        GAIN + OF_TRAINING,
        lambda e: _gain(e.ranked_as_trained),
        TRAINED,
        "NDCG",
    ),
    _metric(
        "ranking/trained/order_accuracy",
        "rank order, trained ranks",
        PERCENT,
        ORDER + OF_TRAINING,
        lambda e: _order(e.ranked_as_trained),
        TRAINED,
        "in order",
    ),
)
