"""Texts as a network takes them: tokens, padded to the longest of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Annotated, Any, Protocol

import torch
from pydantic import Field
from torch import Tensor

from rince.encoders.known import Facts, Loaded, remembered
from rince.errors import ConfigError
from rince.files import fingerprint_of
from rince.sources.source import Batch, Made, Source, Wrapped, moved
from rince.terminal import counted

Tokens = dict[str, list[list[int]]]


class Tokenise(Protocol):
    """Texts to the lists of numbers of every input of a network, `input_ids` among them, not padded."""

    def __call__(self, texts: Sequence[str], *, cut: bool = True) -> Tokens:
        """At most as many as the network takes, or all of them."""
        ...


class Tokenised(Wrapped):
    """Texts as tokens.

    Args:
        inner: a source of texts, with `texts` and what draws their views, `maker`.
        tokenise: of the network; cuts what is longer than `longest`, unless it is told not to.
        longest: how many tokens a text may have.
        padding: for every input, the number that stands where a text has ended; 0 for those that are not named.
        identity: of the network.
    """

    def __init__(
        self, inner: Source, tokenise: Tokenise, *, longest: int, padding: dict[str, int], identity: str
    ) -> None:
        super().__init__(inner)
        self.tokenise, self.longest, self.padding, self.identity = tokenise, longest, padding, identity
        self.texts: Sequence[str] = inner.texts  # type: ignore[attr-defined]
        self.maker: Any = inner.maker  # type: ignore[attr-defined]

    @property
    def fingerprint(self) -> str:
        """Of texts and tokeniser."""
        return fingerprint_of(texts=self.inner.fingerprint, network=self.identity)

    @property
    def shape(self) -> tuple[int, ...]:
        """At most so many tokens."""
        return (self.longest,)

    @cached_property
    def tokens(self) -> Tokens:
        """Of all texts, as they are."""
        return self.tokenise(self.texts)

    @property
    def views_differ(self) -> bool:
        """Whether views of a text are different texts."""
        return bool(self.maker.word_dropout)

    @cached_property
    def lengths(self) -> Tensor:
        """`(texts,)`: tokens of each; kept, since kept features are in their order."""
        key = fingerprint_of(lengths=self.fingerprint) if self.knows_content else None
        one_each = Annotated[list[int], Field(min_length=len(self), max_length=len(self))]
        return torch.tensor(remembered(key, one_each, lambda: [len(ids) for ids in self.tokens["input_ids"]]))

    @cached_property
    def cut(self) -> int:
        """How many texts lose something; kept, too."""
        key = fingerprint_of(cut=self.fingerprint) if self.knows_content else None
        return remembered(key, int, self._count_cut)

    def _count_cut(self) -> int:
        """Among those that are as long as they may be, those that would be longer."""
        full = [self.texts[row] for row in (self.lengths >= self.longest).nonzero()[:, 0].tolist()]
        return sum(len(ids) > self.longest for ids in self.tokenise(full, cut=False)["input_ids"]) if full else 0

    def load(self, ids: Tensor, numbers: Sequence[int], *, seed: int, epoch: int) -> list[Batch]:
        """The tokens of every view, some words left out where the recipe says so."""
        if not self.views_differ:
            return [self.plain(ids)] * len(numbers)
        views = [
            [self.maker.make(self.texts[i], seed=seed, epoch=epoch, view=number, sample_id=i) for i in ids.tolist()]
            for number in numbers
        ]
        return [self._padded(self.tokenise(view)) for view in views]

    def finish(self, loaded: list[Batch], device: torch.device) -> Made:
        """On the device."""
        return Made([moved(batch, device) for batch in loaded])

    def plain(self, ids: Tensor) -> Batch:
        """The tokens of texts as they are."""
        rows = ids.tolist()
        return self._padded({name: [of_all[row] for row in rows] for name, of_all in self.tokens.items()})

    def notes(self) -> list[str]:
        """Also how many texts are cut."""
        have, are = ("has", "is") if self.cut == 1 else ("have", "are")
        told = f"{counted(self.cut, 'text')} {have} more than {self.longest} tokens, and {are} cut there"
        more = [told] if self.cut else []
        return [*self.inner.notes(), *more]

    def _padded(self, tokens: Tokens) -> Batch:
        longest = max(map(len, tokens["input_ids"]))
        return {
            name: torch.tensor([row + [self.padding.get(name, 0)] * (longest - len(row)) for row in rows])
            for name, rows in tokens.items()
        }


def tokenising(facts: Facts, load: Callable[[], Loaded], model: str) -> Callable[[Source], Source]:
    """A source of texts to one of tokens, for which the network is loaded when they are asked for.

    Args:
        facts: of the network.
        load: gives it.
        model: as messages call it.
    """

    def tokenise(texts: Sequence[str], *, cut: bool = True) -> Tokens:
        found: Tokens = load().tokenise(texts, cut=cut)
        return found

    def fit(source: Source) -> Source:
        if not hasattr(source, "texts"):
            raise ConfigError(
                f"{model} reads texts, and {source.source!r} holds {source.thing}s; choose a model for those"
            )
        assert facts.longest is not None  # of a network for texts
        padding = {"input_ids": facts.padding}
        return Tokenised(source, tokenise, longest=facts.longest, padding=padding, identity=facts.identity)

    return fit
