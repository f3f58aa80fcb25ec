"""Ranks from how similar classes are: by their names, in WordNet, or by a matrix of your own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field
from torch import Tensor

from rince.config import RankSettings
from rince.config.section import Falling, RisingCounts
from rince.hierarchy.given import Ranked
from rince.hierarchy.number_files import read_similarity
from rince.hierarchy.text import name_similarity
from rince.hierarchy.wordnet import load_wordnet
from rince.ranks import TableRanks


class TextSettings(RankSettings):
    """`ranks.kind=text`: how similar the names of classes are to a text model."""

    kind: Literal["text"]
    thresholds: Falling = Field([0.45], description="smallest similarity of ranks 2, 3, …; the paper's best is 0.45")
    model: str | None = Field(None, description="a sentence-transformers model; null for the installed small one")

    def similarity(self, class_names: Sequence[str]) -> Tensor:
        """`(classes, classes)` cosines."""
        return name_similarity(class_names, self.model)

    def build(self, given: Ranked) -> TableRanks:
        """Same class 1, names more similar than the first threshold 2, and so on."""
        return TableRanks.from_similarity(self.similarity(given.class_names), self.thresholds)


class WordNetSettings(RankSettings):
    """`ranks.kind=wordnet`: the way between classes in WordNet, up to a common ancestor and down."""

    kind: Literal["wordnet"]
    thresholds: RisingCounts = Field([4], description="longest way of ranks 2, 3, …, in edges; siblings are 2 apart")
    file: str | None = Field(None, description=".csv with child, parent; null for ImageNet's part of WordNet")

    def build(self, given: Ranked) -> TableRanks:
        """Same class 1, a way no longer than the first threshold 2, and so on."""
        lengths = load_wordnet(self.file).path_lengths(given.class_names)
        return TableRanks.from_similarity(-lengths, [-length for length in self.thresholds])


class SimilaritySettings(RankSettings):
    """`ranks.kind=similarity`: a matrix of similarities between classes."""

    kind: Literal["similarity"]
    file: str = Field(description=".npy, .npz in label order, or .csv with the names of the classes")
    thresholds: Falling = Field(description="smallest similarity of ranks 2, 3, …")

    def similarity(self, class_names: Sequence[str]) -> Tensor:
        """`(classes, classes)`, of the file."""
        return read_similarity(Path(self.file), class_names)

    def build(self, given: Ranked) -> TableRanks:
        """Same class 1, at least the first threshold 2, and so on."""
        return TableRanks.from_similarity(self.similarity(given.class_names), self.thresholds)
