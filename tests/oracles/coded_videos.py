"""Tiny videos whose frames carry their number, in twelve black or white blocks that survive compression."""

from fractions import Fraction

import av
import numpy as np

WIDTH, HEIGHT = 64, 48
BLOCKS = (3, 4)  # rows and columns: twelve bits


def coded_frame(number, width=WIDTH, height=HEIGHT):
    """`(height, width, 3)` uint8."""
    bits = np.array([number >> bit & 1 for bit in range(12)], dtype=np.uint8).reshape(BLOCKS)
    return np.repeat(np.kron(bits, np.ones((height // 3, width // 4), np.uint8))[..., None] * 255, 3, axis=2)


def read_number(picture):
    """The number of a frame, from any `(height, width, 3)` picture of the whole of it."""
    rows, columns = ((np.arange(n) + 0.5) * side / n for n, side in zip(BLOCKS, picture.shape[:2], strict=True))
    lit = np.asarray(picture)[rows.astype(int)][:, columns.astype(int)].mean(axis=2) > 127
    return int((lit.reshape(-1) << np.arange(12)).sum())


def read_numbers(pictures):
    return [read_number(picture) for picture in pictures]


def write_video(
    path,
    count,
    *,
    first=0,
    codec="libx264",
    gop=12,
    b_frames=2,
    times=None,
    width=WIDTH,
    height=HEIGHT,
    options=None,
    **extra,
):
    """`count` frames, numbered from `first`, 25 a second or at `times` (milliseconds)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", **extra) as container:
        stream = container.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.gop_size, stream.codec_context.max_b_frames = gop, b_frames
        stream.codec_context.thread_count = 1
        stream.options = options or ({"preset": "ultrafast", "bf": str(b_frames)} if codec == "libx264" else {})
        if times is not None:
            stream.codec_context.time_base = stream.time_base = Fraction(1, 1000)
        for number in range(count):
            frame = av.VideoFrame.from_ndarray(coded_frame(first + number, width, height), format="rgb24")
            if times is not None:
                frame.pts, frame.time_base = times[number], Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def write_packed_avi(path, count):
    """As DivX wrote them, and HMDB51 has them: a B-frame in one packet with the frame after it, then a packet of none.

    The times that FFmpeg gives to such packets and frames are wrong.
    """
    plain = write_video(path.with_suffix(".plain.avi"), count, codec="mpeg4", b_frames=1)
    with av.open(str(plain)) as container:
        packets = [bytes(packet) for packet in container.demux(video=0) if packet.size]
    start = b"\0\0\1\xb6"  # of a frame; its kind is in the next two bits, 2 for B
    is_b = [packet[packet.index(start) + 4] >> 6 == 2 for packet in packets]
    packets[0] = packets[0].replace(start, b"\0\0\1\xb2DivX503b1393p\0" + start, 1)
    packed = []
    for number, packet in enumerate(packets):
        if is_b[number]:
            packed[-1] += packet
        packed.append(start + b"\x50\x40" if is_b[number] else packet)  # "this frame is not coded"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number, data in enumerate(packed):
            packet = av.Packet(data)
            packet.stream, packet.pts, packet.dts, packet.is_keyframe = stream, number, number, number == 0
            packet.time_base = Fraction(1, 25)
            container.mux(packet)
    return path


def packet_places(path):
    """Where the encoded frames lie in a file: (first byte, bytes), in the order they are stored."""
    with av.open(str(path)) as container:
        return [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
