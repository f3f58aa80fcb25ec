"""Speed of our clip loader, as the ratio to decoding the whole video for every clip, and what a step is made of.

    python benchmarks/video_speed.py --source DIR/ucf101        (leave the machine alone while it runs)
    python benchmarks/video_speed.py --quick --out /tmp/quick.csv        (does it work?)

Videos are made for this: 300 frames of 320 × 240, H.264 with the defaults of x264, and a keyframe every 48 or every 250
frames. Both contenders make the four views of the same queries (16 frames at stride 3; query and frame positive share
their frames; shot; video with a gap of 48), scaled to a short side of 128 and cropped to 112. One decodes the whole
video for each of the three distinct clips, and scales only the frames it needs; ours reads all of them in one pass.
A third takes them from videos that were decoded once and are held in memory, as is done where all of them fit.
Also told: how many frames the decoder is given per query, and how often it is given one again. Every round times every
contender once, in turn; a ratio is the median over rounds of the ratio within the round, of processor time on one
thread. Writes `video_speed.csv` beside this file.

Then steps of the recipe `video/rince-uni`, `scale=reduced` (16 videos, made or of UCF101, a query and three keys of 8
frames at 56 pixels each), in turn with videos decoded every time, held in memory, and held in memory with the encoders
in bfloat16: the shares of decoding, views (crops and all that is done to them), keys through the twin, the query's
forward pass, the backward pass, and the rest (loss, bank, optimizer), medians over steps, and clips a second.
"""

import argparse
import csv
import platform
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import av
import numpy as np
import torch

from measure import Contender, processor, ratios
from rince.config import load_recipe
from rince.memory import keep_freed_memory
from rince.methods.method import Given
from rince.sources import video_file, videos
from rince.sources.clips import ClipSampler
from rince.sources.feed import Feed
from rince.sources.video_index import build_index
from rince.sources.video_layouts import VideoList
from rince.sources.videos import Videos
from rince.train.runtime import Runtime
from rince.train.setup import build_encoder, build_parts
from rince.views.pixels import PixelViews

CSV = Path(__file__).with_suffix(".csv")
FRAMES, WIDTH, HEIGHT, VIDEOS, ROUNDS = 300, 320, 240, 4, 7
SEED = 0
WHAT = ("decoding", "views", "keys through the twin", "query forward", "backward", "the rest")


def make_video(path: Path, gop: int, seed: int, frames: int = FRAMES) -> Path:
    """Smooth shapes that drift at speeds of their own, and a little noise."""
    generator = np.random.default_rng(seed)
    shapes = torch.nn.functional.interpolate(
        torch.from_numpy(generator.uniform(0, 255, (3, 3, 12, 16))), (HEIGHT, WIDTH), mode="bicubic"
    ).numpy()
    speeds = generator.integers(-4, 5, (3, 2))
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=30, options={"g": str(gop)})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number in range(frames):
            drifted = [np.roll(shape, speed * number, (1, 2)) for shape, speed in zip(shapes, speeds, strict=True)]
            picture = np.mean(drifted, axis=0) + generator.normal(0, 3, (1, HEIGHT, WIDTH))
            pixels = picture.clip(0, 255).astype(np.uint8).transpose(1, 2, 0)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")))
        container.mux(stream.encode(None))
    return path


def whole_video_per_clip(
    path: Path, track: video_file.Track, wanted: Sequence[int], *, short_side: int
) -> video_file.Frames:
    """What `read_frames` gives, by decoding everything once per clip of 16 frames."""
    width, height = video_file.scaled(track.width, track.height, short_side)
    scale = av.video.reformatter.VideoReformatter()
    found = {}
    for start in range(0, len(wanted), 16):
        clip = set(wanted[start : start + 16])
        with av.open(str(path)) as container:
            container.streams.video[0].codec_context.thread_count = 1
            for number, frame in enumerate(container.decode(video=0)):
                if number in clip:
                    found[number] = scale.reformat(frame, width, height, "rgb24", threads=1).to_ndarray()
    return np.stack([found[number] for number in wanted])


