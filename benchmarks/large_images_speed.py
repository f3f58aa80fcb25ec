"""Speed of the loader of large images, as a share of what bare JPEG decoding gives on the same cores.

    python benchmarks/large_images_speed.py        (leave the machine alone while it runs)

The yardstick: as many processes as the loader has threads, each decoding its part of the files with Pillow to an RGB
array and throwing it away. Ours: the loader of a training run with both views of every sample, which opens, draws,
decodes, cuts, resizes and hands over batches, freed memory kept as in `rince train`. It decodes with simplejpeg, to the
same pixels; what that gives by itself, in threads, is told as well. All read the same files, photographs by their
statistics: noise whose amplitude falls as 1/frequency, colours that mostly go together, quality 90. Every round times
every contender once, in turn; a share is the median over rounds of that within the round. "wall" compares images per
second; "processor" those per second of processor time of all processes, which a busy machine changes less. Writes
`large_images_speed.csv` beside this file.
"""

import csv
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import PIL
import simplejpeg
import torch
from PIL import Image

from measure import processor
from rince.memory import keep_freed_memory
from rince.sources.feed import made_ahead
from rince.sources.image_files import ImageFiles
from rince.views.pixels import PixelViews

CSV = Path(__file__).with_suffix(".csv")
FILES, EPOCHS, BATCH, WORKERS, ROUNDS = 512, 6, 32, 2, 7
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


class Speed(NamedTuple):
    """Images per second."""

    wall: float
    processor: float


def processor_seconds() -> float:
    """Of this process and of those that it started and that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def bare_decoding(paths: list[Path]) -> Speed:
    """Of Pillow, in as many processes as the loader has threads."""
    used = processor_seconds()
    with ProcessPoolExecutor(WORKERS) as pool:
        sum(pool.map(decode, [paths[:1]] * WORKERS))  # starts them
        start = time.perf_counter()
        done = sum(pool.map(decode, [EPOCHS * paths[number::WORKERS] for number in range(WORKERS)]))
        seconds = time.perf_counter() - start
    return Speed(done / seconds, done / (processor_seconds() - used))


def in_threads(make: Callable[[int, list[int]], object]) -> Speed:
    """Images per second of something that is done with the samples of batch after batch."""
    batches = [
        (epoch, list(range(start, start + BATCH))) for epoch in range(EPOCHS) for start in range(0, FILES, BATCH)
    ]
    used, start = processor_seconds(), time.perf_counter()
    for _ in made_ahead(lambda batch: make(*batch), batches, WORKERS):
        pass
    return Speed(EPOCHS * FILES / (time.perf_counter() - start), EPOCHS * FILES / (processor_seconds() - used))


def fast_decoding(paths: list[Path]) -> Speed:
    """Of the loader's decoder and nothing else."""
    return in_threads(lambda _, samples: [simplejpeg.decode_jpeg(paths[sample].read_bytes()) for sample in samples])


def loading(images: ImageFiles, size: int) -> Speed:
    """Of the loader as `rince.sources.feed.Feed` makes it."""
    source = replace(images, maker=PixelViews(size=size, mean=[0.5] * 3, std=[0.25] * 3))
    return in_threads(lambda epoch, samples: source.load(torch.tensor(samples), (0, 1), seed=0, epoch=epoch))


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    shares: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = make_files(Path(folder))
        images = ImageFiles(items=paths, labels=torch.zeros(FILES, dtype=torch.int64), class_names=("photograph",))
        decode(paths)  # brings the files into memory
        for _ in range(ROUNDS):
            yardstick = bare_decoding(paths)
            found = {f"loader, two views of {size}": loading(images, size) for size in VIEWS}
            for name, speed in (found | {"simplejpeg, decoding alone": fast_decoding(paths)}).items():
                for clock, ours, bare in zip(Speed._fields, speed, yardstick, strict=True):
                    shares.setdefault(f"{name}, {clock}", []).append(ours / bare)
        kilobytes = sum(path.stat().st_size for path in paths) / FILES / 1000
    versions = (torch.__version__, PIL.__version__, platform.python_version(), processor())
    what = f"{FILES} JPEGs of about 500 × 375, {kilobytes:.0f} kB, {WORKERS} threads"
    with CSV.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["images", "what", "value", "unit", "torch", "pillow", "python", "processor"])
        for name, measured in shares.items():
            share = 100 * statistics.median(measured)
            writer.writerow([what, name, f"{share:.0f}", "% of bare decoding", *versions])
            print(f"{what}  {name:40} {share:5.0f} % of bare decoding")


if __name__ == "__main__":
    main()
