"""What metrics are measured on: labelled features, and what several metrics need, made once for all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from torch import Tensor

from rince.evaluation.geometry import class_similarity
from rince.evaluation.outliers import ClassGaussians, neighbour_score
from rince.evaluation.probe import ProbeKind, ProbeResult, linear_probe
from rince.evaluation.retrieval import PrecisionRecall, RankedRetrieval, ranked_retrieval
from rince.evaluation.samples import Samples, ranks_of
from rince.ranks import RankSource, TableRanks

NEIGHBOUR = 50
PROBES = {
    "fast": "logistic regression on standardised features, computed once; λ = 1e-4, L-BFGS to convergence",
    "paper": "SGD, learning rate 5, momentum 0.9, batch 512, 100 epochs, ×0.2 after 60, 75, 90; crop and flip "
    "drawn anew every epoch; accuracy after the last epoch",
}


class Scores(NamedTuple):
    """Inlier scores of one kind."""

    inliers: Tensor
    outliers: dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Evidence:
    """Everything there is to measure on; `judge` says what each part is."""

    train: Samples
    test: Samples
    outliers: dict[str, Tensor]
    probe: ProbeKind = "fast"
    epoch_features: Callable[[int], Tensor] | None = None
    rank_source: RankSource | None = None
    rank_name: str = ""
    classified: Tensor | None = None
    classifier: str = ""
    probe_progress: Callable[[int, int], None] | None = None

    @property
    def words(self) -> dict[str, str]:
        """For protocols."""
        return {
            "probe": PROBES[self.probe],
            "neighbour": str(self.neighbour),
            "ranks": self.rank_name,
            "classifier": self.classifier,
        }

    @cached_property
    def probed(self) -> ProbeResult:
        """What the probe reached."""
        return linear_probe(
            self.epoch_features or self.train.features if self.probe == "paper" else self.train.features,
            self.test.features,
            train_labels=self.train.labels,
            test_labels=self.test.labels,
            protocol=self.probe,
            progress=self.probe_progress,
        )

    @cached_property
    def ranks(self) -> TableRanks:
        """The ranks that follow from the levels."""
        return ranks_of(self.train, self.test)

    @cached_property
    def ranked(self) -> RankedRetrieval:
        """One sort of the gallery for every query: all metrics of retrieval but recall come from it."""
        return self._ranked(self.ranks)

    @cached_property
    def ranked_as_trained(self) -> RankedRetrieval | None:
        """The same with the ranks of training; None if they are unknown, or those of the levels again."""
        labels = self.test.labels.unique(), self.train.labels.unique()
        if self.rank_source is None or self.rank_source(*labels).equal(self.ranks(*labels)):
            return None
        return self._ranked(self.rank_source)

    def _ranked(self, rank_source: RankSource) -> RankedRetrieval:
        return ranked_retrieval(
            self.test.features,
            self.train.features,
            query_labels=self.test.labels,
            gallery_labels=self.train.labels,
            rank_source=rank_source,
            same=self.test.same,
        )

    @property
    def curves(self) -> dict[str, PrecisionRecall]:
        """Level → its curve."""
        # The items of ranks 1 to i are those that share the query's group at level i; levels above the highest rank
        # have the groups of the last one.
        curves = self.ranked.curves
        return {level: curves[min(number, len(curves) - 1)] for number, level in enumerate(self.test.levels)}

    @cached_property
    def gaussian(self) -> Scores:
        """By one Gaussian per class."""
        return self._scores(ClassGaussians(self.train.features, self.train.labels).score)

    @cached_property
    def tied(self) -> Scores:
        """By Gaussians of one covariance."""
        return self._scores(ClassGaussians(self.train.features, self.train.labels, covariance="tied").score)

    @cached_property
    def near(self) -> Scores:
        """By the cosine with a near training feature."""
        known, k = self.train.features, self.neighbour
        inliers = neighbour_score(self.test.features, known, k=k, same=self.test.same)
        return Scores(inliers, {name: neighbour_score(each, known, k=k) for name, each in self.outliers.items()})

    @property
    def neighbour(self) -> int:
        """Which of the nearest."""
        return min(NEIGHBOUR, len(self.train.features) - int(self.test.shared > 0))

    def _scores(self, score: Callable[[Tensor], Tensor]) -> Scores:
        return Scores(score(self.test.features), {name: score(features) for name, features in self.outliers.items()})

    @cached_property
    def similarities(self) -> dict[str, Tensor]:
        """Before and, where that is known, after the head: `(classes, classes)` mean cosines."""
        places = {"before": self.test.features, "after": self.test.embeddings}
        return {
            place: class_similarity(vectors, self.test.labels)
            for place, vectors in places.items()
            if vectors is not None
        }
