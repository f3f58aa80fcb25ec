"""What all parts of a recipe have in common: frozen, and no unknown keys."""

from __future__ import annotations

import itertools
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    field_validator,
)

Fraction = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """A part of a recipe."""

    # Lax mode on purpose: PyYAML reads `1e-4` as text, and pydantic turns it into the number it is.
    # NaN passes every comparison that it should fail, and no setting means infinity.
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _fits_an_int64(cls, value: Any) -> Any:
        if isinstance(value, int) and abs(value) >= 2**63:
            raise ValueError("is larger than any count can be")
        return value


def _falling(values: list[float]) -> list[float]:
    if any(a <= b for a, b in itertools.pairwise(values)):
        raise ValueError("must fall from rank to rank")
    return values


def _rising(values: list[float]) -> list[float]:
    if any(a >= b for a, b in itertools.pairwise(values)):
        raise ValueError("must grow from rank to rank")
    return values


def _one_or_several(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Names = Annotated[list[str], BeforeValidator(_one_or_several)]
"""Where one name stands, it is a list of one."""
Falling = Annotated[list[float], Field(min_length=1), AfterValidator(_falling)]
Rising = Annotated[list[PositiveFloat], Field(min_length=1), AfterValidator(_rising)]
RisingCounts = Annotated[list[PositiveInt], Field(min_length=1), AfterValidator(_rising)]
FallingCounts = Annotated[list[PositiveInt], Field(min_length=1), AfterValidator(_falling)]


def in_words(settings: dict[str, Any]) -> str:
    """`depth 18, channels_last, features (noise 0.02)`: what is null or false says nothing."""

    def word(name: str, value: Any) -> str:
        if isinstance(value, dict):
            return f"{name} ({in_words(value)})"
        return name if value is True else f"{name} {value}"

    return ", ".join(word(name, value) for name, value in settings.items() if value is not None and value is not False)
