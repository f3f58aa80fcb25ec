"""An index of videos: what every file has and which files cannot be used, found out once and kept."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from rince.errors import ConfigError, DataError
from rince.files import file_digest, readable
from rince.sources.video_file import Track, inspect
from rince.sources.video_layouts import Ranges, VideoList
from rince.terminal import TellDone


@dataclass(frozen=True, eq=False)
class VideoIndex:
    """Videos that can be read, and what is in them.

    Attributes:
        videos: files, labels, and the frame ranges in which clips may lie.
        tracks: what one has to know of each to read frames of it.
        left_out: files that are not among them, each with the reason.
        short_side: what the shorter side of a frame is scaled to when it is decoded.
    """

    videos: VideoList
    tracks: tuple[Track, ...]
    left_out: tuple[tuple[Path, str], ...]
    short_side: int

    def __len__(self) -> int:
        return len(self.tracks)

    @property
    def labels(self) -> Tensor:
        """`(number,)` int64."""
        return self.videos.labels

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names in label order."""
        return self.videos.class_names

    def ranges_of(self, row: int) -> Ranges | None:
        """The frames of a video in which clips may lie, None for all."""
        return None if self.ranges is None else self.ranges[row]

    @property
    def ranges(self) -> tuple[Ranges | None, ...] | None:
        """Per video the frames in which clips may lie, or None for all; None if no video has such ranges."""
        return self.videos.ranges

    @cached_property
    def lengths(self) -> Tensor:
        """`(number,)` int64: how many frames each has."""
        return torch.tensor([track.frames for track in self.tracks], dtype=torch.int64)

    def subset(self, rows: Iterable[int], reasons: Iterable[tuple[Path, str]] = ()) -> VideoIndex:
        """Some of the videos; `reasons` says why others are left out."""
        chosen = list(rows)
        return replace(
            self,
            videos=self.videos.subset(chosen),
            tracks=tuple(self.tracks[row] for row in chosen),
            left_out=(*self.left_out, *reasons),
        )

    def relabelled(self, labels: Tensor, class_names: tuple[str, ...]) -> VideoIndex:
        """The same videos with other labels."""
        return replace(self, videos=replace(self.videos, labels=labels, class_names=class_names))

    def name(self, row: int) -> str:
        """A video's path below its source."""
        source, path = Path(self.videos.source), self.videos.paths[row]
        top = source if source.is_dir() else source.parent
        return readable(path.relative_to(top).as_posix() if path.is_relative_to(top) else path.name)


def build_index(
    videos: VideoList, cache: Path | None, *, short_side: int, progress: TellDone | None = None
) -> VideoIndex:
    """Looks into every video once.

    Args:
        videos: the files.
        cache: a file that keeps what was found, one line per video, added as soon as it is known: building goes on
            where it was stopped. A file whose size or time of change differs is looked into again. None keeps nothing.
        short_side: what the shorter side of a frame is to be scaled to when it is decoded.
        progress: called with the number of videos done, and of all, after each.

    Returns:
        The videos of which a frame can be had; the others are in its `left_out`.
    """
    if short_side < 1:
        raise ConfigError(f"short_side must be at least one pixel, got {short_side}")
    known = _read_cache(cache)
    found: dict[int, Track] = {}
    left_out: list[tuple[Path, str]] = []
    with _Cache(cache) as keep:
        for row, path in enumerate(videos.paths):
            try:
                status = path.stat()
                key = (os.path.abspath(path), status.st_size, status.st_mtime_ns)
                if key not in known:
                    known[key] = _look(path)
                    keep.add(key, known[key])
                result = known[key]
            except FileNotFoundError as error:
                result = error.strerror or str(error)
            except OSError as error:
                raise DataError(
                    f"video {str(path)!r} cannot be read: {error.strerror or error}; try again, or take it out"
                ) from None
            if isinstance(result, Track):
                found[row] = result
            else:
                left_out.append((path, result))
            if progress:
                progress(row + 1, len(videos))
    if not found:
        first = f"; the first, {str(left_out[0][0])!r}: {left_out[0][1]}" if left_out else ""
        raise DataError(f"none of the {len(videos)} videos of {videos.source!r} can be read{first}")
    return VideoIndex(videos.subset(found), tuple(found.values()), tuple(left_out), short_side)


Key = tuple[str, int, int]


def _look(path: Path) -> Track | str:
    """What is in a video, or why it cannot be used."""
    if path.stat().st_size == 0:
        return "the file is empty"
    with suppress(DataError):
        return inspect(path)
    # Twice, and all of it in between: what the system did not give is not remembered as damage, which looks the same.
    file_digest(path)
    try:
        return inspect(path)
    except DataError as error:
        return str(error)


class _Cache:
    """Appends to the file of an index, a line at a time; a full disk costs the time to look again, and no video."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def __enter__(self) -> _Cache:
        self.file: BinaryIO | None = None
        with suppress(OSError):
            self._open()
        return self

    def _open(self) -> None:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # A line that was cut off by a kill is closed, so that the next one starts anew; it reads as no JSON.
            torn = self.path.exists() and self.path.stat().st_size > 0 and not self.path.read_bytes().endswith(b"\n")
            self.file = self.path.open("ab")
            if torn:
                self.file.write(b"\n")

    def add(self, key: Key, result: Track | str) -> None:
        if self.file is not None:
            outcome = {"track": asdict(result)} if isinstance(result, Track) else {"reason": result}
            line = json.dumps({"path": key[0], "size": key[1], "changed": key[2], **outcome}).encode() + b"\n"
            with suppress(OSError):
                self.file.write(line)
                self.file.flush()

    def __exit__(self, *_: Any) -> None:
        if self.file is not None:
            with suppress(OSError):
                self.file.close()


def _read_cache(path: Path | None) -> dict[Key, Track | str]:
    """What earlier builds have found; lines that do not read are passed over."""
    known: dict[Key, Track | str] = {}
    if path is None or not path.exists():
        return known
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                entry = json.loads(line)
                result = Track(**entry["track"]) if "track" in entry else str(entry["reason"])
                known[entry["path"], entry["size"], entry["changed"]] = result
            except (ValueError, KeyError, TypeError):
                continue
    return known
