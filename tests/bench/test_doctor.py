"""The doctor names the bottleneck of runs made to have one, too lopsided for a busy machine to hide it."""

from __future__ import annotations

from pathlib import Path

import pytest

from paddlevideo_fast.bench import doctor
from paddlevideo_fast.config import load_config

ROOT = Path(__file__).resolve().parents[2]


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
    remedies = {remedy["name"]: remedy for remedy in result["remedies"]}
    assert remedies["fewer transforms"]["helps"]
    assert "ColorJitter" in remedies["fewer transforms"]["how"]
    if "packed frames" in remedies:  # a busy machine may make it worth a try
        assert remedies["packed frames"]["gain"] < remedies["fewer transforms"]["gain"]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_heavy_model_is_named(config, workers):
    result = examine(config(width=64, workers=workers))
    assert result["limit"]["part"] == "training"
    assert result["limit"]["stage"] in ("forward", "backward")
    remedies = {remedy["name"]: remedy for remedy in result["remedies"]}
    assert remedies["smaller input"]["gain"] > 0
    if "prepared videos" in remedies:  # a busy machine may make it worth a try
        assert remedies["prepared videos"]["gain"] < 1.5
