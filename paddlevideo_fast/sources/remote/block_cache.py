"""Remote objects by blocks, which a cache on a local disk keeps for all processes of a machine.

    RemoteFile.views([(offset, size), …])  →  blocks of the object  →  cache  →  requests for what it lacks

A block is the bytes `number * block_bytes` and on of one version of one object. `block_folder` keeps them.
Threads of a process that want the same block wait for one request. Two processes may both fetch it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from paddlevideo_fast.io.lru import LRUCache
from paddlevideo_fast.io.urls import shown_url
from paddlevideo_fast.log import get_logger, warn_once
from paddlevideo_fast.sources.remote import stores
from paddlevideo_fast.sources.remote.block_folder import TRAILER, BlockFolder

BLOCK_BYTES = 2**18
_UNKEPT_BLOCKS = 16
_NUM_LOCKS = 256
_BATCH_BLOCKS = 32  # in memory at a time
_RUN_BYTES = 2**23  # of one request
_NUM_THREADS = 32
_MEMORY_BLOCK_BYTES = 2**16
_MEMORY_BLOCKS = 256
_MOST_AHEAD = 16  # blocks

Range = tuple[int, int]  # offset and size in bytes


class RemoteFile(io.RawIOBase):
    """One version of an object, read by blocks; also as a binary file that seeks.

    Args:
        url: of the object.
        known: what `stores.stat` says; None: it is asked.

    Attributes:
        url: of the object.
        state: what has changed where the object has; None: its store does not tell.

    Raises:
        ObjectError: it is not there. Also when it is read, and it is broken or has another version by then.
        StoreAwayError: its store does not answer.
        StoreAccessError: its store refuses.
    """

    def __init__(self, url: str, known: stores.Stat | None = None) -> None:
        super().__init__()
        self.url, self.name = url, shown_url(url)
        self.size, self.version = known or stores.stat(url)
        self.state = [self.size, self.version] if self.version else None
        self._at = 0
        self._last = -2  # the block that was read last
        self._num_ahead = 1
        self._ahead_to = 0

    def stream(self) -> io.BufferedReader:
        """A buffered file of the same version, at its beginning."""
        return io.BufferedReader(RemoteFile(self.url, stores.Stat(self.size, self.version)))

    def available(self) -> int:
        """How many bytes can be read: all of this version, or none."""
        return self.size

    def views(self, ranges: Sequence[Range]) -> list[memoryview]:
        """The bytes of each range, which must lie in the file. Missing neighbours come in one request."""
        blocks = _blocks_of(self)
        got: dict[int, memoryview] = {}
        for batch in _batches(self._numbers(ranges, blocks.block_bytes)):
            got.update(blocks.get(self, batch))
        return [_cut(got, offset, size, blocks.block_bytes) for offset, size in ranges]

    def read_alone(self, offset: int, size: int) -> bytes:
        return stores.read_range(self.url, offset, size, self.version)

    def fetch(self, ranges: Sequence[Range]) -> int:
        """Has the blocks of these ranges in the cache, as far as its bound goes; the bytes that came."""
        blocks = _blocks_of(self)
        return sum(blocks.fetch(self, batch) for batch in _batches(self._numbers(ranges, blocks.block_bytes)))

    def forget(self, ranges: Sequence[Range]) -> None:
        """Takes the blocks of these ranges out of the cache, because what they hold cannot be right."""
        blocks = _blocks_of(self)
        for number in self._numbers(ranges, blocks.block_bytes):
            blocks.forget(self, number)

    def _numbers(self, ranges: Iterable[Range], block_bytes: int) -> list[int]:
        numbers: set[int] = set()
        for offset, size in ranges:
            if offset < 0 or size < 0 or offset + size > self.size:
                raise ValueError(f"{self.name}: bytes {offset} to {offset + size} of {self.size}")
            if size:
                numbers.update(range(offset // block_bytes, (offset + size - 1) // block_bytes + 1))
        return sorted(numbers)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise OSError(errno.EINVAL, "a position before the beginning", self.name)
        self._at = base + offset
        return self._at

    def readinto(self, buffer) -> int:
        """Reads as much as is kept in memory at a time, and more and more ahead where reads follow others."""
        blocks = _blocks_of(self)
        block_bytes = blocks.block_bytes
        number = self._at // block_bytes
        end = min(self._at + len(buffer), self.size, (number + _BATCH_BLOCKS) * block_bytes)
        size = end - self._at
        if size <= 0:
            return 0
        last = (end - 1) // block_bytes
        if last > self._last >= number - 1:
            self._num_ahead = min(self._num_ahead * 2, _MOST_AHEAD)
            if last >= self._ahead_to:
                self._ahead_to = last + self._num_ahead
                end = min(self._ahead_to * block_bytes, self.size)
        elif last != self._last:
            self._num_ahead, self._ahead_to = 1, last + 1
        self._last = last
        got = blocks.get(self, self._numbers([(self._at, end - self._at)], block_bytes))
        buffer[:size] = _cut(got, self._at, size, block_bytes)
        self._at += size
        return size


def use_cache(folder: str | Path | None, max_gb: float = 0.0, block_bytes: int = BLOCK_BYTES) -> None:
    """Where this process, and those that it forks, keep blocks from now on.

    Args:
        folder: of the cache, which may be shared with other processes of the machine; None: some blocks are
            kept in memory and none on disk.
        max_gb: largest size of the cache in 10^9 bytes.
        block_bytes: of a block.
    """
    global _kept
    wanted = (str(folder), int(max_gb * 1e9), block_bytes)
    if folder is None:
        _kept = None
    elif _kept is None or (_kept.on_disk.folder, _kept.on_disk.max_bytes, _kept.block_bytes) != wanted:
        _kept = DiskBlocks(*wanted)


def has_cache() -> bool:
    """Whether blocks are kept on disk."""
    return _kept is not None


class MemoryBlocks:
    """The last blocks that this process has read; small ones, because what lies around is soon forgotten."""

    def __init__(self, block_bytes: int = _MEMORY_BLOCK_BYTES, num_kept: int = _MEMORY_BLOCKS) -> None:
        self.block_bytes = block_bytes
        self._kept: LRUCache[memoryview] = LRUCache(num_kept)
        self.forked()

    def forked(self) -> None:
        """Forgets what threads were fetching: a forked process does not have them."""
        self._locks = [threading.Lock() for _ in range(_NUM_LOCKS)]

    def get(self, file: RemoteFile, numbers: Sequence[int]) -> dict[int, memoryview]:
        """These blocks of a file; those that are not here are fetched."""
        got = {number: view for number in numbers if (view := self._find(file, number)) is not None}
        if len(got) < len(numbers):
            missing = [number for number in numbers if number not in got]
            with self._fetching(file, missing):
                for number in missing:  # another thread may have fetched it meanwhile
                    view = self._find(file, number)
                    if view is not None:
                        got[number] = view
                got.update(self._fetch(file, [number for number in missing if number not in got]))
        return got

    def fetch(self, file: RemoteFile, numbers: Sequence[int]) -> int:
        """Has these blocks here; the bytes that came."""
        missing = [number for number in numbers if not self._touch(file, number)]
        with self._fetching(file, missing):
            missing = [number for number in missing if not self._touch(file, number)]
            return sum(map(len, self._fetch(file, missing).values()))

    def forget(self, file: RemoteFile, number: int) -> None:
        """Has this block here no more."""
        self._kept.pop(self._digest(file, number))

    @contextlib.contextmanager
    def _fetching(self, file: RemoteFile, numbers: Sequence[int]) -> Iterator[None]:
        """Keeps other threads of this process from fetching these blocks."""
        with contextlib.ExitStack() as held:
            # in this order no two threads wait for each other
            for lock in sorted({int(self._digest(file, number)[:2], 16) for number in numbers}):
                held.enter_context(self._locks[lock])
            yield

    def _fetch(self, file: RemoteFile, numbers: Sequence[int]) -> dict[int, memoryview]:
        """Blocks from the store, which are kept from now on."""
        got = {}
        for number, data in _fetched(file, numbers, self.block_bytes):
            got[number] = data
            self._keep(self._digest(file, number), data)
        return got

    def _find(self, file: RemoteFile, number: int) -> memoryview | None:
        """A block that is here."""
        return self._kept.get(self._digest(file, number))

    def _touch(self, file: RemoteFile, number: int) -> bool:
        """Marks a block as used; whether it is here."""
        return self._kept.get(self._digest(file, number)) is not None

    def _keep(self, digest: str, data: memoryview) -> None:
        self._kept.put(digest, data)

    def _digest(self, file: RemoteFile, number: int) -> str:
        what = f"{file.url}\0{file.version}\0{file.size}\0{self.block_bytes}\0{number}"
        return hashlib.blake2b(what.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


class DiskBlocks(MemoryBlocks):
    """The cache on disk; see `block_folder`. What does not get there stays in memory for a moment.

    Args:
        folder: it is made where it is missing.
        max_bytes: of all its blocks.
        block_bytes: of a block.
    """

    def __init__(self, folder: str | Path, max_bytes: int, block_bytes: int = BLOCK_BYTES) -> None:
        super().__init__(block_bytes, _UNKEPT_BLOCKS)
        what = ("blocks of remote files", "fetched", "STORAGE.cache_dir")
        self.on_disk = BlockFolder(str(folder), max_bytes, block_bytes + TRAILER.size, *what)

    def forget(self, file: RemoteFile, number: int) -> None:
        super().forget(file, number)
        self.on_disk.forget(self._digest(file, number))

    def _touch(self, file: RemoteFile, number: int) -> bool:
        return self.on_disk.touch(self._digest(file, number)) or super()._touch(file, number)

    def _find(self, file: RemoteFile, number: int) -> memoryview | None:
        view = self.on_disk.find(self._digest(file, number), _size_of(file, number, self.block_bytes))
        return super()._find(file, number) if view is None else view

    def _keep(self, digest: str, data: memoryview) -> None:
        if not self.on_disk.keep(digest, data):
            super()._keep(digest, data)


def _fetched(file: RemoteFile, numbers: Sequence[int], block_bytes: int) -> Iterator[tuple[int, memoryview]]:
    """Blocks from the store, neighbours in one request and several requests at a time."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1 and (len(runs[-1]) + 1) * block_bytes <= _RUN_BYTES:
            runs[-1].append(number)
        else:
            runs.append([number])

    def read(run: list[int]) -> bytes:
        size = sum(_size_of(file, number, block_bytes) for number in run)
        return stores.read_range(file.url, run[0] * block_bytes, size, file.version)

    for run, data in zip(runs, map(read, runs) if len(runs) == 1 else _threads().map(read, runs)):
        for place, number in enumerate(run):
            yield number, memoryview(data[place * block_bytes : (place + 1) * block_bytes])


