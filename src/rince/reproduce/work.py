"""The runs of a table, each a process of its own, so that one that fails takes no other with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from rince.errors import ConfigError
from rince.reproduce.jobs import Job, refuse_another_recipe
from rince.reproduce.plan import Plan
from rince.reproduce.summary import Summary
from rince.terminal import Say, duration
from rince.train.record import RECIPE
from rince.train.signals import NAMES


class Reproduction:
    """A table on its way.

    Args:
        plan: of the table.
        rows: names of rows; None for all that have a recipe.
        seeds: of the runs; None for as many as the table asks for.
        at_a_time: runs; on CPUs they share the cores.
        kept: folder of a summary of before, whose runs count as done.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        rows: Sequence[str] | None = None,
        seeds: Sequence[int] | None = None,
        at_a_time: int = 1,
        kept: Path | None = None,
    ) -> None:
        self.out, self.scale, self.table, self.at_a_time = plan.out, plan.scale, plan.table, at_a_time
        self.jobs = plan.jobs(rows, seeds)
        self._summary = Summary(plan, kept)
        for job in self.jobs:
            if (job.row, job.seed) not in self._summary.before:
                refuse_another_recipe(job)
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    @property
    def left(self) -> list[Job]:
        """What is neither done here nor kept."""
        return [job for job in self.jobs if not self._summary.is_done(job)]

    def run(self, say: Say) -> list[Job]:
        """Does what is left to do; returns the jobs that failed. KeyboardInterrupt stops all runs, saved."""
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot write {self.out}: {error.strerror}; choose another --out") from None
        left = self.left
        at = f", {self.scale} scale" if self.scale else ""
        say(f"{self.table}{at}: {len(self.jobs)} runs, {len(self.jobs) - len(left)} of them done already")
        self._summary.write()
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
                self._summary.write()
                each = (time.monotonic() - started) / finished
                what = f"failed: {problem}" if problem else f"done in {duration(time.monotonic() - begun)}"
                rest = duration(each * (len(left) - finished))
                say(f"[{finished}/{len(left)}] {job.row}, seed {job.seed}: {what}; about {rest} left")

        with ThreadPoolExecutor(self.at_a_time) as pool, _stop_signals():
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
        threads = max(1, (os.cpu_count() or 1) // self.at_a_time)
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
