"""Runs whose classes are grouped by different taxonomies, compared at the levels that all of them have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from rince.evaluation.metrics import parse
from rince.evaluation.metrics.metric import HOLE, Named
from rince.evaluation.metrics.search import HIERARCHICAL, MAP
from rince.evaluation.metrics.shape import SIMILARITY
from rince.evaluation.samples import Samples
from rince.report.collect import Level, Shown
from rince.sources.splits import other_set

OF_HIERARCHY = (*HIERARCHICAL, SIMILARITY)  # by ranks that follow from all levels
LEVELS = "levels"  # a protocol of no metric
Value = TypeVar("Value")


def at_shared_levels(runs: Sequence[Shown]) -> tuple[list[Shown], str]:
    """Runs with what all of them can be compared by, and in a sentence what was left out; empty if nothing was.

    A level is shared if it groups the classes alike in all runs, whatever it is called: it gets the name it has in the
    first. Numbers of a level that is not shared are left out, and so are those of the whole hierarchy.
    """
    names = dict.fromkeys(on for run in runs for on in _sets(run))
    kept: dict[str, list[Level]] = {}
    left_out: list[str] = []
    for on in names:
        having = [(run, _sets(run)[on]) for run in runs if on in _sets(run)]
        levels = [run.sets[name].levels for run, name in having]
        kept[on] = [level for level in levels[0] if all(_same(level, own) for own in levels)]
        apart = [
            f"{level.name} ({len(level.groups)}) of {run.folder}"
            for (run, _), own in zip(having, levels, strict=True)
            for level in own
            if not _same(level, kept[on])
        ]
        left_out += apart
        if not apart and all([level.name for level in own] == [level.name for level in levels[0]] for own in levels):
            del kept[on]  # nothing to do
    if not kept:
        return list(runs), ""
    note = f"the classes are grouped by different taxonomies; compared at {_told(kept)}" + (
        f"; left out: {', '.join(left_out)}, and what is measured over a whole hierarchy" if left_out else ""
    )
    return [_at(run, kept, hierarchy=not left_out, note=note) for run in runs], note


def _told(kept: Mapping[str, Sequence[Level]]) -> str:
    return ", ".join(
        dict.fromkeys(f"{level.name} ({len(level.groups)})" for levels in kept.values() for level in levels)
    )


def _sets(run: Shown) -> dict[str, str]:
    """What metrics call a set, nothing for the run's own → its name."""
    return {other_set(each.source, run.recipe.data.source): name for name, each in run.sets.items()}


def _same(level: Level, others: Sequence[Level]) -> bool:
    return any(level.of_class == other.of_class for other in others)


def _at(run: Shown, kept: Mapping[str, Sequence[Level]], *, hierarchy: bool, note: str) -> Shown:
    """One run at some levels of some sets."""
    renamed: dict[tuple[str, str], str] = {}
    sets, samples = dict(run.sets), dict(run.samples)
    for on, name in _sets(run).items():
        if on not in kept:
            continue
        of = {level.of_class: level.name for level in kept[on]}
        own = {level.name: of[level.of_class] for level in run.sets[name].levels if level.of_class in of}
        renamed |= {(on, level.name): own.get(level.name, "") for level in run.sets[name].levels}
        sets[name] = replace(run.sets[name], levels=tuple(kept[on]))
        train, test = run.samples[name]
        samples[name] = (_at_levels(train, own), _at_levels(test, own))

    def fitting(values: Mapping[str, Value]) -> dict[str, Value]:
        names = {name: _renamed(parse(name), kept, renamed, hierarchy=hierarchy) for name in values}
        return {new.name: values[name] for name, new in names.items() if new is not None}

    results = run.results | {"metrics": fitting(run.results["metrics"])}
    results["protocol"] = run.results["protocol"] | {LEVELS: note}
    curves = _curves(run.figures["curves"], run.results["metrics"], kept, renamed)
    queries = None if run.queries is None else run.queries._replace(values=fitting(run.queries.values))
    figures = run.figures | {"curves": curves}
    return replace(run, results=results, figures=figures, sets=sets, samples=samples, queries=queries)


def _at_levels(samples: Samples, names: Mapping[str, str]) -> Samples:
    return replace(samples, levels={names[level]: n for level, n in samples.levels.items() if level in names})


def _renamed(
    named: Named, kept: Mapping[str, Any], renamed: Mapping[tuple[str, str], str], *, hierarchy: bool
) -> Named | None:
    """The name of a number, its level called as in the first run; None if it is not compared."""
    if named.on not in kept:
        return named
    if named.metric in OF_HIERARCHY:
        return named if hierarchy else None
    if HOLE not in named.metric.pattern or (named.on, named.qualifier) not in renamed:
        return named
    level = renamed[named.on, named.qualifier]
    return named._replace(qualifier=level) if level else None


def _curves(
    curves: Mapping[str, Any],
    metrics: Mapping[str, float],
    kept: Mapping[str, Any],
    renamed: Mapping[tuple[str, str], str],
) -> dict[str, Any]:
    of_maps = [named for named in map(parse, metrics) if named.metric is MAP]
    pairs = [(named.where, _renamed(named, kept, renamed, hierarchy=True)) for named in of_maps]
    return {new.where: curves[where] for where, new in pairs if new is not None and where in curves}
