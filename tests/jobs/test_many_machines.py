"""The data tools on a Dask cluster, and in shares with a merge, give the bytes of a run on one machine."""

import errno
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

import paddlevideo_fast
from paddlevideo_fast.apps.data import frames
from paddlevideo_fast.apps.data.frames import extract
from paddlevideo_fast.apps.data.lists import check
from paddlevideo_fast.apps.data.packing import pack
from paddlevideo_fast.apps.data.videos import prepare_list
from paddlevideo_fast.errors import OutputInUseError, UsageError
from paddlevideo_fast.io import locks
from paddlevideo_fast.io.locks import Lock, only_writer
from paddlevideo_fast.jobs import executor
from paddlevideo_fast.jobs.executor import Executor, SharedFiles, common_folder, located, run_all
from paddlevideo_fast.jobs.run import ToolError
from tests.support.content import content
from tests.support.dask_cluster import dask_cluster

pytest.importorskip("distributed")

TOOLS = {
    "prepare": (prepare_list, "--preset=intra"),
    "pack": (pack, "--shard_size=2"),
    "extract": (extract, "--short_side=16"),
    "check": (check, "--decoder=pyav"),
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


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with dask_cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


def words_of(name, source, output, *options):
    given = [f"--list={source / 'x.list'}", f"--data_prefix={source}", TOOLS[name][1]]
    return [
        *given,
        f"--output_file={output / 'clean.list'}" if name in ("check", "duplicates") else f"--output={output}",
        *options,
    ]


def run_tool(name, source, output, *options):
    output.mkdir(exist_ok=True)
    return TOOLS[name][0](words_of(name, source, output, *options))


def start_tool(name, source, output, *options):
    """The same in a process of its own."""
    words = [sys.executable, "-m", "paddlevideo_fast", "data", name]
    return subprocess.Popen(
        [*words, *words_of(name, source, output, *options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(paddlevideo_fast.__file__).parents[1])},
    )


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


# --- Dask


@pytest.mark.parametrize("name", TOOLS)
def test_a_cluster_gives_the_same_bytes(name, run, cluster, same_as_one_machine, capsys):
    assert run(name, "cluster", "--scheduler", cluster.address) == 1
    said = capsys.readouterr()
    assert "workers of tcp://" in said.err
    assert (said.out + said.err).count("empty.mp4: ") == 1  # failures are told once
    same_as_one_machine(name, "cluster")


def test_workers_are_lost_and_join(run, cluster, same_as_one_machine, tmp_path, capsys):
    added = []

    def kill_and_add():
        cluster.workers[0].kill()
        added.append(cluster.add_worker())

    with once_begun(tmp_path / "cluster", kill_and_add):
        assert run("prepare", "cluster", "--scheduler", cluster.address) == 1
    assert added[0].poll() is None
    assert "workers of " in capsys.readouterr().err
    assert run("prepare", "alone", "--workers=1") == 1
    assert content(tmp_path / "cluster") == content(tmp_path / "alone")


def journal_lines(folder):
    return sum(path.read_text().count("\n") for path in folder.glob(".journal-*"))


@contextmanager
def once_begun(folder, act):
    """Acts in a thread once a result of the run in the block is noted."""
    ended = threading.Event()

    def wait_and_act():
        while not journal_lines(folder):
            if ended.wait(0.01):
                return  # the run has failed before
        act()

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_ctrl_c_in_the_middle(run, source, alone, same_as_one_machine, tmp_path, capsys):
    """The workers are stopped when the signal comes, so that it comes in the middle of the work."""
    out = tmp_path / "cluster"
    out.mkdir()
    with dask_cluster(tmp_path / "dask") as cluster:
        cluster.workers[1].send_signal(signal.SIGSTOP)
        client = start_tool("check", source, out, "--scheduler", cluster.address)
        while not journal_lines(out):
            assert client.poll() is None, client.communicate()
            time.sleep(0.001)
        cluster.workers[0].send_signal(signal.SIGSTOP)
        client.send_signal(signal.SIGINT)
        said, errors = client.communicate(timeout=60)
        assert client.returncode == 130, said
        assert errors.splitlines()[-1].startswith(
            "interrupted; to go on:  paddlevideo-fast data check --list="
        )
        shown = {path: data for path, data in content(out).items() if "/." not in f"/{path}"}
        shown.pop("provenance.json", None)
        folders = {os.path.dirname(path) for path in shown}
        whole = {path: data for path, data in alone("check").items() if os.path.dirname(path) in folders}
        assert shown == whole != alone("check")
        assert not list(out.glob(".lock*"))
        for worker in cluster.workers:
            worker.send_signal(signal.SIGCONT)
        assert run("check", "cluster", "--scheduler", cluster.address) == 1
    assert "are done already" in capsys.readouterr().err
    same_as_one_machine("check", "cluster")


def test_no_scheduler_there(run, monkeypatch):
    monkeypatch.setattr(executor, "_CONNECT_SEC", 0.5)
    with pytest.raises(ToolError, match=r"--scheduler tcp://127.0.0.1:9: no Dask scheduler answers there"):
        run("prepare", "out", "--scheduler=tcp://127.0.0.1:9")


def test_a_worker_of_another_toolkit_and_a_lost_scheduler(run, same_as_one_machine, tmp_path, capsys):
    """Each is one sentence, and the run goes on with the next command."""
    old = tmp_path / "old/paddlevideo_fast"
    old.mkdir(parents=True)
    (old / "__init__.py").write_text("raise ImportError('too old')")
    with dask_cluster(tmp_path / "first", 0) as first:
        first.add_worker({"PYTHONPATH": str(old.parent)})  # it cannot even load the tasks
        first.add_worker()
        away = pytest.raises(ToolError, match="the scheduler is away; what is finished is kept")
        with away, once_begun(tmp_path / "cluster", first.scheduler.kill):
            run("prepare", "cluster", "--scheduler", first.address)
    said = capsys.readouterr().err.splitlines()
    assert all(line.startswith(("workers of tcp://", "videos: ")) for line in said)
    assert run("prepare", "cluster", "--workers=2") == 1
    assert "of 11 are done already" in capsys.readouterr().err
    same_as_one_machine("prepare", "cluster")


def served(shared, function=located, tasks=("x",)):
    """Function that does what a worker does with a batch that has come to it."""
    sent = pickle.dumps((function, shared, "tcp://host:1", executor._versions(), tasks))
    return lambda: executor._do_on_worker(*pickle.loads(sent))


def test_a_worker_that_does_not_fit_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(executor, "_PATIENCE_SEC", 0.0)
    with only_writer(tmp_path) as lock:
        assert served(SharedFiles(lock, [str(tmp_path)]))() == ([located("x")], None)
        call = served(SharedFiles(lock))
        monkeypatch.setattr(paddlevideo_fast, "__version__", "0.0.1")
        here = r"has paddlevideo_fast 0\.0\.1, and here it is [\d.]+: install the same"
        assert_refused(call, here)
        monkeypatch.undo()
        monkeypatch.setattr(executor, "_PATIENCE_SEC", 0.0)
        assert_refused(
            served(SharedFiles(lock, ["/nowhere"])), "^/nowhere: the worker on .* does not see this folder"
        )
        elsewhere = Lock(str(tmp_path / "other" / ".lock"), lock.key)
        assert_refused(
            served(SharedFiles(elsewhere)), "does not see what this run writes there; give an --output"
        )
        assert_refused(
            served(SharedFiles(lock._replace(key="of a run that was killed"))), "does not see what this run"
        )
    assert_refused(served(SharedFiles(lock)), "does not see")


def test_a_worker_waits_for_what_a_network_file_system_shows_late(tmp_path, monkeypatch):
    with only_writer(tmp_path) as lock:
        late = Lock(str(tmp_path / "late"), lock.key)
        clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda sec: shutil.copy(lock.path, late.path))
        monkeypatch.setattr(executor, "time", clock)
        assert served(SharedFiles(late))() == ([located("x")], None)


