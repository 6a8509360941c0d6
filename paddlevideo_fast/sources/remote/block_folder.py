"""A bounded cache of blocks of bytes in a folder, which all processes of a machine share.

    blocks                   a file of as many bytes as the folder has units; each new block adds its own
    4f/4f12…                 a block: its bytes, then TRAILER; it is written aside and renamed

- The process whose block fills the cache looks at the folder and evicts blocks, under a flock on `blocks`. So
  the bound may overshoot by what is in flight: a block of each process that writes meanwhile.
- Nothing wrong is served: a trailer holds a checksum of the bytes and of what they are, and each process
  checks it when it opens a block for the first time. Blocks are read through maps, which stay whole if the
  file goes.
- The blocks that were used least recently go first; the time of a file is when it was last used.
- Where a folder cannot be written or its disk is full, nothing is kept for a while, after one warning.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from paddlevideo_fast.log import get_logger, warn_once

TRAILER = struct.Struct("<16sI")  # digest of what it is; crc32 of the bytes and of the digest
_BLOCKS = "blocks"
_PART = ".part"
_PART_SEC = 3600.0  # no block takes so long to write
_MAX_CHECKED = 2**17
_TOUCH_SEC = 5.0  # a block in use is marked so that often
_FULL_SEC = 60.0  # then a full disk is tried again


@dataclass(eq=False)
class BlockFolder:
    """Keeps blocks by the digest of what they are; see the module.

    Args:
        folder: it is made where it is missing.
        max_bytes: of all its blocks.
        unit_bytes: blocks are counted in units of this size, trailers included; a part of one counts as one.
        what: the blocks, for warnings.
        verb: where a block comes from that is not here, for warnings: "fetched".
        key: the setting that chose the folder, for warnings.
        when_full: a warning for the process that first evicts blocks; "": none.
    """

    folder: str
    max_bytes: int
    unit_bytes: int
    what: str
    verb: str
    key: str
    when_full: str = ""

    def __post_init__(self) -> None:
        self._checked: set[str] = set()
        self._full_until = float("-inf")
        self._count(0)

    @property
    def is_writable(self) -> bool:
        """Whether blocks are kept, as far as the last try says."""
        return time.monotonic() >= self._full_until

    def find(self, digest: str, size: int | None = None) -> memoryview | None:
        """A block that is here, through a map.

        Args:
            digest: of what it is: 32 hexadecimal digits.
            size: its bytes; None: as many as there are.
        """
        try:
            with open(self._path(digest), "rb", buffering=0) as opened:
                used_at = os.fstat(opened.fileno()).st_mtime
                mapped = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError):  # ValueError: it is empty
            return None
        size = max(len(mapped) - TRAILER.size, 0) if size is None else size
        if not self._is_right(mapped, digest, size):
            warn_once(get_logger(), f"{self.folder}: holds altered blocks; they are {self.verb} again")
            self.forget(digest)
            return None
        if abs(time.time() - used_at) > _TOUCH_SEC:
            self.touch(digest)
        return mapped[:size]

    def touch(self, digest: str) -> bool:
        """Marks a block as used; whether it is here."""
        try:
            os.utime(self._path(digest))
        except OSError:
            return False
        return True

    def forget(self, digest: str) -> None:
        """Has this block here no more."""
        self._checked.discard(digest)
        with contextlib.suppress(OSError):
            os.unlink(self._path(digest))

    def keep(self, digest: str, data: bytes | memoryview) -> bool:
        """Writes a block; whether it is here now."""
        if not self.is_writable:
            return False
        path, named = self._path(digest), bytes.fromhex(digest)
        partial = f"{path}.{os.getpid()}.{threading.get_ident()}{_PART}"
        try:
            with _created(partial) as file:
                file.write(data)
                file.write(TRAILER.pack(named, zlib.crc32(named, zlib.crc32(data))))
            os.replace(partial, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(partial)
            self._give_up(error)
            return False
        self._count(-(-(len(data) + TRAILER.size) // self.unit_bytes))
        return True

    def _is_right(self, mapped: memoryview, digest: str, size: int) -> bool:
        """Whether the file of a block holds what it should; its checksum is compared once."""
        if len(mapped) != size + TRAILER.size:
            return False
        named, crc32 = TRAILER.unpack(mapped[size:])
        if digest not in self._checked and zlib.crc32(mapped[: size + len(named)]) != crc32:
            return False
        if len(self._checked) > _MAX_CHECKED:
            self._checked.clear()
        self._checked.add(digest)
        return bool(named.hex() == digest)

    def _count(self, num_new: int) -> None:
        """Counts new units, and evicts where the folder may be full; at first, where nothing was counted."""
        try:
            if not num_new:
                os.makedirs(self.folder, exist_ok=True)
            with open(os.path.join(self.folder, _BLOCKS), "ab", buffering=0) as file:
                file.write(bytes(num_new))
                if self._may_be_full(file):
                    fcntl.flock(file, fcntl.LOCK_EX)
                    if self._may_be_full(file):  # no other process has evicted meanwhile
                        num_before = os.fstat(file.fileno()).st_size
                        num_left = self.evict() // self.unit_bytes
                        file.truncate(num_left + os.fstat(file.fileno()).st_size - num_before)
        except OSError as error:
            self._give_up(error)

    def _may_be_full(self, counted: BinaryIO) -> bool:
        num_units = os.fstat(counted.fileno()).st_size
        return not num_units or num_units * self.unit_bytes > self.max_bytes

    def evict(self) -> int:
        """Removes the blocks used least recently where they are too many; the bytes that stay.

        A sixteenth of the cache goes at a time, because to look at all blocks takes long.
        """
        files: list[tuple[int, int, str]] = []
        oldest_part_ns = time.time_ns() - int(_PART_SEC * 1e9)
        for entry in _entries(self.folder):
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat()
                if not entry.name.endswith(_PART):
                    files.append((status.st_mtime_ns, status.st_size, entry.path))
                elif status.st_mtime_ns < oldest_part_ns:  # of a process that was killed
                    os.unlink(entry.path)
        total = sum(size for _, size, _ in files)
        is_full = total > self.max_bytes
        if is_full and self.when_full:
            warn_once(get_logger(), f"{self.folder}: is full: {self.when_full}")
        for _, size, path in sorted(files) if is_full else ():
            if total <= self.max_bytes - self.max_bytes // 16:
                break
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            total -= size
        return total

    def _give_up(self, error: OSError) -> None:
        """Keeps no more blocks for a while."""
        self._full_until = time.monotonic() + _FULL_SEC
        text = f"{self.what} are {self.verb} and not kept: {error.strerror or error}"
        warn_once(get_logger(), f"{self.folder}: {text}; free its disk, or choose another {self.key}")

    def _path(self, digest: str) -> str:
        return f"{self.folder}/{digest[:2]}/{digest}"


def _created(path: str) -> BinaryIO:
    """A new file, and its folder where that is missing."""
    try:
        return open(path, "wb")
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return open(path, "wb")


def _entries(folder: str) -> Iterator[os.DirEntry]:
    """The files of blocks."""
    with os.scandir(folder) as parts:
        for part in parts:
            if len(part.name) == 2 and part.is_dir():
                with os.scandir(part.path) as entries:
                    yield from entries
