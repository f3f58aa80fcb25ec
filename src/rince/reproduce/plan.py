"""What a table asks for: its rows at a scale, their seeds, and the recipe, data and outliers of every run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rince.errors import ConfigError, DataError
from rince.report import tables
from rince.reproduce.jobs import Job
from rince.sources.text_files import EMBEDDED

SEEDS = (123, 546, 937, 1, 2, 3, 4, 5, 6, 7)
USUAL_SEEDS = 3  # the first of them, where a table does not ask for more
# Where data is found by its name in the tables: below --data, or on the hub.
HUB = {"cifar100": "uoft-cs/cifar100", "cifar10": "uoft-cs/cifar10", "tiny-imagenet": "zh-plus/tiny-imagenet"}


@dataclass
class Plan:
    """A table at a scale, in a folder; a mistake in these is found when it is made, one in rows and seeds by `jobs`.

    Args:
        table: its name.
        scale: `"full"`, `"long"`, `"reduced"` or `"pretrained"`; None for reduced, or for tables of
            one scale only.
        out: folder.
        data: folder that holds the data sets by name, or None for the hub.
    """

    table: str
    scale: str | None
    out: Path
    data: Path | None = None
    _jobs: dict[tuple[str, int], Job] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        known = tables.paper_tables()
        if self.table not in known:
            raise ConfigError(f"there is no table {self.table!r}; there are {', '.join(known)}")
        self.scale = self._scale()
        if not self.runs:
            raise ConfigError(f"table {self.table!r} has no recipes yet")
        other_scales = self.content.get("more_runs", {}).values()
        named = {*self.runs, *self.content["runs"], *(row for rows in other_scales for row in rows)}
        strange = [row for pair in self.compared for row in pair if row not in named]
        if strange:
            raise ConfigError(f"table {self.table!r} compares {strange[0]!r}, which is no row that can be run")
        if self.data is not None and not self.data.is_dir():
            raise ConfigError(f"--data {self.data} is no folder; give the one that holds cifar100, cifar10, …")

    def _scale(self) -> str | None:
        scales = self.content.get("scales", ["full", "reduced"])
        if not scales and self.scale is not None:
            raise ConfigError(f"table {self.table!r} has one scale only; leave out --scale")
        if not scales:
            return None
        scale = self.scale or "reduced"
        if scale not in scales:
            raise ConfigError(f"table {self.table!r} has no scale {scale!r}; there are {', '.join(scales)}")
        return scale

    @cached_property
    def content(self) -> dict[str, Any]:
        """The table, as `paper_numbers.yaml` has it."""
        content: dict[str, Any] = tables.paper_tables()[self.table]
        return content

    @property
    def compared(self) -> list[Any]:
        """Pairs of rows whose difference is told."""
        pairs: list[Any] = self.content.get("compare", [])
        return pairs

    @cached_property
    def runs(self) -> dict[str, list[str]]:
        """Row → its recipe and changes, of those that there are at this scale."""
        runs: dict[str, list[str]] = self.content["runs"] | self.content.get("more_runs", {}).get(self.scale, {})
        left_out = self.content.get("left_out", {}).get(self.scale, [])
        return {row: run for row, run in runs.items() if row not in left_out}

    def jobs(self, rows: Sequence[str] | None = None, seeds: Sequence[int] | None = None) -> list[Job]:
        """All runs that are asked for, row by row.

        Args:
            rows: names of rows; None for all.
            seeds: of the runs; None for as many as the table asks for.
        """
        missing = [row for row in rows or [] if row not in self.runs]
        if missing:
            raise ConfigError(
                f"table {self.table!r} has no row {missing[0]!r} that can be run; "
                f"there are {', '.join(map(repr, self.runs))}"
            )
        if seeds and len(set(seeds)) != len(seeds):
            raise ConfigError(f"a seed stands twice: {', '.join(map(str, seeds))}")
        return [self.job(row, seed) for row in rows or self.runs for seed in seeds or self._seeds(row)]

    def _seeds(self, row: str) -> Sequence[int]:
        number = self.content.get("seeds", USUAL_SEEDS)
        if isinstance(number, dict):  # by scale
            number = number.get(self.scale, USUAL_SEEDS)
        if row in self.content.get("three_seeds", []):
            number = USUAL_SEEDS
        recipe = self.runs[row][0]
        return SEEDS[: 1 if recipe.endswith("/frozen") else number]  # nothing is drawn where nothing is trained

    def job(self, row: str, seed: int) -> Job:
        """The run of a row with a seed; always the same one, so that its recipe is read once."""
        if (row, seed) not in self._jobs:
            self._jobs[row, seed] = self._new_job(row, seed)
        return self._jobs[row, seed]

    def _new_job(self, row: str, seed: int) -> Job:
        table = self.content
        recipe, *changes = self.runs[row]
        source = self._source(self._by_scale(table["data"]))
        scale = [f"scale={self.scale}"] if self.scale else []
        own = {change.partition("=")[0] for change in changes}
        chosen = [each for each in table.get("settings", []) if each.partition("=")[0] not in own]
        overrides = (*scale, f"data.source={source}", f"seed={seed}", *chosen, *changes)
        outliers = tuple(self._source(name) for name in table.get("outliers", []))
        finetuned_on = tuple(self._source(name) for name in self._by_scale(table.get("finetune", [])))
        return Job(row, seed, recipe, overrides, self.folder(row) / f"seed-{seed}", outliers, finetuned_on)

    def _by_scale(self, value: Any) -> Any:
        return value[self.scale] if isinstance(value, dict) else value

    def folder(self, row: str) -> Path:
        """Of the runs of a row."""
        return self.out / "runs" / slug(row)

    def _source(self, text: str) -> str:
        """Where data lies; `name:list` for a part of its classes."""
        name, colon, classes = text.partition(":")
        return self._place(name) + colon + classes

    def _place(self, name: str) -> str:
        if name in EMBEDDED:
            return name
        if self.data is None:
            if name not in HUB:
                raise ConfigError(f"{name} cannot be had from the hub; give --data DIR, a folder that holds {name}")
            return HUB[name]
        if not (self.data / name).exists():
            hub = ", or leave out --data to use the hub" if name in HUB else ""
            raise DataError(f"--data {self.data} holds no {name}; put it there{hub}")
        return str(self.data / name)


def place_of_seed(seed: int) -> tuple[int, int]:
    """Where a seed stands: in the order of ours, others after them."""
    return (SEEDS.index(seed) if seed in SEEDS else len(SEEDS), seed)


def stem(row: str, seed: int) -> str:
    """What the files of a run are called in a summary."""
    return f"{slug(row)}-seed-{seed}"


def slug(row: str) -> str:
    """A row's name as a folder: `RINCE-out-in` → `rince-out-in`, `τ₂ = 0.125` → `tau2-0.125`."""
    letters = {"τ": "tau", "α": "alpha", "λ": "lambda", "₂": "2"}
    plain = "".join(letters.get(character, character) for character in row.lower())
    return re.sub(r"[^a-z0-9.]+", "-", plain).strip("-.")
