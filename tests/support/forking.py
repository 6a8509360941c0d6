"""Scripts in processes of their own that do not wait for the import of Paddle.

`Template` starts one process that imports Paddle and the package, on one thread. It forks for each script. A
script has its own session, folder, environment, outputs and exit code, as if a shell had started it. Only
what Paddle reads at its import (`OMP_NUM_THREADS`, `FLAGS_...`) is the template's.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class Child:
    """A script that runs, with the methods of `subprocess.Popen` that tests call."""

    def __init__(self, template: Template, pid: int, args: Sequence[str], outputs: Sequence[Path]) -> None:
        self.args = args
        self.pid = pid
        self.returncode: int | None = None
        self._template = template
        self._outputs = outputs

    def poll(self) -> int | None:
        """The exit code, or None while the script runs; minus the number of the signal that ended it."""
        if self.returncode is None:
            self.returncode = self._template.exit_code(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, when the script has ended.

        Raises:
            subprocess.TimeoutExpired: it still runs after `timeout` seconds.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self._template.wait_for_news(0.2)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What the script has printed, out and err, when it has ended."""
        self.wait(timeout)
        out, err = (path.read_text(errors="replace") for path in self._outputs)
        return out, err

    def send_signal(self, number: int) -> None:
        """Sends a signal to the script."""
        if self.poll() is None:
            os.kill(self.pid, number)


class Fresh:
    """Starts Python anew for each script, where a process that has imported Paddle cannot fork.

    Args:
        environment: of the scripts, unless they are given another.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)

    def start(
        self,
        words: Sequence[Any],
        cwd: Path,
        environment: Mapping[str, str] | None = None,
        output: Path | None = None,
    ) -> Any:
        """Starts a script; the first word is its path. `output`: a file for what it prints."""
        with contextlib.nullcontext(subprocess.PIPE) if output is None else output.open("ab") as printed:
            return subprocess.Popen(
                [sys.executable, *map(str, words)],
                cwd=cwd,
                env=dict(self._environment if environment is None else environment),
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT if output else subprocess.PIPE,
                text=True,
                start_new_session=True,
            )

    def run(
        self,
        words: Sequence[Any],
        cwd: Path,
        environment: Mapping[str, str] | None = None,
        timeout: float = 120,
    ) -> subprocess.CompletedProcess:
        """Runs a script to its end.

        Raises:
            subprocess.TimeoutExpired: it takes longer than `timeout` seconds; it is killed.
        """
        process = self.start(words, cwd, environment)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=30)
            raise
        return subprocess.CompletedProcess(process.args, process.wait(), out, err)


class Template(Fresh):
    """A process to fork scripts from; a context manager.

    Args:
        folder: where the outputs of the scripts go.
        environment: of the process and, unless they are given another, of the scripts.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        super().__init__(environment)
        self._num_started = 0
        self._codes: dict[int, int] = {}
        self._news = b""
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def __enter__(self) -> Template:
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._process.stdin is not None
        # An empty line, not the end of the input: processes that the tests forked hold the pipe open, too.
        self._process.stdin.write(b"\n")
        self._process.stdin.close()
        self._process.wait(120)  # it may still be importing Paddle

    def start(
        self,
        words: Sequence[Any],
        cwd: Path,
        environment: Mapping[str, str] | None = None,
        output: Path | None = None,
    ) -> Child:
        self._num_started += 1
        outputs = [output or self._folder / f"{self._num_started}.{name}" for name in ("out", "err")]
        args = [str(word) for word in words]
        request = {
            "argv": args,
            "cwd": str(cwd),
            "environment": dict(self._environment if environment is None else environment),
            "outputs": [str(path) for path in outputs],
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        while 0 not in self._codes:  # "0 pid" answers the request
            self.wait_for_news(60)
        return Child(self, self._codes.pop(0), args, outputs)

    def exit_code(self, pid: int) -> int | None:
        """The exit code of a script, once; None while it runs."""
        self.wait_for_news(0)
        return self._codes.pop(pid, None)

    def wait_for_news(self, timeout_sec: float) -> None:
        """Waits until the template says something, and reads it."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], timeout_sec)[0]:
            return
        block = os.read(self._process.stdout.fileno(), 1 << 16)
        assert block, "the template process has ended"
        *lines, self._news = (self._news + block).split(b"\n")
        self._codes.update(tuple(map(int, line.split())) for line in lines)


def _serve() -> list[str]:
    """Forks for each request. Returns in a child, with the child's command line."""
    news = os.dup(1)
    os.dup2(2, 1)
    running = set()
    unread = b""
    ends = False
    while not ends:
        if select.select([0], [], [], 0.02 if running else None)[0]:
            block = os.read(0, 1 << 16)
            *requests, unread = (unread + block).split(b"\n")
            ends = not block or b"" in requests
            for text in filter(None, requests):
                pid = os.fork()
                if pid == 0:
                    os.close(news)
                    return _become(json.loads(text))
                running.add(pid)
                os.write(news, f"0 {pid}\n".encode())
        for pid in list(running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                running.remove(pid)
                code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                os.write(news, f"{pid} {code}\n".encode())
    for pid in running:
        os.kill(pid, signal.SIGKILL)  # a child that has not got its session yet is in no group of its own
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    os._exit(0)


def _become(request: dict[str, Any]) -> list[str]:
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for number, path in enumerate(request["outputs"], 1):
        output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(output, number)
        os.close(output)
    os.close(nothing)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    return list(request["argv"])


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    import paddlevideo_fast.assembly  # noqa: F401

    with contextlib.suppress(ImportError):  # these are what most runs import later
        from paddlevideo_fast.extensions.report.drawings import pyplot

        pyplot()
        import visualdl  # noqa: F401
    assert len(os.listdir("/proc/self/task")) == 1, "a fork would lose the other threads"
    gc.collect()
    gc.freeze()  # or each child looks through all of Paddle when it ends, for half a second
    sys.argv = _serve()
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
