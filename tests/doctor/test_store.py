"""The doctor of a run whose clips come from a store."""

from __future__ import annotations

import pytest

from paddlevideo_fast import blocks, doctor
from paddlevideo_fast.config import load_config
from paddlevideo_fast.doctor import diagnosis

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


def test_the_doctor_of_a_run_on_a_store(packed, http_store, config, tmp_path, monkeypatch):
    url = http_store.publish(packed)
    path = config(format="PackedFrameDataset", data="null", list=url)
    monkeypatch.setattr(diagnosis, "remedies", lambda run, progress: iter(()))
    monkeypatch.setattr(blocks, "_kept", None)
    cached = [f"STORAGE.cache_dir={tmp_path / 'cache'}", "STORAGE.prefetch=0"]
    result = doctor.examine(load_config(str(path), cached), steps=2, progress=lambda line: None)
    assert result["stages_sec"]["reading"]["decode"] > 0
    assert "for clips" in doctor.report(result)
