"""Runs commands one after the other and logs the result of each."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from test_tipc.tipc.text import Text, TipcError

_SHOWN_LINES = 30  # of the log of a failed command
_GRACE_SEC = 60.0  # for a command to save and end
_ASK_PADDLE = """
import json, paddle
print(json.dumps([paddle.device.cuda.device_count(), paddle.__version__, paddle.version.commit]))
"""


class Machine(NamedTuple):
    """The machine that commands run on.

    Attributes:
        num_gpus: number of GPUs that Paddle can use.
        paddle_version: version of Paddle.
        paddle_commit: commit of its source.
    """

    num_gpus: int
    paddle_version: str
    paddle_commit: str


@dataclass
class Session:
    """The commands of one run of a script.

    Attributes:
        text: text that the commands come from.
        folder: folder of their logs.
        status: log with a line for each command.
        python: interpreter that the commands run with.
        machine: machine that they run on.
        num_run: number of commands that were run.
        failures: causes of what failed.
    """

    text: Text
    folder: Path
    status: Path
    python: str
    machine: Machine
    num_run: int = 0
    failures: list[str] = field(default_factory=list)

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
        """1 where something failed, else 0."""
        return 1 if self.failures else 0

    def run(self, words: list[str], log: Path, environment: dict[str, str] | None = None) -> bool:
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
        """Logs a failure."""
        self.failures.append(line)
        self.say(line)

    def skip(self, what: str, why: str) -> None:
        """Logs a command that this machine cannot run, which is no failure."""
        self.say(f"Skipped - {self.text.model_name} - {what}: {why}")

    def drop(self, what: str, why: str) -> None:
        """Logs a command that is not run because a command before it failed."""
        self.say(f"Not run - {self.text.model_name} - {what}: {why}")

    def say(self, line: str) -> None:
        """Writes a line to the console and the status log."""
        print(line, flush=True)
        with self.status.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def interpreter(text: Text) -> str:
    """The interpreter of the commands: the environment variable PYTHON, else the interpreter of the text.

    Raises:
        TipcError: there is no such interpreter.
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


def _run(command: list[str], log: Path, environment: dict[str, str]) -> int:
    """Runs a command and returns its exit code; the command ends with this process, whatever ends it."""
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
