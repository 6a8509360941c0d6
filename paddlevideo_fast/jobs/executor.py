"""Where the tasks of a tool run: in processes of this machine, or on the workers of a Dask cluster.

    --scheduler local             a ProcessPoolExecutor, or this process alone with --workers 1
    --scheduler tcp://HOST:PORT   a Dask cluster that runs

Many short tasks travel in batches, so that a million tasks do not pay for a million messages. A batch whose
worker is lost is done again elsewhere: a task may run twice, also at the same time. So tasks write each
output under a name of its own and rename it, and the same task gives the same bytes.
"""

import contextlib
import gc
import logging
import math
import multiprocessing
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any, NamedTuple, TypeVar

import av
import cv2
from tqdm import tqdm

import paddlevideo_fast
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.extras import needing
from paddlevideo_fast.io.locks import Lock
from paddlevideo_fast.io.urls import join, scheme_of
from paddlevideo_fast.jobs.run import ToolError, duration
from paddlevideo_fast.loader.worker_process import end_with
from paddlevideo_fast.machine import answering_ctrl_c

LOCAL = "local"

_MAX_BATCH = 32  # tasks
_MIN_NUM_BATCHES = 5000  # as long as there are so many tasks
_LINE_SEC = 1.0  # between lines of progress
_ALONE_SEC = 1.0  # until processes are worth their start
_CONNECT_SEC = 20
_PATIENCE_SEC = 10.0  # until a file that one machine has written must be seen by another

Argument = TypeVar("Argument")
Result = TypeVar("Result")
_Done = tuple[list[Any], PaddleVideoFastError | None]  # results up to the first error of a user's; that error
_Batches = Generator[tuple[int, _Done], None, None]  # number and results of each


class Executor(NamedTuple):
    """Where tasks run.

    Attributes:
        workers: processes of this machine; 0 and 1: this process.
        scheduler: "local", or the address of a Dask scheduler, with which `workers` has no effect.
    """

    workers: int = 1
    scheduler: str = LOCAL


class SharedFiles(NamedTuple):
    """What a worker on another machine must see.

    Attributes:
        lock: of the output, which the run holds; None: it has none.
        folders: that tasks read.
    """

    lock: Lock | None = None
    folders: Sequence[str] = ()


def run_all(
    function: Callable[[Argument], Result],
    tasks: Sequence[Argument],
    executor: Executor,
    what: str,
    shared: SharedFiles = SharedFiles(),  # noqa: B008
    each: Callable[[Argument, Result], None] | None = None,
) -> Iterator[Result]:
    """Calls `function` on each task somewhere, shows progress, and yields results in task order.

    Args:
        function: on a cluster a function of a module; forked processes share what it holds. Its argument and
            its result are pickled. It may be called twice on a task.
        tasks: its arguments; paths in them are absolute, see `located`.
        executor: where.
        what: name of the tasks in the progress, such as "videos".
        shared: what a worker elsewhere must see.
        each: called in this process once for each task, as soon as its result is here.

    Raises:
        ToolError: a process died, the scheduler is away, or a worker does not fit.
    """
    ready: dict[int, Result] = {}
    next_place = 0
    completed = _completed(function, tasks, executor, shared)
    with contextlib.closing(completed):
        for place, result in _progress(completed, len(tasks), what):
            if each:
                each(tasks[place], result)
            ready[place] = result
            while next_place in ready:
                yield ready.pop(next_place)
                next_place += 1


def run_if_long(
    function: Callable[[Argument], Result], tasks: Sequence[Argument], workers: int, what: str
) -> Generator[Result, None, None]:
    """As `run_all`, for work that may be over at once: processes and progress begin where it is not.

    This process does the first tasks. After a second, processes do what is left, if they save another second.

    Args:
        function: see `run_all`.
        tasks: its arguments.
        workers: processes; 0 and 1: this process.
        what: name of the tasks in the progress, such as "videos".

    Raises:
        ToolError: a process died.
    """
    began_sec = time.monotonic()
    for number, task in enumerate(tasks):
        elapsed_sec, num_left = time.monotonic() - began_sec, len(tasks) - number
        is_long = elapsed_sec > _ALONE_SEC and elapsed_sec * num_left > _ALONE_SEC * number
        if is_long and num_left > 1:
            yield from run_all(function, tasks[number:], Executor(workers), what)
            return
        yield function(task)


