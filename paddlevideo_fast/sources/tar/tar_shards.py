"""Videos in tar files, which nobody unpacks: where each member lies, and a file object of its bytes.

    header │ a.mp4 ............ │ header │ a.cls │ header │ b.mp4 ................ │ … │ zeros
    read   │ skipped            │ read   │ read  │ read   │ skipped                │   │ the end is looked for

Reading the headers of a tar at a URL takes a request of `_HEADER_BYTES` for each jump over a video. Python's
`tarfile` reads the headers (ustar, pax, GNU long names). Tars in one file (`cat a.tar b.tar`) are read one
after the other. Nothing is ever written under the name of a member.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from typing import Any, NamedTuple

from paddlevideo_fast.errors import ObjectError, ShardError, VideoDecodeError, cause_of
from paddlevideo_fast.io.urls import bare_url, shown_url
from paddlevideo_fast.sources.packed.packed import MmapCache, open_bytes
from paddlevideo_fast.sources.remote import stores
from paddlevideo_fast.sources.remote.block_cache import RemoteFile

_HEADER_BYTES = 2**13  # the header of a video, its label and the header that follows often fit
_READ_BYTES = 2**16
_MAX_TEXT_BYTES = 2**24
_MOST_END_BYTES = tarfile.RECORDSIZE + 2 * tarfile.BLOCKSIZE
_CUT = "was cut off while it was in use"
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class Member(NamedTuple):
    """A file in a tar.

    Attributes:
        name: as the tar has it; no path of any disk.
        offset: of its first byte in the tar.
        size: in bytes.
        text: its content where the reader of the headers wanted it; else empty.
        has_content: its content is there, in one piece: it is no link, and not sparse.
    """

    name: str
    offset: int
    size: int
    text: bytes
    has_content: bool


class TarShard:
    """A tar whose members are read at any place.

    Args:
        path: of the tar; may be a URL.
        maps: of the whole set, so that they are few.

    Attributes:
        path: the tar, for messages and names: of a URL what may be stored.
        source: path or URL.
        data: its bytes.
        state: tells whether it has changed; None: nothing does.

    Raises:
        ShardError: it is not there.
        StoreAwayError, StoreAccessError: the store of a URL does not answer, or refuses.
    """

    def __init__(self, path: str, maps: MmapCache) -> None:
        self.source, self.path = path, bare_url(path)
        try:
            self.data = open_bytes(path, maps)
        except OSError as error:
            raise ShardError(f"{shown_url(path)}: cannot be read: {cause_of(error)}") from None
        self.state: list[Any] | None = self.data.state

    def members(self, wants_text: Callable[[str], bool]) -> list[Member]:
        """All regular files and links in the tar, from its headers.

        Args:
            wants_text: whether the content of a member of this name is wanted.

        Raises:
            ShardError: it is no tar, compressed, damaged or cut off.
        """
        try:
            with self._headers() as file:
                start = file.read(len(_ZSTD))
                if start.startswith(_GZIP) or start == _ZSTD:
                    text = "is compressed, and only a plain .tar is read: unpack it"
                    raise ShardError(f"{self.path}: {text}")
                members, begin = list[Member](), 0
                while begin >= 0:
                    file.seek(begin)
                    with tarfile.open(fileobj=file, mode="r:") as tar:
                        members += [self._member(tar, info, wants_text) for info in tar if _is_file(info)]
                        begin = _next_tar(file, tar.offset)
        except (tarfile.TarError, ValueError) as error:
            text = f"is no tar, or is damaged or cut off: {error}; write or copy it again"
            raise ShardError(f"{self.path}: {text}") from None
        except OSError as error:
            raise ShardError(f"{self.path}: cannot be read: {cause_of(error)}") from None
        return members

    def open(self, where: str, offset: int, size: int) -> io.BufferedReader:
        """A file object of the bytes of a member. Of a tar at a URL, all of them are fetched at once.

        Args:
            where: tar and member, for messages.
            offset: of the first byte.
            size: in bytes.

        Raises:
            VideoDecodeError: they are not to be had, or the tar was cut off since its headers were read.
        """
        if self.data.available() < offset + size:
            raise VideoDecodeError(where, _CUT)
        try:
            (view,) = self.data.views([(offset, size)])
        except ObjectError as error:
            raise VideoDecodeError(where, error.cause) from None

        def read(at: int, count: int) -> memoryview:
            # touching mapped bytes that were cut off since would end the process
            if self.data.available() < offset + size:
                raise VideoDecodeError(where, _CUT)
            return view[at : at + count]

        return io.BufferedReader(_File(size, read, where), _READ_BYTES)

    def _headers(self) -> Any:
        """A file object that reads little around what is asked for, and of a URL nothing into the cache."""
        file = self.data
        if not isinstance(file, RemoteFile):
            return open(self.source, "rb")

        def read(at: int, count: int) -> bytes:
            return stores.read_range(self.source, at, count, file.version)

        return io.BufferedReader(_File(file.size, read, self.path), _HEADER_BYTES)

    def _member(
        self, tar: tarfile.TarFile, info: tarfile.TarInfo, wants_text: Callable[[str], bool]
    ) -> Member:
        text = b""
        if info.isreg() and wants_text(info.name):
            if info.size > _MAX_TEXT_BYTES:
                raise ShardError(f"{self.path}: {info.name}: has {info.size:,} bytes, too many for a label")
            content = tar.extractfile(info)
            text = content.read() if content else b""
            if len(text) < info.size:
                raise tarfile.ReadError(f"{info.name} ends early")
        return Member(info.name, info.offset_data, info.size, text, info.isreg() and not info.issparse())


def _next_tar(file: Any, end: int) -> int:
    """Where another tar begins behind the end of one, as `cat a.tar b.tar` writes it; -1: there is none.

    `tarfile` takes a broken header and zeros for the end. A tar ends with two blocks of zeros and some more,
    up to a full record.
    """
    file.seek(end)
    data = file.read(_MOST_END_BYTES)
    num_zeros = len(data) - len(data.lstrip(b"\0"))
    num_blocks = num_zeros // tarfile.BLOCKSIZE
    if not num_blocks or (num_blocks < 2 and num_zeros < len(data)):
        raise tarfile.ReadError(f"neither a member nor the end is at byte {end}")
    if num_zeros < len(data):
        return end + num_blocks * tarfile.BLOCKSIZE
    if file.read(1):
        raise tarfile.ReadError(f"there are only zeros from byte {end} on, more than the end of a tar has")
    return -1


def _is_file(info: tarfile.TarInfo) -> bool:
    if info.size < 0:  # tarfile would go back to where it was
        raise tarfile.ReadError(f"{info.name} has {info.size} bytes")
    return info.isreg() or info.issym() or info.islnk()


class _File(io.RawIOBase):
    """A file object of bytes that a function gives.

    Args:
        size: in bytes.
        read: gives the bytes from an offset on, so many of them.
        name: for messages.
    """

    def __init__(self, size: int, read: Callable[[int, int], bytes | memoryview], name: str) -> None:
        super().__init__()
        self._size, self._read, self._at = size, read, 0
        self.name = name

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        count = max(min(len(buffer), self._size - self._at), 0)
        buffer[:count] = self._read(self._at, count)
        self._at += count
        return count
