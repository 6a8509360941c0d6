"""Processes that make batches: started once, fed through pipes, answering through a ring of shared arrays."""

import atexit
import contextlib
import gc
import multiprocessing
import os
import signal
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any, Literal

from paddlevideo_fast.errors import LoaderError
from paddlevideo_fast.loader.collate import Batch, ClipSource
from paddlevideo_fast.loader.fetching import newly_coming
from paddlevideo_fast.loader.request import ClipRequest
from paddlevideo_fast.loader.worker_process import (
    Answer,
    Board,
    SharedBuffer,
    Task,
    Watchdog,
    end_at_exit,
    serve,
)
from paddlevideo_fast.log import printable
from paddlevideo_fast.machine import answering_ctrl_c, available_cores, process_state

NUM_AHEAD = 2  # batches that a worker has been asked for: it goes on while the answer to one is on its way
NUM_LENT = 2  # batches that a consumer may hold without a copy: the last one while it asks for the next


@dataclass(frozen=True)
class WorkerOptions:
    """How the workers of a loader are run.

    Args:
        affinity: "spread" pins each worker to a core of its own, from the last one on, and leaves the first
            to this process as long as there are others.
        stall_timeout_sec: wait for a batch after which a warning names the files that are worked on.
        stall_limit_sec: wait after which the run stops; None for never.
        prefetch: batches whose files in a store are fetched before they are made; 0: none.
    """

    affinity: Literal["spread"] | None = None
    stall_timeout_sec: float = 60.0
    stall_limit_sec: float | None = None
    prefetch: int = 16


