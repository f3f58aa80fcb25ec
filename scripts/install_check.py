"""In fresh environments, torch alone and each extra alone: every command works, or names the extra to install.

For every Python that is found. Run before a release: `make install-check` (minutes of pip).

    python scripts/install_check.py [--python /path/to/python ...] [--only base report]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
VERSIONS = ("3.11", "3.12", "3.13")
BASE = "base"
PREPARE = """
import numpy as np
from PIL import Image
from pathlib import Path
random = np.random.default_rng(0)
paths = ("insect/ant", "insect/bee", "tree/elm", "tree/oak")
for split in ("train", "test"):
    for path in paths:
        for place, shape in (("photos", (64, 64, 3)), ("greys", (28, 28))):  # of the second kind is the embedded data
            folder = Path(place, split, path)
            folder.mkdir(parents=True)
            for n in range(4):
                Image.fromarray(random.integers(0, 255, shape, dtype=np.uint8)).save(folder / f"{n}.png")
    Path("texts").mkdir(exist_ok=True)
    rows = "".join(f"{split} {n} of {path},{path[-3:]},{path[:-4]}\\n" for n in range(6) for path in paths)
    Path(f"texts/{split}.csv").write_text("text,label,superclass\\n" + rows)
Path("clips").mkdir()
Path("clips/0.mp4").write_text("to be a film")
try:
    import av
except ModuleNotFoundError:
    raise SystemExit
for n in range(4):
    with av.open(f"clips/{n}.mp4", "w") as file:
        stream = file.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for _ in range(24):
            picture = random.integers(0, 255, (48, 64, 3), dtype=np.uint8)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode(None))
