"""What the tools share: one run in a folder, workers that end with it, full disks, flags, provenance."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paddlevideo_fast.io.locks import LOCK

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


HOLDER = """
import sys, time
from paddlevideo_fast.io.locks import only_writer
with only_writer(sys.argv[1]):
    print("locked", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def every_command(command, rawframes_dataset, tmp_path):
    """The words that run each tool that writes a folder, with `tmp_path/out` for the results."""
    annotations = tmp_path / "annotations"
    annotations.mkdir()
    (annotations / "labels.json").write_text('{"run": "0"}')
    for file, clip in (("train", "0"), ("validation", "1")):
        (annotations / f"{file}.json").write_text(f'[{{"id": "{clip}", "template": "[run]"}}]')
    output = f"--output={tmp_path / 'out'}"
    words = {
        "extract_rawframes": [f"--root={tmp_path / 'videos'}", "--level=1"],
        "make_motion_dataset": ["--train=2", "--valid=0", "--size=16"],
        "build_file_list": [f"--root={rawframes_dataset.root}"],
        "ssv2/build_lists": [f"--root={tmp_path / 'videos'}", f"--annotations={annotations}"],
    }
    every = {
        name: [sys.executable, str(REPO / f"data/{name}.py"), *more, output] for name, more in words.items()
    }
    return {**every, **{name: command(name) for name in SCRIPTS}}


@pytest.mark.slow
def test_a_second_run_into_one_folder_names_the_first_and_ends(every_command, tmp_path):
    out = tmp_path / "out"
    first = subprocess.Popen([sys.executable, "-c", HOLDER, str(out)], stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout.readline() == "locked\n"
        runs = {
            name: subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for name, words in every_command.items()
        }
        for name, run in runs.items():
            said = run.communicate()[1]
            assert run.returncode == 2, (name, said)
            assert re.fullmatch(
                rf"OutputInUseError: --output {re.escape(str(out))}: process {first.pid} on "
                rf"{re.escape(socket.gethostname())} \(-c {re.escape(str(out))}\) writes to it since "
                r"[-\d]+ [:\d]+; wait for its end, or choose another --output\n",
                said,
            ), (name, said)
        assert [path.name for path in out.iterdir()] == [LOCK]
    finally:
        first.kill()
        first.wait()
        first.stdout.close()
    # whatever ended it, the lock is gone
    for name, words in every_command.items():
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, (name, done.stderr)
        assert not (out / LOCK).exists()
        for path in out.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_a_run_that_works_is_not_disturbed(command, tmp_path):
    first = subprocess.Popen(
        command("prepare_videos", "--workers=2"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert wait_for((tmp_path / "out" / LOCK).exists)
        second = subprocess.run(command("prepare_videos"), capture_output=True, text=True)
    finally:
        said = first.communicate()[0]
    if second.returncode == 0:  # the first was done before the second gave up: it found everything there
        assert "4 videos, 0 of them new" in second.stdout
    else:
        assert second.returncode == 2
        assert f"process {first.pid} on" in second.stderr
    assert first.returncode == 0
    assert "4 videos, 4 of them new" in said


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
    assert done.returncode == 2
    assert f"{tmp_path / 'out'}/0" in done.stderr
    assert "cannot be written: File too large; what is finished is kept" in done.stderr
    assert "Traceback" not in done.stderr
    left = [path.name for path in (tmp_path / "out").iterdir() if path.stat().st_size]
    assert left == ["provenance.json"]
