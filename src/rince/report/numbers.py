"""The tables of a report's page, as HTML. All text from outside is escaped here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby

from rince.config import Recipe
from rince.evaluation.evidence import Place
from rince.evaluation.metrics import parse
from rince.evaluation.paired import Difference
from rince.report.collect import Shown
from rince.report.differences import Compared, difference_text, drawn_from, judged
from rince.report.drawing import DASHES, RUNS, clean
from rince.report.tables import ARROWS, PLACES, Cell, Table, at_place, number_text, paper_text, stamp, value_text
from rince.report.told import rivals, told
from rince.train.record import BEST

HEADINGS = {"before": "Features, before the head", "after": "Embeddings, after the head"}
SAID = {"up": "higher is better", "down": "lower is better", None: ""}
RIVAL = '†<span class="sr"> best of the rows told the same as RINCE</span>'


def facts(runs: Sequence[Shown]) -> str:
    """A row per run: what it is and how to recognise it in the figures."""
    number_of = f"training {runs[0].data.thing}s"
    heads = ("scale", "seed", "steps", number_of, "judged on", "loss", "data", "checkpoint")
    left = {"loss", "data", "checkpoint", "judged on"}
    rows = []
    for number, run in enumerate(runs):
        results = run.results
        steps = f"{results['step']:,}" + (
            "" if results["step"] == results["of_steps"] else f" of {results['of_steps']:,}"
        )
        cells = {
            "scale": results["scale"],
            "seed": str(results["seed"]),
            "steps": steps,
            number_of: _trained_on(run),
            "judged on": _judged_on(run),
            "loss": _loss(run),
            "data": run.recipe.data.source,
            "checkpoint": results["checkpoint"][:12],
        }
        about = f'<span class="under about">{escape(clean(run.recipe.about, 120))}</span>' if run.recipe.about else ""
        values = "".join(
            f'<td class="text"><code>{escape(clean(cells[name]))}</code></td>'
            if name in ("data", "checkpoint")
            else f"<td{' class=text' if name in left else ''}>{escape(clean(cells[name]))}</td>"
            for name in heads
        )
        rows.append(f'<tr><th scope="row">{swatch(number)}{label(run.label)}{about}</th>{values}</tr>')
    top = "".join(f'<th scope="col"{" class=text" if name in left else ""}>{name}</th>' for name in heads)
    return _scrolling(
        f'<thead><tr><th scope="col" class="name">run</th>{top}</tr></thead><tbody>{"".join(rows)}</tbody>', "Runs"
    )


def _trained_on(run: Shown) -> str:
    """How many samples, and how many more of the training set only said how well it goes."""
    if run.held_out and run.data.source == run.recipe.data.source:
        return f"{len(run.data.train) - run.held_out:,}, {run.held_out:,} held out"
    return f"{len(run.data.train):,}"


def _judged_on(run: Shown) -> str:
    """The sets; and what of them, or of the run, if that is not the usual."""
    split, file = run.results.get("split"), run.results.get("checkpoint_file")
    unusual = [f"split {split!r}"] if split not in (None, run.recipe.data.test_split) else []
    return ", ".join([*run.sets, *unusual, *([file] if file == BEST else [])])


def _loss(run: Shown) -> str:
    """Method and terms; those that have no rank in this data are not in the log, and took no part."""
    logged = sum(re.fullmatch(r"term/\d+", name) is not None for name in run.lines[-1]) if run.lines else 0
    used = run.recipe.terms_for(logged) or run.recipe.terms
    terms = ", ".join(f"τ {term.temperature:g} {term.positives}" for term in used)
    kind = run.recipe.method.kind
    return terms if kind == "contrast" else f"{kind}: {terms}" if terms else kind


def label(text: str) -> str:
    """A name that is broken only if it is long."""
    return f"<span{' class=name' if len(text) <= 24 else ''}>{escape(clean(text, 90))}</span>"


def swatch(number: int) -> str:
    """A piece of the line that stands for a run in the figures."""
    dashes = DASHES[number % len(DASHES)]
    pattern = "" if dashes == "-" else f' stroke-dasharray="{" ".join(f"{2 * part:g}" for part in dashes[1])}"'
    return (
        f'<svg class="swatch run-{number % len(RUNS) + 1}" viewBox="0 0 24 8" aria-hidden="true">'
        f'<path d="M0 4H24" stroke="currentColor" stroke-width="3" fill="none"{pattern}/></svg>'
    )


def comparison(table: Table, compared: Sequence[Compared], runs: Sequence[Shown]) -> str:
    """The headline metrics with the paper's numbers, a table for each place; what to make of it; and differences."""
    text, recipes = _legend(table), _recipes(runs)
    for place in PLACES:
        here, rows = table.at(place), [row for row in compared if at_place(tuple(row.cells), place)]
        if here.metrics:
            text += f"<h3>{HEADINGS[place]}</h3>{_numbers(here, place, recipes)}"
            text += _differences(here.metrics, rows, place) if rows else ""
    return text + _notes(table, runs)


