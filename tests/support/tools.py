"""Configs whose runs take seconds, and the command lines of tools/."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# The scripts of a clone that start the same functions.
SCRIPTS: dict[str, str] = {
    "train": "tools/main.py",
    "launch": "tools/launch.py",
    "predict": "tools/predict.py",
    "convert": "tools/convert_weights.py",
    "doctor": "tools/doctor.py",
    "plan": "tools/multigrid_plan.py",
    "data list": "data/build_file_list.py",
    "data check": "data/check_videos.py",
    "data prepare": "data/prepare_videos.py",
    "data extract": "data/extract_rawframes.py",
    "data pack": "data/pack_frames.py",
    "data motion": "data/make_motion_dataset.py",
    "data k400": "data/k400/build_lists.py",
    "data ucf101": "data/ucf101/build_lists.py",
    "data ssv2": "data/ssv2/build_lists.py",
}

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
model_name: measured
epochs: 1
"""


@pytest.fixture
def config(tmp_path, motion_dataset):
    """`config(data=…, list=…, …)`: the path of a config with these values, else on the motion data set."""

    def write(**values):
        defaults = {
            "data": motion_dataset.root,
            "list": motion_dataset.train_list,
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


@pytest.fixture(scope="session")
def command():
    """`command("benchmark")`: the module of tools/benchmark.py, which has `main(argv)`."""

    def load(name):
        spec = importlib.util.spec_from_file_location(f"tools_{name}", ROOT / "tools" / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load
