"""A server of a small network, in a process of its own."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paddlevideo_fast.apps.export.export import ExportOptions


class Server:
    """A process that serves a program.

    Attributes:
        url: of its page, which ends with a slash.
        port: on the loopback address.
        process: the process.
        lines: what it wrote so far.
    """

    def __init__(self, program: Path, *flags: Any, num_files: int | None = None) -> None:
        words = ["serve", program.with_suffix(""), "--port", 0, "--num_readers", 1, *flags]
        bound = [] if num_files is None else ["sh", "-c", f'ulimit -n {num_files}; exec "$@"', "sh"]
        self.process = subprocess.Popen(
            [*bound, sys.executable, "-m", "paddlevideo_fast", *map(str, words)],
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._has_started = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._has_started.wait(60), "".join(self.lines)
        (self.url,) = re.findall(r"answers at (http://\S+/) ;", "".join(self.lines))
        self.port = int(self.url.rstrip("/").rpartition(":")[2])
        for _ in range(100):
            with contextlib.suppress(urllib.error.URLError):
                assert self.ask("health") == (200, {"status": "ok"})
                return
            time.sleep(0.1)
        pytest.fail("the server does not answer")

    def _read(self) -> None:
        for line in iter(self.process.stderr.readline, ""):
            self.lines.append(line)
            if " answers at " in line:
                self._has_started.set()
        self._has_started.set()

    def ask(self, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
        """Status and content of an answer; JSON is read."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(f"{self.url}{path}", body, names)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, _content(answer)
        except urllib.error.HTTPError as error:
            return error.code, _content(error)

    def ask_json(self, path: str, content: Any) -> tuple[int, Any]:
        """As `ask`, with a JSON body."""
        return self.ask(path, json.dumps(content).encode(), Content_Type="application/json")

    def metric(self, name: str) -> float:
        """The value of a line of /metrics."""
        lines = self.ask("metrics")[1].splitlines()
        values = [line.rpartition(" ")[2] for line in lines if line.rpartition(" ")[0] == name]
        return float(values[0]) if values else 0.0

    def wait_for(self, name: str, value: float) -> None:
        """Waits until a metric has a value."""
        deadline = time.monotonic() + 30
        while self.metric(name) != value:
            assert time.monotonic() < deadline, self.ask("metrics")[1]
            time.sleep(0.05)

    def stop(self) -> int:
        """Asks the process to end and returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(30)
        self._reader.join(30)
        return code


def _content(answer: Any) -> Any:
    body = answer.read()
    return json.loads(body) if answer.headers.get_content_type() == "application/json" else body.decode()


@pytest.fixture(scope="session")
def program(exported: Callable[..., Any]) -> Path:
    """A small TSM that takes pixels."""
    return exported("tsm", ExportOptions("uint8")).program


@pytest.fixture(scope="module")
def serve(program: Path) -> Iterator[Callable[..., Server]]:
    """Function that starts a server with flags; servers end with the module."""
    with contextlib.ExitStack() as stack:

        def start(*flags: Any, num_files: int | None = None) -> Server:
            server = Server(program, *flags, num_files=num_files)
            stack.callback(server.process.wait)
            stack.callback(server.process.kill)
            return server

        yield start


@pytest.fixture(scope="module")
def server(serve: Callable[..., Server]) -> Server:
    """A server with tight limits, which the tests of a module share."""
    limits = ("--max_queue", 3, "--max_mb", 2, "--max_sec", 20, "--max_frames", 400, "--timeout_sec", 20)
    return serve(*limits, "--max_pixels", 320 * 256)
