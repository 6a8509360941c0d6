"""Files that appear whole or not at all, and files of users that are read with limits.

A file is written beside its place under a temporary name, synced to the disk and renamed:

    .saving-<process id>.<machine>.<random>-<name>  →  <name>

So a reader never sees half a file, and a process that dies leaves the earlier file as it was. Threads,
processes and machines that write the same file do not meet in its temporary one. `sweep` removes temporary
files of dead processes. Errors are `OSError`; callers know what to tell their user.

A path may be a URL, see `storage`: as text, or as a `UrlPath`, which joins like a `Path`. What is written to
a URL is written to a temporary folder, and put into the store as a whole.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import socket
import stat
import tempfile
import uuid
import zlib
from collections.abc import Iterator
from functools import total_ordering
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

from paddlevideo_fast.io.urls import bare_url, is_url, join, shown_url
from paddlevideo_fast.sources.remote import stores

_PREFIX = ".saving-"
_LONGEST_BYTES = 143  # of a name on an encrypted file system; others take 255
_LONGEST_ENDING_BYTES = 16
_MOST_BYTES = 2**30  # of an object that is read as a whole


@total_ordering
class UrlPath(os.PathLike):
    """A place in a store, for code that joins and reads paths; `as_path` makes it. `str` gives the URL.

    Folders exist as far as something is in them. A web server cannot list them. A URL keeps all its slashes.
    Its names are without its query, which may be a signature; see `urls`.
    """

    def __init__(self, url: str | os.PathLike) -> None:
        self._url = os.fspath(url)
        scheme, _, place = bare_url(self._url).partition("://")
        self._folder, _, self.name = place.removesuffix("/").rpartition("/")
        self._scheme = scheme

    def __str__(self) -> str:
        return self._url

    def __fspath__(self) -> str:
        return self._url

    def __repr__(self) -> str:
        return f"UrlPath({shown_url(self._url)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UrlPath) and self._url == other._url

    def __lt__(self, other: UrlPath) -> bool:
        return self._url.split("/") < other._url.split("/")

    def __hash__(self) -> int:
        return hash(self._url)

    def as_posix(self) -> str:
        """The URL."""
        return self._url

    def __truediv__(self, name: str | os.PathLike) -> UrlPath:
        return UrlPath(join(self._url, os.fspath(name)))

    @property
    def stem(self) -> str:
        """Its name without the ending."""
        return PurePosixPath(self.name).stem

    @property
    def suffix(self) -> str:
        """The ending of its name, such as ".mp4"."""
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> UrlPath:
        """The folder that it is in; a store itself is in none but its own."""
        mark = "/" * self._folder.endswith("/")  # a folder with an empty name
        return UrlPath(f"{self._scheme}://{self._folder}{mark}") if self._folder else self

    def with_name(self, name: str) -> UrlPath:
        """What lies beside it under another name."""
        return self.parent / name

    def with_suffix(self, suffix: str) -> UrlPath:
        """What lies beside it under a name with another ending."""
        return self.with_name(PurePosixPath(self.name).with_suffix(suffix).name)

    def relative_to(self, folder: str | os.PathLike) -> PurePosixPath:
        """The path below a folder.

        Raises:
            ValueError: it lies outside, or the path has an empty name, which no path of a disk has.
        """
        own, above = bare_url(self._url), bare_url(os.fspath(folder)).removesuffix("/")
        if own == above or own == f"{above}/":
            return PurePosixPath()
        below = own.removeprefix(f"{above}/").removesuffix("/")
        if below == own or "" in below.split("/"):
            raise ValueError(f"{own} is not below {above}, or an empty name is between them")
        return PurePosixPath(below)

    def is_file(self) -> bool:
        """Whether there is such an object, which is no folder."""
        try:
            return stores.exists(str(self))
        except stores.ObjectError:
            return False

    def is_dir(self) -> bool:
        """Whether something is in it, as far as the store can tell."""
        try:
            return bool(stores.list_folder(str(self))) and not self.is_file()  # a file lists itself
        except stores.ObjectError:
            return False

    def exists(self) -> bool:
        """Whether there is such an object or folder."""
        return self.is_file() or self.is_dir()

    def iterdir(self) -> Iterator[UrlPath]:
        """What is in the folder."""
        return (self / name.rstrip("/") for name in stores.list_folder(str(self)))

    def glob(self, pattern: str) -> Iterator[UrlPath]:
        """What is in the folder and fits a pattern of names."""
        return (path for path in self.iterdir() if PurePosixPath(path.name).match(pattern))

    def read_bytes(self, max_bytes: int = _MOST_BYTES) -> bytes:
        """The content of the object."""
        return stores.read_all(str(self), max_bytes)

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The text of the object."""
        return self.read_bytes().decode(encoding, errors)

    def stat(self, **_: Any) -> Any:
        """Size and version, as far as `os.stat` has fields for them."""
        found = stores.stat(str(self))
        return SimpleNamespace(st_size=found.size, st_mtime_ns=found.version)

    def unlink(self, missing_ok: bool = False) -> None:
        """Removes the object."""
        if not missing_ok and not self.is_file():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), shown_url(str(self)))
        stores.remove(str(self))

    def mkdir(self, **_: Any) -> None:
        """Does nothing: folders of stores need not be made."""

    def absolute(self) -> UrlPath:
        """The same: a URL starts from no folder."""
        return self


def as_path(path: str | Path) -> Any:
    """A `Path`, or for a URL a `UrlPath`, which is used like it."""
    return UrlPath(path) if is_url(os.fspath(path)) else Path(path)


def cache_folder() -> Path:
    """The user's folder for what can be fetched again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paddlevideo_fast"


def working_folder(output: str | Path) -> Path:
    """Where this machine keeps files of an output folder: there; for a URL in a folder named after it."""
    path = as_path(output)
    if not isinstance(path, UrlPath):
        return path.expanduser()
    url = UrlPath(str(path).removesuffix("/"))
    digest = hashlib.blake2b(str(url).encode(), digest_size=8).hexdigest()
    return cache_folder() / "runs" / f"{digest}-{url.name}"


def walk(folder: Path | UrlPath, onerror: Any = None, followlinks: bool = False) -> Iterator[Any]:
    """`os.walk`, also for a `UrlPath`."""
    if not isinstance(folder, UrlPath):
        yield from os.walk(folder, onerror=onerror, followlinks=followlinks)
        return
    names = stores.list_folder(str(folder))
    folders = [name.rstrip("/") for name in names if name.endswith("/")]
    yield str(folder), folders, [name for name in names if not name.endswith("/")]
    for name in folders:
        yield from walk(folder / name)


@contextlib.contextmanager
def atomic_write(path: str | Path, sync: bool = True) -> Iterator[Path]:
    """Gives a temporary path to write to; the file takes its place when the block ends without an error.

    The folder is made where it is missing. After an error nothing is left but what was there before.
    Without `sync`, a power failure may lose or empty the file. That is for thousands of files that can be
    made again, because waiting for the disk takes milliseconds a file.
    """
    with atomic_write_all(path, sync=sync) as (partial,):
        yield partial


@contextlib.contextmanager
def atomic_write_all(*paths: str | Path, sync: bool = True) -> Iterator[list[Path]]:
    """`atomic_write` for files that belong together; the last one is the mark that the others are complete.

    An earlier mark is removed before the first file takes its place, and the new mark takes its place last.
    So a set with a mark is complete, whenever the process dies.
    """
    targets = [as_path(path) for path in paths]
    if isinstance(targets[0], UrlPath):
        with _uploaded(targets) as files:
            yield files
        return
    partials = [temp_path(path) for path in targets]
    try:
        for path in targets:
            path.parent.mkdir(parents=True, exist_ok=True)
        yield partials
        for partial in partials if sync else ():
            _sync(partial)
        if len(targets) > 1:
            targets[-1].unlink(missing_ok=True)
        for partial, path in zip(partials, targets):
            os.replace(partial, path)
        for folder in {path.parent for path in targets} if sync else ():
            _sync(folder)
    finally:
        for partial in partials:
            with contextlib.suppress(OSError):  # the folder itself may be what cannot be written
                partial.unlink(missing_ok=True)


@contextlib.contextmanager
def _uploaded(urls: list[UrlPath]) -> Iterator[list[Path]]:
    """`atomic_write_all` for URLs: temporary files that become objects if the block ends without an error."""
    with tempfile.TemporaryDirectory(prefix="upload-") as folder:
        partials = [Path(folder, url.name) for url in urls]
        yield partials
        if len(urls) > 1:
            stores.remove(str(urls[-1]))
        for partial, url in zip(partials, urls):
            stores.put(partial, str(url))


def temp_path(path: Path) -> Path:
    """A temporary path beside `path` that nobody else has; a long name gives way to its digest."""
    prefix, name = f"{_PREFIX}{os.getpid()}.{_machine()}.{uuid.uuid4().hex[:8]}-", path.name
    if len(os.fsencode(prefix + name)) > _LONGEST_BYTES:
        ending = path.suffix if len(os.fsencode(path.suffix)) <= _LONGEST_ENDING_BYTES else ""
        name = hashlib.blake2b(os.fsencode(name), digest_size=16).hexdigest() + ending
    return path.with_name(prefix + name)


def _machine() -> str:
    """Tells this machine from others in the names of temporary files."""
    return f"{zlib.crc32(os.fsencode(socket.gethostname())):08x}"


def atomic_write_text(path: str | Path, text: str) -> None:
    """Writes a text file as UTF-8. Names of files keep their bytes, also those that are not UTF-8."""
    with atomic_write(path) as partial:
        partial.write_bytes(text.encode("utf-8", errors="surrogateescape"))


def read_bytes(path: str | Path, max_bytes: int) -> bytes:
    """The content of a file that a user names.

    Args:
        path: the file.
        max_bytes: no larger file is read.

    Raises:
        OSError: `strerror` says why the file cannot be read: it is missing, a pipe or a device, or too large.
        StoreAwayError, StoreAccessError: the store of a URL does not answer, or refuses.
    """
    path = as_path(path)
    if isinstance(path, UrlPath):
        return path.read_bytes(max_bytes)
    require_regular(path)
    if os.path.getsize(path) <= max_bytes:
        with open(path, "rb") as file:
            content = file.read(max_bytes + 1)  # some files of the system say that they are empty
        if len(content) <= max_bytes:
            return content
    raise OSError(errno.EFBIG, f"it is larger than {max_bytes:,} bytes", str(path))


def read_text(path: str | Path, max_bytes: int) -> str:
    """The UTF-8 text of a file that a user names, its lines ended by a line feed; see `read_bytes`."""
    try:
        text = read_bytes(path, max_bytes).decode("utf-8")
    except UnicodeDecodeError:
        raise OSError(errno.EILSEQ, "it is not UTF-8 text", str(path)) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_names(file_path: str | Path, max_bytes: int = 2**30) -> list[str]:
    r"""The lines of a file of names, without the ends of lines; a byte-order mark is no part of them.

    Bytes that are not UTF-8 are kept as Python keeps them in the names of files.

    Raises:
        OSError: the file cannot be read, or is larger than `max_bytes`.
        ValueError: it is UTF-16 or no text.
    """
    data = read_bytes(file_path, max_bytes)
    if b"\0" in data:
        raise ValueError("it holds NUL bytes; save it as text in UTF-8")
    return data.decode("utf-8-sig", errors="surrogateescape").split("\n")


def require_regular(path: str | Path) -> None:
    """Checks, without opening it, that a file is one that ends: a pipe may wait and a device go on for ever.

    Raises:
        OSError: the file is missing, a folder, a pipe or a device.
    """
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "its name holds a NUL character", str(path))
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a pipe or a device; write the content to a file", str(path))


def fingerprint(path: Path) -> dict[str, int | str]:
    """Size in bytes and SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return {"size": path.stat().st_size, "sha256": digest.hexdigest()}


