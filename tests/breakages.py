"""Named breakages of the source, and the tests that must notice: `make breakages`, or `make breakages ONLY=name`.

Each is applied by itself to a copy of the tree, where only its tests are run; a breakage that they do not notice has
survived, and a test is missing. A breakage finds its place by its text, which stands in exactly one place below
src/rince, in whichever file: choose the expression that matters and leave out what surrounds it. To add one, break the
code, see which test near by fails (or write it), and add an entry:

    Breakage("name", "what stands there", "what breaks it", "tests/unit/test_near.py -k by_this_test"),
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[1]
COPIED = ("src", "tests", "docs", "examples", "README.md", "pyproject.toml", "Makefile")
TEXTS = {".py", ".yaml", ".js", ".css", ".html"}
AT_ONCE = 2  # processes, each on a core of its own
LIMIT = 400  # seconds; a breakage that hangs is noticed by pytest-timeout first


@dataclass(frozen=True)
class Breakage:
    """One way to be wrong: its name, the text it replaces and by what, and arguments of pytest that must fail."""

    name: str
    find: str
    replace: str
    tests: str


REPLAY = "tests/train/test_replay.py"
VIDEOS = "tests/train/test_video_training.py"
JUDGE = "tests/unit/test_judge.py"

BREAKAGES = (
    # Training: a step of momentum contrast.
    Breakage(
        "weight-decay-dropped",
        "momentum=settings.momentum, weight_decay=settings.weight_decay",
        "momentum=settings.momentum",
        REPLAY,
    ),
    Breakage(
        "weight-decay-dropped-adam",
        "Adam(raw.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)",
        "Adam(raw.parameters(), lr=settings.lr)",
        f"{REPLAY} -k adam",
    ),
    Breakage("sgd-momentum-dropped", "momentum=settings.momentum, weight_decay", "momentum=0.9, weight_decay", REPLAY),
    Breakage(
        "over-positives-dropped", "over_positives=recipe.loss.over_positives,", "", f"{REPLAY} -k 'sum or pooled'"
    ),
    Breakage("over-ranks-dropped", "over_ranks=recipe.loss.over_ranks,", "", f"{REPLAY} -k mean"),
    Breakage(
        "in-and-out-dropped",
        "RankTerm(term.temperature, term.positives, term.includes_closer)",
        "RankTerm(term.temperature, includes_closer=term.includes_closer)",
        REPLAY,
    ),
    Breakage(
        "includes-closer-dropped",
        "RankTerm(term.temperature, term.positives, term.includes_closer)",
        "RankTerm(term.temperature, term.positives)",
        f"{REPLAY} -k closer",
    ),
    Breakage(
        "wrong-key-into-the-bank", "keys.append(now.keys[0])", "keys.append(now.keys[-1])", f"{VIDEOS} -k plain_loop"
    ),
    Breakage(
        "frozen-twin", "self.twin.update(self.raw)\n        return Outcome(_values(", "return Outcome(_values(", REPLAY
    ),
    Breakage(
        "wrong-twin-momentum",
        "recipe.twin.momentum, buffers=recipe.twin.buffers).to(runtime.device)\n        bank =",
        "0.99, buffers=recipe.twin.buffers).to(runtime.device)\n        bank =",
        REPLAY,
    ),
    Breakage("learning-rate-ignored", 'group["lr"] = rate', "pass", f"{REPLAY} -k warm-up"),
    Breakage(
        "key-view-is-query-view",
        "yield [make(view=view) for view in self.numbers], None",
        "yield [make(view=0) for view in self.numbers], None",
        REPLAY,
    ),
    Breakage(
        "labels-of-other-samples",
        "labels = self.labels[shares[self.process].to(self.device)]",
        "labels = self.labels[shares[self.process].to(self.device).flip(0)]",
        REPLAY,
    ),
    Breakage(
        "start-from-ignored",
        "if recipe.model.start_from and fresh:",
        "if False:",
        "tests/train/test_start_from.py -k network",
    ),
    # Judging.
    Breakage("auroc-swapped", "auroc(inliers[name], found)", "auroc(found, inliers[name])", JUDGE),
)


def places(find: str, root: Path = ROOT) -> list[tuple[Path, int]]:
    """The files below src/rince that hold the text, and how often."""
    files = (path for path in sorted((root / "src" / "rince").rglob("*")) if path.suffix in TEXTS)
    counts = ((path, path.read_text(encoding="utf-8").count(find)) for path in files)
    return [(path, count) for path, count in counts if count]


def problem(breakage: Breakage, root: Path = ROOT) -> str | None:
    """Why a breakage cannot be applied, or None."""
    found = places(breakage.find, root)
    if sum(count for _, count in found) != 1:
        where = ", ".join(f"{path.relative_to(root)} ({count})" for path, count in found) or "nowhere"
        return f"its text must stand in one place, and stands in: {where}"
    if breakage.find == breakage.replace:
        return "it changes nothing"
    return None


def main(names: list[str]) -> int:
    """Applies the breakages of these names, or all of them; 0 if each was noticed."""
    unknown = set(names) - {breakage.name for breakage in BREAKAGES}
    if unknown:
        print(f"there is no breakage called {', '.join(sorted(unknown))}")
        return 2
    chosen = [breakage for breakage in BREAKAGES if not names or breakage.name in names]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rince-breakages-") as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(AT_ONCE):
            copies.put(_copy(Path(folder) / str(number)))
        print(f"the tests of {len(chosen)} breakages, with nothing broken …", flush=True)
        sound = _each(pool, copies, _unbroken, sorted({breakage.tests for breakage in chosen}))
        if bad := [line for line in sound if line]:
            print(*bad, "these fail, or find no test, with nothing broken; mend that first", sep="\n")
            return 1
        survived = 0
        for breakage, (verdict, by, seconds) in zip(chosen, _each(pool, copies, _broken, chosen), strict=True):
            survived += verdict != "died"
            print(f"{verdict:8}  {breakage.name:36} {seconds:4.0f} s  {by}", flush=True)
    minutes = (time.monotonic() - began) / 60
    print(f"{len(chosen) - survived} of {len(chosen)} breakages died, in {minutes:.1f} minutes")
    return 1 if survived else 0


def _each(pool: ThreadPoolExecutor, copies: "SimpleQueue[Path]", work, items) -> Iterator:  # type: ignore[no-untyped-def]
    """`work(copy, item)` of every item, in their order, each copy used by one at a time."""

    def with_copy(item):  # type: ignore[no-untyped-def]
        copy = copies.get()
        try:
            return work(copy, item)
        finally:
            copies.put(copy)

    return pool.map(with_copy, items)


def _copy(target: Path) -> Path:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("_build"))
        else:
            shutil.copy2(source, target / name)
    return target


def _unbroken(copy: Path, tests: str) -> str | None:
    code, output = _pytest(copy, tests)
    return None if code == 0 else f"pytest {tests}\n{output}"


def _broken(copy: Path, breakage: Breakage) -> tuple[str, str, float]:
    """What became of a breakage, and what noticed it."""
    why = problem(breakage, copy)
    if why:
        return "WRONG", why, 0.0
    (path, _), *_ = places(breakage.find, copy)
    whole, times = path.read_text(encoding="utf-8"), path.stat()
    path.write_text(whole.replace(breakage.find, breakage.replace), encoding="utf-8")
    began = time.monotonic()
    try:
        code, output = _pytest(copy, breakage.tests)
    finally:
        path.write_text(whole, encoding="utf-8")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # what was compiled of it is valid again
    seconds = time.monotonic() - began
    if code == 0:
        return "SURVIVED", f"pytest {breakage.tests}", seconds
    failed = re.search(r"^FAILED (.*?)(?: - .*)?$", output, re.MULTILINE)
    if code != 1 or failed is None:  # a test that cannot even be collected has not noticed anything
        return "WRONG", f"pytest {breakage.tests} ended with {code}: {output.strip().splitlines()[-1]}", seconds
    return "died", failed[1], seconds


def _pytest(copy: Path, tests: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=short", *shlex.split(tests)]
    environment = os.environ | {"PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    done = subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT
    )
    return done.returncode, done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
