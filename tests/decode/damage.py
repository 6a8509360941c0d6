"""Damaged copies of numbered clips, and what reading them gives: in a process of its own, which may die."""

from __future__ import annotations

import io
import resource
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import av
import numpy as np

from paddlevideo_fast.decode import VideoReader, open_video
from paddlevideo_fast.decode.container import LENIENT
from paddlevideo_fast.errors import VideoDecodeError
from tests.support.exact_corpus import write_corpus_clip
from tests.support.isolated import Lost, map_isolated
from tests.support.numbered_clips import read_number

_MEMORY_BYTES = 6 << 30
_MOST_FRAMES = 400
SOURCES = (
    *("h264_b_frames.mp4", "h264_fragments.mp4", "edit_list_start.mp4", "h264_slices.mp4"),
    *("h264_open_gop.mkv", "h264_open_gop.ts", "h264_open_gop.flv", "h264_b_frames.avi"),
    *("hevc_open_gop.mp4", "hevc_open_gop.mkv"),
    *("vp8_hidden.webm", "vp9.webm", "av1_hidden.mkv", "mpeg4_b_frames.avi", "mpeg4_packed_b_frames.avi"),
    *("mpeg2.mpg", "mpeg2.ts", "mjpeg.avi", "wmv2.wmv"),
)


class Verdict(NamedTuple):
    """What reading a damaged file gave.

    Attributes:
        seed: of the damage.
        outcome: "error" and "frames" are right; "unnoticed" are frames with a fault of which libav knows
            nothing either; anything else names a bug.
        unclear: frames given as intact whose number cannot be told.
        replaced: frames that the reader says it replaced.
    """

    seed: int
    outcome: str
    unclear: int = 0
    replaced: int = 0


def write_sources(folder: Path) -> None:
    """Writes the intact files."""
    for name in SOURCES:
        write_corpus_clip(folder, name, num_frames=24)


def damaged(folder: Path, seed: int) -> tuple[str, bytes]:
    """Name and bytes of a source with damage that is a function of `seed`."""
    rng = np.random.default_rng(seed)
    name = SOURCES[seed % len(SOURCES)]
    data = bytearray((folder / name).read_bytes())
    for _ in range(int(rng.integers(1, 3))):
        _DAMAGES[int(rng.integers(len(_DAMAGES)))](data, rng, folder)
    return name, bytes(data)


def _flip(data: bytearray, rng: np.random.Generator, folder: Path) -> None:
    for place in rng.integers(0, len(data), int(rng.integers(1, 20))):
        data[place] ^= 1 << int(rng.integers(8))


def _flip_in_head(data: bytearray, rng: np.random.Generator, folder: Path) -> None:
    for place in rng.integers(0, min(len(data), 2048), int(rng.integers(1, 8))):
        data[place] ^= 1 << int(rng.integers(8))


def _flip_in_tail(data: bytearray, rng: np.random.Generator, folder: Path) -> None:
    for place in rng.integers(max(len(data) - 2048, 0), len(data), int(rng.integers(1, 8))):
        data[place] = int(rng.integers(256))


def _zero(data: bytearray, rng: np.random.Generator, folder: Path) -> None:
    first, stop = _range(data, rng)
    data[first:stop] = bytes(stop - first)


def _noise(data: bytearray, rng: np.random.Generator, folder: Path) -> None:
    first, stop = _range(data, rng)
    data[first:stop] = rng.bytes(stop - first)


def _take_out(data: bytearray, rng: np.random.Generator, folder: Path) -> None:
    first, stop = _range(data, rng)
    del data[first:stop]


def _insert(data: bytearray, rng: np.random.Generator, folder: Path) -> None:
    first, stop = _range(data, rng)
    data[first:first] = rng.bytes(stop - first)


def _cut(data: bytearray, rng: np.random.Generator, folder: Path) -> None:
    del data[int(rng.integers(1, len(data) + 1)) :]


def _swap_head(data: bytearray, rng: np.random.Generator, folder: Path) -> None:
    other = (folder / SOURCES[int(rng.integers(len(SOURCES)))]).read_bytes()
    length = int(rng.integers(16, 1024))
    data[:length] = other[:length]


def _range(data: bytearray, rng: np.random.Generator) -> tuple[int, int]:
    first = int(rng.integers(0, max(len(data) - 1, 1)))
    return first, min(first + int(rng.integers(1, 600)), len(data))


