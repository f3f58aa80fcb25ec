"""Speed of our clip loader, as the ratio to decoding the whole video for every clip, measured in the same run.

    python benchmarks/video_speed.py        (leave the machine alone while it runs)

Videos are made for this: 300 frames of 320 × 240, H.264 with the defaults of x264, and a keyframe every 48 or every 250
frames. Both contenders make the four views of the same queries (16 frames at stride 3; query and frame positive share
their frames; shot; video with a gap of 48), scaled to a short side of 128 and cropped to 112. One decodes the whole
video for each of the three distinct clips, and scales only the frames it needs; ours reads all of them in one pass.
Also told: how many frames the decoder is given per query, and how often it is given one again. Every round times every
contender once, in turn; a ratio is the median over rounds of the ratio within the round, of processor time on one
thread. Writes `video_speed.csv` beside this file.
"""

import csv
import platform
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import av
import numpy as np
import torch

from measure import Contender, processor, ratios
from rince.sources import video_file, videos
from rince.sources.clips import ClipSampler
from rince.sources.video_index import build_index
from rince.sources.video_layouts import VideoList
from rince.sources.videos import Videos
from rince.views.pixels import PixelViews

CSV = Path(__file__).with_suffix(".csv")
FRAMES, WIDTH, HEIGHT, VIDEOS, ROUNDS = 300, 320, 240, 4, 7
SEED = 0


def make_video(path: Path, gop: int, seed: int) -> Path:
    """Smooth shapes that drift at speeds of their own, and a little noise."""
    generator = np.random.default_rng(seed)
    shapes = torch.nn.functional.interpolate(
        torch.from_numpy(generator.uniform(0, 255, (3, 3, 12, 16))), (HEIGHT, WIDTH), mode="bicubic"
    ).numpy()
    speeds = generator.integers(-4, 5, (3, 2))
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=30, options={"g": str(gop)})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number in range(FRAMES):
            drifted = [np.roll(shape, speed * number, (1, 2)) for shape, speed in zip(shapes, speeds, strict=True)]
            picture = np.mean(drifted, axis=0) + generator.normal(0, 3, (1, HEIGHT, WIDTH))
            pixels = picture.clip(0, 255).astype(np.uint8).transpose(1, 2, 0)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")))
        container.mux(stream.encode(None))
    return path


def whole_video_per_clip(
    path: Path, track: video_file.Track, wanted: Sequence[int], *, short_side: int
) -> video_file.Pixels:
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
        self.videos = Videos(build_index(listed, None, short_side=128), ClipSampler(), views, {})

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
        return {"clips by seeking, one pass: ours (yardstick)": self.load, "whole video decoded per clip": baseline}

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


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    rows: list[tuple[str, str, str, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for gop in (48, 250):
            problem, kind = Problem(Path(folder), gop), f"{FRAMES} × {WIDTH} × {HEIGHT}, keyframe every {gop}"
            times = ratios(problem.contenders(), ROUNDS, time.process_time)
            rows += [(kind, name, f"{ratio:.2f}", "× the time of ours") for name, ratio in times.items()]
            for name, number in zip(("given to the decoder", "decoded", "given again"), problem.given(), strict=True):
                rows.append((kind, f"ours: frames {name}", f"{number:.1f}", "per query"))
            rows.append((kind, "whole video decoded per clip: frames decoded", f"{3 * FRAMES:.1f}", "per query"))
    versions = (torch.__version__, av.__version__, platform.python_version(), processor())
    with CSV.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["videos", "what", "value", "unit", "torch", "av", "python", "processor"])
        writer.writerows([*row, *versions] for row in rows)
    for kind, name, value, unit in rows:
        print(f"{kind:36} {name:46} {value:>8} {unit}")


if __name__ == "__main__":
    main()
