"""Calls in a process that may die or hang, as decoders do on some files."""

import multiprocessing
import os
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
