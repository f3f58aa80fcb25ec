"""The fault matrix: `make faults`, or `make faults COMMANDS="train report" EVERY=5`.

Every file-system call of every command that writes fails once: those that change something with ENOSPC, EROFS, EIO and
EACCES, those that only read with EIO and EACCES; and the process is killed before every call that changes something. A
library that is loaded below all others does it (tests/faults.c, compiled by gcc). After each:

- the command ends by itself: exit code 0 or 2, no traceback, nothing half-written; or it was killed;
- every file is whole: as it was before, or as it would have become;
- the same command once more (`--resume` where it says so) leaves the very files that it leaves without a fault.

A process imports everything once; each try is a fork of it, in a folder that looks as it did before.
"""

import argparse
import contextlib
import ctypes
import errno
import faulthandler
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SHIM = Path(__file__).with_suffix(".c")
ERRORS = {"ENOSPC": errno.ENOSPC, "EROFS": errno.EROFS, "EIO": errno.EIO, "EACCES": errno.EACCES}
OF_READS = ("EIO", "EACCES")
READS, CHANGES = 0, 1  # as in faults.c
LIMIT = 120  # seconds of a try
AT_ONCE = 2  # commands
SHOWN = 12  # failures that are told in full

TINY = [
    "train.epochs=2",
    "train.batch=20",
    "train.judge_every=1",
    "log.every_steps=1",
    "log.logger=csv",
    "save.every_steps=3",
    "model.dim=8",
    "data.validation=0.2",
]
TRAIN = ["train", "vectors/rince-in", "data.source=data", *TINY, "--out", "run"]


@dataclass(frozen=True)
class Command:
    """One that writes: what it is, what must have been done before, and what it is after a checkpoint was saved."""

    arguments: list[str]
    before: tuple[str, ...] = ()
    again: list[str] = field(default_factory=list)


COMMANDS = {
    "train": Command(TRAIN, again=["train", "--resume", "run"]),
    "evaluate": Command(["evaluate", "run", "--outliers", "far.npz"], ("train",)),
    "embed": Command(["embed", "run", "data/test.npz", "--out", "embedded.parquet"], ("train",)),
    "report": Command(["report", "run", "--out", "page"], ("train", "evaluate")),
    "audit": Command(["ranks", "audit", "vectors/rince-in", "data.source=data", "--picture", "audit.png"]),
    "cp": Command(["cp", "vectors/rince-in", "mine.yaml"]),
    "export": Command(["export", "run", "--out", "exported"], ("train",)),
}


def write_data(folder: Path) -> None:
    """Two classes of two groups, and vectors of none."""
    import numpy as np  # noqa: PLC0415 - not for those who only ask for help

    folder.mkdir()
    for seed, split in enumerate(("train", "test", "far")):
        random, labels = np.random.default_rng(seed), np.arange(40) % 4
        vectors = (random.normal(size=(40, 6)) + 3 * labels[:, None]).astype(np.float32)
        named = {
            "labels": np.array(["pug", "manx", "oak", "elm"])[labels],
            "group": np.array(["a", "a", "t", "t"])[labels],
        }
        path = folder.parent / "far.npz" if split == "far" else folder / f"{split}.npz"
        np.savez(path, features=vectors, **(named if split != "far" else {}))
        os.utime(path, (1_600_000_000, 1_600_000_000))  # long settled


@dataclass(frozen=True)
class Ended:
    """How a try ended."""

    code: int  # negative: by this signal
    said: str
    reads: int
    changes: int
    struck: str
    modules: list[str]