def _recipes(runs: Sequence[Shown]) -> dict[str, Recipe]:
    """Of rows, by the names that tables give them."""
    return {
        name: run.recipe
        for run in runs
        for name in (run.results["recipe"], f"{run.results['recipe']} ({run.results['scale']})")
    }


def _numbers(table: Table, place: Place, recipes: Mapping[str, Recipe]) -> str:
    head, first = _head(table.metrics, "recipe", "told")
    rival = rivals(table, recipes)
    body = []
    for row in table.rows:
        seeds = f"{len(row.seeds)} seeds: {', '.join(map(str, row.seeds))}" if len(row.seeds) > 1 else ""
        cells = f"<td>{told(recipes[row.name]) if row.name in recipes else '–'}</td>" + "".join(
            f"<td{_first(m in first)}>{_cell(m, row.cells[m])}{RIVAL if rival.get(m) == row.name else ''}</td>"
            for m in table.metrics
        )
        under = f'<span class="under">{seeds}</span>' if seeds else ""
        body.append(f'<tr><th scope="row">{label(row.name)}{under}</th>{cells}</tr>')
        if any(row.cells[m].paper for m in table.metrics):
            cells = "".join(
                f"<td{_first(m in first)}>{escape(paper_text(m, row.cells[m]))}</td>" for m in table.metrics
            )
            body.append(f'<tr class="paper"><th scope="row">in the paper</th><td></td>{cells}</tr>')
    return _scrolling(f"{head}<tbody>{''.join(body)}</tbody>", f"Comparison, {place} the head")


def _head(metrics: Sequence[str], *corners: str) -> tuple[str, set[str]]:
    """Two lines of headings over columns of one place, and the metrics that begin a group."""
    groups = [(name, list(members)) for name, members in groupby(metrics, lambda m: parse(m).short_group)]
    first = {members[0] for _, members in groups}
    top = "".join(f'<th scope="colgroup" colspan="{len(m)}">{escape(clean(name))}</th>' for name, m in groups)
    sub = "".join(_column(m, is_first=m in first) for m in metrics)
    corner = "".join(f'<th class="name" rowspan="2" scope="col">{each}</th>' for each in corners)
    return f"<thead><tr>{corner}{top}</tr><tr>{sub}</tr></thead>", first


def _differences(metrics: Sequence[str], rows: Sequence[Compared], place: Place) -> str:
    """Rows less another, with intervals."""
    head, first = _head(metrics, "difference")
    body = "".join(
        f'<tr><th scope="row">{label(row.name)}</th>'
        + "".join(f"<td{_first(m in first)}>{_difference(m, row.cells.get(m))}</td>" for m in metrics)
        + "</tr>"
        for row in rows
    )
    text = (
        "<p>Differences to the first row on the same test samples, mean over all seeds, with 95 % intervals (bootstrap "
        f"over {drawn_from(rows, 'samples')}). <b>Bold</b> is a gain, <em>italics</em> are a loss: the interval lies "
        "on one side of 0.</p>"
    )
    return text + _scrolling(f"{head}<tbody>{body}</tbody>", f"Differences, {place} the head")


def _difference(metric: str, found: Difference | None) -> str:
    if found is None:
        return "–"
    text, verdict = escape(difference_text(metric, found)), judged(metric, found)
    element = {"gain": "strong", "loss": "em"}.get(verdict)
    return f'<{element}>{text}<span class="sr"> {verdict}</span></{element}>' if element else text


def _legend(table: Table) -> str:
    several = any(len(row.seeds) > 1 for row in table.rows)
    marked = any(cell.best for row in table.rows for cell in row.cells.values())
    text = "Mean ± standard deviation over seeds. " if several else ""
    if marked:
        second = any(cell.second for row in table.rows for cell in row.cells.values())
        text += "The best of a column is <b>bold</b>" + (", the second best <u>underlined</u>" if second else "") + ". "
    return (
        f"<p>{text}Arrows point to what is better. Told are the labels that training had; † is the best of the rows "
        "that were told the same as RINCE.</p>"
    )


def _notes(table: Table, runs: Sequence[Shown]) -> str:
    notes = []
    parts = {place: table.at(place) for place in PLACES if at_place(table.metrics, place)}
    for place, part in parts.items():
        wins = {row.name: sum(cell.best for cell in row.cells.values()) for row in part.rows}
        if len(wins) > 1 and max(wins.values()):
            leader = max(wins, key=lambda name: wins[name])
            where = f" {place} the head" if len(parts) > 1 else ""
            notes.append(
                f"{escape(clean(leader, 90))} is best in {wins[leader]} of {len(part.metrics)} columns{where}."
            )
    if any(cell.paper for row in table.rows for cell in row.cells.values()) and any(
        run.results["scale"] != "full" for run in runs
    ):
        notes.append(
            "The paper’s numbers are of its full scale; runs here are of reduced scale. Compare the order of the rows "
            "with the paper’s, not the values."
        )
    short = [run for run in runs if run.results["step"] < run.results["of_steps"]]
    if short:
        notes.append("Not trained to the end: " + escape(", ".join(clean(run.label) for run in short)) + ".")
    notes.append(escape(clean(stamp(table), 600)))
    return "".join(f'<p class="note">{note}</p>' for note in notes if note)


def _cell(metric: str, cell: Cell) -> str:
    text = escape(number_text(metric, cell)) or "–"
    if cell.best:
        text = f'<strong>{text}<span class="sr"> best</span></strong>'
    elif cell.second:
        text = f'<u>{text}</u><span class="sr"> second best</span>'
    return text


def _column(metric: str, *, is_first: bool) -> str:
    named = parse(metric)
    direction = named.metric.direction
    return (
        f'<th scope="col"{_first(is_first)} title="{SAID[direction]}">{escape(named.column)}{ARROWS[direction]}'
        f'<span class="sr"> {SAID[direction]}</span></th>'
    )


def _first(is_first: bool) -> str:
    return ' class="first"' if is_first else ""


def _scrolling(content: str, name: str) -> str:
    """A table in a box that scrolls by itself, also with the keyboard."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{name}"><table>{content}</table></div>'


def protocols(runs: Sequence[Shown]) -> str:
    """How every number was made; where runs differ, which."""
    found: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        for name, text in run.results["protocol"].items():
            found.setdefault((name, text), []).append(run.label)
    items = "".join(
        f"<dt>{escape(clean(name))}</dt><dd>{escape(clean(text, 600))}"
        + ("" if len(labels) == len(runs) else f" <small>({escape(', '.join(map(clean, labels)))})</small>")
        + "</dd>"
        for (name, text), labels in found.items()
    )
    return f"<p>How each kind of number was made.</p><dl>{items}</dl>"


def full_table(runs: Sequence[Shown]) -> str:
    """Every metric of every run."""
    metrics = dict.fromkeys(name for run in runs for name in run.results["metrics"])
    top = "".join(f'<th scope="col">{escape(clean(run.label))}</th>' for run in runs)
    body = "".join(
        f'<tr><th scope="row">{escape(clean(metric, 90))}{ARROWS[parse(metric).metric.direction]}</th>'
        + "".join(f"<td>{_value(metric, run.results['metrics'].get(metric))}</td>" for run in runs)
        + "</tr>"
        for metric in metrics
    )
    head = f'<thead><tr><th class="name" scope="col">metric</th>{top}</tr></thead>'
    table = _scrolling(f"{head}<tbody>{body}</tbody>", "All metrics")
    return f"<details><summary>All {len(metrics)} metrics of every run</summary>{table}</details>"


def _value(metric: str, value: float | None) -> str:
    return "–" if value is None else value_text(metric, value)
