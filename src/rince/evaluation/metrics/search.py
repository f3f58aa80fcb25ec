"""Search: test samples look for training samples, level by level and rank by rank."""

from __future__ import annotations

from collections.abc import Callable

from rince.evaluation.evidence import Evidence
from rince.evaluation.metrics.metric import PERCENT, PLAIN, Measure, Metric
from rince.evaluation.retrieval import RankedRetrieval, recall_at_k

RETRIEVAL = "queries: test set, gallery: training set; features before the head, cosine"
GAIN = RETRIEVAL + "; gain R + 1 - rank, whole gallery"
ORDER = RETRIEVAL + "; share of pairs of two ranks in the right order, mean over ranks and queries"
OF_LEVELS, OF_TRAINING = "; ranks: from the levels of the taxonomy", "; ranks: those of training, {ranks}"


def _recall(k: int) -> Measure:
    def measure(evidence: Evidence) -> dict[str, float]:
        train, test = evidence.train, evidence.test
        return {
            level: recall_at_k(
                test.features, train.features, query_labels=labels, gallery_labels=train.levels[level], k=k
            )
            for level, labels in test.levels.items()
            if k <= len(train.features)
        }

    return measure


def _as_trained(number: Callable[[RankedRetrieval], float]) -> Measure:
    return lambda evidence: {"": number(found)} if (found := evidence.ranked_as_trained) else {}


MAP = Metric(
    pattern="retrieval/{}/map",
    heading="mAP",
    direction="up",
    unit=PLAIN,
    protocol=RETRIEVAL + "; mean average precision over the whole gallery",
    measure=lambda evidence: {level: curve.average for level, curve in evidence.curves.items()},
    group="Same {}",
)
METRICS = (
    Metric(
        pattern="retrieval/{}/recall@1",
        heading="R@1",
        direction="up",
        unit=PERCENT,
        protocol=RETRIEVAL + "; the nearest item has the query's own label",
        measure=_recall(1),
        group="Same {}",
    ),
    Metric(
        pattern="retrieval/{}/recall@5",
        heading="R@5",
        direction="up",
        unit=PERCENT,
        protocol=RETRIEVAL + "; an item of the query's own label among the 5 nearest",
        measure=_recall(5),
    ),
    MAP,
    Metric(
        pattern="ranking/ndcg",
        heading="NDCG",
        direction="up",
        unit=PLAIN,
        protocol=GAIN + OF_LEVELS,
        measure=lambda evidence: {"": evidence.ranked.ndcg},
        group="Order of ranks",
    ),
    Metric(
        pattern="ranking/order_accuracy",
        heading="rank order",
        direction="up",
        unit=PERCENT,
        protocol=ORDER + OF_LEVELS,
        measure=lambda evidence: {"": evidence.ranked.order_accuracy},
        group="Order of ranks",
        column="in order",
    ),
    Metric(
        pattern="ranking/trained/ndcg",
        heading="NDCG, trained ranks",
        direction="up",
        unit=PLAIN,
        protocol=GAIN + OF_TRAINING,
        measure=_as_trained(lambda found: found.ndcg),
        group="Order of trained ranks",
        column="NDCG",
    ),
    Metric(
        pattern="ranking/trained/order_accuracy",
        heading="rank order, trained ranks",
        direction="up",
        unit=PERCENT,
        protocol=ORDER + OF_TRAINING,
        measure=_as_trained(lambda found: found.order_accuracy),
        group="Order of trained ranks",
        column="in order",
    ),
)
