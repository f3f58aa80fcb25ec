"""`rince report`: evaluated runs on one page that works from disk, with every figure and table as files beside it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

import rince
from rince.errors import ConfigError, RinceError
from rince.evaluation.queries import Queries, mean_over_seeds
from rince.files import write_out
from rince.report import differences, figures
from rince.report.atlas import NEIGHBOURS, RunMap, balanced_sample, map_data, map_run, sample_size
from rince.report.collect import Shown, collect
from rince.report.differences import Compared, columns_of
from rince.report.drawing import RUNS, Drawn, clean, group_marks, slug
from rince.report.films import nearest_videos, without_picture
from rince.report.mistakes import mistakes
from rince.report.numbers import comparison, facts, full_table, protocols
from rince.report.shared_levels import at_shared_levels
from rince.report.tables import Table, compare, csv_text, headline, latex, markdown
from rince.terminal import Tell, mention, nobody
from rince.train.setup import Brought

WRITTEN = ".written"  # in figures/: names of what the report wrote there
Section = tuple[str, str, str]
"""Id, heading, HTML."""


class Report(NamedTuple):
    """What was written."""

    page: Path
    table: Table
    """The headline numbers."""


def write_report(
    runs: list[Path],
    out: Path,
    *,
    samples: int | None = None,
    brought: dict[Path, Brought] | None = None,
    tell: Tell = nobody,
) -> Report:
    """Writes `index.html`, `figures/` and the tables.

    Each file is written whole or not at all, the page last. Figures of an older report in the folder are taken away, as
    `figures/.written` names them; files of others are left alone.

    Args:
        runs: folders of runs that `rince evaluate` has judged, all on the same test images or videos.
        out: folder to write to; made if need be.
        samples: how many test samples the maps show; by default as many as keep the page small.
        brought: what runs were given as objects, by folder.
        tell: is told how far it is.
    """
    is_new = not out.exists()
    _make_folder(out)
    try:
        shown, levels_note = at_shared_levels(collect(runs, tell, brought))
    except RinceError:
        if is_new:  # nothing was written yet: leave nothing behind
            (out / "figures").rmdir()
            out.rmdir()
        raise
    if levels_note:
        mention(levels_note)
    names = [f"{number}-{slug(run.label)}" for number, run in enumerate(shown, 1)]
    mapped = _first_of_each_row(shown)
    rows = balanced_sample(shown[0].test.labels, sample_size(len(mapped)) if samples is None else samples)
    maps = []
    for number, index in enumerate(mapped):
        tell(f"map of {shown[index].label}", number, len(mapped))
        maps.append(map_run(shown[index], rows))
    results = [run.results for run in shown]
    table = compare(results)
    short = compare(results, headline(table.metrics))
    compared = _compared(shown, short)
    texts = {"table.md": markdown(short), "table.tex": latex(short), "table.csv": csv_text(table)}
    if compared:
        texts["table.md"] += "\n" + differences.markdown(compared)
        texts["table.tex"] += "\n" + differences.latex(compared)

    drawn: list[Drawn] = []
    films: list[str] = []
    moves, outliers = shown[0].data.moves, bool(figures.outlier_sets(shown))
    stages: list[tuple[str, Callable[[], Section]]] = [
        ("numbers", lambda: ("numbers", "Numbers", comparison(short, compared, shown) + _copyable(texts))),
        ("training curves", lambda: _training(shown, names, drawn)),
        ("similarity matrices", lambda: _similarity(shown, names, drawn)),
        ("maps", lambda: _map(maps, [names[i] for i in mapped], rows, len(shown), drawn)),
        ("mistakes", lambda: ("mistakes", "Mistakes", mistakes([shown[i] for i in mapped]))),
        ("precision and recall", lambda: _retrieval(shown, drawn)),
        *([("nearest videos", lambda: _nearest([shown[i] for i in mapped], len(shown), films))] if moves else []),
        *([("outliers", lambda: _outliers(shown, names, drawn))] if outliers or not moves else []),
        ("geometry", lambda: _geometry(shown, drawn)),
        ("protocols", lambda: ("protocols", "Protocols", protocols(shown) + full_table(shown))),
    ]
    sections = []
    for number, (what, build) in enumerate(stages):
        tell(what, number, len(stages))
        sections.append(build())
    page = _page(shown, sections, map_data(maps, rows) | {"levels": _levels(shown[0]), "films": films})
    for figure in drawn:
        write_out(out / "figures" / f"{figure.name}.png", figure.png)
        write_out(out / "figures" / f"{figure.name}.svg", figure.svg)
    _forget_older(out / "figures", [f"{figure.name}.{kind}" for figure in drawn for kind in ("png", "svg")])
    for name, text in texts.items():
        write_out(out / name, text.encode())
    write_out(out / "index.html", page.encode())
    tell("done", len(stages), len(stages))
    return Report(out / "index.html", short)


def _make_folder(out: Path) -> None:
    """Before any work is done, that a mistyped folder is told at once."""
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write the report to {out}: {error.strerror}; choose another --out") from None
    if not os.access(out, os.W_OK) or not os.access(out / "figures", os.W_OK):
        raise ConfigError(f"cannot write the report to {out}: it is write-protected; choose another --out")


def _forget_older(folder: Path, written: list[str]) -> None:
    """Takes away figures that an older report wrote and this one did not; remembers those of this one."""
    known = folder / WRITTEN
    before = known.read_text("utf-8").splitlines() if known.is_file() else []
    for name in set(before) - set(written):
        if Path(name).name == name:  # whatever somebody wrote into the list, nothing beyond the folder is touched
            (folder / name).unlink(missing_ok=True)
    write_out(known, "".join(f"{name}\n" for name in sorted(written)).encode())


def _first_of_each_row(runs: Sequence[Shown]) -> list[int]:
    """One run of each recipe: maps and their thumbnails are by far the largest part of a page."""
    first: dict[tuple[str, str], int] = {}
    for number, run in enumerate(runs):
        first.setdefault((run.results["recipe"], run.results["scale"]), number)
    return list(first.values())


def _compared(runs: Sequence[Shown], table: Table) -> list[Compared]:
    """Every row less the first, where what all their runs do with every test sample is known."""
    queries: dict[tuple[str, str], list[Queries | None]] = {}
    for run in runs:
        queries.setdefault((run.results["recipe"], run.results["scale"]), []).append(run.queries)
    means = {
        row.name: columns_of(mean_over_seeds([each for each in seeds if each]), table.metrics)
        for row, seeds in zip(table.rows, queries.values(), strict=True)
        if all(seeds)
    }
    first, *others = (row.name for row in table.rows)
    groups = {on: each for run in runs if run.queries for on, each in run.queries.groups.items()}
    return differences.between(means, [(other, first) for other in others], table.metrics, groups)


def _levels(run: Shown) -> list[dict[str, Any]]:
    """What the script needs to know of the levels, with names made readable."""
    levels = run.data.levels
    return [
        {
            "name": clean(level.name),
            "groups": [clean(group.replace("_", " ")) for group in level.groups],
            "of": level.of_class,
            "marks": group_marks(levels, number),
        }
        for number, level in enumerate(levels)
    ]


def _page(runs: Sequence[Shown], sections: Sequence[Section], data: dict[str, Any]) -> str:
    folder = files("rince") / "report"
    script = (folder / "page.js").read_text("utf-8")
    data_set = runs[0].data
    source = clean(", ".join(runs[0].sets))
    title = f"{clean(runs[0].label)} on {source}" if len(runs) == 1 else f"{len(runs)} runs on {source}"
    levels = data_set.levels
    above = " and ".join(f"{level.name} ({len(level.groups)})" for level in levels[1:])
    tested = ", and on ".join(
        f"{len(each.test):,} test {each.thing}s of {len(each.classes)} classes" for each in runs[0].sets.values()
    )
    learned = f"What {'this encoder' if len(runs) == 1 else 'these encoders'} learned"
    lede = f"{learned}, judged on {tested}" + (f", grouped by {above}." if above else ".")
    values = {
        "title": escape(title),
        "lede": escape(clean(lede, 400)),
        "version": escape(rince.__version__),
        "runs": facts(runs),
        "contents": " ".join(f'<a href="#{name}">{heading}</a>' for name, heading, _ in sections),
        "sections": "\n".join(_section(*section) for section in sections),
        "css": (folder / "page.css").read_text("utf-8") + _swatches(),
        "script": script,
        "script_hash": "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "data": safe_json(data),
    }
    # In one pass: what is put in is not searched for names again.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], (folder / "page.html").read_text("utf-8"))


def safe_json(data: Any) -> str:
    """JSON that may stand in a script element: nothing in it can end the element or a line of the script."""
    text = json.dumps(data, separators=(",", ":"))  # ASCII only, so U+2028 is escaped too
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _section(name: str, heading: str, content: str) -> str:
    return f'<section id="{name}" aria-labelledby="{name}-h">\n<h2 id="{name}-h">{heading}</h2>\n{content}\n</section>'


def _swatches() -> str:
    return "".join(f".run-{n} {{ color: var(--run-{n}); }}\n" for n in range(1, len(RUNS) + 1))


def _figure(panels: Iterable[Drawn], caption: str, drawn: list[Drawn], wide: str = "") -> str:
    panels = list(panels)
    drawn += panels
    plots = "\n".join(f'<div class="plot" id="{panel.name}">{panel.inline}</div>' for panel in panels)
    text = f"<figcaption>{caption}</figcaption>" if caption else ""
    return f'<figure><div class="panels {wide}">{plots}</div>{text}</figure>'


def _copyable(texts: dict[str, str]) -> str:
    kinds = {"table.md": "Markdown", "table.tex": "LaTeX", "table.csv": "CSV, all metrics in full precision"}
    return "\n".join(
        f'<details><summary>{kinds[name]}</summary><button type="button" class="copy">Copy</button>'
        f'<div class="pre"><pre><code>{escape(text)}</code></pre></div></details>'
        for name, text in texts.items()
    )


def _training(runs: Sequence[Shown], names: Sequence[str], drawn: list[Drawn]) -> Section:
    text = (
        "<p>One line for each rank, on scales common to all runs. In the mean similarity, <b>look for lines that stand "
        "apart in the order of the ranks</b>: candidates of rank 1 closest to the query, then rank 2, the negatives "
        "last. Violated orders are pairs in which a candidate of a rank is no closer than one of the rank after it; "
        "their share should fall.</p>"
    )
    panels = figures.training_curves(runs, names)
    for run, row in zip(runs, panels, strict=True):
        if not run.lines:
            why = (
                "There is no metrics.jsonl in the folder of this run."
                if run.recipe.method.trains
                else "Nothing was trained."
            )
            text += f"<h3>{escape(clean(run.label))}</h3><p>{why}</p>"
            continue
        text += f"<h3>{escape(clean(run.label))}</h3>" + _figure(row, "", drawn)
    longest = max(len(run.lines) for run in runs)
    if longest >= 2 * figures.POINTS:
        text += f"<p>Each point is the mean of up to {longest / figures.POINTS:.0f} logged steps.</p>"
    return "training", "Training", text


def _similarity(runs: Sequence[Shown], names: Sequence[str], drawn: list[Drawn]) -> Section:
    data = runs[0].data
    if len(data.levels) == 1:
        order = f"of {escape(clean(data.name))}"
        look_for = (
            "<b>A bright diagonal</b> is classes that lie together; bright places beside it are classes that the run "
            "takes for each other."
        )
    else:
        order = f"sorted by {escape(clean(data.levels[1].name))}"
        look_for = (
            "<b>Bright blocks along the diagonal</b> are groups whose classes lie together, which is what ranked "
            "positives are for."
        )
    text = (
        f"<p>Mean cosine between the test {data.thing}s of every two classes, {order}. {look_for} All runs share one "
        "colour scale before the head and one after it; the diagonal may exceed it.</p>"
    )
    for run, row in zip(runs, figures.similarity_matrices(runs, names), strict=True):
        text += f"<h3>{escape(clean(run.label))}</h3>" + _figure(row, "", drawn, "wide")
    return "similarity", "Similarity of classes", text


def _map(maps: Sequence[RunMap], names: Sequence[str], rows: Tensor, runs: int, drawn: list[Drawn]) -> Section:
    data = maps[0].shown.data
    drawn += figures.still_maps(maps, names, data.test.labels[rows].tolist())
    start = min(1, len(data.levels) - 1)
    choices = "".join(
        f'<label><input type="radio" name="level" value="{n}"{" checked" if n == start else ""}>'
        f"<span>{escape(clean(level.name))}</span></label>"
        for n, level in enumerate(data.levels)
    )
    left_out = (
        f" Of {runs} runs, the first seed of each recipe has a map, to keep the page small." if len(maps) < runs else ""
    )
    things = f"{data.thing}s"
    which = f" of {escape(clean(data.name))}, each with the frame in its middle" if data.moves else ""
    gone = without_picture(maps, rows)
    gray = f" {gone} of the {things} cannot be read any more and are gray." if gone else ""
    text = f"""<p>{len(rows)} of {len(data.test):,} test {things}{which}, equally many of each class, placed by t-SNE
