"""A recipe small enough to train in a second, and ways to run it."""

import contextlib
import io
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import yaml

from rince.cli import app, main

TINY = {
    "name": "test/tiny",
    "data": {"source": "fashion", "taxonomy": "fashion", "limit": 200},
    "views": {"size": 16, "jitter": None, "grayscale": 0.0, "mean": [0.3], "std": [0.3]},
    "model": {"depth": 10, "width": 4, "stem": "small-stride2", "head_hidden": 16, "dim": 8},
    "loss": {"terms": [{"temperature": 0.1}, {"temperature": 0.2, "positives": "out"}, {"temperature": 0.3}]},
    "bank": {"size": 64},
    "optimizer": {"lr": 0.1},
    "schedule": {"warmup_epochs": 1},
    "train": {"epochs": 4, "batch": 32},
    "save": {"every_steps": 3},
    "log": {"every_steps": 2, "logger": "none"},
}
STEPS = 28  # 4 epochs of 7 batches, the last one smaller


def write_recipe(folder: Path, **changes) -> Path:
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY | changes))
    return path


def rince(*arguments, check=True):
    """The command line, in this process: seconds cheaper than a new one, which would import torch again."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(lambda: app([str(argument) for argument in arguments]))
        except SystemExit as error:
            code = error.code or 0
    done = SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())
    assert not check or done.returncode == 0, done.stderr
    return done


def rince_process(*arguments, **options):
    """The command line as a process of its own, to kill."""
    return subprocess.Popen([sys.executable, "-m", "rince", *map(str, arguments)], **options)
