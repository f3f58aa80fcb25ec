"""Speed of our views, as the ratio of kornia's time to ours measured in the same run.

    python benchmarks/views_speed.py        (leave the machine alone while it runs)

Both make one view of 512 images of 32 × 32 from uint8 to normalised: random resized crop, flip, colour jitter with
probability 0.8, grayscale with probability 0.2. kornia draws one order of the four jitters per batch, ours one per
sample. Every round times every contender once, in turn; a ratio is the median over rounds of the ratio within the
round. Both run on one thread and are timed by the processor time they use: with more threads, a busy machine makes
them wait for each other, and the ratio would be that of the waiting. Writes `views_speed.csv` beside this file.
"""

import csv
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import kornia
import kornia.augmentation as K
import torch
from torch import nn

from rince.data.views import Views

CSV = Path(__file__).with_suffix(".csv")
IMAGES, SIZE, ROUNDS = 512, 32, 15
MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)

Contender = Callable[[], object]


class Problem:
    """Images, and the same views by both."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.images = torch.randint(0, 256, (IMAGES, 3, SIZE, SIZE), dtype=torch.uint8)
        self.sample_ids = torch.arange(IMAGES)
        self.epoch = 0

    def ours(self, **options: float | None) -> Contender:
        views = Views(size=SIZE, mean=MEAN, std=STD, **options)  # type: ignore[arg-type]

        def run() -> None:
            self.epoch += 1  # other draws every time, as kornia makes them
            views(self.images, seed=0, epoch=self.epoch, view=0, sample_ids=self.sample_ids)

        return run

    def kornias(self, *, jitter: bool) -> Contender:
        steps: list[nn.Module] = [
            K.RandomResizedCrop((SIZE, SIZE), scale=(0.2, 1.0), ratio=(3 / 4, 4 / 3), align_corners=False),
            K.RandomHorizontalFlip(p=0.5),
        ]
        if jitter:
            steps += [K.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8), K.RandomGrayscale(p=0.2)]
        views = nn.Sequential(*steps, K.Normalize(torch.tensor(MEAN), torch.tensor(STD)))
        return lambda: views(self.images.float() / 255)


def compare(contenders: dict[str, Contender], rounds: int = ROUNDS) -> dict[str, float]:
    """Median ratio to the first contender."""
    for run in contenders.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            run()  # the one before has left its own data in the caches
            start = time.process_time()
            run()
            times[name].append(time.process_time() - start)
    yardstick = next(iter(times.values()))
    return {name: statistics.median(t / y for t, y in zip(ts, yardstick, strict=True)) for name, ts in times.items()}


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    problem = Problem()
    results = compare(
        {
            "crop, flip, jitter, grayscale: ours (yardstick)": problem.ours(),
            "crop, flip, jitter, grayscale: kornia": problem.kornias(jitter=True),
            "crop, flip: ours": problem.ours(jitter=None, grayscale=0.0),
            "crop, flip: kornia": problem.kornias(jitter=False),
        }
    )
    versions = (torch.__version__, kornia.__version__, platform.python_version(), _processor())
    size = f"{IMAGES} × {SIZE} × {SIZE}"
    with CSV.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["images", "what", "value", "unit", "torch", "kornia", "python", "processor"])
        writer.writerows([size, name, f"{ratio:.2f}", "× ours", *versions] for name, ratio in results.items())
    for name, ratio in results.items():
        print(f"{size:14} {name:52} {ratio:8.2f} × ours")


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} × {names[0]}" if names else platform.processor()


if __name__ == "__main__":
    main()
