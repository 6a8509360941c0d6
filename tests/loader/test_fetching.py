"""Which files are fetched ahead of which batches, and that nothing else changes."""

import contextlib
import mmap
import threading
import time
from functools import partial

import numpy as np
import pytest

from paddlevideo_fast.errors import VideoDecodeError
from paddlevideo_fast.loader import (
    ClipBatchSampler,
    ClipLoader,
    VideoRecord,
    WorkerOptions,
    clip_loader,
    worker_process,
)
from paddlevideo_fast.loader.collate import Sample
from paddlevideo_fast.loader.fetching import Fetcher
from paddlevideo_fast.sources.packed.packed import PackedReader
from tests.loader import building

MB = 2**20
NUM_SAMPLES, BATCH_SIZE = 60, 2


class FakeSource:
    """A data set whose "bytes" are marks in shared memory: 1 where fetched, with the time of it."""

    file_path = "made up"
    is_remote = True
    on_record = None

    def __init__(self, error=None):
        self.records = [VideoRecord(str(number), (0,)) for number in range(NUM_SAMPLES)]
        self.order = np.frombuffer(mmap.mmap(-1, 8 * NUM_SAMPLES), np.int64)
        self.count = np.frombuffer(mmap.mmap(-1, 8), np.int64)
        self.error = error
        self.may_fetch = threading.Event()
        self.may_fetch.set()
        self.began = threading.Event()

    def fetch(self, requests):
        (index,) = {request.index for request in requests}
        self.began.set()
        assert self.may_fetch.wait(120)
        self.count[0] += 1  # one thread in the tests that look at it
        self.order[index] = self.count[0]
        if self.error is not None:
            raise self.error
        return MB

    def load(self, requests, outs=None):
        clip = np.zeros((1, 2, 2, 3), np.uint8)
        return [Sample(clip, 0, request.index, request.view) for request in requests]


@pytest.fixture
def loader_of(monkeypatch):
    """Makes loaders that fetch in one thread a process, 4 batches ahead."""
    monkeypatch.setattr(clip_loader, "Fetcher", partial(Fetcher, num_threads=1))
    monkeypatch.setattr(worker_process, "Fetcher", lambda source, num_threads: Fetcher(source, 1))
    with contextlib.ExitStack() as stack:

        def make(source, num_workers=0, prefetch=4):
            sampler = ClipBatchSampler(NUM_SAMPLES, BATCH_SIZE, shuffle=True, drop_last=False, seed=3)
            loader = ClipLoader(source, sampler, num_workers, WorkerOptions(prefetch=prefetch))
            return stack.enter_context(contextlib.closing(loader))

        yield make


def settled(source, wanted, moment_sec=0.05):
    """How many samples are fetched, a moment after they are `wanted`."""
    end = time.monotonic() + 120
    while int((source.order > 0).sum()) < wanted and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(moment_sec)
    return int((source.order > 0).sum())


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_next_batches_are_fetched_in_their_order(loader_of, num_workers):
    source = FakeSource()
    loader = loader_of(source, num_workers)
    batches = loader.epoch(1)
    asked = [request.index for batch in loader.batch_sampler.batches(1) for request in batch]
    for number in range(NUM_SAMPLES // BATCH_SIZE):
        next(batches)
        coming = min(BATCH_SIZE * (number + 5), NUM_SAMPLES)
        assert settled(source, coming, 0.05 * (number in (0, 1, 17))) == coming
        assert set(np.flatnonzero(source.order)) == set(asked[:coming])
    assert num_workers or np.argsort(source.order).tolist() == asked


def test_a_new_epoch_drops_what_the_last_one_wanted(loader_of):
    source = FakeSource()
    source.may_fetch.clear()
    loader = loader_of(source, prefetch=20)
    next(loader.epoch(0))
    assert source.began.wait(120)
    next(loader.epoch(5, start_batch=10))
    source.may_fetch.set()
    asked = [request.index for batch in loader.batch_sampler.batches(5, 10)[:21] for request in batch]
    first = loader.batch_sampler.batches(0)[0][0].index  # the thread was at it
    assert settled(source, len({first, *asked})) == len({first, *asked})
    assert set(np.flatnonzero(source.order)) == {first, *asked}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("error", [VideoDecodeError("x", "is broken"), IndexError("of a driver")])
def test_what_cannot_be_fetched_is_left_to_the_readers(loader_of, num_workers, error):
    """A thread goes on with the next videos, whatever the error was."""
    source = FakeSource(error)
    assert sum(map(len, loader_of(source, num_workers).epoch(0))) == NUM_SAMPLES
    assert settled(source, 4) >= 4  # by two threads at most, and videos of batches that are made are left out


def test_threads_end_with_the_loader(loader_of):
    source = FakeSource()
    before = threading.enumerate()
    loader = loader_of(source)
    next(loader.epoch(0))
    (thread,) = (one for one in threading.enumerate() if one not in before and "_serve" in one.name)
    loader.close()
    thread.join(120)
    assert not thread.is_alive()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_nothing_is_fetched_where_nothing_is_remote_or_wanted(loader_of, num_workers):
    source = FakeSource()
    list(loader_of(source, num_workers, prefetch=0).epoch(0))
    source.is_remote = False
    list(loader_of(source, num_workers).epoch(0))
    assert source.count[0] == 0


PIPELINES = {
    "segments": {"name": "Sampler", "num_seg": 3, "seg_len": 1},
    "span": {"name": "DecodeSampler", "num_frames": 4, "sampling_rate": 2},
    "uniform": {"name": "UniformSampler", "num_frames": 5},
}


@pytest.mark.parametrize("sample", sorted(PIPELINES))
@pytest.mark.parametrize("listed", ["whole", "spans", "background"])
def test_the_frames_that_are_fetched_are_those_that_are_read(
    listed, sample, tmp_path, packed_folder, rawframes_dataset, monkeypatch
):
    keys = {"file_path": str(packed_folder)}
    if listed != "whole":
        names = [line.split()[0] for line in rawframes_dataset.list_file.read_text().splitlines()]
        lines = [f'{{"path": "{name}", "label": 0, "start_sec": 0.1, "end_sec": 0.3}}' for name in names]
        (tmp_path / "some.jsonl").write_text("\n".join(lines) + "\n")
        keys = {"file_path": str(tmp_path / "some.jsonl"), "data_prefix": str(packed_folder)}
    if listed == "background":
        keys["background"] = {"share": 0.5, "label": 1}
    read, fetched = [], []
    decode = PackedReader._decode

    def decode_noted(reader, wanted):
        read.append((reader.path, wanted))
        return decode(reader, wanted)

    def fetch_noted(reader, wanted):
        fetched.append((reader.path, wanted))
        return 0

    monkeypatch.setattr(PackedReader, "_decode", decode_noted)
    monkeypatch.setattr(PackedReader, "fetch", fetch_noted)
    crops = [{"RandomCrop": {"target_size": 32}}, {"RandomFlip": None}]
    keys.update(transform=crops, format="PackedFrameDataset", clips_per_video=2)
    dataset = building.dataset_of(sample=PIPELINES[sample], training=True, **keys)
    for epoch in (0, 1):
        for requests in building.loader_of(dataset).batch_sampler.batches(epoch):
            dataset.fetch(requests)
            dataset.load(requests)
    assert len(read) >= 2
    assert fetched == read
