"""Reads videos that are packed as JPEG frames into shards; `packed_format` has the layout."""

from __future__ import annotations

import mmap
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from paddlevideo_fast.decode.image_folder import open_image
from paddlevideo_fast.decode.reader import VideoReader
from paddlevideo_fast.errors import ObjectError, ObjectMissingError, ShardError, VideoDecodeError, cause_of
from paddlevideo_fast.io.lru import LRUCache
from paddlevideo_fast.io.paths import require_regular
from paddlevideo_fast.io.urls import scheme_of
from paddlevideo_fast.sources.packed.packed_format import (
    FRAME,
    Directory,
    FormatError,
    data_path,
    index_path,
    read_directory,
)
from paddlevideo_fast.sources.remote.block_cache import RemoteFile
from paddlevideo_fast.sources.remote.stores import exists, list_folder

# Each map keeps a file handle, of which a process often may have 1024, and a large set has more shards.
_MAX_MAPS = 256
_NUM_OPENED = 16  # shards at a URL at a time: each waits for three answers


# Memory maps by path and size; forked workers share their pages and nothing is copied.
MmapCache: TypeAlias = LRUCache[mmap.mmap]


class LocalBytes:
    """A file that is read through a memory map, as `RemoteFile` is read from a store.

    Args:
        path: of the file.
        maps: those of the whole set.

    Attributes:
        size: in bytes.
        state: what has changed where the file has.

    Raises:
        OSError: it is not there, or is no file.
    """

    def __init__(self, path: str, maps: MmapCache) -> None:
        require_regular(path)
        status = os.stat(path)
        self.size = status.st_size
        self.state = [self.size, status.st_mtime_ns]
        self._path, self._maps = path, maps

    def available(self) -> int:
        """How many bytes can be read now: the file may be cut off while it is in use.

        Raises:
            ShardError: it cannot be read any more.
        """
        mapped = self._map()
        # Touching mapped bytes that were cut off since would end the process, so look at the size first.
        return min(len(mapped), mapped.size())

    def views(self, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """The bytes of each range (offset, size), which must be available."""
        mapped = self._map()
        for offset, size in ranges:
            _announce(mapped, offset, size)
        view = memoryview(mapped)
        return [view[offset : offset + size] for offset, size in ranges]

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> int:
        """Does nothing: they are here."""
        return 0

    def forget(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Does nothing: there is no other source."""

    def _map(self) -> mmap.mmap:
        key = self._path, self.size
        mapped = self._maps.get(key)
        if mapped is None:
            try:
                with open(self._path, "rb") as file:
                    mapped = mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:  # ValueError: shorter than when it was opened
                raise ShardError(f"{self._path}: cannot be read any more: {error}") from error
            if hasattr(mmap, "MADV_RANDOM"):
                mapped.madvise(mmap.MADV_RANDOM)
            self._maps.put(key, mapped)
        return mapped


def open_bytes(path: str, maps: MmapCache) -> LocalBytes | RemoteFile:
    """The bytes of a file, or of an object at a URL; raises `OSError` where it cannot be read."""
    return RemoteFile(path) if scheme_of(path) else LocalBytes(path, maps)


class PackedShard:
    """One shard: some videos, in one data file.

    Opening reads the index without the frame table, and checks it. Frames are read through a memory map; the
    crc32 of each is checked whenever it is read, at a fiftieth of what its decoding costs.

    Args:
        folder: of the set; may be a URL.
        shard: its number.
        maps: of the whole set, so that they are few; None: its own.

    Attributes:
        path: its data file.
        directory: its videos and settings.
        data: the bytes of the data file.

    Raises:
        ShardError: a file is missing, cut off, altered or of another version.
    """

    def __init__(self, folder: str | Path, shard: int, maps: MmapCache | None = None) -> None:
        self.path = data_path(folder, shard)
        self._maps = LRUCache(_MAX_MAPS) if maps is None else maps
        self._index = index_path(folder, shard)
        self._table = self._bytes_of(self._index)
        self.directory = self._read_directory()
        self.data = self._bytes_of(self.path)
        if self.data.size != self.directory.data_size:
            what = "cut off" if self.data.size < self.directory.data_size else "altered"
            sizes = f"it has {self.data.size} bytes, its index says {self.directory.data_size}"
            raise ShardError(f"{self.path}: {what}: {sizes}")

    def __len__(self) -> int:
        return len(self.directory.names)

    def _bytes_of(self, path: str) -> LocalBytes | RemoteFile:
        try:
            return open_bytes(path, self._maps)
        except OSError as error:
            raise ShardError(f"{path}: cannot be read: {error.strerror or error}") from error

    def _read_directory(self) -> Directory:
        try:
            if isinstance(self._table, RemoteFile):
                try:
                    return read_directory(self._table.stream())
                except FormatError:  # perhaps it was altered on its way
                    self._table.forget([(0, self._table.size)])
                    return read_directory(self._table.stream())
            with open(self._index, "rb") as file:
                return read_directory(file)
        except FormatError as error:
            raise ShardError(f"{self._index}: {error}; pack this shard again") from error
        except OSError as error:
            raise ShardError(f"{self._index}: cannot be read: {error.strerror or error}") from error

    def open(self, video: int) -> PackedReader:
        """A reader of video number `video` of this shard."""
        return PackedReader(self, video)

    def entries(self, video: int, frames: list[int]) -> list[tuple[int, int, int]]:
        """(offset, size, crc32) of some frames of a video in the data file, as the table says.

        Raises:
            ShardError: the index cannot be read any more.
            ObjectError: the index is at a URL, and cannot be read any more.
        """
        entry = self.directory.videos[video]
        place = self.directory.frames_offset + int(entry["first_frame"]) * FRAME.itemsize
        size = int(entry["num_frames"]) * FRAME.itemsize
        if self._table.available() < place + size:
            raise ShardError(f"{self._index}: was cut off while it was in use")
        table = np.frombuffer(self._table.views([(place, size)])[0], FRAME)
        return [table[frame].item() for frame in frames]

    def images(self, video: int, frames: list[int]) -> Iterator[memoryview]:
        """The JPEG files of some frames of a video, each checked.

        Raises:
            VideoDecodeError: one is cut off or altered, or cannot be read from its store.
            ShardError: a file of the shard cannot be read any more.
        """
        try:
            entries = self.entries(video, frames)
            end = self.data.available()
            for frame, (offset, size, _) in zip(frames, entries):
                if not 0 < size <= end - offset:
                    raise VideoDecodeError(self.path_of(video), f"frame {frame} is cut off")
            views = self.data.views([(offset, size) for offset, size, _ in entries])
            for frame, (offset, size, crc32), image in zip(frames, entries, views):
                if zlib.crc32(image) != crc32:
                    self.data.forget([(offset, size)])  # a store may have sent something else
                    (image,) = self.data.views([(offset, size)])
                    if zlib.crc32(image) != crc32:
                        cause = f"frame {frame} is altered: its checksum differs"
                        raise VideoDecodeError(self.path_of(video), cause)
                yield image
        except ObjectError as error:
            raise VideoDecodeError(self.path_of(video), error.cause) from None

    def fetch(self, video: int, frames: list[int]) -> int:
        """Has what some frames of a video are read from in the cache; the number of bytes that came.

        Raises:
            VideoDecodeError: they are not to be had.
        """
        try:
            return self.data.fetch([(offset, size) for offset, size, _ in self.entries(video, frames)])
        except (ObjectError, ValueError) as error:  # ValueError: the table says more than the file has
            raise VideoDecodeError(self.path_of(video), cause_of(error)) from None

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
        self._size: tuple[int, int] = (int(entry["width"]), int(entry["height"]))
        self._shard, self._video = shard, video

    def times_sec(self) -> np.ndarray:
        """See `VideoReader`."""
        times_usec = self._shard.directory.times_usec.get(self._video)
        if times_usec is not None:
            return times_usec / 1e6
        return super().times_sec()

    def fetch(self, indices: Sequence[int]) -> int:
        return self._shard.fetch(self._video, list(indices))

    def _decode(self, wanted: list[int]) -> Iterator[tuple[int, Any]]:
        for frame, image in zip(wanted, self._shard.images(self._video, wanted)):
            picture = open_image(image, f"{self.path}: frame {frame}")
            self._check_size(frame, picture.shape[1::-1])  # of a JPEG, before memory is taken for it
            yield frame, picture

    def _check_size(self, frame: int, size: tuple[int, ...]) -> None:
        if size != self._size:
            sizes = "{}×{}, its index says {}×{}".format(*size, *self._size)
            raise VideoDecodeError(self.path, f"frame {frame} has {sizes}")


def is_folder_of_shards(path: str) -> bool:
    """Whether shards lie at a path or URL, and not a list."""
    return exists(index_path(path, 0)) if scheme_of(path) else os.path.isdir(path)


def open_shards(folder: str | Path) -> list[PackedShard]:
    """All shards of a set, in their order.

    Args:
        folder: of the set, or its URL. A store need not list its files: the first shard says how many there
            are.

    Raises:
        ShardError: there is none, one is missing or belongs to another set, or does not open.
        StoreAwayError: the store does not answer.
        StoreAccessError: it refuses.
    """
    maps: MmapCache = LRUCache(_MAX_MAPS)
    if scheme_of(folder):
        shards = [PackedShard(folder, 0, maps)]
        numbers = list(range(shards[0].directory.settings.num_shards))
        with ThreadPoolExecutor(_NUM_OPENED) as threads:
            shards += threads.map(partial(PackedShard, folder, maps=maps), numbers[1:])
    else:
        numbers = shard_numbers(folder)
        if not numbers:
            raise ShardError(f"{folder}: has no packed frames; make them with  paddlevideo-fast data pack")
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


def shard_numbers(folder: str | Path) -> list[int]:
    """Numbers of the shards in a folder that are complete, ascending.

    Raises:
        ShardError: there is no such folder.
    """
    try:
        names = list_folder(str(folder)) if scheme_of(str(folder)) else os.listdir(folder)
    except ObjectMissingError:
        return []
    except OSError as error:
        raise ShardError(f"{folder}: no folder of packed frames: {error.strerror or error}") from error
    pattern = r"(\d{5}|[1-9]\d{5,})\.index"
    return sorted(int(name[: -len(".index")]) for name in names if re.fullmatch(pattern, name))
