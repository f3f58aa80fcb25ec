"""Every figure of a report that stands still."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from rince.evaluation.metrics import values_of
from rince.evaluation.metrics.detection import AUROC
from rince.evaluation.metrics.metric import Metric, Named
from rince.evaluation.metrics.search import MAP
from rince.evaluation.metrics.shape import ALIGNMENT, UNIFORMITY
from rince.report.atlas import RunMap
from rince.report.collect import Level, Shown
from rince.report.drawing import (
    DASHES,
    MUTED,
    NEGATIVE,
    RANKS,
    SHAPES,
    Drawn,
    clean,
    draw,
    group_marks,
    look,
    slug,
    spread,
)

SQUARE = (5.4, 4.1)
MOST_NAMES, HEIGHT = 40, 220  # of the rows of a matrix; points that a matrix in a square is high
SAID = {"similarity/negative": "negatives", "validation/loss": "held-out samples"}
JUDGED, RECALL = "validation/", "/recall@1"
POINTS = 120  # of a training curve; each is a mean over its part of the run


def training_curves(runs: Sequence[Shown], names: Sequence[str]) -> list[list[Drawn]]:
    """Up to five panels per run: terms, mean similarity and violated orders of every rank; scales common to all runs.

    A run that holds samples out shows their loss beside that of its batches, and R@1 on them if it was looked at
    (`train.judge_every`). A method that logs no terms shows its loss
    instead, and none of the panels it has no values for.
    """
    panels = (
        ("terms", "term/", "Loss term of each rank", "term"),
        ("similarity", "similarity/", "Mean similarity", "cosine with the query"),
        ("violated", "violated/", "Violated orders", "share of pairs"),
        ("validation", "validation/loss", "Loss", "loss"),
        ("judged", JUDGED, "On held-out samples", "R@1"),
    )
    drawn: list[list[Drawn]] = [[] for _ in runs]
    for kind, prefix, title, axis in panels:
        keys = [_logged(run, prefix) for run in runs]
        values = [
            line[key] for run, own in zip(runs, keys, strict=True) for line in run.lines for key in own & set(line)
        ]
        finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
        low, high = (float(np.percentile(finite, q)) for q in (0.2, 99.8))
        low = low - 0.05 * (high - low) if kind == "similarity" else min(0.0, low)
        limits = (low, high + 0.05 * (high - low) + 1e-3)
        for row, run, own, name in zip(drawn, runs, keys, names, strict=True):
            if own:
                heading = title if own != {"loss"} else "Loss"
                paint = _curves(run, sorted(own), heading, axis if own != {"loss"} else "loss", limits)
                row.append(draw(f"training-{kind}-{name}", f"{heading} over steps, {clean(run.label)}", paint))
    return drawn


def _logged(run: Shown, prefix: str) -> set[str]:
    found = {key for line in run.lines for key in line if key.startswith(prefix)}
    if prefix == JUDGED:
        return {key for key in found if RECALL in key}
    if prefix == "validation/loss" and found:
        return found | {"loss"}
    if prefix == "similarity/" and "similarity/frame" in found:  # ranks are means of what clips are called
        found = {key for key in found if not key.rpartition("/")[2].isdigit()}
    return found or {key for line in run.lines for key in line if key == "loss" and prefix == "term/"}


def _curves(
    run: Shown, keys: Sequence[str], title: str, axis: str, limits: tuple[float, float]
) -> Callable[[Axes], None]:
    def paint(axes: Axes) -> None:
        for number, key in enumerate(keys):
            steps, values = binned([(line["step"], line[key]) for line in run.lines if key in line])
            which = key.removeprefix(JUDGED).replace(RECALL, "") if RECALL in key else key.rpartition("/")[2]
            place = int(which) - 1 if which.isdigit() else number
            negative = which == "negative"
            axes.plot(
                steps,
                values,
                color=NEGATIVE if negative else RANKS[place % len(RANKS)],
                linestyle=DASHES[2 if negative else place % len(DASHES)],
                label=SAID.get(key) or (f"rank {which}" if which.isdigit() else clean(which)),
            )
        axes.set(title=title, xlabel="step", ylabel=axis, ylim=limits)
        axes.locator_params(axis="x", nbins=6)
        axes.legend(loc="best", ncols=2 if len(keys) > 2 else 1)

    return paint


def binned(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Means of equal parts of a long curve; a short one as it is."""
    array = np.array([point for point in points if math.isfinite(point[1])]).reshape(-1, 2)
    parts = np.array_split(array, min(POINTS, max(1, len(array))))
    means = [part.mean(axis=0) for part in parts if len(part)]
    return [float(mean[0]) for mean in means], [float(mean[1]) for mean in means]


