"""The boxes around the moving object, and the measurement on a network with random weights."""

import numpy as np
import paddle
import pytest

from benchmarks import explain
from paddlevideo_fast.apps.data import motion
from paddlevideo_fast.config import load_config
from paddlevideo_fast.modeling import build_model


@pytest.mark.parametrize("name", ["left", "grow", "turn_left"])
def test_what_moves_is_in_the_boxes(name):
    states = motion.draw_states(name, 12, np.random.default_rng([0, 1, 5]))
    clip = motion.render_clip(name, 12, 64, np.random.default_rng([0, 1, 5])).astype(int)
    inside = np.stack([explain._box(state, 64)[..., 0] > 0 for state in states])
    moved = np.abs(np.diff(clip, axis=0)).max(axis=-1) > 8
    assert moved.any(axis=(1, 2)).all()
    outside = moved & ~inside[1:] & ~inside[:-1]
    assert outside.sum() < 0.01 * moved.sum()  # of its blurred edge
    shares = inside.mean(axis=(1, 2))
    assert 0 < shares.min() <= shares.mean() < 0.9


def test_both_methods_are_measured(tmp_path):
    motion.make([f"--output={tmp_path / 'set'}", "--train=8", "--valid=2", "--frames=16", "--workers=1"])
    sets = [f"DATASET.{split}.data_prefix={tmp_path / 'set'}" for split in ("train", "valid", "test")]
    lists = [
        f"DATASET.{split}.file_path={tmp_path / 'set/valid.list'}" for split in ("train", "valid", "test")
    ]
    folder = tmp_path / "tsm_motion"
    folder.mkdir()
    cfg = load_config("tsm_motion", [*sets, *lists])
    cfg.save(folder / "config.yaml")
    model = build_model(cfg["MODEL"], load_pretrained=False)
    paddle.save(model.state_dict(), str(folder / "TSM_motion_best.pdparams"))
    result = explain.run(runs=[folder], clips=2)
    row = result["networks"]["tsm_motion"]
    for way in ("gradcam", "occlusion"):
        assert 0 <= row[way]["hits"] <= 2
        assert 0 <= row[way]["untrained_hits"] <= 2
        assert row[way]["ratio"] > 0
        assert row[way]["untrained_ratio"] > 0
        assert row[way]["sec"] > 0