def _batches(numbers: list[int]) -> Iterator[list[int]]:
    return (numbers[start : start + _BATCH_BLOCKS] for start in range(0, len(numbers), _BATCH_BLOCKS))


def _cut(blocks: dict[int, memoryview], offset: int, size: int, block_bytes: int) -> memoryview:
    """A range of a file from its blocks; copied only where it lies in several."""
    if not size:
        return memoryview(b"")
    first, last = offset // block_bytes, (offset + size - 1) // block_bytes
    start = offset - first * block_bytes
    if first == last:
        return blocks[first][start : start + size]
    pieces = [blocks[number] for number in range(first, last + 1)]
    pieces[0] = pieces[0][start:]
    pieces[-1] = pieces[-1][: offset + size - last * block_bytes]
    return memoryview(b"".join(pieces))


def _size_of(file: RemoteFile, number: int, block_bytes: int) -> int:
    return min(block_bytes, file.size - number * block_bytes)


def _blocks_of(file: RemoteFile) -> MemoryBlocks:
    if _kept is None or file.version:
        return _memory if _kept is None else _kept
    text = "the store tells neither ETag nor date, so blocks are not kept on disk"
    warn_once(get_logger(), f"{shown_url(file.url)}: {text}")
    return _memory


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(_NUM_THREADS, "blocks")
    return _pool


def _renew() -> None:
    """A forked process has no threads of its parent."""
    global _pool
    _pool = None
    for blocks in (_memory, _kept):
        if blocks is not None:
            blocks.forked()


_pool: ThreadPoolExecutor | None = None
_memory = MemoryBlocks()
_kept: DiskBlocks | None = None
os.register_at_fork(after_in_child=_renew)