def located(path: Any) -> str:
    """A path as a worker finds it, whatever folder it runs in; a URL stays."""
    return join(os.getcwd(), str(path))


def common_folder(paths: Sequence[str]) -> list[str]:
    """The folder that local files have in common, for `SharedFiles.folders`; none where it says nothing."""
    folders = {os.path.dirname(path) for path in paths if not scheme_of(path)}
    common = os.path.commonpath(folders) if folders else ""
    return [common] if os.path.isdir(common) else []


def _completed(
    function: Callable, tasks: Sequence[Any], executor: Executor, shared: SharedFiles
) -> Generator[tuple[int, Any], None, None]:
    """Place and result of each task, in the order in which they are done."""
    here = not tasks or (executor.scheduler == LOCAL and min(executor.workers, len(tasks)) <= 1)
    size = 1 if here else min(max(len(tasks) // _MIN_NUM_BATCHES, 1), _MAX_BATCH)
    firsts = range(0, len(tasks), size)
    batches = [tasks[first : first + size] for first in firsts]
    if here:
        source: _Batches = ((number, _do(function, batch)) for number, batch in enumerate(batches))
    elif executor.scheduler == LOCAL:
        source = _in_processes(function, batches, executor.workers)
    else:
        source = _on_cluster(function, batches, executor.scheduler, shared)
    with contextlib.closing(source):
        for number, (results, error) in source:
            yield from enumerate(results, firsts[number])
            if error:
                raise error


def _do(function: Callable, tasks: Sequence[Any], check: Callable[[], None] = lambda: None) -> _Done:
    """Does a batch."""
    results: list[Any] = []
    try:
        for task in tasks:
            check()
            results.append(function(task))
    except PaddleVideoFastError as error:
        return results, error
    return results, None


def _progress(results: Iterator[Result], total: int, what: str) -> Iterator[Result]:
    """Passes `results` on; shows a bar on a terminal, elsewhere at most ten lines, a second or more apart."""
    if sys.stderr.isatty():
        yield from tqdm(results, total=total, desc=what)
        return
    step = max(1, math.ceil(total / 10))
    began_sec = shown_sec = time.monotonic()
    for count, result in enumerate(results, 1):
        now_sec = time.monotonic()
        if (count % step == 0 and now_sec - shown_sec >= _LINE_SEC) or count == total:
            shown_sec = now_sec
            per_sec = count / max(now_sec - began_sec, 1e-9)
            left = duration((total - count) / per_sec)
            print(f"{what}: {count}/{total}, {per_sec:.3g}/s, {left} left", file=sys.stderr, flush=True)
        yield result


def _in_processes(function: Callable, batches: Sequence[Sequence[Any]], workers: int) -> _Batches:
    """Number and results of each batch, done by processes of this machine.

    Where the run ends early, as by Ctrl-C, what the processes are doing is dropped.
    """
    others = multiprocessing.active_children()
    start = partial(_start_worker, os.getpid(), function)
    pool = ProcessPoolExecutor(min(workers, len(batches)), initializer=start)
    left = len(batches)
    try:
        with answering_ctrl_c():
            numbers = {pool.submit(_do_in_process, batch): number for number, batch in enumerate(batches)}
        for future in as_completed(numbers):
            left -= 1
            yield numbers.pop(future), future.result()
    except BrokenProcessPool as error:
        raise ToolError("a worker process died (out of memory?); data tools: try fewer --workers") from error
    finally:
        for worker in multiprocessing.active_children() if left else ():
            if worker not in others:
                worker.kill()
        pool.shutdown(wait=True, cancel_futures=True)


_function: Callable  # of a process, from its start on


def _start_worker(parent: int, function: Callable) -> None:
    global _function
    _function = function
    end_with(parent)
    gc.freeze()  # what the parent has made is never collected here, such as memory of a GPU
    cv2.setNumThreads(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to answer


def _do_in_process(tasks: Sequence[Any]) -> _Done:
    return _do(_function, tasks)


# --- a Dask cluster


def _on_cluster(
    function: Callable, batches: Sequence[Sequence[Any]], scheduler: str, shared: SharedFiles
) -> _Batches:
    """Number and results of each batch, done by the workers of a cluster."""
    with needing("dask", f"--scheduler {scheduler}"):
        from distributed import Client, KilledWorker
        from distributed import as_completed as completed
        from distributed.comm import CommClosedError
    with _quiet():
        try:
            client = Client(scheduler, timeout=_CONNECT_SEC, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise ToolError(
                f"--scheduler {scheduler}: no Dask scheduler answers there ({error}); start one with  dask "
                "scheduler"
            ) from error
        on_worker = partial(_do_on_worker, function, shared, scheduler, _versions())
        name = f"paddlevideo_fast-{function.__name__.strip('_')}"  # the dashboard shows it
        try:
            num_workers = len(client.nthreads())
            waits = "" if num_workers else "; waiting for some"
            print(f"workers of {scheduler}: {num_workers}{waits}", file=sys.stderr, flush=True)
            futures = client.map(on_worker, batches, key=name, pure=False)
            numbers = {future.key: number for number, future in enumerate(futures)}
            for future in completed(futures, client.loop):
                yield numbers[future.key], future.result()
                future.release()  # here and not in its `__del__`, in which Python ignores Ctrl-C
        except (CancelledError, CommClosedError) as error:
            raise ToolError(
                f"--scheduler {scheduler}: the scheduler is away; what is finished is kept: start it, and "
                "run the same command again"
            ) from error
        except KilledWorker as error:
            raise ToolError(
                f"--scheduler {scheduler}: several workers, one after the other, died over the same tasks "
                "(out of memory, or another version of paddlevideo_fast or Python?); see their logs. What is "
                "finished is kept"
            ) from error
        finally:
            with contextlib.suppress(OSError, TimeoutError):  # the scheduler may be away
                client.close()


def _do_on_worker(
    function: Callable, shared: SharedFiles, scheduler: str, versions: dict[str, str], tasks: Sequence[Any]
) -> _Done:
    """Does a batch in a worker of a cluster, if its versions of libraries are the client's `versions`."""
    cv2.setNumThreads(0)
    worker = f"the worker on {socket.gethostname()} (process {os.getpid()})"
    try:
        _check_worker(worker, shared, scheduler, versions)
        return _do(function, tasks, partial(_check_run, shared))
    except ToolError as error:
        return [], error
    except Exception:  # as text: any exception need not survive the way, and its traceback does not
        raise RuntimeError(f"error in a worker:\n{traceback.format_exc()}") from None


def _check_worker(worker: str, shared: SharedFiles, scheduler: str, versions: dict[str, str]) -> None:
    differing = [
        f"{name} {there}, and here it is {versions[name]}"
        for name, there in _versions().items()
        if there != versions[name]
    ]
    if differing:
        raise ToolError(
            f"--scheduler {scheduler}: {worker} has {'; '.join(differing)}: install the same versions there, "
            "and run the same command again"
        )
    for folder in shared.folders:
        if not os.path.isdir(folder):
            raise ToolError(
                f"{folder}: {worker} does not see this folder; put the data where all workers of "
                f"{scheduler} see it under the same path"
            )
    deadline = time.monotonic() + _PATIENCE_SEC
    while shared.lock and not shared.lock.is_seen:
        if time.monotonic() > deadline:
            raise ToolError(
                f"{os.path.dirname(shared.lock.path)}: {worker} does not see what this run writes there; "
                f"give an --output that all workers of {scheduler} share under the same path"
            )
        time.sleep(0.2)


def _check_run(shared: SharedFiles) -> None:
    """A run that was killed, and whose worker was not, must not write into the output of the next one."""
    if shared.lock and not shared.lock.is_seen:
        raise ToolError(f"{os.path.dirname(shared.lock.path)}: the run that this task was for has ended")


def _versions() -> dict[str, str]:
    """What decides the bytes of an output, beside the task."""
    return {"paddlevideo_fast": paddlevideo_fast.__version__, "av": av.__version__, "cv2": cv2.__version__}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Reports of Dask and its loop of lost connections give way to our one sentence."""
    names = ("distributed", "distributed.client", "distributed.core", "tornado.application")
    before = {logger: logger.level for logger in map(logging.getLogger, names)}
    for logger in before:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in before.items():
            logger.setLevel(level)
