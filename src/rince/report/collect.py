"""What a report is made of: evaluated runs, opened, checked against each other, and named apart."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rince.config import Recipe
from rince.hierarchy.levels import class_levels, class_paths
from rince.sources.image_files import LargeImages
from rince.sources.images import ImageSet
from rince.errors import ConfigError, DataError
from rince.evaluation.trained import TrainedRun, open_trained
from rince.evaluation.evaluate import levels_fingerprint, load_samples, load_split, read_results
from rince.evaluation.judge import Tell
from rince.evaluation.samples import Samples
from rince.evaluation.videos import kept_features
from rince.report.footage import Videos, noted
from rince.train.record import METRICS

Images = ImageSet | LargeImages | Videos

# Settings that change how a run is kept, not what comes out of it.
NO_DIFFERENCE = ("seed", "about", "paper", "save", "log", "data.workers")


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
class Shown:
    """A run as a report shows it.

    Attributes:
        folder: of the run.
        recipe: of the run.
        results: `results.json`; its recipe name is changed where two runs of one name differ in their settings.
        figures: `figures.json`.
        lines: of `metrics.jsonl`.
        label: what figures call the run; no two runs of a report have the same.
        data: a training and a test set that other runs may share.
        train: features and labels of the training images or videos.
        test: features and labels of those it was tested on.
    """

    folder: Path
    recipe: Recipe
    results: dict[str, Any]
    figures: dict[str, Any]
    lines: tuple[dict[str, float], ...]
    label: str
    data: Data
    train: Samples
    test: Samples


@dataclass(frozen=True)
class Data:
    """What a run is tested with.

    Attributes:
        train: images or videos; of several sets of videos, those of the first.
        test: likewise.
        classes: their names.
        levels: of the classes, the finest first.
        sets: of a run on videos, name of every set it was judged on → its training and its test videos.
    """

    train: Images
    test: Images
    classes: tuple[str, ...]
    levels: tuple[Level, ...]
    sets: dict[str, tuple[Videos, Videos]] = field(default_factory=dict)

    @property
    def all_videos(self) -> list[Videos]:
        """Of all sets, both sides."""
        return [videos for pair in self.sets.values() for videos in pair]

    @property
    def thing(self) -> str:
        """What one of them is: "image" or "video"."""
        return "video" if self.sets else "image"


def collect(folders: list[Path], tell: Tell) -> list[Shown]:
    """Opens runs, in the order given, and refuses those that cannot be compared."""
    seen: dict[Path, Path] = {}
    for folder in folders:
        if folder.resolve() in seen:
            raise ConfigError(f"{folder} and {seen[folder.resolve()]} are the same run; give it once")
        seen[folder.resolve()] = folder
    found: list[Shown] = []
    for number, folder in enumerate(folders):
        tell(f"reading {folder.name}", number, len(folders))
        found.append(_open(folder, found[0] if found else None, tell))
    names, labels = _name([(shown.folder, shown.recipe) for shown in found])
    return [
        Shown(**vars(shown) | {"label": label, "results": shown.results | {"recipe": name}})
        for shown, name, label in zip(found, names, labels, strict=True)
    ]


def _open(folder: Path, first: Shown | None, tell: Tell) -> Shown:
    results, figures = read_results(folder)
    run = open_trained(folder)
    for part in (results, figures):
        if part.get("checkpoint") != run.checkpoint:
            raise DataError(
                f"the results in {folder} are of another checkpoint than the one it has now "
                f"({str(part.get('checkpoint'))[:12]}, not {run.checkpoint[:12]}); run `rince evaluate {folder}` again"
            )
    if first is not None and (run.recipe.clips is None) != (first.recipe.clips is None):
        kinds = ("images", "videos") if first.recipe.clips is None else ("videos", "images")
        raise DataError(
            f"{first.folder} and {folder} cannot stand in one report: one was trained on {kinds[0]}, the other on "
            f"{kinds[1]}; write one report each"
        )
    if run.recipe.clips is None:
        data, train, test = _open_images(run, results, first, tell)
    else:
        data, train, test = _open_videos(run, figures, first)
    return Shown(folder, run.recipe, results, figures, _lines(folder / METRICS), "", data, train, test)


def _open_images(
    run: TrainedRun, results: dict[str, Any], first: Shown | None, tell: Tell
) -> tuple[Data, Samples, Samples]:
    folder, settings = run.folder, run.recipe.data
    same_split = first is not None and first.results.get("split") == results.get("split")
    if first is not None and same_split and first.recipe.data.model_dump() == settings.model_dump():
        data = first.data  # thousands of images, already decoded
    else:
        train_images, test_images = (
            load_split(run, split) for split in (settings.train_split, results.get("split", settings.test_split))
        )
        data = Data(
            train_images, test_images, tuple(map(str, test_images.class_names)), _levels(test_images, settings.taxonomy)
        )
    assert not isinstance(data.train, Videos)
    assert not isinstance(data.test, Videos)
    if first is not None:
        _refuse_other_data(folder, data, first)
    levels = class_levels(data.train, settings.taxonomy)
    if results.get("levels") not in (None, levels_fingerprint(levels)):
        raise DataError(
            f"the taxonomy of {folder} has changed since it was judged; run `rince evaluate {folder}` again"
        )
    train, test = (
        load_samples(run, images, levels, name, tell) for name, images in (("train", data.train), ("test", data.test))
    )
    return data, train, test


def _open_videos(run: TrainedRun, figures: dict[str, Any], first: Shown | None) -> tuple[Data, Samples, Samples]:
    """Needs what judging has left, and no video: those that are gone have no picture, and that is all."""
    if not figures.get("sets"):
        raise DataError(f"{run.folder} was judged by an older rince; run `rince evaluate {run.folder}` again")
    seen = {(videos.fingerprint, videos.paths): videos for videos in (first.data.all_videos if first else ())}

    def videos_of(facts: dict[str, Any], side: str) -> Videos:
        own = noted(facts, side)
        return seen.get((own.fingerprint, own.paths), own)  # already looked for on the disk

    sets = {name: (videos_of(facts, "train"), videos_of(facts, "test")) for name, facts in figures["sets"].items()}
    name, (train, test) = next(iter(sets.items()))
    classes = tuple(map(str, test.class_names))
    data = Data(train, test, classes, (Level("class", classes, tuple(range(len(classes)))),), sets)
    if first is not None:
        _refuse_other_data(run.folder, data, first)
    kept = [
        kept_features(run, f"{name}-{side}", videos.fingerprint) for side, videos in (("train", train), ("test", test))
    ]
    samples = [
        Samples(made.features, {"class": videos.labels}, made.embeddings)
        for made, videos in zip(kept, (train, test), strict=True)
    ]
    return data, samples[0], samples[1]


def _refuse_other_data(folder: Path, data: Data, first: Shown) -> None:
    both = f"{first.folder} and {folder} cannot stand in one report:"
    pairs = [(first.data.test, data.test)]
    pairs += [(first.data.sets[name][1], data.sets[name][1]) for name in data.sets if name in first.data.sets]
    for theirs, own in pairs:
        if own.fingerprint != theirs.fingerprint:
            things = f"{data.thing}s"
            raise DataError(
                f"{both} they were tested on different {things} ({theirs.source!r}, {len(theirs):,} {things}, and "
                f"{own.source!r}, {len(own):,}); write one report each"
            )
    if data.levels != first.data.levels:
        raise DataError(
            f"{both} their classes are grouped differently, by {_level_names(first.data)} and by {_level_names(data)}; "
            "use one data.taxonomy for both"
        )


def _level_names(data: Data) -> str:
    return ", ".join(f"{level.name} ({len(level.groups)})" for level in data.levels)


def _levels(images: ImageSet | LargeImages, taxonomy: str) -> tuple[Level, ...]:
    """Levels with short names: the last part of a group's path, or the whole of it where two would be the same."""
    paths = class_paths(images, taxonomy)
    levels = []
    for up, (level, whole) in enumerate(class_levels(images, taxonomy).items()):
        order = {group: number for number, group in enumerate(dict.fromkeys(whole))}
        last = {group: path[max(0, len(path) - 1 - up)] for group, path in zip(whole, paths, strict=True)}
        if up == 0:
            last = dict(zip(whole, map(str, images.class_names), strict=True))
        short = list(last.values())
        groups = tuple(name if short.count(name) == 1 else group for group, name in last.items())
        levels.append(Level(level, groups, tuple(order[group] for group in whole)))
    return tuple(levels)


def _lines(path: Path) -> tuple[dict[str, float], ...]:
    if not path.is_file():
        return ()
    try:
        return tuple(json.loads(line) for line in path.read_text("utf-8").splitlines() if line)
    except json.JSONDecodeError as error:
        raise DataError(f"{path} is damaged ({error}); take the damaged line out") from None


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
    """Dotted name → value of all settings that can change what comes out, but for the seed."""
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
