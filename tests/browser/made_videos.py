"""A report on three tiny runs on videos: frames that carry their number, lengths that tell videos apart, evil names."""

import atexit
import csv
import functools
import json
import os
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import yaml
from safetensors.numpy import load_file

from browser.made import BREAKOUT, EVIL, parse
from oracles.coded_videos import write_video
from train.tiny import TINY, rince

CLASSES = sorted([EVIL, BREAKOUT, "plain_cat"])  # labels of a manifest may be any text
SIDE = 48
SETS = ("first & <b>set", "second")
RECIPE = "test/<i>clips</i>"
TRAIN, TEST = 6, 5  # videos of each class


def write_set(folder: Path, lengths) -> dict[Path, tuple[str, int]]:
    """Videos of which no two are of one length, and their manifest; file → its class and its length."""
    made = {}
    folder.mkdir()
    with (folder / "manifest.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "split"])
        for split, each in (("train", TRAIN), ("test", TEST)):
            for number, name in enumerate(CLASSES):
                for item in range(each):
                    length = next(lengths)
                    path = write_video(folder / f"{split}-{number}-{item}.mp4", length, width=SIDE, height=SIDE)
                    writer.writerow([path.name, name, split])
                    made[path] = (name, length)
    return made


def train(root: Path, name: str, *, terms: int, seed: int) -> Path:
    folder = root / f"{terms}-{seed}"
    recipe = TINY | {
        "name": name,
        "seed": seed,
        "data": {
            **{"kind": "videos", "source": str(root / SETS[0]), "taxonomy": "none"},
            **{"frames": 2, "stride": 2, "gap": 4, "short_side": 20, "short": "drop-rank", "test_clips": 2},
            "validation": 0.2,
        },
        "views": {"size": 16, "jitter": None, "grayscale": 0.0},
        "ranks": {"kind": "clips", "frame": 1, "shot": min(2, terms), "video": min(3, terms)},
        "loss": {"terms": [{"temperature": 0.1 + 0.05 * term} for term in range(terms)]},
        "optimizer": {"kind": "adam", "lr": 0.001},
        "schedule": {"kind": "plateau", "patience": 5},
        "train": {"epochs": 2, "batch": 16},
    }
    file = root / f"{folder.name}.yaml"
    file.write_text(yaml.safe_dump(recipe, allow_unicode=True), "utf-8")
    rince("train", file, "--out", folder)
    rince("evaluate", folder, *(part for name in SETS for part in ("--on", root / name)))
    return folder


def results(run: Path) -> dict:
    return json.loads((run / "results.json").read_text("utf-8"))


def features(run: Path, name: str, side: str) -> np.ndarray:
    """Of unit length, of the training or test videos of a set, from the file on disk."""
    file = side if name == SETS[0] else f"{name}-{side}"
    found = load_file(run / "features" / f"{file}.safetensors")["features"]
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def cosines(run: Path, name: str) -> np.ndarray:
    """Of every test video of a set with every training video."""
    return features(run, name, "test") @ features(run, name, "train").T


@functools.cache
def made_videos() -> SimpleNamespace:
    """Two seeds of one recipe, a run of another, judged on two sets of videos; the report, with one video gone."""
    root = Path(tempfile.mkdtemp(prefix="rince-videos-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    lengths = iter(range(24, 200))
    with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(root / "cache")):
        videos = {name: write_set(root / name, lengths) for name in SETS}
        runs = [
            train(root, RECIPE, terms=3, seed=1),
            train(root, RECIPE, terms=3, seed=2),
            train(root, "test/flat", terms=1, seed=1),
        ]
        gone = list(videos[SETS[0]])[int(cosines(runs[0], SETS[0])[0].argmax())]  # found for the first query
        gone.unlink()
        rince("report", *runs, "--out", root / "report")
    html = (root / "report" / "index.html").read_text("utf-8")
    return SimpleNamespace(
        root=root,
        videos=videos,
        runs=runs,
        gone=gone,
        out=root / "report",
        html=html,
        page=parse(html),
    )
