"""Videos: an index of files, clips drawn from them, and what a person is shown of them."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from PIL import Image
from pydantic import Field, PositiveInt
from torch import Tensor

from rince.config import DataSettings
from rince.errors import DataError
from rince.files import cache_folder, fingerprint_of
from rince.hierarchy.class_lists import read_class_list
from rince.memory import installed_memory
from rince.sources.clips import CLIP_OF_VIEW, ClipSampler, cropped, long_enough, read_strip, read_test_clips
from rince.sources.source import Made, Preview, Source
from rince.sources.splits import chosen_classes, places_in_class
from rince.sources.video_file import Frames, read_frames, scaled
from rince.sources.video_index import VideoIndex, build_index
from rince.sources.video_layouts import SUFFIXES, VideoList, list_videos, video_files
from rince.terminal import shown_progress
from rince.views.pixels import Cropped, PixelViews, PixelViewSettings

STILL = 40  # pixels of the shorter side of a picture
LONG, FRAMES, MILLISECONDS = 96, 12, 160  # of a film: the longer side, how many frames, how long each
QUALITY = 45
# Bytes of decoded frames, up to which they stay in memory: decoding is a fifth of a step of a small network, and every
# epoch would do it again. UCF101's 11 classes at 64 pixels are 1.6 GB.
HELD = 4 * 2**30
TOLD = {
    "whole": "long enough",
    "shrunk": "with a smaller stride",
    "dropped_video": "without video positive",
    "dropped_shot": "without shot and video positive",
    "left_out": "too short, left out",
}


class VideoData(DataSettings):
    """`data.kind=videos`: video files, seen as clips."""

    view_settings: ClassVar[type[PixelViewSettings]] = PixelViewSettings
    input_name: ClassVar[str] = "videos"
    own_keys: ClassVar[int] = 3  # frame, shot and video

    kind: Literal["videos"]
    source: str = Field(description="folder of videos, or the CSV file of a manifest")
    layout: Literal["auto", "folders", "manifest", "kinetics400", "ucf101", "hmdb51", "kth"] = Field(
        "auto", description="how files and splits are named; auto looks"
    )
    splits: str | None = Field(None, description="folder of the official split files of UCF101 or HMDB51, if elsewhere")
    split_number: Literal[1, 2, 3] = Field(1, description="which of the official splits of UCF101 or HMDB51")
    frames: Annotated[int, Field(ge=2)] = Field(16, description="frames of a clip")
    stride: PositiveInt = Field(3, description="every so many frames one is taken")
    gap: Annotated[int, Field(ge=0)] = Field(48, description="frames between the video positive and the others")
    short: Literal["leave-out", "shrink-stride", "drop-rank"] = Field(
        "leave-out", description="what becomes of a video too short for query, shot and video positive"
    )
    short_side: PositiveInt = Field(160, description="height or width, the smaller, that frames are decoded to")
    test_clips: PositiveInt = Field(10, description="clips of a test video whose outputs are averaged")

    def open(self, split: str, views: PixelViewSettings, *, own_keys: int | None = None) -> Videos:
        """The videos of a split; to train, those that are long enough for the clips of a query.

        With more than one key of its own, a query needs room for its shot and its video positive; if not, any video
        with room for a clip will do.
        """
        listed = list_videos(self.source, split, layout=self.layout, split_number=self.split_number, splits=self.splits)
        with shown_progress(self.source) as tell:  # the first look at many videos takes a while
            index = build_index(
                listed,
                index_cache(self.source),
                short_side=self.short_side,
                progress=lambda done, of: tell("looking into videos", done, of),
            )
        if self.classes is not None:
            index = _of_classes(index, self.classes, split)
        if split == self.train_split and self.limit is not None:
            index = index.subset(_balanced(index.labels, self.limit))
        if own_keys is None:
            return self._videos(index, self.sampler(positives=False), views)
        sampler = self.sampler(positives=own_keys > 1)
        outcomes = sampler.report(index.lengths, index.ranges)
        return self._videos(long_enough(index, sampler), sampler, views, outcomes)

    def input_facts(self, views: PixelViewSettings) -> dict[str, Any]:
        """How pixels are made."""
        return views.input_facts(f"shorter side of frames resized to {views.build().size} (bilinear)")

    def usual_shape(self, views: PixelViewSettings) -> tuple[int, ...]:
        """Channels, frames, height and width."""
        size = views.build().size
        return 3, self.frames, size, size

    def find(self, place: str, views: PixelViewSettings) -> Videos:
        """One video, or all videos below a folder."""
        return self._videos(find_videos(place, short_side=self.short_side), self.sampler(positives=False), views)

    def sampler(self, *, positives: bool) -> ClipSampler:
        """What draws clips by these settings."""
        return ClipSampler(self.frames, self.stride, self.gap, self.short, positives=positives)

    def _videos(
        self,
        index: VideoIndex,
        sampler: ClipSampler,
        views: PixelViewSettings,
        outcomes: dict[str, int] | None = None,
    ) -> Videos:
        return Videos(index, sampler, views.build(), outcomes or {}, self.test_clips)


@dataclass(frozen=True, eq=False)
class Videos(Source):
    """Videos, of which clips are drawn.

    View 0 is the query, 1 the frame positive (the same frames), 2 the shot positive and 3 the video positive.

    Attributes:
        index: of the files.
        sampler: draws clips.
        maker: what makes views of the clips.
        outcomes: how many videos the rule for short ones concerned, by what became of them; empty if it was not asked.
        copies: clips of a video in testing.
    """

    thing: ClassVar[str] = "video"
    moves: ClassVar[bool] = True
    at_once: ClassVar[int] = 16  # type: ignore[misc]

    index: VideoIndex
    sampler: ClipSampler
    maker: PixelViews
    outcomes: dict[str, int]
    copies: int = 1

    @property
    def source(self) -> str:  # type: ignore[override]
        """Of the index."""
        return self.index.videos.source

    @property
    def labels(self) -> Tensor:  # type: ignore[override]
        """`(number,)` int64."""
        return self.index.labels

    @property
    def class_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names in label order."""
        return self.index.class_names

    @cached_property
    def sample_groups(self) -> tuple[str, ...] | None:  # type: ignore[override]
        """By the list; a video without is a group of its own."""
        groups = self.index.videos.groups
        return None if groups is None else tuple(group or self.name(row) for row, group in enumerate(groups))

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over class names, labels, names, content and ranges of all videos; to train, over what draws clips."""
        return fingerprint_of(
            classes=self.class_names,
            labels=self.labels.tolist(),
            videos=[[self.name(row), content] for row, content in enumerate(self.contents)],
            ranges=self.index.ranges,
            drawn=str(self.sampler) if self.outcomes else None,
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, frames, height and width of a clip."""
        return 3, self.sampler.frames, self.maker.size, self.maker.size

    def load(self, ids: Tensor, numbers: Sequence[int], *, seed: int, epoch: int) -> Cropped:
        """The clips under the crops of their views; a query and its positives are read in one pass over the file."""
        size, frames = self.maker.size, self.sampler.frames
        crops = torch.zeros(len(ids), len(numbers), 3, frames, size, size, dtype=torch.uint8)
        rows = ids.tolist()
        sides = [self._side(row) for row in rows]
        heights, widths = torch.tensor(sides, dtype=torch.int64).view(-1, 2).unbind(1)
        drawn = [
            self.maker.draw_parameters(heights, widths, seed=seed, epoch=epoch, view=view, sample_ids=ids)
            for view in numbers
        ]
        ranges = [self.index.ranges_of(row) for row in rows]
        places = self.sampler.draw(seed, epoch, ids, [self.index.tracks[row].frames for row in rows], ranges)
        places = places[:, [CLIP_OF_VIEW[view] for view in numbers]]
        for place, row in enumerate(rows):
            boxes = [parameters.boxes[place].tolist() for parameters in drawn]
            self._fill(crops[place], row, places[place].numpy(), boxes)
        return Cropped(crops, drawn, places[:, :, 0] >= 0)

    def _side(self, row: int) -> tuple[int, int]:
        """Height and width that frames of a video are decoded to."""
        track = self.index.tracks[row]
        width, height = scaled(track.width, track.height, self.index.short_side)
        return height, width

    def _fill(
        self, crops: Tensor, row: int, clips: np.ndarray[tuple[int, int], np.dtype[np.int64]], boxes: list[list[int]]
    ) -> None:
        """Cuts the clips of all views out of one video; a clip that starts at -1 is none, and stays zeros."""
        wanted = np.unique(clips)
        wanted = wanted[wanted >= 0]
        frames = self._frames(row, wanted)
        for crop, clip, box in zip(crops, clips, boxes, strict=True):
            if clip[0] >= 0:
                crop[:] = cropped(frames[np.searchsorted(wanted, clip)], box, self.maker.size)

    def _frames(self, row: int, wanted: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Frames:
        """Some frames of a video; one that is to be held is decoded whole, the first time that it is asked for."""
        path, track, short_side = self.index.videos.paths[row], self.index.tracks[row], self.index.short_side
        if not self.is_held:
            return read_frames(path, track, wanted.tolist(), short_side=short_side)
        if row not in self._held:  # two workers may both decode it: the same, twice
            self._held[row] = read_frames(path, track, range(track.frames), short_side=short_side)
        return self._held[row][wanted]

    @cached_property
    def _held(self) -> dict[int, Frames]:
        return {}

    @cached_property
    def decoded_bytes(self) -> int:
        """What all frames take in memory."""
        sides = (self._side(row) for row in range(len(self)))
        return sum(3 * h * w * track.frames for (h, w), track in zip(sides, self.index.tracks, strict=True))

    @property
    def is_held(self) -> bool:
        """Whether decoded frames stay in memory: where all of them fit, to train."""
        return bool(self.outcomes) and self.decoded_bytes <= min(HELD, installed_memory() // 4)

    def finish(self, loaded: Cropped, device: torch.device) -> Made:
        """All of a view but the crop, which is taken already."""
        views = [self.maker.apply_cropped(*each, device) for each in loaded.by_view(device)]
        assert loaded.present is not None
        return Made(list(views), loaded.present.to(device))

    def plain(self, ids: Tensor) -> Tensor:
        """Clips spread evenly over each video, the centre cut out."""
        clips = [
            read_test_clips(
                self.index,
                row,
                frames=self.sampler.frames,
                stride=self.sampler.stride,
                clips=self.copies,
                size=self.maker.size,
            )
            for row in ids.tolist()
        ]
        return torch.cat([self.maker.resize_and_normalise(each) for each in clips])

    def preview(self, row: int) -> Preview:
        """The frame in the middle; none if the video cannot be read any more."""
        try:
            picture = read_strip(self.index, row, frames=1, short_side=STILL)[0]
        except DataError:
            return Preview(None, self.name(row))
        return Preview(picture, self.name(row))

    def film(self, row: int) -> bytes | None:
        """A few frames of the whole video, over and over."""
        track = self.index.tracks[row]
        width, height = scaled(track.width, track.height, LONG)
        try:
            strip = read_strip(self.index, row, frames=FRAMES, short_side=max(1, LONG * LONG // max(width, height)))
        except DataError:
            return None
        return _webp(strip)

    def name(self, row: int) -> str:
        """The file below its source."""
        return self.index.name(row)

    def file(self, row: int) -> Path:
        """The file."""
        return self.index.videos.paths[row]

    def notes(self) -> list[str]:
        """What became of short videos, and which files cannot be used."""
        counts = [f"{count:,} {TOLD[outcome]}" for outcome, count in self.outcomes.items() if count]
        held = [f"decoded once, and held in memory: {self.decoded_bytes / 2**30:.1f} GB"] if self.is_held else []
        listed = self.index.videos
        return (
            [f"there is no split {name!r}; of {listed.split!r} the rest is taken" for name in listed.lacking]
            + ([", ".join(counts)] if counts else [])
            + held
            + [f"left out: {path} ({reason})" for path, reason in self.index.left_out]
        )


def index_cache(source: str) -> Path:
    """The file that keeps what was found in the videos of a source."""
    name = hashlib.sha256(os.path.abspath(source).encode()).hexdigest()[:32]
    return cache_folder("videos") / f"{name}.jsonl"


def find_videos(source: str, *, short_side: int) -> VideoIndex:
    """One video, or all videos below a folder, sorted by path and without labels (all are 0)."""
    root = Path(source)
    if not root.exists():
        raise DataError(f"there is no file and no folder {source!r}; give a video or a folder of videos")
    files = (root,) if root.is_file() else tuple(sorted(video_files(root)))
    if not files:
        raise DataError(f"no file under {source!r} is a video: none ends in {' '.join(sorted(SUFFIXES))}")
    videos = VideoList(files, torch.zeros(len(files), dtype=torch.int64), ("video",), source=source)
    return build_index(videos, index_cache(source), short_side=short_side)


def _webp(frames: Tensor) -> bytes:
    """`(frames, 3, height, width)` uint8 as an animated WebP that starts over at its end."""
    first, *others = (Image.fromarray(frame.permute(1, 2, 0).contiguous().numpy()) for frame in frames)
    out = io.BytesIO()
    options = {"duration": MILLISECONDS, "loop": 0, "quality": QUALITY, "method": 4}
    first.save(out, format="WEBP", save_all=True, append_images=others, **options)
    return out.getvalue()


def _of_classes(index: VideoIndex, classes: str, split: str) -> VideoIndex:
    kept, labels, chosen = chosen_classes(
        index.labels,
        index.class_names,
        read_class_list(classes),
        list_name=classes,
        source=index.videos.source,
        split=split,
    )
    return index.subset(kept.tolist()).relabelled(labels, tuple(index.class_names[label] for label in chosen))


def _balanced(labels: Tensor, limit: int) -> list[int]:
    """Rows of the first of every class, then of the second, and so on, until there are enough."""
    places = places_in_class(labels).tolist()
    return sorted(sorted(range(len(labels)), key=lambda row: (places[row], row))[:limit])
