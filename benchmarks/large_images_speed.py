"""Speed of the loader of large images, as a share of what bare JPEG decoding gives on the same cores.

    python benchmarks/large_images_speed.py        (leave the machine alone while it runs)

The yardstick: as many processes as the loader has workers, each decoding its part of the files with Pillow to an RGB
array and throwing it away. Ours: the loader of a training run with both views of every sample, which opens, draws,
decodes, cuts, resizes and hands over batches. Both read the same files, photographs by their statistics: noise whose
amplitude falls as 1/frequency, colours that mostly go together, quality 90. Every round times every contender once, in
turn, by the wall clock, after the processes have started; a share is the median over rounds of that within the round.
Writes `large_images_speed.csv` beside this file.
"""

import csv
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import PIL
import torch
from PIL import Image
from torch.utils.data import DataLoader

from measure import processor
from rince.data.folders import LargeImages
from rince.data.views import Views
from rince.train.feed import _as_it_is, _Crops

CSV = Path(__file__).with_suffix(".csv")
FILES, BATCH, WORKERS, ROUNDS = 512, 64, 2, 9
SIZES = ((375, 500), (500, 375), (333, 500), (375, 500))
VIEWS = (224, 96)


def photograph(generator: np.random.Generator, height: int, width: int) -> Image.Image:
    """Noise with the spectrum of photographs; the three colours share most of it."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    frequency[0, 0] = 1 / max(height, width)

    def layer() -> np.ndarray:
        spectrum = generator.normal(size=frequency.shape) + 1j * generator.normal(size=frequency.shape)
        made: np.ndarray = np.fft.irfft2(spectrum / frequency, s=(height, width))
        return made / made.std()

    shared = layer()
    pixels = np.stack([shared + 0.35 * layer() for _ in range(3)], axis=-1)
    return Image.fromarray((120 + 55 * pixels / pixels.std()).clip(0, 255).astype(np.uint8))


def make_files(folder: Path) -> list[Path]:
    generator, paths = np.random.default_rng(0), []
    for number in range(FILES):
        paths.append(folder / f"{number}.jpg")
        photograph(generator, *SIZES[number % len(SIZES)]).save(paths[-1], quality=90)
    return paths


def decode(paths: list[Path]) -> int:
    return sum(np.asarray(Image.open(path).convert("RGB")).shape[0] > 0 for path in paths)


def bare_decoding(paths: list[Path], pool: ProcessPoolExecutor) -> float:
    """Images per second."""
    start = time.perf_counter()
    done = sum(pool.map(decode, [paths[number::WORKERS] for number in range(WORKERS)]))
    return done / (time.perf_counter() - start)


class Batches:
    """(epoch, sample) of batch after batch; the first ones only start the workers."""

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for start in range(-WORKERS * BATCH, FILES, BATCH):
            yield [(0, sample % FILES) for sample in range(start, start + BATCH)]

    def __len__(self) -> int:
        return WORKERS + FILES // BATCH


def loading(images: LargeImages, size: int) -> float:
    """Images per second of the loader as `rince.train.feed.Feed` makes it, from one that has started."""
    crops = _Crops(images, Views(size=size, mean=[0.5] * 3, std=[0.25] * 3), 0, (0, 1))
    batches: DataLoader[torch.Tensor] = DataLoader(
        crops, batch_sampler=Batches(), num_workers=WORKERS, collate_fn=_as_it_is, prefetch_factor=1
    )
    made = iter(batches)
    for _ in range(WORKERS):
        next(made)
    start = time.perf_counter()
    done = sum(len(batch) for batch in made)
    # What was made ahead before the clock started is the same number of batches at the end of any run: one per worker.
    return (done - WORKERS * BATCH) / (time.perf_counter() - start)


def main() -> None:
    torch.set_num_threads(1)
    rates: dict[str, list[float]] = {f"loader, two views of {size}": [] for size in VIEWS}
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(WORKERS) as pool:
        paths = make_files(Path(folder))
        images = LargeImages(paths, torch.zeros(FILES, dtype=torch.int64), ("photograph",))
        bare_decoding(paths, pool)  # starts the processes and brings the files into memory
        for _ in range(ROUNDS):
            yardstick = bare_decoding(paths, pool)
            for size, shares in zip(VIEWS, rates.values(), strict=True):
                shares.append(loading(images, size) / yardstick)
        kilobytes = sum(path.stat().st_size for path in paths) / FILES / 1000
    versions = (torch.__version__, PIL.__version__, platform.python_version(), processor())
    what = f"{FILES} JPEGs of about 500 × 375, {kilobytes:.0f} kB, {WORKERS} workers"
    with CSV.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["images", "what", "value", "unit", "torch", "pillow", "python", "processor"])
        for name, shares in rates.items():
            share = 100 * statistics.median(shares)
            writer.writerow([what, name, f"{share:.0f}", "% of bare decoding", *versions])
            print(f"{what}  {name:28} {share:5.0f} % of bare decoding")


if __name__ == "__main__":
    main()
