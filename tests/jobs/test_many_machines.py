"""The data tools in shares, with a merge, give the bytes of a run on one machine."""

import errno
import os
import threading
from contextlib import ExitStack

import pytest

from paddlevideo_fast.apps.data import frames
from paddlevideo_fast.apps.data.frames import extract
from paddlevideo_fast.apps.data.lists import check
from paddlevideo_fast.apps.data.packing import pack
from paddlevideo_fast.apps.data.videos import prepare_list
from paddlevideo_fast.errors import OutputInUseError, UsageError
from paddlevideo_fast.io import locks
from paddlevideo_fast.io.locks import only_writer
from paddlevideo_fast.jobs.executor import located, run_all
from paddlevideo_fast.jobs.run import ToolError
from tests.support.content import content

TOOLS = {
    "prepare": (prepare_list, "--preset=intra"),
    "pack": (pack, "--shard_size=2"),
    "extract": (extract, "--short_side=16"),
    "check": (check, "--backend=pyav"),
    "duplicates": (check, "--duplicates"),
}
NUM_VIDEOS = 9


@pytest.fixture(scope="module")
def source(make_clip, tmp_path_factory):
    """A folder with nine videos, one of a name that is not UTF-8, two that do not decode, and their list."""
    root = tmp_path_factory.mktemp("source")
    names = [*(f"{number}.mp4" for number in range(NUM_VIDEOS - 1)), os.fsdecode(b"\xff.mp4")]
    for number, name in enumerate(names):
        make_clip(root / f"class{number % 2}" / name, 24, size=(96, 64))
    for name in ("empty", "text"):
        (root / "class0" / f"{name}.mp4").write_text("" if name == "empty" else "no video")
        names.insert(3, f"{name}.mp4")
    places = {path.name: path.relative_to(root).as_posix() for path in root.rglob("*.mp4")}
    lines = "".join(f"{places[name]} {place % 2}\n" for place, name in enumerate(names))
    (root / "x.list").write_bytes(os.fsencode(lines))
    return root


def words_of(name, source, output, *options):
    given = [f"--list={source / 'x.list'}", f"--data_prefix={source}", TOOLS[name][1]]
    return [
        *given,
        f"--output={output / 'clean.list' if name in ('check', 'duplicates') else output}",
        *options,
    ]


def run_tool(name, source, output, *options):
    output.mkdir(exist_ok=True)
    return TOOLS[name][0](words_of(name, source, output, *options))


@pytest.fixture
def run(source, tmp_path):
    """Function that runs a tool into a folder of that name; returns the exit code."""
    return lambda name, out, *options: run_tool(name, source, tmp_path / out, *options)


@pytest.fixture(scope="module")
def alone(source, tmp_path_factory):
    """Function that gives what a tool writes on one machine."""
    root, made = tmp_path_factory.mktemp("alone"), {}

    def write(name):
        if name not in made:
            assert run_tool(name, source, root / name, "--workers=1") == 1  # two videos fail
            made[name] = content(root / name)
        return made[name]

    return write


@pytest.fixture
def same_as_one_machine(alone, tmp_path):
    """Function that compares what a tool has written with what it writes on one machine."""

    def compare(name, out):
        assert content(tmp_path / out) == alone(name)
        failures = next(text for file, text in alone(name).items() if file.endswith("failures.txt"))
        assert failures.count(b"\n") == 2
        assert not list((tmp_path / out).glob(".[!p]*"))  # neither journals nor locks

    return compare


# --- shares


@pytest.mark.parametrize("name", TOOLS)
def test_shares_and_a_merge_give_the_same_bytes(name, run, same_as_one_machine, capsys):
    for number in (2, 0):
        assert run(name, "shares", f"--shard={number}/3", "--workers=1") == 0
    with pytest.raises(ToolError, match=r"--merge: [234] \w+ have no result yet: wait for the end"):
        run(name, "shares", "--merge")
    assert run(name, "shares", "--shard=1/3", "--workers=2") == 0
    assert "empty.mp4" not in capsys.readouterr().err  # --merge reports failures
    assert run(name, "shares", "--merge") == 1
    said = capsys.readouterr()
    assert (said.out + said.err).count("empty.mp4: ") == 1
    same_as_one_machine(name, "shares")


def test_a_share_that_was_stopped_goes_on_and_tries_again_what_failed(run, source, tmp_path, capsys):
    assert run("check", "shares", "--shard=0/1") == 0
    journal = next((tmp_path / "shares").glob(".journal-*"))
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join([*lines[:7], lines[7][:9]]))  # killed while it wrote
    capsys.readouterr()
    assert run("check", "shares", "--shard=0/1") == 0
    num_intact = sum("[[null], " in line for line in lines[:7])
    assert num_intact
    assert f"files: {num_intact} of 11 are done already" in capsys.readouterr().err
    assert run("check", "shares", "--merge") == 1
    assert "9 of 11 are intact" in capsys.readouterr().err


