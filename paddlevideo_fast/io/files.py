"""Files that appear whole or not at all, and files of users that are read with limits.

A file is written beside its place under a temporary name, synced to the disk and renamed:

    .saving-<process id>.<machine>.<random>-<name>  →  <name>

So a reader never sees half a file, and a process that dies leaves the earlier file as it was. Threads,
processes and machines that write the same file do not meet in its temporary one. `sweep` removes temporary
files of dead processes. Errors are `OSError`; callers know what to tell their user.

A path may have a scheme, see `paths`. What is written to a store is written to a temporary folder, and put
there as a whole.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from paddlevideo_fast.io.paths import PARTIAL, file_system, machine_id
from paddlevideo_fast.io.urls import scheme_of


def as_path(path: str | os.PathLike[str]) -> Any:
    """A `Path`, or an object that is used like it; see `FileSystem.path`."""
    return file_system(path).path(path)


def local_copy(path: str | os.PathLike[str]) -> str:
    """Where a file is on this machine; one from elsewhere is fetched once for each version."""
    return file_system(path).local_copy(path)


def working_folder(output: str | os.PathLike[str]) -> Path:
    """Where this machine keeps files of an output folder: there, or in a folder that is named after it."""
    return file_system(output).output_folder(os.fspath(output)).folder


def walk(folder: Any, onerror: Any = None, followlinks: bool = False) -> Iterator[Any]:
    """`os.walk`, also for folders that are not on this machine."""
    return file_system(folder).walk(folder, onerror, followlinks)


@contextlib.contextmanager
def atomic_write(path: str | Path, sync: bool = True) -> Iterator[Path]:
    """Gives a temporary path to write to; the file takes its place when the block ends without an error.

    The folder is made where it is missing. After an error nothing is left but what was there before.
    Without `sync`, a power failure may lose or empty the file. That is for thousands of files that can be
    made again, because waiting for the disk takes milliseconds a file.
    """
    with atomic_write_all(path, sync=sync) as (partial,):
        yield partial


def atomic_write_all(*paths: str | Path, sync: bool = True) -> AbstractContextManager[list[Path]]:
    """`atomic_write` for files that belong together; the last one is the mark that the others are complete.

    An earlier mark is removed before the first file takes its place, and the new mark takes its place last.
    So a set with a mark is complete, whenever the process dies.
    """
    targets = [as_path(path) for path in paths]
    return file_system(targets[0]).atomic_write(targets, sync)


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
    return file_system(path).read(path, max_bytes)


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


def fingerprint(path: Path) -> dict[str, int | str]:
    """Size in bytes and SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return {"size": path.stat().st_size, "sha256": digest.hexdigest()}


def as_json(value: Any, ensure_ascii: bool = True) -> str:
    """A value as a line of JSON: paths as texts, and as null NaN and infinite numbers, which JSON lacks."""
    finite = json.loads(json.dumps(value, default=os.fspath), parse_constant=lambda name: None)
    return json.dumps(finite, ensure_ascii=ensure_ascii)


def sweep(folder: Path, alone: bool = False) -> None:
    """Removes what processes of this machine that died while they wrote have left in `folder`.

    Args:
        folder: the folder.
        alone: no other process writes to it, so that nothing needs to be kept.
    """
    for stale in folder.glob(f"{PARTIAL}*"):
        if alone or not _is_another_process(stale.name[len(PARTIAL) :].partition("-")[0]):
            if stale.is_dir():
                shutil.rmtree(stale)
            else:
                stale.unlink()


def _is_another_process(owner: str) -> bool:
    """Whether the owner in a temporary name runs, or may run elsewhere; own files are left-overs."""
    pid, _, machine = owner.partition(".")
    if machine and machine.partition(".")[0] != machine_id():
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


def hint_at_working_folder(path: str | Path) -> str:
    """For the message that a file is missing: where its path starts; empty for an absolute path or a URL."""
    is_complete = scheme_of(path) or os.path.isabs(path)
    return "" if is_complete else f"; paths start from the current folder, {os.getcwd()}"