on the features before the head. Every map shows the same {things}: point at one, and it is ringed in all. Click it to
see the {NEIGHBOURS} training {things} that each run finds nearest, marked by their rank.{left_out}{gray}</p>
<p class="sr" id="map-help">Arrow keys move between {things}, Page Up and Page Down go through all
of them, Enter shows the nearest training {things}, Escape closes.</p>
<div class="tools"><fieldset><legend>Colour by</legend><span class="choice">{choices}</span></fieldset></div>
<div class="legend" id="legend" role="group" aria-label="Show one group only"></div>
<div class="maps" id="maps"></div>
<noscript><p>The map needs JavaScript; without, see the files figures/map-….svg.</p></noscript>
<p class="sr" id="status" role="status"></p>
<div id="tip" hidden></div>
<div id="panel" role="region" aria-label="Nearest training {things}" aria-live="polite" hidden></div>
<p class="small">With the keyboard: Tab to a map, arrow keys (or Page Up, Page Down) to move, Enter for the nearest
{things}, Escape to close. A name in the legend shows its group alone. Distances between clusters on such a map mean
little; who is next to whom does.</p>"""
    # The section itself carries the level the map starts with, and is what the tip is placed in.
    return "maps-section", "Map", f'<div id="map" data-level="{start}">{text}</div>'


def _retrieval(runs: Sequence[Shown], drawn: list[Drawn]) -> Section:
    things = f"{runs[0].data.thing}s"
    caption = (
        f"Test {things} search the training {things} by cosine of features before the head, or of embeddings after it "
        "where a panel says so. <b>Higher is better</b>; the left end says how good the first hits are, the area below "
        "the curve is about the mean average precision (mAP)."
    )
    if len(runs[0].data.levels) > 1:
        caption += f" At coarser levels, any {things[:-1]} of the same group is a hit."
    return "retrieval", "Precision and recall", _figure(figures.precision_recall(runs), caption, drawn)


def _nearest(runs: Sequence[Shown], of_runs: int, films: list[str]) -> Section:
    text, made = nearest_videos(runs, of_runs - len(runs))
    films += made
    return "nearest", "Nearest videos", text


def _outliers(runs: Sequence[Shown], names: Sequence[str], drawn: list[Drawn]) -> Section:
    sets = figures.outlier_sets(runs)
    lacking = [run for run in runs if set(run.figures.get("outliers", {})) != set(sets) or not sets]
    text = ""
    for number, name in enumerate(sets, 1):
        caption = (
            f"Inliers are the test {runs[0].data.thing}s, outliers come from {escape(clean(name))}. <b>Look for "
            "histograms that come apart</b> and ROC curves that bend to the upper left; the dotted diagonal is chance. "
            "Beside each name: the area under its curve. Scores beyond the ends of a histogram are counted in its last "
            "bars."
        )
        panels = figures.outlier_panels(runs, names, name, number)
        text += f"<h3>{escape(clean(name))}</h3>" + _figure(panels, caption, drawn)
    if lacking:
        which = ", ".join(clean(run.label) for run in lacking) if sets else "These runs"
        command = f"rince evaluate {' '.join(str(run.folder) for run in lacking)} --outliers DIR_OR_NAME"
        missing = "some of these outliers" if sets else "outliers"
        text += (
            f'<p class="note">{escape(which)}: not judged on {missing}. To add them, run '
            f"<code>{escape(clean(command, 400))}</code> and write this report again.</p>"
        )
    return "outliers", "Outliers", text


def _geometry(runs: Sequence[Shown], drawn: list[Drawn]) -> Section:
    things = f"{runs[0].data.thing}s"
    caption = (
        f"Alignment: mean squared distance between {things} that belong together. Uniformity: how evenly all {things} "
        "use the sphere. <b>Lower is better for both</b>, so look towards the lower left; a collapsed encoder would be "
        f"far left but on top. Test {things}, features before the head."
    )
    return "geometry", "Alignment and uniformity", _figure(figures.planes(runs), caption, drawn)
