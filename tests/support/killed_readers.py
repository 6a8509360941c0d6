"""Processes that read through a cache on a disk, of which one at a time is killed and replaced."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable


def most_stored(
    read: Callable[[float], None],
    stored: Callable[[], int],
    *,
    num_processes: int,
    num_kills: int,
    least: int = 0,
) -> int:
    """The most that a cache holds while its readers are killed at random.

    Args:
        read: reads for ever, by a seed, in a process of its own; ends the process where what it reads is
            wrong.
        stored: bytes that the cache holds now.
        num_processes: readers at the same time.
        num_kills: SIGKILLs.
        least: bytes that are there before the first kill: a busy machine starts the readers slowly.
    """
    rng, most = random.Random(3), 0
    running: list[int] = []

    def start() -> None:
        child = os.fork()
        if child == 0:
            try:
                read(rng.random() + len(running))
            except BaseException:
                traceback.print_exc(file=sys.__stderr__)
            finally:
                os._exit(2)
        running.append(child)

    def kill(child: int) -> bool:
        os.kill(child, signal.SIGKILL)
        return os.waitpid(child, 0)[1] == signal.SIGKILL  # it had not ended by itself

    try:
        for _ in range(num_processes):
            start()
        deadline = time.monotonic() + 60
        while stored() <= least:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for _ in range(num_kills):
            until = time.monotonic() + rng.uniform(0.05, 0.2)
            while time.monotonic() < until:
                most = max(most, stored())
                time.sleep(0.01)
            assert kill(running.pop(rng.randrange(num_processes)))
            start()
    finally:
        lived = [kill(child) for child in running]
    assert all(lived)
    return most
