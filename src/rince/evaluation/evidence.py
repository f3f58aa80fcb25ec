"""What metrics are measured on: labelled features, and what several metrics need, made once for all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from rince.evaluation.geometry import class_similarity
from rince.evaluation.nearest import nearest
from rince.evaluation.outliers import ClassGaussians, neighbour_score
from rince.evaluation.probe import ProbeKind, ProbeResult, linear_probe
from rince.evaluation.retrieval import PrecisionRecall, RankedRetrieval, ranked_retrieval
from rince.evaluation.samples import Samples, ranks_of
from rince.evaluation.vectors import check_same, unit_vectors
from rince.ranks import RankSource, TableRanks

Place = Literal["before", "after"]
VECTORS: dict[Place, str] = {"before": "features before the head", "after": "embeddings after the head"}
NEIGHBOUR = 50
FEW = 5  # that recall looks at, at most
PROBES = {
    "fast": "logistic regression on standardised {vectors}, computed once; λ = 1e-4, L-BFGS to convergence",
    "paper": "SGD, learning rate 5, momentum 0.9, batch 512, 100 epochs, ×0.2 after 60, 75, 90; {vectors}, crop and "
    "flip drawn anew every epoch; accuracy after the last epoch",
}


class Scores(NamedTuple):
    """Inlier scores of one kind."""

    inliers: Tensor
    outliers: dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Evidence:
    """Everything there is to measure on at one place; `judge` says what each part is.

    What is judged is called features at both places: after the head, those of `train`, `test` and `outliers` are the
    embeddings.
    """

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
    outlier_embeddings: dict[str, Tensor] = field(default_factory=dict)
    gains: Tensor | None = None
    place: Place = "before"

    def after_the_head(self) -> Evidence | None:
        """The same on embeddings, for metrics of both places; None where there are none.

        The probe is the fast one: that of the paper would make all epochs of views again.
        """
        if self.train.embeddings is None or self.test.embeddings is None:
            return None
        return replace(
            self,
            train=Samples(self.train.embeddings, self.train.levels),
            test=Samples(self.test.embeddings, self.test.levels, same=self.test.same),
            outliers=self.outlier_embeddings,
            probe="fast",
            epoch_features=None,
            place="after",
        )

    @property
    def words(self) -> dict[str, str]:
        """For protocols."""
        return {
            "vectors": VECTORS[self.place],
            "probe": PROBES[self.probe].format(vectors=VECTORS[self.place]),
            "neighbour": str(self.neighbour),
            "ranks": self.rank_name,
            "classifier": self.classifier,
        }

    @cached_property
    def seen(self) -> dict[str, Tensor]:
        """Level → `(queries,)` bools on the CPU: whether the training set has anything of the query's group."""
        of_train = self.train.levels
        return {level: torch.isin(labels, of_train[level]).cpu() for level, labels in self.test.levels.items()}

    @property
    def known(self) -> Tensor:
        """`(queries,)` bools on the CPU: whether the training set has the query's class."""
        return next(iter(self.seen.values()))

    def counted(self, values: Tensor, level: str | None = None) -> Tensor:
        """`(queries,)` numbers, but NaN where nobody could be right: the training set lacks the query's group.

        Args:
            values: `(queries,)`.
            level: of the group; by default that of the classes.
        """
        seen = self.known if level is None else self.seen[level]
        return values if bool(seen.all()) else values.cpu().double().masked_fill(~seen, torch.nan)

    @cached_property
    def probed(self) -> ProbeResult:
        """What the probe reached on test samples of classes that it knows; of others, its answers are NaN."""
        known = self.known.to(self.test.features.device)
        found = linear_probe(
            self.epoch_features or self.train.features if self.probe == "paper" else self.train.features,
            self.test.features[known],
            train_labels=self.train.labels,
            test_labels=self.test.labels[known],
            protocol=self.probe,
            progress=self.probe_progress,
        )
        if bool(known.all()):
            return found
        right = torch.full(known.shape, torch.nan, dtype=torch.float64)
        right[known.cpu()] = found.right.cpu().double()
        return found._replace(right=right)

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

    @cached_property
    def nearest(self) -> Tensor:
        """`(queries, few)`: the nearest items of the gallery, for recall at every level; enough for `near` if asked."""
        found, known = self._units
        few = max(FEW, self.neighbour) if self.outliers else FEW
        same = check_same(self.test.same, found, known)
        return nearest(found, known, min(few, len(known)), same=same)

    @property
    def _units(self) -> tuple[Tensor, Tensor]:
        """The features of both sets, each of length 1, on one device."""
        found, known = (unit_vectors(each.features, "features") for each in (self.test, self.train))
        return found, known.to(found.device)

    @property
    def curves(self) -> dict[str, PrecisionRecall]:
        """Level → its curve."""
        curves = self.ranked.curves
        return {level: curves[number] for level, number in self._numbers.items()}

    @property
    def average_precisions(self) -> dict[str, Tensor]:
        """Level → `(queries,)`, whose mean is the average of its curve."""
        found = self.ranked.average_precisions
        return {level: found[number] for level, number in self._numbers.items()}

    @property
    def _numbers(self) -> dict[str, int]:
        """Level → which of the ranked results is its own."""
        # The items of ranks 1 to i are those that share the query's group at level i; levels above the highest rank
        # have the groups of the last one.
        last = len(self.ranked.curves) - 1
        return {level: min(number, last) for number, level in enumerate(self.test.levels)}

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
        found, known = self._units
        k = self.neighbour
        inliers = torch.linalg.vecdot(found, known[self.nearest[:, k - 1]])  # whom recall has looked up already
        return Scores(inliers, {name: neighbour_score(each, known, k=k) for name, each in self.outliers.items()})

    @property
    def neighbour(self) -> int:
        """Which of the nearest: still one of the own class where a sample lies well, also where classes are small."""
        of_a_class = len(self.train.labels) // len(self.train.labels.unique()) - int(self.test.shared > 0)
        return max(1, min(NEIGHBOUR, of_a_class))

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
