"""A run of a table: what a person would type for it, and whether it is done, by the recipe that it would have now."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rince.config import Recipe, load_recipe
from rince.config.older import upgraded
from rince.config.reading import validate
from rince.errors import ConfigError, DataError
from rince.evaluation.metrics.accuracy import BEST_TEST, FINETUNED
from rince.evaluation.metrics.detection import AUROC
from rince.evaluation.metrics.metric import Named
from rince.evaluation.queries import QUERIES
from rince.files import file_digest_once
from rince.hierarchy.class_lists import outlier_name
from rince.sources.splits import other_set
from rince.train.record import CHECKPOINT, RECIPE

RESULTS = "results.json"


@dataclass(frozen=True)
class Job:
    """One run: a row of the table with a seed."""

    row: str
    seed: int
    recipe: str
    overrides: tuple[str, ...]
    folder: Path
    outliers: tuple[str, ...] = ()
    finetuned_on: tuple[str, ...] = ()

    @cached_property
    def loaded(self) -> Recipe:
        """The recipe as it will be run."""
        return load_recipe(self.recipe, list(self.overrides))

    @property
    def wanted(self) -> set[str]:
        """Names of the numbers without which it is not done."""
        wanted = [Named(AUROC, outlier_name(source)) for source in self.outliers]
        wanted += [Named(FINETUNED, on=other_set(source, self.loaded.data.source)) for source in self.finetuned_on]
        wanted += [Named(BEST_TEST)] if "paper" in self.commands[1] else []
        return {named.name for named in wanted}

    @property
    def commands(self) -> tuple[list[str], list[str]]:
        """What a person would type to train and to evaluate it."""
        train = ["rince", "train", self.recipe, *self.overrides, "--out", str(self.folder)]
        if self.finetuned_on:
            videos = [text for source in self.finetuned_on for text in ("--on", source)]
            return train, ["rince", "evaluate", str(self.folder), *videos, "--finetune"]
        outliers = [text for source in self.outliers for text in ("--outliers", source)]
        probe = ["--probe", "paper"] if "scale=full" in self.overrides else []  # as long as training, on two cores
        return train, ["rince", "evaluate", str(self.folder), *outliers, *probe]


def is_done(job: Job) -> bool:
    """Whether a run was evaluated at its end, by the recipe it would have now."""
    path = job.folder / RESULTS
    try:
        results = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError as error:  # it may well be done: nothing is trained anew, nor left out of the table
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    return (
        job.wanted <= results["metrics"].keys()
        and results["step"] == results["of_steps"]
        and (job.folder / QUERIES).exists()
        and (job.folder / CHECKPOINT).exists()
        and results["checkpoint"] == file_digest_once(job.folder / results.get("checkpoint_file", CHECKPOINT))
    )


def refuse_another_recipe(job: Job) -> None:
    """A folder that holds a run must hold this one; where its data lies may be written differently."""
    if not (job.folder / RECIPE).exists():
        return
    there, wanted = load_recipe(job.folder / RECIPE), job.loaded
    sources = [recipe.data.source for recipe in (there, wanted)]
    if there != wanted and not (
        Path(sources[0]).resolve() == Path(sources[1]).resolve() and same_but_for_place(there, wanted)
    ):
        raise ConfigError(f"{job.folder} holds a run of another recipe than {job.recipe} is now; choose another --out")


def recipe_of_values(values: Any) -> Recipe | None:
    """The recipe of a kept run; None for values that no recipe may have any more."""
    try:
        return validate(upgraded(values), "a kept run") if isinstance(values, dict) else None
    except ConfigError:
        return None


def same_but_for_place(there: Recipe, wanted: Recipe) -> bool:
    """Whether two recipes differ in where their data lies, at most, and in what is saved and logged on the way.

    The content of data is compared where runs meet.
    """
    same = {"save": there.save, "log": there.log, "data": wanted.data.model_copy(update={"source": there.data.source})}
    return there == wanted.model_copy(update=same)
