"""What the scripts of this folder share: errors, progress, processes, whole files."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Optional, Sequence

# So that `python data/x.py` works in a clone that is not installed.
sys.path.insert(1, str(Path(__file__).resolve().parent.parent))

import cv2
from tqdm import tqdm

from paddlevideo_fast.errors import PaddleVideoFastError


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


def default_workers() -> int:
    """The CPUs this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


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
    pool = ProcessPoolExecutor(min(workers, len(tasks)), initializer=_start_worker)
    try:
        yield from pool.map(function, tasks, chunksize=chunk)
    except BrokenProcessPool as error:
        raise ScriptError("a worker process died (out of memory?); try fewer --workers") from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start_worker() -> None:
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
