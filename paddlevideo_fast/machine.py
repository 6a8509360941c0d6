"""What this process may use of the machine; needs no Paddle, which reads some of it at its import."""

from __future__ import annotations

import os
from pathlib import Path
from typing import List, NamedTuple, Optional


def available_cores() -> List[int]:
    """Numbers of the CPU cores that this process may use, in rising order."""
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return list(range(os.cpu_count() or 1))


def num_cores() -> int:
    """How many CPU cores this process may use."""
    return len(available_cores())


def gpu_number(device: str) -> Optional[int]:
    """The number in a device such as "gpu:0", as `paddle.get_device` tells it; None for the CPU."""
    kind, _, number = device.partition(":")
    return int(number) if kind == "gpu" else None


class ProcessState(NamedTuple):
    """What the kernel says about a process.

    Attributes:
        name: "stopped" (by SIGSTOP, Ctrl-Z or a debugger), "ended" (not yet waited for by its parent),
            "waiting for a drive" (a disk or the network; it reacts to no signal), or "running", also where it
            sleeps.
        started: time of its start in clock ticks after the machine's; 0 where the system does not say. Number
            and start together are of one process alone.
    """

    name: str
    started: int


_STATES = {"T": "stopped", "t": "stopped", "Z": "ended", "X": "ended", "D": "waiting for a drive"}


def process_state(pid: int) -> Optional[ProcessState]:
    """The state of a process of this machine; None where there is none of this number."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return ProcessState(_STATES.get(fields[0].decode(), "running"), int(fields[19]))
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return None
    try:  # a system without /proc
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return ProcessState("running", 0)
