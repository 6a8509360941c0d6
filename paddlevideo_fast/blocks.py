"""Remote objects by blocks, which a cache on a local disk keeps for all processes of a machine.

    RemoteFile.views([(offset, size), …])  →  blocks of the object  →  cache  →  requests for what it lacks

A block is the bytes `number * block_bytes` and on of one version of one object. The cache is a folder:

    ledger                   who may write (flock), and how many bytes are taken
    4f/4f12…                 a block: its bytes, then TRAILER; it appears whole, by a rename
    4f/4f12….part            one that is being fetched; its process holds a flock on it

- The bound holds whatever is killed: the bytes of a block are added to the ledger before its file is made,
  and the file has its full size from the start. So the ledger is never too low. What a killed process has
  left is found by the next count of the folder, which comes before blocks are given up.
- Nothing wrong is served: a trailer holds a checksum of the bytes and of what they are, and each process
  checks it when it opens a block for the first time. Afterwards blocks are read through maps, which stay
  whole if the file goes.
- A block that another process is fetching is waited for, so each byte comes once. A process that dies loses
  its flock, and another one fetches its blocks.
- The blocks that were used least recently go first; the time of a file is when it was last used.
- Where a folder cannot be written or its disk is full, blocks are fetched and not kept, after one warning.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import mmap
import os
import secrets
import struct
import time
import zlib
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, Optional, Protocol, Sequence, Set, Tuple, Union

from paddlevideo_fast import storage
from paddlevideo_fast.log import get_logger, warn_once

BLOCK_BYTES = 2**18
TRAILER = struct.Struct("<16s8sI")  # digest of what it is; random; crc32 of the bytes and of both
_LEDGER = struct.Struct("<8s16sQdI")  # magic; which boot of the machine; bytes taken; full since; crc32
_MAGIC = b"PVFBLOCK"
_MAX_MAPS = 256  # of a process
_UNKEPT_BLOCKS = 16
_MAX_CHECKED = 2**17
_TOUCH_SEC = 5.0  # a block in use is marked so that often
_LOCK_SEC = 30.0  # a count of a million blocks takes a few seconds
_FULL_SEC = 60.0  # then a full disk is tried again
_POLL_SEC = 0.01
_BATCH_BLOCKS = 32  # in memory at a time
_RUN_BYTES = 2**23  # of one request
_NUM_THREADS = 32
_MEMORY_BLOCK_BYTES = 2**16
_MEMORY_BLOCKS = 256
_MOST_AHEAD = 16  # blocks

Range = Tuple[int, int]  # offset and size in bytes


class Blocks(Protocol):
    """Where the blocks of objects are kept."""

    block_bytes: int

    def get(self, file: RemoteFile, numbers: Sequence[int]) -> Dict[int, memoryview]:
        """These blocks of a file; those that are not here are fetched."""

    def fetch(self, file: RemoteFile, numbers: Sequence[int]) -> int:
        """Has these blocks here, unless another process is about to; the bytes that came."""

    def forget(self, file: RemoteFile, number: int) -> None:
        """Has this block here no more."""


class RemoteFile(io.RawIOBase):
    """One version of an object, read by blocks; also as a binary file that seeks.

    Args:
        url: of the object.
        known: what `storage.stat` says; None: it is asked.

    Attributes:
        url: of the object.
        size: in bytes.
        version: of the object.

    Raises:
        ObjectError: it is not there. Also when it is read, and it is broken or has another version by then.
        StoreAwayError: its store does not answer.
        StoreAccessError: its store refuses.
    """

    def __init__(self, url: str, known: Optional[storage.Stat] = None) -> None:
        super().__init__()
        self.url = url
        self.size, self.version = known or storage.stat(url)
        self._at = 0
        self._last = -2  # the block that was read last
        self._num_ahead = 1
        self._ahead_to = 0

    @property
    def name(self) -> str:
        """The URL, without what is secret in it."""
        return storage.shown_url(self.url)

    def stream(self) -> io.BufferedReader:
        """A buffered file of the same version, at its beginning."""
        return io.BufferedReader(RemoteFile(self.url, storage.Stat(self.size, self.version)))

    def available(self) -> int:
        """How many bytes can be read: all of this version, or none."""
        return self.size

    def views(self, ranges: Sequence[Range]) -> List[memoryview]:
        """The bytes of each range, which must lie in the file. Missing neighbours come in one request."""
        blocks = _blocks_of(self)
        got: Dict[int, memoryview] = {}
        numbers = self._numbers(ranges, blocks.block_bytes)
        for start in range(0, len(numbers), _BATCH_BLOCKS):
            got.update(blocks.get(self, numbers[start : start + _BATCH_BLOCKS]))
        return [_cut(got, offset, size, blocks.block_bytes) for offset, size in ranges]

    def fetch(self, ranges: Sequence[Range]) -> int:
        """Has the blocks of these ranges in the cache, as far as its bound goes; the bytes that came."""
        blocks = _blocks_of(self)
        numbers = self._numbers(ranges, blocks.block_bytes)
        batches = (numbers[start : start + _BATCH_BLOCKS] for start in range(0, len(numbers), _BATCH_BLOCKS))
        return sum(blocks.fetch(self, batch) for batch in batches)

    def forget(self, ranges: Sequence[Range]) -> None:
        """Takes the blocks of these ranges out of the cache, because what they hold cannot be right."""
        blocks = _blocks_of(self)
        for number in self._numbers(ranges, blocks.block_bytes):
            blocks.forget(self, number)

    def _numbers(self, ranges: Iterable[Range], block_bytes: int) -> List[int]:
        found: Set[int] = set()
        for offset, size in ranges:
            if offset < 0 or size < 0 or offset + size > self.size:
                raise ValueError(f"{self.name}: bytes {offset} to {offset + size} of {self.size}")
            if size:
                found.update(range(offset // block_bytes, (offset + size - 1) // block_bytes + 1))
        return sorted(found)

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
        block_bytes = _blocks_of(self).block_bytes
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
        (view, _) = self.views([(self._at, size), (self._at, end - self._at)])
        buffer[:size] = view
        self._at += size
        return size


def use_cache(
    folder: Optional[Union[str, Path]], max_gb: float = 0.0, block_bytes: int = BLOCK_BYTES
) -> None:
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
    elif _kept is None or (_kept.folder, _kept.max_bytes, _kept.block_bytes) != wanted:
        _kept = DiskBlocks(*wanted)


def has_cache() -> bool:
    """Whether blocks are kept on disk."""
    return _kept is not None


class MemoryBlocks:
    """The last blocks that this process has read; small ones, because what lies around is soon forgotten."""

    block_bytes = _MEMORY_BLOCK_BYTES

    def __init__(self) -> None:
        self._kept: OrderedDict[Tuple[str, str, int], memoryview] = OrderedDict()

    def get(self, file: RemoteFile, numbers: Sequence[int]) -> Dict[int, memoryview]:
        """See `Blocks`."""
        keys = {number: (file.url, file.version, number) for number in numbers}
        got = {number: self._kept[key] for number, key in keys.items() if key in self._kept}
        for number, view in _fetched(file, [each for each in numbers if each not in got], self.block_bytes):
            got[number] = self._kept[keys[number]] = view
        for number in numbers:
            with contextlib.suppress(KeyError):  # another thread may have dropped it
                self._kept.move_to_end(keys[number])
        while len(self._kept) > _MEMORY_BLOCKS:
            with contextlib.suppress(KeyError):
                self._kept.popitem(last=False)
        return got

    def fetch(self, file: RemoteFile, numbers: Sequence[int]) -> int:
        """See `Blocks`."""
        missing = [number for number in numbers if (file.url, file.version, number) not in self._kept]
        return sum(map(len, self.get(file, missing).values()))

    def forget(self, file: RemoteFile, number: int) -> None:
        """See `Blocks`."""
        self._kept.pop((file.url, file.version, number), None)


class DiskBlocks:
    """The cache on disk; see the module.

    Args:
        folder: it is made where it is missing.
        max_bytes: of all its files but the ledger.
        block_bytes: of a block.
    """

    def __init__(self, folder: Union[str, Path], max_bytes: int, block_bytes: int = BLOCK_BYTES) -> None:
        self.folder, self.max_bytes, self.block_bytes = str(folder), max_bytes, block_bytes
        self._maps: OrderedDict[str, Tuple[memoryview, float]] = OrderedDict()
        self._checked: Dict[str, bytes] = {}
        self._full_until = float("-inf")
        self._unkept: OrderedDict[str, memoryview] = OrderedDict()
        try:
            with self._ledger() as ledger:
                if ledger.taken > max_bytes:
                    self._make_room(ledger, 0)
        except OSError as error:
            self._give_up(error)

    def get(self, file: RemoteFile, numbers: Sequence[int]) -> Dict[int, memoryview]:
        """See `Blocks`."""
        got: Dict[int, memoryview] = {}
        deadline = time.monotonic() + storage.patience().timeout_sec + _LOCK_SEC
        while True:
            for number in numbers:
                view = None if number in got else self._open(file, number)
                if view is not None:
                    got[number] = view
            missing = [number for number in numbers if number not in got]
            if not missing:
                return got
            claims = self._claims(file, missing) if time.monotonic() < deadline else None
            if claims is None:
                return {**got, **self._passed(file, missing)}
            if claims:
                got.update(self._fill(file, claims))
            else:
                time.sleep(_POLL_SEC)  # others fetch them

    def fetch(self, file: RemoteFile, numbers: Sequence[int]) -> int:
        """See `Blocks`."""
        missing = []
        for number in numbers:
            try:
                os.utime(self._path(self._digest(file, number)))
            except OSError:
                missing.append(number)
        claims = self._claims(file, missing) if missing else None
        return sum(map(len, self._fill(file, claims).values())) if claims else 0

    def forget(self, file: RemoteFile, number: int) -> None:
        """See `Blocks`."""
        digest = self._digest(file, number)
        self._maps.pop(digest, None)
        self._unkept.pop(digest, None)
        with contextlib.suppress(OSError):
            os.unlink(self._path(digest))

    def _passed(self, file: RemoteFile, numbers: Sequence[int]) -> Dict[int, memoryview]:
        """Blocks that cannot be kept on disk: the last few are kept in memory."""
        keys = {number: self._digest(file, number) for number in numbers}
        got = {number: self._unkept[key] for number, key in keys.items() if key in self._unkept}
        got.update(_fetched(file, [number for number in numbers if number not in got], self.block_bytes))
        for number, view in got.items():
            self._unkept[keys[number]] = view
        while len(self._unkept) > _UNKEPT_BLOCKS:
            with contextlib.suppress(KeyError):
                self._unkept.popitem(last=False)
        return got

    def _open(self, file: RemoteFile, number: int) -> Optional[memoryview]:
        """A block that is here, through a map."""
        digest, size = self._digest(file, number), _size_of(file, number, self.block_bytes)
        path = self._path(digest)
        kept = self._maps.get(digest)
        if kept is not None:
            self._keep(path, digest, *kept)
            return kept[0]
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                told = os.fstat(handle)
                if told.st_size != size + TRAILER.size:
                    raise ValueError
                mapped = memoryview(mmap.mmap(handle, told.st_size, access=mmap.ACCESS_READ))
            finally:
                os.close(handle)
        except OSError:
            return None
        except ValueError:
            self._drop(path)
            return None
        named, nonce, crc32 = TRAILER.unpack(mapped[size:])
        if self._checked.get(digest) != nonce:
            if named.hex() != digest or zlib.crc32(mapped[: size + 24]) != crc32:
                self._drop(path)
                return None
            if len(self._checked) > _MAX_CHECKED:
                self._checked.clear()
            self._checked[digest] = nonce
        view = mapped[:size]
        self._keep(path, digest, view, told.st_mtime)
        return view

    def _keep(self, path: str, digest: str, view: memoryview, used_at: float) -> None:
        """Keeps a map that is in use, and marks its file as used, unless it was so moments ago."""
        now = time.time()
        if abs(now - used_at) > _TOUCH_SEC:
            used_at = now
            with contextlib.suppress(OSError):  # it may be gone; the map stays
                os.utime(path)
        self._maps[digest] = view, used_at
        with contextlib.suppress(KeyError):
            self._maps.move_to_end(digest)
            while len(self._maps) > _MAX_MAPS:
                self._maps.popitem(last=False)

    def _drop(self, path: str) -> None:
        """Takes a block away that is not what it should be."""
        warn_once(get_logger(), f"{self.folder}: holds altered blocks; they are fetched again")
        with contextlib.suppress(OSError):
            os.unlink(path)

    def _claims(self, file: RemoteFile, numbers: Sequence[int]) -> Optional[Dict[int, int]]:
        """Makes the files of blocks that nobody fetches, and locks them; None: no block can be kept.

        Returns:
            number of a block → handle of its file.
        """
        if time.monotonic() < self._full_until:
            return None
        claims: Dict[int, int] = {}
        try:
            with self._ledger() as ledger:
                if ledger.is_full:  # another process has found out
                    return None
                try:
                    for number in numbers:
                        path = self._path(self._digest(file, number))
                        size = _size_of(file, number, self.block_bytes) + TRAILER.size
                        if os.path.exists(path) or _is_being_filled(path + ".part"):
                            continue
                        if ledger.taken + size > self.max_bytes and not self._make_room(ledger, size):
                            return claims or None
                        ledger.take(size)
                        claims[number] = _new_file(path + ".part", size)
                except OSError as error:
                    self._give_up(error, ledger)
                    return claims or None
        except OSError as error:
            self._give_up(error)
            return None
        return claims

    def _fill(self, file: RemoteFile, claims: Dict[int, int]) -> Dict[int, memoryview]:
        """Fetches claimed blocks and lets them appear."""
        got: Dict[int, memoryview] = {}
        whole = set()
        try:
            for number, data in _fetched(file, list(claims), self.block_bytes):
                got[number] = data
                head = bytes.fromhex(self._digest(file, number)) + secrets.token_bytes(8)
                trailer = head + struct.pack("<I", zlib.crc32(head, zlib.crc32(data)))
                try:
                    os.pwrite(claims[number], data, 0)
                    os.pwrite(claims[number], trailer, len(data))
                    whole.add(number)
                except OSError as error:
                    self._give_up(error)
        finally:
            self._settle(file, claims, whole)
        return got

    def _settle(self, file: RemoteFile, claims: Dict[int, int], whole: Set[int]) -> None:
        """Gives whole blocks their names and takes the others away; what fails here is found by a count."""
        try:
            with contextlib.suppress(OSError), self._ledger() as ledger:
                for number in claims:
                    path = self._path(self._digest(file, number))
                    if number in whole:
                        os.replace(path + ".part", path)
                    else:
                        os.unlink(path + ".part")
                        ledger.take(-_size_of(file, number, self.block_bytes) - TRAILER.size)
        finally:
            for handle in claims.values():
                _close(handle)

    def _make_room(self, ledger: _Ledger, size: int) -> bool:
        """Counts the folder, and removes the blocks used least recently if `size` bytes find no room.

        A sixteenth of the cache goes at a time, because a count takes long.
        """
        blocks: List[Tuple[int, int, str]] = []
        taken = 0
        for entry in _entries(self.folder):
            is_part = entry.name.endswith(".part")
            if is_part and not _is_being_filled(entry.path):
                continue
            with contextlib.suppress(FileNotFoundError):
                told = entry.stat()
                taken += told.st_size
                if not is_part:
                    blocks.append((told.st_mtime_ns, told.st_size, entry.path))
        if taken + size > self.max_bytes:
            for _, freed, path in sorted(blocks):
                if taken <= self.max_bytes - size - self.max_bytes // 16:
                    break
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                taken -= freed
        ledger.take(taken - ledger.taken)
        return taken + size <= self.max_bytes

    def _give_up(self, error: OSError, ledger: Optional[_Ledger] = None) -> None:
        """Keeps no more blocks for a while; the first process that comes to this says so."""
        self._full_until = time.monotonic() + _FULL_SEC
        if ledger is None or ledger.mark_full():
            reason = error.strerror or error
            text = f"blocks of remote files are fetched and not kept: {reason}"
            text = f"{self.folder}: {text}; free its disk, or choose another STORAGE.cache_dir"
            warn_once(get_logger(), text)

    @contextlib.contextmanager
    def _ledger(self) -> Iterator[_Ledger]:
        """The ledger, for this thread alone.

        Raises:
            OSError: the folder cannot be written, or has been locked for long.
        """
        os.makedirs(self.folder, exist_ok=True)
        handle = os.open(os.path.join(self.folder, "ledger"), os.O_RDWR | os.O_CREAT, 0o666)
        _open_handles.add(handle)
        try:
            deadline = time.monotonic() + _LOCK_SEC
            while True:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                if time.monotonic() > deadline:
                    raise OSError(errno.EBUSY, f"its ledger has been locked for {_LOCK_SEC:g} s")
                time.sleep(0.001)
            try:
                ledger = _Ledger(handle)
                if not ledger.is_known:
                    self._make_room(ledger, 0)
                yield ledger
            finally:
                fcntl.flock(handle, fcntl.LOCK_UN)  # a process forked meanwhile has the handle, too
        finally:
            _close(handle)

    def _digest(self, file: RemoteFile, number: int) -> str:
        what = f"{file.url}\0{file.version}\0{file.size}\0{self.block_bytes}\0{number}"
        return hashlib.blake2b(what.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()

    def _path(self, digest: str) -> str:
        return f"{self.folder}/{digest[:2]}/{digest}"


class _Ledger:
    """What the ledger says; each change is written at once, before what it is about happens.

    Args:
        handle: of its file, locked.

    Attributes:
        taken: bytes of the cache, at least.
        is_known: whether that is so: not where the file is new, or the machine was started since.
    """

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._boot = _boot_id()
        data = os.pread(handle, _LEDGER.size, 0)
        self.taken, self._full_at, self.is_known = 0, 0.0, False
        if len(data) == _LEDGER.size:
            magic, boot, taken, full_at, crc32 = _LEDGER.unpack(data)
            if (magic, boot, crc32) == (_MAGIC, self._boot, zlib.crc32(data[:-4])):
                self.taken, self._full_at, self.is_known = taken, full_at, True

    def take(self, size: int) -> None:
        """Adds bytes; a negative number gives them back."""
        self.taken = max(self.taken + size, 0)
        self._write()

    @property
    def is_full(self) -> bool:
        """Whether a process has met a full disk in the last minute."""
        return self._full_at > 0 and time.monotonic() - self._full_at < _FULL_SEC

    def mark_full(self) -> bool:
        """Notes a full disk for all processes; whether this is news."""
        is_news = self._full_at == 0
        self._full_at = time.monotonic()  # one clock for all processes since the machine was started
        self._write()
        return is_news

    def _write(self) -> None:
        data = _LEDGER.pack(_MAGIC, self._boot, self.taken, self._full_at, 0)[:-4]
        os.pwrite(self._handle, data + struct.pack("<I", zlib.crc32(data)), 0)
        self.is_known = True


def _entries(folder: str) -> Iterator[os.DirEntry]:
    """The files of blocks."""
    with os.scandir(folder) as parts:
        for part in parts:
            if len(part.name) == 2 and part.is_dir():
                with os.scandir(part.path) as entries:
                    yield from entries


def _new_file(path: str, size: int) -> int:
    """The handle of a new file with all its bytes on the disk, locked; nothing is left where that fails."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    _open_handles.add(handle)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.posix_fallocate(handle, 0, size)
    except BaseException:
        _close(handle)
        os.unlink(path)
        raise
    return handle


