"""What each worker is doing, on a board in shared memory, and the warning when no batch comes."""

from __future__ import annotations

import mmap
import time
from typing import Any, Optional

import numpy as np

from paddlevideo_fast.loader.errors import LoaderError
from paddlevideo_fast.log import get_logger

_IDLE = -1


class Board:
    """Which record each worker is at and since when, and which run its work is for.

    Every number is written by one process alone and in one piece, so the board needs no lock.

    Args:
        num_workers: rows of the board.
    """

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self._run = np.frombuffer(mmap.mmap(-1, 8), np.int64)
        self._index = np.frombuffer(mmap.mmap(-1, 8 * num_workers), np.int64)
        self._since = np.frombuffer(mmap.mmap(-1, 8 * num_workers), np.float64)
        self._index[:] = _IDLE

    @property
    def run(self) -> int:
        """Number of the run that is under way; work for another one is not wanted any more."""
        return int(self._run[0])

    def next_run(self) -> int:
        """Ends the run under way and gives the number of the next."""
        self._run[0] += 1
        return self.run

    def begin(self, worker: int, index: int) -> None:
        """The worker has turned to a record."""
        self._since[worker] = time.monotonic()  # one clock for all processes
        self._index[worker] = index

    def rest(self, worker: int) -> None:
        """The worker has nothing to do."""
        self._index[worker] = _IDLE

    def describe(self, worker: int, records: Any) -> str:
        """The worker's row in words.

        Args:
            worker: its number.
            records: of the dataset; an item has a `path`.
        """
        index = int(self._index[worker])
        if index == _IDLE:
            return f"worker {worker} has nothing to do"
        seconds = time.monotonic() - self._since[worker]
        return f"worker {worker} has been at {records[index].path} for {seconds:.0f} s"


class Watchdog:
    """Says what the workers are at when a batch is long in coming, and at last gives up.

    Args:
        board: what the workers do.
        records: of the dataset.
        timeout_sec: wait after which a warning comes, and another one each time it has passed again.
        limit_sec: wait after which the run stops; None for never.
    """

    def __init__(self, board: Board, records: Any, timeout_sec: float, limit_sec: Optional[float]) -> None:
        self.board = board
        self.records = records
        self.timeout_sec = timeout_sec
        self.limit_sec = limit_sec
        self.begin_wait()

    def begin_wait(self) -> None:
        """The wait for a batch begins now."""
        self._began = time.monotonic()
        self._warn_at_sec = self.timeout_sec

    @property
    def patience_sec(self) -> float:
        """Seconds until `check` has something to say."""
        at = self._warn_at_sec if self.limit_sec is None else min(self._warn_at_sec, self.limit_sec)
        return max(self._began + at - time.monotonic(), 0.0)

    def check(self) -> None:
        """Warns or gives up if it is time to.

        Raises:
            LoaderError: the wait has reached its limit.
        """
        waited = time.monotonic() - self._began
        told = "; ".join(
            self.board.describe(worker, self.records) for worker in range(self.board.num_workers)
        )
        if self.limit_sec is not None and waited >= self.limit_sec:
            raise LoaderError(f"no batch for {waited:.0f} s, the limit of DATASET.stall_limit_sec: {told}")
        if waited >= self._warn_at_sec:
            self._warn_at_sec += self.timeout_sec
            get_logger().warning(f"no batch for {waited:.0f} s: {told}")
