"""What a report is made of: evaluated runs, opened, checked against each other, and named apart."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rince.config import Recipe, settings_of
from rince.errors import ConfigError, DataError
from rince.evaluation.evaluate import read_results, regrouped, reopened
from rince.evaluation.queries import Queries, read_queries
from rince.evaluation.samples import Samples
from rince.evaluation.trained import Embedded, TrainedRun, kept_features, made_of, open_trained
from rince.hierarchy.levels import group_numbers
from rince.report.album import Album
from rince.sources.splits import other_set
from rince.terminal import Tell
from rince.train.record import CHECKPOINT, logged_lines, noted_data
from rince.train.setup import Brought


@dataclass(frozen=True)
class Level:
    """A level of the taxonomy.

    Attributes:
        name: such as "superclass".
        groups: a short name for every group.
        of_class: the group of every class, in label order.
    """

    name: str
    groups: tuple[str, ...]
    of_class: tuple[int, ...]


@dataclass(frozen=True)
class ShownSet:
    """A training and a test set, as judging has noted them; the samples themselves may be gone since.

    Attributes:
        name: of the set.
        source: where it was.
        thing: what a sample is: "image", "video", …
        moves: whether there are films of them.
        classes: their names.
        levels: of the classes, the finest first.
        train: pictures of the training samples.
        test: pictures of those it was tested on.
    """

    name: str
    source: str
    thing: str
    moves: bool
    classes: tuple[str, ...]
    levels: tuple[Level, ...]
    train: Album
    test: Album


@dataclass(frozen=True)
class Shown:
    """A run as a report shows it.

    Attributes:
        folder: of the run.
        recipe: of the run.
        results: `results.json`; its recipe name is changed where two runs of one name differ in their settings.
        figures: `figures.json`.
        lines: of `metrics.jsonl`.
        label: what figures call the run; no two runs of a report have the same.
        sets: what it was judged on, by name.
        samples: by set, features and labels of its training and test samples.
        queries: what it does with every test sample; None if that is not known of this checkpoint and these samples.
        held_out: training samples of the run that it did not train on.
    """

    folder: Path
    recipe: Recipe
    results: dict[str, Any]
    figures: dict[str, Any]
    lines: tuple[dict[str, float], ...]
    label: str
    sets: dict[str, ShownSet]
    samples: dict[str, tuple[Samples, Samples]]
    queries: Queries | None = None
    held_out: int = 0

    @property
    def data(self) -> ShownSet:
        """The first set, which maps and matrices are of."""
        return next(iter(self.sets.values()))

    @property
    def train(self) -> Samples:
        """Of the first set."""
        return next(iter(self.samples.values()))[0]

    @property
    def test(self) -> Samples:
        """Of the first set."""
        return next(iter(self.samples.values()))[1]


def collect(folders: list[Path], tell: Tell, brought: dict[Path, Brought] | None = None) -> list[Shown]:
    """Opens runs, in the order given, and refuses those that cannot be compared."""
    seen: dict[Path, Path] = {}
    for folder in folders:
        if folder.resolve() in seen:
            raise ConfigError(f"{folder} and {seen[folder.resolve()]} are the same run; give it once")
        seen[folder.resolve()] = folder
    found: list[Shown] = []
    albums: dict[tuple[str, str], Album] = {}
    for number, folder in enumerate(folders):
        tell(f"reading {folder.name}", number, len(folders))
        found.append(_open(folder, (brought or {}).get(folder, Brought()), albums, found[0] if found else None))
    names, labels = _name([(shown.folder, shown.recipe) for shown in found])
    return [
        replace(shown, label=label, results=shown.results | {"recipe": name})
        for shown, name, label in zip(found, names, labels, strict=True)
    ]


def _open(folder: Path, brought: Brought, albums: dict[tuple[str, str], Album], first: Shown | None) -> Shown:
    """Needs what judging has left, and no sample: those that are gone have no picture, and that is all."""
    results, figures = read_results(folder)
    run = open_trained(folder, brought, accelerator="cpu", file=results.get("checkpoint_file", CHECKPOINT))
    run = run.looked_at(**results.get("looked_at", {}))
    for part in (results, figures):
        if part.get("checkpoint") != run.checkpoint:
            raise DataError(
                f"the results in {folder} are of another checkpoint than the one it has now "
                f"({str(part.get('checkpoint'))[:12]}, not {run.checkpoint[:12]}); run `rince evaluate {folder}` again"
            )
    sets = {name: _shown_set(run, name, noted, albums) for name, noted in figures["sets"].items()}
    held_out = noted_data(folder)[0].get("validation", {}).get("samples", 0)
    shown = Shown(folder, run.recipe, results, figures, tuple(logged_lines(folder)), "", sets, {}, held_out=held_out)
    if first is not None:
        _refuse_other_data(shown, first)
    samples = {}
    for name, noted in figures["sets"].items():
        own = not other_set(noted["source"], run.recipe.data.source)
        sides = [(side, side if own else f"{name}-{side}") for side in ("train", "test")]
        pair = [_samples(run, noted, side, kept_as, results["rince"]) for side, kept_as in sides]
        same = None if noted.get("same") is None else torch.tensor(noted["same"])
        samples[name] = (pair[0], replace(pair[1], same=same))
        _refuse_changed_data(run, noted, sets[name])
    return replace(shown, samples=samples, queries=_queries(run, figures["sets"]))


def _queries(run: TrainedRun, sets: dict[str, Any]) -> Queries | None:
    own = run.recipe.data.source
    tests = {other_set(noted["source"], own): noted["test"]["fingerprint"] for noted in sets.values()}
    found = read_queries(run.folder)
    return found if found and (found.checkpoint, found.tests) == (run.checkpoint, tests) else None


def _samples(run: TrainedRun, noted: dict[str, Any], side: str, name: str, version: str) -> Samples:
    labels = torch.tensor(noted[side]["labels"], dtype=torch.int64)
    made: Embedded | None = kept_features(run, name, made_of(run, noted[side]["fingerprint"], version))
    if made is None:
        raise DataError(f"{run.folder} has no features of {name!r} any more; run `rince evaluate {run.folder}` again")
    levels = {level: group_numbers(groups)[labels] for level, groups in noted["levels"].items()}
    return Samples(made.features, levels, made.embeddings)


def _shown_set(run: TrainedRun, name: str, noted: dict[str, Any], albums: dict[tuple[str, str], Album]) -> ShownSet:
    def album(side: str) -> Album:
        facts = noted[side]
        key = (noted["source"], facts["fingerprint"])
        if key not in albums:  # thousands of samples that another run has opened already
            reopen = reopened(run, noted["source"], noted["splits"][side])
            albums[key] = Album(facts, reopen, str(run.folder))
        return albums[key]

    classes = tuple(noted["classes"])
    levels = _levels(classes, noted["paths"], noted["levels"])
    kind = noted["thing"], noted["moves"]
    return ShownSet(name, noted["source"], *kind, classes, levels, album("train"), album("test"))


def _refuse_changed_data(run: TrainedRun, noted: dict[str, Any], data: ShownSet) -> None:
    for album in (data.train, data.test):
        album.refuse_others()
    if data.train.source is not None and regrouped(run, noted, data.train.source):
        raise DataError(
            f"the taxonomy of {run.folder} has changed since it was judged; run `rince evaluate {run.folder}` again"
        )


def _refuse_other_data(shown: Shown, first: Shown) -> None:
    both = f"{first.folder} and {shown.folder} cannot stand in one report:"
    if shown.data.thing != first.data.thing:
        raise DataError(
            f"{both} one was trained on {first.data.thing}s, the other on {shown.data.thing}s; write one report each"
        )
    pairs = [(first.data, shown.data)]
    pairs += [(first.sets[name], shown.sets[name]) for name in shown.sets if name in first.sets]
    for theirs, own in pairs:
        if own.test.content != theirs.test.content:
            things = f"{own.thing}s"
            raise DataError(
                f"{both} they were tested on different {things} ({theirs.source!r}, {len(theirs.test):,} {things}, and "
                f"{own.source!r}, {len(own.test):,}); write one report each"
            )
        if own.classes != theirs.classes:
            raise DataError(
                f"{both} their classes are not the same, {len(theirs.classes)} of {theirs.source!r} and "
                f"{len(own.classes)} of {own.source!r}; write one report each"
            )


def _levels(classes: tuple[str, ...], paths: list[list[str]], levels: dict[str, list[str]]) -> tuple[Level, ...]:
    """Levels with short names: the last part of a group's path, or the whole of it where two would be the same."""
    found = []
    for up, (name, whole) in enumerate(levels.items()):
        order = {group: number for number, group in enumerate(dict.fromkeys(whole))}
        last = {group: path[max(0, len(path) - 1 - up)] for group, path in zip(whole, paths, strict=True)}
        if up == 0:
            last = dict(zip(whole, classes, strict=True))
        short = list(last.values())
        groups = tuple(label if short.count(label) == 1 else group for group, label in last.items())
        found.append(Level(name, groups, tuple(order[group] for group in whole)))
    return tuple(found)


