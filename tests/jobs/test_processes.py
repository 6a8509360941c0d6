"""What the tools share: one run in a folder, workers that end with it, full disks, flags, provenance."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from paddlevideo_fast.apps.data.frames import extract
from paddlevideo_fast.apps.data.lists import build
from paddlevideo_fast.apps.data.motion import make
from paddlevideo_fast.apps.data.packing import pack
from paddlevideo_fast.apps.data.public_datasets import ssv2
from paddlevideo_fast.apps.data.videos import prepare_list
from paddlevideo_fast.apps.init import init_dataset
from paddlevideo_fast.cli.commands import main
from paddlevideo_fast.errors import OutputInUseError
from paddlevideo_fast.io import locks
from paddlevideo_fast.io.locks import only_writer
from paddlevideo_fast.jobs import executor

REPO = Path(__file__).resolve().parents[2]
TOOLS = {"check_videos": "check", "prepare_videos": "prepare", "pack_frames": "pack"}


@pytest.fixture
def command(make_clip, tmp_path):
    """Function that gives the words that run a script on four clips, with `tmp_path/out` for the results."""
    for number in range(4):
        make_clip(tmp_path / f"videos/{number}.mp4", 60, size=(160, 96))
    (tmp_path / "x.list").write_text("".join(f"{number}.mp4 0\n" for number in range(4)))
    given = {"list": tmp_path / "x.list", "data_prefix": tmp_path / "videos", "output": tmp_path / "out"}
    paths = [word for name, path in given.items() for word in (f"--{name}", str(path))]
    return lambda script, *options: [sys.executable, str(REPO / f"data/{script}.py"), *paths, *options]


def test_a_run_into_a_folder_that_another_writes_to_names_it(
    command, rawframes_dataset, tmp_path, monkeypatch
):
    monkeypatch.setattr(locks, "_PATIENCE_SEC", 0.0)
    (tmp_path / "labels.json").write_text('{"run": "0"}')
    for file, clip in (("train", "0"), ("validation", "1")):
        (tmp_path / f"{file}.json").write_text(f'[{{"id": "{clip}", "template": "[run]"}}]')
    out = tmp_path / "out"
    tools = {
        prepare_list: command("prepare_videos")[2:],
        pack: command("pack_frames")[2:],
        extract: [f"--root={tmp_path / 'videos'}", "--level=1", f"--output={out}"],
        make: ["--train=2", "--valid=0", "--size=16", f"--output={out}"],
        build: [f"--root={rawframes_dataset.root}", f"--output={out}"],
        ssv2: [f"--root={tmp_path / 'videos'}", f"--annotations={tmp_path}", f"--output={out}"],
    }
    told = f"^--output {re.escape(str(out))}: process {os.getpid()} on .* writes to it since"
    with only_writer(out):
        for tool, words in tools.items():
            with pytest.raises(OutputInUseError, match=told):
                tool(words)
            assert os.listdir(out) == [locks.LOCK]
    for tool, words in tools.items():
        assert tool(words) == 0
        assert not (out / locks.LOCK).exists()
        shutil.rmtree(out)


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


def test_workers_end_with_a_killed_run(command):
    run = subprocess.Popen(
        command("prepare_videos", "--workers=2"),
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


def test_processes_start_where_they_save_a_second(monkeypatch, capsys):
    clock = SimpleNamespace(sec=0.0)
    clock.monotonic = lambda: clock.sec
    monkeypatch.setattr(executor, "time", clock)

    def work(sec):
        clock.sec += sec
        return os.getpid()

    def num_here(*secs, workers=2):
        return list(executor.run_if_long(work, secs, workers, "works")).count(os.getpid())

    assert num_here() == 0
    assert num_here(*[0.001] * 900) == 900
    assert num_here(9, 9) == 2  # the last one alone
    assert num_here(*[0.1] * 15) == 15  # what is left takes less than a second
    assert capsys.readouterr().err == ""
    assert num_here(0.6, 0.6, 0.6, 0.6) == 2
    assert capsys.readouterr().err.startswith("works: 2/2, ")
    assert num_here(0.6, 0.6, 0.6, 0.6, workers=1) == 4
    assert capsys.readouterr().err.startswith("works: 2/2, ")


@pytest.mark.parametrize("script", ["check_videos", "prepare_videos", "pack_frames"])
def test_more_shares_than_work(script, command, tmp_path):
    (tmp_path / "x.list").write_text("0.mp4 0\n")
    words = command(script, "--workers=1")
    if script == "check_videos":
        place = words.index("--output")
        words[place : place + 2] = ["--output_file", f"{words[place + 1]}/clean.list"]
    for share in ("0/3", "1/3", "2/3"):
        assert main(["data", TOOLS[script], *words[2:], "--job", share]) == 0
    assert main(["data", TOOLS[script], *words[2:], "--merge"]) == 0
    assert len(list((tmp_path / "out").iterdir())) > 0


@pytest.mark.parametrize("script", ["prepare_videos", "pack_frames"])
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


def test_an_output_that_cannot_be_written_is_told_before_the_work(command, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(executor, "_do", lambda *given: pytest.fail("works before it looks at its output"))
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    given = ["--list", str(tmp_path / "x.list"), "--data_prefix", str(tmp_path / "videos"), "--workers=1"]
    for tool in ("prepare", "extract", "pack", "report"):
        assert main(["data", tool, *given, "--output", str(tmp_path / "file/out")]) == 2
    files = [tmp_path / "file/x.list", tmp_path / "folder"]
    for file in files:
        assert main(["data", "check", *given, "--output_file", str(file)]) == 2
        words = ["--output_file", str(tmp_path / "pairs.jsonl"), "--write_clean", str(file)]
        assert main(["data", "check", *given, "--duplicates", *words]) == 2
    monkeypatch.setattr(init_dataset, "probe", lambda *given: pytest.fail("works before it looks"))
    (tmp_path / "videos/a").mkdir()
    shutil.move(tmp_path / "videos/0.mp4", tmp_path / "videos/a/0.mp4")
    assert main(["init", str(tmp_path / "videos"), "--output", str(tmp_path / "file/out")]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 9
    causes = ("cannot be written", "is a folder; name a file", "is a file; give a folder")
    assert all(any(cause in line for cause in causes) for line in told)
