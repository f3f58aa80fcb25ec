"""The fault matrix: `make faults`, or `make faults COMMANDS="train report" EVERY=5`.

Every file-system call of every command that writes fails once: those that change something with ENOSPC, EROFS, EIO and
EACCES, those that open a file to read with EIO and EACCES, those that read from it, which asks nobody's leave, with EIO;
and the process is killed before every call that changes something. A library that is loaded below all others does it
(tests/faults.c, compiled by gcc). After each:

- the command ends by itself: exit code 0 or 2, no traceback, nothing half-written; or it was killed;
- every file is whole: as it was before, or as it would have become;
- the same command once more (`--resume` where it says so) leaves the very files that it leaves without a fault.

Calls are alike if the same lines of rince make them on files of the same ending in the same folder, such as the parts
of a checkpoint that are written one after the other, or the images of a folder. Of those, the first and the last are
tried.

A process imports everything and builds the command line once; each try is a fork of it, in a folder that looks as it
did before. Figures are not drawn at all, and of tries that leave the same files behind, the first tells what the same
command makes of them.
"""

import argparse
import contextlib
import ctypes
import errno
import faulthandler
import gc
import hashlib
import importlib
import json
import os
import re
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
AT_ONCE = os.cpu_count() or 1  # commands
IN_MEMORY = Path("/dev/shm")  # where a disk does not make us wait
SHOWN = 12  # failures that are told in full
OURS = str(Path(__file__).parents[1] / "src" / "rince")  # whose lines tell calls apart
SHOWS_LESS = "cannot be read, and the page shows none"  # a page without some pictures says so
GRAY = "cannot be read any more, and are gray there"  # a picture of neighbours without some, which it is told of
LEFT = "could not be taken away"  # parts that the same command would go on with
PARTS = ".parquet.parts/"  # they may stay, and become more

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
FROZEN = [
    "model.kind=huggingface",
    "model.name=vit",
    "model.dim=8",
    "train.epochs=1",
    "train.batch=4",
    "log.logger=none",
]
ON_FEATURES = ["train", "images/rince-in", "data.source=photos", *FROZEN, "data.validation=0", "--out", "frozen"]
ROWS = {
    "title": "Of one row",
    "data": "data",
    "scales": [],
    "columns": {"probe/accuracy": "Accuracy", "retrieval/group/map": "mAP"},
    "rows": {"first": [50.0, 0.5]},
    "runs": {"first": ["vectors/rince-in", *TINY]},
}


@dataclass(frozen=True)
class Command:
    """One that writes: what it is, what must have been done before, and what it is after a checkpoint was saved."""

    arguments: list[str]
    before: tuple[str, ...] = ()
    again: list[str] = field(default_factory=list)
    is_refused_when_done: bool = False  # since nothing is overwritten
    made_anew: tuple[str, ...] = ()  # what is taken away before every try, where the command itself came before


COMMANDS = {  # the longest first
    "report": Command(["report", "run", "--out", "page"], ("train", "evaluate")),
    "export": Command(["export", "run", "--out", "exported"], ("train",), is_refused_when_done=True),
    "train": Command(TRAIN, again=["train", "--resume", "run"]),
    "features": Command(ON_FEATURES, again=["train", "--resume", "frozen"]),
    "judged-features": Command(["evaluate", "frozen"], ("features",)),
    "reproduce": Command(
        ["reproduce", "faults", "--data", ".", "--seeds", "1", "--out", "table"],
        ("reproduce",),
        made_anew=("table/table.md", "table/table.tex", "table/table.csv", "table/summary"),
    ),
    "evaluate": Command(["evaluate", "run", "--outliers", "far.npz"], ("train",)),
    "embed": Command(["embed", "run", "data/test.npz", "--out", "embedded.parquet"], ("train",)),
    "index": Command(["index", "run", "data/test.npz", "--out", "index.parquet"], ("train",)),
    "neighbours": Command(
        ["neighbours", "frozen", "photos/test", "photos/train", "-k", "2", "--picture", "near.png"], ("features",)
    ),
    "analyse-run": Command(["analyse", "run", "run"], ("train",)),
    "analyse-page": Command(["analyse", "page", "--out", "sliders/page.html"]),
    "judged-vectors": Command(["evaluate", "--embeddings", "data/train.npz", "data/test.npz", "--out", "judged.json"]),
    "audit": Command(["ranks", "audit", "vectors/rince-in", "data.source=data", "--picture", "audit.png"]),
    "cp": Command(["cp", "vectors/rince-in", "mine.yaml"]),
}


