"""All numbers of a pair of train and test sets, and what figures are drawn from. Knows vectors and labels only."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from rince.errors import ConfigError, DataError
from rince.evaluation.evidence import Evidence
from rince.evaluation.metrics import METRICS
from rince.evaluation.metrics.detection import AUROC
from rince.evaluation.metrics.metric import Metric, Named
from rince.evaluation.metrics.search import MAP
from rince.evaluation.probe import ProbeKind
from rince.evaluation.samples import Samples, unseen_in
from rince.ranks import RankSource
from rince.terminal import Tell, nobody

BINS = 60
SHARED, COPIES, UNSEEN = "shared samples", "copied samples", "classes of the test set alone"  # protocols of no metric
NAMED = 5  # classes that a message names
Place = TypeVar("Place")


def by_name(sources: Sequence[Place], name_of: Callable[[Place], str], what: str) -> dict[str, Place]:
    """Sources by the short name that their metrics carry; two of one name are refused."""
    named: dict[str, Place] = {}
    for source in sources:
        name = name_of(source)
        if name in named:
            raise ConfigError(f"two {what} are called {name!r}: {named[name]} and {source}; rename one")
        named[name] = source
    return named


class Verdict(NamedTuple):
    """What there is to say about an embedding."""

    metrics: dict[str, float]
    """Names to numbers; `rince.evaluation.metrics.parse` knows what each is."""
    protocol: dict[str, str]
    """How each kind of number was made, by the name of its metric."""
    figures: dict[str, Any]
    """Plain values that figures are drawn from."""
    queries: dict[str, Tensor]
    """`(queries,)` float64 on the CPU, of every number that is a mean over test samples; NaN for those left out."""


def shared_note(test: Samples) -> str:
    """What it means that samples of a test set lie in the training set, too."""
    return (
        f"{test.shared:,} of {len(test.features):,} test samples lie in the training set, too: in retrieval and by "
        "nearest neighbours none finds itself; probe and Gaussians were made from them"
    )


def copies_note(copies: int, of: int) -> str:
    """What it means that training samples stand in a test set under other names."""
    return (
        f"{copies:,} of {of:,} test samples have the content of a training sample: by that they are found, and numbers "
        "are better than on new samples; take them out of one of the two sets"
    )


def unseen_note(unseen: dict[str, int]) -> str:
    """What it means that a test set has classes that the training set lacks, as `unseen_in` gives them."""
    names = ", ".join(map(repr, list(unseen)[:NAMED])) + (
        f" and {len(unseen) - NAMED} more" if len(unseen) > NAMED else ""
    )
    count, one = sum(unseen.values()), len(unseen) == 1
    return (
        f"{len(unseen)} class{'' if one else 'es'} of the test set {'has' if one else 'have'} no training sample: "
        f"{names}; {count:,} test sample{'' if count == 1 else 's'} of {'it' if one else 'them'} left out of what is "
        "measured by class (groups above count them where the training set has the group)"
    )


def judge(
    train: Samples,
    test: Samples,
    *,
    outliers: dict[str, Tensor] | None = None,
    probe: ProbeKind = "fast",
    epoch_features: Callable[[int], Tensor] | None = None,
    rank_source: RankSource | None = None,
    rank_name: str = "by class",
    classified: Tensor | None = None,
    classifier: str = "",
    on: str = "",
    outlier_embeddings: dict[str, Tensor] | None = None,
    after_head: bool = True,
    gains: Tensor | None = None,
    copies: int = 0,
    tell: Tell = nobody,
) -> Verdict:
    """Judges features of a test set against those of a training set, by every metric that there is evidence for.

    Where both sets have embeddings too, metrics of both places are measured on these again: names of such numbers end
    in ` after the head`.

    Args:
        train: gallery, what the probe and the Gaussians learn from.
        test: queries and inliers.
        outliers: name → `(samples, dim)` features of things that are of no class.
        probe: which protocol.
        epoch_features: for the paper's probe, the training features of an epoch; without, they stay the same.
        rank_source: the ranks of training, from labels of classes. Where they are not those that follow from the levels
            anyway, the order of ranks is measured with them too. Ranks between samples cannot rank test samples.
        rank_name: where these ranks come from, for the protocol.
        classified: `(samples,)` labels that a classifier finetuned from the run's network gives the test samples.
        classifier: how it was made, for the protocol.
        on: what the set is called, if it is not the run's own; names of metrics then end in ` on SET`.
        outlier_embeddings: of the same outliers, after the head.
        after_head: whether to judge the embeddings as well; not where they are classes, or the features again.
        gains: `(test, train)`: what each training sample is worth to each test sample, if that is given.
        copies: how many test samples are copies of training samples, for the protocol.
        tell: is told how far it is.
    """
    unseen = unseen_in(train, test)
    if sum(unseen.values()) == len(test.labels):
        raise DataError("no test sample is of a class that the training set has; are classes named alike in both?")
    done = 0
    evidence = Evidence(
        train,
        test,
        outliers or {},
        probe,
        epoch_features,
        rank_source,
        rank_name,
        classified,
        classifier,
        lambda now, of: tell(f"probe {now}/{of}", done, len(asked)),
        outlier_embeddings or {},
        gains,
    )
    after = evidence.after_the_head() if after_head else None
    asked = [(evidence, metric) for metric in METRICS]
    asked += [(after, metric) for metric in METRICS if after is not None and metric.both_places]
    verdict = Verdict({}, {}, _figures(evidence, after, on), {})
    for done, (place, metric) in enumerate(asked):
        tell(Named(metric, place=place.place).protocol, done, len(asked))
        _measure(metric, place, on, verdict)
    if test.shared:
        verdict.protocol[SHARED] = shared_note(test)
    if copies:
        verdict.protocol[COPIES] = copies_note(copies, len(test.features))
    if unseen:
        verdict.protocol[UNSEEN] = unseen_note(unseen)
    tell("done", len(asked), len(asked))
    return verdict


def _measure(metric: Metric, place: Evidence, on: str, verdict: Verdict) -> None:
    """All numbers of a metric at a place, into the verdict."""
    for qualifier, value in metric.measure(place).items():
        named = Named(metric, qualifier, on, place.place)
        if isinstance(value, Tensor):
            verdict.queries[named.name] = value.cpu().double()
        mean = float(verdict.queries[named.name].nanmean()) if isinstance(value, Tensor) else value
        verdict.metrics[named.name] = mean
        verdict.protocol[named.protocol] = metric.protocol.format_map(place.words)


def _figures(evidence: Evidence, after: Evidence | None, on: str) -> dict[str, Any]:
    """What figures are drawn from; curves and scores under `Named.where` of their metric."""
    curves = {
        Named(MAP, level, on, place.place).where: {"recall": _plain(curve.recall), "precision": _plain(curve.precision)}
        for place in (evidence, after)
        if place is not None
        for level, curve in place.curves.items()
    }
    outliers = {
        Named(AUROC, name, on).where: _score_figure(
            evidence.gaussian.inliers.cpu()[evidence.known], evidence.gaussian.outliers[name]
        )
        for name in evidence.outliers
    }
    similarity = {place: _plain(matrix) for place, matrix in evidence.similarities.items()}
    return {"curves": curves, "outliers": outliers, "class_similarity": similarity}


def _score_figure(inliers: Tensor, outliers: Tensor) -> dict[str, Any]:
    """Histograms of both scores on common bins, and the ROC curve at 201 points."""
    inliers, outliers = inliers.cpu().double(), outliers.cpu().double()  # a number per sample; not every device bins
    both = torch.cat([inliers, outliers])
    low, high = (float(both.quantile(q)) for q in (0.005, 0.995))  # a few far scores would flatten all bins
    edges = torch.linspace(low, high if high > low else low + 1, BINS + 1, dtype=torch.float64)
    counts = [
        torch.histogram(scores.clamp(edges[0], edges[-1]), edges).hist / len(scores) for scores in (inliers, outliers)
    ]
    false = torch.linspace(0, 1, 201, dtype=torch.float64)
    places = (false * len(outliers)).ceil().long().clamp(1, len(outliers)) - 1
    thresholds = outliers.sort(descending=True).values[places]
    true = (inliers[None] >= thresholds[:, None]).double().mean(dim=1)
    true[0] = 0
    return {
        "edges": _plain(edges),
        "inliers": _plain(counts[0]),
        "outliers": _plain(counts[1]),
        "roc": {"false": _plain(false), "true": _plain(true)},
    }


def _plain(values: Tensor) -> Any:
    """Nested lists of numbers to five digits; NaN as None, which JSON knows."""

    def rounded(value: Any) -> Any:
        if isinstance(value, list):
            return list(map(rounded, value))
        return None if math.isnan(value) else float(f"{value:.5g}")

    return rounded(values.tolist())