def sweep(folder: Path, alone: bool = False) -> None:
    """Removes what processes of this machine that died while they wrote have left in `folder`.

    Args:
        folder: the folder.
        alone: no other process writes to it, so that nothing needs to be kept.
    """
    for stale in () if isinstance(folder, UrlPath) else folder.glob(f"{_PREFIX}*"):
        if alone or not _is_another_process(stale.name[len(_PREFIX) :].partition("-")[0]):
            if stale.is_dir():
                shutil.rmtree(stale)
            else:
                stale.unlink()


def _is_another_process(owner: str) -> bool:
    """Whether the owner in a temporary name runs, or may run elsewhere; own files are left-overs."""
    pid, _, machine = owner.partition(".")
    if machine and machine.partition(".")[0] != _machine():
        return True
    if not pid.isdigit() or int(pid) == os.getpid():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def whence(path: str | Path) -> str:
    """For the message that a file is missing: where its path starts; empty for an absolute path or a URL."""
    is_complete = isinstance(as_path(path), UrlPath) or os.path.isabs(path)
    return "" if is_complete else f"; paths start from the current folder, {os.getcwd()}"


PIPE = "-"  # the standard input, where a file is asked for


# Protocols of FFmpeg that carry streams. Objects of stores have other schemes, and over HTTP these endings.
_STREAMS = re.compile(
    r"(rtsps?|rtmp\w*|s?rtp|udp|udplite|tcp|tls|srt|rist|sctp|mms\w*|hls|icecast|unix|https?|[a-z]+\+\w+)://"
)
_FILE_OVER_HTTP = re.compile(r"https?://[^?#]+\.(mp4|m4v|mov|mkv|avi|webm|wmv)([;?#].*)?", re.IGNORECASE)


def is_live(address: str) -> bool:
    """Whether an input is a pipe (`-` or a named one), the address of a stream, or a device (a camera).

    Over HTTP, what ends like a file of a fixed length (`.mp4`, `.mkv`, ...) is a file, and all else a stream:
    `.m3u8`, `.ts`, `.flv`, or no ending. A URL of a store (`s3://`, ...) is a file.
    """
    if address == PIPE:
        return True
    mode = _mode_of(address)
    if not mode:
        return bool(_STREAMS.match(address)) and not _FILE_OVER_HTTP.fullmatch(address)
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def is_pipe(address: str) -> bool:
    """Whether a live input is a pipe, which ends for good: `-` or a named one."""
    return address == PIPE or stat.S_ISFIFO(_mode_of(address))


def _mode_of(path: str) -> int:
    """The kind and permissions of what lies at a path; 0: nothing."""
    try:
        return os.stat(path).st_mode
    except (OSError, ValueError):
        return 0
