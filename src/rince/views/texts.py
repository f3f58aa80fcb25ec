"""Views of texts: words left out. What is drawn is a function of (seed, epoch, view, sample id)."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field

from rince.config.section import Section
from rince.draws import uniform


class TextViewSettings(Section):
    """The section `views` of data that is texts. What a network leaves out by itself comes on top."""

    word_dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="share of the words that are missing in a view; one word always stays"
    )

    def make(self, text: str, *, seed: int, epoch: int, view: int, sample_id: int) -> str:
        """A view of a text: the words that stay, in their order, a space between them."""
        words = text.split()
        if not self.word_dropout or not words:
            return text
        drawn = uniform(seed, epoch, view, torch.tensor([sample_id]), len(words))[0].tolist()
        # Where all words would go, the one that was nearest to staying does.
        least = min(self.word_dropout, max(drawn))
        return " ".join(word for word, draw in zip(words, drawn, strict=True) if draw >= least)
