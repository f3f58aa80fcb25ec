"""What is worth keeping of a table's runs, rewritten after each of them: the table, differences, curves, and every run.

A summary of before counts as if its runs were done here.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import yaml

import rince
from rince.errors import ConfigError, DataError
from rince.evaluation.queries import Queries, mean_over_seeds, read_queries
from rince.files import write_whole
from rince.report import differences
from rince.report.differences import (
    Compared,
    Groups,
    Means,
    Seeds,
    columns_of,
    packed,
    pooled,
    unpacked,
    unpacked_groups,
)
from rince.report.kept import CURVES, LOG, curves_csv, draw_curves, mean_curves, run_curves, thinned_log
from rince.report.tables import Table, beside_the_paper, csv_text, latex, markdown
from rince.reproduce.jobs import RESULTS, Job, is_done, recipe_of_values, same_but_for_place
from rince.reproduce.plan import Plan, place_of_seed, stem
from rince.terminal import counted, mention
from rince.train.record import ENVIRONMENT, RECIPE

QUERIES_OF_ROWS = "queries.npz"
CURVES_OF_ROWS, PICTURE = "precision-recall.csv", "precision-recall.svg"


class Kept(NamedTuple):
    """A run of a summary of before."""

    run: dict[str, Any]
    row: str
    """What its table calls it: τ₂ = 0.225 of one table is RINCE-in of another."""


class Summary:
    """Of a table on its way.

    Args:
        plan: of the table.
        kept: folder of a summary of before, whose runs count as done.
    """

    def __init__(self, plan: Plan, kept: Path | None = None) -> None:
        self.plan, self.kept = plan, kept

    @cached_property
    def before(self) -> dict[tuple[str, int], Kept]:
        """Row and seed → run of the summary of before, by the recipe that it would have now."""
        if self.kept is None:
            return {}
        paths = sorted(self.kept.glob("*-seed-*.json"))
        if not paths:
            raise ConfigError(f"--kept {self.kept} is no summary of a table: it has no file of a run, NAME-seed-N.json")
        found: dict[tuple[str, int], Kept] = {}
        for path in paths:
            try:
                run = json.loads(path.read_text("utf-8"))
                row, seed, values = run["row"], run["results"]["seed"], run["recipe"]
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise ConfigError(f"{path} is no summary of a run ({type(error).__name__}); restore it") from None
            recipe = recipe_of_values(values)
            jobs = [self.plan.job(each, seed) for each in self.plan.runs]
            same = [job for job in jobs if recipe is not None and same_but_for_place(recipe, job.loaded)]
            if row in self.plan.runs and not same:
                name = self.plan.runs[row][0]
                mention(f"{path} is of another recipe than {name} is now: left out, as if it were not there")
            for job in [job for job in same if job.row == row] or same:
                own = job.row == row or (job.row, seed) not in found
                if own and job.wanted <= run["results"]["metrics"].keys():
                    found[job.row, seed] = Kept(run | {"row": job.row}, row)
        if found and not (self.kept / QUERIES_OF_ROWS).is_file():
            mention(f"{self.kept} has no {QUERIES_OF_ROWS}: its runs count, but not in differences query by query")
        if not found:
            mention(f"none of the {counted(len(paths), 'run')} in {self.kept} is a row of this table")
        return found

    def is_done(self, job: Job) -> bool:
        """Whether it was run here, or stands in the summary of before."""
        return (job.row, job.seed) in self.before or is_done(job)

    def write(self) -> None:
        """The table and the summary, from all runs that are done: asked for now, earlier in this folder, or kept."""
        there = [
            self.plan.job(row, int(folder.name.removeprefix("seed-")))
            for row in self.plan.runs
            for folder in sorted(self.plan.folder(row).glob("seed-*"))
            if folder.is_dir() and folder.name.removeprefix("seed-").isdigit()
        ]
        done = [job for job in there if (job.row, job.seed) not in self.before and is_done(job)]
        runs = {key: kept.run for key, kept in self.before.items()}
        runs |= {(job.row, job.seed): self._kept_of(job) for job in done}
        _refuse_different_training(runs)
        results: dict[str, list[dict[str, Any]]] = {}
        for (row, _), run in sorted(runs.items(), key=lambda item: place_of_seed(item[0][1])):
            results.setdefault(row, []).append(run["results"])
        queries: dict[str, list[Queries]] = {}
        seeds: dict[str, list[int]] = {}
        for job in done:
            if (found := read_queries(job.folder)) is not None:
                queries.setdefault(job.row, []).append(found)
                seeds.setdefault(job.row, []).append(job.seed)
        table = beside_the_paper(self.plan.table, results)
        means = {row: columns_of(mean_over_seeds(several), table.metrics) for row, several in queries.items()}
        new = means, {row: dict.fromkeys(values, seeds[row]) for row, values in means.items()}
        groups = {on: each for several in queries.values() for run in several for on, each in run.groups.items()}
        content = packed(*pooled([self._means_before(), new]), {**self._groups_before(), **groups})
        summary = self.plan.out / "summary"
        summary.mkdir(exist_ok=True)
        for (row, seed), run in runs.items():
            write_whole(summary / f"{stem(row, seed)}.json", json.dumps(run, indent=1, ensure_ascii=False) + "\n")
        write_whole(summary / QUERIES_OF_ROWS, content)
        curves = self._write_logs_and_curves(list(runs), {(job.row, job.seed): job.folder for job in done}, summary)
        # From what is kept, so that anybody can make them again.
        compared = differences.between(
            unpacked(content)[0], self.plan.compared, table.metrics, unpacked_groups(content)
        )
        for folder in (self.plan.out, summary):
            write_table(table, folder, compared, made_at(runs.values()), curves=curves)

    def _write_logs_and_curves(
        self, runs: Sequence[tuple[str, int]], folders: Mapping[tuple[str, int], Path], summary: Path
    ) -> bool:
        """Of every run, from its folder or from the summary of before; and the mean curves, if there are any."""
        curves: dict[str, list[str]] = {}
        for row, seed in sorted(runs, key=lambda run: place_of_seed(run[1])):
            for ending, made in ((LOG, thinned_log), (CURVES, run_curves)):
                text = made(folders[row, seed]) if (row, seed) in folders else self._text_before(row, seed, ending)
                if text:
                    write_whole(summary / (stem(row, seed) + ending), text)
                if ending == CURVES:
                    curves.setdefault(row, []).append(text)
        means = mean_curves({row: curves[row] for row in self.plan.runs if row in curves})
        if not means:
            return False
        text = curves_csv(means)
        known = summary / CURVES_OF_ROWS
        if not (known.is_file() and (self.plan.out / PICTURE).is_file() and known.read_text("utf-8") == text):
            picture = draw_curves(means)
            for folder in (self.plan.out, summary):
                write_whole(folder / PICTURE, picture)
                write_whole(folder / CURVES_OF_ROWS, text)  # last: it is what tells that both pictures are of these
        return True

    def _text_before(self, row: str, seed: int, ending: str) -> str:
        """A file of a kept run; empty if there is none."""
        path = (self.kept or Path()) / (stem(self.before[row, seed].row, seed) + ending)
        return path.read_text("utf-8") if path.is_file() else ""

    def _kept_of(self, job: Job) -> dict[str, Any]:
        """What is worth keeping of a run, without the places where data and runs lie on this machine."""
        run = {
            "row": job.row,
            "commands": [shlex.join(command) for command in job.commands],
            "environment": json.loads((job.folder / ENVIRONMENT).read_text()),
            "recipe": yaml.safe_load((job.folder / RECIPE).read_text()),
            "results": json.loads((job.folder / RESULTS).read_text()),
        }
        out, data = self.plan.out, self.plan.data
        places = {str(out): f"runs/{out.name}"} | ({str(data): "DIR"} if data else {})
        told: dict[str, Any] = _placeless(run, places)
        return told

    def _means_before(self) -> tuple[Means, Seeds]:
        """Of the queries of kept runs; a mean counts only if all runs that it is of are kept."""
        if self.kept is None or not (self.kept / QUERIES_OF_ROWS).is_file():
            return {}, {}
        means, seeds = unpacked((self.kept / QUERIES_OF_ROWS).read_bytes())
        kept = {(row, seed): each.row for (row, seed), each in self.before.items()}
        called = {row: name for (row, _), name in kept.items() if name in means}
        whole = {
            row: {
                metric: tensor
                for metric, tensor in means[name].items()
                if all(kept.get((row, seed)) == name for seed in seeds[name][metric])
            }
            for row, name in called.items()
        }
        return whole, {row: seeds[name] for row, name in called.items()}

    def _groups_before(self) -> Groups:
        if self.kept is None or not (self.kept / QUERIES_OF_ROWS).is_file():
            return {}
        return unpacked_groups((self.kept / QUERIES_OF_ROWS).read_bytes())


def made_at(runs: Iterable[dict[str, Any]]) -> str:
    """Says at which commits kept runs were trained, and which of them by a version whose numbers have changed since."""
    commits: Counter[str] = Counter()
    older: Counter[str] = Counter()
    for run in runs:
        commits[str(run["environment"].get("commit") or "unknown")[:9]] += 1
        version = str(run["environment"]["rince"])
        if version.split(".")[:2] != rince.__version__.split(".")[:2]:
            older[version] += 1
    often = sorted(commits.items(), key=lambda item: (-item[1], item[0]))
    told = ", ".join(f"{commit} ({counted(number, 'run')})" for commit, number in often)
    before = "".join(
        f" {counted(number, 'run')} by rince {version}, before the changes of *Numbers* that CHANGELOG.md lists since."
        for version, number in sorted(older.items())
    )
    return f"Trained at {told}.{before}" if commits else ""


def write_table(
    table: Table, folder: Path, compared: Sequence[Compared] = (), made: str = "", *, curves: bool = False
) -> None:
    """The table in three formats, and below it where its runs were made, the differences, and where the curves are."""
    texts = {"table.md": markdown(table), "table.tex": latex(table), "table.csv": csv_text(table)}
    texts["table.md"] += f"\n{made}\n" if made else ""
    if compared:
        texts["table.md"] += "\n" + differences.markdown(compared)
        texts["table.tex"] += "\n" + differences.latex(compared)
        texts["differences.csv"] = differences.csv_text(compared)
    if curves:
        texts["table.md"] += f"\nPrecision-recall curves, mean over seeds: [{PICTURE}]({PICTURE}), {CURVES_OF_ROWS}.\n"
    for name, text in texts.items():
        write_whole(folder / name, text)


def _refuse_different_training(runs: Mapping[tuple[str, int], dict[str, Any]]) -> None:
    """Runs that read their data alike were trained on the same samples, by content; those of before may not say."""
    first: dict[str, tuple[str, str]] = {}
    for (row, seed), run in runs.items():
        found, told = run["environment"].get("data", {}).get("train"), f"{row}, seed {seed}"
        recipe = run["recipe"]  # of clips without positives more videos may be long enough
        ranked = recipe.get("ranks") is not None
        alike = json.dumps([{**recipe["data"], "source": None}, recipe["model"], ranked], sort_keys=True)
        known, of = first.setdefault(alike, (found, told))
        if found is not None and known is not None and known != found:
            raise DataError(
                f"{of} and {told} cannot stand in one table: they were trained on different samples "
                f"({known[:12]} and {found[:12]}); restore the data, or leave out --kept"
            )


def _placeless(value: Any, places: Mapping[str, str]) -> Any:
    """A copy with the names of folders replaced in all its texts."""
    if isinstance(value, dict):
        return {key: _placeless(each, places) for key, each in value.items()}
    if isinstance(value, list):
        return [_placeless(each, places) for each in value]
    if isinstance(value, str):
        for here, told in places.items():
            value = value.replace(here, told)
    return value
