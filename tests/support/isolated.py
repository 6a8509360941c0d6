"""Calls in a process that may die or hang, as decoders do on some files."""

import multiprocessing
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


class Lost(NamedTuple):
    """Stands for the result of a call that did not come back; `cause` says why."""

    cause: str


def call_isolated(function: Callable[..., Result], *args: Any) -> Result:
    """The result of a call in a new process, whose memory nothing else has used."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def map_isolated(
    function: Callable[[Task], Result], tasks: Sequence[Task], limit_sec: float
) -> Iterator[Result | Lost]:
    """Calls `function` with each task in another process, started anew where a call ends or stops it.

    Args:
        function: can be pickled, and so can its results; what it raises ends the process.
        tasks: its arguments, one a call.
        limit_sec: after so many seconds a call counts as hung.

    Yields:
        The results in order; `Lost` for each call whose process died or was killed because it hung.
    """
    spawn = multiprocessing.get_context("spawn")
    done = 0
    while done < len(tasks):
        receiver, sender = spawn.Pipe(duplex=False)
        worker = spawn.Process(target=_serve, args=(function, tasks[done:], sender), daemon=True)
        worker.start()
        sender.close()
        try:
            receiver.recv()  # the start, with its imports, does not count as a call
            while done < len(tasks) and receiver.poll(limit_sec):
                yield receiver.recv()
                done += 1
            cause = f"hangs for {limit_sec:g} s"
        except EOFError:
            worker.join()
            cause = f"the process dies with {worker.exitcode}"
        finally:
            worker.kill()
            worker.join()
        if done < len(tasks):
            yield Lost(cause)
            done += 1


def _serve(function: Callable[[Any], Any], tasks: Sequence[Any], results: Any) -> None:
    results.send(None)
    for task in tasks:
        results.send(function(task))


def kill_at_random(
    read: Callable[[float], Any],
    num_bytes: Callable[[], int],
    rng: random.Random,
    num_processes: int,
    num_kills: int,
    ready: Callable[[], bool] = lambda: True,
) -> int:
    """Kills processes that share a cache one after the other, starts others, and returns its largest size.

    Args:
        read: reads for ever; its argument is the seed of the process. It ends the process with 1 where
            something read is wrong.
        num_bytes: size of the cache.
        rng: decides who is killed, and when.
        num_processes: at a time.
        num_kills: before the end.
        ready: when the killing may begin.

    Raises:
        AssertionError: a process has ended by itself.
    """
    running: list[int] = []

    def start() -> None:
        seed, child = rng.random() + len(running), os.fork()
        if child == 0:
            try:
                read(seed)
            except BaseException:
                traceback.print_exc(file=sys.__stderr__)
            finally:
                os._exit(2)
        running.append(child)

    def kill(child: int) -> bool:
        os.kill(child, signal.SIGKILL)
        return os.waitpid(child, 0)[1] == signal.SIGKILL  # it had not ended by itself

    largest = 0
    try:
        for _ in range(num_processes):
            start()
        deadline = time.monotonic() + 60
        while not ready():  # a busy machine starts them slowly
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for _ in range(num_kills):
            until = time.monotonic() + rng.uniform(0.05, 0.25)
            while time.monotonic() < until:
                largest = max(largest, num_bytes())
                time.sleep(0.01)
            assert kill(running.pop(rng.randrange(num_processes)))
            start()
    finally:
        lived = [kill(child) for child in running]
    assert all(lived)
    return largest
