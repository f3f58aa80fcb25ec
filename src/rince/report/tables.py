"""Comparison tables: runs of one recipe are seeds of one row, the paper's number stands beside ours."""

from __future__ import annotations

import csv
import fnmatch
import io
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import yaml

from rince.evaluation.metrics import parse

ARROWS = {"up": " ↑", "down": " ↓", None: ""}


class PaperNumber(NamedTuple):
    """A number of the paper, in its own unit; `std` is None where it gives none."""

    mean: float
    std: float | None


@dataclass(frozen=True)
class Cell:
    """A metric of a row: over its seeds, and what the paper says."""

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
    """A table of the paper, its rows in its order, with ours where there are any.

    Args:
        table: its name in `paper_numbers.yaml`.
        results: row → results of its seeds; rows may be missing.
    """
    metrics = list(paper_tables()[table]["columns"])
    rows = [_row(name, results.get(name, []), metrics, table, name) for name in paper_tables()[table]["rows"]]
    return Table(tuple(metrics), tuple(_marked(rows, metrics)))


def _row(name: str, group: list[dict[str, Any]], metrics: Sequence[str], table: str | None, row: str | None) -> Row:
    cells = {
        metric: Cell(
            tuple(value for result in group if (value := _value(result["metrics"], metric)) is not None),
            paper_number(table, row, metric),
        )
        for metric in metrics
    }
    versions = sorted({str(result.get("rince", "unknown")) for result in group})
    return Row(name, tuple(result["seed"] for result in group), cells, tuple(versions))


def _value(metrics: dict[str, float], metric: str) -> float | None:
    """A number of a run; with a `*` in its name, the mean over all that it fits."""
    found = [metrics[name] for name in ([metric] if metric in metrics else fnmatch.filter(metrics, metric))]
    return statistics.fmean(found) if found else None


def _marked(rows: list[Row], metrics: Sequence[str]) -> list[Row]:
    marks: dict[tuple[int, str], Cell] = {}
    for metric in metrics:
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
    """A sentence that says which version of rince made the numbers, and that there are several; empty without any."""
    by_version: dict[str, list[str]] = {}
    for row in table.rows:
        for version in row.versions:
            by_version.setdefault(version, []).append(row.name)
    if len(by_version) < 2:
        return "".join(f"Numbers by rince {version}." for version in by_version)
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
    headings = (_escape_markdown(_heading_with_arrow(metric)) for metric in table.metrics)
    lines = ["| recipe | " + " | ".join(headings) + " |"]
    lines.append("|---|" + "---|" * len(table.metrics))
    for row in table.rows:
        cells = []
        for metric in table.metrics:
            cell = row.cells[metric]
            text = number_text(metric, cell)
            text = f"**{text}**" if cell.best else f"<u>{text}</u>" if cell.second else text
            cells.append(f"{text} ({paper_text(metric, cell)})".strip() if cell.paper else text)
        lines.append(f"| {_escape_markdown(row.name)} | " + " | ".join(cells) + " |")
    lines += ["", _escape_markdown(stamp(table))] if stamp(table) else []
    return "\n".join(lines) + "\n"


def latex(table: Table) -> str:
    """For a paper: a booktabs table, best in bold, second best underlined."""
    lines = [r"\begin{tabular}{l" + "c" * len(table.metrics) + "}", r"\toprule"]
    lines.append("Method & " + " & ".join(_escape_latex(parse(metric).heading) for metric in table.metrics) + r" \\")
    lines.append(r"\midrule")
    for row in table.rows:
        cells = []
        for metric in table.metrics:
            cell = row.cells[metric]
            text = number_text(metric, cell).replace("±", r"$\pm$")
            cells.append(rf"\textbf{{{text}}}" if cell.best else rf"\underline{{{text}}}" if cell.second else text)
        lines.append(_escape_latex(row.name) + " & " + " & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", *([f"% {stamp(table)}"] if stamp(table) else [])]
    return "\n".join(lines) + "\n"


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
            writer.writerow([row.name, metric, cell.mean, cell.std, seeds, *paper, versions])
    return out.getvalue()


def _heading_with_arrow(metric: str) -> str:
    return parse(metric).heading + ARROWS[parse(metric).metric.direction]


def _escape_markdown(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _escape_latex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {character: "\\" + character for character in "&%$#_{}"}
    return "".join(special.get(character, character) for character in text)
