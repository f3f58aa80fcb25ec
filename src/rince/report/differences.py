"""Differences of rows on the same test queries, with their intervals; and the file that they can be made from again."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rince.evaluation.metrics import parse
from rince.evaluation.paired import Difference, interval_of_means
from rince.report.tables import PLACES, as_text, at_place, corner_at, fitting, latex_grid, markdown_grid

Means = Mapping[str, Mapping[str, Tensor]]
"""Row → metric → `(queries,)` means over the seeds of the row."""
Seeds = Mapping[str, Mapping[str, Sequence[int]]]
"""Row → metric → the seeds that its means are of."""
Groups = Mapping[str, Tensor]
"""Set, empty for the runs' own → `(queries,)`, equal for test samples that belong together; sets without are absent."""
MANY = 12  # seeds, up to which means of right and wrong are kept as counts
LEGEND = (
    "Differences of the means over all seeds on the same test queries, with 95 % intervals (bootstrap over {}). "
    "**Gain**: the interval lies above 0; _loss_: below."
)


class Compared(NamedTuple):
    """A row less another."""

    ours: str
    theirs: str
    cells: dict[str, Difference]
    """By metric, for those that both rows have."""
    groups: dict[str, int]
    """By metric, for those whose test queries belong together: how many groups were drawn from."""

    @property
    def name(self) -> str:
        """`RINCE-in - SCL-in`, with a minus."""
        return f"{self.ours} \N{MINUS SIGN} {self.theirs}"


def columns_of(values: Mapping[str, Tensor], metrics: Sequence[str]) -> dict[str, Tensor]:
    """The values of a table's columns; with a `*` in a name, the mean over all that it fits."""
    found = {metric: [values[name] for name in fitting(values, metric)] for metric in metrics}
    return {metric: torch.stack(several).mean(dim=0) for metric, several in found.items() if several}


def between(
    means: Means, pairs: Sequence[Sequence[str]], metrics: Sequence[str], groups: Groups | None = None
) -> list[Compared]:
    """The differences of rows, pair by pair (ours, theirs), as far as both have numbers of the same queries.

    Args:
        means: what was measured.
        pairs: names of rows.
        metrics: the columns.
        groups: of the test samples that belong together: whole groups are drawn.
    """
    asked = [
        (ours, theirs, metric)
        for ours, theirs in pairs
        for metric in metrics
        if metric in means.get(ours, {})
        and metric in means.get(theirs, {})
        and len(means[ours][metric]) == len(means[theirs][metric])
    ]
    columns = [means[ours][metric] - means[theirs][metric] for ours, theirs, metric in asked]
    of_set = [(groups or {}).get(parse(metric).on) for _, _, metric in asked]
    together = [
        None if group is None or len(group) != len(column) else group
        for group, column in zip(of_set, columns, strict=True)
    ]
    found = interval_of_means(columns, groups=together)
    rows: dict[tuple[str, str], Compared] = {}
    for (ours, theirs, metric), difference, group in zip(asked, found, together, strict=True):
        row = rows.setdefault((ours, theirs), Compared(ours, theirs, {}, {}))
        row.cells[metric] = difference
        if group is not None:
            row.groups[metric] = len(group.unique())
    return list(rows.values())


def drawn_from(rows: Sequence[Compared], queries: str = "queries") -> str:
    """What the test sets of the intervals are drawn from: `the queries`, or `76 groups of test queries`."""
    counts = {row.groups.get(metric) for row in rows for metric in row.cells}
    told = [f"{count:,} groups of test {queries}" for count in sorted(filter(None, counts))]
    return " and ".join([*([f"the {queries}"] if None in counts else []), *told])


def judged(metric: str, difference: Difference) -> str:
    """`gain` or `loss` if the whole interval says so, else nothing."""
    above, below = difference.low > 0, difference.high < 0
    if parse(metric).metric.direction == "down":
        above, below = below, above
    return "gain" if above else "loss" if below else ""


def difference_text(metric: str, difference: Difference) -> str:
    """`+7.1 [6.0, 8.2]`, in the unit of the metric."""
    unit = parse(metric).metric.unit
    sign = "+" if difference.mean >= 0 else ""
    return f"{sign}{unit.text(difference.mean)} [{unit.text(difference.low)}, {unit.text(difference.high)}]"


