"""One writer at a time: a second process that wants an output that is being written learns who writes it.

A lock is a file beside what is written: `.lock` in a folder that is written as a whole, and
`.lock-<checksum>` for single files in a folder. The kernel locks it (flock) for a process and those that it
forks. So a lock ends with its holder, whatever ended it, and the lock file that a killed process leaves stops
nobody.

Some file systems have no flock (Lustre without the mount option, some network drives). There, the file itself
is the lock. The file of a process of this machine that has ended is replaced. One of another machine must be
removed by hand, because nobody here can know whether its process still runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import socket
import sys
import time
import uuid
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Union

from paddlevideo_fast.errors import OutputError, OutputInUseError
from paddlevideo_fast.machine import process_state
from paddlevideo_fast.names import printable

LOCK = ".lock"

_PATIENCE_SEC = 3.0  # workers of a killed run end a moment after it, and with them its lock
_SETTLE_SEC = 0.2
_LONGEST_COMMAND = 200


@contextlib.contextmanager
def only_writer(folder: Union[str, Path], file: str = "", given_by: str = "--output") -> Iterator[None]:
    """Keeps other processes, and other calls in this one, from writing to the same place.

    The folder is made where it is missing, and removed again if nothing is written to it.

    Args:
        folder: folder of the output.
        file: name of the file that is written, or what the names of several have in common; "" locks the
            whole folder.
        given_by: flag or config key by which the user chooses the output, for the error.

    Raises:
        OutputInUseError: another process holds the place.
        OutputError: `folder` is a file, or cannot be written.
    """
    folder = Path(folder)
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    path = folder / (f"{LOCK}-{zlib.crc32(os.fsencode(file)):08x}" if file else LOCK)
    try:
        handle = _lock(path, f"{given_by} {printable(str(folder / file))}", given_by)
    except OSError as error:
        if folder.is_file():
            raise OutputError(f"{given_by} {folder}: is a file; give a folder") from error
        reason = error.strerror or error
        raise OutputError(f"{given_by} {error.filename or folder}: cannot be written: {reason}") from error
    owner = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == owner:  # not in a forked process
            with contextlib.suppress(OSError):
                if _names(path, handle):  # the folder may be gone, and another one in its place
                    path.unlink()
                for empty in made:
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
        command = shlex.join(sys.argv)
        return cls(
            os.getpid(),
            socket.gethostname(),
            command if len(command) <= _LONGEST_COMMAND else command[: _LONGEST_COMMAND - 1] + "…",
            time.strftime("%Y-%m-%d %H:%M:%S"),
            state.started if state else 0,
            uuid.uuid4().hex,
        )

    @property
    def is_here(self) -> bool:
        """Whether it belongs to this machine."""
        return self.host == socket.gethostname()

    @property
    def state(self) -> str:
        """What it does, in one word; "ended" where it is gone, and "" on another machine."""
        if not self.is_here:
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


def _lock(path: Path, place: str, given_by: str) -> int:
    """Locks a file and returns its handle; see `only_writer`."""
    deadline = time.monotonic() + _PATIENCE_SEC
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)  # the holder may just have removed it
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            continue
        holder = _read(handle)
        has_flock, is_held = True, False
        advice = f"wait for its end, or choose another {given_by}"
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_held = True
        except OSError:
            has_flock, is_held = False, holder is not None and holder.state != "ended"
            if holder is not None and not holder.is_here:
                advice += f". Remove {path} if that process has ended"
        if not is_held and _names(path, handle) and _sign(handle, holder, has_flock):
            return handle
        os.close(handle)
        if is_held and time.monotonic() > deadline:
            raise OutputInUseError(f"{place}: {holder or 'another process writes to it'}; {advice}")
        time.sleep(0.05 if is_held else 0)  # not held: another process has just removed the file


def _sign(handle: int, before: Optional[_Holder], has_flock: bool) -> bool:
    """Writes this process into a lock file; returns whether no other process has done so meanwhile."""
    if _read(handle) != before:
        return False
    own = _Holder.of_this_process()
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps(asdict(own)).encode(), 0)
    if not has_flock:  # one that read the file when this process did writes in this time: the last one wins
        time.sleep(_SETTLE_SEC)
    return _read(handle) == own


def _read(handle: int) -> Optional[_Holder]:
    """Who wrote a lock file; None where nobody did, or another version of this package."""
    try:
        fields: Dict[str, Any] = json.loads(os.pread(handle, 10_000, 0))
        return _Holder(**fields)
    except (ValueError, TypeError):
        return None


def _names(path: Path, handle: int) -> bool:
    """Whether `path` is the file that is open as `handle`."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except OSError:
        return False
