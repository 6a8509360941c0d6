"""How packed frames lie on disk.

A packed data set is a folder of shards, and a shard is two files. All numbers are little-endian.

    00003.data    the JPEG files of the frames, one after the other, video after video
    00003.index   where they lie

        offset 0       header       HEADER, 96 bytes
        96             videos       num_videos × VIDEO, 32 bytes each
                       text         UTF-8 JSON {"names": [...], "failures": [[name, cause], ...]}, and
                                    "times_usec": {"number of a video": [time of each frame], ...} for
                                    videos whose frame rate varies
                       (zeros up to a multiple of 16)
        frames_offset  frames       num_frames × FRAME, 16 bytes each, up to the end of the file

    videos[v].first_frame = f, .num_frames = n        data
        frames[f]          offset, size, crc32   →    [ JPEG of frame 0     ]
        frames[f + 1]      offset, size, crc32   →    [ JPEG of frame 1     ]
        …                                             …
        frames[f + n - 1]  offset, size, crc32   →    [ JPEG of frame n - 1 ]

The header's crc32 covers everything from the byte after it to the frame table: it is checked when a shard is
opened, which therefore costs by the video and not by the frame. The frame table needs no checksum of its own:
an entry that is wrong leads to bytes with another crc32, and that of a frame is checked whenever it is read.
A right checksum is no reason to believe a number: a program may have written it. Each number is compared with
the file before it is used.

The index is written last and in one piece, so a shard that has one is complete. Its header has the number of
shards of the whole set, so a set that lacks one is noticed.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from paddlevideo_fast.io.files import atomic_write_all

MAGIC = b"PVFPACKD"
VERSION = 1

HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("crc32", "<u4"),  # of the bytes from 16 to frames_offset
        ("shard", "<u4"),  # number of this shard, from 0
        ("num_shards", "<u4"),
        ("num_videos", "<u8"),
        ("num_frames", "<u8"),
        ("frames_offset", "<u8"),  # in the index
        ("data_size", "<u8"),  # bytes of the data file
        ("short_side", "<u4"),  # pixels; 0: as the source
        ("quality", "<u4"),  # of the frames that were encoded, 1 to 100
        ("plan", "V16"),  # digest of what the shard was made from
        ("reserved", "V16"),
    ]
)
VIDEO = np.dtype(
    [
        ("first_frame", "<u8"),  # in the frame table
        ("num_frames", "<u4"),
        ("width", "<u2"),
        ("height", "<u2"),
        ("label", "<i8"),  # -1: only the list of the set says it
        ("fps", "<f8"),  # 0: unknown
    ]
)
FRAME = np.dtype([("offset", "<u8"), ("size", "<u4"), ("crc32", "<u4")])

_CRC_FROM = 16
_MAX_DIRECTORY = 2**28  # bytes: names of two million videos
_MAX_FPS = 1e9


def index_path(folder: str | Path, shard: int) -> str:
    """The index of shard number `shard`."""
    return os.path.join(folder, f"{shard:05d}.index")


def data_path(folder: str | Path, shard: int) -> str:
    """The data file of shard number `shard`."""
    return os.path.join(folder, f"{shard:05d}.data")


@dataclass(frozen=True)
class PackSettings:
    """What a shard is made with.

    Attributes:
        shard: its number, from 0.
        num_shards: of the set.
        short_side: longest allowed short side of a stored frame in pixels; 0: as the source.
        quality: of the JPEG files, 1 to 100.
        plan: 16 bytes, a digest of the sources and settings; a shard with the same digest is up to date.
    """

    shard: int
    num_shards: int
    short_side: int
    quality: int
    plan: bytes


@dataclass(frozen=True)
class Directory:
    """An index without its frame table.

    Attributes:
        settings: of the shard.
        videos: [num_videos] VIDEO.
        names: of the videos, as the list had them.
        failures: (name, cause) of those that could not be packed.
        num_frames: entries of the frame table.
        frames_offset: where it begins in the index.
        data_size: bytes of the data file.
        times_usec: number of a video whose frame rate varies → time of each frame in microseconds.
    """

    settings: PackSettings
    videos: np.ndarray
    names: list[str]
    failures: list[tuple[str, str]]
    num_frames: int
    frames_offset: int
    data_size: int
    times_usec: Mapping[int, np.ndarray]


class FormatError(ValueError):
    """Bytes that are no index, or not this version's; the message says why."""


