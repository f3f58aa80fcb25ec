"""Ranks from the taxonomy of the data, or from no more than which sample is which."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field

from rince.config import RankSettings
from rince.config.section import Fraction
from rince.draws import FLIPPED_PAIRS, uniform
from rince.errors import ConfigError
from rince.hierarchy.given import Ranked
from rince.ranks import NEGATIVE, InstanceRanks, TableRanks


class TreeSettings(RankSettings):
    """`ranks.kind=tree`: every level of the taxonomy is a rank."""

    needs_levels: ClassVar[bool] = True

    kind: Literal["tree"] = "tree"
    flipped: Fraction = Field(
        0.0, description="share of the pairs of classes whose relation is turned round, to study noise"
    )

    def build(self, given: Ranked) -> TableRanks:
        """Same class 1, same parent 2, and so on."""
        return flip_pairs(TableRanks.from_tree(given.paths), self.flipped, given.seed)


class ClassesSettings(RankSettings):
    """`ranks.kind=classes`: same class only."""

    kind: Literal["classes"]

    def build(self, given: Ranked) -> TableRanks:
        """Same class 1, all others negatives."""
        return TableRanks(torch.eye(len(given.class_names), dtype=torch.int8))


class ParentsSettings(RankSettings):
    """`ranks.kind=parents`: same parent class as rank 1."""

    needs_levels: ClassVar[bool] = True

    kind: Literal["parents"]

    def build(self, given: Ranked) -> TableRanks:
        """Same class or parent 1, all others negatives."""
        if len(given.paths[0]) < 2:
            raise ConfigError("ranks.kind=parents needs classes with a parent; set data.taxonomy")
        tree = TableRanks.from_tree(given.paths).table
        return TableRanks(((tree == 1) | (tree == 2)).to(torch.int8))


class InstancesSettings(RankSettings):
    """`ranks.kind=instances`: no labels; every sample is its own class."""

    kind: Literal["instances"]

    def build(self, given: Ranked) -> InstanceRanks:  # noqa: ARG002 - of the interface
        """The same sample 1, all others negatives."""
        return InstanceRanks()


def flip_pairs(ranks: TableRanks, share: float, seed: int) -> TableRanks:
    """Ranks with noise: a share of all pairs of classes is turned round, related to unrelated and the reverse.

    Args:
        ranks: symmetric, without noise.
        share: of the pairs of two classes. Those that were related become negatives; those that were not get the last
            rank, so that half of all pairs flipped leaves nothing of the ranks but the class itself.
        seed: which pairs; the pairs of a smaller share are among those of a larger one.
    """
    classes, table = ranks.classes, ranks.table.clone()
    rows, columns = torch.triu_indices(classes, classes, offset=1)
    draws = uniform(seed, 0, FLIPPED_PAIRS, torch.arange(len(rows)), 1)[:, 0]
    chosen = draws.argsort(stable=True)[: round(share * len(rows))]
    rows, columns = rows[chosen], columns[chosen]
    turned = torch.where(table[rows, columns] > NEGATIVE, NEGATIVE, ranks.ranks).to(torch.int8)
    table[rows, columns] = table[columns, rows] = turned
    return TableRanks(table)
