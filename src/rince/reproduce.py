"""`rince reproduce`: every row of a table of the paper × seed, trained, evaluated, and put beside the paper's numbers.

Each run is a process of its own, so that one that fails takes no other with it. What is done is skipped, what was
interrupted goes on. The folder:

table.md table.tex table.csv     the table, before and after the head, rewritten after every run; below it the
differences.csv                  differences of rows that it compares
precision-recall.csv, .svg       the precision-recall curves of all rows, mean over seeds
runs/<row>/seed-<n>/             run folders, with seed-<n>.train.log and seed-<n>.evaluate.log beside them
summary/                         what is worth keeping: all of the above that is no run; of every run a small JSON file,
                                 its training log, thinned, and its precision-recall curves; and queries.npz, what
                                 every row does with every test query, mean over seeds: for differences of any two rows

A summary of before (`--kept`) counts: its runs are done, and the new summary holds them too. So a table that takes
days grows on any machine, and only summaries need to be kept.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

import rince
from rince.config import Recipe, load_recipe
from rince.config.older import upgraded
from rince.config.reading import validate
from rince.errors import ConfigError, DataError
from rince.evaluation.metrics.accuracy import BEST_TEST, FINETUNED
from rince.evaluation.metrics.detection import AUROC
from rince.evaluation.metrics.metric import Named
from rince.evaluation.queries import QUERIES, Queries, mean_over_seeds, read_queries
from rince.files import file_digest_once, write_whole
from rince.hierarchy.class_lists import outlier_name, split_source
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
from rince.report.tables import Table, beside_the_paper, csv_text, latex, markdown, paper_tables
from rince.sources.splits import other_set
from rince.sources.text_files import EMBEDDED
from rince.terminal import Say, counted, duration, mention
from rince.train.record import CHECKPOINT, ENVIRONMENT, RECIPE
from rince.train.signals import NAMES

SEEDS = (123, 546, 937, 1, 2, 3, 4, 5, 6, 7)
USUAL_SEEDS = 3  # the first of them, where a table does not ask for more
RESULTS = "results.json"
QUERIES_OF_ROWS = "queries.npz"
CURVES_OF_ROWS, PICTURE = "precision-recall.csv", "precision-recall.svg"
# Where data is found by its name in the tables: below --data, or on the hub.
HUB = {"cifar100": "uoft-cs/cifar100", "cifar10": "uoft-cs/cifar10", "tiny-imagenet": "zh-plus/tiny-imagenet"}


@dataclass(frozen=True)
class Job:
    """One run: a row of the table with a seed."""

    row: str
    seed: int
    recipe: str
    overrides: tuple[str, ...]
    folder: Path
    outliers: tuple[str, ...] = ()
    finetuned_on: tuple[str, ...] = ()

    def load(self) -> Recipe:
        """The recipe as it will be run."""
        return load_recipe(self.recipe, list(self.overrides))

    @property
    def wanted(self) -> set[str]:
        """Names of the numbers without which it is not done."""
        wanted = [Named(AUROC, outlier_name(source)) for source in self.outliers]
        wanted += [Named(FINETUNED, on=other_set(source, self.load().data.source)) for source in self.finetuned_on]
        wanted += [Named(BEST_TEST)] if "paper" in self.commands[1] else []
        return {named.name for named in wanted}

    @property
    def commands(self) -> tuple[list[str], list[str]]:
        """What a person would type to train and to evaluate it."""
        train = ["rince", "train", self.recipe, *self.overrides, "--out", str(self.folder)]
        if self.finetuned_on:
            videos = [text for source in self.finetuned_on for text in ("--on", source)]
            return train, ["rince", "evaluate", str(self.folder), *videos, "--finetune"]
        outliers = [text for source in self.outliers for text in ("--outliers", source)]
        probe = ["--probe", "paper"] if "scale=full" in self.overrides else []  # as long as training, on two cores
        return train, ["rince", "evaluate", str(self.folder), *outliers, *probe]


@dataclass
class Reproduction:
    """A table on its way.

    Args:
        table: its name.
        scale: `"full"`, `"long"`, `"reduced"` or `"pretrained"`; None for tables that have one only.
        out: folder.
        data: folder that holds the data sets by name, or None for the hub.
        rows: names of rows; None for all that have a recipe.
        seeds: of the runs; None for as many as the table asks for.
        jobs: runs at a time; on CPUs they share the cores.
        kept: folder of a summary of before, whose runs count as done.
    """

    table: str
    scale: str | None
    out: Path
    data: Path | None = None
    rows: Sequence[str] | None = None
    seeds: Sequence[int] | None = None
    jobs: int = 1
    kept: Path | None = None
    _processes: set[subprocess.Popen[bytes]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stopped: bool = False
    _before: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)  # row and seed → kept run

    def plan(self) -> list[Job]:
        """All runs, row by row; every mistake in the request is found here."""
        tables = paper_tables()
        if self.table not in tables:
            raise ConfigError(f"there is no table {self.table!r}; there are {', '.join(tables)}")
        self._check_scale(tables[self.table])
        known = self._runs()
        if not known:
            raise ConfigError(f"table {self.table!r} has no recipes yet")
        other_scales = tables[self.table].get("more_runs", {}).values()
        named = {*known, *tables[self.table]["runs"], *(row for rows in other_scales for row in rows)}
        strange = [row for pair in tables[self.table].get("compare", []) for row in pair if row not in named]
        if strange:
            raise ConfigError(f"table {self.table!r} compares {strange[0]!r}, which is no row that can be run")
        missing = [row for row in self.rows or [] if row not in known]
        if missing:
            raise ConfigError(
                f"table {self.table!r} has no row {missing[0]!r} that can be run; "
                f"there are {', '.join(map(repr, known))}"
            )
        if self.data is not None and not self.data.is_dir():
            raise ConfigError(f"--data {self.data} is no folder; give the one that holds cifar100, cifar10, …")
        if self.seeds and len(set(self.seeds)) != len(self.seeds):
            raise ConfigError(f"a seed stands twice: {', '.join(map(str, self.seeds))}")
        jobs = [self._job(row, seed) for row in self.rows or known for seed in self.seeds or self._seeds(row)]
        self._before = self._read_kept(known)
        for job in jobs:
            if (job.row, job.seed) not in self._before:
                _refuse_another_recipe(job)
        return jobs

    def _read_kept(self, known: Collection[str]) -> dict[tuple[str, int], dict[str, Any]]:
        """The runs of the summary of before, each by the recipe that it would have now."""
        if self.kept is None:
            return {}
        paths = sorted(self.kept.glob("*-seed-*.json"))
        if not paths:
            raise ConfigError(f"--kept {self.kept} is no summary of a table: it has no file of a run, NAME-seed-N.json")
        if not (self.kept / QUERIES_OF_ROWS).is_file():
            mention(f"{self.kept} has no {QUERIES_OF_ROWS}: its runs count, but not in differences query by query")
        found = {}
        for path in paths:
            try:
                run = json.loads(path.read_text("utf-8"))
                row, seed, values = run["row"], run["results"]["seed"], run["recipe"]
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise ConfigError(f"{path} is no summary of a run ({type(error).__name__}); restore it") from None
            if row not in known:
                continue
            job = self._job(row, seed)
            if not _is_recipe_of(job, values):
                mention(f"{path} is of another recipe than {job.recipe} is now: left out, as if it were not there")
            elif job.wanted <= run["results"]["metrics"].keys():
                found[row, seed] = run
        return found

    def is_done(self, job: Job) -> bool:
        """Whether it was run here, or stands in the summary of before."""
        return (job.row, job.seed) in self._before or is_done(job)

    def _check_scale(self, table: dict[str, Any]) -> None:
        scales = table.get("scales", ["full", "reduced"])
        if not scales and self.scale is not None:
            raise ConfigError(f"table {self.table!r} has one scale only; leave out --scale")
        if not scales:
            return
        self.scale = self.scale or "reduced"
        if self.scale not in scales:
            raise ConfigError(f"table {self.table!r} has no scale {self.scale!r}; there are {', '.join(scales)}")

    def _runs(self) -> dict[str, list[str]]:
        """Row → its recipe and changes, of those that there are at this scale."""
        table = paper_tables()[self.table]
        runs: dict[str, list[str]] = table["runs"] | table.get("more_runs", {}).get(self.scale, {})
        left_out = table.get("left_out", {}).get(self.scale, [])
        return {row: run for row, run in runs.items() if row not in left_out}

    def _seeds(self, row: str) -> Sequence[int]:
        table = paper_tables()[self.table]
        number = table.get("seeds", USUAL_SEEDS)
        if isinstance(number, dict):  # by scale
            number = number.get(self.scale, USUAL_SEEDS)
        if row in table.get("three_seeds", []):
            number = USUAL_SEEDS
        recipe = self._runs()[row][0]
        return SEEDS[: 1 if recipe.endswith("/frozen") else number]  # nothing is drawn where nothing is trained

    def _job(self, row: str, seed: int) -> Job:
        table = paper_tables()[self.table]
        recipe, *changes = self._runs()[row]
        source = self._source(self._by_scale(table["data"]))
        scale = [f"scale={self.scale}"] if self.scale else []
        own = {change.partition("=")[0] for change in changes}
        chosen = [each for each in table.get("settings", []) if each.partition("=")[0] not in own]
        overrides = (*scale, f"data.source={source}", f"seed={seed}", *chosen, *changes)
        outliers = tuple(self._source(name) for name in table.get("outliers", []))
        finetuned_on = tuple(self._source(name) for name in self._by_scale(table.get("finetune", [])))
        return Job(row, seed, recipe, overrides, self._folder(row) / f"seed-{seed}", outliers, finetuned_on)

    def _by_scale(self, value: Any) -> Any:
        return value[self.scale] if isinstance(value, dict) else value

    def _folder(self, row: str) -> Path:
        return self.out / "runs" / _slug(row)

    def run(self, jobs: list[Job], say: Say) -> list[Job]:
        """Does what is left to do; returns the jobs that failed. KeyboardInterrupt stops all runs, saved."""
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot write {self.out}: {error.strerror}; choose another --out") from None
        left = [job for job in jobs if not self.is_done(job)]
        at = f", {self.scale} scale" if self.scale else ""
        say(f"{self.table}{at}: {len(jobs)} runs, {len(jobs) - len(left)} of them done already")
        self._write()
        failed: list[Job] = []
        started, finished = time.monotonic(), 0

        def work(job: Job) -> None:
            nonlocal finished
            if self._stopped:
                return
            begun = time.monotonic()
            problem = self._run(job)
            with self._lock:
                if self._stopped:
                    return
                finished += 1
                if problem:
                    failed.append(job)
                self._write()
                each = (time.monotonic() - started) / finished
                what = f"failed: {problem}" if problem else f"done in {duration(time.monotonic() - begun)}"
                rest = duration(each * (len(left) - finished))
                say(f"[{finished}/{len(left)}] {job.row}, seed {job.seed}: {what}; about {rest} left")

        with ThreadPoolExecutor(self.jobs) as pool, _stop_signals():
            try:
                for future in [pool.submit(work, job) for job in left]:
                    future.result()
            except KeyboardInterrupt:
                self._stopped = True
                for process in list(self._processes):
                    process.terminate()  # they save, and go on from there next time
                raise
        return failed

    def _run(self, job: Job) -> str | None:
        """Trains and evaluates; what went wrong, in a line, or None."""
        train, evaluate = job.commands
        if (job.folder / RECIPE).exists():
            train = ["rince", "train", "--resume", str(job.folder)]
        job.folder.parent.mkdir(parents=True, exist_ok=True)
        for name, command in (("train", train), ("evaluate", evaluate)):
            log = job.folder.with_name(f"{job.folder.name}.{name}.log")  # a run folder has to be empty at its start
            code = self._call(command, log)
            if self._stopped:
                return "interrupted"
            if code != 0:
                lines = log.read_text(errors="replace").strip().splitlines()
                return f"{lines[-1] if lines else 'no word'} (exit code {code}, see {log})"
        return None

    def _call(self, command: list[str], log: Path) -> int:
        threads = max(1, (os.cpu_count() or 1) // self.jobs)
        environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
        with log.open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C is for us; we tell them
            )
            with self._lock:
                self._processes.add(process)
            try:
                return process.wait()
            finally:
                with self._lock:
                    self._processes.discard(process)

    def _write(self) -> None:
        """The table and the summary, from all runs that are done: asked for now, earlier in this folder, or kept."""
        there = [
            self._job(row, int(folder.name.removeprefix("seed-")))
            for row in self._runs()
            for folder in sorted(self._folder(row).glob("seed-*"))
            if folder.is_dir() and folder.name.removeprefix("seed-").isdigit()
        ]
        done = [job for job in there if (job.row, job.seed) not in self._before and is_done(job)]
        runs = self._before | {(job.row, job.seed): self._kept_of(job) for job in done}
        _refuse_different_training(runs)
        results: dict[str, list[dict[str, Any]]] = {}
        for (row, _), run in sorted(runs.items(), key=lambda item: _place_of(item[0][1])):
            results.setdefault(row, []).append(run["results"])
        queries: dict[str, list[Queries]] = {}
        seeds: dict[str, list[int]] = {}
        for job in done:
            if (found := read_queries(job.folder)) is not None:
                queries.setdefault(job.row, []).append(found)
                seeds.setdefault(job.row, []).append(job.seed)
        table = beside_the_paper(self.table, results)
        means = {row: columns_of(mean_over_seeds(several), table.metrics) for row, several in queries.items()}
        new = means, {row: dict.fromkeys(values, seeds[row]) for row, values in means.items()}
        groups = {on: each for several in queries.values() for run in several for on, each in run.groups.items()}
        content = packed(*pooled([self._means_before(), new]), {**self._groups_before(), **groups})
        summary = self.out / "summary"
        summary.mkdir(exist_ok=True)
        for (row, seed), run in runs.items():
            write_whole(summary / f"{_stem(row, seed)}.json", json.dumps(run, indent=1, ensure_ascii=False) + "\n")
        write_whole(summary / QUERIES_OF_ROWS, content)
        curves = self._write_logs_and_curves(list(runs), {(job.row, job.seed): job.folder for job in done}, summary)
        # From what is kept, so that anybody can make them again.
        pairs = paper_tables()[self.table].get("compare", [])
        compared = differences.between(unpacked(content)[0], pairs, table.metrics, unpacked_groups(content))
        for folder in (self.out, summary):
            write_table(table, folder, compared, made_at(runs.values()), curves=curves)

    def _write_logs_and_curves(
        self, runs: Sequence[tuple[str, int]], folders: Mapping[tuple[str, int], Path], summary: Path
    ) -> bool:
        """Of every run, from its folder or from the summary of before; and the mean curves, if there are any."""
        curves: dict[str, list[str]] = {}
        for row, seed in sorted(runs, key=lambda run: _place_of(run[1])):
            for ending, made in ((LOG, thinned_log), (CURVES, run_curves)):
                name = _stem(row, seed) + ending
                text = made(folders[row, seed]) if (row, seed) in folders else self._text_before(name)
                if text:
                    write_whole(summary / name, text)
                if ending == CURVES:
                    curves.setdefault(row, []).append(text)
        means = mean_curves({row: curves[row] for row in self._runs() if row in curves})
        if not means:
            return False
        text = curves_csv(means)
        known = summary / CURVES_OF_ROWS
        if not (known.is_file() and (self.out / PICTURE).is_file() and known.read_text("utf-8") == text):
            picture = draw_curves(means)
            for folder in (self.out, summary):
                write_whole(folder / PICTURE, picture)
                write_whole(folder / CURVES_OF_ROWS, text)  # last: it is what tells that both pictures are of these
        return True

    def _text_before(self, name: str) -> str:
        """A file of the summary of before; empty if it has none of that name."""
        path = (self.kept or Path()) / name
        return path.read_text("utf-8") if self.kept is not None and path.is_file() else ""

    def _kept_of(self, job: Job) -> dict[str, Any]:
        """What is worth keeping of a run, without the places where data and runs lie on this machine."""
        run = {
            "row": job.row,
            "commands": [shlex.join(command) for command in job.commands],
            "environment": json.loads((job.folder / ENVIRONMENT).read_text()),
            "recipe": yaml.safe_load((job.folder / RECIPE).read_text()),
            "results": json.loads((job.folder / RESULTS).read_text()),
        }
        places = {str(self.out): f"runs/{self.out.name}"} | ({str(self.data): "DIR"} if self.data else {})
        told: dict[str, Any] = _placeless(run, places)
        return told

    def _means_before(self) -> tuple[Means, Seeds]:
        """Of the queries of kept runs; a mean counts only if all runs that it is of are kept."""
        if self.kept is None or not (self.kept / QUERIES_OF_ROWS).is_file():
            return {}, {}
        means, seeds = unpacked((self.kept / QUERIES_OF_ROWS).read_bytes())
        whole = {
            row: {
                metric: tensor
                for metric, tensor in values.items()
                if all((row, seed) in self._before for seed in seeds[row][metric])
            }
            for row, values in means.items()
        }
        return whole, seeds

    def _groups_before(self) -> Groups:
        if self.kept is None or not (self.kept / QUERIES_OF_ROWS).is_file():
            return {}
        return unpacked_groups((self.kept / QUERIES_OF_ROWS).read_bytes())

    def _source(self, text: str) -> str:
        """Where data lies; `name:list` for a part of its classes."""
        name, colon, classes = text.partition(":")
        return self._place(name) + colon + classes

    def _place(self, name: str) -> str:
        if name in EMBEDDED:
            return name
        if self.data is None:
            if name not in HUB:
                raise ConfigError(f"{name} cannot be had from the hub; give --data DIR, a folder that holds {name}")
            return HUB[name]
        if not (self.data / name).exists():
            hub = ", or leave out --data to use the hub" if name in HUB else ""
            raise DataError(f"--data {self.data} holds no {name}; put it there{hub}")
        return str(self.data / name)


@contextmanager
def _stop_signals() -> Iterator[None]:
    """A closed terminal, a `kill` or a cluster stops the runs as Ctrl-C does; else they would go on without us."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    # What is ignored stays so: `nohup` does that to outlive its terminal.
    numbers = [getattr(signal, name) for name in NAMES if name != "SIGINT" and hasattr(signal, name)]
    chosen = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in chosen}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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


