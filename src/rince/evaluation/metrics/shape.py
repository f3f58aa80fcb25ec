"""The shape of the embedding: how tight, how even, what is close to what."""

from __future__ import annotations

from rince.evaluation.evidence import Evidence
from rince.evaluation.geometry import alignment, uniformity
from rince.evaluation.metrics.metric import PLAIN, Metric

TIGHT = "mean squared distance of test samples of one label; normalised features before the head"
EVEN = "log mean exp(-2 d²) over pairs of test samples; normalised features before the head"
CLOSE = "mean cosine of test samples of two classes, by their rank, before and after the head"


def _alignment(evidence: Evidence) -> dict[str, float]:
    levels = evidence.test.levels.items()
    # Where no two samples share a label there is nothing to measure.
    return {level: alignment(evidence.test.features, n) for level, n in levels if len(n.unique()) < len(n)}


def _uniformity(evidence: Evidence) -> dict[str, float]:
    return {"": uniformity(evidence.test.features)} if len(evidence.test.features) > 1 else {}


def _similarity(evidence: Evidence) -> dict[str, float]:
    """Mean over the pairs of classes of each rank, by place and rank."""
    classes, means = evidence.test.labels.unique(), {}
    for place, similarity in evidence.similarities.items():
        ranks = evidence.ranks(classes, classes).to(similarity.device)
        for rank in sorted(set(ranks.flatten().tolist())):
            values = similarity[(ranks == rank) & similarity.isfinite()]
            if len(values):
                means[f"{place}/rank{rank}" if rank else f"{place}/negatives"] = float(values.mean())
    return means


UNIFORMITY = Metric("geometry/uniformity", "uniformity", "down", PLAIN, EVEN, _uniformity)
ALIGNMENT = Metric("geometry/{}/alignment", "alignment", "down", PLAIN, TIGHT, _alignment)
SIMILARITY = Metric("geometry/similarity/{}", "similarity", None, PLAIN, CLOSE, _similarity)
METRICS = (UNIFORMITY, ALIGNMENT, SIMILARITY)