def test_a_result_counts_only_as_long_as_its_file_is_what_it_was(run, tmp_path, capsys):
    for name, change in (
        ("extract", lambda out: (out / "class1/1/img_00003.jpg").unlink()),
        ("prepare", lambda out: (out / "class1/1.mp4").write_bytes(b"other")),
        ("pack", lambda out: (out / "00000.index").unlink()),
    ):
        assert run(name, name, "--shard=0/1") == 0
        change(tmp_path / name)
        with pytest.raises(ToolError, match=r"--merge: 1 \w+ have no result yet"):
            run(name, name, "--merge")


def test_flags_of_shares(run, source, capsys):
    for options, message in (
        (["--shard=3/3"], r"--shard: 3/3; must be I/N with I from 0 to N - 1, such as 0/3"),
        (["--shard=a"], "--shard: a; must be"),
        (["--shard=0/2", "--merge"], "give either --shard"),
    ):
        with pytest.raises((ToolError, UsageError), match=message):
            run("prepare", "out", *options)
    with pytest.raises(ToolError, match="--output is missing: with --shard and --merge"):
        check([f"--root={source}", "--shard=0/2"])
    assert run("prepare", "out", "--shard=0/1", "--workers=1") == 0
    assert run("prepare", "out", "--merge", "--workers=1") == 1
    said = capsys.readouterr().err
    assert "warning: --workers has no effect: --merge does no work" in said


def test_who_may_write_beside_whom(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "_PATIENCE_SEC", 0.1)

    def refused(**options):
        with pytest.raises(OutputInUseError, match="writes to it since"), only_writer(tmp_path, **options):
            pass

    with ExitStack() as jobs:
        for number in range(3):
            jobs.enter_context(only_writer(tmp_path, share=("work-of-3", number)))
        refused()  # all of the folder
        refused(share=("work-of-3", 1))  # the same share
        refused(share=("work-of-4", 3))  # the same work, shared otherwise
        with only_writer(tmp_path, "file"), only_writer(tmp_path, "x", share=("y-of-2", 0)):
            refused(file="x")  # a file of the folder is a place of its own
    with only_writer(tmp_path):
        refused(share=("work-of-3", 0))
    assert os.listdir(tmp_path) == []


# --- the same task twice, at the same time


def test_two_machines_extract_the_same_video(make_clip, tmp_path):
    video = make_clip(tmp_path / "a.mp4", 12, size=(32, 32))
    out = tmp_path / "out"
    for overwrite in (False, True):
        task = frames.Task(str(video), str(tmp_path), "out", "pyav", 0, (0, 0), "jpg", 95, overwrite)
        results = []

        def work(task=task, results=results):
            results.extend(task.do() for _ in range(15))

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [result.cause for result in results] == [""] * 45
        assert len(list(out.iterdir())) == 12
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mp4", "out"]


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_folder_that_another_machine_moves_during_the_rename(is_lost, make_clip, tmp_path, monkeypatch):
    """A rename that looks its target up first fails with ENOENT if the target is moved in between."""
    video = make_clip(tmp_path / "a.mp4", 3, size=(32, 32))
    out = tmp_path / "out"
    task = frames.Task(str(video), str(tmp_path), "out", "pyav", 0, (0, 0), "jpg", 95, True)
    assert task.do().cause == ""
    rename = os.replace

    def moved_by_another(source, target):
        monkeypatch.setattr(os, "replace", rename)
        rename(out, tmp_path / "moved")
        if is_lost:
            rename(source, tmp_path / "lost")
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source, None, target)

    monkeypatch.setattr(os, "replace", moved_by_another)
    cause = task.do().cause
    assert cause == ("cannot be stored: No such file or directory" if is_lost else "")
    assert out.exists() != is_lost
    assert not list(tmp_path.glob(".saving-*"))


# --- the loop


def test_results_come_in_task_order_and_are_kept_at_once():
    tasks, kept = [f"{number}" for number in range(200)], []
    found = list(run_all(located, tasks, 2, "tasks", each=lambda task, result: kept.append(task)))
    assert found == [os.path.join(os.getcwd(), task) for task in tasks]
    assert sorted(kept, key=int) == tasks
    assert list(run_all(located, [], 2, "tasks")) == []


def test_what_is_done_before_an_error_is_kept(capsys):
    kept = []
    with pytest.raises(ToolError, match="^3$"):
        list(run_all(fail_at_3, range(9), 1, "tasks", each=lambda task, result: kept.append(task)))
    assert kept == [0, 1, 2]


def fail_at_3(task):
    if task == 3:
        raise ToolError("3")
    return task
