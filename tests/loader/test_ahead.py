"""Which files are fetched ahead of which batches, and that nothing else changes."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import time

import numpy as np
import pytest

from paddlevideo_fast.decode.packed import PackedReader
from paddlevideo_fast.decode.packed_format import PackSettings, ShardWriter
from paddlevideo_fast.errors import VideoDecodeError
from paddlevideo_fast.loader import ClipBatchSampler, ClipLoader, VideoRecord, build_dataset
from paddlevideo_fast.loader.ahead import PrefetchOptions
from paddlevideo_fast.loader.collate import Sample

MB = 2**20
NUM_SAMPLES, BATCH_SIZE = 60, 2


class FakeSource:
    """A data set whose "bytes" are marks in shared memory: 1 where fetched, with the time of it."""

    file_path = "made up"
    is_remote = True
    on_record = None

    def __init__(self, fails=False):
        self.records = [VideoRecord(str(number), (0,)) for number in range(NUM_SAMPLES)]
        self.order = np.frombuffer(mmap.mmap(-1, 8 * NUM_SAMPLES), np.int64)
        self.count = np.frombuffer(mmap.mmap(-1, 8), np.int64)
        self.fails = fails

    def fetch(self, requests):
        (index,) = {request.index for request in requests}
        self.count[0] += 1  # one thread in the tests that look at it
        self.order[index] = self.count[0]
        if self.fails:
            raise VideoDecodeError("x", "is broken")
        return MB

    def load(self, requests, outs=None):
        clip = np.zeros((1, 2, 2, 3), np.uint8)
        return [Sample(clip, 0, request.index, request.view) for request in requests]


def loader_of(source, num_workers=0, **options):
    sampler = ClipBatchSampler(NUM_SAMPLES, BATCH_SIZE, shuffle=True, drop_last=False, seed=3)
    keys = {"num_batches": 4, "num_at_once": 1, **options}
    return ClipLoader(source, sampler, num_workers, prefetch=PrefetchOptions(**keys))


def settled(source, wanted, moment_sec=0.05):
    """How many samples are fetched, a moment after they are `wanted`."""
    end = time.monotonic() + 10
    while int((source.order > 0).sum()) < wanted and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(moment_sec)
    return int((source.order > 0).sum())


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_next_batches_are_fetched_in_their_order(num_workers):
    source = FakeSource()
    with contextlib.closing(loader_of(source, num_workers)) as loader:
        batches = loader.epoch(1)
        for number in range(NUM_SAMPLES // BATCH_SIZE):
            next(batches)
            coming = min(BATCH_SIZE * (number + 5), NUM_SAMPLES)
            assert settled(source, coming, 0.05 * (number in (0, 1, 17))) == coming
        asked = [request.index for batch in loader.batch_sampler.batches(1) for request in batch]
        assert np.argsort(source.order).tolist() == asked


def test_bytes_that_wait_have_a_bound():
    source = FakeSource()
    with contextlib.closing(loader_of(source, num_batches=20, max_bytes=6 * MB)) as loader:
        batches = loader.epoch(0)
        next(batches)
        # batch 0 is made, batch 1 always comes, and then batches wait in the cache up to 6 MB
        assert settled(source, 8) == 8
        for made in range(1, 5):
            next(batches)
            assert settled(source, 8 + 2 * made) == 8 + 2 * made


def test_a_new_epoch_drops_what_the_last_one_wanted():
    source = FakeSource()
    with contextlib.closing(loader_of(source, num_batches=20, max_bytes=4 * MB)) as loader:
        next(loader.epoch(0))
        settled(source, 6)
        source.order[:] = 0
        next(loader.epoch(5, start_batch=10))
        assert settled(source, 6) == 6
        asked = [request.index for batch in loader.batch_sampler.batches(5, 10) for request in batch]
        assert set(np.flatnonzero(source.order)) == set(asked[:6])


def test_what_cannot_be_fetched_is_left_to_the_readers():
    source = FakeSource(fails=True)
    with contextlib.closing(loader_of(source)) as loader:
        assert sum(map(len, loader.epoch(0))) == NUM_SAMPLES


def test_a_process_that_was_killed_is_told_once_and_comes_back(caplog):
    source = FakeSource()
    with contextlib.closing(loader_of(source)) as loader:
        batches = loader.epoch(0)
        next(batches)
        settled(source, 10)
        first = loader._prefetcher._process.pid
        os.kill(first, signal.SIGKILL)
        loader._prefetcher._process.join(5)
        assert len(list(batches)) == NUM_SAMPLES // BATCH_SIZE - 1
        assert "batches fetch for themselves" in caplog.text
        source.order[:] = 0
        next(loader.epoch(1))
        assert settled(source, 10) == 10
        second = loader._prefetcher._process
        assert second.pid != first
    assert not second.is_alive()


def test_nothing_starts_where_nothing_is_remote_or_wanted():
    source = FakeSource()
    loader = loader_of(source, num_batches=0)
    list(loader.epoch(0))
    assert loader._prefetcher is None
    source.is_remote = False
    loader = loader_of(source)
    list(loader.epoch(0))
    assert loader._prefetcher is None


@pytest.fixture(scope="module")
def packed_clips(tmp_path_factory, rawframes_dataset):
    """Six videos of 12 frames at 25 frames a second, in two shards; the folder, and their names."""
    folder = tmp_path_factory.mktemp("packed_clips")
    lines = rawframes_dataset.list_file.read_text().splitlines()
    names = [line.split()[0] for line in lines]
    for shard in range(2):
        with ShardWriter(folder, PackSettings(shard, 2, 0, 90, bytes(16))) as writer:
            for name in names[3 * shard : 3 * shard + 3]:
                images = sorted((rawframes_dataset.root / name).iterdir())
                writer.add(name, 0, 25.0, (80, 48), [image.read_bytes() for image in images])
    return folder, names


PIPELINES = {
    "segments": {"name": "Sampler", "num_seg": 3, "seg_len": 1},
    "span": {"name": "DecodeSampler", "num_frames": 4, "sampling_rate": 2},
    "uniform": {"name": "UniformSampler", "num_frames": 5},
}


@pytest.mark.parametrize("sample", sorted(PIPELINES))
@pytest.mark.parametrize("listed", ["whole", "spans", "background"])
def test_the_frames_that_are_fetched_are_those_that_are_read(
    listed, sample, tmp_path, packed_clips, monkeypatch
):
    folder, names = packed_clips
    keys = {"file_path": str(folder)}
    if listed != "whole":
        lines = [f'{{"path": "{name}", "label": 0, "start_sec": 0.1, "end_sec": 0.3}}' for name in names]
        (tmp_path / "some.jsonl").write_text("\n".join(lines) + "\n")
        keys = {"file_path": str(tmp_path / "some.jsonl"), "data_prefix": str(folder)}
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
    section = {"format": "PackedFrameDataset", "clips_per_video": 2, **keys}
    pipeline = {
        "decode": {"name": "VideoDecoder"},
        "sample": PIPELINES[sample],
        "transform": [{"RandomCrop": {"target_size": 32}}, {"RandomFlip": None}],
    }
    dataset = build_dataset(section, pipeline, training=True, seed=3)
    sampler = ClipBatchSampler(len(dataset), 2, shuffle=True, drop_last=False, seed=3, clips_per_video=2)
    for epoch in (0, 1):
        for requests in sampler.batches(epoch):
            dataset.fetch(requests)
            dataset.load(requests)
    assert len(read) >= 2
    assert fetched == read
