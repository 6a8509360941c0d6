"""What a video is read from: a path, bytes, or a binary file object."""

from __future__ import annotations

import io
import os
from typing import Any, BinaryIO, Optional, Union

from paddlevideo_fast.errors import PaddleVideoFastError, VideoDecodeError

Source = Union[str, "os.PathLike[str]", bytes, bytearray, memoryview, BinaryIO]


class VideoSource:
    """Opens what a video is read from, and names it in messages.

    A file object stays the caller's: it is read from its beginning, and left open.

    Args:
        source: a path, the bytes of a file, or a file object that reads bytes and can seek.

    Attributes:
        name: the path, "<bytes>", or the name of the file object.
        path: where the file is on disk; None for bytes and file objects.

    Raises:
        PaddleVideoFastError: it is something else.
    """

    def __init__(self, source: Source) -> None:
        self.path: Optional[str] = None
        self._object: Any = source
        if isinstance(source, (str, os.PathLike)):
            self.name = self.path = str(os.fspath(source))
        elif isinstance(source, (bytes, bytearray, memoryview)):
            self.name = "<bytes>"
        else:
            self.name = _name_of(source)

    def open(self) -> Any:
        """What libav and others read from: the path, or a file object at its beginning."""
        if self.path is not None:
            return self.path
        if isinstance(self._object, (bytes, bytearray, memoryview)):
            return io.BytesIO(self._object)
        try:
            self._object.seek(0)
        except (OSError, ValueError) as error:
            raise VideoDecodeError(self.name, f"the file object cannot be read: {error}") from error
        return self._object

    def check(self) -> int:
        """Its size in bytes.

        Raises:
            VideoDecodeError: it is not a readable file with something in it.
        """
        if self.path is not None:
            check_file(self.path)
            return os.path.getsize(self.path)
        file = self.open()
        size = file.seek(0, os.SEEK_END)
        if size == 0:
            raise VideoDecodeError(self.name, "is empty (0 bytes)")
        file.seek(0)
        return int(size)

    def read_at(self, offset: int, num_bytes: int) -> bytes:
        """A part of the file; shorter at its end."""
        if self.path is not None:
            with open(self.path, "rb") as file:
                file.seek(offset)
                return file.read(num_bytes)
        file = self.open()
        file.seek(offset)
        return bytes(file.read(num_bytes))


def path_of(source: Source, backend: str) -> str:
    """The path, for a backend that reads nothing else.

    Raises:
        PaddleVideoFastError: `source` is bytes or a file object.
    """
    path = VideoSource(source).path
    if path is None:
        raise PaddleVideoFastError(
            f"backend '{backend}' reads from a path only; 'pyav' also reads bytes and file objects"
        )
    return path


def check_file(path: str) -> None:
    """Raises `VideoDecodeError` where `path` is not a readable file with something in it."""
    if not os.path.exists(path):
        raise VideoDecodeError(path, "no such file")
    if os.path.isdir(path):
        raise VideoDecodeError(path, "is a folder, not a video file")
    if not os.path.isfile(path):
        raise VideoDecodeError(path, "is not a regular file")
    if not os.access(path, os.R_OK):
        raise VideoDecodeError(path, "no permission to read it")
    if os.path.getsize(path) == 0:
        raise VideoDecodeError(path, "the file is empty (0 bytes)")


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
