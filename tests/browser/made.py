"""A report on three tiny runs, made once for all tests: images one can tell apart, names that want to be code."""

import atexit
import functools
import io
import json
import re
import shutil
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from PIL import Image

from train.tiny import TINY, rince

EVIL = "<script>alert(1)</script>&\"'"
BREAKOUT = "</script><img src=x onerror=alert(2)>"
COLOURS = {
    EVIL: (210, 40, 40),
    BREAKOUT: (230, 120, 30),
    "$x_1$ {{data}} \u2028é猫": (40, 60, 210),
    "plain_cat": (40, 150, 210),
    "plain dog": (40, 190, 60),
    "bird": (150, 200, 40),
}
CLASSES = sorted(COLOURS)  # the order of string labels
LEVELS = ["class", "kin & kind"]
TREE = {
    "<b>warm</b>": [EVIL, BREAKOUT],
    "cold": ["$x_1$ {{data}} \u2028é猫", "plain_cat"],
    "green": ["plain dog", "bird"],
}
KIN = {name: group for group, names in TREE.items() for name in names}
RECIPE = "test/<i>ranked</i>"
SIZE, TRAIN, TEST = 16, 30, 10


def write_data(folder: Path) -> None:
    """Parquet files of noisy pictures, each class in its own colour."""
    draws = np.random.default_rng(0)
    for split, each in (("train", TRAIN), ("test", TEST)):
        rows = []
        for name, colour in COLOURS.items():
            for _ in range(each):
                pixels = np.clip(np.array(colour) + draws.normal(0, 25, (SIZE, SIZE, 3)), 0, 255).astype(np.uint8)
                out = io.BytesIO()
                Image.fromarray(pixels).save(out, format="PNG")
                rows.append({"img": {"bytes": out.getvalue(), "path": None}, "label": name})
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{split}.parquet")
    (folder / "kin.yaml").write_text(yaml.safe_dump({"levels": LEVELS, "tree": TREE}, allow_unicode=True), "utf-8")


def train(folder: Path, data: Path, name: str, terms: int, seed: int, *, outliers: bool = False) -> Path:
    recipe = TINY | {
        "name": name,
        "about": f"about {EVIL}",
        "seed": seed,
        "data": {"source": str(data), "taxonomy": str(data / "kin.yaml")},
        "views": {"size": SIZE, "jitter": None, "grayscale": 0.0, "mean": [0.5] * 3, "std": [0.3] * 3},
        "ranks": {"kind": "tree" if terms > 1 else "classes"},
        "loss": {"terms": [{"temperature": 0.1 + 0.1 * i} for i in range(terms)]},
        "train": {"epochs": 2, "batch": 32},
        "schedule": {},
        "optimizer": {"lr": 1e-4},  # learns next to nothing, so that neighbours of all ranks show
    }
    file = folder.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(recipe, allow_unicode=True), "utf-8")
    rince("train", file, "--out", folder)
    rince("evaluate", folder, *(["--outliers", "fashion"] if outliers else []))
    return folder


@functools.cache
def made() -> SimpleNamespace:
    """Runs `a` (two seeds) and `b`, and the report on all three in a folder that held other things before."""
    root = Path(tempfile.mkdtemp(prefix="rince-report-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    data, out = root / "data", root / "report"
    data.mkdir()
    write_data(data)
    runs = [
        train(root / "a1", data, RECIPE, 2, 1, outliers=True),
        train(root / "a2", data, RECIPE, 2, 2),
        train(root / "b", data, "test/flat", 1, 1),
    ]
    out.mkdir()
    (out / "index.html").write_text("an older report")
    (out / "notes.txt").write_text("mine")
    done = rince("report", *runs, "--out", out)
    html = (out / "index.html").read_text("utf-8")
    return SimpleNamespace(root=root, data=data, runs=runs, out=out, html=html, done=done, page=parse(html))


class _Reader(HTMLParser):
    """Elements and text as a browser's parser sees them, near enough."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self._inside = ""

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        (self.scripts if self._inside == "script" else self.text).append(data)


def parse(html: str) -> SimpleNamespace:
    reader = _Reader()
    reader.feed(html)
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    return SimpleNamespace(
        tags=reader.tags, text="\n".join(reader.text), scripts=reader.scripts, data=json.loads(data[1])
    )