def drawn_at_once(name: str, about: str, _paint: Any, _size: Any = None) -> Any:
    """In place of a figure: to draw them is nine tenths of a report's time, and touches no file of the folder."""
    from rince.report.drawing import Drawn  # noqa: PLC0415 - brings matplotlib

    return Drawn(name, about, b"PNG of " + name.encode(), b"<svg/>", "<svg/>")


def draw_nothing() -> None:
    """From now on."""
    from rince.analysis import figures as of_analysis  # noqa: PLC0415 - brings matplotlib
    from rince.report import figures as of_report  # noqa: PLC0415

    of_report.draw = of_analysis.draw = drawn_at_once


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


def write_photos(folder: Path) -> None:
    """Eight images for training and for testing, and a network for them."""
    from train.small_networks import write_images, write_vit  # noqa: PLC0415 - brings transformers

    write_vit(folder / "vit")
    write_images(folder / "photos", number=8)
    for path in folder.rglob("*"):
        os.utime(path, (1_600_000_000, 1_600_000_000))


@dataclass(frozen=True)
class Ended:
    """How a try ended."""

    code: int  # negative: by this signal
    said: str
    reads: int
    changes: int
    struck: str
    modules: list[str]
    calls: list[list[str]]  # what each read and each change was, where that was listened to


class Lab:
    """A folder that commands work in, and forks that run them with a fault each."""

    def __init__(self, work: Path, beside: Path) -> None:
        from typer.main import get_command  # noqa: PLC0415 - after the library is loaded

        from rince.cli import app  # noqa: PLC0415

        self.work, self.beside = work, beside
        self.shim = ctypes.CDLL(None)
        self.shim.faults_struck.restype = ctypes.c_char_p
        self.command = get_command(app)
        self.calls: dict[int, list[str]] = {READS: [], CHANGES: []}
        self.listener = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p)(self._note)

    def _note(self, kind: int, name: bytes, path: bytes) -> None:
        """What is called, on what kind of file, from where in our code and by which line outside of it."""
        ours, frame = [], sys._getframe().f_back
        while frame is not None:
            if frame.f_code.co_filename.startswith(OURS):
                ours.append(f"{Path(frame.f_code.co_filename).stem}:{frame.f_lineno}")
            frame = frame.f_back
        below = Path(path.decode(errors="replace").removeprefix(str(self.work)))
        files = f"{re.sub('[0-9]+', '#', str(below.parent))}/{''.join(below.suffixes[-1:])}"
        self.calls[kind].append(f"{name.decode()} {files} {' '.join(ours)}")

    def run(
        self, arguments: Sequence[str], *, read: int = -1, change: int = -1, error: int = 0, listen: bool = False
    ) -> Ended:
        """In a process of its own, with the call of this number failing; kills at it if `error` is 0."""
        said, facts = self.beside / "said", self.beside / "facts"
        facts.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            self._child(arguments, said, facts, read, change, error, listen=listen)
        status = self._wait(child)
        found = json.loads(facts.read_text()) if facts.exists() else {}
        text = said.read_text(errors="replace")
        return Ended(
            os.waitstatus_to_exitcode(status),
            text,
            **({"reads": 0, "changes": 0, "struck": "", "modules": [], "calls": []} | found),
        )

    def _child(
        self, arguments: Sequence[str], said: Path, facts: Path, read: int, change: int, error: int, *, listen: bool
    ) -> None:
        from rince.cli import main  # noqa: PLC0415 - after the library is loaded

        code = 1
        try:
            to = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(to, 1)
            os.dup2(to, 2)
            faulthandler.dump_traceback_later(LIMIT - 5, file=to)  # of one that hangs
            os.chdir(self.work)
            self.shim.faults_listen(self.listener if listen else None)
            self.shim.faults_begin(str(self.work).encode(), ctypes.c_long(read), ctypes.c_long(change), error)
            main(lambda: self.command(list(arguments)))
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
            alike = [self.calls[READS], self.calls[CHANGES]]
            facts.write_text(json.dumps(counts | {"struck": struck, "modules": modules, "calls": alike}))
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

    def state(self) -> str:
        """Of all that is in the folder, cache included; two that are equal look the same to a command."""
        found = hashlib.sha256()
        for path in sorted(self.work.rglob("*")):
            name = re.sub(
                r"\.[0-9a-f]{8}\.writing$", ".writing", str(path.relative_to(self.work))
            )  # drawn anew each time
            content = path.read_bytes() if path.is_file() else b""
            found.update(f"{name}\0{path.is_dir()}\0{len(content)}\0".encode() + content)
        return found.hexdigest()


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
    files = [str(path.relative_to(work)) for path in work.rglob("*") if path.is_file()]
    left = [name for name in files if ".writing" in name]
    if ended.code == 0 and LEFT not in ended.said:
        left += [name for name in files if PARTS in name]
    if left and not killed and ended.struck != "unlink":
        yield f"left over: {left}"
    try:
        now = contents(work)
    except Exception as error:  # a damaged file is what we look for
        yield f"a checkpoint cannot be read: {error}"
        return
    for name, content in now.items():
        grows = name.endswith((".jsonl", ".csv", ".ckpt")) or ".writing" in name or PARTS in name
        grows |= name.startswith("exported/") or (name == "page/index.html" and SHOWS_LESS in ended.said)
        grows |= name == "near.png" and GRAY in ended.said
        if not grows and content not in (before.get(name), after.get(name)):
            yield f"{name} is neither as it was nor as it should become"
    for name in before.keys() - now.keys():
        yield f"{name} is gone"