"""
LIBRARY = """
import torch, rince
z = torch.nn.functional.normalize(torch.randn(8, 4), dim=1)
print(rince.in_batch(z, torch.arange(8) % 4).loss(rince.RankedInfoNCE.in_(0.1)).total)
"""
SHORT = "train.max_steps=2 train.batch=8 log.logger=none"
CLIPS = "data.frames=2 data.stride=1 data.gap=2 data.validation=0 schedule.kind=cosine"
# What every command is tried with, in this order: later ones look at what earlier ones made, if that came to be.
COMMANDS = (
    "rince --version",
    "rince ls",
    "rince explain schedule",
    "rince show demo/rince-in",
    "rince cp demo/rince-in mine.yaml",
    "rince validate mine.yaml",
    f"rince train demo/rince-in {SHORT} --out run",
    "rince train demo/rince-in --dry-run",
    "rince train --resume run --dry-run",
    "rince evaluate run",
    "rince embed run greys --split test --out vectors.parquet",
    "rince evaluate --embeddings vectors.parquet vectors.parquet",
    "rince neighbours run greys/test/insect/ant/0.png greys/train",
    "rince index run greys --split train --out index.parquet",
    "rince predict run index.parquet greys/test/insect/ant/0.png",
    "rince export run --out exported",
    "rince report run --out page",
    "rince reproduce definitions --rows RINCE-in --out reproduced --dry-run",
    "rince ranks audit demo/rince-in",
    "rince ranks audit demo/rince-in --picture audit.png",
    "rince analyse tradeoff --out analysis",
    "rince analyse equilibrium --out analysis",
    "rince analyse penalty --out analysis",
    "rince analyse advise --gap 0.1 --ranks 3",
    "rince analyse run run --out analysis",
    f"rince train images/rince-in data.source=photos {SHORT} --out pretrained",
    f"rince train text/rince-in data.source=texts {SHORT} --out texts-run",
    f"rince train video/rince-uni scale=reduced data.source=clips {CLIPS} --dry-run",
)


class Tried(NamedTuple):
    """What became of a command."""

    command: str
    outcome: str
    """`works`, `needs EXTRA`, `fails` (also with an error of ours that names no extra), or `-`, not tried: it reads
    what another one, for want of an extra, has not made."""
    said: str


def outcome_of(code: int, said: str) -> str:
    """What an exit code and stderr mean."""
    if code == 0:
        return "works"
    named = re.search(r'pip install "rince\[(\w+)\]"', said)
    if named and "Traceback" not in said:
        return f"needs {named[1]}"
    return "fails"


def pythons(asked: list[str]) -> dict[str, str]:
    """Version → the Python that is taken for it; those that do not start, or make no environments, are left out."""
    found: dict[str, str] = {}
    for candidate in asked or [f"python{version}" for version in VERSIONS]:
        code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
        place = shutil.which(candidate)
        done = place and subprocess.run([place, "-c", code], capture_output=True, text=True, check=False)
        if done and done.returncode == 0:
            found.setdefault(done.stdout.strip(), str(place))
        else:
            print(f"{candidate}: not found, or cannot make environments; left out", flush=True)
    return found


def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """In a folder, without our sources in reach."""
    known = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    # The model hub and the data hub are not asked: what is not installed is to be named, not to be downloaded.
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=known | offline | environment,
        timeout=1800,
    )


def environment(python: str, wanted: str, folder: Path) -> Path:
    """The `bin` of a new environment in which one thing is installed."""
    folder.mkdir()
    done = run([python, "-m", "venv", "env"], folder)
    if done.returncode == 0:
        # Torch is several GB where it brings CUDA along: all environments of a Python see one copy of it.
        (own,) = folder.glob("env/lib/*/site-packages")
        for torch_alone in folder.parent.glob("torch/env/lib/*/site-packages"):
            if own != torch_alone:
                (own / "torch-alone.pth").write_text(f"{torch_alone}\n")
        install = ["env/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = run([*install, wanted, torch_of_the_lock()], folder)
    if done.returncode:
        raise SystemExit(f"cannot install {wanted} with {python}: {done.stdout}{done.stderr}")
    return folder / "env/bin"


def torch_of_the_lock() -> str:
    """As `make` installs it."""
    (torch,) = re.findall(r"^torch==.*$", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    return str(torch)


def tried(place: Path, folder: Path) -> list[Tried]:
    """Every command, and the library by itself."""
    run([str(place / "python"), "-c", PREPARE], folder)
    path = f"{place}{os.pathsep}{os.environ['PATH']}"
    library = run([str(place / "python"), "-W", "ignore", "-c", LIBRARY], folder)
    found = [Tried("import rince, a loss", outcome_of(library.returncode, library.stderr), library.stderr)]
    missing: set[str] = set()
    for command in COMMANDS:
        words = command.split()
        made = words[words.index("--out") + 1] if "--out" in words else None
        if missing.intersection(word for word in words if word != made):
            found.append(Tried(command, "-", ""))
        else:
            done = run(words, folder, PATH=path)
            found.append(Tried(command, outcome_of(done.returncode, done.stderr), done.stderr))
        if made and found[-1].outcome != "works":
            missing.add(made)
        print(f"  {found[-1].outcome:16} {command}", flush=True)
    return found


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--python", action="append", default=[], help="another one than those by name; repeatable")
    asked.add_argument("--only", nargs="*", default=[], help="these extras only; base: torch alone")
    options = asked.parse_args()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    kinds = options.only or [BASE, *(extra for extra in extras if extra != "dev")]
    table: dict[str, list[Tried]] = {}
    with tempfile.TemporaryDirectory(prefix="rince-install-") as temporary:
        build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", temporary, str(ROOT)]
        if run(build, Path(temporary)).returncode:
            raise SystemExit("the wheel cannot be built")
        (wheel,) = Path(temporary).glob("rince-*.whl")
        for version, python in pythons(options.python).items():
            of_version = Path(temporary, version)
            of_version.mkdir()
            environment(python, torch_of_the_lock(), of_version / "torch")
            for extra in kinds:
                name = f"{version} {extra}"
                print(name, flush=True)
                folder = of_version / extra
                wanted = str(wheel) if extra == BASE else f"{wheel}[{extra}]"
                table[name] = tried(environment(python, wanted, folder), folder)
                shutil.rmtree(folder)
            shutil.rmtree(of_version)
    report(table)


def report(table: dict[str, list[Tried]]) -> None:
    """The table, and what is wrong; exits with 1 if anything is."""
    if not table:
        raise SystemExit("no suitable Python was found")
    widest = max(len(each.command) for each in next(iter(table.values())))
    print(f"\n{'':{widest}}  " + "  ".join(f"{name:16}" for name in table))
    for row in zip(*table.values(), strict=True):
        print(f"{row[0].command:{widest}}  " + "  ".join(f"{each.outcome:16}" for each in row))
    wrong = [(name, each) for name, found in table.items() for each in found if each.outcome == "fails"]
    for name, each in wrong:
        print(f"\n{name}: {each.command}\n{each.said[-2000:]}", file=sys.stderr)
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
