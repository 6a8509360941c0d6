"""The pool behind a loader: one start for all epochs, a ring of shared arrays, and what hangs is named."""

import contextlib
import errno
import gc
import logging
import mmap
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import av  # noqa: F401  # before Paddle
import cv2
import numpy as np
import pytest

from paddlevideo_fast.errors import VideoDecodeError
from paddlevideo_fast.loader import (
    BatchShape,
    ClipBatchSampler,
    ClipLoader,
    ClipRequest,
    LoaderError,
    Sample,
    VideoRecord,
    WorkerOptions,
    clip_loader,
    workers,
)
from paddlevideo_fast.loader.clip_loader import choose_num_workers, smallest_sufficient
from paddlevideo_fast.loader.workers import NUM_AHEAD, NUM_LENT, WorkerPool
from tests.loader.building import dataset_of, loader_of


class Clips:
    """Clips that show the index and epoch of their request; `label` says what a worker knows about itself."""

    is_remote = False

    def __init__(self, size=24, label=os.getpid, act=lambda index: None):
        self.records = [VideoRecord(f"clip {number}.mp4", 0) for number in range(size)]
        self.label = label
        self.act = act
        self.on_record = None

    def __len__(self):
        return len(self.records)

    def load(self, requests, outs=None):
        ((request,), (out,)) = requests, outs or [None]
        if self.on_record is not None:
            self.on_record(request.index)
        self.act(request.index)
        side = request.crop_size or 8
        clip = np.empty((2, side, side, 3), np.uint8)
        if request.index % 2 and out is not None and out.shape == clip.shape:
            clip = out  # every second one is written in place
        clip[0], clip[1] = request.index, request.epoch
        return [Sample(clip, self.label(), request.index, request.view)]


@pytest.fixture
def make_loader():
    loaders = []

    def make(dataset, num_workers=2, batch_size=2, **options):
        sampler = ClipBatchSampler(len(dataset), batch_size, shuffle=True, drop_last=False, seed=1)
        loaders.append(ClipLoader(dataset, sampler, num_workers, WorkerOptions(**options)))
        return loaders[-1]

    yield make
    for loader in loaders:
        loader.close()


def run_epoch(broken, num_workers):
    """An epoch of 12 clips; `broken` is called for one of them."""
    dataset = Clips(12, act=lambda index: broken() if index == 7 else None)
    sampler = ClipBatchSampler(12, 2, shuffle=False, drop_last=False, seed=0)
    with contextlib.closing(ClipLoader(dataset, sampler, num_workers)) as loader:
        return list(loader.epoch(0))


