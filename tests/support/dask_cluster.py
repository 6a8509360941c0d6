"""A Dask cluster of processes on this machine, which speak TCP on the loopback interface."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]


class DaskCluster:
    """A scheduler and its workers; workers may be added and killed.

    Args:
        folder: for the logs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._num_started = 0
        self.workers: list[subprocess.Popen] = []
        words = ["--host=127.0.0.1", "--port=0", "--no-dashboard", "--no-show"]
        self.scheduler = self._start("scheduler", words)
        self.address = self._said("scheduler-1", r"Scheduler at:\s+(tcp://\S+)")

    def add_worker(self, environment: dict[str, str] | None = None, cwd: str = "/") -> subprocess.Popen:
        """Starts a worker of one thread and waits until the scheduler has it."""
        words = [self.address, "--nthreads=1", "--no-nanny", "--no-dashboard"]
        words.append(f"--local-directory={self._folder}")
        worker = self._start("worker", words, environment, cwd)
        self.workers.append(worker)
        self._said(f"worker-{self._num_started}", r"(Registered to):")
        return worker

    def stop(self) -> None:
        for process in [*self.workers, self.scheduler]:
            process.kill()
            process.wait()

    def _start(self, kind: str, words: list[str], environment: dict[str, str] | None = None, cwd: str = "/"):
        self._num_started += 1
        with open(self._folder / f"{kind}-{self._num_started}.log", "wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.dask_{kind}", *words],
                stdout=log,
                stderr=log,
                cwd=cwd,
                env={**os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1", **(environment or {})},
            )

    def _said(self, log: str, pattern: str) -> str:
        import time

        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            found = re.search(pattern, (self._folder / f"{log}.log").read_text())
            if found:
                return found[1]
            time.sleep(0.05)
        raise AssertionError((self._folder / f"{log}.log").read_text())


@contextlib.contextmanager
def dask_cluster(folder: Path, num_workers: int = 2) -> Iterator[DaskCluster]:
    """A cluster that ends with the block."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster = DaskCluster(folder)
    try:
        for _ in range(num_workers):
            cluster.add_worker()
        yield cluster
    finally:
        cluster.stop()
