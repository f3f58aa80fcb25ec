"""Speed of a pretrained start, as ratios measured in the same run.

    python benchmarks/pretrained_speed.py [trial] [demo] [CLINC150]      (leave the machine alone; five minutes)

- Training on features: samples a second of `rince train` on 15,000 vectors of 384 numbers (512 a step, two views, log
  and all), against a bare torch loop with the same adapter and head, noise from `torch.randn`, AdamW and
  `F.cross_entropy` on the same 1,024 × 1,024 logits. Of both, the time of further steps after the first ones.
- Making features: images in memory through EfficientNet-Lite0 at 112 pixels, and the embedded definitions through
  MiniLM, against the bare network on batches that lie ready; and the share of tokens that are padding.
- A whole training of 30 epochs as a share of the minute it may take: on 13,500 made-up vectors of 384 numbers, as many
  as CLINC150 has, or on CLINC150 itself where its folder is given, its features made before.
- With `demo`: all of `make demo` as a share of the four minutes it may take, after the install.

`trial` does a little of everything and writes nothing. Writes `pretrained_speed.csv` beside this file.
"""

import csv
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from measure import processor
from rince.config import load_recipe
from rince.encoders.features import Features
from rince.memory import keep_freed_memory
from rince.train.loop import train
from rince.train.runtime import Runtime
from rince.train.setup import build_parts

CSV = Path(__file__).with_suffix(".csv")
TRIAL, DEMO = "trial" in sys.argv[1:], "demo" in sys.argv[1:]
CLINC150 = next((place for place in sys.argv[1:] if place not in ("trial", "demo")), None)
EPOCHS = 1 if TRIAL else 30
ROUNDS = 2 if TRIAL else 7
FEW, MORE = (3, 9) if TRIAL else (10, 110)  # steps of the two runs whose difference is timed
IMAGES, TEXTS = (64, 256) if TRIAL else (512, 5500)
SAMPLES, WIDTH, CLASSES, BATCH = 15_000, 384, 150, 512
Row = tuple[str, str, float, str]


class Bare(nn.Module):
    """The adapter and the head, by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 768), nn.Linear(768, WIDTH)
        self.head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Linear(WIDTH, 128))

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.head(vectors + self.outer(F.relu(self.inner(vectors)))), dim=1)


def bare_training(vectors: torch.Tensor, steps: int) -> None:
    """What a person would write."""
    network = Bare()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=1e-2)
    partner = torch.arange(2 * BATCH).roll(BATCH)
    for _ in range(steps):
        chosen = vectors[torch.randint(len(vectors), (BATCH,))]
        embeddings = network(torch.cat([chosen + 0.02 * torch.randn_like(chosen) for _ in range(2)]))
        logits = (embeddings @ embeddings.T / 0.1).fill_diagonal_(-torch.inf)
        optimizer.zero_grad()
        F.cross_entropy(logits, partner).backward()
        optimizer.step()


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def further_steps(run: Callable[[int], object]) -> float:
    """Seconds of the steps after the first few."""
    few = seconds(lambda: run(FEW))
    return seconds(lambda: run(MORE)) - few


def write_vectors(data: Path, samples: int) -> torch.Tensor:
    """Made-up vectors in a folder as a source, with classes and groups."""
    random, labels = np.random.default_rng(0), np.arange(samples) % CLASSES
    vectors = random.normal(size=(samples, WIDTH)) + random.normal(size=(CLASSES, WIDTH))[labels]
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    names, groups = (
        np.array([f"{kind}{number:03}" for number in of]) for kind, of in (("c", labels), ("g", labels // 15))
    )
    data.mkdir()
    np.savez(data / "train.npz", features=vectors, labels=names, group=groups)
    return torch.from_numpy(vectors)


def training_speed(row: str, folder: Path) -> Row:
    """Median over rounds of the samples a second of ours over those of the bare loop."""
    data = folder / row.replace("/", "-")
    given = write_vectors(data, SAMPLES)

    def ours(steps: int) -> None:
        place = Path(tempfile.mkdtemp(dir=folder)) / "run"
        changes = [f"data.source={data}", "data.test_part=0", "data.validation=0", f"train.max_steps={steps}"]
        with redirect_stderr(StringIO()):
            train(load_recipe(row, changes), place, Runtime(1, "32-true"), resume=False)

    ours(1), bare_training(given, 1)
    found = [further_steps(lambda steps: bare_training(given, steps)) / further_steps(ours) for _ in range(ROUNDS)]
    return "training on features", row, statistics.median(found), "of the samples a second of a bare loop"


def whole_training(folder: Path) -> Row:
    """Share of a minute that a training of the recipe's adapter takes, features at hand."""
    if CLINC150:
        row, what, data = "text/rince-in", "CLINC150", CLINC150
    else:
        row, what, data = "vectors/rince-in", "13,500 made-up vectors", str(folder / "whole")
        write_vectors(Path(data), 13_500)
    changes = [f"data.source={data}", f"train.epochs={EPOCHS}"]
    changes += [] if CLINC150 else ["data.test_part=0", "data.validation=0"]

    def ours(*more: str) -> None:
        place = Path(tempfile.mkdtemp(dir=folder)) / "run"
        with redirect_stderr(StringIO()):
            train(load_recipe(row, [*changes, *more]), place, Runtime(1, "32-true"), resume=False)

    ours("train.max_steps=1")  # makes features
    return "a whole training", f"{row}, {what}, {EPOCHS} epochs", seconds(ours) / 60, "of a minute"


def demo() -> Row:
    """Share of four minutes that `make demo` takes."""
    work = ["make", "demo"]
    took = seconds(lambda: subprocess.run(work, cwd=Path(__file__).parents[1], check=True, stdout=subprocess.DEVNULL))
    return "the demo", "make demo, after the install", took / 240, "of four minutes"


def nobody(*_: object) -> None:
    """Is told how far it is."""


def making_speed(what: str, features: Features, rows: torch.Tensor) -> Row:
    """Median over rounds of the speed of making features over that of the bare network on the same batches."""
    batches = [features.inner.plain(ids) for ids in rows.split(features.network.at_once)]

    def bare() -> None:
        with torch.inference_mode():
            for batch in batches:
                features.network.module(batch)

    bare(), features._make(rows, 0, nobody)
    found = [seconds(bare) / seconds(lambda: features._make(rows, 0, nobody)) for _ in range(ROUNDS)]
    return "making features", what, statistics.median(found), "of the speed of the bare network"


def features_of(recipe: str, changes: list[str]) -> Features:
    source: Any = build_parts(load_recipe(recipe, changes)).source
    assert isinstance(source, Features)
    return source


def making() -> list[Row]:
    images = features_of(
        "images/scl-in",
        ["data.source=fashion", "data.taxonomy=fashion", "views.size=112", f"data.limit={IMAGES}"],
    )
    texts = features_of("text/scl-in", ["data.source=definitions", f"data.limit={TEXTS}"])
    tokens: list[tuple[int, int]] = []  # of a batch: all, and those that are no padding
    order = texts._order()
    for ids in order.split(texts.network.at_once):
        mask = texts.inner.plain(ids)["attention_mask"]  # type: ignore[call-overload]
        tokens.append((mask.numel(), int(mask.sum())))
    every, real = (sum(counts) for counts in zip(*tokens, strict=True))
    return [
        making_speed("images in memory, EfficientNet-Lite0 at 112 pixels", images, torch.arange(len(images))),
        making_speed("definitions, MiniLM", texts, order),
        ("making features", "definitions, MiniLM", 1 - real / every, "of the tokens are padding"),
    ]


def main() -> None:
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        rows = [training_speed(row, Path(folder)) for row in ("vectors/scl-in", "vectors/rince-in")]
        rows.append(whole_training(Path(folder)))
    rows += making()
    rows += [demo()] if DEMO else []
    for part, what, value, unit in rows:
        print(f"{part:22} {what:52} {value:6.1%} {unit}")
    if TRIAL:
        return
    with CSV.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("part", "what", "value", "unit", "processor", "torch", "python"))
        for part, what, value, unit in rows:
            writer.writerow(
                (part, what, f"{value:.4f}", unit, processor(), torch.__version__, platform.python_version())
            )


if __name__ == "__main__":
    main()
