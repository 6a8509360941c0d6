"""Ctrl-C at work: each command ends at once, leaves no half file, and prints how to go on where it can."""

import contextlib
import json
import os
import re
import shlex
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from paddlevideo_fast.apps.data.command import TOOLS
from paddlevideo_fast.cli.commands import COMMANDS
from paddlevideo_fast.cli.config import build_parser as config_parser
from tests.support.launching import ROOT

MAIN = ROOT / "paddlevideo_fast" / "__main__.py"
NUM_CLIPS = 100
MAX_SEC = 2.0  # from Ctrl-C to the end
LOADED = 4  # so many times as long may a machine take that has other work
_MARK = "PADDLEVIDEO_FAST_TEST_OF_CTRL_C"  # in the environment of what a command starts
_TEMPORARY = re.compile(r"\.saving-|\.part$|\.partial|\.other_recipe|\.lock")


class Row(NamedTuple):
    """A command line that has work for minutes.

    Attributes:
        words: of the command line, in the folder of `work_folder`.
        at_work: what it has printed when it is at work; as a number, how many processes it has started then;
            after `file:`, a file that is there then.
        adds: to the command line, in the printed command to go on; None: no command is printed.
        to_all: the signal comes to all processes, as from a terminal; else as from `kill`.
        marks: of the test.
    """

    words: str
    at_work: str | int
    adds: str | None = None
    to_all: bool = True
    marks: Any = ()


TRAIN = "train -c tiny.yaml -o epochs=500 -o DATASET.num_workers=2"
LIST = "'my clips.list' --data_prefix clips --workers 2"
CHECK = f"data check {LIST} --output_file out/clean.list"
PREDICT = "predict inference --json -i"
ROWS = {
    "init": Row("init by_class --output set --workers 2 --check all", 2),
    "train": Row(TRAIN, r"train step:", "--resume"),
    "train, alone": Row(TRAIN, r"train step:", "--resume", to_all=False),
    "train --folds": Row(f"{TRAIN} --folds 2", r"train step:", "--resume"),
    "test": Row("test -c tiny.yaml -w weights.pdparams -o DATASET.num_workers=2", 2),
    "features": Row(
        "features -c tiny.yaml -w weights.pdparams --output out --views 999", r"file:out/*/*", ""
    ),
    "average": Row(
        "average -c tiny.yaml --last 2 -w weights.pdparams weights.pdparams -o DATASET.num_workers=2", 2
    ),
    "export": Row("export -c tiny.yaml -w weights.pdparams --output out", "now comparing the logits"),
    "predict": Row(f"{PREDICT} clips", r"(?m)^\{"),
    "predict, windows": Row(f"{PREDICT} clips --window_sec 0.3", r"(?m)^\{"),
    "predict, live": Row(f"{PREDICT} pipe --window_sec 0.5", r"(?m)^\{"),
    "serve": Row("serve inference --port 0 --num_readers 2", "answers at"),
    "doctor": Row("doctor -c tiny.yaml -o DATASET.num_workers=2 --steps 9999", r"training \d+ steps"),
    "doctor --find": Row("doctor -c tiny.yaml --find lr --steps 9999", r"training \d+ steps"),
    "plan": Row("plan slowfast_multigrid --clips 1000 --limit 100000", "counting FLOPs"),
    "launch": Row(f"launch --nproc_per_node 2 {TRAIN}", r"train step:", "--resume", marks=pytest.mark.slow),
    "data check": Row(CHECK, "file:out/.journal-*", ""),
    "data check, alone": Row(CHECK, "file:out/.journal-*", "", to_all=False),
    "data check, no file": Row(f"data check {LIST}", "files: 10/"),
    "data check --duplicates": Row(f"{CHECK} --duplicates", "file:out/.journal-*", ""),
    "data report": Row(f"data report {LIST} --output out", "file:out/.journal-*", ""),
    "data prepare": Row(f"data prepare {LIST} --output out --short_side 32", "file:out/.journal-*", ""),
    "data extract": Row("data extract by_class out --workers 2 --short_side 32", "file:out/.journal-*", ""),
    "data pack": Row(f"data pack {LIST} --output out --short_side 32 --shard_size 2", "file:out/*.data", ""),
    "data motion": Row("data motion --output out --train 9999 --workers 2", "file:out/train/*.mp4", ""),
}
TAKES_A_MOMENT = {
    "convert": "it writes one file, which appears whole",
    "config show": "it reads YAML files",
    "config copy": "it writes one file, which appears whole",
    "zoo": "it reads YAML files",
    "completion": "it prints a script",
    "data list": "it lists folders",
    "data convert": "it reads one file",
    "data k400": "it lists folders",
    "data ucf101": "it lists folders",
    "data ssv2": "it lists folders",
}


def test_each_command_has_a_row():
    """A new command either gets a row of `ROWS`, or its reason why nobody interrupts it."""
    names = {
        *(name for name in COMMANDS if name not in ("config", "data")),
        *(f"config {name}" for name in config_parser().commands),
        *(f"data {name}" for name in TOOLS),
    }
    interrupted = {re.split(r",| --", name)[0] for name in ROWS}
    assert interrupted | TAKES_A_MOMENT.keys() == names
    assert not interrupted & TAKES_A_MOMENT.keys()