_DAMAGES = (
    *(_flip, _flip, _flip_in_head, _flip_in_tail, _zero, _noise, _take_out, _insert, _cut, _swap_head),
)


def verdict(folder: Path, seed: int, on_corrupt: str) -> Verdict:
    """Reads one damaged file: three frames alone, then all."""
    name, data = damaged(folder, seed)
    path = folder / f"{on_corrupt}_{name}"
    path.write_bytes(data)
    rng = np.random.default_rng(seed)
    try:
        with open_video(path if seed % 2 else data, on_corrupt=on_corrupt) as reader:
            count = min(reader.num_frames, _MOST_FRAMES)
            alone = {int(index): _read_alone(reader, int(index)) for index in rng.integers(0, count, 3)}
            replaced = reader.num_replaced
            frames = reader.read(range(count))
            replaced = reader.num_replaced - replaced
    except VideoDecodeError:
        return Verdict(seed, "error")
    except BaseException as error:
        return Verdict(seed, f"{type(error).__name__}: {error}"[:300])
    numbers = [read_number(frame) for frame in frames]
    fault = _fault(numbers, replaced)
    if not fault and not replaced:
        fault = _difference(alone, frames)
    ways = (True,) if on_corrupt == "raise" else (True, False)
    if fault and any(_libav_agrees(data, numbers, is_strict) for is_strict in ways):
        fault = "unnoticed"
    return Verdict(seed, fault or "frames", numbers.count(None), replaced)


def _read_alone(reader: VideoReader, index: int) -> np.ndarray | None:
    """The frame, or None where it does not decode or was replaced."""
    replaced = reader.num_replaced
    try:
        frame = reader.read([index])[0]
    except VideoDecodeError:
        return None
    return frame if reader.num_replaced == replaced else None


def _difference(alone: dict[int, np.ndarray | None], frames: np.ndarray) -> str | None:
    """Which frame is another one when it is read alone."""
    for index, frame in alone.items():
        numbers = None if frame is None else read_number(frame), read_number(frames[index])
        if None not in numbers and numbers[0] != numbers[1]:
            return f"frame {index} alone and among all: {numbers}"
    return None


def _fault(numbers: Sequence[int | None], replaced: int) -> str | None:
    """What is wrong with the order of frames, of which each was written once, with an ascending number."""
    clear = [number for number in numbers if number is not None]
    if len(clear) - len(set(clear)) > replaced:
        return f"stale frames, {replaced} replaced: {numbers}"
    return None if clear == sorted(clear) else f"out of order: {numbers}"


def _libav_agrees(data: bytes, numbers: Sequence[int | None], is_strict: bool) -> bool:
    """Whether decoding in sequence, or then sorting by timestamps, gives the same fault without a complaint.

    Then the damage is one that nothing tells: a timestamp with other bits, or a picture that says to repeat
    the one before. Unless strict, pictures that do not decode are left out, and the fault may be another.
    """
    shown: list[tuple[int, int | None]] = []
    with av.open(io.BytesIO(data), **LENIENT) as container:
        container.streams.video[0].codec_context.thread_count = 1
        try:
            for packet in container.demux(video=0):
                try:
                    for frame in packet.decode():
                        if is_strict or not frame.is_corrupt:
                            place = len(shown) if frame.pts is None else frame.pts
                            shown.append((place, read_number(frame.to_ndarray(format="rgb24"))))
                        if is_strict and frame.is_corrupt:
                            return False
                except (av.FFmpegError, ValueError):
                    if is_strict:
                        return False
        except (av.FFmpegError, ValueError, IndexError):
            if is_strict:
                return False
    decoded = [number for _, number in shown]
    by_time = [number for _, number in sorted(shown, key=lambda entry: entry[0])]
    if is_strict:
        return list(numbers) in (decoded, by_time)
    return bool(_fault(decoded, 0) or _fault(by_time, 0))


def verdicts_of(folder: Path, seeds: Sequence[int], on_corrupt: str) -> list[Verdict]:
    """Reads many damaged files, each within 10 seconds, in a process that is started anew where it dies."""
    results = map_isolated(partial(_bounded_verdict, folder, on_corrupt), seeds, limit_sec=10)
    return [
        Verdict(seed, found.cause) if isinstance(found, Lost) else found
        for seed, found in zip(seeds, results)
    ]


def _bounded_verdict(folder: Path, on_corrupt: str, seed: int) -> Verdict:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    return verdict(folder, seed, on_corrupt)
