"""Nothing is trained: what a pretrained network or given vectors know already, judged as every other row is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from torch import nn

from rince.config import ModelSettings
from rince.methods.method import Method, MethodKind, Outcome
from rince.sources.feed import Step


class Frozen(Method):
    """No step."""

    def step(self, encoder: nn.Module, step: Step, *, logged: bool) -> Outcome:  # noqa: ARG002 - of the interface
        """There is none."""
        raise AssertionError("method.kind=frozen has no steps")  # `total_steps` says so


class FrozenSettings(MethodKind):
    """`method.kind=frozen`: nothing is trained: the row that all others are to beat."""

    keys: ClassVar[bool] = False
    trains: ClassVar[bool] = False
    method: ClassVar[type[Method]] = Frozen

    kind: Literal["frozen"]

    def head(self, inputs: int, model: ModelSettings, groups: Sequence[int]) -> nn.Module:  # noqa: ARG002
        """None: a feature is its own embedding."""
        return nn.Identity()
