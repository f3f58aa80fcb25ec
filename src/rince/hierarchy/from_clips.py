"""Ranks of the clips of a query's own video; other videos are negatives, past clips of its own take no part."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rince.config import RankSettings, Recipe
from rince.hierarchy.given import Ranked
from rince.ranks import EXCLUDED, InstanceRanks

ClipRank = Annotated[int, Field(ge=-1, le=127)]


class ClipsSettings(RankSettings):
    """`ranks.kind=clips`: frame, shot and video of a clip; no labels."""

    kind: Literal["clips"]
    frame: ClipRank = Field(1, description="the query's frames under another view; 0 is a negative, -1 takes no part")
    shot: ClipRank = Field(-1, description="the frames right before or after the query")
    video: ClipRank = Field(-1, description="frames from another part of the video")

    @property
    def own_ranks(self) -> tuple[int, ...]:
        """Ranks of frame, shot and video."""
        return self.frame, self.shot, self.video

    @property
    def own_names(self) -> tuple[str, ...]:
        """In the order of their views."""
        return "frame", "shot", "video"

    @property
    def about_own(self) -> str:
        """What frame, shot and video are."""
        words = {0: "a negative", -1: "no part"}
        named = zip(self.own_names, self.own_ranks, strict=True)
        told = ", ".join(f"{name} {words.get(rank, f'rank {rank}')}" for name, rank in named)
        return f"{told}; clips of other videos are negatives"

    @model_validator(mode="after")
    def _no_gap(self) -> ClipsSettings:
        positives = {rank for rank in self.own_ranks if rank > 0}
        if positives != set(range(1, len(positives) + 1)) or not positives:
            raise ValueError(
                f"the ranks of frame, shot and video must count from 1 without a gap, got {self.own_ranks}"
            )
        return self

    def check(self, recipe: Recipe) -> None:
        """Only a twin and a bank know a query's clips from those of others."""
        if recipe.twin is None:
            raise ValueError(
                f"ranks.kind=clips ranks a query's own clips, which method.kind={recipe.method.kind} does not tell "
                "from those of others; use method.kind=contrast"
            )

    def build(self, given: Ranked) -> InstanceRanks:  # noqa: ARG002 - of the interface
        """Another clip of the same video is no negative."""
        return InstanceRanks(same=EXCLUDED)
