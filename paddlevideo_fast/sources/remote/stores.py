"""Objects of remote stores: a path may be a URL.

`s3://`, `http://`, `gs://` and whatever else fsspec has a driver for. The driver finds credentials in its
own ways (environment, ~/.aws, fsspec's configuration); a URL holds none, and no message repeats one.

Every request is tried again with growing pauses. What cannot be had then has one of three ends:

    ObjectError, ObjectMissingError   this object is broken, changed or gone; the store has others
    StoreAwayError                    the store has not answered for any object for a while
    StoreAccessError                  the store refuses, at once: trying again does not help

A process that was forked opens its own connections, because it lacks the threads of its parent's.
"""

import contextlib
import logging
import os
import random
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar
from urllib.parse import urlsplit

from paddlevideo_fast.errors import (
    InstallationError,
    MissingExtraError,
    ObjectError,
    ObjectMissingError,
    StoreAccessError,
    StoreAwayError,
)
from paddlevideo_fast.extras import needing
from paddlevideo_fast.io.urls import scheme_of, secret_in, shown_url

T = TypeVar("T")

_EXTRA = {"http": "aiohttp", "https": "aiohttp", "s3": "s3fs", "s3a": "s3fs"}  # of the extra `remote`
_VERSIONS = (
    *("ETag", "etag", "generation", "md5Hash", "checksum"),
    *("Last-Modified", "LastModified", "last_modified", "mtime", "created"),
)
# Errors of drivers, by name, because their packages are imported by the drivers alone.
_REFUSED = {
    "ClientConnectorCertificateError",
    "CredentialRetrievalError",
    "NoAuthTokenError",
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "SSLError",
    "TokenRetrievalError",
}
_SENSELESS = {"InvalidURL", "NonHttpUrlClientError", "ParamValidationError", "TooManyRedirects"}
_PIECE_BYTES = 2**23  # of a whole object that is read
_SLOWEST_BYTES_PER_SEC = 2**16  # a body may take longer than an answer
_LONGEST_PAUSE_SEC = 10.0
_MAX_CONNECTIONS = 64


@dataclass(frozen=True)
class RetryPolicy:
    """How long a store is waited for.

    Attributes:
        timeout_sec: for one answer.
        num_attempts: of a request, while the store answers others.
        unreachable_sec: without any answer, after which the store counts as unreachable.
        first_pause_sec: before the second attempt; each further pause is twice as long.
    """

    timeout_sec: float = 30.0
    num_attempts: int = 8
    unreachable_sec: float = 300.0
    first_pause_sec: float = 0.25


@contextlib.contextmanager
def waiting_at_most(unreachable_sec: float) -> Iterator[None]:
    """Within it, a store that does not answer counts as away after this time at the latest."""
    before = _policy
    use_retry_policy(replace(before, unreachable_sec=min(unreachable_sec, before.unreachable_sec)))
    try:
        yield
    finally:
        use_retry_policy(before)


class Stat(NamedTuple):
    """What a store says about an object.

    Attributes:
        size: in bytes.
        version: changes with the content; "" where the store does not tell.
    """

    size: int
    version: str


def use_retry_policy(policy: RetryPolicy) -> None:
    """How long this process, and those that it forks, wait for stores from now on."""
    global _policy
    _policy = policy


def stat(url: str) -> Stat:
    """Size and version of an object.

    Raises:
        ObjectError: it cannot be read; an `ObjectMissingError` where it is not there.
        StoreAwayError: its store does not answer.
        StoreAccessError: its store refuses.
        MissingExtraError: the driver is not installed.
    """
    return _with_retries(url, lambda driver: driver.stat(url))


def exists(url: str) -> bool:
    """Whether there is such an object; errors as for `stat`."""
    try:
        stat(url)
    except ObjectMissingError:
        return False
    return True


def read_range(url: str, offset: int, size: int, version: str = "") -> bytes:
    """Exactly `size` bytes of an object.

    Args:
        url: of the object.
        offset: of the first byte.
        size: in bytes.
        version: as `stat` gave it; "": any.

    Raises:
        ObjectError: also where the object has another version by now.
    """
    return _with_retries(url, lambda driver: driver.read(url, offset, size, version)) if size else b""


