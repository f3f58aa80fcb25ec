"""Videos as training samples: an index of files, and the rule by which clips are drawn from them."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rince.config import Clips as ClipSettings
from rince.sources.clips import Clips, ClipSampler, long_enough
from rince.sources.video_layouts import SUFFIXES, video_files
from rince.sources.video_index import Progress, VideoIndex, VideoList, build_index, list_videos
from rince.views.pixels import Views
from rince.errors import DataError
from rince.terminal import shown_progress


@dataclass(frozen=True, eq=False)
class VideoSet:
    """Videos of one split that are long enough to draw clips from; stands where images stand.

    Attributes:
        index: of the videos.
        sampler: draws clips.
        outcomes: how many videos the rule for short ones concerned, by what became of them.
        source: where the videos come from, for messages.
    """

    index: VideoIndex
    sampler: ClipSampler
    outcomes: dict[str, int]
    source: str = "videos"
    superclasses: None = None
    superclass_names: tuple[str, ...] = ()
    folder_paths: None = None

    def __len__(self) -> int:
        return len(self.index)

    @property
    def labels(self) -> Tensor:
        """`(number,)` int64."""
        return self.index.labels

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names in label order."""
        return self.index.class_names

    @property
    def fingerprint(self) -> str:
        """sha256 over what clips are drawn from."""
        return hashlib.sha256(f"{self.index.fingerprint} {self.sampler}".encode()).hexdigest()

    def clips(self, views: Views, seed: int, numbers: Sequence[int]) -> Clips:
        """(epoch, sample id) → the cropped clips of its views and which of them it has."""
        return Clips(self.index, self.sampler, views, seed, numbers)


def load_index(source: str, split: str, settings: ClipSettings, *, progress: Progress | None = None) -> VideoIndex:
    """What is in the videos of a split; looked into once, then read from the cache of the user."""
    videos = list_videos(
        source, split, layout=settings.layout, split_number=settings.split_number, splits=settings.splits
    )
    return build_index(videos, index_cache(source), short_side=settings.short_side, progress=progress)


def index_cache(source: str) -> Path:
    """The file that keeps what was found in the videos of a source, in the cache of the user."""
    name = hashlib.sha256(os.path.abspath(source).encode()).hexdigest()[:32]
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "rince" / "videos" / f"{name}.jsonl"


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


def load_videos(
    source: str, split: str, settings: ClipSettings, *, positives: bool, limit: int | None = None
) -> VideoSet:
    """The videos of a split that clips can be drawn from, as a recipe says.

    Args:
        source: of the videos.
        split: such as "train" or "train+val".
        settings: of the recipe.
        positives: whether a query needs its shot and video positives; if not, any video with room for a clip will do.
        limit: keep so many videos, as many of every class as can be.
    """
    with shown_progress(source) as tell:  # the first look at many videos takes a while
        index = load_index(source, split, settings, progress=lambda done, of: tell("looking into videos", done, of))
    if limit is not None:
        index = index.subset(_balanced(index.labels, limit))
    sampler = ClipSampler(settings.frames, settings.stride, settings.gap, settings.short, positives=positives)
    outcomes = sampler.report(index.lengths, index.ranges)
    return VideoSet(long_enough(index, sampler), sampler, outcomes, source)


def _balanced(labels: Tensor, limit: int) -> list[int]:
    """Rows of the first of every class, then of the second, and so on, until there are enough."""
    counts: Counter[int] = Counter()
    places = []
    for label in labels.tolist():
        places.append(counts[label])
        counts[label] += 1
    return sorted(sorted(range(len(labels)), key=lambda row: (places[row], row))[:limit])