def assert_refused(call, message):
    results, error = call()
    assert results == []
    assert isinstance(error, ToolError)
    with pytest.raises(ToolError, match=message):
        raise error


def test_a_batch_stops_when_its_run_has_ended(tmp_path):
    with only_writer(tmp_path) as lock:
        results, error = served(SharedFiles(lock), os.unlink, [lock.path] * 2)()
    assert len(results) == 1
    assert "the run that this task was for has ended" in str(error)


# --- shares


@pytest.mark.parametrize("name", TOOLS)
def test_shares_and_a_merge_give_the_same_bytes(name, run, same_as_one_machine, capsys):
    for number in (2, 0):
        assert run(name, "shares", f"--job={number}/3", "--workers=1") == 0
    with pytest.raises(ToolError, match=r"--merge: [234] \w+ have no result yet: wait for the end"):
        run(name, "shares", "--merge")
    assert run(name, "shares", "--job=1/3", "--workers=2") == 0
    assert "empty.mp4" not in capsys.readouterr().err  # --merge reports failures
    assert run(name, "shares", "--merge") == 1
    said = capsys.readouterr()
    assert (said.out + said.err).count("empty.mp4: ") == 1
    same_as_one_machine(name, "shares")


def test_a_share_that_was_stopped_goes_on_and_tries_again_what_failed(run, source, tmp_path, capsys):
    assert run("check", "shares", "--job=0/1") == 0
    journal = next((tmp_path / "shares").glob(".journal-*"))
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join([*lines[:7], lines[7][:9]]))  # killed while it wrote
    capsys.readouterr()
    assert run("check", "shares", "--job=0/1") == 0
    num_intact = sum("[[null], " in line for line in lines[:7])
    assert num_intact
    assert f"files: {num_intact} of 11 are done already" in capsys.readouterr().err
    assert run("check", "shares", "--merge") == 1
    assert "intact files: 9 of 11" in capsys.readouterr().out


