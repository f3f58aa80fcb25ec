"""Networks that a user brings: any module, with or without a head of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from torch import nn

from rince.config import ModelSettings
from rince.errors import ConfigError


class GivenModel(ModelSettings):
    """A network from an object: `rince.fit(…, encoder=…)`."""

    brought_as: ClassVar[str] = "encoder"

    kind: Literal["given"]
    about: str = ""

    def build(self, shape: Sequence[int]) -> nn.Module:  # noqa: ARG002 - of the interface
        """A file cannot hold the object."""
        raise ConfigError(
            f"the network of this run was given as an object ({self.about}); give it again: "
            "rince.open_run(FOLDER, encoder=…)"
        )