def read_directory(index: BinaryIO) -> Directory:
    """Reads and checks an index up to its frame table.

    Args:
        index: the open file, at its beginning.

    Raises:
        FormatError: it is no index, of another version, cut off or altered, or it contradicts itself.
    """
    start = index.read(HEADER.itemsize)
    if start[: len(MAGIC)] != MAGIC:
        raise FormatError("is no index of packed frames" if start else "is empty")
    if len(start) < HEADER.itemsize:
        raise FormatError("is cut off")
    header = np.frombuffer(start, HEADER)[0]
    if header["version"] != VERSION:
        raise FormatError(f"has version {header['version']} of the format, and this program reads {VERSION}")
    frames_offset, num_frames = int(header["frames_offset"]), int(header["num_frames"])
    size = index.seek(0, os.SEEK_END)
    if size != frames_offset + num_frames * FRAME.itemsize or frames_offset < HEADER.itemsize:
        raise FormatError(f"is cut off or altered: it has {size} bytes")
    if frames_offset > _MAX_DIRECTORY:
        raise FormatError(f"has {frames_offset} bytes of names, at most {_MAX_DIRECTORY} are read")
    index.seek(HEADER.itemsize)
    rest = index.read(frames_offset - HEADER.itemsize)
    if zlib.crc32(start[_CRC_FROM:] + rest) != header["crc32"]:
        raise FormatError("is altered: its checksum differs")
    num_videos = int(header["num_videos"])
    if num_videos * VIDEO.itemsize > len(rest):
        raise FormatError(f"is wrong: it has no room for {num_videos} videos")
    videos = np.frombuffer(rest, VIDEO, num_videos)
    _check_videos(videos, num_frames)
    names, failures, times_usec = _read_text(rest[videos.nbytes :], videos["num_frames"])
    if len(names) != num_videos:
        raise FormatError(f"is wrong: it names {len(names)} videos and has {num_videos}")
    numbers = {name: int(header[name]) for name in ("shard", "num_shards", "short_side", "quality")}
    settings = PackSettings(plan=header["plan"].tobytes(), **numbers)
    if settings.shard >= settings.num_shards or not 1 <= settings.quality <= 100:
        raise FormatError(
            f"is wrong: shard {settings.shard} of {settings.num_shards}, quality {settings.quality}"
        )
    data_size = int(header["data_size"])
    return Directory(settings, videos, names, failures, num_frames, frames_offset, data_size, times_usec)


def _check_videos(videos: np.ndarray, num_frames: int) -> None:
    """Checks that the videos share the frame table as the writer shares it out: one after the other."""
    counts = videos["num_frames"].astype(np.uint64)  # of 32 bits each: no sum of a file's overflows
    ends = np.cumsum(counts)
    right = {
        "first_frame": videos["first_frame"] == ends - counts,
        "num_frames": (counts > 0) & (ends <= num_frames),
        "width": videos["width"] > 0,
        "height": videos["height"] > 0,
        "label": videos["label"] >= -1,
        "fps": (videos["fps"] >= 0) & (videos["fps"] <= _MAX_FPS),  # and no NaN
    }
    for name, fits in right.items():
        if not fits.all():
            video = int(np.argmin(fits))
            raise FormatError(f"is wrong: video {video} has {name} {videos[name][video]}")
    if int(ends[-1] if len(ends) else 0) != num_frames:
        raise FormatError(f"is wrong: its videos have fewer than its {num_frames} frames")


def _read_text(
    text: bytes, counts: np.ndarray
) -> tuple[list[str], list[tuple[str, str]], dict[int, np.ndarray]]:
    """Names, the failures as pairs, and the times of videos, which have `counts` frames."""
    try:
        content = json.loads(text.rstrip(b"\0"))
        names, failures = content["names"], [(name, cause) for name, cause in content["failures"]]
        listed = content.get("times_usec", {}).items()
        times = {int(video): np.array(values, np.int64) for video, values in listed}
        if (
            isinstance(names, list)
            and all(isinstance(word, str) for word in itertools.chain(names, *failures))
            and all(_are_times(values, counts[video]) for video, values in times.items())
        ):
            return names, failures, times
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError):
        pass
    raise FormatError("is wrong: its names cannot be read")