def similarity_matrices(runs: Sequence[Shown], names: Sequence[str]) -> list[list[Drawn]]:
    """Class similarity before and after the head, classes sorted by the taxonomy, colours common to all runs."""
    drawn: list[list[Drawn]] = [[] for _ in runs]
    present = sorted(set(runs[0].test.labels.tolist()))
    levels = runs[0].data.levels
    order = sorted(range(len(present)), key=lambda i: tuple(level.of_class[present[i]] for level in reversed(levels)))
    groups = [levels[min(1, len(levels) - 1)].of_class[present[i]] for i in order]
    shown = levels[min(1, len(levels) - 1)]
    for place in ("before", "after"):
        matrices = [
            np.array(run.figures["class_similarity"][place], dtype=float)[np.ix_(order, order)]
            if place in run.figures.get("class_similarity", {})
            else None
            for run in runs
        ]
        # The diagonal is brighter than all else and would take the whole scale.
        rest = [m[~np.eye(len(m), dtype=bool)] for m in matrices if m is not None and len(m) > 1]
        limits = tuple(np.nanpercentile(np.concatenate(rest), (0.5, 99.8))) if rest else (0.0, 1.0)
        for row, matrix, run, name in zip(drawn, matrices, runs, names, strict=True):
            if matrix is not None:
                paint = _matrix(matrix, groups, shown, f"{place.capitalize()} the head", limits)
                about = (
                    f"Mean cosine between test {run.data.thing}s of two classes, {place} the head, {clean(run.label)}"
                )
                row.append(draw(f"similarity-{place}-{name}", about, paint, SQUARE))
    return drawn


def _matrix(
    matrix: np.ndarray[Any, Any], groups: list[int], level: Level, title: str, limits: tuple[float, ...]
) -> Callable[[Axes], None]:
    def paint(axes: Axes) -> None:
        image = axes.imshow(matrix, cmap="viridis", vmin=limits[0], vmax=limits[1], interpolation="none")
        edges = [i for i in range(1, len(groups)) if groups[i] != groups[i - 1]]
        starts = [0, *edges]
        centres = [(start + stop - 1) / 2 for start, stop in zip(starts, [*edges, len(groups)], strict=True)]
        if 1 < len(starts) < len(groups):
            for edge in edges:
                axes.axhline(edge - 0.5, color="white", linewidth=0.5, alpha=0.4)
                axes.axvline(edge - 0.5, color="white", linewidth=0.5, alpha=0.4)
        axes.set(title=title, xticks=[], yticks=[])
        if len(starts) <= MOST_NAMES:
            names = [clean(level.groups[groups[start]].replace("_", " "), 24) for start in starts]
            _name_rows(axes, names, centres, len(groups))
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        assert axes.figure is not None
        bar = axes.figure.colorbar(image, ax=axes, shrink=0.6, aspect=24, pad=0.02)
        bar.outline.set_visible(False)

    return paint


