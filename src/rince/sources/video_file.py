"""Video files through PyAV: what is in one, and single frames of it. No other module imports `av`.

Frames are numbered from 0 in the order in which they are shown. Where a container gives every frame a time of its own,
frame n is the one with the n-th time, whatever the distances between them, and reading it means to seek to the keyframe
before it. Where times are missing or wrong (AVI with B-frames, raw streams), frame n is the n-th that the decoder gives
from the start of the file; such files are read from their start.
"""

from __future__ import annotations

import itertools
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rince.errors import ConfigError, DataError

if TYPE_CHECKING:
    from av import Packet, VideoFrame
    from av.container import InputContainer
    from av.video.stream import VideoStream

Frames = np.ndarray[tuple[int, int, int, int], np.dtype[np.uint8]]

# Nothing else is tried: FFmpeg also reads playlists, which name other files and addresses.
FORMATS = "avi,mov,mp4,matroska,webm,mpeg,mpegts,mpegvideo,m4v,h264,hevc,asf,flv,ogg,gif,dv,mjpeg,yuv4mpegpipe,ivf"
# Containers that give every frame its own time, mark those that are not shown, and find keyframes; the others are
# decoded once to count what comes out. AVI may do all this or not, which shows when it is decoded.
EXACT = {"mov", "mp4", "matroska", "webm"}
PERHAPS_EXACT = {"avi"}
LONGEST = 8  # times the shorter side: scaled whole, a frame of 2 × 10,000 pixels would take gigabytes


@dataclass(frozen=True, slots=True)
class Track:
    """What one has to know of a video to read single frames of it.

    Attributes:
        frames: how many there are.
        fps: frames per second, on average; 0 where the file does not tell.
        width: of an upright frame, in pixels.
        height: likewise.
        turns: quarter turns to the left that bring a decoded frame upright.
        times: of all frames, in units of the container, as `pack` writes them; empty if they cannot be relied on.
        keyframes: numbers of the frames that decoding can start from, likewise.
    """

    frames: int
    fps: float
    width: int
    height: int
    turns: int = 0
    times: str = ""
    keyframes: str = ""


def pack(values: Sequence[int]) -> str:
    """Increasing integers as text: the first, then steps and how often each is repeated.

    Example:
        >>> pack([0, 512, 1024, 1536, 1600]), unpack("0 512*3 64*1")
        ('0 512*3 64*1', [0, 512, 1024, 1536, 1600])
    """
    if not values:
        return ""
    steps = (after - before for before, after in itertools.pairwise(values))
    return " ".join([str(values[0]), *(f"{step}*{len(list(run))}" for step, run in itertools.groupby(steps))])


def unpack(text: str) -> list[int]:
    """What `pack` has written."""
    if not text:
        return []
    first, *runs = text.split(" ")
    steps = (itertools.repeat(int(step), int(count)) for step, _, count in (run.partition("*") for run in runs))
    return list(itertools.accumulate(itertools.chain.from_iterable(steps), initial=int(first)))


def middle(width: int, height: int) -> tuple[int, int]:
    """Width and height of what is seen of a frame: all of it, or the middle of a long strip."""
    longest = LONGEST * min(width, height)
    return min(width, longest), min(height, longest)


def scaled(width: int, height: int, short_side: int) -> tuple[int, int]:
    """Width and height of what is seen of a frame, with the shorter of the two brought to `short_side`."""
    width, height = middle(width, height)
    shorter = min(width, height)
    return max(1, round(width * short_side / shorter)), max(1, round(height * short_side / shorter))


def inspect(path: Path) -> Track:
    """What is in a video file. Frames are counted, never taken from the header, which may be wrong.

    Raises:
        DataError: with the reason alone, if no frame of it can be had.
    """
    _av()
    try:
        with _opened(path) as (container, stream):
            shown = (p for p in _packets(container, stream) if p.size and not p.is_discard and not p.is_corrupt)
            stored = [(packet.pts, packet.is_keyframe) for packet in shown]
            kinds = set(container.format.name.split(","))
            fps, unit = float(stream.average_rate or 0), float(stream.time_base or 0)
    except Exception as error:  # PyAV raises FFmpegError, which are of many kinds, ValueError, UnicodeError, …
        raise DataError(_reason(error)) from error
    times = sorted(time for time, _ in stored if time is not None)
    reliable = len(times) == len(stored) > 0 and _increasing(times) and bool(kinds & (EXACT | PERHAPS_EXACT))
    decoded, turns, width, height = _decoded(path, 1 if reliable and kinds & EXACT else None)
    if not reliable or (kinds & PERHAPS_EXACT and decoded != times):
        return Track(len(decoded), fps, width, height, turns)
    numbers: dict[int | None, int] = {time: number for number, time in enumerate(times)}
    if len(times) > 1 and unit:
        fps = (len(times) - 1) / ((times[-1] - times[0]) * unit)
    keyframes = sorted(numbers[time] for time, is_key in stored if is_key)
    return Track(len(times), fps, width, height, turns, pack(times), pack(keyframes))


