"""The run folder: what was asked for, on what it ran, what came out.

recipe.yaml        the merged recipe, itself a valid one
environment.json   versions, commit, data fingerprints
metrics.jsonl      one line per logged step; no times in it, so that a resumed run writes the very same bytes
last.ckpt          the newest whole checkpoint
step-<n>.ckpt      with save.keep, that of step n on the way
best.ckpt          with train.judge_every, that of the highest R@1 on validation
validation.json    with data.validation, R@1 of the end, and where it is higher: before or after the head
results.json       what `rince evaluate` finds
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, Self

import torch

import rince
from rince.config import Recipe, changed_settings, load_run_recipe, read_run_recipe
from rince.errors import ConfigError, DataError, WriteError
from rince.files import clear_unfinished, readable, unwritten, write_whole

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

RECIPE, ENVIRONMENT, METRICS, CHECKPOINT = "recipe.yaml", "environment.json", "metrics.jsonl", "last.ckpt"
BEST = "best.ckpt"
KEPT = "step-{:07d}.ckpt"
Checkpoint = Literal["last", "best"]
LOCK = ".lock"  # held by whoever trains
LOGS = {"csv", "tensorboard", "wandb"}  # folders of `log.logger`
BEGUN = {RECIPE, ENVIRONMENT, METRICS, *LOGS}  # all that a run has before its first checkpoint: a start makes it again
FINGERPRINTS = 1  # to be raised when the same samples or ranks get another fingerprint than before


@contextmanager
def new_run(folder: Path, recipe: Recipe) -> Iterator[None]:
    """A new run folder with its recipe, locked; refuses one that holds anything, but for a start that saved nothing."""
    if readable(str(folder)) != str(folder):  # safetensors opens no such path
        raise ConfigError(f"the path of the run folder, {readable(str(folder))}, is not UTF-8; choose another --out")
    text = recipe.to_yaml()
    _refuse_taken(folder, text)  # before anything is put there
    with locked(folder):
        for name in _refuse_taken(folder, text) - {RECIPE}:
            shutil.rmtree(folder / name) if name in LOGS else (folder / name).unlink()
        try:
            write_whole(folder / RECIPE, text)
        except WriteError as error:
            raise ConfigError(f"{error}; choose another --out") from None
        yield


def _refuse_taken(folder: Path, recipe: str) -> set[str]:
    """Refuses a folder with anything in it but what this very run has before it saves; gives the names of that."""
    try:
        clear_unfinished(folder)
        there = {path.name for path in folder.iterdir()} - {LOCK} if folder.exists() else set()
        # The recipe is what a run writes first: what lies there without one is not of a run.
        if not there or (RECIPE in there and there <= BEGUN and (folder / RECIPE).read_text("utf-8") == recipe):
            return there
    except OSError as error:
        raise _no_run_there(folder, error) from None
    advice = f"rince train --resume {folder}" if RECIPE in there else "choose another --out"
    raise ConfigError(f"{folder} is not empty, and nothing in it will be overwritten; {advice}")


def recipe_of(folder: Path) -> Recipe:
    """The recipe of a run that exists, of today or of before."""
    path = folder / RECIPE
    if not os.path.isfile(path):  # false, not an error, for what can be no file
        raise ConfigError(f"{folder} is no run: it has no {RECIPE}; give the folder you passed as --out")
    return load_run_recipe(path)


def check_recipe(folder: Path, recipe: Recipe, saved: dict[str, Any]) -> None:
    """Refuses a recipe that is not the one that a checkpoint of the run was trained by.

    Args:
        folder: of the run.
        recipe: as it is now.
        saved: the checkpoint, which says its own; one of before says nothing.
    """
    text = saved.get("recipe")
    if text is None or text == recipe.to_yaml():
        return
    changed = changed_settings(recipe, read_run_recipe(str(text), f"the recipe in the checkpoint of {folder}"))
    if changed:
        raise ConfigError(
            f"{folder / RECIPE} is not the recipe that the run was trained by: {'; '.join(changed)}. Restore it, or "
            "start a new run"
        )


def write_environment(folder: Path, data: dict[str, Any], notes: Sequence[str]) -> None:
    """Versions, commit, data fingerprints and what is not trained on, once per run."""
    facts = {
        "rince": rince.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "commit": _commit(),
        "fingerprints": FINGERPRINTS,
        "data": data,
        "notes": list(notes),
    }
    write_whole(folder / ENVIRONMENT, json.dumps(facts, indent=2) + "\n")


def noted_data(folder: Path) -> tuple[dict[str, Any], str]:
    """What a run has noted of its data, and by which rince."""
    path = folder / ENVIRONMENT
    try:
        found = json.loads(path.read_text())
        return dict(found["data"]), str(found.get("rince"))
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(f"{path} is damaged, so nobody can tell whether the data is still the same") from None


def comparable_data(folder: Path) -> dict[str, Any]:
    """The same, if its fingerprints can be compared with those of today; nothing of a run of before."""
    path = folder / ENVIRONMENT
    if not path.is_file():
        return {}
    data, _ = noted_data(folder)
    return data if json.loads(path.read_text()).get("fingerprints") == FINGERPRINTS else {}


def check_data(folder: Path, data: dict[str, Any], notes: Sequence[str] = (), *, goes_on: bool) -> None:
    """Refuses to go on with other data than the run began with; notes that of a run that begins."""
    if not (folder / ENVIRONMENT).is_file():
        if goes_on:
            raise DataError(
                f"{folder / ENVIRONMENT} is gone, so nobody can tell whether the data is still that of the run; "
                "restore it, or start a new run"
            )
        return write_environment(folder, data, notes)
    before, version = noted_data(folder)
    for what, is_now in ((what, data[what]) for what in data if what != "source"):  # a copy elsewhere is the same data
        if before.get(what) != is_now and (version != rince.__version__ or what not in before):
            raise DataError(
                f"{folder} was started by rince {version}, which {'chose' if what == 'validation' else 'noted'} its "
                f"{what} differently; it can be evaluated as it is, but not gone on with by {rince.__version__}: start "
                "a new run"
            )
        if before.get(what) != is_now:
            raise DataError(
                f"the {'data' if what != 'ranks' else 'taxonomy or rank source'} is not what {folder} was started on: "
                f"{_short(is_now)} instead of {_short(before.get(what))}; restore it, or start a new run"
            )
    return None


def _short(noted: Any) -> str:
    return str(noted["names"] if isinstance(noted, dict) else noted)[:12]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Refuses a folder that another process trains in. The lock goes with the process, however that ends.

    It is on a file that is never replaced: whoever opens it, at whatever time, opens the same one.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("ab")
    except OSError as error:
        raise _no_run_there(folder, error) from None
    with file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(f"another process is training in {folder}; wait for it, or stop it first") from None
            except OSError as error:
                raise _no_run_there(folder, error) from None
        yield


def _no_run_there(folder: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot write the run folder {folder}: {error.strerror}; choose another --out")


def kept_steps(number: int, stop: int) -> set[int]:
    """After which steps a checkpoint is kept: a half, a quarter, … of all of them.

    >>> sorted(kept_steps(3, 100))
    [12, 25, 50]
    """
    return {stop >> halvings for halvings in range(1, number + 1)} - {0}


def logged_lines(folder: Path) -> list[dict[str, Any]]:
    """What a run has logged, line by line. A line that was cut off by a kill is none."""
    path = folder / METRICS
    if not path.is_file():
        return []
    try:
        whole = path.read_bytes().rpartition(b"\n")[0]
        return [dict(json.loads(line)) for line in whole.splitlines() if line.strip()]
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(f"{path} is damaged ({error}); take the damaged line out") from None


def kept_files(folder: Path) -> list[str]:
    """The checkpoints of a run from first to last: those that were kept on the way, and the last one."""
    return [*sorted(path.name for path in folder.glob(KEPT.partition("{")[0] + "*.ckpt")), CHECKPOINT]


class Metrics:
    """Appends lines to metrics.jsonl; `position` goes into the checkpoint, and resuming cuts the file back to it.

    Args:
        path: of the file.
        position: bytes of it to keep.
        enabled: false for all processes but the first, which write nothing.
    """

    def __init__(self, path: Path, position: int, *, enabled: bool) -> None:
        self._path, self._position, self._file = path, position, -1
        self._unwritten = b""  # what the system did not take yet
        if not enabled:
            return
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
            shorter = os.fstat(self._file).st_size < position
            within = not shorter and position > 0 and os.pread(self._file, 1, position - 1) != b"\n"
            if not shorter and not within:
                os.ftruncate(self._file, position)
        except OSError as error:
            self._close()
            raise unwritten(path, error) from None
        if within:
            self._close()
            raise DataError(f"{path} has no line that ends where its checkpoint says; one of the two was replaced")
        if shorter:
            self._close()
            raise DataError(f"{path} is shorter than its checkpoint says; it was edited or lost, so start a new run")

    @property
    def position(self) -> int:
        """Bytes of all lines so far."""
        return self._position + len(self._unwritten)

    def write(self, values: dict[str, Any]) -> None:
        """One JSON line; if the system does not take it now, it is written with the next, or by `flush`."""
        if self._file >= 0:
            self._unwritten += (json.dumps(values) + "\n").encode()
            with suppress(WriteError):
                self._write()

    def flush(self) -> None:
        """All lines are on the disk after this."""
        if self._file >= 0:
            self._write()
            try:
                os.fsync(self._file)
            except OSError as error:
                raise unwritten(self._path, error) from None

    def _write(self) -> None:
        try:
            while self._unwritten:
                os.lseek(self._file, self._position, os.SEEK_SET)  # over what an attempt has left that failed
                done = os.write(self._file, self._unwritten)
                self._position, self._unwritten = self._position + done, self._unwritten[done:]
        except OSError as error:
            raise unwritten(self._path, error, len(self._unwritten)) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _commit() -> str | None:
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or None
