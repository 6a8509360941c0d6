"""Packed frames at a URL are those of the folder, and what a store does to them is told as of a file."""

import contextlib
import shutil

import numpy as np
import pytest

from paddlevideo_fast.errors import ShardError, StoreAwayError, VideoDecodeError
from paddlevideo_fast.sources.packed.packed import open_shards
from paddlevideo_fast.sources.remote import block_cache
from tests.loader.building import dataset_of, loader_of
from tests.support.fresh_stores import start_anew

NUM_SHARDS, NUM_VIDEOS = 3, 6
CROPS = [{"RandomCrop": {"target_size": 32}}, {"RandomFlip": None}]


@pytest.fixture(autouse=True)
def _as_before(monkeypatch, tmp_path):
    kept = block_cache.DiskBlocks(tmp_path / "cache", 2**24, 2**14)
    start_anew(monkeypatch, (10.0, 3, 3.0, 0.02), kept)


def frames_of(place):
    return [np.stack(list(shard.open(video))) for shard in open_shards(place) for video in range(len(shard))]


def packed(place, num_workers=0, training=True, **keys):
    dataset = dataset_of(place, transform=CROPS, training=training, format="PackedFrameDataset", **keys)
    return loader_of(dataset, num_workers=num_workers)


@pytest.mark.parametrize("kind", ["http", "s3"])
@pytest.mark.parametrize("has_cache", [True, False])
def test_the_frames_of_a_url(kind, has_cache, packed_folder, request, monkeypatch):
    if not has_cache:
        monkeypatch.setattr(block_cache, "_kept", None)
    store = request.getfixturevalue(f"{kind}_store")
    url = store.publish(packed_folder)
    for remote, local in zip(frames_of(url), frames_of(packed_folder)):
        np.testing.assert_array_equal(remote, local)
    if has_cache:
        store.reset()
        frames_of(url)
        assert store.num_requests == 2 * NUM_SHARDS  # which version of each file there is
        assert store.num_bytes <= 2 * NUM_SHARDS


@pytest.mark.smoke
def test_batches_of_a_url_with_workers(http_store, packed_folder, tmp_path):
    url = http_store.publish(packed_folder)
    listed = tmp_path / "some.list"
    listed.write_text("class2/clip5 4\nclass0/clip0 9\n")
    for keys in ({}, {"split_by": "shard"}):
        expected = packed(packed_folder, **keys)
        for num_workers in (0, 2):
            with contextlib.closing(packed(url, num_workers, **keys)) as loader:
                for epoch in (0, 1):
                    for batch, right in zip(loader.epoch(epoch), expected.epoch(epoch)):
                        np.testing.assert_array_equal(batch.clips, right.clips)
                        assert batch.labels.tolist() == right.labels.tolist()
    (batch,) = packed(listed, training=False, data_prefix=url).epoch(0)
    assert batch.labels.tolist() == [4, 9]


def test_a_body_that_is_altered_on_its_way_is_asked_for_again(http_store, packed_folder):
    url = http_store.publish(packed_folder)
    shards = open_shards(url)
    for name in ("*00000.data", "*00002.data"):
        http_store.fault("flipped", name, times=1)
    read = [np.stack(list(shard.open(video))) for shard in shards for video in range(len(shard))]
    for remote, local in zip(read, frames_of(packed_folder)):
        np.testing.assert_array_equal(remote, local)
    block_cache._kept.on_disk.folder += "-new"
    http_store.fault("flipped", "*.index", times=1)
    assert len(open_shards(url)) == NUM_SHARDS


def test_a_file_that_stays_broken_is_an_incident(http_store, packed_folder, tmp_path):
    url = http_store.publish(packed_folder)
    loader = packed(url)
    http_store.fault("flipped", "*00000.data")
    http_store.fault("reset", "*00001.data")
    batches = list(loader.epoch(0))
    assert sum(map(len, batches)) == NUM_VIDEOS
    causes = {path.partition(":class")[0][-10:]: cause for batch in batches for path, cause in batch.failures}
    assert "its checksum differs" in causes["00000.data"]
    assert "the connection fails" in causes["00001.data"]


def test_a_file_that_changes_is_an_incident(http_store, packed_folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(packed_folder, copy)
    url = http_store.publish(copy)
    (shard, *_) = open_shards(url)
    data = copy / "00000.data"
    data.write_bytes(data.read_bytes())
    with pytest.raises(VideoDecodeError, match="was changed while it was in use") as caught:
        shard.open(0).read([0])
    assert caught.value.path == f"{url}00000.data:class0/clip0"


def test_a_set_that_is_not_whole(http_store, packed_folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(packed_folder, copy)
    url = http_store.publish(copy)
    (copy / "00001.index").unlink()
    with pytest.raises(ShardError, match=r"00001\.index: cannot be read: there is no such object"):
        open_shards(url)
    with pytest.raises(ShardError, match="cannot be read: there is no such object"):
        open_shards(url + "nowhere")
    shutil.copy(packed_folder / "00001.index", copy)
    (copy / "00002.data").write_bytes(b"")
    with pytest.raises(ShardError, match=r"00002\.data: cut off: it has 0 bytes"):
        open_shards(url)


def test_a_store_that_goes_away_ends_the_run_in_one_sentence(http_store, packed_folder):
    loader = packed(http_store.publish(packed_folder), num_workers=2)
    http_store.fault("error", "*")
    with contextlib.closing(loader), pytest.raises(StoreAwayError, match=r"^http://\S+: the store is away:"):
        list(loader.epoch(0))
