"""What the doctor measures of a store, and what it says of it."""

from __future__ import annotations

import itertools

import pytest

from paddlevideo_fast import blocks, doctor
from paddlevideo_fast.config import load_config
from paddlevideo_fast.doctor import diagnosis
from paddlevideo_fast.doctor.report import _of_store
from paddlevideo_fast.doctor.store import StoreSpeed, needs_of, time_store
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.loader import build_dataset, build_loader
from paddlevideo_fast.loader.request import together

SPEED = StoreSpeed(latency_sec=0.02, bytes_per_sec=50e6, clips_per_sec=40.0, set_bytes=int(3e9))
PIPELINE = {
    "decode": {"name": "VideoDecoder"},
    "sample": {"name": "Sampler", "num_seg": 3, "seg_len": 1},
    "transform": [{"CenterCrop": {"target_size": 28}}],
}


@pytest.fixture(scope="module")
def packed(tmp_path_factory, motion_dataset, run_script):
    folder = tmp_path_factory.mktemp("packed_for_doctor")
    options = ("--kind=video", "--workers=1", f"--data_prefix={motion_dataset.root}")
    run_script("data/pack_frames.py", "--list", motion_dataset.train_list, "--output", folder, *options)
    return folder


def test_needs():
    found = needs_of(SPEED, run_clips_per_sec=100.0, cache_gb=10.0)
    assert found["mb_per_clip"] == pytest.approx(1.25)
    assert found["needed_mb_per_sec"] == pytest.approx(125)
    assert (found["first_epoch_clips_per_sec"], found["later_epochs_clips_per_sec"]) == (40.0, 100.0)
    small = needs_of(SPEED, 100.0, cache_gb=2.0)
    assert small["later_epochs_clips_per_sec"] == 40.0
    assert needs_of(SPEED, 10.0, cache_gb=2.0)["first_epoch_clips_per_sec"] == 10.0
    text = " ".join(_of_store(found))
    assert "answers in 20 ms" in text
    assert "50 MB/s from it, which are 40.0 clips a second of 1.25 MB; the run could take 125 MB/s" in text
    assert "first epoch runs at up to 40.0 clips a second, later ones at up to 100.0: the cache" in text
    assert "of 10 GB holds the set of 3 GB" in text
    assert "of 2 GB is smaller than the set of 3 GB" in " ".join(_of_store(small))
    assert "nothing is fetched ahead" in " ".join(_of_store(needs_of(SPEED, 100.0, None)))


def test_a_store_is_measured(packed, http_store, monkeypatch):
    url = http_store.publish(packed)
    dataset = build_dataset(
        {"format": "PackedFrameDataset", "file_path": url}, PIPELINE, training=True, seed=3
    )
    loader = build_loader(dataset, batch_size=4, num_workers=0, shuffle=True, drop_last=True, seed=3)
    batches = loader.batch_sampler.batches(0)
    videos = [[batch[place] for place in places] for batch in batches for places in together(batch)]
    http_store.delay_sec = 0.02
    speed = time_store(dataset, videos)
    assert 0.02 <= speed.latency_sec < 1
    assert speed.set_bytes == sum(path.stat().st_size for path in packed.glob("*.data"))
    # all blocks came, each once
    assert speed.clip_bytes * len(videos) == pytest.approx(speed.set_bytes)
    assert not blocks.has_cache()
    http_store.fault("denied")
    with pytest.raises(PaddleVideoFastError, match="403"):
        time_store(dataset, list(itertools.islice(videos, 3)))


def test_the_doctor_of_a_run_on_a_store(packed, http_store, config, tmp_path, monkeypatch):
    url = http_store.publish(packed)
    path = config(format="PackedFrameDataset", data="null", list=url)
    monkeypatch.setattr(diagnosis, "remedies", lambda run, progress: iter(()))
    monkeypatch.setattr(blocks, "_kept", None)
    cached = [f"STORAGE.cache_dir={tmp_path / 'cache'}", "STORAGE.prefetch=0"]
    result = doctor.examine(load_config(str(path), cached), steps=2, progress=lambda line: None)
    assert result["store"]["set_gb"] == pytest.approx(
        sum(f.stat().st_size for f in packed.glob("*.data")) / 1e9
    )
    (remedy,) = result["remedies"]
    assert (remedy["name"], remedy["how"]) == ("fetching ahead", "-o STORAGE.prefetch=16")
    assert "The store answers in" in doctor.report(result)
