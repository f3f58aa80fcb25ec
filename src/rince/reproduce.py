"""`rince reproduce`: every row of a table of the paper × seed, trained, evaluated, and put beside the paper's numbers.

Each run is a process of its own, so that one that fails takes no other with it. What is done is skipped, what was
interrupted goes on. The folder:

table.md table.tex table.csv     the table, before and after the head, rewritten after every run; below it the
differences.csv                  differences of rows that it compares
runs/<row>/seed-<n>/             run folders, with seed-<n>.train.log and seed-<n>.evaluate.log beside them
summary/                         what is worth keeping: the table, a small JSON file per run, and queries.npz, what
                                 every row does with every test query, mean over seeds: for differences of any two rows
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rince.config import Recipe, load_recipe
from rince.errors import ConfigError, DataError
from rince.evaluation.metrics.accuracy import BEST_TEST, FINETUNED
from rince.evaluation.metrics.detection import AUROC
from rince.evaluation.metrics.metric import Named
from rince.evaluation.queries import QUERIES, Queries, mean_over_seeds, read_queries
from rince.files import file_digest_once, write_whole
from rince.hierarchy.class_lists import outlier_name
from rince.report import differences
from rince.report.differences import Compared, columns_of, packed, unpacked
from rince.report.tables import Table, beside_the_paper, csv_text, latex, markdown, paper_tables
from rince.sources.splits import other_set
from rince.sources.text_files import EMBEDDED
from rince.terminal import Say, duration
from rince.train.record import CHECKPOINT, ENVIRONMENT, RECIPE

SEEDS = (123, 546, 937, 1, 2, 3, 4, 5, 6, 7)
USUAL_SEEDS = 3  # the first of them, where a table does not ask for more
RESULTS = "results.json"
QUERIES_OF_ROWS = "queries.npz"
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
        scale: `"full"`, `"reduced"` or `"pretrained"`; None for tables that have one only.
        out: folder.
        data: folder that holds the data sets by name, or None for the hub.
        rows: names of rows; None for all that have a recipe.
        seeds: of the runs; None for as many as the table asks for.
        jobs: runs at a time; on CPUs they share the cores.
    """

    table: str
    scale: str | None
    out: Path
    data: Path | None = None
    rows: Sequence[str] | None = None
    seeds: Sequence[int] | None = None
    jobs: int = 1
    _processes: set[subprocess.Popen[bytes]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stopped: bool = False

    def plan(self) -> list[Job]:
        """All runs, row by row; every mistake in the request is found here."""
        tables = paper_tables()
        if self.table not in tables:
            raise ConfigError(f"there is no table {self.table!r}; there are {', '.join(tables)}")
        self._check_scale(tables[self.table])
        known = self._runs()
        if not known:
            raise ConfigError(f"table {self.table!r} has no recipes yet")
        named = {*known, *tables[self.table]["runs"]}  # some are left out at this scale
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
        for job in jobs:
            _refuse_another_recipe(job)
        return jobs

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
        left = [job for job in jobs if not is_done(job)]
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
        """The table and the summary, from all runs in the folder that are done, whether asked for now or before."""
        there = [
            self._job(row, int(folder.name.removeprefix("seed-")))
            for row in self._runs()
            for folder in sorted(self._folder(row).glob("seed-*"))
            if folder.is_dir() and folder.name.removeprefix("seed-").isdigit()
        ]
        done = [job for job in there if is_done(job)]
        results: dict[str, list[dict[str, Any]]] = {}
        queries: dict[str, list[Queries]] = {}
        summary = self.out / "summary"
        summary.mkdir(exist_ok=True)
        for job in done:
            found = json.loads((job.folder / RESULTS).read_text())
            results.setdefault(job.row, []).append(found)
            queries.setdefault(job.row, []).extend(filter(None, [read_queries(job.folder)]))
            kept = {
                "row": job.row,
                "commands": [shlex.join(command) for command in job.commands],
                "environment": json.loads((job.folder / ENVIRONMENT).read_text()),
                "recipe": yaml.safe_load((job.folder / RECIPE).read_text()),
                "results": found,
            }
            text = json.dumps(kept, indent=1, ensure_ascii=False) + "\n"
            write_whole(summary / f"{_slug(job.row)}-seed-{job.seed}.json", text)
        table = beside_the_paper(self.table, results)
        means = packed({row: columns_of(mean_over_seeds(seeds), table.metrics) for row, seeds in queries.items()})
        write_whole(summary / QUERIES_OF_ROWS, means)
        # From what is kept, so that anybody can make them again.
        compared = differences.between(unpacked(means), paper_tables()[self.table].get("compare", []), table.metrics)
        for folder in (self.out, summary):
            write_table(table, folder, compared)

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
    """A closed terminal or a `kill` stops the runs as Ctrl-C does; else they would go on without us."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    # What is ignored stays so: `nohup` does that to outlive its terminal.
    chosen = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in chosen}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def write_table(table: Table, folder: Path, compared: Sequence[Compared] = ()) -> None:
    """The table in three formats, and below it the differences."""
    texts = {"table.md": markdown(table), "table.tex": latex(table), "table.csv": csv_text(table)}
    if compared:
        texts["table.md"] += "\n" + differences.markdown(compared)
        texts["table.tex"] += "\n" + differences.latex(compared)
        texts["differences.csv"] = differences.csv_text(compared)
    for name, text in texts.items():
        write_whole(folder / name, text)


def is_done(job: Job) -> bool:
    """Whether a run was evaluated at its end, by the recipe it would have now."""
    try:
        results = json.loads((job.folder / RESULTS).read_text())
    except (OSError, ValueError):
        return False
    wanted = [Named(AUROC, outlier_name(source)) for source in job.outliers]
    wanted += [Named(FINETUNED, on=other_set(source, job.load().data.source)) for source in job.finetuned_on]
    wanted += [Named(BEST_TEST)] if "paper" in job.commands[1] else []
    return (
        {named.name for named in wanted} <= results["metrics"].keys()
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
    if sources[0] != sources[1] and Path(sources[0]).resolve() == Path(sources[1]).resolve():
        wanted = wanted.model_copy(update={"data": there.data.model_copy(update={"source": sources[0]})})
    if there != wanted:
        raise ConfigError(f"{job.folder} holds a run of another recipe than {job.recipe} is now; choose another --out")


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
    ahead = {each.made_of: each.ahead for each in costs.values()}
    return "\n".join([told, *(line for lines in ahead.values() for line in lines)])
