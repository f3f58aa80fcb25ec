"""What may change between two parts of a run, and what tells two recipes apart."""

from __future__ import annotations

from typing import Any

from rince.config.recipe import Recipe

# What a run is called, how it is kept and how it is fed: nothing that comes out of it depends on these.
NO_DIFFERENCE = ("name", "about", "paper", "save", "log", "data.workers")
# May change while a run stands still, too: how far it goes at most, what it is tested on, and where things lie. What
# lies there is known by its content, and must stay the same.
MAY_CHANGE = (
    "train.max_steps",
    "data.test_split",
    "data.source",
    "data.taxonomy",
    "data.classes",
    "data.splits",
    "ranks.file",
    "model.name",
    "model.start_from",
)


# What a row of the paper is as good with: where things lie, what is drawn, and how fast it goes.
ANY_ROW = (
    "seed",
    "data.source",
    "data.splits",
    "data.check",
    "data.strict",
    "model.compile",
    "train.precision",
    "train.judge_every",
)


def is_same_row(recipe: Recipe, row: Recipe) -> bool:
    """Whether a recipe still stands for a row of the paper, by the recipe of that row."""
    own, rows = ({k: v for k, v in settings_of(each).items() if k not in ANY_ROW} for each in (recipe, row))
    return own == rows


def settings_of(recipe: Recipe) -> dict[str, str]:
    """Dotted name → value of all settings that can change what comes out."""
    flat: dict[str, str] = {}

    def walk(value: Any, path: str) -> None:
        if path in NO_DIFFERENCE:
            return
        if isinstance(value, dict):
            for key, below in value.items():
                walk(below, f"{path}.{key}" if path else key)
        elif isinstance(value, list | tuple) and value and isinstance(value[0], dict):
            for number, below in enumerate(value):
                walk(below, f"{path}.{number}")
        else:
            flat[path] = str(value)

    walk(recipe.model_dump(), "")
    return flat


def changed_settings(now: Recipe, before: Recipe) -> list[str]:
    """What is not as it was, of all that must not change between two parts of one run: `seed is 2, was 1`."""
    new, old = settings_of(now), settings_of(before)
    return [
        f"{name} is {new.get(name, 'not there')}, was {old.get(name, 'not there')}"
        for name in {**old, **new}
        if name not in MAY_CHANGE and new.get(name) != old.get(name)
    ]
