"""Pictures of samples that a run was judged on, as far as they are still there."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from rince.errors import DataError, RinceError
from rince.sources.source import Source
from rince.terminal import mention


class Album:
    """One side of a set: its samples may be gone, and others may have come since.

    Args:
        noted: of the samples, as they were judged: `labels`, `fingerprint`, `content` (the same without a network's
            part in it), and where they have files of their own `names` and `contents`.
        reopen: the source as it is now.
        folder: of the run, for messages.
    """

    def __init__(self, noted: Mapping[str, Any], reopen: Callable[[], Source], folder: str) -> None:
        self.labels = torch.tensor(noted["labels"], dtype=torch.int64)
        self.fingerprint: str = noted["fingerprint"]
        self.content: str = noted.get("content", self.fingerprint)
        self.names: list[str] | None = noted["names"]
        self._contents: list[str] = noted["contents"]
        self._reopen, self._folder = reopen, folder

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def source(self) -> Source | None:
        """What is there now; None if it cannot be opened."""
        try:
            return self._reopen()
        except RinceError as error:
            mention(f"samples of {self._folder} cannot be read, and the page shows none of them: {error}")
            return None

    @cached_property
    def _rows(self) -> dict[int, int]:
        """Row as it was judged → row as it is now."""
        source = self.source
        if source is None:
            return {}
        if source.fingerprint == self.fingerprint:
            return {row: row for row in range(len(self))}
        there = {source.name(row): row for row in range(len(source))}
        found = {row: there[name] for row, name in enumerate(self.names or ()) if name in there}
        others = any(
            not source.contents[now].startswith(self._contents[row]) for row, now in found.items() if self._contents
        )
        if others or self.names is None or len(found) == len(self):  # none is known to be gone, and yet they are others
            raise DataError(
                f"the {source.thing}s of {source.source!r} have changed since {self._folder} was judged; run `rince "
                f"evaluate {self._folder}` again"
            )
        return found

    def refuse_others(self) -> None:
        """Raises DataError if the samples are others now; those that are gone have no picture, and that is all."""
        _ = self._rows

    def picture(self, row: int) -> Tensor | None:
        """`(1 or 3, height, width)` uint8; None if there is nothing to see, or not any more."""
        if self.source is None or row not in self._rows:
            return None
        return self.source.preview(self._rows[row]).picture

    def text(self, row: int) -> str | None:
        """What to read where there is nothing to see; None if the sample is gone."""
        if self.source is None or row not in self._rows:
            return None
        return self.source.preview(self._rows[row]).text

    def film(self, row: int) -> bytes | None:
        """A small WebP that moves; None if there is none, or not any more."""
        if self.source is None or row not in self._rows:
            return None
        return self.source.film(self._rows[row])

    def is_there(self, row: int) -> bool:
        """Whether the sample still is."""
        return row in self._rows

    def name(self, row: int) -> str:
        """What a sample is called."""
        return str(row) if self.names is None else self.names[row]


def data_uri(picture: bytes) -> str:
    """A WebP picture as an address."""
    return "data:image/webp;base64," + base64.b64encode(picture).decode()
