"""The worker process: its main loop, the shared memory for its batches, and the board of its progress."""

import atexit
import ctypes
import gc
import mmap
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any

import cv2
import numpy as np

from paddlevideo_fast.errors import LoaderError, PaddleVideoFastError
from paddlevideo_fast.loader.collate import Batch, ClipSource, make_batch
from paddlevideo_fast.loader.fetching import NUM_THREADS, Fetcher
from paddlevideo_fast.loader.request import ClipRequest
from paddlevideo_fast.log import get_logger


class SharedBuffer:
    """An array that grows, written by one process and read by another.

    Made before the fork; each process then maps it for itself. The memory belongs to a file without a name
    and goes back to the system with the last process that has it, however that ends. Where the system has
    memfd (Linux 3.17 and a Python built for it) the size of /dev/shm is no limit.
    """

    def __init__(self) -> None:
        self._file = _unnamed_file()
        self._mapping = mmap.mmap(-1, 1)

    def array(self, shape: tuple[int, ...]) -> np.ndarray:
        """The first bytes as a uint8 array; a view of a 1-D array that nothing else refers to.

        Raises:
            LoaderError: there is not enough shared memory.
        """
        size = int(np.prod(shape))
        if len(self._mapping) < size:
            if os.fstat(self._file.fileno()).st_size < size:
                self._grow(size)
            self._mapping = mmap.mmap(self._file.fileno(), size)
        return np.frombuffer(self._mapping, np.uint8, size).reshape(shape)

    def _grow(self, size: int) -> None:
        try:
            # without its pages, a write past what the system has would end the process by SIGBUS
            os.posix_fallocate(self._file.fileno(), 0, size)
        except OSError as error:
            raise LoaderError(
                f"no shared memory for a batch of {size / 2**20:.0f} MiB ({error.strerror}): look at "
                "df -h /dev/shm and free -m (a container: docker run --shm-size 8g); lower num_workers or "
                "batch_size"
            ) from error


def _unnamed_file() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("paddlevideo_fast"), "r+b", buffering=0)
    folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
    return tempfile.TemporaryFile(dir=folder, buffering=0)


_IDLE = -1