def is_done(job: Job) -> bool:
    """Whether a run was evaluated at its end, by the recipe it would have now."""
    path = job.folder / RESULTS
    try:
        results = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError as error:  # it may well be done: nothing is trained anew, nor left out of the table
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    return (
        job.wanted <= results["metrics"].keys()
        and results["step"] == results["of_steps"]
        and (job.folder / QUERIES).exists()
        and (job.folder / CHECKPOINT).exists()
        and results["checkpoint"] == file_digest_once(job.folder / results.get("checkpoint_file", CHECKPOINT))
    )


def _refuse_another_recipe(job: Job) -> None:
    """A folder that holds a run must hold this one; where its data lies may be written differently."""
    if not (job.folder / RECIPE).exists():
        return
    there, wanted = load_recipe(job.folder / RECIPE), job.load()
    sources = [recipe.data.source for recipe in (there, wanted)]
    if there != wanted and not (
        Path(sources[0]).resolve() == Path(sources[1]).resolve() and _same_but_for_place(there, wanted)
    ):
        raise ConfigError(f"{job.folder} holds a run of another recipe than {job.recipe} is now; choose another --out")


def _is_recipe_of(job: Job, values: dict[str, Any]) -> bool:
    """Whether these are the values of its recipe as it is now; those that no recipe may have any more are not."""
    try:
        return _same_but_for_place(validate(upgraded(values), job.recipe), job.load())
    except ConfigError:
        return False


