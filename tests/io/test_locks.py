"""One writer at a time: who holds a lock is named, and a dead holder stops nobody."""

import errno
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from paddlevideo_fast.errors import OutputError, OutputInUseError
from paddlevideo_fast.io import locks
from paddlevideo_fast.io.locks import LOCK, only_writer
from paddlevideo_fast.machine import process_state

HOLDER = """
import os, sys, time
from paddlevideo_fast.io.locks import only_writer
with only_writer(*sys.argv[1:3]):
    child = os.fork() if len(sys.argv) > 3 else None
    if child != 0:
        print(child, flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(locks, "_PATIENCE_SEC", 0.0)


@pytest.fixture
def start():
    """Starts a process that holds a lock and is killed with the test: process, what it printed."""
    processes = []

    def run(*arguments):
        words = [sys.executable, "-c", HOLDER, *map(str, arguments)]
        processes.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        return processes[-1], processes[-1].stdout.readline().strip()

    yield run
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def refusal(*place, **options):
    with pytest.raises(OutputInUseError) as caught, only_writer(*place, **options):
        pass
    return str(caught.value)


def wait_until(condition):
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def test_the_holder_is_named_with_all_that_finds_it(start, tmp_path):
    out = tmp_path / "a" / "out"
    first, _ = start(out, "")
    assert re.fullmatch(
        rf"output_dir {re.escape(str(out))}: process {first.pid} on {re.escape(socket.gethostname())} "
        rf"\(-c {re.escape(str(out))} ''\) writes to it since [-\d]+ [:\d]+; wait for its end, or choose "
        "another output_dir",
        refusal(out, given_by="output_dir"),
    )
    first.send_signal(signal.SIGSTOP)
    wait_until(lambda: process_state(first.pid).name == "stopped")
    assert " and is stopped; wait" in refusal(out)
    with (
        only_writer(out, "x.pdparams"),
        only_writer(out, "y.pdparams"),
    ):  # single files are places of their own
        assert str(out / "x.pdparams") in refusal(out, "x.pdparams")
    assert os.listdir(out) == [LOCK]


def test_a_killed_holder_stops_nobody(start, tmp_path):
    first, _ = start(tmp_path, "")
    first.kill()
    first.wait()
    assert os.listdir(tmp_path) == [LOCK]
    with only_writer(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
        assert f"process {os.getpid()} on" in refusal(tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_child_that_lives_on_holds_the_lock(start, tmp_path):
    first, child = start(tmp_path, "", "with a child")
    first.kill()
    first.wait()
    try:
        assert f"process {first.pid} on" in refusal(tmp_path)
        assert ", but has ended: a process that it started still runs; wait" in refusal(tmp_path)
    finally:
        os.kill(int(child), signal.SIGKILL)
    wait_until(lambda: process_state(int(child)) is None or process_state(int(child)).name == "ended")
    with only_writer(tmp_path):
        pass


def test_without_flock_nothing_is_written(tmp_path, monkeypatch):
    """As on Lustre by default."""

    def flock(handle, operation):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    cause = r"its file system cannot lock files \(Function not implemented\); choose another"
    with pytest.raises(OutputError, match=cause), only_writer(tmp_path):
        pass


def test_of_many_that_start_together_one_writes_at_a_time(tmp_path, monkeypatch):
    """Threads are as strange to each other as processes are: each opens the file anew."""
    monkeypatch.setattr(locks, "_PATIENCE_SEC", 60.0)
    out, inside, seen = tmp_path / "out", [], []

    def write(number):
        with only_writer(out):
            inside.append(number)
            time.sleep(0.002)
            seen.append(list(inside))
            inside.remove(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == [[0], [1], [2], [3]]
    assert not out.exists() or os.listdir(out) == []


@pytest.mark.parametrize("error", [FileExistsError, FileNotFoundError])
def test_a_folder_that_its_holder_removes_meanwhile(error, tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "_PATIENCE_SEC", 60.0)
    mkdir = Path.mkdir

    def too_late(folder, *args, **kwargs):  # as Python says it where the folder goes while it is made
        monkeypatch.setattr(Path, "mkdir", mkdir)
        raise error(str(folder))

    monkeypatch.setattr(Path, "mkdir", too_late)
    with only_writer(tmp_path / "out"):
        assert os.listdir(tmp_path / "out") == [LOCK]


def test_what_is_left(tmp_path):
    with only_writer(tmp_path / "a" / "b"):
        pass
    assert os.listdir(tmp_path) == []
    with only_writer(tmp_path / "a" / "b"):
        (tmp_path / "a" / "file").write_text("")
    assert os.listdir(tmp_path / "a") == ["file"]
    with only_writer(tmp_path / "a"):  # a folder that is replaced meanwhile keeps the lock of its new writer
        (tmp_path / "a").rename(tmp_path / "old")
        with only_writer(tmp_path / "a"):
            (tmp_path / "a" / "kept").write_text("")
            held = os.stat(tmp_path / "a" / LOCK)
            assert "another --output" in refusal(tmp_path / "a")
        assert held.st_ino
    assert os.listdir(tmp_path / "a") == ["kept"]


@pytest.mark.parametrize("text", ["", "process 1 on host writes to it since now", "{}", "[1]", "\0" * 20])
def test_a_lock_file_of_anything_else(text, tmp_path):
    (tmp_path / LOCK).write_text(text)
    with open(tmp_path / LOCK, "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert "another process writes to it; wait" in refusal(tmp_path)
    with only_writer(tmp_path):
        pass


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    for place, said in (
        (tmp_path / "file", "is a file; give a folder"),
        (tmp_path / "file/x", "Not a direc"),
    ):
        with pytest.raises(OutputError, match=said), only_writer(place):
            pass
    with pytest.raises(OutputError, match=r"--to /proc/x: cannot be written"):  # noqa: SIM117
        with only_writer("/proc/x", "y", given_by="--to"):
            pass


def test_any_name_and_command(tmp_path, monkeypatch):
    name = os.fsdecode(b"\xff\n$" + 252 * b"x")
    monkeypatch.setattr(sys, "argv", ["tool.py", name, "视频"])
    with only_writer(tmp_path, name):
        said = refusal(tmp_path, name)
    command = said[said.index("(tool.py") : said.index("writes to it")]
    assert "\n" not in command
    assert len(command) < 250
    command.encode()