def _are_times(values: np.ndarray, count: int) -> bool:
    return values.shape == (count,) and values[0] == 0 and bool((np.diff(values) >= 0).all())


class ShardWriter:
    """Writes one shard; it counts as there when the `with` block ends without an exception, and not before.

    A shard of the same number is replaced.

    Args:
        folder: of the set; it is made where it is missing.
        settings: number, size and quality.

    Example:
        with ShardWriter(folder, settings) as shard:
            shard.add("walk/0.mp4", 3, 25.0, (340, 256), jpeg_files)
    """

    def __init__(self, folder: str | Path, settings: PackSettings) -> None:
        self._settings = settings
        self._index = index_path(folder, settings.shard)
        self._data = data_path(folder, settings.shard)
        self._videos: list[tuple[int, int, int, int, int, float]] = []
        self._names: list[str] = []
        self._failures: list[tuple[str, str]] = []
        self._frames: list[tuple[int, int, int]] = []
        self._times_usec: dict[int, list[int]] = {}
        self._num_bytes = 0

    def __enter__(self) -> ShardWriter:
        self._both = atomic_write_all(self._data, self._index)  # a data file without an index is no shard
        data, self._partial_index = self._both.__enter__()
        self._file = open(data, "wb")  # until the block ends
        return self

    def add(
        self,
        name: str,
        label: int,
        fps: float,
        size: tuple[int, int],
        images: Iterable[bytes],
        times_usec: Sequence[int] | None = None,
    ) -> None:
        """Adds a video. Where `images` raises, nothing of the video stays, and the writer goes on.

        Args:
            name: what the list calls it.
            label: number of its class; -1: only the list says it.
            fps: frames a second; 0.0 where unknown.
            size: (width, height) of the frames in pixels.
            images: the JPEG file of each frame.
            times_usec: when each is shown, from 0 on, in microseconds; None: at regular distances.
        """
        first_byte, first_frame = self._num_bytes, len(self._frames)
        try:
            for image in images:
                self._file.write(image)
                self._frames.append((self._num_bytes, len(image), zlib.crc32(image)))
                self._num_bytes += len(image)
            if len(self._frames) == first_frame:
                raise ValueError(f"{name}: there are no frames to pack")
        except BaseException:
            self._file.seek(first_byte)
            self._file.truncate()
            self._num_bytes = first_byte
            del self._frames[first_frame:]
            raise
        if times_usec is not None:
            self._times_usec[len(self._videos)] = list(times_usec)
        self._videos.append((first_frame, len(self._frames) - first_frame, *size, label, fps))
        self._names.append(name)

    def add_failure(self, name: str, cause: str) -> None:
        """Notes a video that could not be packed."""
        self._failures.append((name, cause))

    def __exit__(self, *exc_info: Any) -> None:
        try:
            self._file.close()
            if exc_info[0] is None:
                self._partial_index.write_bytes(self._encoded_index())
        except BaseException:
            exc_info = sys.exc_info()
            raise
        finally:  # gives both files their names, or takes them away
            self._both.__exit__(*exc_info)

    def _encoded_index(self) -> bytes:
        content: dict[str, Any] = {"names": self._names, "failures": self._failures}
        if self._times_usec:
            content["times_usec"] = {str(video): times for video, times in self._times_usec.items()}
        videos, frames = np.array(self._videos, VIDEO), np.array(self._frames, FRAME)
        text = json.dumps(content).encode()
        text += bytes(-(HEADER.itemsize + videos.nbytes + len(text)) % FRAME.itemsize)
        header = np.zeros((), HEADER)
        header["magic"], header["version"] = MAGIC, VERSION
        for name in ("shard", "num_shards", "short_side", "quality"):
            header[name] = getattr(self._settings, name)
        header["plan"] = np.void(self._settings.plan)
        header["num_videos"], header["num_frames"] = len(videos), len(frames)
        header["frames_offset"] = HEADER.itemsize + videos.nbytes + len(text)
        header["data_size"] = self._num_bytes
        directory = header.tobytes()[_CRC_FROM:] + videos.tobytes() + text
        header["crc32"] = zlib.crc32(directory)
        return header.tobytes()[:_CRC_FROM] + directory + frames.tobytes()
