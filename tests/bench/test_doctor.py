"""The doctor names the bottleneck of runs made to have one, too lopsided for a busy machine to hide it."""

from __future__ import annotations

from pathlib import Path

import pytest

from paddlevideo_fast.bench import doctor
from paddlevideo_fast.config import load_config

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
MODEL:
  framework: Recognizer2D
  backbone: {{name: ResNetTSM, depth: 18, num_seg: 4, width: {width}, stage_blocks: [1, 1, 1, 1]}}
  head: {{name: TSMHead, num_classes: 8, in_channels: {channels}, drop_ratio: 0.5, std: 0.01}}
DATASET:
  batch_size: 4
  num_workers: {workers}
  train: {{format: {format}, data_prefix: {data}, file_path: {list}}}
PIPELINE:
  train:
    decode: {{name: {decoder}}}
    sample: {{name: Sampler, num_seg: 4, seg_len: 1, valid_mode: false, select_left: true}}
    transform: [{transforms}]
OPTIMIZER: {{name: Momentum, momentum: 0.9, learning_rate: 0.01}}
model_name: bottleneck
epochs: 1
"""


@pytest.fixture
def config(tmp_path):
    """`config(data=…, list=…, …)`: the path of a config with these values."""

    def write(**values):
        defaults = {
            "width": 4,
            "workers": 0,
            "format": "VideoDataset",
            "decoder": "VideoDecoder",
            "transforms": "{RandomCrop: {target_size: 28}}",
        }
        values = {**defaults, **values}
        path = tmp_path / "config.yaml"
        path.write_text(CONFIG.format(channels=8 * values["width"], **values))
        return path

    return write


@pytest.fixture(scope="module")
def long_clips(tmp_path_factory, make_clip):
    """A list of 16 times one video of 640×360 whose only key frame is the first of 100."""
    folder = tmp_path_factory.mktemp("long")
    make_clip(folder / "clip.mp4", 100, (640, 360), gop=250, options={"preset": "ultrafast"})
    (folder / "train.list").write_text("".join(f"clip.mp4 {number % 8}\n" for number in range(16)))
    return folder


def examine(path):
    told = []
    result = doctor.examine(load_config(str(path)), steps=4, data_tools=ROOT / "data", progress=told.append)
    assert len(told) >= 3
    return result


def test_slow_decoding_is_named(config, long_clips):
    result = examine(config(data=long_clips, list=long_clips / "train.list"))
    assert (result["limit"]["part"], result["limit"]["stage"]) == ("reading", "decode")
    assert result["real"]["wait_share"] > 0.5
    assert "Reading limits this run" in result["summary"]
    assert "for decoding" in result["summary"]
    gains = {remedy["name"]: remedy for remedy in result["remedies"]}
    for form in ("prepared videos", "packed frames"):
        assert gains[form]["basis"] == "measured"
        assert gains[form]["gain"] > 1.5
        assert form in result["summary"]
    assert "DALI" not in gains  # there is no GPU


def test_heavy_augmentation_is_named(config, rawframes_dataset):
    transforms = ", ".join(
        ["{RandomCrop: {target_size: 28}}"] + ["{ColorJitter: {hue: 0.5, saturation: 2, p: 1.0}}"] * 100
    )
    path = config(
        data=rawframes_dataset.root,
        list=rawframes_dataset.list_file,
        format="FrameDataset",
        decoder="FrameDecoder",
        transforms=transforms,
    )
    result = examine(path)
    assert (result["limit"]["part"], result["limit"]["stage"]) == ("reading", "augment")
    helping = {remedy["name"]: remedy for remedy in result["remedies"] if remedy["helps"]}
    assert "fewer transforms" in helping
    assert "ColorJitter" in helping["fewer transforms"]["how"]
    assert "packed frames" not in helping


@pytest.mark.parametrize("workers", [0, 1])
def test_a_heavy_model_is_named(config, motion_dataset, workers):
    result = examine(
        config(data=motion_dataset.root, list=motion_dataset.train_list, width=32, workers=workers)
    )
    assert result["limit"]["part"] == "training"
    assert result["limit"]["stage"] in ("forward", "backward")
    assert "prepared videos" not in {remedy["name"] for remedy in result["remedies"]}
    assert "smaller input" in {remedy["name"] for remedy in result["remedies"]}
