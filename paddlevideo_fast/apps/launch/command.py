"""`paddlevideo-fast launch`: Paddle's launcher, started again where a run fails.

The launcher's own --max_restart needs an etcd server; see decision 15.
"""

import argparse
import contextlib
import ctypes
import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from paddlevideo_fast.cli.command import TYPED, say
from paddlevideo_fast.command_line import CommandParser, count
from paddlevideo_fast.errors import EXIT_USER_ERROR
from paddlevideo_fast.machine import installed_gpus
from paddlevideo_fast.registry import did_you_mean

_COMMANDS = ("train", "test")  # those that run in several processes
_SCRIPT = str(Path(__file__).with_name("process.py"))

# Lines that Paddle writes when it is imported or connects, which tell a user nothing.
_QUIET = {"PYTHONWARNINGS": "ignore:No ccache found", "GLOG_minloglevel": "2"}
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h: orphans of what this process starts become its children
_POLL_SEC = 0.02
_STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)
_KILLED = 256 - 64  # Paddle's launcher ends with the signal's number below 256 where a process was killed


class _Parser(CommandParser):
    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, rest = self.parse_known_args(args, namespace)
        if parsed.max_restart and not any(re.fullmatch(r"(.*resume=auto|--resume)", word) for word in rest):
            self.error("--max_restart needs train ... --resume: without it a restart begins anew")
        parsed.log_dir, parsed.words = _with_script(rest, self)
        return parsed


