"""Jobs of several processes on this machine, which end when the test does."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.support.forking import Fresh

ROOT = Path(__file__).resolve().parents[2]
MAIN = ROOT / "tools" / "main.py"


def overriding(*overrides: Any) -> list[str]:
    """The words of a command that override keys of its config."""
    return [word for override in overrides for word in ("-o", str(override))]


def fleet_runs() -> bool:
    """Whether this Paddle's fleet can be used: 2.6 does not say so, but needs an older protobuf."""
    import paddle

    return paddle.__version__ >= "3" or metadata.version("protobuf") < "7"


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that nobody listens at."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


class Job:
    """Processes that run one Python command as the ranks of one job; a context manager.

    Without a launcher each rank is a process of this one. With it there is one process, which starts them.
    Python starts anew for each: of ranks that were forked after the import of Paddle, the one that serves
    Paddle's TCP store died at its exit once in thirty jobs.

    Args:
        command: arguments of Python: a script or `-m module`, and what follows.
        num_processes: ranks.
        folder: where the outputs go.
        environment: of the ranks, besides the PADDLE_ variables.
        launcher: options of `paddle.distributed.launch`; None: without it.
        start: arguments of Python that start the launcher.
    """

    def __init__(
        self,
        command: Sequence[Any],
        num_processes: int,
        folder: Path,
        environment: dict[str, str] | None = None,
        launcher: Sequence[Any] | None = None,
        start: Sequence[Any] = ("-m", "paddle.distributed.launch"),
    ) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PADDLE_T")}
        base = {
            **inherited,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            **(environment or {}),
        }
        self.processes: list[Any] = []
        self.with_launcher = launcher is not None
        fresh = Fresh(base)
        if launcher is not None:
            options = ["--nproc_per_node", num_processes, "--log_dir", self.folder / "log", *launcher]
            words = [*start, *options, *command]
            self.processes = [fresh.start(words, self.folder, output=self.folder / "output.0")]
            return
        addresses = [f"127.0.0.1:{port}" for port in free_ports(num_processes)]
        for rank in range(num_processes):
            place = {
                "PADDLE_TRAINER_ID": str(rank),
                "PADDLE_TRAINERS_NUM": str(num_processes),
                "PADDLE_TRAINER_ENDPOINTS": ",".join(addresses),
                "PADDLE_CURRENT_ENDPOINT": addresses[rank],
            }
            output, environment = self.folder / f"output.{rank}", {**base, **place}
            self.processes.append(fresh.start(command, self.folder, environment, output))

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.end()

    def send(self, number: int | signal.Signals) -> None:
        """Sends a signal to the processes that the job has started itself."""
        for process in self.processes:
            os.killpg(process.pid, number)

    def wait(self, timeout_sec: float = 120) -> list[int]:
        """The exit codes of the processes, when all have ended.

        Raises:
            AssertionError: one still runs; the message has the outputs.
        """
        deadline = time.monotonic() + timeout_sec
        for process in self.processes:
            try:
                process.wait(max(deadline - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                self.end()
                raise AssertionError(f"the job hangs after {timeout_sec} s\n{self.report()}") from None
        return [process.returncode for process in self.processes]

    def succeed(self, timeout_sec: float = 120) -> list[str]:
        """The outputs of the ranks, by rank, of a job that must end well."""
        codes = self.wait(timeout_sec)
        assert not any(codes), f"exit codes {codes}\n{self.report()}"
        return self.outputs()

    def outputs(self) -> list[str]:
        """What each rank has printed so far."""
        if self.with_launcher:
            paths = sorted((self.folder / "log").glob("workerlog.*"), key=lambda path: int(path.suffix[1:]))
        else:
            paths = [self.folder / f"output.{rank}" for rank in range(len(self.processes))]
        return [path.read_text(errors="replace") for path in paths]

    def report(self) -> str:
        """The end of everything that was printed, for a failure's message."""
        paths = sorted([*self.folder.glob("output.*"), *self.folder.glob("log/workerlog.*")])
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in paths)

    def end(self) -> None:
        """Kills what is left of the job; the launcher gives its ranks sessions of their own."""
        for process in self.processes:
            if process.poll() is None:
                for pid in (*_descendants(process.pid), process.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                process.wait()


def _descendants(pid: int) -> list[int]:
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            found += [int(child), *_descendants(int(child))]
    return found