def unlike(calls: list[str]) -> list[int]:
    """The numbers of calls that are tried: of those that are alike, the first and the last."""
    firsts = {call: number for number, call in reversed(list(enumerate(calls)))}
    lasts = {call: number for number, call in enumerate(calls)}
    return sorted({*firsts.values(), *lasts.values()})


def tries(whole: Ended, first: int, every: int) -> Iterator[tuple[str, dict[str, int]]]:
    """Every fault that is tried on a command: its name, and what the library is told."""
    for number in unlike(whole.calls[CHANGES])[first::every]:
        for name, error in ERRORS.items():
            yield name, {"change": number, "error": error}
        yield "kill", {"change": number, "error": 0}
    for number in unlike(whole.calls[READS])[first::every]:
        for name in OF_READS:
            yield name, {"read": number, "error": ERRORS[name]}


def try_all(name: str, lab: Lab, kept: Path, first: int, every: int, tell: Callable[[str], None]) -> Counter[str]:
    """All faults on one command; counts those that were survived and those that fell short."""
    command = COMMANDS[name]
    lab.put(kept)
    before = contents(lab.work)
    lab.put(kept)
    whole = lab.run(command.arguments, listen=True)
    assert whole.code == 0, whole.said
    assert [len(calls) for calls in whole.calls] == [whole.reads, whole.changes]
    after = contents(lab.work)
    counted: Counter[str] = Counter()
    known: dict[str, list[str]] = {}  # what the same command makes of a state that a fault has left
    different = [len(set(calls)) for calls in whole.calls]
    tell(
        f"{name}: {whole.changes} calls that change something, {different[CHANGES]} of them different; {whole.reads} that "
        f"read, {different[READS]} different"
    )
    gc.freeze()  # forks share what nobody looks through
    struck = ""
    for kind, fault in tries(whole, first, every):
        if "read" in fault and kind != OF_READS[0] and struck == "read":
            continue
        lab.put(kept)
        ended = lab.run(command.arguments, **fault)
        struck = ended.struck
        found = list(problems_at_once(ended, lab.work, before, after, killed=kind == "kill"))
        if ended.code == 0 and not any(told in ended.said for told in (SHOWS_LESS, LEFT, GRAY)):
            found += differences(lab.work, after)
        else:
            state = lab.state()
            if state not in known:
                known[state] = once_more(command, lab, after)
            found += known[state]
        counted["tried"] += 1
        counted[f"tried {kind}"] += 1
        counted["fell short" if found else "survived"] += 1
        if found and counted["fell short"] <= SHOWN:
            tell(f"{name}, {kind} at {fault} ({ended.struck or 'killed'}):\n    " + "\n    ".join(found))
    counted["calls"] = whole.changes + whole.reads
    return counted


