"""Frames that DALI decodes on the GPU, for each codec, are those of our reader.

`make test-gpu` runs tests/extensions/dali/test_dali.py on the GPU as well.
"""

import numpy as np
import pytest

from tests.loader import building
from tests.support.dali_codecs import MAKE, WHERE, HostLoader, no_dali

if reason := no_dali():
    pytest.skip(reason, allow_module_level=True)

from paddlevideo_fast.extensions.dali.graph import generation_of, import_dali

TOLERANCE = 4.0  # as on a CPU: colour conversions differ
ENCODERS = {
    "h264": {"codec": "libx264"},
    "hevc": {"codec": "libx265"},
    "vp8": {"codec": "libvpx"},
    "vp9": {"codec": "libvpx-vp9"},
    "av1": {"codec": "libsvtav1"},
    "mpeg4": {"codec": "mpeg4"},
}


@pytest.mark.parametrize("codec", ENCODERS)
def test_frames_are_those_of_the_reader(tmp_path, make_clip, codec):
    if WHERE.device_id is None:
        pytest.skip("DALI_TEST_GPU names no GPU; on a CPU tests/extensions/dali/test_dali.py does it")
    if codec not in generation_of(import_dali()).gpu:
        pytest.skip("this DALI does not decode it")
    for name in range(4):
        make_clip(tmp_path / f"{name}.mkv", 20 + name, size=(256, 192), **ENCODERS[codec])
    (tmp_path / "clips.list").write_text("".join(f"{name}.mkv {name}\n" for name in range(4)))
    sample = {"name": "Sampler", "num_seg": 4, "seg_len": 1}
    steps = [{"RandomCrop": {"target_size": 160}}, {"RandomFlip": None}]
    dataset = building.dataset_of(
        tmp_path / "clips.list", sample, steps, True, seed=7, data_prefix=str(tmp_path)
    )
    ours = list(building.loader_of(dataset).epoch(0))
    theirs = list(HostLoader(building.loader_of(dataset, num_workers=2, make=MAKE)).epoch(0))
    for one, other in zip(ours, theirs, strict=True):
        assert (one.ids == other.ids).all()
        assert other.failures == []
        assert other.clips.shape == one.clips.shape
        assert np.abs(other.clips.astype(int) - one.clips).mean() < TOLERANCE
