"""What a network says of itself, kept in the cache: where its features are kept too, nobody has to load it again.

To import the libraries of texts alone takes longer than most commands on kept features.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeVar

from pydantic import TypeAdapter
from torch import nn

from rince.errors import DataError, WriteError
from rince.files import cache_folder, write_whole

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a network knows of itself once it is loaded.

    Attributes:
        identity: fingerprint of everything its features depend on besides the samples: weights by content, pooling,
            preprocessing.
        width: length of a feature.
        parameters: how many it has.
        longest: of a network for texts: tokens that a text may have; None of one for images.
        padding: likewise, the token that stands where a text has ended.
        prompt: what the network expects before every text.
    """

    identity: str
    width: int
    parameters: int
    longest: int | None = None
    padding: int = 0
    prompt: str = ""


class Loaded(NamedTuple):
    """A network with its weights."""

    facts: Facts
    module: nn.Module
    tokeniser: Any = None
    tokenise: Any = None
    """Of a network for texts: a `Tokenise`."""


def lazily(name: str, load: Callable[[], Loaded], key: str | None) -> tuple[Facts, Callable[[], Loaded]]:
    """The facts of a network, from the cache where they are known; and what loads it when it is first asked for.

    Args:
        name: of the network.
        load: loads it.
        key: fingerprint of all that it is loaded from; None if nobody can tell before.
    """
    once = cache(load)
    facts = remembered(key, Facts, lambda: once().facts)

    @cache
    def loaded() -> Loaded:
        found = once()
        if found.facts != facts:
            raise DataError(f"the files of model.name={name} were changed since this command began; start it again")
        return found

    return facts, loaded


def remembered(key: str | None, kind: Any, make: Callable[[], T]) -> T:
    """What was made under a key before; made now and kept if there is nothing of the kind, or it is damaged.

    Args:
        key: fingerprint of all that it depends on; None if nobody can tell: nothing is kept.
        kind: type of what is made, as pydantic checks it.
        make: makes it.
    """
    if key is None:
        return make()
    known = TypeAdapter(kind)
    with suppress(OSError, ValueError):
        found: T = known.validate_json((cache_folder("features") / f"{key[:32]}.json").read_bytes(), strict=True)
        return found
    made = make()
    with suppress(OSError, WriteError):  # costs time, no more
        write_whole(cache_folder("features") / f"{key[:32]}.json", known.dump_json(made))
    return made


def count(module: nn.Module) -> int:
    """How many parameters it has."""
    return sum(each.numel() for each in module.parameters())
