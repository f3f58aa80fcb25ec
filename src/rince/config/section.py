"""What all parts of a recipe have in common: frozen, and no unknown keys."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """A part of a recipe."""

    # Lax mode on purpose: PyYAML reads `1e-4` as text, and pydantic turns it into the number it is.
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())
