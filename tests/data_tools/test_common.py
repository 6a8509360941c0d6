"""What prepare_videos and pack_frames share: one run in a folder, workers that end with it, full disks."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
SCRIPTS = ["prepare_videos", "pack_frames"]


@pytest.fixture
def command(make_clip, tmp_path):
    """Function that gives the words that run a script on four clips, with `tmp_path/out` for the results."""
    for number in range(4):
        make_clip(tmp_path / f"videos/{number}.mp4", 60, size=(160, 96))
    (tmp_path / "x.list").write_text("".join(f"{number}.mp4 0\n" for number in range(4)))
    given = {"list": tmp_path / "x.list", "data_prefix": tmp_path / "videos", "output": tmp_path / "out"}
    paths = [word for name, path in given.items() for word in (f"--{name}", str(path))]
    return lambda script, *options: [sys.executable, str(REPO / f"data/{script}.py"), *paths, *options]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_second_run_into_one_folder_is_refused(script, command, tmp_path):
    (tmp_path / "out").mkdir()
    folder = os.open(tmp_path / "out", os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        done = subprocess.run(command(script, "--workers=1"), capture_output=True, text=True)
    finally:
        os.close(folder)
    assert done.returncode == 1
    assert done.stderr == (
        f"error: --output {tmp_path / 'out'}: another run writes to it; wait for its end, or choose another "
        "folder\n"
    )
    assert not list((tmp_path / "out").iterdir())
    subprocess.run(command(script, "--workers=1"), check=True, capture_output=True)


def children_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def runs(pid):
    """Whether a process is there and has not ended; one that nobody waited for stays as a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition):
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


@pytest.mark.parametrize(("script", "options"), zip(SCRIPTS, ([], ["--shard_size=1"])))
def test_workers_end_with_a_killed_run(script, options, command):
    run = subprocess.Popen(
        command(script, "--workers=2", *options),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    workers = []
    try:
        assert wait_for(lambda: len(children_of(run.pid)) == 2)
        workers = children_of(run.pid)
        run.kill()
        run.wait()
        assert wait_for(lambda: not any(map(runs, workers)))
    finally:
        for pid in filter(runs, workers):
            os.kill(pid, signal.SIGKILL)
        run.kill()
        run.wait()


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_full_disk_stops_the_run(script, command, tmp_path):
    limited = ["bash", "-c", 'ulimit -f 4; exec "$@"', "limited"]  # files of 4 KiB
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        limited + command(script, "--workers=1"), capture_output=True, text=True, env=environment
    )
    assert done.returncode == 1
    assert f"{tmp_path / 'out'}/0" in done.stderr
    assert "cannot be written: File too large; what is finished is kept" in done.stderr
    assert "Traceback" not in done.stderr
    assert not [path for path in (tmp_path / "out").iterdir() if path.stat().st_size]