def read_frames(path: Path, track: Track, wanted: Sequence[int], *, short_side: int) -> Frames:
    """Some frames of a video, decoding no more than is needed for them.

    Seeks to the keyframe before the first, and forward again wherever a keyframe lies between two wanted frames. On the
    way, frames that no other frame needs are not decoded. A frame that does not decode is replaced by the nearest one
    that does (of two, the earlier), with a warning that names the file.

    Args:
        path: of the file.
        track: what `inspect` has found in it.
        wanted: frame numbers, increasing.
        short_side: what the shorter side of a frame is scaled to; of a strip longer than `LONGEST` times that, the
            middle is seen.

    Returns:
        `(frames, height, width, 3)` uint8, RGB, upright.
    """
    if not wanted or not _increasing(wanted) or not 0 <= wanted[0] <= wanted[-1] < track.frames:
        raise DataError(f"frames of {str(path)!r} must be increasing numbers from 0 to {track.frames - 1}: {wanted}")
    width, height = scaled(track.width, track.height, short_side)
    size = (height, width) if track.turns % 2 else (width, height)
    pixels = np.empty((len(wanted), height, width, 3), np.uint8)
    missing, stand_ins, scale = dict(zip(wanted, range(len(wanted)), strict=True)), 0, _scaler(*size)
    try:
        with _opened(path) as (container, stream):
            for number, frame in _sought(container, stream, track, wanted):
                pixels[missing.pop(number)] = np.rot90(scale(frame), track.turns)
        if missing:
            with _opened(path) as (container, stream):
                for number, shown, frame in _nearest(_all(container, stream, track), list(missing)):
                    pixels[missing.pop(number)] = np.rot90(scale(frame), track.turns)
                    stand_ins += shown != number
    except Exception as error:  # as in `inspect`
        raise DataError(f"video {str(path)!r} cannot be read any more ({_reason(error)}); mend or remove it") from error
    if missing:
        raise DataError(f"no frame of video {str(path)!r} decodes any more; mend it or take it out")
    if stand_ins:
        warnings.warn(
            f"video {str(path)!r} has frames that do not decode; the nearest ones stand in for them",
            RuntimeWarning,
            stacklevel=2,
        )
    return pixels


def _sought(
    container: InputContainer, stream: VideoStream, track: Track, wanted: Sequence[int]
) -> Iterator[tuple[int, VideoFrame]]:
    """Those of the wanted frames that decode after seeking, in order, each with its number."""
    asked = set(wanted)
    if not track.times:  # nothing to seek by: the n-th frame is the n-th that comes out
        frames = itertools.takewhile(lambda pair: pair[0] <= wanted[-1], _all(container, stream, track))
        yield from (pair for pair in frames if pair[0] in asked)
        return
    times, keys = unpack(track.times), unpack(track.keyframes)
    numbers: dict[int | None, int] = {time: number for number, time in enumerate(times)}
    left, sent = iter(wanted), -1  # the last frame that the decoder was given
    following = next(left, None)
    packets: Iterator[Packet[VideoStream]] = _packets(container, stream)
    while following is not None:
        if (key := _last_up_to(keys, following)) > max(sent, 0):
            middle = (key + next((other for other in keys if other > key), len(times))) // 2
            packets = _packets_from(container, stream, times[key], (times[middle], times[key], times[0]))
        for packet in packets:
            number = numbers.get(packet.pts)
            sent = max(sent, key, -1 if number is None else number)
            # A frame that is not asked for and that no other frame refers to is not decoded at all.
            stream.codec_context.skip_frame = "DEFAULT" if number is None or number in asked else "NONREF"
            for frame in _frames(stream, packet):
                if (number := numbers.get(frame.pts)) is None:
                    continue
                if number in asked and following is not None and number >= following:
                    yield number, frame
                while following is not None and following <= number:
                    following = next(left, None)
            if following is None or _last_up_to(keys, following) > sent:
                break
        else:
            return  # the file has ended


def _packets_from(
    container: InputContainer, stream: VideoStream, time: int, targets: Sequence[int]
) -> Iterator[Packet[VideoStream]]:
    """Packets from the keyframe on that is shown at `time`, or from one before, after a seek to the first good target.

    Some containers seek by the times at which frames are decoded, which are others: from the time at which a keyframe
    is shown they may go to the one before it. So a time halfway to the next keyframe is a better target than its own.
    """
    for target in targets:
        container.seek(target, stream=stream, backward=True)
        packets = _packets(container, stream)
        first = next(packets, None)
        if first is not None and first.pts is not None and first.pts <= time:
            return itertools.chain([first], packets)
    return iter(())


