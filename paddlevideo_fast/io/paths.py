"""What opens a path: its scheme says it.

    clips/a.mp4          no scheme: `FileSystem`, the files of this machine
    s3://bucket/a.mp4    what `FILE_SYSTEMS` has under s3, else under "://", for all other schemes

The rest of the core asks the file system of a path and knows no scheme. What is not on this machine is looked
up and imported when a path with its scheme is opened, or a run says how it is read.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import io
import os
import socket
import stat
import uuid
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from paddlevideo_fast.errors import InstallationError
from paddlevideo_fast.io.urls import scheme_of
from paddlevideo_fast.registry import FILE_SYSTEMS

if TYPE_CHECKING:
    from paddlevideo_fast.config.settings import StorageSettings

PARTIAL = ".saving-"  # beginning of the names of temporary files
_LONGEST_BYTES = 143  # of a name on an encrypted file system; others take 255
_LONGEST_ENDING_BYTES = 16


@FILE_SYSTEMS.register("")
class FileSystem:
    """Opens the paths of a scheme; this class those without a scheme, the files of this machine.

    A subclass is registered under its schemes, as in `@FILE_SYSTEMS.register("s3")`, and gets them as text.
    Where a file is missing or cannot be read, it raises an `OSError`, such as `ObjectError`. It has no
    state of its own: there may be several objects of a class.

    Attributes:
        is_local: a look at a file takes microseconds, and a folder can be renamed and locked.
    """

    is_local = True

    def fetches_ahead(self) -> bool:
        """Whether parts of files that are read soon can be brought here before."""
        return False

    def configure(self, settings: StorageSettings) -> None:
        """Follows STORAGE from now on."""

    def path(self, path: str | os.PathLike[str]) -> Any:
        """A `Path`, or an object that is used like it and whose `str` is the whole path."""
        return Path(path)

    def exists(self, path: str) -> bool:
        """Whether there is a file; of this machine also a folder."""
        return os.path.exists(path)

    def walk(self, folder: Any, onerror: Any = None, followlinks: bool = False) -> Iterator[Any]:
        """As `os.walk`."""
        return os.walk(folder, onerror=onerror, followlinks=followlinks)

    def read(self, path: Any, max_bytes: int) -> bytes:
        """The content of a file that a user names; see `files.read_bytes`."""
        require_regular(path)
        if os.path.getsize(path) <= max_bytes:
            with open(path, "rb") as file:
                content = file.read(max_bytes + 1)  # some files of the system say that they are empty
            if len(content) <= max_bytes:
                return content
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes:,} bytes", str(path))

    def read_unchecked(self, path: str, max_bytes: int) -> bytes:
        """The content of a file, with one opening; only elsewhere it must have at most `max_bytes`."""
        with open(path, "rb", buffering=0) as file:
            return file.read()

    def open(self, path: str, version: tuple[int, str] | None = None) -> RangedFile:
        """A file that is not on this machine, to read ranges of; of the version with this size and name."""
        raise io.UnsupportedOperation(f"{path}: is on this machine; open it")

    def frame_index(self, source: Any) -> Any:
        """The `StoredIndex` of a video, where it can be made without reading all packets; else None."""
        return None

    def local_copy(self, path: Any) -> str:
        """Where a file is on this machine; one from elsewhere is fetched once for each version."""
        return os.fspath(path)

    def output_folder(self, path: str) -> OutputFolder:
        """The output folder of a run."""
        return OutputFolder(path)

    @contextlib.contextmanager
    def atomic_write(self, targets: Sequence[Any], sync: bool) -> Iterator[list[Path]]:
        """See `files.atomic_write_all`."""
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


class RangedFile(Protocol):
    """One version of a file that is not on this machine: a binary file that seeks, and is read by ranges.

    Attributes:
        name: for messages, without what is secret in a URL.
        size: in bytes.
        version: changes with the content; "": not known.
    """

    name: str
    size: int
    version: str

    def views(self, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """The bytes of each range (offset, size), which must lie in the file."""

    def read_alone(self, offset: int, size: int) -> bytes:
        """The bytes of a range, and none around it."""


class OutputFolder:
    """Where a run writes: a folder of this machine, which may stand for one elsewhere.

    Args:
        path: of the output folder, as the user gave it.

    Attributes:
        url: the output folder.
        folder: the folder of this machine; of an output folder that is elsewhere, the same in each run.
        there: names of what is elsewhere, of which those of folders end in a slash; empty before `fetch`.
    """

    def __init__(self, path: str) -> None:
        self.url, self.folder = path, Path(path).expanduser()
        self.there: Collection[str] = ()

    def address(self, file: Path) -> str:
        """Where a file of the folder is for others."""
        return str(file)

    def try_writing(self) -> None:
        """Raises what would keep this process from writing elsewhere."""

    def fetch(self, names: Sequence[str] = (), skip: tuple[str, ...] = ()) -> None:
        """Fetches files that are not here: those with these names, or all but those with these endings."""

    def fetch_all(self) -> None:
        """Fetches all files that are not here, also those in folders."""

    def push(self, required: tuple[str, ...] = ("",)) -> None:
        """Puts there what is new or has changed; files with these endings must reach it."""

    def discard(self, files: Iterable[Path]) -> None:
        """Lets the next `push` remove there what was removed from the folder."""


@functools.cache
def _of_scheme(scheme: str) -> FileSystem:
    try:
        return FILE_SYSTEMS.get(scheme if scheme in FILE_SYSTEMS else "://")()
    except KeyError:
        raise InstallationError(
            f"{scheme}:// is not read by this installation, which lacks paddlevideo_fast.sources: type  "
            "pip install --force-reinstall paddlevideo_fast"
        ) from None


def file_system(path: str | os.PathLike[str]) -> FileSystem:
    """What opens a path.

    Raises:
        InstallationError: this installation has nothing for its scheme.
    """
    text = os.fspath(path)
    return _of_scheme(scheme_of(text) if "://" in text else "")


def use_storage(settings: StorageSettings) -> None:
    """Has this process, and those that it forks, read what is not on this machine as STORAGE says."""
    for name in FILE_SYSTEMS.names():
        FILE_SYSTEMS.get(name)().configure(settings)


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


def temp_path(path: Path) -> Path:
    """A temporary path beside `path` that nobody else has; a long name gives way to its digest."""
    prefix, name = f"{PARTIAL}{os.getpid()}.{machine_id()}.{uuid.uuid4().hex[:8]}-", path.name
    if len(os.fsencode(prefix + name)) > _LONGEST_BYTES:
        ending = path.suffix if len(os.fsencode(path.suffix)) <= _LONGEST_ENDING_BYTES else ""
        name = hashlib.blake2b(os.fsencode(name), digest_size=16).hexdigest() + ending
    return path.with_name(prefix + name)


def machine_id() -> str:
    """Tells this machine from others in the names of temporary files."""
    return f"{zlib.crc32(os.fsencode(socket.gethostname())):08x}"


def _sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