class Problem:
    """Videos, and their clips by both."""

    def __init__(self, folder: Path, gop: int) -> None:
        paths = tuple(make_video(folder / f"{gop}-{number}.mp4", gop, number) for number in range(VIDEOS))
        listed = VideoList(paths, torch.arange(VIDEOS), tuple(map(str, range(VIDEOS))))
        views = PixelViews(size=112, mean=[0.5] * 3, std=[0.25] * 3)
        index = build_index(listed, None, short_side=128)
        self.videos = Videos(index, ClipSampler(), views, {})
        self.held = Videos(index, ClipSampler(), views, {"whole": VIDEOS})
        assert self.held.is_held

    def from_memory(self) -> list[torch.Tensor]:
        """One query of every video, decoded before."""
        return [self.held.load(torch.tensor([each]), range(4), seed=SEED, epoch=0).crops[0] for each in range(VIDEOS)]

    def load(self) -> list[torch.Tensor]:
        """One query of every video."""
        return [self.views_of(sample) for sample in range(VIDEOS)]

    def views_of(self, sample: int) -> torch.Tensor:
        return self.videos.load(torch.tensor([sample]), range(4), seed=SEED, epoch=0).crops[0]

    def contenders(self) -> dict[str, Contender]:
        def baseline() -> list[torch.Tensor]:
            with patch.object(videos, "read_frames", whole_video_per_clip):
                return self.load()

        assert all(torch.equal(*pair) for pair in zip(self.load(), baseline(), strict=True))
        assert all(torch.equal(*pair) for pair in zip(self.load(), self.from_memory(), strict=True))
        return {
            "clips by seeking, one pass: ours (yardstick)": self.load,
            "held in memory, decoded before: ours": self.from_memory,
            "whole video decoded per clip": baseline,
        }

    def given(self) -> tuple[float, float, float]:
        """Per query: packets the decoder was given, frames that came out, and packets it was given before."""
        packets: Counter[tuple[int, int]] = Counter()
        out, decoded = 0, video_file._frames

        def counted(stream: object, packet: object) -> list[av.VideoFrame]:
            nonlocal out
            frames = decoded(stream, packet)  # type: ignore[arg-type]
            packets[sample, packet.pts] += 1  # type: ignore[attr-defined]
            out += len(frames)
            return frames

        with patch.object(video_file, "_frames", counted):
            for sample in range(VIDEOS):
                self.views_of(sample)
        again = sum(count - 1 for count in packets.values())
        return packets.total() / VIDEOS, out / VIDEOS, again / VIDEOS


