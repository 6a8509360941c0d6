"""What a tool has written, and a run that is killed while it writes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path


def content(folder: Path) -> dict[str, bytes]:
    """The bytes of each file, by its path below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def run_and_kill(words: Sequence[object], folder: Path, pattern: str, count: int) -> None:
    """Kills a process, and those that it started, once so many files in a folder fit a pattern."""
    words, quiet = [str(word) for word in words], subprocess.DEVNULL
    running = subprocess.Popen(words, stdout=quiet, stderr=quiet, start_new_session=True)
    try:
        while len(list(folder.glob(pattern))) < count and running.poll() is None:
            time.sleep(0.005)
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