def test_a_result_counts_only_as_long_as_its_file_is_what_it_was(run, tmp_path, capsys):
    for name, change in (
        ("extract", lambda out: (out / "class1/1/img_00003.jpg").unlink()),
        ("prepare", lambda out: (out / "class1/1.mp4").write_bytes(b"other")),
        ("pack", lambda out: (out / "00000.index").unlink()),
    ):
        assert run(name, name, "--job=0/1") == 0
        change(tmp_path / name)
        with pytest.raises(ToolError, match=r"--merge: 1 \w+ have no result yet"):
            run(name, name, "--merge")


def test_flags_of_shares(run, source, capsys):
    for options, message in (
        (["--job=3/3"], r"--job: 3/3; must be I/N with I from 0 to N - 1, such as 0/3"),
        (["--job=a"], "--job: a; must be"),
        (["--job=0/2", "--merge"], "give either --job"),
        (["--scheduler=slurm"], "--scheduler: slurm; must be local or tcp://HOST:PORT"),
    ):
        with pytest.raises((ToolError, UsageError), match=message):
            run("prepare", "out", *options)
    with pytest.raises(ToolError, match="--output_file is missing: with --job and --merge"):
        check([str(source), "--job=0/2"])
    assert run("prepare", "out", "--job=0/1", "--workers=1") == 0
    assert run("prepare", "out", "--merge", "--workers=1", "--scheduler=tcp://127.0.0.1:9") == 1
    said = capsys.readouterr().err
    assert "warning: --scheduler has no effect: --merge does no work" in said
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
    found = list(run_all(located, tasks, Executor(2), "tasks", each=lambda task, result: kept.append(task)))
    assert found == [os.path.join(os.getcwd(), task) for task in tasks]
    assert sorted(kept, key=int) == tasks
    assert list(run_all(located, [], Executor(2, "tcp://127.0.0.1:9"), "tasks")) == []


def test_what_is_done_before_an_error_is_kept(capsys):
    kept = []
    with pytest.raises(ToolError, match="^3$"):
        list(run_all(fail_at_3, range(9), Executor(1), "tasks", each=lambda task, result: kept.append(task)))
    assert kept == [0, 1, 2]


def fail_at_3(task):
    if task == 3:
        raise ToolError("3")
    return task


def test_folders_that_workers_must_see(tmp_path):
    assert common_folder([f"{tmp_path}/a/x.mp4", f"{tmp_path}/b/y.mp4", "s3://bucket/z.mp4"]) == [
        str(tmp_path)
    ]
    assert common_folder(["s3://bucket/z.mp4"]) == common_folder(["/no/such/x"]) == []
    assert located("s3://bucket/z.mp4") == "s3://bucket/z.mp4"
