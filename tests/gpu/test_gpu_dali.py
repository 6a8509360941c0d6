"""DALI decodes on the GPU (`mixed`): the frames are those of the reader."""

import numpy as np
import paddle
import pytest

from paddlevideo_fast.loader import build_dataset, build_loader
from paddlevideo_fast.loader.dali import DaliOptions
from paddlevideo_fast.machine import gpu_number

pytest.importorskip("nvidia.dali", reason="DALI is not installed: pip install -e '.[dali120]'")

TOLERANCE = 4.0  # as on a CPU: colour conversions differ


@pytest.mark.parametrize("codec", ["libx264", "libx265"])
def test_frames_are_those_of_the_reader(device, tmp_path, make_clip, codec):
    number = gpu_number(device)
    if number is None:
        pytest.skip("on a CPU tests/loader/test_dali.py does it")
    for name in range(4):
        make_clip(tmp_path / f"{name}.mp4", 20 + name, codec=codec, size=(256, 192))
    (tmp_path / "clips.list").write_text("".join(f"{name}.mp4 {name}\n" for name in range(4)))
    section = {
        "format": "VideoDataset",
        "file_path": str(tmp_path / "clips.list"),
        "data_prefix": str(tmp_path),
    }
    pipeline = {
        "decode": {"name": "VideoDecoder"},
        "sample": {"name": "Sampler", "num_seg": 4, "seg_len": 1},
        "transform": [{"RandomCrop": {"target_size": 160}}, {"RandomFlip": None}],
    }
    dataset = build_dataset(section, pipeline, training=True, seed=7)
    options = {"batch_size": 2, "num_workers": 0, "shuffle": True, "drop_last": False, "seed": 7}
    ours = list(build_loader(dataset, **options).epoch(0))
    theirs = list(build_loader(dataset, **{**options, "num_workers": 2}, dali=DaliOptions(number)).epoch(0))
    for one, other in zip(ours, theirs):
        clips = other.clips.numpy() if isinstance(other.clips, paddle.Tensor) else np.asarray(other.clips)
        assert (one.ids == other.ids).all()
        assert clips.shape == one.clips.shape
        assert np.abs(clips.astype(int) - one.clips).mean() < TOLERANCE
