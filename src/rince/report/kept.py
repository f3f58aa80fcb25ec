"""What a summary keeps of a run besides its numbers: its training log, thinned, and its precision-recall curves."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from rince.evaluation.evaluate import FIGURES
from rince.report.drawing import clean, look, panels
from rince.report.tables import as_text
from rince.train.record import logged_lines

LOG, CURVES = ".log.csv", ".curves.csv"  # what the files of a run end in
LINES = 200  # of a thinned log; each is the mean of its part of the run
LEFT_OUT = "queries/"  # counts, which say nothing that the recipe does not

Curve = tuple[tuple[float, ...], tuple[float, ...]]
"""Recall and precision, point by point."""
Curves = Mapping[str, Mapping[str, Curve]]
"""Level, and row → its mean over the seeds."""


def thinned_log(folder: Path) -> str:
    """The log of a run in at most 200 lines, as CSV; empty if it has none.

    A line is the mean of its part of the logged steps, its `step` too; a cell is empty where nothing was logged.
    """
    lines = logged_lines(folder)
    keys = [key for key in dict.fromkeys(key for line in lines for key in line) if not key.startswith(LEFT_OUT)]
    rows = []
    for part in np.array_split(np.arange(len(lines)), min(LINES, max(1, len(lines)))):
        chosen = [lines[i] for i in part]
        rows.append([_mean_text([line[key] for line in chosen if key in line]) for key in keys])
    return _csv([as_text(key) for key in keys], rows) if lines else ""


def _mean_text(values: Sequence[float]) -> str:
    mean = math.fsum(values) / len(values) if values else math.nan
    if not math.isfinite(mean):
        return ""
    return f"{mean:.1f}".removesuffix(".0") if abs(mean) >= 1000 else f"{mean:.4g}"  # steps, and all else


def run_curves(folder: Path) -> str:
    """The precision-recall curves of a run, means over its queries, as CSV; empty if it has none."""
    path = folder / FIGURES
    found = json.loads(path.read_text("utf-8"))["curves"] if path.is_file() else {}
    rows = [
        [as_text(level), f"{recall:.4g}", f"{precision:.4f}"]
        for level, curve in found.items()
        for recall, precision in zip(curve["recall"], curve["precision"], strict=True)
        if precision is not None and math.isfinite(precision)
    ]
    return _csv(["level", "recall", "precision"], rows) if rows else ""


def mean_curves(runs: Mapping[str, Sequence[str]]) -> Curves:
    """Of every row over its seeds, by level; curves of other points than the first of the row are left out.

    Args:
        runs: row → what `run_curves` gives, of every seed.
    """
    means: dict[str, dict[str, Curve]] = {}
    for row, texts in runs.items():
        found: dict[str, list[Curve]] = {}
        for text in filter(None, texts):
            _, *lines = csv.reader(io.StringIO(text))
            for level, group in groupby(lines, key=lambda line: line[0]):
                recall, precision = zip(*((float(r), float(p)) for _, r, p in group), strict=True)
                found.setdefault(level, []).append((recall, precision))
        for level, curves in found.items():
            recall = curves[0][0]
            alike = [curve[1] for curve in curves if curve[0] == recall]
            precision = tuple(math.fsum(each) / len(each) for each in zip(*alike, strict=True))
            means.setdefault(level, {})[row] = recall, precision
    return means


def curves_csv(curves: Curves) -> str:
    """A line per level and recall, a column per row."""
    names = list(dict.fromkeys(row for of_rows in curves.values() for row in of_rows))
    rows = []
    for level, of_rows in curves.items():
        points = {row: dict(zip(*curve, strict=True)) for row, curve in of_rows.items()}
        for recall in sorted({recall for of_row in points.values() for recall in of_row}):
            cells = [points.get(row, {}).get(recall) for row in names]
            rows.append([level, f"{recall:.4g}", *("" if cell is None else f"{cell:.4f}" for cell in cells)])
    return _csv(["level", "recall", *map(as_text, names)], rows)


def draw_curves(curves: Curves) -> bytes:
    """An SVG with a panel for every level; those before the head first. A row looks the same in all."""
    names = list(dict.fromkeys(row for of_rows in curves.values() for row in of_rows))

    def panel(level: str) -> Callable[[Axes], None]:
        def paint(axes: Axes) -> None:
            for number, name in enumerate(names):
                recall, precision = curves[level].get(name, ((), ()))
                axes.plot(recall, precision, **look(number), label=clean(name))
            axes.set(title=clean(level), xlabel="recall", ylabel="precision", xlim=(0, 1))
            axes.set_ylim(bottom=0)

        return paint

    return panels("precision-recall", [panel(level) for level in sorted(curves, key=lambda each: "after" in each)])


def _csv(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([head, *rows])
    return out.getvalue()
