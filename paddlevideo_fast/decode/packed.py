"""Reads videos that are packed as JPEG frames into shards; `packed_format` has the layout."""

from __future__ import annotations

import mmap
import os
import re
import zlib
from collections import deque
from functools import lru_cache
from pathlib import Path
from typing import Callable, Iterator, List, Optional, Tuple, Union

import numpy as np

from paddlevideo_fast.decode.frames import decode_image, jpeg_size
from paddlevideo_fast.decode.packed_format import (
    FRAME,
    Directory,
    FormatError,
    data_path,
    index_path,
    read_directory,
)
from paddlevideo_fast.decode.reader import VideoReader
from paddlevideo_fast.errors import ShardError, VideoDecodeError
from paddlevideo_fast.files import require_regular

# Each map keeps a file handle, of which a process often may have 1024, and a large set has more shards.
_MAX_MAPS = 256


class Maps:
    """Memory maps of files, the ones used last; forked workers share their pages and nothing is copied.

    A copy in a spawned process starts empty.
    """

    def __init__(self) -> None:
        self.get: Callable[[str, int], mmap.mmap] = lru_cache(maxsize=_MAX_MAPS)(_map)

    def __reduce__(self) -> Tuple[type, Tuple[()]]:
        return Maps, ()


def _map(path: str, size: int) -> mmap.mmap:
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    if hasattr(mmap, "MADV_RANDOM"):
        mapped.madvise(mmap.MADV_RANDOM)
    return mapped


class PackedShard:
    """One shard: some videos, in one data file.

    Opening reads the index without the frame table, and checks it. Frames are read through a memory map; the
    crc32 of each is checked whenever it is read, at a fiftieth of what its decoding costs.

    Args:
        folder: of the set.
        shard: its number.
        maps: of the whole set, so that they are few; None: its own.

    Attributes:
        path: its data file.
        directory: its videos and settings.

    Raises:
        ShardError: a file is missing, cut off, altered or of another version.
    """

    def __init__(self, folder: Union[str, Path], shard: int, maps: Optional[Maps] = None) -> None:
        self.path = data_path(folder, shard)
        self._maps = maps or Maps()
        self._index = index_path(folder, shard)
        self.directory = self._read_directory()
        self._check_data(self.directory.data_size)

    def __len__(self) -> int:
        return len(self.directory.names)

    def _read_directory(self) -> Directory:
        try:
            require_regular(self._index)
            with open(self._index, "rb") as file:
                return read_directory(file)
        except FormatError as error:
            raise ShardError(f"{self._index}: {error}; pack this shard again") from error
        except OSError as error:
            raise ShardError(f"{self._index}: cannot be read: {error.strerror or error}") from error

    def _check_data(self, expected: int) -> None:
        try:
            size = os.path.getsize(self.path)
        except OSError as error:
            raise ShardError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        if size != expected:
            what = "cut off" if size < expected else "altered"
            raise ShardError(f"{self.path}: {what}: it has {size} bytes, its index says {expected}")

    def open(self, video: int) -> PackedReader:
        """A reader of video number `video` of this shard."""
        return PackedReader(self, video)

    def images(self, video: int, frames: List[int]) -> Iterator[memoryview]:
        """The JPEG files of some frames of a video, in the map, each checked.

        Raises:
            VideoDecodeError: one is cut off or altered.
            ShardError: a file of the shard cannot be read any more.
        """
        first = int(self.directory.videos[video]["first_frame"])
        try:
            index = self._maps.get(self._index, self.directory.index_size)
            data = self._maps.get(self.path, self.directory.data_size)
        except (OSError, ValueError) as error:  # ValueError: shorter than when it was opened
            raise ShardError(f"{self.path}: cannot be read any more: {error}") from error
        # Touching mapped bytes that were cut off since would end the process, so look at the sizes first.
        if index.size() < len(index):
            raise ShardError(f"{self._index}: was cut off while it was in use")
        end = min(len(data), data.size())
        table = np.frombuffer(index, FRAME, self.directory.num_frames, self.directory.frames_offset)
        entries = [(frame, *table[first + frame].item()) for frame in frames]
        for frame, offset, size, _ in entries:
            if not 0 < size <= end - offset:
                raise VideoDecodeError(self.path_of(video), f"frame {frame} is cut off")
            _announce(data, offset, size)
        view = memoryview(data)
        for frame, offset, size, crc32 in entries:
            image = view[offset : offset + size]
            if zlib.crc32(image) != crc32:
                raise VideoDecodeError(self.path_of(video), f"frame {frame} is altered: its checksum differs")
            yield image

    def faults(self) -> Iterator[VideoDecodeError]:
        """Reads every frame, and yields an error for each that is cut off or altered.

        Raises:
            ShardError: a file of the shard cannot be read any more.
        """
        for video, entry in enumerate(self.directory.videos):
            for frame in range(int(entry["num_frames"])):
                try:
                    deque(self.images(video, [frame]), maxlen=0)
                except VideoDecodeError as error:
                    yield error

    def path_of(self, video: int) -> str:
        """Shard and name of a video, for messages."""
        return f"{self.path}:{self.directory.names[video]}"


