"""What a run finds on the samples it holds out: R@1 of every level before and after the head, and where it is higher.

How R@1 is measured is the judge's business, who comes after training; here is when it is asked for and what is kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, get_args

from torch import Tensor

from rince.config import Recipe
from rince.encoders.encoder import Encoder
from rince.errors import ConfigError, DataError
from rince.files import write_whole
from rince.sources.source import Source
from rince.train.setup import Parts

VALIDATION = "validation.json"
AFTER = " after the head"  # how the names of numbers end that are of embeddings
Place = Literal["features", "embeddings"]
"""Before the head, or after it."""
Recalls = dict[Place, dict[str, float]]
"""R@1 by place and level."""
Judge = Callable[[Encoder, Source, Source, dict[str, Tensor]], Recalls]
"""R@1 of an encoder, from queries, gallery, and for every level `(classes,)` the group of every class."""


class Validation:
    """Judges a run on the samples it holds out.

    Args:
        recipe: of the run.
        parts: of the run.
        encoder: the module itself, not wrapped.
        judge: what measures; None for runs that nobody judges.
    """

    def __init__(self, recipe: Recipe, parts: Parts, encoder: Encoder, judge: Judge | None) -> None:
        if judge is None and recipe.train.judge_every is not None:
            raise ConfigError("train.judge_every needs somebody who judges; train by rince.fit or `rince train`")
        self.every, self.classifies = recipe.train.judge_every, recipe.method.classifies
        self.parts, self.encoder, self.judge = parts, encoder, judge
        self._groups = dict(zip(parts.level_names, parts.groups, strict=True))
        self._found: tuple[int, Recalls] | None = None  # and the step it is of

    def due(self, step: int, stop: int) -> bool:
        """Whether to look after so many steps: every few epochs, and at the end."""
        if self.every is None:
            return False
        return step == stop or step % (self.every * self.parts.order.steps_per_epoch) == 0

    def look(self, step: int) -> Recalls:
        """R@1 at both places after so many steps. Queries are held out, the gallery is trained on."""
        assert self.judge is not None
        if self._found is None or self._found[0] != step:
            found = self.judge(self.encoder, self.parts.validation, self.parts.trained, self._groups)
            self._found = step, found
        return self._found[1]

    def line(self, step: int, best: dict[str, Any]) -> dict[str, float]:
        """What the log says after so many steps; `best`, the best so far, is brought up to date."""
        found = self.look(step)
        score = fmean(found[better_place(found, classifies=self.classifies)].values())
        if not best or score > best["score"]:  # of two that are equal the earlier stays
            best |= {"step": step, "score": score}
        named = {f"validation/{name}": value for name, value in named_recalls(found).items()}
        return named | {"validation/best_step": best["step"]}

    def write(self, folder: Path, step: int) -> None:
        """Keeps what is found at the end, and which place is better; looks once."""
        if self.judge is None or len(self.parts.held_out) == 0 or recorded(folder).get("step") == step:
            return
        found = self.look(step)
        facts = {
            "step": step,
            "samples": len(self.parts.held_out),
            "metrics": named_recalls(found),
            "place": better_place(found, classifies=self.classifies),
        }
        write_whole(folder / VALIDATION, json.dumps(facts, indent=2, ensure_ascii=False) + "\n")


def named_recalls(found: Recalls) -> dict[str, float]:
    """`class/recall@1`, `class/recall@1 after the head`, … → the number."""
    endings: dict[Place, str] = {"features": "", "embeddings": AFTER}
    return {f"{level}/recall@1{endings[place]}": value for place, of in found.items() for level, value in of.items()}


def better_place(found: Recalls, *, classifies: bool) -> Place:
    """That of the higher mean over levels; the features of two that are equal, and where the head is a classifier."""
    after = fmean(found["embeddings"].values()) > fmean(found["features"].values())
    return "embeddings" if after and not classifies else "features"


def why_place(folder: Path) -> str:
    """Why a run takes vectors before or after its head, in a few words."""
    found = recorded(folder)
    if not found:
        return "nothing was held out to compare"
    metrics = found.get("metrics", {})
    after = [value for name, value in metrics.items() if name.endswith(AFTER)]
    before = [value for name, value in metrics.items() if not name.endswith(AFTER)]
    if not after or not before:
        return "better on validation"
    if fmean(after) == fmean(before):
        return "a tie on validation"
    passed_over = found["place"] == "features" and fmean(after) > fmean(before)
    return "the head is a classifier" if passed_over else "better on validation"


def recorded(folder: Path) -> dict[str, Any]:
    """What a run found when it ended: step, samples, metrics, place; empty if nobody looked."""
    path = folder / VALIDATION
    if not path.is_file():
        return {}
    try:
        found = dict(json.loads(path.read_text()))
    except (ValueError, TypeError):
        found = {}
    if found.get("place") not in get_args(Place):
        raise DataError(f"{path} is damaged; remove it, and `rince train --resume {folder}` makes it again")
    return found
