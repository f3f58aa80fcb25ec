"""The shape of the embedding: how tight, how even, what is close to what."""

from __future__ import annotations

from rince.evaluation.evidence import Evidence
from rince.evaluation.geometry import alignment, uniformity
from rince.evaluation.metrics.metric import PLAIN, Metric
from rince.evaluation.samples import Samples
from rince.sources.splits import balanced

MOST = 10_000  # training samples: uniformity takes time by the square of their number

TIGHT = "mean squared distance of test samples of one label; normalised features before the head"
EVEN = "log mean exp(-2 d²) over pairs of test samples; normalised features before the head"
OF_TRAINING = "of training samples, at most {most} of them, as many of each class; else as on the test set"
CLOSE = "mean cosine of test samples of two classes, by their rank, before and after the head"


def _alignment(samples: Samples) -> dict[str, float]:
    # Where no two samples share a label there is nothing to measure.
    return {level: alignment(samples.features, n) for level, n in samples.levels.items() if len(n.unique()) < len(n)}


def _uniformity(samples: Samples) -> dict[str, float]:
    return {"": uniformity(samples.features)} if len(samples.features) > 1 else {}


def _trained(evidence: Evidence) -> Samples:
    """The training samples, or a balanced part of them."""
    train = evidence.train
    if len(train.features) <= MOST:
        return train
    some = balanced(train.labels.cpu(), MOST).to(train.features.device)
    return Samples(train.features[some], {level: labels[some] for level, labels in train.levels.items()})


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


UNIFORMITY = Metric(
    "geometry/uniformity", "uniformity", "down", PLAIN, EVEN, lambda evidence: _uniformity(evidence.test)
)
ALIGNMENT = Metric(
    "geometry/{}/alignment", "alignment", "down", PLAIN, TIGHT, lambda evidence: _alignment(evidence.test)
)
TRAIN_UNIFORMITY = Metric(
    "geometry/train_uniformity",
    "uniformity, training set",
    "down",
    PLAIN,
    OF_TRAINING.format(most=f"{MOST:,}"),
    lambda evidence: _uniformity(_trained(evidence)),
)
TRAIN_ALIGNMENT = Metric(
    "geometry/{}/train_alignment",
    "alignment, training set",
    "down",
    PLAIN,
    OF_TRAINING.format(most=f"{MOST:,}"),
    lambda evidence: _alignment(_trained(evidence)),
)
SIMILARITY = Metric("geometry/similarity/{}", "similarity", None, PLAIN, CLOSE, _similarity)
METRICS = (UNIFORMITY, TRAIN_UNIFORMITY, ALIGNMENT, TRAIN_ALIGNMENT, SIMILARITY)
