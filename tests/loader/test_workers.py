"""Workers: errors with their text, and an end without noise, remains or waiting."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import av  # noqa: F401  # before Paddle
import numpy as np
import pytest

from paddlevideo_fast.loader import (
    ClipBatchSampler,
    ClipLoader,
    LoaderError,
    Sample,
    TransformError,
    VideoRecord,
    build_dataset,
    build_loader,
)

FAST = """
import av, numpy as np, os, sys, time
from paddlevideo_fast.loader import ClipBatchSampler, ClipLoader, Sample, VideoRecord

SLOW = 400

class Fake:
    records = [VideoRecord(f"{number}.mp4", 0) for number in range(400)]
    def __len__(self):
        return 400
    def load(self, request, out=None):
        time.sleep(0.01 if request.index < SLOW else 300)
        return Sample(np.full((2, 8, 8, 3), request.index % 256, np.uint8), 0, request.index, 0)

def loader(num_workers=2):
    sampler = ClipBatchSampler(400, 4, shuffle=False, drop_last=False, seed=0)
    return ClipLoader(Fake(), sampler, num_workers)
"""


class Fake:
    """Gray clips; `broken` replaces what happens for one index."""

    records = [VideoRecord(f"{number}.mp4", 0) for number in range(12)]
    on_record = None

    def __init__(self, broken):
        self.broken = broken

    def __len__(self):
        return 12

    def load(self, request, out=None):
        if self.on_record is not None:
            self.on_record(request.index)
        if request.index == 7:
            self.broken()
        return Sample(np.zeros((2, 8, 8, 3), np.uint8), 0, request.index, 0)


def run_epoch(broken, num_workers):
    sampler = ClipBatchSampler(12, 2, shuffle=False, drop_last=False, seed=0)
    return list(ClipLoader(Fake(broken), sampler, num_workers).epoch(0))


@pytest.mark.smoke
def test_a_programming_error_keeps_its_traceback():
    def broken():
        return {}["no such key"]

    with pytest.raises(RuntimeError, match="in broken(.|\n)*KeyError: 'no such key'"):
        run_epoch(broken, num_workers=2)
    with pytest.raises(KeyError):
        run_epoch(broken, num_workers=0)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_user_error_keeps_its_text(num_workers):
    def broken():
        raise TransformError("clip.mp4: RandomCrop: too large")

    with pytest.raises(LoaderError, match=r"^clip\.mp4: RandomCrop: too large$"):
        run_epoch(broken, num_workers)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_crop_that_does_not_fit_names_the_file(num_workers, tmp_path, make_clip):
    make_clip(tmp_path / "small.mp4", 8, size=(64, 48))
    (tmp_path / "list").write_text("small.mp4 0\n")
    pipeline = {
        "decode": {"name": "VideoDecoder"},
        "sample": {"name": "Sampler", "num_seg": 2, "seg_len": 1},
        "transform": [{"CenterCrop": {"target_size": 56}}],
    }
    section = {"format": "VideoDataset", "file_path": str(tmp_path / "list"), "data_prefix": str(tmp_path)}
    dataset = build_dataset(section, pipeline, training=True, seed=0)
    loader = build_loader(
        dataset, batch_size=1, num_workers=num_workers, shuffle=False, drop_last=False, seed=0
    )
    with pytest.raises(LoaderError, match=r"small\.mp4: CenterCrop: a crop of 56×56 .* frame of 64×48"):
        list(loader.epoch(0))


def test_a_killed_worker_is_reported():
    with pytest.raises(LoaderError, match="worker ended"):
        run_epoch(lambda: os.kill(os.getpid(), signal.SIGKILL), num_workers=2)


def children(pid):
    listing = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(line) for line in listing.stdout.split()]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def start(script):
    # its own session, so that a signal to it does not reach the test runner
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", FAST + script],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        # a shell's background job ignores Ctrl-C, and so would its children
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


@pytest.mark.smoke
def test_leaving_early_is_quick_and_quiet():
    script = """
for _ in range(3):
    for number, batch in enumerate(loader().epoch(0)):
        if number == 2:
            break
epoch = loader().epoch(0)
next(epoch)
begin = time.time()
epoch.close()
assert time.time() - begin < 4
next(loader().epoch(0))  # still open when the interpreter ends
"""
    process = start(script)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert [line for line in errors.splitlines() if "ccache" not in line] == []


@pytest.mark.parametrize("stop", ["parent killed", "parent killed in a slow sample", "ctrl-c"])
def test_no_worker_survives(stop):
    slow = "SLOW = 8\n" if "slow" in stop else ""
    process = start(f"{slow}for batch in loader().epoch(0):\n    print('batch', flush=True)\n")
    assert process.stdout is not None
    assert process.stdout.readline() == "batch\n"
    workers = children(process.pid)
    assert len(workers) == 2
    if stop == "ctrl-c":  # a terminal sends it to the whole group
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.kill()
    _, errors = process.communicate(timeout=30)
    end = time.time() + 15
    while any(alive(worker) for worker in workers) and time.time() < end:
        time.sleep(0.1)
    assert not any(alive(worker) for worker in workers)
    if stop == "ctrl-c":
        assert errors.count("Traceback") == 1  # the parent's own
        assert errors.rstrip().endswith("KeyboardInterrupt")
