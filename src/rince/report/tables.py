"""Comparison tables: runs of one recipe are seeds of one row, the paper's number stands beside ours.

Numbers of features, before the head, and of embeddings, after it, are never mixed: texts have a grid for each place.
"""

from __future__ import annotations

import csv
import fnmatch
import io
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import yaml

from rince.errors import DataError
from rince.evaluation.evidence import Place
from rince.evaluation.metrics import parse
from rince.evaluation.metrics.accuracy import PROBE
from rince.evaluation.metrics.detection import AUROC
from rince.evaluation.metrics.search import ANCESTOR, CHANCE, HIERARCHICAL_AP, MAP, RECALL

PLACES: tuple[Place, ...] = ("before", "after")
USUAL = (PROBE, RECALL, CHANCE, MAP, HIERARCHICAL_AP, ANCESTOR, AUROC)  # columns of a table that names none
ARROWS = {"up": " ↑", "down": " ↓", None: ""}


class PaperNumber(NamedTuple):
    """A number of the paper, in its own unit; `std` is None where it gives none."""

    mean: float
    std: float | None


@dataclass(frozen=True)
class Cell:
    """A metric of a row: over its seeds, or over several sets, and what the paper says."""

    values: tuple[float, ...]
    paper: PaperNumber | None = None
    best: bool = False
    second: bool = False

    @property
    def mean(self) -> float | None:
        """Over the seeds; None if nothing was measured."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """Sample standard deviation over the seeds; None for fewer than two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Row:
    """A recipe and its numbers."""

    name: str
    seeds: tuple[int, ...]
    cells: dict[str, Cell]
    versions: tuple[str, ...] = ()
    """Of rince that judged its runs."""


@dataclass(frozen=True)
class Table:
    """Rows over the same metrics."""

    metrics: tuple[str, ...]
    rows: tuple[Row, ...]

    def at(self, place: Place) -> Table:
        """Its columns of one place; after the head, its rows that have any number there."""
        metrics = at_place(self.metrics, place)
        rows = [replace(row, cells={metric: row.cells[metric] for metric in metrics}) for row in self.rows]
        kept = [row for row in rows if place == "before" or any(cell.values for cell in row.cells.values())]
        return Table(metrics, tuple(kept))


def at_place(metrics: Sequence[str], place: Place) -> tuple[str, ...]:
    """Those that are measured there."""
    return tuple(metric for metric in metrics if parse(metric).place == place)


def headline(metrics: Sequence[str]) -> list[str]:
    """The metrics that a reader looks at first: set by set, those that have something in common side by side."""
    found = [named for named in map(parse, metrics) if named.metric.group]
    sets, groups = (list(dict.fromkeys(getattr(named, by) for named in found)) for by in ("on", "group"))
    return [n.name for n in sorted(found, key=lambda n: (n.on != "", sets.index(n.on), groups.index(n.group)))]


@cache
def paper_tables() -> dict[str, Any]:
    """The paper's tables as they stand in `paper_numbers.yaml`."""
    tables: dict[str, Any] = yaml.safe_load((files("rince") / "report" / "paper_numbers.yaml").read_text("utf-8"))
    return tables


def paper_number(table: str | None, row: str | None, metric: str) -> PaperNumber | None:
    """What the paper says of a row and a metric of ours, or None."""
    found = paper_tables().get(table or "", {})
    columns = list(found.get("columns", {}))
    if row not in found.get("rows", {}) or metric not in columns:
        return None
    value = found["rows"][row][columns.index(metric)]
    if value is None:
        return None
    return PaperNumber(*value) if isinstance(value, list) else PaperNumber(value, None)


def compare(results: Iterable[dict[str, Any]], metrics: Sequence[str] | None = None) -> Table:
    """A table of results as `rince evaluate` writes them. Runs of one recipe and scale are seeds of one row.

    The best mean of a column is marked, and the second best; not where all are equal or there is only one.

    Args:
        results: contents of `results.json` files.
        metrics: the columns; by default all that any run has and that have a direction.
    """
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for result in results:
        groups.setdefault((result["recipe"], result["scale"]), []).append(result)
    if metrics is None:
        everything = dict.fromkeys(name for group in groups.values() for result in group for name in result["metrics"])
        metrics = [name for name in everything if parse(name).metric.direction]
    rows = []
    for (name, scale), group in groups.items():
        paper = group[0].get("paper") or {}
        shown = f"{name} ({scale})" if len({key[1] for key in groups}) > 1 else name
        rows.append(_row(shown, group, metrics, paper.get("table"), paper.get("row")))
    return Table(tuple(metrics), tuple(_marked(rows, metrics)))


def beside_the_paper(table: str, results: dict[str, list[dict[str, Any]]]) -> Table:
    """A table of the paper, its rows in its order, with ours where there are any; or one that is not in the paper.

    The paper's columns are of features before the head; columns of ours and the same after the head follow them, as far
    as they were measured. A table that names no columns has accuracy, R@1 with its chance and mAP of every level, what
    judges the hierarchy as a whole, and AUROC.

    Args:
        table: its name in `paper_numbers.yaml`.
        results: row → results of its seeds; rows may be missing, and those that it does not name come last.
    """
    known = paper_tables()[table]
    _refuse_different_data([(row, each) for row, group in results.items() for each in group])
    measured = list(dict.fromkeys(name for group in results.values() for each in group for name in each["metrics"]))
    usual = [name for name in headline(measured) if parse(name).metric in USUAL]
    more = [name for name in known.get("more_columns", []) if fitting(measured, name)]
    before = [*(known.get("columns") or at_place(usual, "before")), *more]
    behind = [parse(name)._replace(place="after").name for name in before if parse(name).metric.both_places]
    metrics = before + [name for name in behind if name not in before and fitting(measured, name)]
    names = dict.fromkeys([*(known.get("rows") or known["runs"]), *results])
    rows = [_row(name, results.get(name, []), metrics, table, name) for name in names]
    return Table(tuple(metrics), tuple(_marked(rows, metrics)))


