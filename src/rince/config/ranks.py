"""Where ranks come from: the settings of every `ranks.kind`."""

from __future__ import annotations

import itertools
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt, model_validator

from rince.config.section import Fraction, Section


def _falling(values: list[float]) -> list[float]:
    if any(a <= b for a, b in itertools.pairwise(values)):
        raise ValueError("must fall from rank to rank")
    return values


def _rising(values: list[float]) -> list[float]:
    if any(a >= b for a, b in itertools.pairwise(values)):
        raise ValueError("must grow from rank to rank")
    return values


class TreeRanks(Section):
    """Ranks from the taxonomy of the data."""

    kind: Literal["tree", "classes", "parents", "instances"] = Field(
        "tree",
        description="tree: every level of the taxonomy a rank; classes: same class only; parents: same parent class as "
        "rank 1; instances: no labels",
    )
    flipped: Fraction = Field(
        0.0, description="share of the pairs of classes whose relation is turned round, to study noise; of kind tree"
    )

    @model_validator(mode="after")
    def _only_a_tree_is_flipped(self) -> TreeRanks:
        if self.flipped and self.kind != "tree":
            raise ValueError(f"flipped is about the ranks of kind tree, got kind {self.kind}")
        return self


Falling = Annotated[list[float], Field(min_length=1), AfterValidator(_falling)]
Rising = Annotated[list[PositiveFloat], Field(min_length=1), AfterValidator(_rising)]
RisingCounts = Annotated[list[PositiveInt], Field(min_length=1), AfterValidator(_rising)]
FallingCounts = Annotated[list[PositiveInt], Field(min_length=1), AfterValidator(_falling)]


class TextRanks(Section):
    """Ranks from how similar the names of classes are to a text model."""

    kind: Literal["text"]
    thresholds: Falling = Field([0.45], description="smallest similarity of ranks 2, 3, …; the paper's best is 0.45")
    model: str | None = Field(None, description="a sentence-transformers model; null for the installed small one")


class WordNetRanks(Section):
    """Ranks from the way between classes in WordNet, up to a common ancestor and down."""

    kind: Literal["wordnet"]
    thresholds: RisingCounts = Field([4], description="longest way of ranks 2, 3, …, in edges; siblings are 2 apart")
    file: str | None = Field(None, description=".csv with child, parent; null for ImageNet's part of WordNet")


class SimilarityRanks(Section):
    """Ranks from a matrix of similarities between classes."""

    kind: Literal["similarity"]
    file: str = Field(description=".npy, .npz in label order, or .csv with the names of the classes")
    thresholds: Falling


class EmbeddingRanks(Section):
    """Ranks from how near classes, or samples, are in an embedding of your own."""

    kind: Literal["embedding"]
    file: str = Field(description=".npy or .npz with a vector per class, or per training image")
    per: Literal["class", "sample"] = "class"
    thresholds: Falling | None = Field(None, description="smallest cosine of ranks 2, 3, …")
    nearest: RisingCounts | None = Field(None, description="or: how many neighbours ranks 2, 3, … reach up to")

    @model_validator(mode="after")
    def _one_of_two(self) -> EmbeddingRanks:
        if (self.thresholds is None) == (self.nearest is None):
            raise ValueError("give either thresholds or nearest")
        return self


class ClusterRanks(Section):
    """Ranks from clusters of classes in an embedding of your own, at several granularities."""

    kind: Literal["clusters"]
    file: str = Field(description=".npy or .npz with a vector per class")
    counts: FallingCounts = Field(description="clusters of the classes, then clusters of those, …")
    method: Literal["kmeans", "agglomerative"] = "agglomerative"


class PositionRanks(Section):
    """Ranks from the distance between samples in columns of metadata: camera positions, times, geography."""

    kind: Literal["position"]
    file: str = Field(description=".csv with a header and a row per training image")
    columns: Annotated[list[str], Field(min_length=1)]
    thresholds: Rising = Field(description="largest distance of ranks 2, 3, …")


ClipRank = Annotated[int, Field(ge=-1, le=127)]


class ClipRanks(Section):
    """Ranks of the clips of a query's own video; other videos are negatives, past clips of its own take no part."""

    kind: Literal["clips"]
    frame: ClipRank = Field(1, description="the query's frames under another view; 0 is a negative, -1 takes no part")
    shot: ClipRank = Field(-1, description="the frames right before or after the query")
    video: ClipRank = Field(-1, description="frames from another part of the video")

    @property
    def own(self) -> tuple[int, int, int]:
        """Ranks of frame, shot and video."""
        return self.frame, self.shot, self.video

    @model_validator(mode="after")
    def _no_gap(self) -> ClipRanks:
        positives = {rank for rank in self.own if rank > 0}
        if positives != set(range(1, len(positives) + 1)) or not positives:
            raise ValueError(f"the ranks of frame, shot and video must count from 1 without a gap, got {self.own}")
        return self


Ranks = Annotated[
    TreeRanks | TextRanks | WordNetRanks | SimilarityRanks | EmbeddingRanks | ClusterRanks | PositionRanks | ClipRanks,
    Field(discriminator="kind"),
]