def _same_but_for_place(there: Recipe, wanted: Recipe) -> bool:
    """Whether two recipes differ in where their data lies, at most, and in what is saved and logged on the way.

    The content of data is compared where runs meet.
    """
    same = {"save": there.save, "log": there.log, "data": wanted.data.model_copy(update={"source": there.data.source})}
    return there == wanted.model_copy(update=same)


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


def _place_of(seed: int) -> tuple[int, int]:
    """Where a seed stands: in the order of ours, others after them."""
    return (SEEDS.index(seed) if seed in SEEDS else len(SEEDS), seed)


def _stem(row: str, seed: int) -> str:
    """What the files of a run are called in a summary."""
    return f"{_slug(row)}-seed-{seed}"


def _slug(row: str) -> str:
    """A row's name as a folder: `RINCE-out-in` → `rince-out-in`, `τ₂ = 0.125` → `tau2-0.125`."""
    letters = {"τ": "tau", "α": "alpha", "λ": "lambda", "₂": "2"}
    plain = "".join(letters.get(character, character) for character in row.lower())
    return re.sub(r"[^a-z0-9.]+", "-", plain).strip("-.")


def estimate(jobs: list[Job], count: int) -> str:
    """How long the runs will take here, from a few steps of every row; lines of what has to be computed first."""
    from rince.train.loop import cost  # noqa: PLC0415 - brings torch and Fabric

    rows = {job.row: job for job in reversed(jobs)}  # the first of every row
    costs = {row: cost(rows[row].load()) for row in dict.fromkeys(job.row for job in jobs)}
    total = sum(costs[job.row].seconds for job in jobs) / count
    told = (
        f"about {duration(total)} of training, from a few steps of every row on this machine"
        + (f", if {count} runs at a time do not slow each other" if count > 1 else "")
        + "; evaluation comes on top, less than a fifth of that where networks are trained, as much again where "
        "adapters are, and several times as much with tens of thousands of samples"
    )
    first = {each.made_of: row for row, each in reversed(costs.items())}  # rows that share samples share features
    lines = [line for row in first.values() for line in [*costs[row].ahead, *_ahead_of_judging(rows[row])]]
    return "\n".join([told, *_each_once(lines)])


def _each_once(lines: list[str]) -> list[str]:
    """Lines with those that are indented below them, each such block once."""
    blocks: list[str] = []
    for line in lines:
        if line.startswith(" ") and blocks:
            blocks[-1] += f"\n{line}"
        else:
            blocks.append(line)
    return list(dict.fromkeys(blocks))


def _ahead_of_judging(job: Job) -> list[str]:
    """Features of test samples and outliers, as far as they are made once."""
    from rince.train.plan import ahead_of_judging  # noqa: PLC0415 - brings torch and Fabric

    recipe = job.load()
    views, test = recipe.seen_views, recipe.data.test_split
    outliers = [split_source(place) for place in job.outliers]
    found = (recipe.data.outliers(place, views, classes=classes) for place, classes in outliers)
    return ahead_of_judging(recipe, itertools.chain([recipe.data.open(test, views)], found))
