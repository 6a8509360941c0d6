"""Does the tasks of a tool in processes of this machine, or in this process alone.

Many short tasks travel in batches, so that a million tasks do not pay for a million messages. A run that was
killed leaves tasks half done, and the next one does them again. So tasks write each output under a name of
its own and rename it, and the same task gives the same bytes.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

import cv2
from tqdm import tqdm

from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.io.urls import join
from paddlevideo_fast.jobs.run import ToolError, duration
from paddlevideo_fast.loader.worker_process import end_with

_MAX_BATCH = 32  # tasks
_MIN_NUM_BATCHES = 5000  # as long as there are so many tasks

Argument = TypeVar("Argument")
Result = TypeVar("Result")
_Done = tuple[list[Any], PaddleVideoFastError | None]  # results up to the first error of a user's; that error
_Batches = Generator[tuple[int, _Done], None, None]  # number and results of each


def run_all(
    function: Callable[[Argument], Result],
    tasks: Sequence[Argument],
    workers: int,
    what: str,
    each: Callable[[Argument, Result], None] | None = None,
) -> Iterator[Result]:
    """Calls `function` on each task, shows progress, and yields results in task order.

    Args:
        function: a function of a module; its argument and its result are pickled.
        tasks: its arguments.
        workers: processes; with 0 and 1 this process does them.
        what: name of the tasks in the progress, such as "videos".
        each: called in this process once for each task, as soon as its result is here.

    Raises:
        ToolError: a process died.
    """
    ready: dict[int, Result] = {}
    next_number = 0
    completed = _completed(function, tasks, workers)
    with contextlib.closing(completed):
        for number, result in _progress(completed, len(tasks), what):
            if each:
                each(tasks[number], result)
            ready[number] = result
            while next_number in ready:
                yield ready.pop(next_number)
                next_number += 1


def located(path: Any) -> str:
    """An absolute path, so that a task has one name in whatever folder a run starts; a URL stays."""
    return join(os.getcwd(), str(path))


def _completed(
    function: Callable, tasks: Sequence[Any], workers: int
) -> Generator[tuple[int, Any], None, None]:
    """Number and result of each task, in the order in which they are done."""
    here = min(workers, len(tasks)) <= 1
    size = 1 if here else min(max(len(tasks) // _MIN_NUM_BATCHES, 1), _MAX_BATCH)
    firsts = range(0, len(tasks), size)
    batches = [tasks[first : first + size] for first in firsts]
    if here:
        source: _Batches = ((number, _do(function, batch)) for number, batch in enumerate(batches))
    else:
        source = _in_processes(function, batches, workers)
    with contextlib.closing(source):
        for number, (results, error) in source:
            yield from enumerate(results, firsts[number])
            if error:
                raise error


def _do(function: Callable, tasks: Sequence[Any]) -> _Done:
    """Does a batch."""
    results: list[Any] = []
    try:
        for task in tasks:
            results.append(function(task))
    except PaddleVideoFastError as error:
        return results, error
    return results, None


def _progress(results: Iterator[Result], total: int, what: str) -> Iterator[Result]:
    """Passes `results` on; shows a bar on a terminal and about ten plain lines elsewhere."""
    if sys.stderr.isatty():
        yield from tqdm(results, total=total, desc=what)
        return
    step = max(1, total // 10)
    began_sec = time.monotonic()
    for count, result in enumerate(results, 1):
        if count % step == 0 or count == total:
            per_sec = count / max(time.monotonic() - began_sec, 1e-9)
            left = duration((total - count) / per_sec)
            print(f"{what}: {count}/{total}, {per_sec:.3g}/s, {left} left", file=sys.stderr, flush=True)
        yield result


def _in_processes(function: Callable, batches: Sequence[Sequence[Any]], workers: int) -> _Batches:
    """Number and results of each batch, done by processes of this machine.

    Where the run ends early, as by Ctrl-C, what the processes are doing is dropped.
    """
    others = multiprocessing.active_children()
    pool = ProcessPoolExecutor(min(workers, len(batches)), initializer=_start_worker, initargs=(os.getpid(),))
    left = len(batches)
    try:
        with _interrupt_later():
            numbers = {pool.submit(_do, function, batch): number for number, batch in enumerate(batches)}
        for future in as_completed(numbers):
            left -= 1
            yield numbers.pop(future), future.result()
    except BrokenProcessPool as error:
        raise ToolError("a worker process died (out of memory?); try fewer --workers") from error
    finally:
        for worker in multiprocessing.active_children() if left else ():
            if worker not in others:
                worker.kill()
        pool.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def _interrupt_later() -> Iterator[None]:
    """Answers Ctrl-C after the block: Python drops an exception of a signal while it forks."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals: list[Any] = []
    handler = signal.signal(signal.SIGINT, lambda *given: signals.append(given))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if signals and callable(handler):
        handler(*signals[0])


def _start_worker(parent: int) -> None:
    end_with(parent)
    cv2.setNumThreads(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to answer