class WorkerPool:
    """Makes batches in forked processes and hands them over in order.

    The batches lie in shared memory and are handed over as views of it. A place is used again when the last
    reference to its batch is gone; a consumer that keeps more than `NUM_LENT` batches gets copies of the
    others, so that it never runs into its own wait.

    The pool must be made in a thread that outlives it: the kernel ends the workers with that thread.

    Args:
        dataset: makes the samples; the workers have it as it is at this moment.
        num_workers: how many processes.
        options: how they are run.
    """

    def __init__(self, dataset: ClipSource, num_workers: int, options: WorkerOptions | None = None) -> None:
        options = options or WorkerOptions()
        self.num_workers = num_workers
        self._dataset = dataset
        self._prefetch = options.prefetch
        self._records = dataset.records
        self._board = Board(num_workers)
        self._watchdog = Watchdog(options.stall_timeout_sec, options.stall_limit_sec)
        self._buffers = [SharedBuffer() for _ in range(num_workers * NUM_AHEAD + NUM_LENT)]
        self._free: deque[int] = deque(range(len(self._buffers)))
        self._lent: set[int] = set()
        self._asked: list[deque[Task]] = [deque() for _ in range(num_workers)]  # in order of the answers
        self._done: dict[int, Answer] = {}
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._stop = end_at_exit(self, self._processes)
        gc.collect()  # what is of no use any more ends here, where its threads are: see `serve`
        context = multiprocessing.get_context("fork")
        with answering_ctrl_c():
            for worker, cores in enumerate(_cores(num_workers, options.affinity)):
                mine, theirs = context.Pipe()
                arguments = (dataset, self._board, self._buffers, theirs, worker, os.getpid(), cores)
                process = context.Process(target=serve, args=arguments, daemon=True)
                process.start()
                theirs.close()
                self._pipes.append(mine)
                self._processes.append(process)

    @property
    def alive(self) -> bool:
        """Whether the pool can make batches."""
        return self._stop.alive and all(process.is_alive() for process in self._processes)

    def close(self) -> None:
        """Ends the workers at once; batches that were handed over stay."""
        self._next_run()
        self._stop()
        atexit.unregister(self._stop)
        for pipe in self._pipes:
            pipe.close()

    def run(self, batches: Sequence[list[ClipRequest]]) -> Iterator[Batch]:
        """Makes batches and yields them in order. A run ends where the next one begins.

        Args:
            batches: the requests of each.

        Raises:
            PaddleVideoFastError: an error that the user can fix, as the worker raised it.
            LoaderError: a worker that died; a wait past its limit; a run that was ended by another one.
            RuntimeError: any other error of a worker, with the worker's traceback.
        """
        run = self._next_run()
        todo = deque(range(len(batches)))
        num_ahead = self._prefetch if self._dataset.is_remote else 0
        try:
            for number in range(len(batches)):
                for coming in range(len(batches))[newly_coming(number, num_ahead)] if num_ahead else ():
                    # the worker that will probably make a batch fetches it
                    self._send(coming % self.num_workers, Task(run, coming, batches[coming]))
                if run != self._board.run:
                    text = "this epoch was ended by another one of the same loader, or by its close()"
                    raise LoaderError(text)
                self._watchdog.begin_wait()
                self._ask(run, todo, batches)
                while number not in self._done:
                    self._receive(run)
                    self._ask(run, todo, batches)
                yield self._hand_over(self._done.pop(number))
        finally:
            if run == self._board.run:
                self._next_run()

    def _next_run(self) -> int:
        """Ends the current run: its answers are dropped and its open tasks cancelled."""
        self._free.extend(answer.slot for answer in self._done.values())
        self._done.clear()
        return self._board.next_run()

    def _send(self, worker: int, task: Task) -> None:
        with contextlib.suppress(ConnectionError):  # the worker has died: `_receive` reports it
            self._pipes[worker].send(task)

    def _ask(self, run: int, todo: deque[int], batches: Sequence[list[ClipRequest]]) -> None:
        """Gives out work to those who have the least, as far as there are places for it."""
        while todo and self._free:
            first = (
                todo[0] % self.num_workers
            )  # of those who have equally little, the one that has fetched it
            turns = [*range(first, self.num_workers), *range(first)]
            worker = min(turns, key=lambda worker: len(self._asked[worker]))
            if len(self._asked[worker]) >= NUM_AHEAD:
                return
            number = todo.popleft()
            task = Task(run, number, batches[number], self._free.popleft())
            self._asked[worker].append(task)
            self._send(worker, task)

    def _receive(self, run: int) -> None:
        """Waits for an answer, and takes all that there are."""
        while not (ready := wait(self._pipes, self._watchdog.patience_sec)):
            self._watchdog.check(lambda: "; ".join(map(self._describe, range(self.num_workers))))
        for pipe in ready:
            worker = self._pipes.index(pipe)  # type: ignore[arg-type]
            try:
                answer = self._pipes[worker].recv()
            except (EOFError, ConnectionError):
                raise self._death_of(worker) from None
            self._asked[worker].popleft()
            if answer.run == run:
                self._done[answer.number] = answer
            else:
                self._free.append(answer.slot)

    def _death_of(self, worker: int) -> LoaderError:
        self._processes[worker].join(1)
        code = self._processes[worker].exitcode
        how = f"by {signal.Signals(-code).name}" if code is not None and code < 0 else f"with code {code}"
        what = self._describe(worker)
        self.close()
        return LoaderError(
            f"a loader worker ended {how} ({what}): where memory ran out (dmesg tells), lower num_workers or "
            "batch_size; else a file that is named here crashes the decoder: take it out of the list"
        )

    def _describe(self, worker: int) -> str:
        """What a worker does: its process and state, its file, and the clips that wait for it."""
        pid = self._processes[worker].pid
        kernel = process_state(pid)
        state = kernel.name if kernel else "ended"
        if state == "stopped":
            state = f"stopped, goes on after: kill -CONT {pid}"
        index, seconds = self._board.at(worker)
        waiting = [request for task in self._asked[worker] for request in task.requests]
        if index is not None:
            doing = f"has been at {self._path(index)} for {seconds:.0f} s"
        elif waiting:
            doing = f"has been between two batches for {seconds:.0f} s"
        else:
            doing = "has nothing to do"
        if waiting:
            clips = f"{len(waiting)} clips in {len(self._asked[worker])} batches"
            ends = (self._path(waiting[end].index) for end in (0, -1))
            doing += f" and has {clips} to make, from {' to '.join(ends)}"
        return f"worker {worker} (process {pid}, {state}) {doing}"

    def _path(self, index: int) -> str:
        return printable(str(self._records[index].path))

    def _hand_over(self, answer: Answer) -> Batch:
        slot = answer.slot
        clips = self._buffers[slot].array(answer.shape) if answer.shape else None
        if clips is not None and len(self._lent) < NUM_LENT:
            self._lent.add(slot)
            weakref.finalize(clips.base, _take_back, slot, self._lent, self._free).atexit = False
        else:
            clips = None if clips is None else clips.copy()
            self._free.append(slot)
        if answer.error is not None:
            raise answer.error
        assert answer.batch is not None
        return answer.batch if clips is None else replace(answer.batch, clips=clips)


def _take_back(slot: int, lent: set[int], free: deque[int]) -> None:
    lent.discard(slot)  # set and deque do this in one piece: the last reference may go in any thread
    free.append(slot)


def _cores(num_workers: int, affinity: str | None) -> list[set[int] | None]:
    """The cores each worker is pinned to; None where it is not."""
    if affinity is None:
        return [None] * num_workers
    cores = available_cores()
    others = cores[1:][::-1] or cores
    return [{others[worker % len(others)]} for worker in range(num_workers)]
