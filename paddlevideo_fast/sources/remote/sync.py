"""Local copies of what lies in a store: files that a library must open, and folders that a command writes.

fetched(url)      a file, kept for good under the user's cache folder, once for each version
staged(url)       a temporary folder, put into the store when the work in it is done
mirrored(url)     a folder that work goes on with: fetched before, and put into the store after it
Mirror(url)       the output folder of a run: a local folder that goes into the store whenever it is asked to
"""

import contextlib
import hashlib
import json
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from paddlevideo_fast.errors import StoreAccessError, StoreAwayError
from paddlevideo_fast.io.files import as_path, atomic_write, atomic_write_text, read_text, walk
from paddlevideo_fast.io.paths import OutputFolder, file_system
from paddlevideo_fast.io.urls import join, scheme_of
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.sources.remote import stores

logger = get_logger(__name__)

_PIECE_BYTES = 2**23
_MARK = ".json"  # a file with this ending says that those of its name are complete
_TRIAL, _STATES = ".writable", ".mirror.json"
_LOCAL_ONLY = (".", "earlier-")  # beginnings of names


def cache_folder() -> Path:
    """The user's folder for what can be fetched again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paddlevideo_fast"


def fetched(url: str) -> str:
    """The path of a copy of the present version of an object, which is fetched once.

    Raises:
        ObjectError: it cannot be read.
        StoreAwayError, StoreAccessError: its store does not answer, or refuses.
        OSError: the copy cannot be written.
    """
    stat = stores.stat(url)
    digest = hashlib.blake2b(f"{url}\0{stat.version}\0{stat.size}".encode(), digest_size=16).hexdigest()
    target = cache_folder() / "files" / digest / (as_path(url).name or "file")
    if not target.is_file():
        _download(url, stat, target)
    return str(target)


def _download(url: str, stat: stores.Stat, target: Path) -> None:
    with atomic_write(target) as partial, open(partial, "wb") as file:
        for at in range(0, stat.size, _PIECE_BYTES):
            file.write(stores.read_range(url, at, min(_PIECE_BYTES, stat.size - at), stat.version))


@contextlib.contextmanager
def staged(folder: str | Path) -> Iterator[Path]:
    """A folder to write to: the folder itself, or a temporary one whose files go to a URL.

    They are put there when the block ends without an error.
    """
    if not scheme_of(folder):
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory(prefix="upload-") as temporary:
        yield Path(temporary)
        for name in _names(Path(temporary)):
            stores.put(Path(temporary, name), join(os.fspath(folder), name))


@contextlib.contextmanager
def mirrored(folder: str | Path) -> Iterator[Path]:
    """A folder to go on with: the folder itself, or for a URL its `Mirror`.

    What is there is fetched; what is new is put there when the block ends, also where it ends in an error.
    """
    mirror = file_system(folder).output_folder(os.fspath(folder))
    mirror.fetch_all()
    try:
        yield mirror.folder
    finally:
        mirror.push()


def _names(folder: Path) -> list[str]:
    """The files below a folder, marks last; without temporary files, locks and what is aside."""
    names = []
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        if path.is_file() and not any(part.startswith(_LOCAL_ONLY) for part in parts):
            names.append("/".join(parts))
    return sorted(names, key=lambda name: (name.endswith(_MARK), name))


class _State(NamedTuple):
    """A file that was the same in a folder and in the store: its size and time here, its version there."""

    size: int
    mtime_ns: int
    version: str


class Mirror(OutputFolder):
    """A local folder for what a run writes to a URL.

    The folder is the same in each run on this machine, so that what could not be put into the store is not
    lost: a file here stays until the store has another version than it had when the two were last the same.
    A file that is missing here stays in the store: only `discard` removes something there.

    Args:
        url: of the output.

    Attributes:
        url: as given.
        folder: the local one.
        there: names of what is in the store, of which those of folders end in a slash; empty before `fetch`.
    """

    there: set[str]

    def __init__(self, url: str) -> None:
        self.url = url.removesuffix("/")  # further slashes belong to the key
        digest = hashlib.blake2b(self.url.encode(), digest_size=8).hexdigest()
        self.folder = cache_folder() / "runs" / f"{digest}-{as_path(self.url).name}"
        self.there = set()
        self._same: dict[str, _State] = {}
        self._discarded: set[str] = set()
        self._lock = threading.Lock()
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            told = json.loads(read_text(self.folder / _STATES, 2**24))
            self._same = {str(name): _State(*state) for name, state in told.items()}

    def address(self, file: Path) -> str:
        """The URL of a file of the folder."""
        return join(self.url, str(file.relative_to(self.folder)))

    def try_writing(self) -> None:
        with tempfile.NamedTemporaryFile() as empty:
            stores.put(empty.name, join(self.url, _TRIAL))
        stores.remove(join(self.url, _TRIAL))

    def fetch(self, names: Sequence[str] = (), skip: tuple[str, ...] = ()) -> None:
        """Looks what is in the store, and fetches files of it that are not here, or of another size.

        Args:
            names: of files to fetch, as far as they are there; none: all but those in folders.
            skip: endings of names that are not fetched.

        Raises:
            ObjectError, StoreAwayError, StoreAccessError: the store cannot be listed or read.
        """
        with contextlib.suppress(stores.ObjectMissingError):
            self.there = set(stores.list_folder(self.url))
        files = (name for name in self.there if not name.endswith(("/", *skip)))
        self._bring([name for name in files if not names or name in names])

    def fetch_all(self) -> None:
        """Fetches all files, also those in folders; see `fetch`."""
        with contextlib.suppress(stores.ObjectMissingError):
            folders = walk(as_path(self.url))
            self._bring(
                [join(folder, file)[len(self.url) + 1 :] for folder, _, files in folders for file in files]
            )

    def fetch_named(self, names: Sequence[str]) -> None:
        """Fetches those of these files that are there. A web server, too, can be asked so."""
        self._bring([name for name in names if stores.exists(join(self.url, name))])

    def _bring(self, names: Sequence[str]) -> None:
        for name in sorted(names, key=lambda name: (name.endswith(_MARK), name)):
            if name.startswith(_LOCAL_ONLY):
                continue
            url, path = join(self.url, name), self.folder / name
            stat, before = stores.stat(url), self._same.get(name)
            if not path.is_file() or before is None or before.version != stat.version:
                _download(url, stat, path)
                self._same[name] = _State(*_look(path), stat.version)
        self._note()

    def discard(self, files: Iterable[Path]) -> None:
        """Lets the next `push` remove files and folders from the store; what is here again by then stays."""
        with self._lock:
            known = self.there | set(self._same)
            for name in (str(file.relative_to(self.folder)) for file in files):
                self._discarded |= {
                    one
                    for one in known
                    if one == name or (one.startswith(f"{name}/") and not one.endswith("/"))
                }

    def push(self, required: tuple[str, ...] = ("",)) -> None:
        """Puts what is new or has changed into the store, marks last, and removes there what was discarded.

        Args:
            required: endings of the names that must reach the store; "": all. One of the others that the
                store does not take is a warning, and the next push tries again. The others go before the
                marks: a run that dies between them and goes on elsewhere has the records of its checkpoint.

        Raises:
            ObjectError, StoreAwayError, StoreAccessError: the store does not take it; the folder has it.
        """
        with self._lock:
            now = {}
            for name in _names(self.folder):
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    now[name] = _look(self.folder / name)
            changed = [name for name, state in now.items() if self._same.get(name, ())[:2] != state]
            try:
                for name in changed:
                    if name.endswith(_MARK) and name in self._same:  # its files are about to change
                        self._remove(name)
                first = [name for name in changed if name.endswith(required)]
                marks = [name for name in first if name.endswith(_MARK)]
                for name in first[: len(first) - len(marks)]:
                    self._put(name, now[name])
                self._put_optional({name: now[name] for name in changed if not name.endswith(required)})
                for name in marks:
                    self._put(name, now[name])
                self._discarded -= set(now)
                for name in sorted(self._discarded, key=lambda name: not name.endswith(_MARK)):
                    self._remove(name)
                    self._discarded.remove(name)
            finally:
                self._note()

    def _put_optional(self, looks: Mapping[str, tuple[int, int]]) -> None:
        try:
            for name, look in looks.items():
                try:
                    self._put(name, look)
                except OSError as error:  # of this file; the store may take the others
                    logger.warning("%s; the next upload tries again", error)
        except (StoreAccessError, StoreAwayError) as error:
            logger.warning("%s; the next upload tries again", error)

    def _put(self, name: str, look: tuple[int, int]) -> None:
        url = join(self.url, name)
        stores.put(self.folder / name, url)
        self._same[name] = _State(*look, stores.stat(url).version)
        self.there.add(name)

    def _remove(self, name: str) -> None:
        stores.remove(join(self.url, name))
        self._same.pop(name, None)
        self.there.discard(name)

    def _note(self) -> None:
        """Keeps what is the same in the folder and in the store, for the next run."""
        atomic_write_text(self.folder / _STATES, json.dumps(self._same))


def _look(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns
