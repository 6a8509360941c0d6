"""Ranks that fail, die or finish, as processes of their own on one line."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, os, signal, socket, sys, threading, time
from pathlib import Path

import paddlevideo_fast
from paddlevideo_fast.extensions.failure_detector import failure_detector
from paddlevideo_fast.extensions.failure_detector.failure_detector import FailureDetector
from paddlevideo_fast.errors import CheckpointError, exit_code
from paddlevideo_fast.log import setup_logging

os.environ["PADDLE_CURRENT_ENDPOINT"] = "127.0.0.1:1"


class Stopped(Exception):
    pass


num_gathered = 0


def gather(rank, value):
    global num_gathered
    num_gathered, name = num_gathered + 1, f"hello{num_gathered}"
    folder.joinpath(f"{name}.{rank}.part").write_text(json.dumps(value))
    folder.joinpath(f"{name}.{rank}.part").rename(folder / f"{name}.{rank}")
    while len(list(folder.glob(f"{name}.?"))) < 3:
        time.sleep(0.01)
    values = [json.loads((folder / f"{name}.{other}").read_text()) for other in range(3)]
    if case == "blocked" and rank == 2 and num_gathered == 1:
        values[0][0][1] = 1  # a port where nobody listens, as behind a firewall
    if case == "strangers" and rank == 1 and num_gathered == 1:
        host, port, _ = values[0][0]
        socket.create_connection((host, port)).close()
        guesses = [b'{"token": "guessed", "rank": 2, "host": "elsewhere"}', b"[]", b"1", b"{}", b"[" * 9999]
        for guess in guesses:
            with socket.create_connection((host, port)) as stranger:
                stranger.sendall(guess + b"\\n")
    return values


def noting(rank, send):
    def send_and_note(line, message):
        send(line, message)
        (folder / f"sent.{rank}").touch()

    return send_and_note


def wait_for_others(rank):
    # until the other ranks have sent how they end
    while not all((folder / f"sent.{other}").exists() for other in {0, 1, 2} - {rank}):
        time.sleep(0.01)


def slow(rank, receive):
    def later(line):
        # The hub's thread has told the end before rank 0 itself reads that all are here.
        time.sleep(0.3 if rank == 0 and threading.current_thread() is threading.main_thread() else 0)
        return receive(line)

    return later


def work(rank):
    if case == "user_error" and rank == 1:
        raise CheckpointError("the disk is full")
    if case == "bug" and rank == 2:
        raise ZeroDivisionError("by nought")
    if case == "bug_of_rank_0" and rank == 0:
        raise ZeroDivisionError("by nought")
    if case in ("killed", "killed_at_once") and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if case == "killed_while_others_see_it" and rank == 1:
        wait_for_others(rank)
        os.kill(os.getpid(), signal.SIGKILL)
    if case == "killed_while_others_see_it":
        raise RuntimeError("TIMEOUT peer_str = [127.0.0.1]:4499")
    if case == "rank_0_killed" and rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if case == "stopped":
        raise Stopped
    if case in ("done", "strangers", "blocked"):
        time.sleep(0.1 * rank)
    elif case == "late" and rank < 2:
        return
    elif case == "late":
        wait_for_others(rank)
        raise ZeroDivisionError("at the end")
    elif case != "stopped":
        time.sleep(1000)  # an all-reduce that nobody answers


def end(rank):
    log = os.open(folder / f"log.{rank}", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    setup_logging()
    if case == "killed_at_once":
        failure_detector._receive = slow(rank, failure_detector._receive)
    if case == "killed_while_others_see_it":
        failure_detector._SETTLE_SEC = failure_detector._VERDICT_SEC = 100  # the death ends the wait
    try:
        with FailureDetector(rank, lambda value: gather(rank, value), (Stopped,)):
            failure_detector._send = noting(rank, failure_detector._send)  # the hub has told the start
            work(rank)
    except Exception as exc:
        print("raised", type(exc).__name__, flush=True)
        if not isinstance(exc, Stopped):
            os.kill(os.getpid(), signal.SIGTERM)  # of the launcher, which has seen another rank end
        os._exit(exit_code(exc))
    os._exit(0)


for case in sys.argv[2:]:
    folder = Path(sys.argv[1], case)
    folder.mkdir()
    ranks = {}
    for rank in range(3):
        pid = os.fork()
        if pid == 0:
            end(rank)
        ranks[pid] = rank
    codes = [0, 0, 0]
    for _ in ranks:
        pid, status = os.wait()
        codes[ranks[pid]] = os.waitstatus_to_exitcode(status)
    (folder / "codes.json").write_text(json.dumps(codes))
"""

CASES = ["done", "stopped", "strangers", "blocked", "user_error", "bug", "bug_of_rank_0", "killed"]
CASES += ["killed_at_once", "killed_while_others_see_it", "rank_0_killed", "late"]


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """`ended(case)`: the exit codes of three ranks, and what each wrote."""
    folder = tmp_path_factory.mktemp("ranks")
    root = Path(__file__).resolve().parents[2]
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), *CASES],
        env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == 0, process.stderr

    def of(case):
        codes = json.loads((folder / case / "codes.json").read_text())
        return codes, [(folder / case / f"log.{rank}").read_text() for rank in range(3)]

    return of


@pytest.mark.parametrize("case", ["done", "strangers"])
def test_all_ranks_leave_when_the_last_has_done_its_work(ended, case):
    codes, logs = ended(case)
    assert codes == [0, 0, 0]
    assert logs == ["", "", ""]


def test_ranks_that_cannot_reach_rank_0_train_without_the_line(ended):
    codes, logs = ended("blocked")
    assert codes == [0, 0, 0]
    assert logs[1:] == ["", ""]
    assert re.search(r"WARNING: the ranks have no line .*: rank 2: 127.0.0.1:1 cannot be reached", logs[0])


def test_an_orderly_exception_is_no_failure(ended):
    codes, logs = ended("stopped")
    assert codes == [1, 1, 1]
    assert logs == ["raised Stopped\n"] * 3


@pytest.mark.parametrize(
    ("case", "failed", "message", "code"),
    [
        ("user_error", 1, "CheckpointError: the disk is full", 2),
        ("bug", 2, "ZeroDivisionError: by nought", 1),
        ("bug_of_rank_0", 0, "ZeroDivisionError: by nought", 1),
        ("late", 2, "ZeroDivisionError: at the end", 1),
    ],
)
def test_what_one_rank_fails_of_ends_all_with_its_message(ended, case, failed, message, code):
    codes, logs = ended(case)
    assert codes == [code] * 3
    for rank, log in enumerate(logs):
        if rank == failed:
            assert log == f"raised {message.partition(':')[0]}\n"
        else:
            assert re.search(rf"rank {failed} on \S+ failed: {message}; this rank ends with it", log)


@pytest.mark.parametrize(
    ("case", "killed"),
    [("killed", 1), ("killed_at_once", 1), ("killed_while_others_see_it", 1), ("rank_0_killed", 0)],
)
def test_a_killed_rank_is_named_by_all_others(ended, case, killed):
    codes, logs = ended(case)
    assert codes == [-signal.SIGKILL if rank == killed else 1 for rank in range(3)]
    for rank, log in enumerate(logs):
        if rank != killed:
            assert re.search(rf"rank {killed} on \S+ died without a word: it was killed", log)
            assert "raised" not in log
            assert ("the error here was RuntimeError: TIMEOUT" in log) == (
                case == "killed_while_others_see_it"
            )