def build_parser() -> argparse.ArgumentParser:
    """The parser of `paddlevideo-fast launch`."""
    parser = _Parser(
        "launch",
        "Starts the processes of a run on this machine, and restarts them if one fails.\n\nExamples:\n"
        "    paddlevideo-fast launch --gpus 0,1 train my_set\n"
        "    paddlevideo-fast launch --max_restart 3 --nproc_per_node 2 train my_set --resume",
        epilog="All other options go to `python -m paddle.distributed.launch`, and stand before train, test "
        "or a script.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--max_restart", type=count(0), default=0, help="restarts; they need --resume (default 0)"
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Starts the processes, with restarts, and returns the exit code of the last start.

    0: done. 2: wrong input, after which a restart would not help. 128 + n: stopped by signal n. 1: anything
    else, also a process that was killed.
    """
    os.environ[TYPED] = args.typed
    log = Path(args.log_dir, "workerlog.0")
    begins_at = log.stat().st_size if log.exists() else 0  # Paddle's launcher appends to it
    # -u: what it has printed is out when a signal ends it
    launcher = [sys.executable, "-u", "-m", "paddle.distributed.launch"]
    code = start([*launcher, *args.words], args.max_restart)
    if code in _STOPPED:
        say(_last_words(log, begins_at))
    return code


def _last_words(log: Path, begins_at: int) -> str:
    """What rank 0 has said about a signal, of which Paddle's launcher shows nothing.

    Args:
        log: of rank 0.
        begins_at: first byte of this run; before it are earlier ones.
    """
    lines = log.read_bytes()[begins_at:].decode("utf-8", "replace").splitlines() if log.exists() else []
    return next((line for line in reversed(lines) if line.startswith("interrupted")), "interrupted")


def _with_script(words: Sequence[str], parser: argparse.ArgumentParser) -> tuple[str, list[str]]:
    """The folder of the processes' logs, and the words of the launcher, which knows scripts only.

    The words have the script of a command in front of the command.

    Ends the process where there is nothing that can be started.
    """
    place, options = 0, {}
    while place < len(words) and words[place].startswith("-"):
        name, has_value, value = words[place].partition("=")
        place += 1 if has_value else 2  # all options of the launcher have a value
        options[name] = value or "".join(words[place - 1 : place])
    _check_gpus(options, parser)
    log_dir = options.get("--log_dir", "log")
    if place >= len(words):
        parser.error("nothing to start: give a command or a script, such as train CONFIG")
    word = words[place]
    if word in _COMMANDS:
        return log_dir, [*words[:place], _SCRIPT, *words[place:]]
    if not Path(word).is_file() and shutil.which(word) is None:
        parser.error(f"there is no command or script '{word}'{did_you_mean(word, _COMMANDS)}")
    return log_dir, list(words)


def _check_gpus(options: Mapping[str, str], parser: argparse.ArgumentParser) -> None:
    """Ends the process where two processes would have one GPU, or a process a GPU that is not there."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    there = visible.split(",") if visible else [str(number) for number in range(len(installed_gpus()))]
    given = next((name for name in ("--gpus", "--devices") if options.get(name)), "")
    named = options[given].split(",") if given else there
    if len(set(named)) < len(named):
        parser.error(f"{given} {options[given]}: each process needs a GPU of its own; name each GPU once")
    if there and not set(named) <= set(there):
        parser.error(f"{given} {options[given]}: the GPUs here are {', '.join(there)}")
    count = options.get("--nproc_per_node", "")
    takes_gpus = given or visible or any(importlib.metadata.distributions(name="paddlepaddle-gpu"))
    if takes_gpus and named and count.isdecimal() and int(count) > len(named):
        text = f"each process needs a GPU of its own, and there are {len(named)}: {', '.join(named)}"
        parser.error(f"--nproc_per_node {count}: {text}")


def start(command: Sequence[str], max_restart: int) -> int:
    """Runs a command, and restarts it at most `max_restart` times. A signal ends it; see `_end_processes`."""
    launcher: subprocess.Popen | None = None
    signals: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        if launcher is not None:
            launcher.kill()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    streams: dict[str, Any] = {"stdin": 1, "stdout": 2} if _SCRIPT in command else {}  # see `process.py`
    for restarts_left in range(max_restart, -1, -1):
        # in a session of its own, where Ctrl-C does not reach it
        launcher = subprocess.Popen(command, env={**_QUIET, **os.environ}, start_new_session=True, **streams)
        if signals:  # between two starts
            launcher.kill()
        while launcher.poll() is None:  # `wait` would answer no signal that comes just before it
            time.sleep(_POLL_SEC)
        code = launcher.returncode
        if signals:
            _end_processes(signals)
            return 128 + signals[-1]
        if code < 0:
            _say(f"signal {-code} ended the launcher itself; its processes may still run: no restart")
            return 128 - code
        if code in (0, EXIT_USER_ERROR, *_STOPPED):  # another machine of the run may have got the signal
            break
        if code >= _KILLED:
            code = 1
        if restarts_left:
            _say(f"exit code {code}: restart {max_restart - restarts_left + 1} of {max_restart}")
    return code


def _end_processes(signals: Sequence[int]) -> None:
    """Ends the processes of a launcher that was killed; the kernel has made them children of this process.

    The launcher would ask one after the other, for 0.6 s each, and kill them after 30 s. Here all get SIGTERM
    at once, and only once. `train` then finishes its step and saves, however long that takes.

    Args:
        signals: that came so far; Ctrl-C after another signal kills the processes.
    """
    pids = _children()
    if pids:
        _say("the processes end, `train` after it has saved; Ctrl-C once more kills them")
    for pid in pids:
        os.killpg(os.getpgid(pid), signal.SIGTERM)
    while pids:
        if signal.SIGINT in signals[1:]:
            for pid in pids:
                os.killpg(os.getpgid(pid), signal.SIGKILL)
        pids = [pid for pid in pids if os.waitpid(pid, os.WNOHANG) == (0, 0)]
        time.sleep(_POLL_SEC)


def _children() -> list[int]:
    """The processes whose parent is this process; those that have ended are among them until it waits."""
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            _, parent, *_ = stat.read_text("utf-8", "replace").rpartition(")")[2].split()
            if int(parent) == os.getpid():
                pids.append(int(stat.parent.name))
    return pids


def _say(text: str) -> None:
    say(f"paddlevideo-fast launch: {text}")
