"""Runs commands one after the other and keeps a log of what became of each."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional

from test_tipc.tipc.text import Text, TipcError

_SHOWN_LINES = 30  # of the log of a failed command
_GRACE_SEC = 60.0  # for a command to save and end
_ASK_PADDLE = """
import json, paddle
print(json.dumps([paddle.device.cuda.device_count(), paddle.__version__, paddle.version.commit]))
"""


class Machine(NamedTuple):
    """What commands run on.

    Attributes:
        num_gpus: that Paddle can use.
        paddle_version: of Paddle.
        paddle_commit: of its source.
    """

    num_gpus: int
    paddle_version: str
    paddle_commit: str


@dataclass
class Session:
    """The commands of one run of a script.

    Attributes:
        text: that they come from.
        folder: of their logs.
        status: the log with a line for each.
        python: the interpreter that they run with.
        machine: what they run on.
        num_run: commands that were run.
        failures: what went wrong.
    """

    text: Text
    folder: Path
    status: Path
    python: str
    machine: Machine
    num_run: int = 0
    failures: List[str] = field(default_factory=list)

    @classmethod
    def open(cls, text: Text, folder: Path, log_name: str = "results_python.log") -> Session:
        """Begins a run: an empty status log in `folder`.

        Raises:
            TipcError: there is no interpreter, or it has no Paddle.
        """
        python = interpreter(text)
        folder.mkdir(parents=True, exist_ok=True)
        status = folder / log_name
        status.write_text("")
        return cls(text, folder, status, python, _ask(python))

    @property
    def exit_code(self) -> int:
        """1 where something went wrong, else 0."""
        return 1 if self.failures else 0

    def run(self, words: List[str], log: Path, environment: Optional[Dict[str, str]] = None) -> bool:
        """Runs an interpreter's command with its output in `log`; returns whether its exit code was 0."""
        variables = environment or {}
        command = [self.python, *words]
        log.parent.mkdir(parents=True, exist_ok=True)
        shown = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
        shown = f"{shown} {shlex.join(command)} > {shlex.quote(str(log))} 2>&1".lstrip()
        code = _run(command, log, {**os.environ, **variables})
        self.num_run += 1
        outcome = f"command - {self.text.model_name} - {shown} - {log}"
        if code == 0:
            self.say(f"Run successfully with {outcome}")
            return True
        self.fail(f"Run failed with {outcome}")
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_SHOWN_LINES:]
        print(f"exit code {code}; the end of {log}:", *lines, sep="\n    ", flush=True)
        return False

    def fail(self, line: str) -> None:
        """Takes down that something went wrong."""
        self.failures.append(line)
        self.say(line)

    def skip(self, what: str, why: str) -> None:
        """Takes down what is not run on this machine; nothing is wrong with that."""
        self.say(f"Skipped - {self.text.model_name} - {what}: {why}")

    def drop(self, what: str, why: str) -> None:
        """Takes down what is not run because something before it went wrong."""
        self.say(f"Not run - {self.text.model_name} - {what}: {why}")

    def say(self, line: str) -> None:
        """A line for the console and the status log."""
        print(line, flush=True)
        with self.status.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def interpreter(text: Text) -> str:
    """The Python of the commands: the environment variable PYTHON, else the text's.

    Raises:
        TipcError: it is not there.
    """
    line = text["python"]
    chosen = os.environ.get("PYTHON") or line.value
    if shutil.which(chosen) is None:
        place = "PYTHON" if os.environ.get("PYTHON") else line.place
        raise TipcError(
            f"{place}: {chosen}: no such program; set the variable PYTHON to a Python with Paddle"
        )
    return chosen


def _ask(python: str) -> Machine:
    done = subprocess.run([python, "-c", _ASK_PADDLE], capture_output=True, text=True, check=False)
    if done.returncode:
        raise TipcError(f"{python}: cannot import Paddle:\n{done.stderr.strip()[-1000:]}")
    return Machine(*json.loads(done.stdout.splitlines()[-1]))


def _run(command: List[str], log: Path, environment: Dict[str, str]) -> int:
    """The exit code; whatever ends this process ends the command first."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    try:
        return process.wait()
    except BaseException:
        try:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_SEC)
        finally:  # a second signal cuts the grace short
            process.kill()
            process.wait()
        raise