def markdown(rows: Sequence[Compared]) -> str:
    """For a README: a gain in bold, a loss in italics, and what that means."""
    marks = {"gain": "**{}**", "loss": "_{}_", "": "{}"}
    return "\n".join([*_grids(rows, "difference", marks, markdown_grid), LEGEND.format(drawn_from(rows))]) + "\n"


def latex(rows: Sequence[Compared]) -> str:
    """For a paper: booktabs tables, a gain in bold, a loss in italics."""
    return "\n".join(
        _grids(rows, "Difference", {"gain": r"\textbf{{{}}}", "loss": r"\textit{{{}}}", "": "{}"}, latex_grid)
    )


def _grids(rows: Sequence[Compared], corner: str, marks: dict[str, str], grid: Callable[..., str]) -> list[str]:
    """One for each place."""
    metrics = list(dict.fromkeys(metric for row in rows for metric in row.cells))

    def text(row: Compared, metric: str) -> str:
        found = row.cells.get(metric)
        return marks[judged(metric, found)].format(difference_text(metric, found)) if found else ""

    grids = []
    for place in PLACES:
        here = at_place(metrics, place)
        having = [row for row in rows if any(metric in row.cells for metric in here)]
        if having:
            lines = [(row.name, [text(row, metric) for metric in here]) for row in having]
            grids.append(grid(corner_at(corner, place), here, lines))
    return grids


def csv_text(rows: Sequence[Compared]) -> str:
    """For a spreadsheet: full precision, a row per pair and metric."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["ours", "theirs", "metric", "difference", "low", "high", "judged"])
    for row in rows:
        for metric, found in row.cells.items():
            writer.writerow([as_text(row.ours), as_text(row.theirs), as_text(metric), *found, judged(metric, found)])
    return out.getvalue()


def packed(means: Means, seeds: Seeds, groups: Groups | None = None) -> bytes:
    """The means as a small file (npz): those of right and wrong as counts, exactly; others in float16.

    Names are JSON, `[row, metric, divisor, seeds]`; a value is the number in the file by the divisor. Groups of test
    samples are called `[set]`.
    """
    arrays: dict[str, Any] = {
        json.dumps([on], ensure_ascii=False): group.to(torch.int32).numpy() for on, group in (groups or {}).items()
    }
    for row, values in means.items():
        for metric, tensor in values.items():
            divisor = next((n for n in range(1, MANY + 1) if _whole(tensor * n)), None)
            kept = tensor.half() if divisor is None else (tensor * divisor).round().to(torch.uint8)
            name = [row, metric, divisor or 1, sorted(seeds[row][metric])]
            arrays[json.dumps(name, ensure_ascii=False)] = kept.numpy()
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def unpacked(content: bytes) -> tuple[Means, Seeds]:
    """The means that `packed` made a file of."""
    means: dict[str, dict[str, Tensor]] = {}
    seeds: dict[str, dict[str, Sequence[int]]] = {}
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        for name, array in arrays.items():
            if len(json.loads(name)) == 1:
                continue
            row, metric, divisor, of_seeds = json.loads(name)
            means.setdefault(row, {})[metric] = torch.from_numpy(array).double() / divisor
            seeds.setdefault(row, {})[metric] = of_seeds
    return means, seeds


def unpacked_groups(content: bytes) -> Groups:
    """The groups of test samples in such a file; nothing in one that was made before there were any."""
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        named = [(json.loads(name), array) for name, array in arrays.items()]
    return {name[0]: torch.from_numpy(array).long() for name, array in named if len(name) == 1}


def pooled(parts: Sequence[tuple[Means, Seeds]]) -> tuple[Means, Seeds]:
    """Means over disjoint seeds as means over all of them, where all have as many queries; else those of the last."""
    means: dict[str, dict[str, Tensor]] = {}
    seeds: dict[str, dict[str, Sequence[int]]] = {}
    for part, of_seeds in parts:
        for row, metric in ((row, metric) for row, values in part.items() for metric in values):
            new, their = part[row][metric], of_seeds[row][metric]
            old, so_far = means.setdefault(row, {}).get(metric), seeds.setdefault(row, {}).get(metric, ())
            if old is not None and old.shape == new.shape:
                total = len(so_far) + len(their)
                new, their = (old * len(so_far) + new * len(their)) / total, [*so_far, *their]
            means[row][metric], seeds[row][metric] = new, their
    return means, seeds


def _whole(values: Tensor) -> bool:
    return bool(((values - values.round()).abs() < 1e-6).all() and (values.abs() < 256).all())
