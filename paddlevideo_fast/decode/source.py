"""What a video is read from: a path, a URL, bytes, or a binary file object."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tempfile
from bisect import bisect_right
from collections.abc import Sequence
from typing import IO, Any, BinaryIO, TypeAlias

from paddlevideo_fast.errors import ObjectError, PaddleVideoFastError, VideoDecodeError
from paddlevideo_fast.io.paths import RangedFile, file_system
from paddlevideo_fast.io.urls import shown_url

_LARGE_BYTES = 2**26
_PIECE_BYTES = 2**23
HEAD_BYTES = 4096

Source: TypeAlias = str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO


class VideoSource:
    """A path, URL, bytes or file object that holds a video, with a name for messages.

    A file object stays the caller's: it is read from its beginning, and left open. Of a file on disk, one
    look and one handle serve for all that its headers tell, until `release`.

    Args:
        source: a path, a URL, the bytes of a file, or a file object that reads bytes and can seek.

    Attributes:
        name: the path, the URL without what may be secret in it, "<bytes>", or the name of the file object.
        path: where the file is on disk; None for all others.
        url: where it is in a store; None for all others.
        key: path or URL, under which an index of the file can be kept; None for bytes and file objects.

    Raises:
        PaddleVideoFastError: it is something else.
    """

    def __init__(self, source: Source) -> None:
        self.path: str | None = None
        self.url: str | None = None
        self.key: str | None = None
        self._version: tuple[int, str] | None = None
        self._headers: BinaryIO | None = None
        self._head = b""
        self._held: bytes | None = None
        self._copy: IO[bytes] | None = None
        self._object: Any = source
        if isinstance(source, (str, os.PathLike)):
            self.key = path = str(os.fspath(source))
            is_local = file_system(path).is_local
            self.path, self.url, self.name = (path, None, path) if is_local else (None, path, shown_url(path))
        elif isinstance(source, (bytes, bytearray, memoryview)):
            self.name = "<bytes>"
        else:
            self.name = _name_of(source)

    def open(self) -> Any:
        """What libav and others read from: the path, or a file object at its beginning."""
        if self.path is not None:
            # libav takes "a:b.mp4" for an address, an absolute path never
            return os.path.join(os.getcwd(), self.path) if ":" in self.path else self.path
        if self._held is not None:
            return io.BytesIO(self._held)
        if self._copy is not None:
            return SourceFile(self, self.check())
        if self.url is not None:
            return self.remote_file()
        if isinstance(self._object, (bytes, bytearray, memoryview)):
            return io.BytesIO(self._object)
        try:
            self._object.seek(0)
        except (OSError, ValueError) as error:
            raise VideoDecodeError(self.name, f"the file object cannot be read: {error}") from error
        return self._object

    @property
    def is_large(self) -> bool:
        """Whether it is a file, on disk or in a store, whose packets together are too much for memory."""
        return self.key is not None and self.check() >= _LARGE_BYTES

    def keep(self) -> None:
        """Keeps the content of a file object, whose position a forked process shares, for later openings."""
        is_kept = isinstance(self._object, (bytes, bytearray, memoryview, str, os.PathLike))
        if not is_kept:
            self._object = self.open().read()

    def hold(self) -> None:
        """Reads a file of a store at once: it is needed whole, by several readers.

        A large one is held in a temporary file as long as this source is in use.

        Raises:
            VideoDecodeError: it cannot be read.
        """
        if self.url is None:
            return
        size, file = self.check(), self.remote_file()
        try:
            if not self.is_large:
                self._held = bytes(*file.views([(0, size)]))
                return
            held = tempfile.TemporaryFile()  # noqa: SIM115  # it goes with this source
            for at in range(0, size, _PIECE_BYTES):
                held.write(*file.views([(at, min(_PIECE_BYTES, size - at))]))
        except ObjectError as error:
            raise VideoDecodeError(self.name, error.cause) from None
        except OSError as error:
            cause = f"its copy in {tempfile.gettempdir()} (TMPDIR) cannot be written: {error.strerror}"
            raise VideoDecodeError(self.name, cause) from None
        held.flush()
        self._copy = held

    def state(self) -> tuple[int, int] | None:
        """What tells whether a file on disk or in a store has changed; None where nothing does.

        Size in bytes, and the time of the last change in nanoseconds or a number made of the version.
        """
        if self.url is not None:
            file = self.remote_file()
            digest = hashlib.blake2b(file.version.encode(), digest_size=7).digest()
            return (file.size, int.from_bytes(digest, "little")) if file.version else None
        try:
            status = os.stat(self.path or "")
        except (OSError, ValueError):
            return None
        return (status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None

    def check(self) -> int:
        """Its size in bytes.

        Raises:
            VideoDecodeError: it is not a readable file with something in it.
        """
        if self.path is not None:
            return self._check_path(self.path)
        size = self.remote_file().size if self.url is not None else self.open().seek(0, os.SEEK_END)
        if size == 0:
            raise VideoDecodeError(self.name, "is empty (0 bytes)")
        return int(size)

    def read_at(self, offset: int, num_bytes: int) -> bytes:
        """A part of the file; shorter at its end."""
        if offset + num_bytes <= len(self._head):
            return self._head[offset : offset + num_bytes]
        if self._held is not None:
            return self._held[offset : offset + num_bytes]
        if self._copy is not None:
            return os.pread(self._copy.fileno(), num_bytes, offset)
        if self.url is not None:
            file = self.remote_file()
            try:
                (view,) = file.views([(offset, max(min(num_bytes, file.size - offset), 0))])
            except ObjectError as error:
                raise VideoDecodeError(self.name, error.cause) from None
            return bytes(view)
        opened = self._open_headers(self.path) if self.path is not None else self.open()
        opened.seek(offset)
        return bytes(opened.read(num_bytes))

    def head(self) -> bytes:
        """The first `HEAD_BYTES` of the file, which are read once."""
        if not self._head:
            self._head = self.read_at(0, HEAD_BYTES)
        return self._head

    def release(self) -> None:
        """Closes the handle that headers were read with, and frees what is held. More can still be read."""
        self._held = None
        if self._headers is not None:
            self._headers.close()
            self._headers = None

    def remote_file(self) -> RangedFile:
        """A file of a store, of the version that it had when it was asked for first."""
        assert self.url is not None
        try:
            file = file_system(self.url).open(self.url, self._version)
        except ObjectError as error:
            raise VideoDecodeError(self.name, error.cause) from None
        self._version = file.size, file.version
        return file

    def _check_path(self, path: str) -> int:
        if self._headers is not None:
            return os.fstat(self._headers.fileno()).st_size
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            raise VideoDecodeError(path, "no such file") from None
        if stat.S_ISDIR(status.st_mode):
            raise VideoDecodeError(path, "is a folder, not a video file")
        if not stat.S_ISREG(status.st_mode):
            raise VideoDecodeError(path, "is not a regular file")
        if status.st_size == 0:
            raise VideoDecodeError(path, "the file is empty (0 bytes)")
        self._open_headers(path)
        return status.st_size

    def _open_headers(self, path: str) -> BinaryIO:
        if self._headers is None:
            try:
                self._headers = open(path, "rb")  # noqa: SIM115  # until `release`
            except PermissionError:
                raise VideoDecodeError(path, "no permission to read it") from None
            except OSError as error:
                raise VideoDecodeError(path, f"cannot be read: {error.strerror or error}") from None
        return self._headers


class SourceFile(io.RawIOBase):
    """A file object of a video with a position of its own; some ranges may read as zeros.

    Args:
        source: the video.
        size: in bytes.
        hidden: ranges [first, stop), ascending, that are not read.
    """

    def __init__(self, source: VideoSource, size: int, hidden: Sequence[tuple[int, int]] = ()) -> None:
        super().__init__()
        self._source, self._size, self._hidden, self._at = source, size, hidden, 0
        self.name = source.name

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        bounds = [bound for bounds in self._hidden for bound in bounds]
        number = bisect_right(bounds, self._at)  # between two ranges it is even
        count = max(min(self._at + len(buffer), *bounds[number : number + 1], self._size) - self._at, 0)
        buffer[:count] = bytes(count) if number % 2 else self._source.read_at(self._at, count)
        self._at += count
        return count


class SplicedFile(SourceFile):
    """A file object of the first `head_bytes` of a video, and of all that follows from `begin` on."""

    def __init__(self, source: VideoSource, head_bytes: int, begin: int) -> None:
        super().__init__(source, source.check() - (begin - head_bytes))
        opened = source.open()
        self._file = open(opened, "rb", buffering=0) if isinstance(opened, str) else opened  # noqa: SIM115
        self._head_bytes, self._left_out = head_bytes, begin - head_bytes

    def readinto(self, buffer: Any) -> int:
        is_behind = self._at >= self._head_bytes
        self._file.seek(self._at + (self._left_out if is_behind else 0))
        count = len(buffer) if is_behind else min(len(buffer), self._head_bytes - self._at)
        count = self._file.readinto(memoryview(buffer)[:count])
        self._at += count
        return int(count)


def path_of(source: Source, backend: str) -> str:
    """The path, for a backend that reads nothing else.

    Raises:
        PaddleVideoFastError: `source` is bytes or a file object.
    """
    path = VideoSource(source).path
    if path is None:
        raise PaddleVideoFastError(
            f"backend '{backend}' reads from a path only; 'pyav' also reads URLs, bytes and file objects"
        )
    return path


def _name_of(source: Any) -> str:
    kind = type(source).__name__
    expected = "a video is read from a path, bytes, or a file object"
    if isinstance(source, io.TextIOBase):
        raise PaddleVideoFastError(f"{expected} that reads bytes; this one reads text: open it with 'rb'")
    if not callable(getattr(source, "read", None)):
        raise PaddleVideoFastError(f"{expected}, found {kind}")
    if getattr(source, "closed", False):
        raise PaddleVideoFastError(f"{expected}; this {kind} is closed")
    if not getattr(source, "readable", lambda: True)():
        raise PaddleVideoFastError(f"{expected} that reads; this {kind} only writes: open it with 'rb'")
    if not callable(getattr(source, "seek", None)) or not getattr(source, "seekable", lambda: True)():
        raise PaddleVideoFastError(f"{expected} that can seek; this {kind} cannot: read it into bytes first")
    name = getattr(source, "name", None)
    return name if isinstance(name, str) else f"<{kind}>"