class Board:
    """Which record each worker is at, or that it is between two, since when, and which run its work is for.

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
        self._since[:] = time.monotonic()

    @property
    def run(self) -> int:
        """Number of the run that is under way; work for another one is not wanted any more."""
        return int(self._run[0])

    def is_at(self, run: int) -> bool:
        """Whether this run is under way."""
        return self.run == run

    def next_run(self) -> int:
        """Ends the run under way and gives the number of the next."""
        self._run[0] += 1
        return self.run

    def begin(self, worker: int, index: int = _IDLE) -> None:
        """The worker has turned to a record, or without `index` has come to the end of a batch."""
        self._since[worker] = time.monotonic()  # one clock for all processes
        self._index[worker] = index

    def at(self, worker: int) -> tuple[int | None, float]:
        """Index of the record that a worker is at, None between two batches; and for how many seconds."""
        index = int(self._index[worker])
        return None if index == _IDLE else index, time.monotonic() - float(self._since[worker])


@dataclass(eq=False)
class Watchdog:
    """Warns with what the workers do if a batch takes too long; stops the run at the limit.

    Args:
        timeout_sec: wait after which a warning comes, and another one each time it has passed again.
        limit_sec: wait after which the run stops; None for never.
    """

    timeout_sec: float
    limit_sec: float | None

    def begin_wait(self) -> None:
        """The wait for a batch begins now."""
        self._began = time.monotonic()
        self._warn_at_sec = self.timeout_sec

    @property
    def patience_sec(self) -> float:
        """Seconds until `check` has something to say."""
        at = self._warn_at_sec if self.limit_sec is None else min(self._warn_at_sec, self.limit_sec)
        return max(self._began + at - time.monotonic(), 0.0)

    def check(self, describe: Callable[[], str]) -> None:
        """Warns or gives up if it is time to.

        Args:
            describe: says what the workers do.

        Raises:
            LoaderError: the wait has reached its limit.
        """
        waited = time.monotonic() - self._began
        report = describe()
        if self.limit_sec is not None and waited >= self.limit_sec:
            raise LoaderError(f"no batch for {waited:.0f} s, the limit of DATASET.stall_limit_sec: {report}")
        if waited >= self._warn_at_sec:
            self._warn_at_sec += self.timeout_sec
            get_logger().warning(f"no batch for {waited:.0f} s: {report}")


_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class Task:
    """A batch to be made, or to be fetched from a store because it will be asked for.

    Attributes:
        run: the run that it is for.
        number: of the batch in the run.
        requests: the clips of the batch.
        slot: the shared array to write to; None: fetch only.
    """

    run: int
    number: int
    requests: list[ClipRequest]
    slot: int | None = None


@dataclass(frozen=True)
class Answer:
    """What became of a task.

    Attributes:
        run, number, slot: the task's.
        batch: the batch with empty `clips`; None where there was an error, or nobody waits for it.
        shape: of the clips in the slot; None where there are none.
        error: what to raise where the batch is wanted.
    """

    run: int
    number: int
    slot: int
    batch: Batch | None = None
    shape: tuple[int, ...] | None = None
    error: Exception | None = None


class _Unwanted(Exception):
    """The run that a batch is for has ended."""


def serve(
    dataset: ClipSource,
    board: Board,
    buffers: Sequence[SharedBuffer],
    pipe: Connection,
    worker: int,
    parent: int,
    cores: set[int] | None,
) -> None:
    """Answers tasks until the process is killed.

    Args:
        dataset: makes the samples.
        board: where the worker reports its progress.
        buffers: the slots.
        pipe: tasks come from it, answers go to it.
        worker: number of this worker.
        parent: process that ends this one with its own end.
        cores: where to run; None for anywhere.
    """
    # A terminal sends Ctrl-C, and a job scheduler SIGTERM, to all processes of a run: the parent finishes its
    # step with the workers' help, saves, and then ends them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_with(parent)
    # What the parent has made is never collected here: a video reader of decord would wait for its threads,
    # which a fork does not bring along.
    gc.freeze()
    cv2.setNumThreads(0)  # the workers are the parallelism; the readers decode with one thread as well
    if cores is not None:
        os.sched_setaffinity(0, cores)
    tasks: SimpleQueue[Task] = SimpleQueue()
    # taken off the pipe at once: else two that wait for each other to read would wait for ever
    Thread(target=_take_all, args=(pipe, tasks, dataset, board), daemon=True).start()
    while True:
        task = tasks.get()
        dataset.on_record = partial(_begin, board, worker, task.run)
        answer = _answer(dataset, buffers, task)
        board.begin(worker)
        pipe.send(answer)


def _take_all(pipe: Connection, tasks: SimpleQueue[Task], dataset: Any, board: Board) -> None:
    fetcher: Fetcher | None = None
    try:
        while True:
            task = pipe.recv()
            if task.slot is not None:
                tasks.put(task)
                continue
            if fetcher is None:
                fetcher = Fetcher(dataset, max(NUM_THREADS // board.num_workers, 2))
            fetcher.ask([task.requests], partial(board.is_at, task.run))
    except (EOFError, OSError):  # the parent has closed its end, or is gone
        os._exit(1)


def _begin(board: Board, worker: int, run: int, index: int) -> None:
    if board.run != run:
        raise _Unwanted
    board.begin(worker, index)


def _answer(dataset: ClipSource, buffers: Sequence[SharedBuffer], task: Task) -> Answer:
    assert task.slot is not None
    answer = Answer(task.run, task.number, task.slot)
    try:
        batch = make_batch(dataset, task.requests, buffers[task.slot].array)
    except _Unwanted:
        return answer
    except PaddleVideoFastError as error:
        return replace(answer, error=_fit_to_send(error))
    except Exception:  # as text: any exception need not survive the way, and its traceback does not
        text = f"error in a loader worker:\n{traceback.format_exc()}"
        return replace(answer, error=RuntimeError(text))
    shape = batch.clips.shape if len(batch) else None
    return replace(answer, batch=replace(batch, clips=np.empty((0, 0, 0, 0, 3), np.uint8)), shape=shape)


def _fit_to_send(error: PaddleVideoFastError) -> PaddleVideoFastError:
    """The error itself; its text as a LoaderError where it holds what another process cannot have."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return LoaderError(str(error))
    return error


def end_at_exit(owner: object, processes: list[Any]) -> weakref.finalize:
    """Ends forked processes with their owner, or with this process; called, it ends them at once.

    Args:
        owner: the object that the processes work for.
        processes: of multiprocessing; the list may be filled later.
    """
    # last in, first out: the exit handler of multiprocessing would wait for processes that still live
    stop = weakref.finalize(owner, _end, processes, os.getpid())
    stop.atexit = False
    atexit.register(stop)
    return stop


def _end(processes: list[Any], parent: int) -> None:
    if os.getpid() != parent:
        return  # a forked process that drops its copy of the owner
    for process in processes:
        process.kill()  # it holds nothing that needs an orderly end
    for process in processes:
        process.join(5)


def end_with(parent: int) -> None:
    """Has the kernel kill this process when its parent ends, by SIGKILL too; on Linux."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)