def _refuse_different_data(results: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Numbers of one column are of the same test samples, by their content; results of before do not say theirs."""
    first: dict[str, tuple[str, str]] = {}
    for row, result in results:
        told = f"{row}, seed {result['seed']}"
        for name, sides in result.get("content", {}).items():
            known, of = first.setdefault(name, (sides["test"], told))
            if known != sides["test"]:
                raise DataError(
                    f"{of} and {told} cannot stand in one table: they were tested on different samples of {name!r} "
                    f"({known[:12]} and {sides['test'][:12]}); restore the data and run `rince evaluate` again"
                )


def _row(name: str, group: list[dict[str, Any]], metrics: Sequence[str], table: str | None, row: str | None) -> Row:
    cells = {
        metric: Cell(_values([result["metrics"] for result in group], metric), paper_number(table, row, metric))
        for metric in metrics
    }
    versions = sorted({str(result.get("rince", "unknown")) for result in group})
    return Row(name, tuple(result["seed"] for result in group), cells, tuple(versions))


def _values(runs: Sequence[dict[str, float]], metric: str) -> tuple[float, ...]:
    """A number of every run; with a `*` in its name, of every set that it fits, each the mean over the runs.

    The paper's ± of such a number is over the sets.
    """
    if "*" not in metric:
        return tuple(metrics[metric] for metrics in runs if metric in metrics)
    sets = dict.fromkeys(name for metrics in runs for name in fitting(metrics, metric))
    return tuple(statistics.fmean(metrics[name] for metrics in runs if name in metrics) for name in sets)


def fitting(names: Iterable[str], metric: str) -> list[str]:
    """The one of this name, or all that fit a name with a `*` in it."""
    return [metric] if metric in names else fnmatch.filter(names, metric)


def _marked(rows: list[Row], metrics: Sequence[str]) -> list[Row]:
    marks: dict[tuple[int, str], Cell] = {}
    for metric in metrics:
        if parse(metric).metric.direction is None:
            continue
        means = {i: row.cells[metric].mean for i, row in enumerate(rows) if row.cells[metric].values}
        highest_first = parse(metric).metric.direction != "down"
        order = sorted({mean for mean in means.values() if mean is not None}, reverse=highest_first)
        for i, mean in means.items():
            cell = rows[i].cells[metric]
            best, second = len(order) > 1 and mean == order[0], len(order) > 2 and mean == order[1]
            marks[i, metric] = Cell(cell.values, cell.paper, best, second)
    return [
        replace(row, cells={metric: marks.get((i, metric), cell) for metric, cell in row.cells.items()})
        for i, row in enumerate(rows)
    ]


def stamp(table: Table) -> str:
    """A sentence that says which version of rince made the numbers, and that there are several; empty without any.

    A release and what led to it (`0.2.0.dev0`) are one: numbers that change are listed under the release.
    """
    by_version: dict[str, list[str]] = {}
    for row in table.rows:
        for version in row.versions:
            by_version.setdefault(version, []).append(row.name)
    if len({version.partition(".dev")[0] for version in by_version}) < 2:
        return f"Numbers by rince {' and '.join(sorted(by_version))}." if by_version else ""
    told = "; ".join(f"{version} ({', '.join(names)})" for version, names in sorted(by_version.items()))
    told = " ".join(told.split())  # one line, whatever a row is called
    return f"Numbers by different versions of rince, which may not compare: {told}. `rince evaluate` makes them anew."


def number_text(metric: str, cell: Cell) -> str:
    """`35.3 ± 0.2`, in the unit of the metric; empty if nothing was measured."""
    unit = parse(metric).metric.unit
    return " ± ".join(unit.text(value) for value in (cell.mean, cell.std) if value is not None)


def paper_text(metric: str, cell: Cell) -> str:
    """The paper's number as it prints it; empty if it has none."""
    digits = parse(metric).metric.unit.paper_digits
    return " ± ".join(f"{value:.{digits}f}" for value in cell.paper or () if value is not None)


def metrics_text(metrics: dict[str, float]) -> str:
    """One metric a line, for a terminal."""
    widest = max(map(len, metrics))
    return "\n".join(f"  {name:{widest}}  {value_text(name, value)}" for name, value in metrics.items())


def value_text(metric: str, value: float) -> str:
    """A number and its unit: `35.3 %`."""
    unit = parse(metric).metric.unit
    return unit.text(value) + unit.sign


def terminal(table: Table) -> str:
    """For a terminal: a line per metric, a column per recipe, the best with a star, the paper's number in brackets."""
    lines = [["", *(row.name for row in table.rows)]]
    for metric in table.metrics:
        line = [_heading_with_arrow(metric)]
        for cell in (row.cells[metric] for row in table.rows):
            paper = f" (paper {paper_text(metric, cell)})" if cell.paper else ""
            line.append(f"{number_text(metric, cell)}{'*' if cell.best else ' '}{paper}")
        lines.append(line)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def markdown(table: Table) -> str:
    """For a README: best in bold, the paper's number in brackets."""

    def text(metric: str, cell: Cell) -> str:
        number = number_text(metric, cell)
        number = f"**{number}**" if cell.best else f"<u>{number}</u>" if cell.second else number
        return f"{number} ({paper_text(metric, cell)})".strip() if cell.paper else number

    said = f"\n{_escape_markdown(stamp(table))}\n" if stamp(table) else ""
    return "\n".join(markdown_grid(*_grid(part, "recipe", text)) for part in _parts(table)) + said


def latex(table: Table) -> str:
    """For a paper: a booktabs table, best in bold, second best underlined."""

    def text(metric: str, cell: Cell) -> str:
        number = number_text(metric, cell).replace("±", r"$\pm$")
        return rf"\textbf{{{number}}}" if cell.best else rf"\underline{{{number}}}" if cell.second else number

    said = f"% {stamp(table)}\n" if stamp(table) else ""
    return "\n".join(latex_grid(*_grid(part, "Method", text)) for part in _parts(table)) + said


def _parts(table: Table) -> list[tuple[Place, Table]]:
    """One for each place that has columns, and at least one."""
    parts: list[tuple[Place, Table]] = [(place, table.at(place)) for place in PLACES]
    return [part for part in parts if part[1].metrics] or parts[:1]


def _grid(
    part: tuple[Place, Table], corner: str, text: Callable[[str, Cell], str]
) -> tuple[str, Sequence[str], list[tuple[str, list[str]]]]:
    """Corner, metrics, and a name and texts for every row."""
    place, table = part
    rows = [(row.name, [text(metric, row.cells[metric]) for metric in table.metrics]) for row in table.rows]
    return corner_at(corner, place), table.metrics, rows


def corner_at(corner: str, place: Place) -> str:
    """The upper left cell of a grid, which says of which place it is."""
    return corner if place == "before" else f"{corner}, after the head"


def markdown_grid(corner: str, metrics: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    """Columns of one place; texts of cells stand as they are, all else is escaped."""
    top = [corner, *(_escape_markdown(_heading_with_arrow(metric, alone=False)) for metric in metrics)]
    lines = [" | ".join([_escape_markdown(name), *texts]) for name, texts in rows]
    return f"| {' | '.join(top)} |\n|{'---|' * len(top)}\n" + "".join(f"| {line} |\n" for line in lines)


def latex_grid(corner: str, metrics: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    """The same as a booktabs table."""
    head = " & ".join([corner, *(_escape_latex(parse(metric).short_heading) for metric in metrics)])
    lines = [r"\begin{tabular}{l" + "c" * len(metrics) + "}", r"\toprule", head + r" \\", r"\midrule"]
    lines += [" & ".join([_escape_latex(name), *texts]) + r" \\" for name, texts in rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def csv_text(table: Table) -> str:
    """For a spreadsheet: full precision, a row per recipe and metric."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["recipe", "metric", "mean", "std", "seeds", "paper_mean", "paper_std", "rince"])
    for row in table.rows:
        for metric in table.metrics:
            cell = row.cells[metric]
            paper = cell.paper or (None, None)
            seeds, versions = " ".join(map(str, row.seeds)), " ".join(row.versions)
            writer.writerow([as_text(row.name), as_text(metric), cell.mean, cell.std, seeds, *paper, as_text(versions)])
    return out.getvalue()


def as_text(cell: str) -> str:
    """A name for a CSV file; one that a spreadsheet would compute is quoted. Numbers are never given here."""
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell


def _heading_with_arrow(metric: str, *, alone: bool = True) -> str:
    named = parse(metric)
    return (named.heading if alone else named.short_heading) + ARROWS[named.metric.direction]


def _escape_markdown(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _escape_latex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {character: "\\" + character for character in "&%$#_{}"}
    return "".join(special.get(character, character) for character in text)
