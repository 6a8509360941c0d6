"""Headless Chromium over its own debugging pipe: what a page shows, and what it complains of.

No package is needed besides the browser: it reads and writes JSON messages, each ended by a zero byte, at its
file descriptors 3 and 4.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"),
    *("--hide-scrollbars", "--remote-debugging-pipe", "about:blank"),
]


def find_browser() -> str:
    """The path of a Chromium. Without one a test is skipped, or fails where REQUIRE_BROWSER is set."""
    for name in NAMES:
        path = shutil.which(name)
        if path:
            return path
    message = f"no browser: install Debian's package chromium, or another of {', '.join(NAMES)}"
    if os.environ.get("REQUIRE_BROWSER"):
        pytest.fail(message)
    pytest.skip(message)


class Browser:
    """One page of a headless Chromium; a context manager.

    Attributes:
        problems: what was said on the console as an error, exceptions that nobody caught, and failed loads.
    """

    def __init__(self, profile: Path, width_px: int = 1280, height_px: int = 1000) -> None:
        self.problems: list[str] = []
        self._number = 0
        self._answers: dict[int, Any] = {}
        self._unread = b""
        self._session: str | None = None
        read_end, self._to_browser = os.pipe()
        self._from_browser, write_end = os.pipe()

        def pipes() -> None:
            """Puts the ends where the browser expects them; they may lie in each other's place."""
            reading, writing = os.dup(read_end), os.dup(write_end)
            os.dup2(reading, 3)
            os.dup2(writing, 4)

        self._log = (profile.parent / f"{profile.name}.log").open("w+")
        self._process = subprocess.Popen(
            [find_browser(), *_FLAGS, f"--user-data-dir={profile}", f"--window-size={width_px},{height_px}"],
            preexec_fn=pipes,
            close_fds=False,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        os.close(read_end)
        os.close(write_end)

    def __enter__(self) -> Browser:
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        return self

    def __exit__(self, *error: Any) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._to_browser)
        os.close(self._from_browser)
        self._log.close()

    def ask(self, method: str, timeout_sec: float = 60, **parameters: Any) -> dict[str, Any]:
        """A command of the DevTools protocol and its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to_browser, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + timeout_sec
        while self._number not in self._answers:
            self._read(deadline, method)
        answer = self._answers.pop(self._number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def _read(self, deadline: float, what: str) -> None:
        ready, _, _ = select.select([self._from_browser], [], [], max(deadline - time.monotonic(), 0))
        data = os.read(self._from_browser, 1 << 20) if ready else b""
        if not data:
            self._log.seek(0)
            pytest.fail(f"the browser did not answer {what}; it said:\n{self._log.read()[-3000:]}")
        *messages, self._unread = (self._unread + data).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self._answers[message["id"]] = message
            else:
                self._note(message["method"], message["params"])

    def _note(self, event: str, details: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(details["exceptionDetails"])[:2000])
        elif event == "Runtime.consoleAPICalled" and details["type"] in ("error", "assert"):
            self.problems.append(json.dumps(details["args"])[:2000])
        elif event == "Log.entryAdded":
            entry = details["entry"]
            if entry["level"] == "error":
                self.problems.append(json.dumps(entry)[:2000])

    def open(self, url: str) -> None:
        """Goes to a page and waits until it is there; its scripts may still work."""
        result = self.ask("Page.navigate", url=url)
        assert "errorText" not in result, f"{url}: {result['errorText']}"
        self.wait_for("document.readyState == 'complete'")

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives on the page."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression: str, timeout_sec: float = 120) -> Any:
        """The value of an expression as soon as it is true."""
        deadline = time.monotonic() + timeout_sec
        while not (value := self.value(expression)):
            if time.monotonic() > deadline:
                text = self.value("document.body.innerText")
                pytest.fail(f"waited for {expression}; problems: {self.problems}; the page says:\n{text}")
            time.sleep(0.1)
        return value
