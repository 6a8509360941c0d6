"""One writer at a time: a second process that wants an output that is being written learns who writes it.

A lock is a file beside what is written: `.lock` in a folder that is written as a whole, and
`.lock-<checksum>` for single files in a folder. The kernel locks it (flock) for a process and those that it
forks. So a lock ends with its holder, whatever ended it, and the lock file that a killed process leaves stops
nobody.

Some file systems have no flock (Lustre without the mount option, some network drives): no output goes there.

Jobs on several machines may write disjoint shares of one output. Each job locks its own share, with the file
`.lock-share-<work>-<number>`. The shares of one work do not exclude each other. They exclude whoever writes
the output as a whole, and the shares of any other work: each looks for such locks once it has its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import shlex
import socket
import stat
import sys
import time
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from paddlevideo_fast.errors import OutputError, OutputInUseError
from paddlevideo_fast.io.files import as_path, working_folder
from paddlevideo_fast.io.urls import masked
from paddlevideo_fast.log import printable
from paddlevideo_fast.machine import process_state

LOCK = ".lock"

_SHARE = "-share-"
_PATIENCE_SEC = 3.0  # workers of a killed run end a moment after it, and with them its lock
_LONGEST_COMMAND = 200


class Lock(NamedTuple):
    """A lock that is held, for processes elsewhere that work for its holder.

    Attributes:
        path: the lock file.
        key: random text in it.
    """

    path: str
    key: str

    @property
    def is_seen(self) -> bool:
        """Whether this machine sees the file of the holder, and not that of a later one, or none."""
        with contextlib.suppress(OSError):
            with os.scandir(os.path.dirname(self.path)) as entries:  # a network file system looks again
                next(entries, None)
            handle = os.open(self.path, os.O_RDONLY)
            try:
                holder = _read(handle)
            finally:
                os.close(handle)
            return holder is not None and holder.key == self.key
        return False


@contextlib.contextmanager
def only_writer(
    folder: str | Path, file: str = "", given_by: str = "--output", share: tuple[str, int] | None = None
) -> Iterator[Lock]:
    """Keeps other processes, and other calls in this one, from writing to the same place.

    The folder is made where it is missing, and removed again if nothing is written to it.

    Args:
        folder: folder of the output.
        file: name of the file that is written, or what the names of several have in common; "" locks the
            whole folder.
        share: name of a work that several jobs share, and number of this one's share of the output; None: the
            output as a whole.
        given_by: flag or config key by which the user chooses the output, for the error.

    Raises:
        OutputInUseError: another process holds the place.
        OutputError: `folder` is a file, or cannot be written.
    """
    output, folder = as_path(folder), working_folder(folder)  # a store has no locks: one of this machine
    new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
    whole = folder / (f"{LOCK}-{zlib.crc32(os.fsencode(file)):08x}" if file else LOCK)
    path = whole if share is None else whole.with_name(f"{whole.name}{_SHARE}{share[0]}-{share[1]}")
    try:
        handle, key = _lock(path, whole, f"{given_by} {printable(str(output / file))}", given_by)
    except OSError as error:
        if folder.is_file():
            raise OutputError(f"{given_by} {folder}: is a file; give a folder") from error
        reason = error.strerror or error
        raise OutputError(f"{given_by} {error.filename or folder}: cannot be written: {reason}") from error
    owner = os.getpid()
    try:
        yield Lock(os.path.abspath(path), key)
    finally:
        if os.getpid() == owner:  # not in a forked process
            _remove(path, handle)
            with contextlib.suppress(OSError):
                for empty in new_folders:
                    empty.rmdir()  # fails where something was written
        os.close(handle)


@dataclass(frozen=True)
class _Holder:
    """The process that holds a lock, as the lock file has it.

    Attributes:
        pid: its number.
        host: name of its machine.
        command: what was started, shortened.
        since: local time at which it took the lock.
        started: see `machine.ProcessState`; tells it from a later process of the same number.
        key: random, tells this lock from any other.
    """

    pid: int
    host: str
    command: str
    since: str
    started: int
    key: str

    @classmethod
    def of_this_process(cls) -> _Holder:
        state = process_state(os.getpid())
        command = masked(shlex.join(sys.argv))
        return cls(
            os.getpid(),
            socket.gethostname(),
            command if len(command) <= _LONGEST_COMMAND else command[: _LONGEST_COMMAND - 1] + "…",
            time.strftime("%Y-%m-%d %H:%M:%S"),
            state.started if state else 0,
            uuid.uuid4().hex,
        )

    @property
    def state(self) -> str:
        """What it does, in one word; "ended" where it is gone, and "" on another machine."""
        if self.host != socket.gethostname():
            return ""
        state = process_state(self.pid)
        return state.name if state and state.started == self.started else "ended"

    def __str__(self) -> str:
        notes = {
            "ended": ", but has ended: a process that it started still runs",
            "stopped": " and is stopped",
        }
        return (
            f"process {self.pid} on {self.host} ({printable(self.command)}) writes to it since {self.since}"
            f"{notes.get(self.state, '')}"
        )


def _lock(path: Path, whole: Path, what: str, given_by: str) -> tuple[int, str]:
    """Locks a file; returns its handle and the key in it; see `only_writer`."""
    deadline = time.monotonic() + _PATIENCE_SEC
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except (FileNotFoundError, FileExistsError):
            # a holder has just removed the folder, unless something else has its name or it cannot be made
            if _is_no_folder(path.parent) or time.monotonic() > deadline:
                raise
            continue
        holder = _read(handle)
        is_held = _is_held(handle)
        if not is_held and _names(path, handle):
            key = _sign(handle)
            is_held, holder = _rival(path, whole)
            if not is_held:
                return handle, key
            _remove(path, handle)  # both may have met: after a while of its own length, each tries again
        os.close(handle)
        if is_held and time.monotonic() > deadline:
            who = holder or "another process writes to it"
            raise OutputInUseError(f"{what}: {who}; wait for its end, or choose another {given_by}")
        # not held: another process has just removed the file
        time.sleep(random.uniform(0.02, 0.08) if is_held else 0)


def _is_no_folder(path: Path) -> bool:
    """Whether something that is no folder has this name."""
    with contextlib.suppress(OSError):
        return not stat.S_ISDIR(os.lstat(path).st_mode)
    return False


def _is_held(handle: int) -> bool:
    """Whether another process holds a lock file; else locks it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        reason = f"its file system cannot lock files ({error.strerror}); choose another"
        raise OSError(error.errno, reason) from error
    return False