def read_all(url: str, max_bytes: int) -> bytes:
    """The content of an object of at most `max_bytes`; all of it of one version."""
    size, version = stat(url)
    if size > max_bytes:
        raise ObjectError(url, f"it is larger than {max_bytes:,} bytes")
    pieces = range(0, size, _PIECE_BYTES)
    return b"".join(read_range(url, at, min(_PIECE_BYTES, size - at), version) for at in pieces)


def list_folder(url: str) -> list[str]:
    """Names of what lies in a folder, ascending; folders end in a slash. HTTP has no folders."""
    if url.startswith("http"):
        raise ObjectError(url, "a web server does not list folders; name the files in a list")
    key = urlsplit(url).path
    if key.startswith("//") or key.endswith("//"):
        raise ObjectError(url, "a folder with an empty name cannot be listed; name the files in a list")
    return _with_retries(url, lambda driver: driver.names(url))


def put(local: str | Path, url: str) -> None:
    """Writes a file to a store as it is now, also if it grows meanwhile; readers see all of it or nothing.

    Raises:
        ObjectError, StoreAwayError, StoreAccessError: the store does not take it.
        OSError: the file cannot be read.
    """
    with open(os.fspath(local), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        _with_retries(url, lambda driver: driver.put(file, size, url))


def remove(url: str) -> None:
    """Removes an object, if it is there."""
    with contextlib.suppress(ObjectMissingError):
        _with_retries(url, lambda driver: driver.remove(url))


class TransientError(Exception):
    """A request that failed and may succeed if it is tried again.

    Attributes:
        cause: in one line.
        alive: the store itself works.
        pause_sec: for which the store asks.
    """

    def __init__(self, cause: str, alive: bool = False, pause_sec: float = 0.0) -> None:
        self.cause, self.alive, self.pause_sec = cause, alive, pause_sec
        super().__init__(cause)


class _Driver:
    """What all of fsspec's drivers can do."""

    def __init__(self, fs: Any) -> None:
        self.fs = fs

    def run(self, coroutine: Callable[..., Any], *args: Any, size: int = 0, **keys: Any) -> Any:
        """The result of a coroutine of an asynchronous driver, in time."""
        from fsspec.asyn import sync

        limit_sec = _policy.timeout_sec + size / _SLOWEST_BYTES_PER_SEC
        return sync(self.fs.loop, coroutine, *args, timeout=limit_sec, **keys)

    def stat(self, url: str) -> Stat:
        info = self.fs.info(url)
        if info["type"] == "directory":
            raise ObjectError(url, "it is a folder")
        return Stat(int(info["size"]), _version_of(info))

    def read(self, url: str, offset: int, size: int, version: str) -> bytes:
        data = self.fs.cat_file(url, offset, offset + size)
        if version and self.stat(url).version != version:  # the driver has no condition for a read
            raise _changed(url)
        return _whole(data, size)

    def names(self, url: str) -> list[str]:
        own, names = self.fs._strip_protocol(url).rstrip("/"), []
        for entry in self.fs.ls(url, detail=True):
            path, is_folder = entry["name"].rstrip("/"), entry["type"] == "directory"
            if path and not (is_folder and path == own):  # a folder in it with an empty name
                names.append(path.rpartition("/")[2] + "/" * is_folder)
        return sorted(names)

    def put(self, file: BinaryIO, size: int, url: str) -> None:
        """Writes the first `size` bytes of a file."""
        self.send(file.name, url)
        if self.stat(url).size == size:
            return
        # Drivers send a file up to its end. This one may have grown, or its name is another file's by now.
        with tempfile.NamedTemporaryFile(suffix=Path(file.name).suffix) as copy:
            file.seek(0)
            for at in range(0, size, _PIECE_BYTES):
                copy.write(file.read(min(_PIECE_BYTES, size - at)))
            copy.flush()
            self.send(copy.name, url)
        if self.stat(url).size != size:
            raise TransientError("what was written has another size", alive=True)

    def send(self, path: str, url: str) -> None:
        self.fs.put_file(path, url)

    def remove(self, url: str) -> None:
        self.fs.rm_file(url)


class _S3Driver(_Driver):
    """Checks the version of what it reads in the same answer."""

    def read(self, url: str, offset: int, size: int, version: str) -> bytes:
        bucket, key, of_version = self.fs.split_path(url)
        wanted = {"Bucket": bucket, "Key": key, "Range": f"bytes={offset}-{offset + size - 1}"}
        if of_version:
            wanted["VersionId"] = of_version

        async def answer() -> bytes:
            answer = await self.fs._call_s3("get_object", **wanted)
            body = answer["Body"]
            try:
                if version and _version_of(answer) != version:
                    raise _changed(url)
                if int(answer["ContentLength"]) != size:
                    raise TransientError("the answer has another length than was asked for", alive=True)
                return await body.read()
            finally:
                body.close()

        return _whole(self.run(answer, size=size), size)


class _HTTPDriver(_Driver):
    """Reads ranges itself: fsspec takes an answer without a look at its status, length and version."""

    def stat(self, url: str) -> Stat:
        return self.run(self._answer, url, 0, 1, None)[1]

    def read(self, url: str, offset: int, size: int, version: str) -> bytes:
        data, stat = self.run(self._answer, url, offset, size, offset, size=size)
        if version and stat.version != version:
            raise _changed(url)
        return data

    def send(self, path: str, url: str) -> None:
        self.fs.put_file(path, url, method="put")

    def remove(self, url: str) -> None:
        self.run(self._delete, url)

    async def _delete(self, url: str) -> None:
        session = await self.fs.set_session()
        async with session.delete(self.fs.encode_url(url), **self.fs.kwargs) as answer:
            _check_status(url, answer.status, answer.headers)

    async def _answer(self, url: str, offset: int, size: int, wanted: int | None) -> tuple[bytes, Stat]:
        """Body and version of a range; without `wanted` only the version."""
        options = dict(self.fs.kwargs)
        asked = {"Range": f"bytes={offset}-{offset + size - 1}", "Accept-Encoding": "identity"}
        options["headers"] = {**(options.get("headers") or {}), **asked}
        session = await self.fs.set_session()
        async with session.get(self.fs.encode_url(url), **options) as answer:
            headers = answer.headers
            if answer.status == 416 and wanted is None and headers.get("Content-Range", "").endswith("*/0"):
                return b"", Stat(0, _version_of(headers))
            _check_status(url, answer.status, headers)
            if headers.get("Content-Encoding", "identity") != "identity":
                raise ObjectError(url, "the server compresses it, so ranges cannot be read")
            total = _total_bytes(answer.status, headers, offset, size)
            stat = Stat(total, _version_of(headers))
            if wanted is None:
                return b"", stat
            if answer.status == 200 and (offset, size) != (0, total):
                raise TransientError("the server sends the whole file in place of a range", alive=True)
            pieces, num_bytes = [], 0
            async for piece in answer.content.iter_chunked(2**18):
                pieces.append(piece)
                num_bytes += len(piece)
                if num_bytes > size:
                    break
        return _whole(b"".join(pieces), size), stat


def _total_bytes(status: int, headers: Mapping[str, str], offset: int, size: int) -> int:
    """Bytes of the whole object, as an answer to a request for a range tells."""
    if status == 200:
        length = headers.get("Content-Length", "")
        if not length.isdigit():
            raise TransientError("the server does not tell its size", alive=True)
        return int(length)
    told = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", headers.get("Content-Range", "").strip())
    if not told:
        raise TransientError(f"the server answers {status} without a usable Content-Range", alive=True)
    first, last, total = map(int, told.groups())
    if first != offset or last != min(offset + size, total) - 1:
        raise TransientError("the server sends another range than was asked for", alive=True)
    return total


def _check_status(url: str, status: int, headers: Mapping[str, str]) -> None:
    """Raises what a status stands for; 200 to 299 are well."""
    if not 200 <= status < 300:
        raise _error_of(url, status, headers)


def _error_of(url: str, status: int, headers: Mapping[str, str]) -> Exception:
    if status in (401, 403, 407):
        return _refused(url, f"answers {status}")
    if status in (404, 410):
        return ObjectMissingError(url, f"there is no such object: the store answers {status}")
    if status in (412, 416):
        return _changed(url)
    if status >= 500 or status in (408, 425, 429):
        asked = str(headers.get("Retry-After") or headers.get("retry-after") or "")
        pause_sec = min(float(asked), 60.0) if asked.isdigit() else 0.0
        return TransientError(f"the store answers {status}", pause_sec=pause_sec)
    return ObjectError(url, f"the store answers {status}")


def _version_of(told: Mapping[str, Any]) -> str:
    """What changes with the content, of all that drivers and servers tell."""
    for name in _VERSIONS:
        if told.get(name):
            return str(told[name])
    return ""


def _whole(data: bytes, size: int) -> bytes:
    if len(data) != size:
        what = "ends early" if len(data) < size else "is too long"
        raise TransientError(f"the answer {what}: it has {len(data)} of {size} bytes", alive=True)
    return data


def _changed(url: str) -> ObjectError:
    return ObjectError(url, "was changed while it was in use; start again with what is there now")


def _refused(url: str, how: str) -> StoreAccessError:
    return StoreAccessError(
        f"{shown_url(url)}: the store {how}: check the credentials (for s3:// those of AWS: environment or "
        "~/.aws; else as the fsspec driver says) and what they allow"
    )


def _diagnosed(url: str, error: Exception) -> Exception:
    """What a driver's error means: a `TransientError` if trying again may help.

    Texts of drivers are not repeated: they may hold signed URLs and keys.
    """
    if isinstance(error, (TransientError, ObjectError, StoreAccessError, InstallationError)):
        return error
    if isinstance(error, (TypeError, AttributeError, NameError, KeyError)):
        return error  # of a program, not of a store
    status = getattr(error, "status", getattr(error, "code", None))  # of aiohttp; of gcsfs
    if isinstance(status, int) and "HttpProcessingError" in _kinds(error.__cause__):  # aiohttp's own status
        text = "the server sends what is no HTTP, or more than its Content-Length says"
        return TransientError(text, alive=True)
    answers = [(status, getattr(error, "headers", None) or {})]
    cause: BaseException | None = error
    while cause is not None:
        about = getattr(cause, "response", None)  # of botocore
        if isinstance(about, dict) and "ResponseMetadata" in about:
            about = about["ResponseMetadata"]
            answers.append((int(about.get("HTTPStatusCode", 500)), about.get("HTTPHeaders", {})))
        cause = cause.__cause__
    for status, headers in answers:
        if isinstance(status, int) and 300 <= status < 600:
            return _error_of(url, status, headers)
    name, kinds = type(error).__name__, _kinds(error)
    if kinds & _REFUSED:
        return _refused(url, f"cannot be used ({name})")
    if isinstance(error, PermissionError):
        return _refused(url, "refuses access")
    if isinstance(error, FileNotFoundError):
        return ObjectMissingError(url, "there is no such object")
    if isinstance(error, IsADirectoryError):
        return ObjectError(url, "it is a folder")
    if isinstance(error, ValueError) or kinds & _SENSELESS:
        return ObjectError(url, f"it cannot be asked for ({name})")
    if isinstance(error, TimeoutError) or kinds & {"TimeoutError", "FSTimeoutError"}:
        return TransientError(f"no answer within {_policy.timeout_sec:g} s")
    return TransientError(f"the connection fails ({name})")


def _kinds(error: BaseException | None) -> set[str]:
    """Names of an error's classes."""
    return {kind.__name__ for kind in type(error).__mro__}


class _Store:
    """A store as this process knows it.

    Attributes:
        name: for messages.
        alive_at: when it last answered, of `time.monotonic`.
        well: URLs of two objects that it gave last.
    """

    def __init__(self, scheme: str, name: str) -> None:
        self.name = name
        self.alive_at = float("-inf")
        self.well = ("", "")
        self._scheme = scheme
        self._driver: _Driver | None = None
        self._inherited: list[_Driver] = []
        self._lock = threading.Lock()

    def driver(self, url: str) -> _Driver:
        """Of this process."""
        with self._lock:
            if self._driver is None:
                self._driver = _open_driver(self._scheme, url)
            return self._driver

    def renew(self) -> None:
        """Leaves the connections to the process that this one was forked from.

        They are kept: dropped, they would wait for the loop of their own thread, which is not here.
        """
        self._lock = threading.Lock()
        if self._driver is not None:
            self._inherited.append(self._driver)
            self._driver = None

    def answered(self, url: str) -> None:
        """Notes that it gave an object."""
        self.alive_at = time.monotonic()
        if url != self.well[0]:
            self.well = (url, self.well[0])

    def lives(self, since: float, besides: str) -> bool:
        """Whether it has answered since then; asks about an object that it had, if need be."""
        for url in sorted(filter(None, self.well), key=besides.__eq__):
            if self.alive_at >= since:
                break
            with contextlib.suppress(Exception):
                self.driver(url).stat(url)
                self.alive_at = time.monotonic()
        return self.alive_at >= since


_policy = RetryPolicy()
_stores: dict[str, _Store] = {}


def _renew() -> None:
    for store in _stores.values():
        store.renew()


os.register_at_fork(after_in_child=_renew)


def _store_of(url: str) -> _Store:
    scheme = scheme_of(url)
    place = urlsplit(url).netloc.rpartition("@")[2]
    return _stores.setdefault(f"{scheme}://{place}", _Store(scheme, f"{scheme}://{place}"))


def _open_driver(scheme: str, url: str) -> _Driver:
    name = shown_url(url)
    with needing("remote", f"reading {name}", "fsspec", _EXTRA.get(scheme, "")):
        import fsspec
    if secret_in(url) == "a user name or password":
        raise StoreAccessError(
            f"{name}: a URL with a user name and password is not taken, because configs, logs and "
            "checkpoints would repeat it; give them as the fsspec driver reads them: environment, ~/.aws, or "
            "FSSPEC_* variables"
        )
    options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
    try:
        kind = fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        if scheme == "hf":
            raise MissingExtraError("huggingface_hub", "hf", f"reading {name}") from None
        if scheme in _EXTRA:
            raise MissingExtraError(_EXTRA[scheme], "remote", f"reading {name}") from None
        told = str(error).partition("\n")[0]
        raise StoreAccessError(f"{name}: its driver is not installed: {told}") from None
    except ValueError:
        raise StoreAccessError(f"{name}: fsspec has no driver for {scheme}://") from None
    given = fsspec.config.conf.get(scheme, {})
    if _EXTRA.get(scheme) == "s3fs":
        for library in ("botocore", "aiobotocore"):  # they tell where credentials were found
            logging.getLogger(library).setLevel(logging.WARNING)
        # attempts are counted here, and not once more in two layers below
        config = {"retries": {"total_max_attempts": 1}, "max_pool_connections": _MAX_CONNECTIONS}
        options["config_kwargs"] = {**config, **given.get("config_kwargs", {})}
        fs = kind(**options)
        fs.retries = 1
        return _S3Driver(fs)
    if _EXTRA.get(scheme) == "aiohttp":
        import aiohttp

        longest = aiohttp.ClientTimeout(total=None)  # `_Driver.run` has the limit
        options["client_kwargs"] = {"timeout": longest, **given.get("client_kwargs", {})}
        return _HTTPDriver(kind(**options))
    return _Driver(kind(**options))


def _with_retries(url: str, ask: Callable[[Any], T]) -> T:
    """What `ask` gives with the driver of a URL, after as many attempts as it takes; see the module."""
    store = _store_of(url)
    began, num_attempts = None, 0
    while True:
        try:
            answer = ask(store.driver(url))
        except Exception as error:
            failure = _diagnosed(url, error)
            if isinstance(failure, ObjectError):
                store.alive_at = time.monotonic()
            if not isinstance(failure, TransientError):
                raise failure from None
        else:
            store.answered(url)
            return answer
        now = time.monotonic()
        began = now if began is None else began
        num_attempts += 1
        if failure.alive:
            store.alive_at = now
        if num_attempts >= _policy.num_attempts and store.lives(began, url):
            raise ObjectError(url, f"{failure.cause}; tried {num_attempts} times") from None
        silent_sec = time.monotonic() - max(began, store.alive_at)
        if silent_sec >= _policy.unreachable_sec:
            raise StoreAwayError(
                f"{store.name}: the store is away: no good answer for {silent_sec:.0f} s ({failure.cause}); "
                "start again when it is back. With  resume: auto  a training goes on from its last checkpoint"
            ) from None
        pause_sec = min(_policy.first_pause_sec * 2 ** min(num_attempts - 1, 16), _LONGEST_PAUSE_SEC)
        time.sleep(max(failure.pause_sec, pause_sec * random.uniform(0.5, 1.0)))
