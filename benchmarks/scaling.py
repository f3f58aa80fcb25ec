"""What grows with what: loss, retrieval, Gaussians and search, at three sizes each, as ratios to the smallest.

    python benchmarks/scaling.py

One thread, processor time, the lower of two rounds; memory is the peak of what is resident beyond what was there
before.
Writes `scaling.csv` beside this file, with the load of the machine, and draws `docs/figures/scaling.svg` from it.
"""

import csv
import math
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import torch
import torch.nn.functional as F

import rince
from measure import processor
from rince.evaluation import ClassGaussians, mean_average_precision
from rince.evaluation.nearest import nearest_in_blocks

CSV = Path(__file__).with_suffix(".csv")
FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "scaling.svg"
DIM, CLASSES, ROUNDS = 64, 50, 2
Work = Callable[[], object]


def unit(rows: int) -> torch.Tensor:
    return F.normalize(torch.randn(rows, DIM), dim=1)


def with_bank(bank: int) -> Work:
    """256 queries against a bank."""
    queries, keys, source = unit(256).requires_grad_(), unit(bank), rince.TableRanks.from_superclasses(range(CLASSES))
    ranks = source(torch.arange(256) % CLASSES, torch.arange(bank) % CLASSES)
    loss = rince.RankedInfoNCE.in_([0.1, 0.2])

    def step() -> None:
        loss.from_embeddings(queries, keys, ranks).total.backward()

    return step


def within_batch(samples: int) -> Work:
    """A batch against itself, one view."""
    views, labels = unit(samples).requires_grad_(), torch.arange(samples) % CLASSES
    loss = rince.RankedInfoNCE.in_([0.1])

    def step() -> None:
        rince.in_batch(views, labels).loss(loss).total.backward()

    return step


def in_chunks(samples: int) -> Work:
    """The same through an encoder, 256 at a time."""
    encoder = torch.nn.Sequential(torch.nn.Linear(DIM, 512), torch.nn.GELU(), torch.nn.Linear(512, DIM))
    cached, views, labels = rince.CachedLoss(encoder, 256), unit(samples), torch.arange(samples) % CLASSES
    loss = rince.RankedInfoNCE.in_([0.1])
    return lambda: cached(views, lambda made: rince.in_batch(made, labels).loss(loss, normalize=True))


def retrieval(gallery: int) -> Work:
    """MAP of 64 queries; a thousandth of the gallery is to be found."""
    queries, items = unit(64), unit(gallery)
    labels = torch.arange(gallery) % 1000
    return lambda: mean_average_precision(queries, items, query_labels=torch.arange(64), gallery_labels=labels)


def gaussians(samples: int) -> Work:
    """Fitted to samples of 50 classes."""
    features, labels = torch.randn(samples, DIM), torch.arange(samples) % CLASSES
    return lambda: ClassGaussians(features, labels)


def search(gallery: int) -> Work:
    """The 10 nearest of an index for 64 queries, a block of 8,192 at a time."""
    queries, items = unit(64), unit(gallery)
    return lambda: nearest_in_blocks(queries, items.split(2**13), 10)


MEASURED: dict[str, tuple[Callable[[int], Work], tuple[int, int, int]]] = {
    "loss, bank": (with_bank, (4096, 16_384, 65_536)),
    "loss, in-batch": (within_batch, (1024, 2048, 4096)),
    "loss, cached": (in_chunks, (1024, 2048, 4096)),
    "retrieval": (retrieval, (10_000, 100_000, 1_000_000)),
    "Gaussians": (gaussians, (10_000, 40_000, 160_000)),
    "index": (search, (10_000, 100_000, 1_000_000)),
}


def resident(what: str) -> int:
    return 1024 * int(Path("/proc/self/status").read_text().partition(what)[2].split()[0])


def measured(work: Work) -> tuple[float, int]:
    """Seconds of the processor, and bytes beyond those that were there."""
    Path("/proc/self/clear_refs").write_text("5")
    before, times = resident("VmRSS:"), []
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times), resident("VmHWM:") - before


def measure() -> list[dict[str, object]]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows: list[dict[str, object]] = []
    about = {"torch": torch.__version__, "python": platform.python_version(), "processor": processor()}
    for what, (make, sizes) in MEASURED.items():
        make(sizes[0])()  # warms up
        first = 0.0
        for size in sizes:
            seconds, extra = measured(make(size))
            first = first or seconds
            load = {"load average of the machine": f"{os.getloadavg()[0]:.1f}"}
            row = {"what": what, "size": size, "× time": f"{seconds / first:.3f}", "peak bytes": extra}
            rows.append(row | about | load)
            print(f"{what:15} {size:>9,} {seconds / first:9.2f} × time {extra / 2**20:9.1f} MB", flush=True)
    with CSV.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return rows


def draw() -> None:
    """From the CSV file, so that the picture can be drawn again without measuring."""
    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "rince"
    import matplotlib.pyplot as plt  # noqa: PLC0415 - after its backend was chosen

    with CSV.open() as file:
        rows = list(csv.DictReader(file))
    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    for what in MEASURED:
        points = [(int(row["size"]), float(row["× time"])) for row in rows if row["what"] == what]
        slope = math.log(points[-1][1] / points[0][1]) / math.log(points[-1][0] / points[0][0])
        axes.loglog(*zip(*points, strict=True), marker="o", label=f"{what}: size^{slope:.2f}")
    axes.set(xlabel="size: bank, batch, gallery or samples", ylabel="processor time, × that of the smallest")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    figure.savefig(FIGURE, metadata={"Date": None})


if __name__ == "__main__":
    if "--draw" not in sys.argv:
        measure()
    draw()