def run_script(script):
    """What a program prints that has `Clips` and `sampler`, of 24 clips in batches of 2."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT + script], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if "ccache" not in line] == []
    return done.stdout


SCRIPT = """
import os, sys, time
from tests.loader.test_workers import Clips, alive
from paddlevideo_fast.loader import ClipBatchSampler, ClipLoader, ClipRequest, DecodeFailure, Sample
from paddlevideo_fast.loader.workers import WorkerPool
sampler = ClipBatchSampler(24, 2, shuffle=False, drop_last=False, seed=0)
"""


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def check(batch, epoch):
    assert (batch.clips[:, 0] == batch.ids[:, None, None, None]).all()
    assert (batch.clips[:, 1] == epoch).all()


@pytest.mark.smoke
def test_one_start_serves_all_epochs(make_loader):
    loader = make_loader(Clips())
    pids = []
    for epoch in range(4):
        batches = list(loader.epoch(epoch, start_batch=epoch))
        assert len(batches) == 12 - epoch
        for batch in batches:
            check(batch, epoch)
        pids.append({label for batch in batches for label in batch.labels})
    assert os.getpid() not in pids[0]
    assert len(set.union(*pids)) <= 2
    loader.close()
    assert not any(alive(pid) for pid in set.union(*pids))
    check(next(loader.epoch(0)), 0)  # and starts again


def test_there_are_as_many_workers_as_the_largest_phase_has_use_for(make_loader):
    """A first phase of few large batches does not starve a later one of many small ones."""
    loader = make_loader(Clips(), num_workers=3, batch_size=24)

    def workers_of(batch_size, epoch):
        loader.batch_sampler = loader.batch_sampler.reshaped([BatchShape(batch_size)])
        batches = list(loader.epoch(epoch))
        for batch in batches:
            check(batch, epoch)
        return {label for batch in batches for label in batch.labels}, loader._pool.num_workers

    first, one = workers_of(24, 0)
    many, three = workers_of(2, 1)
    again, still = workers_of(24, 2)
    assert (one, three, still) == (1, 3, 3)
    assert first.isdisjoint(many)
    assert again <= {process.pid for process in loader._pool._processes}


def test_an_epoch_that_is_left_leaves_nothing_to_the_next(make_loader):
    loader = make_loader(Clips())
    whole = [batch.ids.tolist() for batch in loader.epoch(1)]
    for place in (0, 1, 5, 11):
        left = loader.epoch(0)
        for _ in range(place):
            next(left)
        ids = []
        for batch in loader.epoch(1):
            check(batch, 1)
            ids.append(batch.ids.tolist())
        assert ids == whole
        if place:
            with pytest.raises(LoaderError, match="ended by another one"):
                next(left)


def test_the_ring_is_used_again_and_kept_batches_stay(make_loader):
    loader = make_loader(Clips())
    kept = next(loader.epoch(0))
    addresses = set()
    for epoch in range(1, 6):
        for batch in loader.epoch(epoch):
            check(batch, epoch)
            addresses.add(batch.clips.ctypes.data)
    assert len(addresses) <= 2 * NUM_AHEAD + NUM_LENT
    all_kept = [batch for epoch in (6, 7) for batch in loader.epoch(epoch)]
    for number, batch in enumerate(all_kept):
        check(batch, 6 + number // 12)
    check(kept, 0)
    loader.close()
    check(kept, 0)


def test_parts_of_a_batch_hold_its_place(make_loader):
    loader = make_loader(Clips())
    batches = loader.epoch(0)
    ids, part = [], []
    for batch in batches:
        ids.append(int(batch.ids[1]))
        part.append(batch.clips[1:, 0, 3:])
        del batch
        part = part[-2:]
        for index, clip in zip(ids[-2:], part):
            assert (clip == index).all()


def test_batches_may_grow():
    pool = WorkerPool(Clips(), 2)
    requests = [[ClipRequest(number, 3, crop_size=size)] for number, size in enumerate((8, 64, 16, 300, 8))]
    for (request,), batch in zip(requests, pool.run(requests)):
        assert batch.clips.shape == (1, 2, request.crop_size, request.crop_size, 3)
        check(batch, 3)
    pool.close()


def test_requests_and_answers_may_be_larger_than_a_pipe_holds():
    script = """
class Unreadable(Clips):
    def load(self, requests, outs=None):
        incident = DecodeFailure("clip.mp4", "failed", f"{requests[0].index} " + 50 * "x")
        return [Sample(None, 0, requests[0].index, 0, (incident,))]
