"""Clips of videos: which frames are the query, the shot and the video positive, and their pixels.

Which frames are taken is a function of (seed, epoch, sample id), as the order and the views are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rince.draws import CLIP_PLACES, uniform
from rince.errors import ConfigError, DataError, ShapeError
from rince.sources.video_file import Frames, read_frames
from rince.sources.video_index import VideoIndex
from rince.sources.video_layouts import Ranges

QUERY, SHOT, VIDEO = range(3)
CLIP_OF_VIEW = (QUERY, QUERY, SHOT, VIDEO)  # view 1, the frame positive, is another view of the query's frames
OUTCOMES = ("whole", "shrunk", "dropped_video", "dropped_shot", "left_out")
Short = Literal["leave-out", "shrink-stride", "drop-rank"]
Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]


class ClipPlan(NamedTuple):
    """What a video is long enough for."""

    stride: int
    """Between the frames of a clip; 0 if the video is left out."""
    shot: bool
    """Whether there is a shot positive."""
    video: bool
    """Whether there is a video positive."""


@dataclass(frozen=True)
class ClipSampler:
    """Where the clips of a query lie in its video.

    The query is `frames` frames, every `stride`-th. The shot positive is the clip that goes on where the query ends, or
    ends where it starts: its frames continue the query's with the same stride. The video positive is a clip with at
    least `gap` frames between it and both. The query is uniform over all places that leave room for the positives, then
    the side of the shot over those with room, then the video positive over its places.

    Where clips may only lie in some ranges of frames, a clip lies within one range, and the query and the shot within
    the same one; the video positive may lie in another. The gap is counted in frames of the video, of any kind.

    Args:
        frames: of a clip.
        stride: between the frames of a clip.
        gap: frames between the video positive and the other two, at least.
        short: what becomes of a video too short for all: "leave-out" leaves it out, "shrink-stride" takes the largest
            smaller stride it is long enough for, "drop-rank" gives up the video positive, then also the shot. The
            gap stays. A video that is too short even so is left out.
        positives: whether there are any; if not, a clip alone is drawn, with a smaller stride where a video is short.

    Example:
        >>> sampler = ClipSampler(frames=4, stride=2, gap=5)
        >>> positions = sampler.draw(0, 0, torch.tensor([3]), [40])
        >>> positions.shape
        torch.Size([1, 3, 4])
        >>> sampler.report([40, 27, 26])
        {'whole': 2, 'shrunk': 0, 'dropped_video': 0, 'dropped_shot': 0, 'left_out': 1}
    """

    frames: int = 16
    stride: int = 3
    gap: int = 48
    short: Short = "leave-out"
    positives: bool = True

    def __post_init__(self) -> None:
        if self.frames < 1 or self.stride < 1 or self.gap < 0:
            raise ConfigError(
                "a clip needs at least one frame, a stride of at least 1 and a gap of at least 0, "
                f"got frames={self.frames}, stride={self.stride}, gap={self.gap}"
            )
        if self.short not in get_args(Short):
            raise ConfigError(f"short must be one of {', '.join(get_args(Short))}; got {self.short!r}")

    def plan(self, length: int, ranges: Ranges | None = None) -> ClipPlan:
        """What a video of `length` frames is long enough for.

        Args:
            length: how many frames it has.
            ranges: (first, stop) of the frames in which clips may lie, None for all.
        """
        if not self.positives:
            fitting = (s for s in range(self.stride, 0, -1) if len(_Places(self, s, length, ranges).starts))
            return ClipPlan(next(fitting, 0), shot=False, video=False)
        strides = range(self.stride, 0, -1) if self.short == "shrink-stride" else (self.stride,)
        for stride in strides:
            if len(_Places(self, stride, length, ranges).blocks(video=True)):
                return ClipPlan(stride, shot=True, video=True)
        if self.short == "drop-rank":
            places = _Places(self, self.stride, length, ranges)
            if len(places.blocks(video=False)):
                return ClipPlan(self.stride, shot=True, video=False)
            if len(places.starts):
                return ClipPlan(self.stride, shot=False, video=False)
        return ClipPlan(0, shot=False, video=False)

    def fits(self, lengths: Tensor | Sequence[int], ranges: Sequence[Ranges | None] | None = None) -> Tensor:
        """`(videos,)` bool: which videos are not left out."""
        return torch.tensor([plan.stride > 0 for plan in self._plans(lengths, ranges)], dtype=torch.bool)

    def report(self, lengths: Tensor | Sequence[int], ranges: Sequence[Ranges | None] | None = None) -> dict[str, int]:
        """How many videos are taken whole, with a smaller stride, without video positive, without both, not at all."""
        counts = Counter(self._outcome(plan) for plan in self._plans(lengths, ranges))
        return {outcome: counts[outcome] for outcome in OUTCOMES}

    def draw(
        self,
        seed: int,
        epoch: int,
        sample_ids: Tensor,
        lengths: Tensor | Sequence[int],
        ranges: Sequence[Ranges | None] | None = None,
    ) -> Tensor:
        """The frames of query, shot positive and video positive; a function of its arguments.

        Args:
            seed: of the run.
            epoch: of the training.
            sample_ids: `(samples,)` integers.
            lengths: `(samples,)`, how many frames the video of each has.
            ranges: of each sample, (first, stop) of the frames in which clips may lie, or None for all.

        Returns:
            `(samples, 3, frames)` int64 frame numbers, -1 where a positive is dropped.
        """
        if len(lengths) != len(sample_ids) or (ranges is not None and len(ranges) != len(sample_ids)):
            raise ShapeError(f"one length (and ranges) per sample: got {len(lengths)} for {len(sample_ids)} samples")
        draws = uniform(seed, epoch, CLIP_PLACES, sample_ids.cpu(), 3).double().tolist()
        positions = torch.full((len(sample_ids), 3, self.frames), -1)
        for row, length in enumerate(torch.as_tensor(lengths).tolist()):
            where = None if ranges is None else ranges[row]
            plan = self.plan(length, where)
            if not plan.stride:
                raise DataError(
                    f"sample {int(sample_ids[row])} has {length} frames, too few for clips; leave such videos out first"
                )
            starts = _Places(self, plan.stride, length, where).draw(plan, draws[row])
            for clip, start in enumerate(starts):
                positions[row, clip] = start + plan.stride * torch.arange(self.frames)
        return positions

    def test_positions(self, length: int, clips: int, ranges: Ranges | None = None) -> Tensor:
        """`(clips, frames)` frame numbers, nothing random: clips spread evenly, a single one in the middle.

        No video is too short for testing: the stride shrinks until a clip fits, and if none does, the last frame of the
        longest range is repeated.
        """
        if length < 1 or clips < 1:
            raise ShapeError(f"a test needs a frame and a clip at least, got {length} frames and {clips} clips")
        for stride in range(self.stride, 0, -1):
            starts = _Places(self, stride, length, ranges).starts
            if len(starts):
                shares = torch.linspace(0, 1, clips, dtype=torch.float64) if clips > 1 else torch.tensor([0.5])
                chosen = torch.from_numpy(starts)[(shares * (len(starts) - 1)).floor().long()]
                return chosen[:, None] + stride * torch.arange(self.frames)
        first, stop = max(_within(length, ranges), key=lambda each: each[1] - each[0])
        return torch.arange(first, first + self.frames).clamp(max=stop - 1).expand(clips, -1).contiguous()

    def _plans(self, lengths: Tensor | Sequence[int], ranges: Sequence[Ranges | None] | None) -> list[ClipPlan]:
        numbers = torch.as_tensor(lengths).tolist()
        known: dict[tuple[int, Ranges | None], ClipPlan] = {}  # many videos have one length
        for key in zip(numbers, ranges or [None] * len(numbers), strict=True):
            if key not in known:
                known[key] = self.plan(*key)
        return [known[key] for key in zip(numbers, ranges or [None] * len(numbers), strict=True)]

    def _outcome(self, plan: ClipPlan) -> str:
        if not plan.stride:
            return "left_out"
        if plan.stride < self.stride:
            return "shrunk"
        return "whole" if plan.video or not self.positives else "dropped_video" if plan.shot else "dropped_shot"


class _Places:
    """Where clips of one stride fit into a video."""

    def __init__(self, sampler: ClipSampler, stride: int, length: int, ranges: Ranges | None) -> None:
        self.gap, self.span = sampler.gap, (sampler.frames - 1) * stride + 1
        self.hop = sampler.frames * stride  # from the start of a clip to that of the adjacent one
        self.ranges = _within(length, ranges)
        self.starts = self._fitting(self.span)

    def blocks(self, *, video: bool) -> Numbers:
        """Where query and shot together may start, so that a video positive fits too or not."""
        blocks = self._fitting(self.hop + self.span)
        if not video or not len(self.starts):
            return blocks
        before, after = self._video_bounds(blocks)
        room: Numbers = blocks[(self.starts[0] <= before) | (self.starts[-1] >= after)]
        return room

    def draw(self, plan: ClipPlan, draws: Sequence[float]) -> list[int]:
        """Starts of the query and of its positives, as far as the plan has them, from three numbers in [0, 1)."""
        if not plan.shot:
            return [_pick(self.starts, draws[0])]
        blocks = self.blocks(video=plan.video)
        query = _pick(np.union1d(blocks, blocks + self.hop), draws[0])
        shots = [shot for shot in (query - self.hop, query + self.hop) if min(query, shot) in blocks]
        shot = shots[int(draws[1] * len(shots))]
        if not plan.video:
            return [query, shot]
        before, after = self._video_bounds(min(query, shot))
        return [query, shot, _pick(self.starts[(self.starts <= before) | (self.starts >= after)], draws[2])]

    def _video_bounds(self, block: Numbers | int) -> tuple[Numbers | int, Numbers | int]:
        """The last start before a block of query and shot, and the first one after it, that keep the gap."""
        return block - self.gap - self.span, block + self.hop + self.span + self.gap

    def _fitting(self, span: int) -> Numbers:
        """Starts of `span` frames that lie within a range, in order."""
        starts: Numbers = np.concatenate([np.arange(first, stop - span + 1) for first, stop in self.ranges])
        return starts


def long_enough(index: VideoIndex, sampler: ClipSampler) -> VideoIndex:
    """The videos that the sampler can take clips from; the others join those left out, with the reason."""
    fits = sampler.fits(index.lengths, index.ranges)
    reasons = [
        (index.videos.paths[row], f"too short: {index.tracks[row].frames} frames")
        for row in (~fits).nonzero()[:, 0].tolist()
    ]
    if not fits.any():
        raise DataError(
            f"none of the {len(index)} videos of {index.videos.source!r} is long enough for {sampler}; "
            "use fewer frames, a smaller stride or gap, or another policy for short videos"
        )
    return index.subset(fits.nonzero()[:, 0].tolist(), reasons)


def read_test_clips(index: VideoIndex, video: int, *, frames: int, stride: int, clips: int, size: int) -> Tensor:
    """`(clips, 3, frames, size, size)` uint8: clips spread evenly over a video, scaled, the centre cut out.

    Args:
        index: of the videos.
        video: place in the index.
        frames: of a clip.
        stride: between them; smaller where the video is too short.
        clips: how many.
        size: height and width; what the shorter side is scaled to before the centre is cut out.
    """
    track = index.tracks[video]
    sampler = ClipSampler(frames=frames, stride=stride)
    positions = sampler.test_positions(track.frames, clips, index.ranges_of(video)).numpy()
    wanted = np.unique(positions)
    pixels = read_frames(index.videos.paths[video], track, wanted.tolist(), short_side=size)
    top, left = ((side - size) // 2 for side in pixels.shape[1:3])
    pixels = pixels[:, top : top + size, left : left + size]
    return torch.from_numpy(pixels[np.searchsorted(wanted, positions)]).permute(0, 4, 1, 2, 3).contiguous()


def read_strip(index: VideoIndex, video: int, *, frames: int, short_side: int) -> Tensor:
    """`(frames, 3, height, width)` uint8: a few small frames, evenly spread over a video (fewer if it has fewer)."""
    track = index.tracks[video]
    shares = (np.arange(frames) + 0.5) / frames
    wanted = np.unique((shares * track.frames).astype(np.int64))
    pixels = read_frames(index.videos.paths[video], track, wanted.tolist(), short_side=short_side)
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()


def cropped(frames: Frames, box: Sequence[int], size: int) -> Tensor:
    """`(time, height, width, 3)` → the box as `(3, time, size, size)`."""
    top, left, height, width = box
    crop = torch.from_numpy(frames[:, top : top + height, left : left + width]).permute(0, 3, 1, 2)
    # In bytes it takes a tenth of the time that it takes in floats, and gives the same to one level.
    return F.interpolate(crop, (size, size), mode="bilinear", antialias=True).transpose(0, 1)


def _within(length: int, ranges: Ranges | None) -> Ranges:
    """The ranges that clips may lie in, cut off where the video ends; at least one, which may be empty."""
    cut = tuple((first, min(stop, length)) for first, stop in ranges or ((0, length),) if first < length)
    return cut or ((0, 0),)


def _pick(places: Numbers, draw: float) -> int:
    return int(places[int(draw * len(places))])
