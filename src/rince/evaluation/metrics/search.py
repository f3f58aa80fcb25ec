"""Search: test samples look for training samples, level by level, rank by rank, and over the whole hierarchy."""

from __future__ import annotations

import re
from collections.abc import Callable

from torch import Tensor

from rince.evaluation.class_means import are_uneven, shares_of_classes
from rince.evaluation.evidence import Evidence
from rince.evaluation.graded import graded_gains
from rince.evaluation.hierarchical import ancestor_heights, chances
from rince.evaluation.metrics.metric import PERCENT, PLAIN, Direction, Measure, Metric, Unit
from rince.evaluation.retrieval import RankedRetrieval, hits_among

RETRIEVAL = "queries: test set, gallery: training set; {vectors}, cosine; "
FIRST = RETRIEVAL + "the nearest item has the query's own label"
FIVE = RETRIEVAL + "an item of the query's own label among the 5 nearest"
CLASS_MEAN = "; mean over the groups of the level, which count alike however many queries they have"
AVERAGE = RETRIEVAL + "mean average precision over the whole gallery"
GAIN = RETRIEVAL + "gain R + 1 - rank, whole gallery; ranks: "
ORDER = RETRIEVAL + "share of pairs of two ranks in the right order, mean over ranks and queries; ranks: "
GIVEN = RETRIEVAL + "gains given for every query and item, whole gallery"
CHANCE_OF = "R@1 of a neighbour drawn blindly: share of the gallery that has the query's label"
PRECISE = RETRIEVAL + "hierarchical average precision (HAPPIER, α = 1), whole gallery; ranks: "
SETS = RETRIEVAL + "average set intersection with the perfect order, to its last item that has a rank; ranks: "
HEIGHT = RETRIEVAL + "levels from a query up to its lowest common ancestor with the nearest item, 0 for its own class"
SEVERITY = (
    HEIGHT + "; queries whose nearest item is of another class only, so other ones in every run: it compares nothing"
)
OF_LEVELS, OF_TRAINING = "from the levels of the taxonomy", "those of training, {ranks}"
SAME, LEVELS, TRAINED = "Same {}", "Order of ranks", "Order of trained ranks"


def _recall(k: int) -> Callable[[Evidence], dict[str, Tensor]]:
    def measure(evidence: Evidence) -> dict[str, Tensor]:
        train, test = evidence.train, evidence.test
        if k > len(train.features):
            return {}
        near = evidence.nearest[:, :k]
        return {
            level: evidence.counted(
                hits_among(near, query_labels=labels, gallery_labels=train.levels[level], same=test.same), level
            )
            for level, labels in test.levels.items()
        }

    return measure


def _over_classes(measure: Callable[[Evidence], dict[str, Tensor]]) -> Measure:
    """The mean over the groups of a level. Where these are of one size, it is that over queries again: no number."""

    def of_classes(evidence: Evidence) -> dict[str, Tensor]:
        uneven = {
            level: labels
            for level, labels in evidence.test.levels.items()
            if are_uneven(labels.cpu()[evidence.seen[level]])
        }
        found = measure(evidence) if uneven else {}
        return {level: shares_of_classes(found[level], labels) for level, labels in uneven.items()}

    return of_classes


def _gain(evidence: Evidence, found: RankedRetrieval | None) -> dict[str, Tensor]:
    return {"": evidence.counted(found.ndcg)} if found else {}


def _order(evidence: Evidence, found: RankedRetrieval | None) -> dict[str, Tensor]:
    return {"": evidence.counted(found.order_accuracy)} if found else {}


def _chance(evidence: Evidence) -> dict[str, float]:
    train, test = evidence.train, evidence.test
    pairs = {level: (labels, train.levels[level], test.same) for level, labels in test.levels.items()}
    return {level: float(evidence.counted(chances(*each), level).nanmean()) for level, each in pairs.items()}


def _hierarchical(number: Callable[[RankedRetrieval], Tensor]) -> Measure:
    """Of a hierarchy; with the classes alone this is retrieval again."""

    def measure(evidence: Evidence) -> dict[str, Tensor]:
        return {"": evidence.counted(number(evidence.ranked))} if len(evidence.test.levels) > 1 else {}

    return measure