def _name_rows(axes: Axes, names: Sequence[str], centres: Sequence[float], rows: int) -> None:
    """Names beside the rows of a matrix, moved apart where they would lie over each other, with a line to each row."""
    size = min(8.5, HEIGHT / (1.3 * len(names)))  # in points; all of them fit
    least = rows * 1.25 * size / HEIGHT
    places = spread(centres, least, -0.5 + least / 2, rows - 0.5 - least / 2)
    for name, centre, place in zip(names, centres, places, strict=True):
        axes.annotate(
            name,
            (-0.5, centre),
            (-0.5 - 0.05 * rows, place),
            fontsize=size,
            ha="right",
            va="center",
            color=MUTED,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": MUTED,
                "linewidth": 0.5,
                "relpos": (1, 0.5),
                "shrinkA": 1,
                "shrinkB": 0,
            },
        )


def precision_recall(runs: Sequence[Shown]) -> list[Drawn]:
    """One panel per level, set of data and place, all runs in it; those before the head first."""
    panels = sorted(_common(MAP, runs), key=lambda panel: panel[0].place != "before")

    def paint_level(named: Named, values: Sequence[float]) -> Callable[[Axes], None]:
        def paint(axes: Axes) -> None:
            for number, (run, value) in enumerate(zip(runs, values, strict=True)):
                curve = run.figures["curves"][named.where]
                text = f"{_short(run)}, {MAP.heading} {MAP.unit.text(value)}"
                axes.plot(curve["recall"], curve["precision"], **look(number), label=text)
            axes.set(title=clean(named.group), xlabel="recall", ylabel="precision", xlim=(0, 1))
            axes.set_ylim(bottom=0)
            axes.legend(loc="upper right")

        return paint

    return [
        draw(
            f"precision-recall-{number}-{slug(named.where)}",
            f"Precision over recall, level {clean(named.where)}",
            paint_level(named, values),
        )
        for number, (named, values) in enumerate(panels, 1)
    ]


def _common(metric: Metric, runs: Sequence[Shown]) -> list[tuple[Named, list[float]]]:
    """The numbers of a metric that all runs have."""
    found = [values_of(metric, run.results["metrics"]) for run in runs]
    return [(named, [values[named] for values in found]) for named in found[0] if all(named in v for v in found)]


def outlier_sets(runs: Sequence[Shown]) -> list[str]:
    """Names of the outlier sets that any of the runs was judged on."""
    return list(dict.fromkeys(name for run in runs for name in run.figures.get("outliers", {})))


def outlier_panels(runs: Sequence[Shown], names: Sequence[str], outliers: str, number: int) -> list[Drawn]:
    """A ROC curve with all runs, then the histograms of each."""
    judged = [(i, run) for i, run in enumerate(runs) if outliers in run.figures.get("outliers", {})]

    def areas(run: Shown) -> dict[str, str]:
        found = values_of(AUROC, run.results["metrics"])
        return {named.where: AUROC.unit.text(value) + AUROC.unit.sign for named, value in found.items()}

    def paint_roc(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, linestyle=DASHES[2])
        for i, run in judged:
            roc = run.figures["outliers"][outliers]["roc"]
            axes.plot(roc["false"], roc["true"], **look(i), label=f"{_short(run)}, {areas(run)[outliers]}")
        axes.set(title="ROC", xlabel="outliers accepted", ylabel="inliers accepted", xlim=(0, 1), ylim=(0, 1.01))
        axes.legend(loc="lower right")

    def paint_scores(run: Shown) -> Callable[[Axes], None]:
        def paint(axes: Axes) -> None:
            scores = run.figures["outliers"][outliers]
            axes.stairs(scores["inliers"], scores["edges"], fill=True, color=RANKS[1], alpha=0.35)
            axes.stairs(scores["inliers"], scores["edges"], color=RANKS[0], linewidth=1.2, label="inliers")
            axes.stairs(
                scores["outliers"], scores["edges"], color=NEGATIVE, linewidth=1.2, linestyle="--", label="outliers"
            )
            axes.set(title=_short(run), xlabel="inlier score", ylabel="share of images", yticks=[])
            axes.legend(loc="upper left")

        return paint

    stem = f"outliers-{number}-{slug(outliers)}"
    about = clean(outliers)
    return [
        draw(f"{stem}-roc", f"ROC curves, outliers from {about}", paint_roc),
        *(
            draw(
                f"{stem}-scores-{names[i]}", f"Scores of inliers and of {about}, {clean(run.label)}", paint_scores(run)
            )
            for i, run in judged
        ),
    ]