pool = WorkerPool(Unreadable(), 1)
batches = [[ClipRequest(index, 0) for index in range(5000)]] * 4
print(*(len(batch.incidents) for batch in pool.run(batches)))
pool.close()
"""
    assert run_script(script).split() == ["5000"] * 4


@pytest.mark.parametrize("memfd", [True, False])
def test_a_lack_of_shared_memory_is_said(make_loader, monkeypatch, memfd):
    if not memfd:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    loader = make_loader(Clips())
    check(next(loader.epoch(0)), 0)
    loader.close()

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(LoaderError, match=r"no shared memory for a batch .*No space left.*--shm-size"):
        list(loader.epoch(0))


def test_nothing_has_a_name_in_dev_shm(make_loader, monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)

    def mapped():
        lines = Path("/proc/self/maps").read_text().splitlines()
        return {line for line in lines if "/dev/shm/" in line}

    before = mapped()  # what others have left in this process

    def named_and_unnamed():
        lines = mapped() - before
        return 1000 * sum("(deleted)" not in line for line in lines) + len(lines)

    loader = make_loader(Clips(label=named_and_unnamed))
    labels = np.concatenate([batch.labels for batch in loader.epoch(0)])
    assert 1 <= labels.max() < 1000


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (
            lambda: os.kill(os.getpid(), signal.SIGKILL),
            r"ended by SIGKILL \(worker \d \(process \d+, ended\) {}",
        ),
        (lambda: time.sleep(300), r"limit of DATASET\.stall_limit_sec: .*, running\) {} for"),
        (lambda: os.kill(os.getpid(), signal.SIGSTOP), r"\d, stopped, .*\) {} for \d+ s and has \d clips in"),
    ],
    ids=["killed", "hangs", "stopped"],
)
def test_a_worker_that_gets_no_further_is_named_with_its_file(make_loader, caplog, act, said):
    clips = Clips(act=lambda index: act() if index == 7 else None)
    loader = make_loader(clips, stall_timeout_sec=1.5, stall_limit_sec=4)
    with pytest.raises(LoaderError, match=said.format(r"has been at clip 7\.mp4")):
        list(loader.epoch(0))
    assert len(caplog.messages) >= (0 if "SIGKILL" in said else 2)
    assert all("has been at clip 7.mp4 for" in message for message in caplog.messages)


def between_batches(make_loader, **options):
    """A loader, the rest of an epoch whose workers have made all that they were asked for, and their ids."""
    loads = np.frombuffer(mmap.mmap(-1, 24), np.uint8)

    def act(index):
        loads[index] = 1

    loader = make_loader(Clips(act=act), **options)
    batches = loader.epoch(0)
    next(batches)
    pool = loader._pool
    num_clips = 2 * (1 + len(pool._done) + sum(map(len, pool._asked)))
    deadline = time.monotonic() + 60
    while loads.sum() < num_clips or any(pool._board.at(worker)[0] is not None for worker in range(2)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return loader, batches, [process.pid for process in pool._processes]


def test_a_worker_that_is_stopped_between_batches_is_named(make_loader, caplog):
    loader, batches, (first, second) = between_batches(make_loader, stall_timeout_sec=2, stall_limit_sec=5)
    os.kill(first, signal.SIGSTOP)
    with pytest.raises(LoaderError) as caught:
        list(batches)
    stopped = (
        rf"worker 0 \(process {first}, stopped, goes on after: kill -CONT {first}\) has been between two "
        r"batches for \d+ s and has \d clips in \d batches to make, from clip \d+\.mp4 to clip \d+\.mp4; "
    )
    assert re.search(stopped, caplog.messages[-1])
    assert re.search(rf"{stopped}worker 1 \(process {second}, running\) has nothing to do", str(caught.value))
    os.kill(first, signal.SIGCONT)
    assert len(list(loader.epoch(1))) == 12  # it goes on as if nothing had been


def test_a_worker_that_is_killed_between_batches_is_named(make_loader):
    loader, batches, (first, _) = between_batches(make_loader)
    os.kill(first, signal.SIGKILL)
    with pytest.raises(
        LoaderError, match=rf"ended by SIGKILL \(worker 0 \(process {first}, ended\) has been between two"
    ):
        list(batches)
    assert len(list(loader.epoch(0))) == 12  # new workers


class Ring:
    """Garbage that only the collector finds; says in which process it goes."""

    def __init__(self, pipe):
        self.me, self.pipe = self, pipe

    def __del__(self):
        os.write(self.pipe, f"{os.getpid()} ".encode())


def test_what_the_training_process_has_made_is_not_collected_in_a_worker(make_loader):
    read, write = os.pipe()
    kept = [Ring(write)]

    def act(index):
        kept.clear()
        gc.collect()

    gc.disable()
    try:
        Ring(write)
        assert len(list(make_loader(Clips(act=act)).epoch(0))) == 12
    finally:
        gc.enable()
    os.write(write, b"end")
    assert os.read(read, 1000).decode() == f"{os.getpid()} end"
    kept.clear()


def test_a_read_that_hangs_is_named_also_as_a_substitute(tmp_path):
    (tmp_path / "stuck").mkdir()
    os.mkfifo(tmp_path / "stuck" / "img_00001.jpg")  # to open it waits for a writer
    (tmp_path / "list").write_text("missing 1 0\nstuck 1 1\n")
    keys = {"format": "FrameDataset", "data_prefix": str(tmp_path), "num_retries": 20}
    dataset = dataset_of(tmp_path / "list", training=True, seed=0, **keys)
    options = {"shuffle": False, "worker_options": WorkerOptions(stall_limit_sec=5)}
    loader = loader_of(dataset, batch_size=1, num_workers=1, **options)
    with pytest.raises(LoaderError, match=r"has been at \S*/stuck for"):
        next(loader.epoch(0))  # the first record is the missing one
    loader.close()


def test_the_workers_spread_over_the_cores(make_loader, monkeypatch):
    cores = sorted(os.sched_getaffinity(0))
    expected = set(cores[1:]) or set(cores)
    of_worker = Clips(label=lambda: sum(1 << core for core in os.sched_getaffinity(0)))
    pinned = make_loader(of_worker, affinity="spread")
    seen = {int(label) for batch in pinned.epoch(0) for label in batch.labels}
    assert seen <= {1 << core for core in expected}
    free = make_loader(Clips(label=lambda: len(os.sched_getaffinity(0))))
    assert {int(label) for batch in free.epoch(0) for label in batch.labels} == {len(cores)}
    one_thread = make_loader(Clips(label=cv2.getNumThreads))
    assert {int(label) for batch in one_thread.epoch(0) for label in batch.labels} == {1}
    for have, expected in (({2, 3, 5}, [{5}, {3}, {5}]), ({4}, [{4}] * 3)):  # from the last one on
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, have=have: have)
        assert workers._cores(3, "spread") == expected
    assert workers._cores(3, None) == [None] * 3


def test_auto_takes_the_smallest_number_that_is_enough(monkeypatch, caplog):
    assert smallest_sufficient({1: 10.0, 2: 19.0, 4: 30.0, 8: 31.0}) == 4
    assert smallest_sufficient({1: 96.0, 2: 100.0}) == 1
    assert smallest_sufficient({1: 5.0}) == 1
    asked = []

    def rate(dataset, requests, num_workers, options):
        asked.append(num_workers)
        return min(num_workers, 4.0)

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)))
    monkeypatch.setattr(clip_loader, "_clips_per_sec", rate)
    with caplog.at_level(logging.INFO, logger="paddlevideo_fast"):
        assert choose_num_workers(Clips(), [[ClipRequest(0, 0)]], WorkerOptions()) == 4
    assert asked == [1, 2, 4, 8, 12]
    assert "4 chosen" in caplog.text
    assert "8: 4.0" in caplog.text


def test_auto_measures_and_changes_no_batch(make_loader, monkeypatch):
    monkeypatch.setattr(clip_loader, "_MEASURE_SEC", 0.1)
    clips = Clips(size=5, act=lambda index: time.sleep(0.002))
    loader = make_loader(clips, num_workers="auto")
    auto = [(batch.ids.tolist(), batch.clips.tobytes()) for batch in loader.epoch(2)]
    assert 1 <= loader.num_workers <= len(os.sched_getaffinity(0))
    alone = make_loader(clips, num_workers=0)
    assert [(batch.ids.tolist(), batch.clips.tobytes()) for batch in alone.epoch(2)] == auto


def test_a_loader_that_is_dropped_takes_its_workers_along():
    script = """