def _is_being_filled(path: str) -> bool:
    """Whether a process writes this file; one whose process has died is removed. The ledger must be held."""
    try:
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return False


def _fetched(file: RemoteFile, numbers: Sequence[int], block_bytes: int) -> Iterator[Tuple[int, memoryview]]:
    """Blocks from the store, neighbours in one request and several requests at a time."""
    runs: List[List[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1 and (len(runs[-1]) + 1) * block_bytes <= _RUN_BYTES:
            runs[-1].append(number)
        else:
            runs.append([number])

    def read(run: List[int]) -> bytes:
        size = sum(_size_of(file, number, block_bytes) for number in run)
        return storage.read_range(file.url, run[0] * block_bytes, size, file.version)

    for run, data in zip(runs, map(read, runs) if len(runs) == 1 else _threads().map(read, runs)):
        for place, number in enumerate(run):
            yield number, memoryview(data[place * block_bytes : (place + 1) * block_bytes])


def _cut(blocks: Dict[int, memoryview], offset: int, size: int, block_bytes: int) -> memoryview:
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


def _blocks_of(file: RemoteFile) -> Blocks:
    if _kept is None or file.version:
        return _memory if _kept is None else _kept
    text = "the store tells neither ETag nor date, so blocks are not kept on disk"
    warn_once(get_logger(), f"{storage.shown_url(file.url)}: {text}")
    return _memory


def _boot_id() -> bytes:
    """Tells one start of the machine from another."""
    try:
        return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)


def _close(handle: int) -> None:
    _open_handles.discard(handle)
    os.close(handle)


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(_NUM_THREADS, "blocks")
    return _pool


def _renew() -> None:
    """A forked process has no threads of its parent, and must not hold its locks."""
    global _pool
    _pool = None
    for handle in _open_handles:
        with contextlib.suppress(OSError):
            os.close(handle)
    _open_handles.clear()


_open_handles: Set[int] = set()
_pool: Optional[ThreadPoolExecutor] = None
_memory = MemoryBlocks()
_kept: Optional[DiskBlocks] = None
os.register_at_fork(after_in_child=_renew)