def once_more(command: Command, lab: Lab, after: dict[str, Any]) -> list[str]:
    """What is wrong when the same command is run after a fault."""
    if command.is_refused_when_done and not differences(lab.work, after):
        return []  # killed when all was done
    again = lab.run(command.arguments)
    if again.code == 2 and command.again and "rince train --resume" in again.said:
        again = lab.run(command.again)
    ended = [f"then the same command ended with {again.code}: {again.said.strip()[-300:]}"] if again.code else []
    return ended + differences(lab.work, after)


def differences(work: Path, after: dict[str, Any]) -> list[str]:
    """What is not as a command leaves it without a fault."""
    try:
        now = contents(work)
    except Exception as error:
        return [f"in the end a checkpoint cannot be read: {error}"]
    names = [name for name in now.keys() | after.keys() if now.get(name) != after.get(name)]
    return [f"in the end {', '.join(sorted(names))} differ"] if names else []


def work_on(name: str, first: int, every: int) -> int:
    """One command, in a process that has the library loaded."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="faults-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as place:
        work, beside = Path(place).resolve() / "work", Path(place) / "beside"
        beside.mkdir()
        os.environ |= {"XDG_CACHE_HOME": str(work / "cache"), "MPLCONFIGDIR": str(beside), "HF_HUB_OFFLINE": "1"}
        os.environ["OMP_NUM_THREADS"] = "1"
        lab = Lab(work, beside)
        work.mkdir()
        (work / "cache").mkdir()
        write_data(work / "data")
        if "features" in (name, *COMMANDS[name].before):
            write_photos(work)
        draw_nothing()
        if name == "reproduce":
            read_rows()
        for earlier in COMMANDS[name].before:
            lab.rehearse(earlier)
        for made in COMMANDS[name].made_anew:
            shutil.rmtree(work / made) if (work / made).is_dir() else (work / made).unlink()
        kept = shutil.copytree(work, beside / "kept")
        lab.rehearse(name)
        counted = try_all(name, lab, kept, first, every, lambda text: print(text, flush=True))
    kinds = ", ".join(f"{counted[f'tried {kind}']} {kind}" for kind in (*ERRORS, "kill"))
    print(
        f"{name}: {counted['calls']} calls, {counted['tried']} tries ({kinds}): {counted['survived']} survived, "
        f"{counted['fell short']} fell short, {time.monotonic() - began:.0f} s",
        flush=True,
    )
    return counted["fell short"]


def read_rows() -> None:
    """A table of one row, whose run is done by the time faults begin."""
    from rince.report import tables  # noqa: PLC0415 - after the library is loaded

    tables.paper_tables = lambda: {"faults": ROWS}


def main() -> None:
    """Each command in a process of its own, one per core at a time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="*", help=f"some of {', '.join(COMMANDS)}; all by default")
    parser.add_argument("--every", type=int, default=1, help="try every so-manieth call only")
    parser.add_argument("--first", type=int, default=0, help="begin with the call of this number")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        sys.exit(1 if work_on(asked.one, asked.first, asked.every) else 0)
    if shutil.which("gcc") is None:
        sys.exit("the fault matrix needs gcc, which compiles the library that makes calls fail")
    with tempfile.TemporaryDirectory() as folder:
        shim = Path(folder) / "faults.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", shim, SHIM, "-ldl"], check=True)
        waiting, running, failed = list(asked.commands or COMMANDS), [], 0
        while waiting or running:
            if waiting and len(running) < AT_ONCE:
                which = ["--first", str(asked.first), "--every", str(asked.every)]
                arguments = [sys.executable, __file__, "--one", waiting.pop(0), *which]
                running.append(subprocess.Popen(arguments, env=os.environ | {"LD_PRELOAD": str(shim)}))
                continue
            running[0].wait()
            failed += sum(process.returncode != 0 for process in running if process.poll() is not None)
            running = [process for process in running if process.returncode is None]
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
