"""Speed of our views, as the ratio of kornia's time to ours measured in the same run.

    python benchmarks/views_speed.py        (leave the machine alone while it runs)

Both make one view of 512 images of 32 × 32 from uint8 to normalised: random resized crop, flip, colour jitter with
probability 0.8, grayscale with probability 0.2. kornia draws one order of the four jitters per batch, ours one per
sample. Every round times every contender once, in turn; a ratio is the median over rounds of the ratio within the
round. "one core": both on one thread, by the processor time they use. "all cores": both as they come, on as many
threads as the machine has cores, by the clock on the wall: what a person waits for. Writes `views_speed.csv` beside
this file.
"""

import csv
import platform
import time
from pathlib import Path

import kornia
import kornia.augmentation as K
import torch
from torch import nn

from measure import Contender, processor, ratios
from rince.views.pixels import PixelViews

CSV = Path(__file__).with_suffix(".csv")
IMAGES, SIZE, ROUNDS = 512, 32, 15
MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)


class Problem:
    """Images, and the same views by both."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.images = torch.randint(0, 256, (IMAGES, 3, SIZE, SIZE), dtype=torch.uint8)
        self.sample_ids = torch.arange(IMAGES)
        self.epoch = 0

    def ours(self, **options: float | None) -> Contender:
        views = PixelViews(size=SIZE, mean=MEAN, std=STD, **options)  # type: ignore[arg-type]

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


def contenders(problem: Problem) -> dict[str, Contender]:
    return {
        "crop, flip, jitter, grayscale: ours (yardstick)": problem.ours(),
        "crop, flip, jitter, grayscale: kornia": problem.kornias(jitter=True),
        "crop, flip: ours": problem.ours(jitter=None, grayscale=0.0),
        "crop, flip: kornia": problem.kornias(jitter=False),
    }


@torch.no_grad()
def main() -> None:
    problem, cores = Problem(), torch.get_num_threads()
    results = {}
    for where, threads, clock in (("one core", 1, time.process_time), ("all cores", cores, time.perf_counter)):
        torch.set_num_threads(threads)
        found = ratios(contenders(problem), ROUNDS, clock)
        results |= {(where, name): ratio for name, ratio in found.items()}
    versions = (torch.__version__, kornia.__version__, platform.python_version(), processor())
    size = f"{IMAGES} × {SIZE} × {SIZE}"
    with CSV.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["images", "where", "what", "value", "unit", "torch", "kornia", "python", "processor"])
        writer.writerows([size, *names, f"{ratio:.2f}", "× ours", *versions] for names, ratio in results.items())
    for (where, name), ratio in results.items():
        print(f"{size:14} {where:10} {name:52} {ratio:8.2f} × ours")


if __name__ == "__main__":
    main()
