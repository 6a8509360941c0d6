"""What this process may use of the machine; needs no Paddle, which reads some of it at its import."""

import contextlib
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from paddlevideo_fast import annexes

MKL_PATH = "MKL_DEBUG_CPU_TYPE"  # variable: the path that MKL takes, which changes the last bits of results


def tune_process() -> None:
    """Lets the annex for CPUs tune a process that computes with Paddle, where it is installed.

    Commands and `config.startup.prepare_process` call it before anything is computed. An import does not: the
    process may be another program's.
    """
    tuning = annexes.load("process", "cpu")
    if tuning is not None:
        tuning.tune_process()


def available_cores() -> list[int]:
    """Numbers of the CPU cores that this process may use, in rising order."""
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return list(range(os.cpu_count() or 1))


def num_cores() -> int:
    """How many CPU cores this process may use."""
    return len(available_cores())


def gpu_number(device: str) -> int | None:
    """The number in a device such as "gpu:0", as `paddle.get_device` tells it; None for the CPU."""
    kind, _, number = device.partition(":")
    return int(number) if kind == "gpu" else None


class Gpu(NamedTuple):
    """A GPU of NVIDIA.

    Attributes:
        name: such as "NVIDIA H100 80GB HBM3".
        sm: its compute capability, such as 90 for 9.0.
        driver: version of the driver of NVIDIA; empty where it was not asked for.
    """

    name: str
    sm: int
    driver: str = ""

    def runs(self, architectures: Iterable[int]) -> bool:
        """Whether it runs code for one of these: of its own generation, and no newer than itself."""
        return any(other // 10 == self.sm // 10 and other <= self.sm for other in architectures)


def installed_gpus() -> list[Gpu]:
    """The GPUs that the driver of NVIDIA lists; none where there is no driver."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]
    try:
        listing = subprocess.run(query, capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    gpus = re.findall(r"(?m)^(.+), (.+), (\d+)\.(\d)$", listing)
    return [Gpu(name, int(major + minor), driver) for name, driver, major, minor in gpus]


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


def process_state(pid: int) -> ProcessState | None:
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


@contextlib.contextmanager
def answering_ctrl_c(handler: Any = None) -> Iterator[None]:
    """Changes what Ctrl-C does in the block, if it raises `KeyboardInterrupt` outside.

    Args:
        handler: answers it; None: `KeyboardInterrupt` is raised after the block, as around forks, in which
            Python drops the exception of a signal.
    """
    signals: list[Any] = []
    is_main = threading.current_thread() is threading.main_thread()  # others may not set handlers
    if is_raised := is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, (lambda *given: signals.append(given)) if handler is None else handler)
    try:
        yield
    finally:
        if is_raised:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if signals:
        raise KeyboardInterrupt