def _name(runs: list[tuple[Path, Recipe]]) -> tuple[list[str], list[str]]:
    """Row names and labels.

    Runs of one recipe and scale that differ in the seed alone share a row; those that differ in other settings do not,
    and their rows are named by the difference: `cifar100/rince-in, loss.over_ranks=mean`.
    """
    settings = [_settings(recipe) for _, recipe in runs]
    names = [recipe.name for _, recipe in runs]
    scales = [recipe.scale for _, recipe in runs]
    rows = []
    for name, scale, own in zip(names, scales, settings, strict=True):
        others = [s for n, c, s in zip(names, scales, settings, strict=True) if (n, c) == (name, scale)]
        apart = [key for key in own if any(other.get(key) != own[key] for other in others)]
        rows.append(", ".join([name, *(f"{key}={own[key]}" for key in apart)]))
    seeds = [(row, scale, recipe.seed) for row, scale, (_, recipe) in zip(rows, scales, runs, strict=True)]
    rows = [
        f"{row}, {folder.name}" if seeds.count(seed) > 1 else row
        for row, seed, (folder, _) in zip(rows, seeds, runs, strict=True)
    ]
    labels = []
    for row, scale, (_, recipe) in zip(rows, scales, runs, strict=True):
        more_scales = len({s for r, s in zip(rows, scales, strict=True) if r == row}) > 1
        more_seeds = list(zip(rows, scales, strict=True)).count((row, scale)) > 1
        labels.append(row + (f" ({scale})" if more_scales else "") + (f", seed {recipe.seed}" if more_seeds else ""))
    repeated = [labels.count(label) > 1 for label in labels]  # two folders of one name, one recipe and one seed
    return rows, [
        f"{label} #{number}" if again else label
        for number, (label, again) in enumerate(zip(labels, repeated, strict=True), 1)
    ]


def _settings(recipe: Recipe) -> dict[str, str]:
    """All settings that can change what comes out, but for the seed."""
    return {name: value for name, value in settings_of(recipe).items() if name != "seed"}
