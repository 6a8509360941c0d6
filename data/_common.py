"""What the scripts of this folder share: errors, progress, processes, whole files."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Optional, Sequence

# So that `python data/x.py` works in a clone that is not installed.
sys.path.insert(1, str(Path(__file__).resolve().parent.parent))

import cv2
from tqdm import tqdm

from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.loader.worker_process import end_with

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO)
_LOCK_PATIENCE_SEC = 3.0


class ScriptError(PaddleVideoFastError):
    """Something the user of a script can put right."""


def run_main(main: Callable[[Optional[Sequence[str]]], int]) -> None:
    """Runs a script's main; expected errors become one line on stderr and exit code 1, Ctrl-C code 130."""
    try:
        code = main(None)
    except (PaddleVideoFastError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on", file=sys.stderr)
        code = 130
    sys.exit(code)


def run_parallel(
    function: Callable[[Any], Any], tasks: Sequence[Any], workers: int, chunk: int = 1
) -> Iterator[Any]:
    """`function` of each task, in their order, from several processes.

    Args:
        function: a function of a module; its arguments and results are pickled.
        tasks: one argument each.
        workers: processes; 1 runs everything in this one.
        chunk: tasks that are handed over at a time.

    Raises:
        ScriptError: a process died.
    """
    if workers <= 1 or len(tasks) <= 1:
        yield from map(function, tasks)
        return
    pool = ProcessPoolExecutor(min(workers, len(tasks)), initializer=_start_worker, initargs=(os.getpid(),))
    try:
        yield from pool.map(function, tasks, chunksize=chunk)
    except BrokenProcessPool as error:
        raise ScriptError("a worker process died (out of memory?); try fewer --workers") from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start_worker(parent: int) -> None:
    end_with(parent)
    cv2.setNumThreads(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to answer


def progress(results: Iterable[Any], total: int, what: str) -> Iterator[Any]:
    """Passes `results` on; shows a bar on a terminal and about ten plain lines elsewhere."""
    if sys.stderr.isatty():
        yield from tqdm(results, total=total, desc=what)
        return
    step = max(1, total // 10)
    began_sec = time.monotonic()
    for count, result in enumerate(results, 1):
        yield result
        if count % step == 0 or count == total:
            per_sec = count / max(time.monotonic() - began_sec, 1e-9)
            left = duration((total - count) / per_sec)
            print(f"{what}: {count}/{total}, {per_sec:.3g}/s, {left} left", flush=True)


def duration(seconds: float) -> str:
    """A time in the unit that suits it."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


@contextmanager
def only_run(folder: Path) -> Iterator[None]:
    """Makes the folder of the results, and keeps it for this run: two would spoil each other's files.

    Raises:
        ScriptError: it is a file, or another run writes to it.
    """
    if folder.exists() and not folder.is_dir():
        raise ScriptError(f"--output {folder}: is a file; give a folder")
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        if not _lock(handle):
            raise ScriptError(
                f"--output {folder}: another run writes to it; wait for its end, or choose another folder"
            )
        yield
    finally:
        os.close(handle)


def _lock(handle: int) -> bool:
    """Locks a folder until all processes that have the handle end; False where another run has it.

    The workers of a run that was killed end a moment after it, so a locked folder is tried again for a while.
    """
    deadline = time.monotonic() + _LOCK_PATIENCE_SEC
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        except OSError as error:  # network file systems may not lock folders
            print(f"warning: no lock on --output ({error.strerror}): start no second run", file=sys.stderr)
            return True


def disk_error(path: Path, error: Exception) -> Optional[ScriptError]:
    """What to raise where `error` says that `path` cannot be written to; None where it says another thing."""
    number = getattr(error, "errno", None)
    if number not in _DISK_ERRORS:
        return None
    return ScriptError(
        f"{path}: cannot be written: {os.strerror(number)}; what is finished is kept: run the same command "
        "again when there is room"
    )


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file so that it is there completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Writes a text file, one entry a line, completely or not at all."""
    write_whole(path, "".join(f"{line}\n" for line in lines).encode())