def _all(container: InputContainer, stream: VideoStream, track: Track | None) -> Iterator[tuple[int, VideoFrame]]:
    """Every frame that decodes, from the start of the file, with its number."""
    times = unpack(track.times) if track else []
    numbers: dict[int | None, int] = {time: number for number, time in enumerate(times)}
    count = itertools.count()
    for packet in _packets(container, stream):
        for frame in _frames(stream, packet):
            number = numbers.get(frame.pts) if numbers else next(count)
            if number is not None:
                yield number, frame


def _nearest(frames: Iterator[tuple[int, VideoFrame]], wanted: list[int]) -> Iterator[tuple[int, int, VideoFrame]]:
    """For every wanted number the frame that comes nearest, the earlier of two: number, that of the frame, frame."""
    before: tuple[int, VideoFrame] | None = None
    left = list(wanted)
    for number, frame in frames:
        while left and left[0] <= number:
            asked = left.pop(0)
            chosen = before if before and asked - before[0] <= number - asked else (number, frame)
            yield asked, *chosen
        if not left:
            return
        before = number, frame
    yield from ((asked, *before) for asked in left if before)


def _scaler(width: int, height: int) -> Callable[[VideoFrame], np.ndarray[Any, np.dtype[np.uint8]]]:
    """Makes RGB of what is seen of a decoded frame; one scaler is kept for all frames, it is slow to set up."""
    reformatter = _av().video.reformatter.VideoReformatter()
    return lambda frame: reformatter.reformat(_seen(frame), width, height, "rgb24", threads=1).to_ndarray()


def _seen(frame: VideoFrame) -> VideoFrame:
    """A frame without the ends of a long strip, which are cut off before it is scaled."""
    width, height = middle(frame.width, frame.height)
    if (width, height) == (frame.width, frame.height):
        return frame
    left, top = (frame.width - width) // 2, (frame.height - height) // 2
    pixels = frame.to_ndarray(format="rgb24")[top : top + height, left : left + width]
    cut: VideoFrame = _av().VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
    return cut


def _decoded(path: Path, limit: int | None) -> tuple[list[int | None], int, int, int]:
    """Times of the first `limit` frames that decode; quarter turns, width and height of an upright one."""
    times: list[int | None] = []
    turns = width = height = 0
    try:
        with _opened(path) as (container, stream):
            for _, frame in itertools.islice(_all(container, stream, None), limit):
                if not times:
                    turns = round(frame.rotation / 90) % 4
                    width, height = (frame.height, frame.width) if turns % 2 else (frame.width, frame.height)
                times.append(frame.pts)
    except Exception as error:
        raise DataError(_reason(error)) from error
    if not times:
        raise DataError("no frame decodes")
    return times, turns, width, height


def _packets(container: InputContainer, stream: VideoStream) -> Iterator[Packet[VideoStream]]:
    """Encoded frames as they are stored, and the empty one at the end; a file that breaks off ends where it does."""
    packets = container.demux(stream)
    while True:
        try:
            yield next(packets)
        except (StopIteration, _av().FFmpegError):
            return


def _frames(stream: VideoStream, packet: Packet[VideoStream]) -> list[VideoFrame]:
    """What the decoder gives for a packet; nothing for a broken one."""
    try:
        frames: list[VideoFrame] = stream.codec_context.decode(packet if packet.size else None)
        return frames
    except _av().FFmpegError:
        return []


@contextmanager
def _opened(path: Path) -> Iterator[tuple[InputContainer, VideoStream]]:
    av = _av()
    # Metadata need not be UTF-8, which PyAV knows by itself since 19; and a name such as "concat:a" is that of a file.
    lenient = {"metadata_errors": "ignore"} if int(av.__version__.partition(".")[0]) < 19 else {}
    options = {"protocol_whitelist": "file", "format_whitelist": FORMATS}
    with av.open(f"file:{path}", options=options, **lenient) as container:
        if not container.streams.video:
            raise DataError("it has no video stream")
        stream = container.streams.video[0]
        stream.thread_type, stream.codec_context.thread_count = "NONE", 1  # workers are the threads
        yield container, stream


def _av() -> Any:
    try:
        import av  # noqa: PLC0415  the library and images do without
    except ImportError as error:
        raise ConfigError('videos need PyAV: pip install "rince[video]"') from error
    return av


def _last_up_to(values: list[int], limit: int) -> int:
    """The last of increasing values that is not above the limit, or 0."""
    return values[place - 1] if (place := bisect_right(values, limit)) else 0


def _increasing(values: Sequence[Any]) -> bool:
    return None not in values and all(before < after for before, after in itertools.pairwise(values))


def _reason(error: Exception) -> str:
    text: str = getattr(error, "strerror", None) or str(error)
    return text.replace("\n", " ") or type(error).__name__
