"""What a worker process does: it takes tasks from a pipe and writes batches into shared arrays."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import Any, List, Optional, Sequence, Set, Tuple

import cv2
import numpy as np

from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.loader.activity import Board
from paddlevideo_fast.loader.collate import Batch, make_batch
from paddlevideo_fast.loader.errors import LoaderError
from paddlevideo_fast.loader.request import ClipRequest
from paddlevideo_fast.loader.shared import SharedBuffer

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class Task:
    """A batch to be made.

    Attributes:
        run: the run that it is for.
        number: its place in the run.
        slot: the shared array to write to.
        requests: what it is made of.
    """

    run: int
    number: int
    slot: int
    requests: List[ClipRequest]


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
    batch: Optional[Batch] = None
    shape: Optional[Tuple[int, ...]] = None
    error: Optional[Exception] = None


class _Unwanted(Exception):
    """The run that a batch is for has ended."""


def serve(
    dataset: Any,
    board: Board,
    buffers: Sequence[SharedBuffer],
    pipe: Connection,
    worker: int,
    parent: int,
    cores: Optional[Set[int]],
) -> None:
    """Answers tasks until the process is killed.

    Args:
        dataset: makes the samples.
        board: where the worker says what it is at.
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
    cv2.setNumThreads(0)  # the workers are the parallelism; the readers decode with one thread as well
    if cores is not None:
        os.sched_setaffinity(0, cores)
    tasks: SimpleQueue[Task] = SimpleQueue()
    # taken off the pipe at once: else two that wait for each other to read would wait for ever
    Thread(target=_take_all, args=(pipe, tasks), daemon=True).start()
    while True:
        task = tasks.get()
        dataset.on_record = partial(_begin, board, worker, task.run)
        pipe.send(_answer(dataset, buffers[task.slot], task))
        board.rest(worker)


def _take_all(pipe: Connection, tasks: SimpleQueue[Task]) -> None:
    try:
        while True:
            tasks.put(pipe.recv())
    except (EOFError, OSError):  # the parent has closed its end, or is gone
        os._exit(1)


def _begin(board: Board, worker: int, run: int, index: int) -> None:
    if board.run != run:
        raise _Unwanted
    board.begin(worker, index)


def _answer(dataset: Any, buffer: SharedBuffer, task: Task) -> Answer:
    answer = Answer(task.run, task.number, task.slot)
    try:
        batch = make_batch(dataset, task.requests, buffer.array)
    except _Unwanted:
        return answer
    # as text: an exception of any kind need not survive the way, and its traceback does not
    except PaddleVideoFastError as error:
        return replace(answer, error=LoaderError(str(error)))
    except Exception:
        text = f"error in a loader worker:\n{traceback.format_exc()}"
        return replace(answer, error=RuntimeError(text))
    shape = batch.clips.shape if len(batch) else None
    return replace(answer, batch=replace(batch, clips=np.empty((0, 0, 0, 0, 3), np.uint8)), shape=shape)


def end_with(parent: int) -> None:
    """Has the kernel kill this process when its parent ends, by SIGKILL too; on Linux."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)