def planes(runs: Sequence[Shown]) -> list[Drawn]:
    """Alignment and uniformity, one panel per level and set of data, all runs in it."""
    even = {named.on: values for named, values in _common(UNIFORMITY, runs)}

    def paint_level(named: Named, tight: Sequence[float]) -> Callable[[Axes], None]:
        def paint(axes: Axes) -> None:
            for number, (run, x, y) in enumerate(zip(runs, tight, even[named.on], strict=True)):
                axes.scatter(
                    x, y, s=58, color=look(number)["color"], marker=SHAPES[number % 4], label=_short(run), zorder=3
                )
            _widen(axes)
            axes.locator_params(nbins=5)
            axes.set(title=f"Same {clean(named.where)}", xlabel=ALIGNMENT.heading, ylabel=UNIFORMITY.heading)
            axes.annotate(
                "better",
                (0.02, 0.03),
                (0.13, 0.13),
                "axes fraction",
                arrowprops={"arrowstyle": "->", "color": MUTED},
                color=MUTED,
                fontsize=8.5,
            )
            axes.legend(loc="upper right")

        return paint

    return [
        draw(
            f"plane-{n}-{slug(named.where)}",
            f"Alignment and uniformity, level {clean(named.where)}",
            paint_level(named, tight),
        )
        for n, (named, tight) in enumerate(_common(ALIGNMENT, runs), 1)
    ]


def _widen(axes: Axes) -> None:
    """Room around the points, and so much of it that small differences look small."""
    for limits, set_limits, least in (
        (axes.get_xlim(), axes.set_xlim, 0.2),
        (axes.get_ylim(), axes.set_ylim, 0.2),
    ):
        middle, span = sum(limits) / 2, max(least, 2 * (limits[1] - limits[0]))
        set_limits(middle - span / 2, middle + span / 2)


def still_maps(maps: Sequence[RunMap], names: Sequence[str], classes: Sequence[int]) -> list[Drawn]:
    """The maps of the page as figures, one per run and level."""

    def paint_map(run: RunMap, level: Level, marks: list[tuple[str, int]]) -> Callable[[Axes], None]:
        def paint(axes: Axes) -> None:
            groups = np.array([level.of_class[label] for label in classes])
            for group in sorted(set(groups.tolist())):
                colour, shape = marks[group]
                x, y = run.places[groups == group].T.tolist()
                name = clean(level.groups[group].replace("_", " "), 24)
                axes.scatter(x, y, s=13, color=colour, marker=SHAPES[shape], linewidths=0, label=name)
            axes.set(title=f"{_short(run.shown)}, by {clean(level.name)}", xticks=[], yticks=[], aspect="equal")
            axes.spines[:].set_visible(False)
            if len(level.groups) <= 24:
                axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=7, handlelength=1)

        return paint

    return [
        draw(
            f"map-{name}-{number}-{slug(level.name)}",
            f"t-SNE map of test {run.shown.data.thing}s, {clean(run.shown.label)}, coloured by {clean(level.name)}",
            paint_map(run, level, group_marks(run.shown.data.levels, number - 1)),
            SQUARE,
        )
        for run, name in zip(maps, names, strict=True)
        for number, level in enumerate(run.shown.data.levels, 1)
    ]


def _short(run: Shown) -> str:
    return clean(run.label, 34)
