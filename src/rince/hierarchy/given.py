"""What ranks can be made from, and ranks that a user brings as an object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

from pydantic import Field

from rince.config import RankSettings
from rince.errors import ConfigError
from rince.ranks import RankSource


class Ranked(NamedTuple):
    """What is to be ranked.

    Attributes:
        class_names: in label order.
        paths: of the classes in the taxonomy, from the top down.
        samples: how many training samples there are.
        seed: of the run.
    """

    class_names: Sequence[str]
    paths: list[tuple[str, ...]]
    samples: int
    seed: int = 0


class GivenRanks(RankSettings):
    """Ranks from an object: `rince.fit(…, rank_source=…)`."""

    brought_as: ClassVar[str] = "rank_source"

    kind: Literal["given"]
    about: str = ""
    own: list[int] = Field(default_factory=lambda: [1])

    @property
    def own_ranks(self) -> tuple[int, ...]:
        """As the object says."""
        return tuple(self.own)

    def build(self, given: Ranked) -> RankSource:  # noqa: ARG002 - of the interface
        """A file cannot hold the object."""
        raise ConfigError(
            f"the ranks of this run were given as an object ({self.about}); give it again: "
            "rince.open_run(FOLDER, rank_source=…)"
        )
