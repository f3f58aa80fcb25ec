"""Momentum contrast with the triplet loss of `rince.losses.triplet`, whose margin depends on the rank."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat

from rince.config import Recipe
from rince.losses.triplet import RankedTriplet
from rince.methods.contrast import MomentumContrast
from rince.methods.method import Method, MethodKind


class MomentumTriplet(MomentumContrast):
    """The same step with another loss."""

    def make_loss(self, recipe: Recipe) -> RankedTriplet:
        """A margin for every rank."""
        assert isinstance(recipe.method, TripletSettings)
        return RankedTriplet(recipe.method.margins)


class TripletSettings(MethodKind):
    """`method.kind=triplet`: a margin for every rank."""

    uses: ClassVar[frozenset[str]] = frozenset({"bank", "twin", "ranks"})
    validates: ClassVar[bool] = True
    method: ClassVar[type[Method]] = MomentumTriplet

    kind: Literal["triplet"]
    margins: Annotated[list[PositiveFloat], Field(min_length=1)] = Field(
        [0.5, 1.0],
        description="of ranks 1, 2, …: by how much nearer a positive has to be than the opponents of its rank",
    )

    @property
    def rank_terms(self) -> tuple[str, int]:
        """One margin for every rank."""
        return "method.margins", len(self.margins)