class Lab:
    """A folder that commands work in, and forks that run them with a fault each."""

    def __init__(self, work: Path, beside: Path) -> None:
        self.work, self.beside = work, beside
        self.shim = ctypes.CDLL(None)
        self.shim.faults_struck.restype = ctypes.c_char_p

    def run(self, arguments: Sequence[str], *, read: int = -1, change: int = -1, error: int = 0) -> Ended:
        """In a process of its own, with the call of this number failing; kills at it if `error` is 0."""
        said, facts = self.beside / "said", self.beside / "facts"
        facts.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            self._child(arguments, said, facts, read, change, error)
        status = self._wait(child)
        found = json.loads(facts.read_text()) if facts.exists() else {}
        text = said.read_text(errors="replace")
        return Ended(
            os.waitstatus_to_exitcode(status), text, **({"reads": 0, "changes": 0, "struck": "", "modules": []} | found)
        )

    def _child(self, arguments: Sequence[str], said: Path, facts: Path, read: int, change: int, error: int) -> None:
        from rince.cli import app, main  # noqa: PLC0415 - after the library is loaded

        code = 1
        try:
            to = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(to, 1)
            os.dup2(to, 2)
            faulthandler.dump_traceback_later(LIMIT - 5, file=to)  # of one that hangs
            os.chdir(self.work)
            self.shim.faults_begin(str(self.work).encode(), ctypes.c_long(read), ctypes.c_long(change), error)
            main(lambda: app(list(arguments)))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            counts = {"reads": self.shim.faults_counted(READS), "changes": self.shim.faults_counted(CHANGES)}
            struck = self.shim.faults_struck().decode()
            self.shim.faults_end()
            modules = [name for name in sys.modules if name.isascii()]
            facts.write_text(json.dumps(counts | {"struck": struck, "modules": modules}))
            os._exit(code)

    @staticmethod
    def _wait(child: int) -> int:
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return status
            time.sleep(0.002)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return 3 << 8  # it hung

    def rehearse(self, name: str) -> None:
        """Runs a command without a fault, and imports what it has imported, that no fork has to do it again."""
        done = self.run(COMMANDS[name].arguments)
        assert done.code == 0, done.said
        for module in done.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(module)

    def put(self, kept: Path) -> None:
        """The folder as it was kept."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(kept, self.work, symlinks=True)


def contents(folder: Path) -> dict[str, Any]:
    """What every file holds that a person has asked for; a checkpoint as its state, since pickles differ in nothing else."""
    import torch  # noqa: PLC0415

    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and not name.startswith("cache/") and path.name != ".lock":
            found[name] = path.read_bytes()
            if path.suffix == ".ckpt":
                found[name] = flat(torch.load(path, weights_only=True))
    return found


def flat(state: Any) -> Any:
    """A state as plain values that can be compared."""
    if isinstance(state, dict):
        return {key: flat(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [flat(value) for value in state]
    return (str(state.dtype), state.tolist()) if hasattr(state, "tolist") else state


def problems_at_once(
    ended: Ended, work: Path, before: dict[str, Any], after: dict[str, Any], *, killed: bool
) -> Iterator[str]:
    """What is wrong right after a fault."""
    if killed != (ended.code == -signal.SIGKILL) or not (killed or ended.code in (0, 2)):
        yield f"ended with {ended.code}: {ended.said.strip()[-300:]}"
    if "Traceback" in ended.said:
        yield f"traceback: {ended.said.strip()[-600:]}"
    left = [str(path.relative_to(work)) for path in work.rglob("*.writing*")]
    if left and not killed and ended.struck != "unlink":
        yield f"left over: {left}"
    try:
        now = contents(work)
    except Exception as error:  # a damaged file is what we look for
        yield f"a checkpoint cannot be read: {error}"
        return
    for name, content in now.items():
        grows = name.endswith((".jsonl", ".csv", ".ckpt")) or ".writing" in name or name.startswith("exported/")
        if not grows and content not in (before.get(name), after.get(name)):
            yield f"{name} is neither as it was nor as it should become"
    for name in before.keys() - now.keys():
        yield f"{name} is gone"


def tries(whole: Ended, every: int) -> Iterator[tuple[str, dict[str, int]]]:
    """Every fault that is tried on a command: its name, and what the library is told."""
    for number in range(0, whole.changes, every):
        for name, error in ERRORS.items():
            yield name, {"change": number, "error": error}
        yield "kill", {"change": number, "error": 0}
    for number in range(0, whole.reads, every):
        for name in OF_READS:
            yield name, {"read": number, "error": ERRORS[name]}


def try_all(name: str, lab: Lab, kept: Path, every: int, tell: Callable[[str], None]) -> Counter[str]:
    """All faults on one command; counts those that were survived and those that fell short."""
    command = COMMANDS[name]
    lab.put(kept)
    before = contents(lab.work)
    lab.put(kept)
    whole = lab.run(command.arguments)
    assert whole.code == 0, whole.said
    after = contents(lab.work)
    counted: Counter[str] = Counter()
    tell(f"{name}: {whole.changes} calls that change something, {whole.reads} that read")
    for kind, fault in tries(whole, every):
        lab.put(kept)
        ended = lab.run(command.arguments, **fault)
        found = list(problems_at_once(ended, lab.work, before, after, killed=kind == "kill"))
        if (
            ended.code != 0 or "cannot be read, and the page shows none" in ended.said
        ):  # a page without pictures says so
            again = lab.run(command.arguments)
            if again.code == 2 and command.again and "rince train --resume" in again.said:
                again = lab.run(command.again)
            if again.code != 0:
                found.append(f"then the same command ended with {again.code}: {again.said.strip()[-300:]}")
        found += differences(lab.work, after)
        counted["tried"] += 1
        counted[f"tried {kind}"] += 1
        counted["fell short" if found else "survived"] += 1
        if found and counted["fell short"] <= SHOWN:
            tell(f"{name}, {kind} at {fault} ({ended.struck or 'killed'}):\n    " + "\n    ".join(found))
    counted["calls"] = whole.changes + whole.reads
    return counted


def differences(work: Path, after: dict[str, Any]) -> list[str]:
    """What is not as a command leaves it without a fault."""
    try:
        now = contents(work)
    except Exception as error:
        return [f"in the end a checkpoint cannot be read: {error}"]
    names = [name for name in now.keys() | after.keys() if now.get(name) != after.get(name)]
    return [f"in the end {', '.join(sorted(names))} differ"] if names else []


def work_on(name: str, every: int) -> int:
    """One command, in a process that has the library loaded."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="faults-") as place:
        work, beside = Path(place).resolve() / "work", Path(place) / "beside"
        beside.mkdir()
        os.environ |= {"XDG_CACHE_HOME": str(work / "cache"), "MPLCONFIGDIR": str(beside), "HF_HUB_OFFLINE": "1"}
        os.environ["OMP_NUM_THREADS"] = "1"
        lab = Lab(work, beside)
        work.mkdir()
        (work / "cache").mkdir()
        write_data(work / "data")
        for earlier in COMMANDS[name].before:
            lab.rehearse(earlier)
        kept = shutil.copytree(work, beside / "kept")
        lab.rehearse(name)
        counted = try_all(name, lab, kept, every, lambda text: print(text, flush=True))
    kinds = ", ".join(f"{counted[f'tried {kind}']} {kind}" for kind in (*ERRORS, "kill"))
    print(
        f"{name}: {counted['calls']} calls, {counted['tried']} tries ({kinds}): {counted['survived']} survived, "
        f"{counted['fell short']} fell short, {time.monotonic() - began:.0f} s",
        flush=True,
    )
    return counted["fell short"]


def main() -> None:
    """Each command in a process of its own, two at a time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="*", help=f"some of {', '.join(COMMANDS)}; all by default")
    parser.add_argument("--every", type=int, default=1, help="try every so-manieth call only")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        sys.exit(1 if work_on(asked.one, asked.every) else 0)
    if shutil.which("gcc") is None:
        sys.exit("the fault matrix needs gcc, which compiles the library that makes calls fail")
    with tempfile.TemporaryDirectory() as folder:
        shim = Path(folder) / "faults.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", shim, SHIM, "-ldl"], check=True)
        waiting, running, failed = list(asked.commands or COMMANDS), [], 0
        while waiting or running:
            if waiting and len(running) < AT_ONCE:
                arguments = [sys.executable, __file__, "--one", waiting.pop(0), "--every", str(asked.every)]
                running.append(subprocess.Popen(arguments, env=os.environ | {"LD_PRELOAD": str(shim)}))
                continue
            running[0].wait()
            failed += sum(process.returncode != 0 for process in running if process.poll() is not None)
            running = [process for process in running if process.returncode is None]
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