class Shares:
    """Processor time by what it is spent on; what runs within another is counted once, as itself."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self._within: list[float] = []

    def timed(self, what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def run(*given: Any, **named: Any) -> Any:
            start = time.process_time()
            self._within.append(0.0)
            made = call(*given, **named)
            took = time.process_time() - start
            self.spent[what] += took - self._within.pop()  # type: ignore[assignment]
            if self._within:
                self._within[-1] += took
            return made

        return run


class Training:
    """Steps of the recipe, one at a time, with processor time by what it is spent on."""

    def __init__(self, folder: Path, *, held: bool, precision: str = "32-true") -> None:
        self.most = videos.HELD if held else 0
        changes = [
            f"data.source={folder}",
            "scale=reduced",
            "data.workers=0",
            "data.limit=64",
            f"train.precision={precision}",
        ]
        recipe = load_recipe("video/rince-uni", changes)
        parts, runtime = build_parts(recipe), Runtime(1, recipe.train.precision, "cpu")
        source = parts.source
        assert isinstance(source, Videos)
        raw = build_encoder(recipe, source.shape, parts.group_counts)
        method = recipe.method.build(recipe, Given(parts.rank_source, parts.rank_count, parts.groups, raw, runtime))
        encoder, optimizer = runtime.wrap(raw, torch.optim.Adam(raw.parameters(), lr=recipe.optimizer.lr))
        feed = Feed(source, parts.order, seed=SEED, device=torch.device("cpu"), numbers=recipe.view_numbers)
        shares = Shares()
        object.__setattr__(source, "load", shares.timed("views", source.load))
        object.__setattr__(source, "finish", shares.timed("views", source.finish))
        runtime.backward = shares.timed("backward", runtime.backward)  # type: ignore[method-assign]
        raw.forward = shares.timed("query forward", raw.forward)  # type: ignore[method-assign]
        method.twin.forward = shares.timed("keys through the twin", method.twin.forward)
        steps = feed.steps(0, recipe.train.epochs * feed.order.steps_per_epoch)

        def one() -> None:
            method.step(encoder, next(steps), logged=False)
            optimizer.step()
            optimizer.zero_grad()

        self.epoch, self.clips, self.frames = feed.order.steps_per_epoch, 4 * recipe.train.batch, videos.read_frames
        self._one, self._shares = shares.timed("the rest", one), shares
        with patch.object(videos, "HELD", self.most):
            assert source.is_held == held

    def step(self) -> Counter[str]:
        """Seconds of the next step."""
        self._shares.spent.clear()
        decoding = self._shares.timed("decoding", self.frames)
        with patch.object(videos, "HELD", self.most), patch.object(videos, "read_frames", decoding):
            self._one()
        return self._shares.spent.copy()


def made_videos(folder: Path, number: int, frames: int) -> Path:
    for each in range(number):
        (folder / "train" / f"class {each % 2}").mkdir(parents=True, exist_ok=True)
        make_video(folder / "train" / f"class {each % 2}" / f"{each}.mp4", 250, each, frames)
    return folder


def step_rows(folder: Path, which: str, steps: int) -> list[tuple[str, str, str, str]]:
    contenders = {
        "decoded every time": Training(folder, held=False),
        "held in memory": Training(folder, held=True),
        "held in memory, bf16-mixed": Training(folder, held=True, precision="bf16-mixed"),
    }
    for training in contenders.values():
        for _ in range(training.epoch + 1):  # all is decoded that is held
            training.step()
    spent = [{name: training.step() for name, training in contenders.items()} for _ in range(steps)]
    rows, first = [], next(iter(contenders))
    for name, training in contenders.items():
        kind = f"a reduced step of 16 videos {which}, {name}"
        shares = {what: statistics.median(each[name][what] for each in spent) for what in WHAT}
        rows += [
            (kind, what, f"{100 * each / sum(shares.values()):.1f}", "% of the step") for what, each in shares.items()
        ]
        ratio = statistics.median(each[first].total() / each[name].total() for each in spent)
        rows.append((kind, "the step", f"{1e3 * sum(shares.values()):.0f}", "ms of one core"))
        rows.append((kind, "clips a second", f"{training.clips / sum(shares.values()):.0f}", "of one core"))
        rows.append((kind, "clips a second", f"{ratio:.2f}", f"× those of videos {first}"))
    return rows


def loader_rows(folder: Path, rounds: int) -> list[tuple[str, str, str, str]]:
    rows: list[tuple[str, str, str, str]] = []
    for gop in (48, 250):
        problem, kind = Problem(folder, gop), f"{FRAMES} × {WIDTH} × {HEIGHT}, keyframe every {gop}"
        times = ratios(problem.contenders(), rounds, time.process_time)
        rows += [(kind, name, f"{ratio:.2f}", "× the time of ours") for name, ratio in times.items()]
        for name, number in zip(("given to the decoder", "decoded", "given again"), problem.given(), strict=True):
            rows.append((kind, f"ours: frames {name}", f"{number:.1f}", "per query"))
        rows.append((kind, "whole video decoded per clip: frames decoded", f"{3 * FRAMES:.1f}", "per query"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a round and two steps: to try it, for no record")
    parser.add_argument("--out", type=Path, default=CSV, help="CSV file to write")
    parser.add_argument("--source", type=Path, help="folder of UCF101, for steps on 64 of its videos, too")
    given = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as every command does
    with tempfile.TemporaryDirectory() as folder:
        with torch.no_grad():
            rows = loader_rows(Path(folder), 1 if given.quick else ROUNDS)
        steps = 2 if given.quick else 40
        if given.source:
            rows += step_rows(given.source, "of UCF101", steps)
        number, frames = (16, 90) if given.quick else (64, 180)
        rows += step_rows(made_videos(Path(folder) / "films", number, frames), f"made, of {frames} frames", steps)
    versions = (torch.__version__, av.__version__, platform.python_version(), processor())
    with given.out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["videos", "what", "value", "unit", "torch", "av", "python", "processor"])
        writer.writerows([*row, *versions] for row in rows)
    for kind, name, value, unit in rows:
        print(f"{kind:70} {name:46} {value:>8} {unit}")


if __name__ == "__main__":
    main()