def _announce(data: mmap.mmap, offset: int, size: int) -> None:
    """Has the kernel read a frame ahead, where it is not in memory, and nothing around it.

    Without it each page of a frame is a read of its own, eight times slower; without MADV_RANDOM a page
    brings along a lot that nobody wants.
    """
    if hasattr(mmap, "MADV_WILLNEED"):
        start = offset - offset % mmap.PAGESIZE
        data.madvise(mmap.MADV_WILLNEED, start, offset + size - start)


class PackedReader(VideoReader):
    """Reads a video of a shard.

    Args:
        shard: the shard.
        video: number of the video in it.
    """

    def __init__(self, shard: PackedShard, video: int) -> None:
        entry = shard.directory.videos[video]
        self.path = shard.path_of(video)
        self.num_frames = int(entry["num_frames"])
        self.avg_fps = float(entry["fps"])
        self._size: Tuple[int, int] = (int(entry["width"]), int(entry["height"]))
        self._shard, self._video = shard, video

    def times_sec(self) -> np.ndarray:
        """See `VideoReader`."""
        times_usec = self._shard.directory.times_usec.get(self._video)
        if times_usec is not None:
            return times_usec / 1e6
        return np.arange(self.num_frames) / self.avg_fps if self.avg_fps else super().times_sec()

    def _decode(self, wanted: List[int]) -> Iterator[Tuple[int, np.ndarray]]:
        for frame, image in zip(wanted, self._shard.images(self._video, wanted)):
            self._check_size(frame, jpeg_size(image) or self._size)  # before memory is taken for it
            picture = decode_image(image, f"{self.path}: frame {frame}")
            self._check_size(frame, picture.shape[1::-1])
            yield frame, picture

    def _check_size(self, frame: int, size: Tuple[int, ...]) -> None:
        if size != self._size:
            sizes = "{}×{}, its index says {}×{}".format(*size, *self._size)
            raise VideoDecodeError(self.path, f"frame {frame} has {sizes}")


def open_shards(folder: Union[str, Path]) -> List[PackedShard]:
    """All shards of a set, in their order.

    Raises:
        ShardError: there is none, one is missing or belongs to another set, or does not open.
    """
    numbers = shard_numbers(folder)
    if not numbers:
        raise ShardError(f"{folder}: has no packed frames; make them with  paddlevideo-fast data pack")
    maps = Maps()
    shards = [PackedShard(folder, number, maps) for number in numbers]
    for number, shard in zip(numbers, shards):
        settings = shard.directory.settings
        if settings.shard != number:
            raise ShardError(f"{shard.path}: was packed as number {settings.shard} of its set")
        if settings.num_shards != shards[0].directory.settings.num_shards:
            raise ShardError(f"{folder}: {shards[0].path} and {shard.path} belong to different sets")
    num_shards = shards[0].directory.settings.num_shards
    if len(numbers) < num_shards:
        first = next((place for place, number in enumerate(numbers) if number != place), len(numbers))
        raise ShardError(
            f"{folder}: {num_shards - len(numbers)} of {num_shards} shards are missing, the first one is "
            f"{data_path(folder, first)}; run  paddlevideo-fast data pack  again to go on"
        )
    return shards


def shard_numbers(folder: Union[str, Path]) -> List[int]:
    """Numbers of the shards in a folder that are complete, ascending.

    Raises:
        ShardError: there is no such folder.
    """
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise ShardError(f"{folder}: no folder of packed frames: {error.strerror or error}") from error
    pattern = r"(\d{5}|[1-9]\d{5,})\.index"
    return sorted(int(name[: -len(".index")]) for name in names if re.fullmatch(pattern, name))
