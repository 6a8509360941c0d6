"""Paths in stores: `UrlPath` joins and reads like a `Path`, and `StoreFiles` opens them for the core."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from paddlevideo_fast.config.settings import StorageSettings
from paddlevideo_fast.io.paths import FileSystem
from paddlevideo_fast.io.urls import bare_url, join, shown_url
from paddlevideo_fast.registry import FILE_SYSTEMS
from paddlevideo_fast.sources.remote import stores
from paddlevideo_fast.sources.remote.block_cache import RemoteFile, has_cache, use_cache
from paddlevideo_fast.sources.remote.sync import Mirror, fetched

if TYPE_CHECKING:
    from paddlevideo_fast.decode.source import VideoSource
    from paddlevideo_fast.decode.stored_index import StoredIndex

_MOST_BYTES = 2**30  # of an object that is read as a whole


class UrlPath(str):
    """A URL, for code that joins and reads paths; `as_path` makes it.

    Folders exist as far as something is in them. A web server cannot list them. A URL keeps all its slashes.
    Its names are without its query, which may be a signature; see `urls`.
    """

    def __init__(self, url: str) -> None:
        scheme, _, place = bare_url(self).partition("://")
        self._folder, _, self.name = place.removesuffix("/").rpartition("/")
        self._scheme = scheme
        pure = PurePosixPath(self.name)
        self.stem, self.suffix = pure.stem, pure.suffix

    as_posix = str.__str__

    def __repr__(self) -> str:
        return f"UrlPath({shown_url(self)!r})"

    def __lt__(self, other: str) -> bool:
        return self.split("/") < other.split("/")

    def __truediv__(self, name: str | os.PathLike) -> UrlPath:
        return UrlPath(join(self, os.fspath(name)))

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
        own, above = bare_url(self), bare_url(os.fspath(folder)).removesuffix("/")
        if own == above or own == f"{above}/":
            return PurePosixPath()
        below = own.removeprefix(f"{above}/").removesuffix("/")
        if below == own or "" in below.split("/"):
            raise ValueError(f"{own} is not below {above}, or an empty name is between them")
        return PurePosixPath(below)

    def is_file(self) -> bool:
        """Whether there is such an object, which is no folder."""
        with contextlib.suppress(stores.ObjectError):
            return stores.exists(self)
        return False

    def is_dir(self) -> bool:
        """Whether something is in it, as far as the store can tell."""
        with contextlib.suppress(stores.ObjectError):
            return bool(stores.list_folder(self)) and not self.is_file()  # a file lists itself
        return False

    def exists(self) -> bool:
        """Whether there is such an object or folder."""
        return self.is_file() or self.is_dir()

    def iterdir(self) -> Iterator[UrlPath]:
        """What is in the folder."""
        return (self / name.rstrip("/") for name in stores.list_folder(self))

    def glob(self, pattern: str) -> Iterator[UrlPath]:
        """What is in the folder and fits a pattern of names."""
        return (path for path in self.iterdir() if PurePosixPath(path.name).match(pattern))

    def read_bytes(self, max_bytes: int = _MOST_BYTES) -> bytes:
        """The content of the object."""
        return stores.read_all(self, max_bytes)

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The text of the object."""
        return self.read_bytes().decode(encoding, errors)

    def stat(self, **_: Any) -> Any:
        """Size and version, as far as `os.stat` has fields for them."""
        status = stores.stat(self)
        return SimpleNamespace(st_size=status.size, st_mtime_ns=status.version)

    def unlink(self, missing_ok: bool = False) -> None:
        """Removes the object."""
        if not missing_ok and not self.is_file():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), shown_url(self))
        stores.remove(self)

    def mkdir(self, **_: Any) -> None:
        """Does nothing: folders of stores need not be made."""

    def absolute(self) -> UrlPath:
        """The same: a URL starts from no folder."""
        return self


@FILE_SYSTEMS.register("://")
class StoreFiles(FileSystem):
    """Objects of stores and files of web servers, with any scheme that fsspec has a driver for."""

    is_local = False

    def fetches_ahead(self) -> bool:
        return has_cache()

    def configure(self, settings: StorageSettings) -> None:
        policy = stores.RetryPolicy(settings.timeout_sec, unreachable_sec=settings.away_after_sec)
        stores.use_retry_policy(policy)
        use_cache(settings.cache_dir, settings.cache_gb, settings.block_kb * 2**10)

    def path(self, path: str | os.PathLike[str]) -> UrlPath:
        return UrlPath(os.fspath(path))

    def exists(self, path: str) -> bool:
        return stores.exists(path)

    def walk(self, folder: Any, onerror: Any = None, followlinks: bool = False) -> Iterator[Any]:
        names = stores.list_folder(folder)
        folders = [name.rstrip("/") for name in names if name.endswith("/")]
        yield folder, folders, [name for name in names if not name.endswith("/")]
        for name in folders:
            yield from self.walk(folder / name)

    def read(self, path: Any, max_bytes: int) -> bytes:
        return stores.read_all(os.fspath(path), max_bytes)

    read_unchecked = read

    def open(self, path: str, version: tuple[int, str] | None = None) -> RemoteFile:
        return RemoteFile(path, version and stores.Stat(*version))

    def frame_index(self, source: VideoSource) -> StoredIndex | None:
        from paddlevideo_fast.sources.remote.frame_index import index_by_ranges

        return index_by_ranges(source)

    def local_copy(self, path: Any) -> str:
        return fetched(os.fspath(path))

    def output_folder(self, path: str) -> Mirror:
        return Mirror(path)

    @contextlib.contextmanager
    def atomic_write(self, targets: Sequence[Any], sync: bool) -> Iterator[list[Path]]:
        """Temporary files that become objects if the block ends without an error."""
        with tempfile.TemporaryDirectory(prefix="upload-") as folder:
            partials = [Path(folder, url.name) for url in targets]
            yield partials
            if len(targets) > 1:
                stores.remove(targets[-1])
            for partial, url in zip(partials, targets):
                stores.put(partial, url)
