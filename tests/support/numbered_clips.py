"""Videos whose every frame carries its own number, in blocks that survive compression."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.stream import Disposition
from av.video.reformatter import ColorRange, Colorspace, VideoReformatter

from paddlevideo_fast.io.files import atomic_write

NUMBERS = 1024
_BITS = 10
_MIXER = 619  # odd: a one-to-one map of the numbers; the sum of two frames' blocks does not satisfy it
_DARK, _LIGHT = 20, 235
_CLEAR = 60  # how far from the middle grey a block must be to count as read
QUIET = {
    "libx264": {"preset": "veryfast", "crf": "18"},
    "libx265": {"preset": "veryfast", "crf": "18", "x265-params": "log-level=error"},
    "libvpx": {"deadline": "realtime", "cpu-used": "8"},
    "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8"},
    "libsvtav1": {"preset": "6", "crf": "20"},
}


def draw(number: int, width: int, height: int) -> np.ndarray:
    """A moving texture below two rows of black and white blocks: `number` and a check of it.

    Args:
        number: from 0 to 1023; larger ones begin again.
        width: in pixels, 40 or more.
        height: in pixels, 32 or more.

    Returns:
        uint8 [H, W, 3].
    """
    x, y = np.arange(width), np.arange(height)[:, None]
    waves = [np.sin((x + 2 * number) / (5 + c)) + np.cos((y - number) / (4 + c)) for c in range(3)]
    picture = (np.stack(waves, -1) * 50 + 128).astype(np.uint8)
    number %= NUMBERS
    for rows, columns, bit in _blocks(width, height):
        picture[rows, columns] = _LIGHT if _code(number) >> bit & 1 else _DARK
    return picture


def read_number(picture: np.ndarray) -> int | None:
    """The number that `draw` wrote, or None where blocks are grey or contradict each other.

    Args:
        picture: uint8 [H, W, 3], a whole frame, of any size.
    """
    height, width = picture.shape[:2]
    code = 0
    for rows, columns, bit in _blocks(width, height):
        high, wide = (rows.stop - rows.start) // 4, (columns.stop - columns.start) // 4
        middle = picture[rows.start + high : rows.stop - high, columns.start + wide : columns.stop - wide]
        mean = middle.sum() / middle.size  # several times faster than `mean`
        if abs(mean - 128) < _CLEAR:
            return None
        code |= int(mean > 128) << bit
    number = code % NUMBERS
    return number if _code(number) == code else None


@functools.cache
def _blocks(width: int, height: int) -> Sequence[tuple[slice, slice, int]]:
    """Rows, columns and bit of each block."""
    places = [divmod(bit, _BITS) for bit in range(2 * _BITS)]
    return [
        (
            slice(row * height // 4, (row + 1) * height // 4),
            slice(column * width // _BITS, (column + 1) * width // _BITS),
            bit,
        )
        for bit, (row, column) in enumerate(places)
    ]


@functools.lru_cache(maxsize=NUMBERS)
def _code(number: int) -> int:
    """The number and, above it, its check."""
    mirrored = int(f"{number:0{_BITS}b}"[::-1], 2)
    return number | ((mirrored * _MIXER + 5) % NUMBERS) << _BITS


@contextlib.contextmanager
def usual_scheduling() -> Iterator[None]:
    """Takes back the scheduling of this thread after the block.

    SVT-AV1, if root runs it, leaves the thread at the highest real-time priority. The thread, and whatever it
    starts later, would then take the processors from all others.
    """
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)


kept_clips: Path | None = None  # a folder for clips that may be wanted again; the suite sets it


def write_clip(path: str | Path, *args: Any, **keys: Any) -> list[int]:
    """`encode_clip`, or a copy of the clip that was encoded with the same arguments before."""
    path, given = Path(path), inspect.signature(encode_clip).bind("", *args, **keys)
    path.parent.mkdir(parents=True, exist_ok=True)
    if kept_clips is None or "arrange" in keys:
        return encode_clip(path, *args, **keys)
    given.apply_defaults()
    digest = hashlib.blake2b(repr(given.arguments).encode(), digest_size=16).hexdigest()
    hold, kept = given.arguments["hold"], kept_clips / f"{digest}{path.suffix}"
    numbers = [place // hold for place in range(given.arguments["num_frames"])]
    if not kept.exists():
        with atomic_write(kept, sync=False) as partial:
            assert encode_clip(partial, *args, **keys) == numbers
    shutil.copyfile(kept, path)
    return numbers


@usual_scheduling()
def encode_clip(
    path: str | Path,
    num_frames: int = 24,
    size: tuple[int, int] = (80, 48),
    codec: str = "libx264",
    gop: int = 12,
    bframes: int = 0,
    fps: int = 25,
    pix_fmt: str = "yuv420p",
    options: dict[str, str] | None = None,
    container_options: dict[str, str] | None = None,
    rotation: int = 0,
    variable_rate: bool = False,
    audio: bool | float = False,
    matrix: str | None = None,
    first_tick: int = 0,
    cover: bool = False,
    pixel_aspect: str | None = None,
    hold: int = 1,
    pause: tuple[int, int] = (0, 0),
    arrange: Callable[[list[Any]], list[Any]] = list,
) -> list[int]:
    """Writes frames 0, 1, 2, … as drawn by `draw`; with `hold` 2: 0, 0, 1, 1, ….

    Args:
        path: the file; its ending decides the container.
        num_frames: how many frames are encoded.
        size: width and height in pixels.
        codec: an encoder of libav.
        gop: frames between key frames.
        bframes: B-frames between the others, at most.
        fps: frames a second.
        pix_fmt: libav's name of the pixel format; one that begins with `yuvj` has full range.
        options: of the encoder.
        container_options: of the muxer.
        rotation: clockwise, in degrees, as phones write it; mp4 and mov only.
        variable_rate: each frame stays longer than the one before.
        audio: a track of silence: True for one second, or its length in seconds.
        matrix: the colour matrix, "ITU709" and the like, that is used and written down; None is "ITU601" and
            nothing.
        first_tick: timestamp of the first frame, in frames; negative ones need a container that has them.
        pause: the frame before which nothing was recorded, and for how many frames' time.
        cover: a picture goes along as a video stream of its own, as in files of music.
        pixel_aspect: width of a pixel over its height, such as "4/3", for encoder and container.
        hold: how many frames show the same picture, one after the other.
        arrange: what to write of the encoder's packets, which it gets in decoding order.

    Returns:
        The numbers of the frames whose packets were written, in the order they are shown.
    """
    path = Path(path)
    os.environ.setdefault("SVT_LOG", "1")
    options = {**QUIET.get(codec, {}), **(options or {})}
    with av.open(str(path), "w", options=container_options or {}) as container:
        stream = container.add_stream(codec, rate=fps, options=options)
        stream.width, stream.height = size
        stream.pix_fmt = pix_fmt
        stream.codec_context.gop_size = gop
        stream.codec_context.max_b_frames = bframes
        stream.codec_context.thread_count = 1
        if matrix is not None:
            stream.codec_context.colorspace = int(Colorspace[matrix])
        if pix_fmt.startswith("yuvj"):
            stream.codec_context.color_range = int(ColorRange.JPEG)
        if pixel_aspect is not None:
            stream.codec_context.sample_aspect_ratio = Fraction(pixel_aspect)
        picture = _add_cover(container, size) if cover else None
        sound = container.add_stream("aac", rate=16000) if audio else None
        tick_of = [first_tick + n + (n * n // 8 if variable_rate else 0) for n in range(num_frames)]
        tick_of = [tick + (pause[1] if n >= pause[0] else 0) for n, tick in enumerate(tick_of)]
        packets, converter = [], VideoReformatter()
        for number, tick in enumerate(tick_of):
            frame = av.VideoFrame.from_ndarray(draw(number // hold, *size), format="rgb24")
            frame = converter.reformat(frame, format=pix_fmt, dst_colorspace=matrix)
            frame.pts, frame.time_base = tick, Fraction(1, fps)
            packets += stream.encode(frame)
        packets += stream.encode()
        packets = arrange(packets)
        ticks = {round(packet.pts * packet.time_base * fps) for packet in packets}
        container.mux(packets)
        if picture is not None:
            container.mux(picture.encode(av.VideoFrame.from_ndarray(draw(0, *size), format="rgb24")))
        if sound is not None:
            _write_silence(container, sound, float(audio))
    if rotation:
        write_matrix(path, {90: (0, 1, -1, 0), 180: (-1, 0, 0, -1), 270: (0, -1, 1, 0)}[rotation % 360])
    return [place // hold for place, tick in enumerate(tick_of) if tick in ticks]


def packets_of(path: str | Path) -> list[Any]:
    """The packets of a file's video, in decoding order."""
    with av.open(str(path)) as container:
        return [packet for packet in container.demux(video=0) if packet.size]


def zero_packets(path: Path, first: int, last: int) -> bytes:
    """The content of a file, with zeros from the middle of one packet of its video to the end of another.

    x264 writes some bytes more or less for the same pictures, by how its memory lies. So damage at a fixed
    place of a file would strike other packets from time to time, and what is left of a packet behind it
    might look like something else.
    """
    packets, data = packets_of(path), bytearray(path.read_bytes())
    begin, end = packets[first].pos + packets[first].size // 2, packets[last].pos + packets[last].size
    data[begin:end] = bytes(end - begin)
    return bytes(data)


def _add_cover(container: Any, size: tuple[int, int]) -> Any:
    picture = container.add_stream("mjpeg", rate=1)
    picture.width, picture.height = size
    picture.pix_fmt = "yuvj420p"
    picture.disposition = Disposition.attached_pic.value
    return picture


def _write_silence(container: Any, sound: Any, length_sec: float) -> None:
    silence = av.AudioFrame.from_ndarray(
        np.zeros((1, int(16000 * length_sec)), np.float32), format="fltp", layout="mono"
    )
    silence.sample_rate = 16000
    container.mux(sound.encode(silence))
    container.mux(sound.encode())


def write_matrix(path: Path, matrix: Sequence[float]) -> str:
    """Writes a display matrix (a, b, c, d) into the track header of an MP4 or MOV file; returns its path."""
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 44
    for place, value in zip((0, 4, 12, 16), matrix):
        data[at + place : at + place + 4] = round(value * 65536).to_bytes(4, "big", signed=True)
    path.write_bytes(data)
    return str(path)
