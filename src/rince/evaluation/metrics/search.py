"""Search: test samples look for training samples, level by level and rank by rank."""

from __future__ import annotations

from rince.evaluation.evidence import Evidence
from rince.evaluation.metrics.metric import PERCENT, PLAIN, Measure, Metric
from rince.evaluation.retrieval import RankedRetrieval, recall_at_k

RETRIEVAL = "queries: test set, gallery: training set; features before the head, cosine; "
FIRST = RETRIEVAL + "the nearest item has the query's own label"
FIVE = RETRIEVAL + "an item of the query's own label among the 5 nearest"
AVERAGE = RETRIEVAL + "mean average precision over the whole gallery"
GAIN = RETRIEVAL + "gain R + 1 - rank, whole gallery; ranks: "
ORDER = RETRIEVAL + "share of pairs of two ranks in the right order, mean over ranks and queries; ranks: "
OF_LEVELS, OF_TRAINING = "from the levels of the taxonomy", "those of training, {ranks}"
SAME, LEVELS, TRAINED = "Same {}", "Order of ranks", "Order of trained ranks"


def _recall(k: int) -> Measure:
    def measure(evidence: Evidence) -> dict[str, float]:
        train, test = evidence.train, evidence.test
        return {
            level: recall_at_k(
                test.features,
                train.features,
                query_labels=labels,
                gallery_labels=train.levels[level],
                k=k,
                same=test.same,
            )
            for level, labels in test.levels.items()
            if k <= len(train.features)
        }

    return measure


def _average_precision(evidence: Evidence) -> dict[str, float]:
    return {level: curve.average for level, curve in evidence.curves.items()}


def _gain(found: RankedRetrieval | None) -> dict[str, float]:
    return {"": found.ndcg} if found else {}


def _order(found: RankedRetrieval | None) -> dict[str, float]:
    return {"": found.order_accuracy} if found else {}


MAP = Metric("retrieval/{}/map", "mAP", "up", PLAIN, AVERAGE, _average_precision, SAME)
METRICS = (
    Metric("retrieval/{}/recall@1", "R@1", "up", PERCENT, FIRST, _recall(1), SAME),
    Metric("retrieval/{}/recall@5", "R@5", "up", PERCENT, FIVE, _recall(5)),
    MAP,
    Metric("ranking/ndcg", "NDCG", "up", PLAIN, GAIN + OF_LEVELS, lambda e: _gain(e.ranked), LEVELS),
    Metric(
        "ranking/order_accuracy",
        "rank order",
        "up",
        PERCENT,
        ORDER + OF_LEVELS,
        lambda e: _order(e.ranked),
        LEVELS,
        "in order",
    ),
    Metric(
        "ranking/trained/ndcg",
        "NDCG, trained ranks",
        "up",
        PLAIN,
        GAIN + OF_TRAINING,
        lambda e: _gain(e.ranked_as_trained),
        TRAINED,
        "NDCG",
    ),
    Metric(
        "ranking/trained/order_accuracy",
        "rank order, trained ranks",
        "up",
        PERCENT,
        ORDER + OF_TRAINING,
        lambda e: _order(e.ranked_as_trained),
        TRAINED,
        "in order",
    ),
)