def _heights(evidence: Evidence) -> dict[str, Tensor]:
    levels = [list(samples.levels.values()) for samples in (evidence.test, evidence.train)]
    if len(levels[0]) == 1:
        return {}
    return {"": evidence.counted(ancestor_heights(evidence.nearest[:, 0], *levels))}


def _severity(evidence: Evidence) -> dict[str, float]:
    wrong = {name: heights[heights > 0].cpu().double() for name, heights in _heights(evidence).items()}
    return {name: float(heights.mean()) for name, heights in wrong.items() if len(heights)}


def _given(evidence: Evidence) -> dict[str, Tensor]:
    if evidence.gains is None:
        return {}
    train, test = evidence.train, evidence.test
    return {"": graded_gains(test.features, train.features, gains=evidence.gains, same=test.same)}


def _metric(
    pattern: str,
    heading: str,
    unit: Unit,
    protocol: str,
    measure: Measure,
    group: str = "",
    column: str = "",
    direction: Direction = "up",
) -> Metric:
    return Metric(pattern, heading, direction, unit, protocol, measure, group, column, both_places=True)


RECALL = _metric("retrieval/{}/recall@1", "R@1", PERCENT, FIRST, _recall(1), SAME)
MAP = _metric("retrieval/{}/map", "mAP", PLAIN, AVERAGE, lambda e: e.average_precisions, SAME)
CHANCE = Metric("retrieval/{}/chance@1", "chance of R@1", None, PERCENT, CHANCE_OF, _chance, SAME, "chance")
HIERARCHICAL_AP = _metric(
    "ranking/hierarchical_ap",
    "H-AP",
    PLAIN,
    PRECISE + OF_LEVELS,
    _hierarchical(lambda found: found.hierarchical_precision),
    LEVELS,
)
ANCESTOR = _metric("ranking/ancestor_height", "LCA height", PLAIN, HEIGHT, _heights, LEVELS, direction="down")
METRICS = (
    RECALL,
    CHANCE,
    _metric("retrieval/{}/recall@5", "R@5", PERCENT, FIVE, _recall(5)),
    MAP,
    _metric(
        "retrieval/{}/class_mean_recall@1", "R@1, class mean", PERCENT, FIRST + CLASS_MEAN, _over_classes(_recall(1))
    ),
    _metric(
        "retrieval/{}/class_mean_map",
        "mAP, class mean",
        PLAIN,
        AVERAGE + CLASS_MEAN,
        _over_classes(lambda e: e.average_precisions),
    ),
    _metric("ranking/ndcg", "NDCG", PLAIN, GAIN + OF_LEVELS, lambda e: _gain(e, e.ranked), LEVELS),
    _metric(
        "ranking/order_accuracy",
        "rank order",
        PERCENT,
        ORDER + OF_LEVELS,
        lambda e: _order(e, e.ranked),
        LEVELS,
        "in order",
    ),
    HIERARCHICAL_AP,
    _metric(
        "ranking/asi",
        "ASI",
        PLAIN,
        SETS + OF_LEVELS,
        _hierarchical(lambda found: found.set_intersection),
        LEVELS,
    ),
    ANCESTOR,
    _metric("ranking/mistake_severity", "mistake severity", PLAIN, SEVERITY, _severity, direction=None),
    _metric("ranking/given/ndcg", "NDCG, given gains", PLAIN, GIVEN, _given, "Given gains", "NDCG"),
    _metric(
        "ranking/trained/ndcg",
        "NDCG, trained ranks",
        PLAIN,
        GAIN + OF_TRAINING,
        lambda e: _gain(e, e.ranked_as_trained),
        TRAINED,
        "NDCG",
    ),
    _metric(
        "ranking/trained/order_accuracy",
        "rank order, trained ranks",
        PERCENT,
        ORDER + OF_TRAINING,
        lambda e: _order(e, e.ranked_as_trained),
        TRAINED,
        "in order",
    ),
)
HIERARCHICAL = tuple(metric for metric in METRICS if re.fullmatch(r"ranking/\w+", metric.pattern))
"""Those that are measured by the ranks of all levels."""
