"""Videos as a report shows them: what judging has noted of them, and pictures of those that are still there."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from rince.sources.clips import read_strip
from rince.sources.video_file import scaled
from rince.sources.videos import index_cache
from rince.sources.video_index import VideoIndex, VideoList, build_index
from rince.errors import DataError

STILL = 40  # pixels of the shorter side
LONG, FRAMES, MILLISECONDS = 96, 12, 160  # of a moving thumbnail: the longer side, how many frames, how long each
QUALITY = 45
GREY = 128


@dataclass(frozen=True, eq=False)
class Videos:
    """Videos of one split that a run was judged on; the files may be gone since.

    Attributes:
        source: where they come from.
        paths: of the files.
        labels: `(number,)` int64.
        class_names: names in label order.
        fingerprint: sha256 that judging found.
    """

    source: str
    paths: tuple[Path, ...]
    labels: Tensor
    class_names: tuple[str, ...]
    fingerprint: str

    def __len__(self) -> int:
        return len(self.paths)

    @cached_property
    def _index(self) -> VideoIndex | None:
        """Of the videos that can be read; None if there is none."""
        listed = VideoList(self.paths, self.labels, self.class_names, source=self.source)
        try:
            return build_index(listed, index_cache(self.source), short_side=STILL)
        except DataError:
            return None

    @cached_property
    def _rows(self) -> dict[Path, int]:
        """File → its place in the index."""
        return {path: row for row, path in enumerate(self._index.videos.paths)} if self._index else {}

    def strip(self, path: Path, *, frames: int, short_side: int) -> Tensor | None:
        """`(frames, 3, height, width)` uint8, evenly spread over a video; None if it cannot be read any more."""
        if path not in self._rows or self._index is None:
            return None
        try:
            return read_strip(self._index, self._rows[path], frames=frames, short_side=short_side)
        except DataError:
            return None

    def still(self, row: int) -> Tensor:
        """`(3, height, width)` uint8: the frame in the middle of a video; gray if it cannot be read any more."""
        found = self.strip(self.paths[row], frames=1, short_side=STILL)
        return torch.full((3, STILL, STILL), GREY, dtype=torch.uint8) if found is None else found[0]

    def is_there(self, path: Path) -> bool:
        """Whether the file could be opened."""
        return path in self._rows

    def moving(self, path: Path) -> bytes | None:
        """A small WebP that moves: a few frames of the whole video, over and over; None if it cannot be read."""
        if path not in self._rows or self._index is None:
            return None
        track = self._index.tracks[self._rows[path]]
        width, height = scaled(track.width, track.height, LONG)
        strip = self.strip(path, frames=FRAMES, short_side=max(1, LONG * LONG // max(width, height)))
        return None if strip is None else webp(strip)


def webp(frames: Tensor) -> bytes:
    """`(frames, 3, height, width)` uint8 as an animated WebP that starts over at its end."""
    first, *others = (Image.fromarray(frame.permute(1, 2, 0).contiguous().numpy()) for frame in frames)
    out = io.BytesIO()
    first.save(
        out,
        format="WEBP",
        save_all=True,
        append_images=others,
        duration=MILLISECONDS,
        loop=0,
        quality=QUALITY,
        method=4,
    )
    return out.getvalue()


def data_uri(picture: bytes) -> str:
    """A WebP picture as an address."""
    return "data:image/webp;base64," + base64.b64encode(picture).decode()


def noted(facts: dict[str, Any], side: str) -> Videos:
    """One side, "train" or "test", of what judging has noted of a set of videos."""
    own = facts[side]
    return Videos(
        facts["source"],
        tuple(map(Path, own["videos"])),
        torch.tensor(own["labels"], dtype=torch.int64),
        tuple(facts["classes"]),
        own["fingerprint"],
    )
