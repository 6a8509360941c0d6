"""A call in a process of its own that dies or hangs is lost alone."""

import os
import signal
import time

from benchmarks.isolated import Lost, map_isolated


def test_a_call_that_dies_or_hangs_is_lost_alone():
    assert list(map_isolated(_misbehave, range(4), limit_sec=3)) == [
        0,
        Lost("the process dies with -9"),
        Lost("hangs for 3 s"),
        3,
    ]


def _misbehave(task):
    if task == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if task == 2:
        time.sleep(60)
    return task