@pytest.fixture(scope="module")
def exported(template, environment, motion_data, finished_run, tiny_text, tmp_path_factory) -> Path:
    """A folder with an exported network."""
    folder = tmp_path_factory.mktemp("exported")
    (folder / "tiny.yaml").write_text(tiny_text.format(data=motion_data, output=folder / "run"))
    words = ["export", folder / "tiny.yaml", "-w", finished_run / "tiny_best.pdparams"]
    done = template.run([MAIN, *words, "--output", folder / "inference"], folder, environment)
    assert done.returncode == 0, done.stderr
    return folder / "inference"


@pytest.fixture
def work_folder(tmp_path, motion_data, finished_run, exported, tiny_text, real_clips_dir) -> Path:
    """A folder with a hundred clips, their list, a config, weights and an exported network."""
    names = [f"{number:03}.mp4" for number in range(NUM_CLIPS)]
    for number, name in enumerate(names):
        for folder in (tmp_path / "clips", tmp_path / "by_class" / f"class {number % 2}"):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).symlink_to(real_clips_dir / "mma_demo.mp4")
    lines = "".join(f"{name} {number % 2}\n" for number, name in enumerate(names))
    (tmp_path / "my clips.list").write_text(lines)
    text = tiny_text.format(data=motion_data, output="run")
    valid = re.compile(r"data_prefix: \S+, file_path: \S+/valid.list")
    (tmp_path / "tiny.yaml").write_text(valid.sub("data_prefix: clips, file_path: my clips.list", text))
    (tmp_path / "weights.pdparams").symlink_to(finished_run / "tiny_best.pdparams")
    (tmp_path / "inference").symlink_to(exported)
    return tmp_path


def processes_of(session: int, folder: Path) -> set[int]:
    """The processes of a session, and what they have started in other ones."""
    mark, pids = f"{_MARK}={folder}".encode(), set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            state, _, _, its_session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            is_of_session = int(its_session) == session or mark in (entry / "environ").read_bytes()
            if state != "Z" and is_of_session:
                pids.add(int(entry.name))
    return pids


@contextlib.contextmanager
def started(template: Any, environment: Mapping[str, str], folder: Path, words: str) -> Iterator[Any]:
    """The process of a command line, which prints to `printed`; nothing of it outlives the block."""
    (folder / "printed").touch()
    own = {**environment, _MARK: str(folder)}
    process = template.start([MAIN, *shlex.split(words)], folder, own, folder / "printed")
    try:
        yield process
    finally:
        for pid in processes_of(process.pid, folder) | ({process.pid} if process.poll() is None else set()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(30)


def wait_for_work(process: Any, folder: Path, at_work: str | int) -> None:
    """Returns when the process is at work; see `Row`."""
    deadline = time.monotonic() + 60
    while True:
        printed = (folder / "printed").read_text()
        if isinstance(at_work, int):
            works = len(processes_of(process.pid, folder)) > at_work
        elif at_work.startswith("file:"):
            works = any(folder.glob(at_work[len("file:") :]))
        else:
            works = bool(re.search(at_work, printed))
        if works:
            return
        assert process.poll() is None, printed[-3000:]
        assert time.monotonic() < deadline, f"it does not begin to work: {printed[-3000:]}"
        time.sleep(0.02)


@contextlib.contextmanager
def fed(pipe: Path, clip: Path) -> Iterator[None]:
    """A pipe that a clip comes out of, and then nothing more."""
    os.mkfifo(pipe)
    handle = os.open(pipe, os.O_RDWR)  # it stays open: its reader sees no end

    def feed() -> None:
        with contextlib.suppress(OSError):
            os.write(handle, clip.read_bytes())

    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.close(handle)
        thread.join(1)


@pytest.mark.parametrize("name", [pytest.param(name, marks=row.marks) for name, row in ROWS.items()])
def test_ctrl_c_at_work(template, environment, work_folder, real_clips_dir, name):
    row = ROWS[name]
    with contextlib.ExitStack() as stack:
        if " pipe " in row.words:
            stack.enter_context(fed(work_folder / "pipe", real_clips_dir / "pancake.mkv"))
        process = stack.enter_context(started(template, environment, work_folder, row.words))
        wait_for_work(process, work_folder, row.at_work)
        began = time.monotonic()
        (os.killpg if row.to_all else os.kill)(process.pid, signal.SIGINT)
        code = process.wait(30)
        seconds = time.monotonic() - began
        while (left := processes_of(process.pid, work_folder)) and time.monotonic() < began + 5:
            time.sleep(0.02)  # Python's tracker of resources sees that its process has ended
    printed = (work_folder / "printed").read_text()
    assert (code, left) == (130, set()), printed[-3000:]
    assert seconds < MAX_SEC * (LOADED if os.getloadavg()[0] > (os.cpu_count() or 1) else 1)
    assert "Traceback" not in printed
    assert [str(path) for path in work_folder.rglob("*") if _TEMPORARY.search(path.name)] == []
    assert all(json.loads(line) for line in printed.splitlines() if line.startswith("{"))
    (said,) = re.findall(r"(?m)^interrupted.*", printed)
    command = "" if row.adds is None else f"; to go on:  paddlevideo-fast {row.words} {row.adds}".rstrip()
    assert said == f"interrupted{command}"