loader = ClipLoader(Clips(), sampler, 2)
pids = {int(label) for batch in loader.epoch(0) for label in batch.labels}
del loader
assert not any(alive(pid) for pid in pids)
kept = ClipLoader(Clips(), sampler, 2)
print(*{int(label) for batch in kept.epoch(0) for label in batch.labels})
if os.fork() == 0:  # a process that drops its copy of the loader
    del kept
    os._exit(0)
os.wait()
print(len(list(kept.epoch(1))))
loader = lambda: ClipLoader(Clips(), sampler, 2)
for number, batch in enumerate(loader().epoch(0)):
    if number == 2:
        break
epoch = loader().epoch(0)
next(epoch)
epoch.close()
next(loader().epoch(0))  # still open when the interpreter ends, which is quiet
"""
    pids, count = run_script(script).splitlines()
    assert count == "12"
    assert not any(alive(int(pid)) for pid in pids.split())


# --- errors with their text, and an end without noise, remains or waiting


@pytest.mark.smoke
def test_a_programming_error_keeps_its_traceback():
    def broken():
        return {}["no such key"]

    with pytest.raises(RuntimeError, match="in broken(.|\n)*KeyError: 'no such key'"):
        run_epoch(broken, num_workers=2)
    with pytest.raises(KeyError):
        run_epoch(broken, num_workers=0)


def test_a_user_error_is_what_it_is_with_all_that_it_says():
    def broken():
        raise VideoDecodeError("clip.mp4", "damaged")

    for num_workers in (0, 1):
        with pytest.raises(VideoDecodeError) as caught:
            run_epoch(broken, num_workers)
        assert (caught.value.path, caught.value.cause) == ("clip.mp4", "damaged")

    def cannot_be_sent():
        error = VideoDecodeError("clip.mp4", "damaged")
        error.handle = lambda: None
        raise error

    with pytest.raises(LoaderError, match=r"^clip\.mp4: cannot be decoded: damaged$"):
        run_epoch(cannot_be_sent, num_workers=1)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_crop_that_does_not_fit_names_the_file(num_workers, tmp_path, make_clip):
    make_clip(tmp_path / "small.mp4", 8, size=(64, 48))
    (tmp_path / "list").write_text("small.mp4 0\n")
    crop = [{"CenterCrop": {"target_size": 56}}]
    dataset = dataset_of(tmp_path / "list", transform=crop, training=True, data_prefix=str(tmp_path))
    loader = loader_of(dataset, 1, num_workers)
    with pytest.raises(LoaderError, match=r"small\.mp4: CenterCrop: a crop of 56×56 .* frame of 64×48"):
        list(loader.epoch(0))


@pytest.mark.parametrize("stop", ["parent killed", "parent killed in a slow sample", "ctrl-c"])
def test_no_worker_survives(stop):
    slow = 8 if "slow" in stop else 400
    script = f"""
sampler = ClipBatchSampler(400, 4, shuffle=False, drop_last=False, seed=0)
clips = Clips(400, act=lambda index: time.sleep(0.01 if index < {slow} else 300))
loader = ClipLoader(clips, sampler, 2)
for batch in loader.epoch(0):
    print(*(process.pid for process in loader._pool._processes), flush=True)
"""
    # its own session, so that a signal to it does not reach the test runner
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SCRIPT + script],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    workers = [int(pid) for pid in process.stdout.readline().split()]
    assert len(workers) == 2
    if stop == "ctrl-c":  # a terminal sends it to the whole group
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.kill()
    _, errors = process.communicate(timeout=120)
    end = time.monotonic() + 120
    while any(map(alive, workers)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(map(alive, workers))
    if stop == "ctrl-c":
        assert errors.count("Traceback") == 1  # the parent's own
        assert errors.rstrip().endswith("KeyboardInterrupt")
