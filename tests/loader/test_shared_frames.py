"""Data sets whose decoder keeps frames for other runs: the samples are the same, in every way of reading."""

import json

import numpy as np
import pytest

from paddlevideo_fast.decode.pyav_reader import PyAVReader
from paddlevideo_fast.sources.frame_cache.frame_cache import FrameCache
from tests.loader.building import dataset_of, loader_of

CROP = [{"MultiScaleCrop": {"target_size": 32}}, {"RandomFlip": {}}, {"Image2Array": {}}]


@pytest.fixture(scope="module")
def lists(tmp_path_factory, make_clip, broken_videos):
    """Five videos, the last of which is damaged, and a list of spans."""
    root = tmp_path_factory.mktemp("shared_frames")
    for number in range(4):
        make_clip(root / f"{number}.mp4", 30 + number, gop=12, bframes=2)
    (root / "4.mp4").write_bytes(broken_videos["damaged"].read_bytes())
    (root / "videos.list").write_text("".join(f"{root}/{number}.mp4 {number % 2}\n" for number in range(5)))
    spans = [
        {"path": f"{root}/{number}.mp4", "label": 0, "start_sec": start, "end_sec": start + 0.5}
        for number in range(4)
        for start in (0.0, 0.55)
    ]
    (root / "spans.jsonl").write_text("".join(json.dumps(span) + "\n" for span in spans))
    return root


def epochs_of(lists, cache, seed=3, num_workers=0, name="videos.list", training=True, **keys):
    """What two epochs give: clips, labels, records and the files that did not decode."""
    named = {} if cache is None else {"frames_cache": cache}
    dataset = dataset_of(lists / name, transform=CROP, training=training, seed=seed, **named, **keys)
    loader = loader_of(dataset, num_workers=num_workers)
    try:
        return [
            (batch.clips.copy(), batch.labels.tolist(), batch.ids.tolist(), batch.incidents)
            for epoch in (0, 1)
            for batch in loader.epoch(epoch)
        ]
    finally:
        loader.close()


WAYS = {
    "videos": {},
    "workers": {"num_workers": 2},
    "spans": {"name": "spans.jsonl"},
    "several clips": {"clips_per_video": 2, "name": "spans.jsonl"},
    "evaluation": {"training": False},
}


@pytest.mark.parametrize("way", WAYS)
def test_samples_and_failures_are_the_same(lists, tmp_path, way):
    cache = FrameCache(tmp_path / "frames", 1.0)
    for seed in (3, 4, 3):
        alone = epochs_of(lists, None, seed, **WAYS[way])
        shared = epochs_of(lists, cache, seed, **WAYS[way])
        assert len(alone) == len(shared) > 0
        for (clips, *others), (expected, *rest) in zip(shared, alone):
            np.testing.assert_array_equal(clips, expected)
            assert others == rest
    assert any(incidents for *_, incidents in alone) == ("name" not in WAYS[way])


def test_another_run_decodes_nothing(lists, tmp_path, monkeypatch):
    sparse = {"name": "Sampler", "num_seg": 6, "seg_len": 1}
    cache = FrameCache(tmp_path / "frames", 1.0)
    epochs_of(lists, cache, 3, name="spans.jsonl", sample=sparse)
    monkeypatch.setattr(PyAVReader, "_decode", None)
    monkeypatch.setattr(PyAVReader, "groups", None)
    monkeypatch.setattr(PyAVReader, "__init__", None)
    epochs_of(lists, FrameCache(tmp_path / "frames", 1.0), 77, name="spans.jsonl", sample=sparse)


@pytest.mark.parametrize("setting", ["nearest", "cv2", "frames", "packed"])
def test_no_effect_is_told(lists, tmp_path, packed_folder, rawframes_dataset, caplog, setting):
    cache = FrameCache(tmp_path / "frames", 1.0)
    path, keys = {
        "nearest": (lists / "videos.list", {"decode": {"name": "VideoDecoder", "on_corrupt": "nearest"}}),
        "cv2": (lists / "videos.list", {"decode": {"name": "VideoDecoder", "backend": "cv2"}}),
        "frames": (
            rawframes_dataset.list_file,
            {"format": "FrameDataset", "data_prefix": str(rawframes_dataset.root)},
        ),
        "packed": (packed_folder, {"format": "PackedFrameDataset"}),
    }[setting]
    dataset_of(path, frames_cache=cache, **keys)
    needs = "it needs video files, backend: pyav and on_corrupt: raise"
    assert f"STORAGE.frames_cache has no effect on {path}: {needs}" in caplog.text