def _rival(path: Path, whole: Path) -> tuple[bool, _Holder | None]:
    """Whether a lock that excludes the lock `path` of `place` or of a share of it is held, and by whom."""
    shares: list[Path] = [*whole.parent.glob(f"{whole.name}{_SHARE}*")]
    work = path.name.rpartition("-")[0]  # what the names of the shares of one work begin with
    rivals = shares if path == whole else [whole, *(s for s in shares if s.name.rpartition("-")[0] != work)]
    for rival in rivals:
        try:
            handle = os.open(rival, os.O_RDWR)
        except OSError:
            continue
        holder, is_held = _read(handle), _is_held(handle)
        if not is_held:  # a killed job has left it
            _remove(rival, handle)
        os.close(handle)
        if is_held:
            return True, holder
    return False, None


def _remove(path: Path, handle: int) -> None:
    """Removes a lock file that this process holds."""
    with contextlib.suppress(OSError):
        if _names(path, handle):  # the folder may be gone, and another one in its place
            path.unlink()


def _sign(handle: int) -> str:
    """Writes this process into a lock file that it holds; returns the key."""
    own = _Holder.of_this_process()
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps(asdict(own)).encode(), 0)
    return own.key


def _read(handle: int) -> _Holder | None:
    """Who wrote a lock file; None where nobody did, or another version of this package."""
    try:
        fields: dict[str, Any] = json.loads(os.pread(handle, 10_000, 0))
        return _Holder(**fields)
    except (ValueError, TypeError):
        return None


def _names(path: Path, handle: int) -> bool:
    """Whether `path` is the file that is open as `handle`."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except OSError:
        return False
