"""SlowFast from the sections of PaddleVideo's slowfast.yaml: trained, validated, tested in 10 × 3 views."""

from __future__ import annotations

import re

import numpy as np
import paddle
import pytest

from paddlevideo_fast.config import load_config
from paddlevideo_fast.loader import ClipRequest, build_dataset
from paddlevideo_fast.modeling import Preprocess, build_model, load_weights

# PaddleVideo's slowfast.yaml with smaller numbers: 4 frames of 32 pixels, a narrow network
CONFIG = """
MODEL:
  framework: "Recognizer3D"
  backbone:
    {{name: "ResNetSlowFast", depth: 50, alpha: 4, beta: 2, width_per_group: 4, fusion_kernel_sz: 5,
     stage_blocks: [1, 1, 1, 1]}}
  head:
    {{name: "SlowFastHead", width_per_group: 4, alpha: 4, beta: 2, num_classes: 4, num_frames: 4,
     crop_size: 32, dropout_rate: 0.5}}
DATASET:
  batch_size: 4
  num_workers: 0
  train:
    format: "SFVideoDataset"
    data_prefix: {data}
    file_path: "{data}/train.list"
  valid:
    format: "SFVideoDataset"
    data_prefix: {data}
    file_path: "{data}/valid.list"
  test:
    format: "SFVideoDataset"
    data_prefix: {data}
    file_path: "{data}/valid.list"
    test_mode: True
    num_ensemble_views: 10
    num_spatial_crops: 3
  test_batch_size: 3
PIPELINE:
  train:
    decode_sampler:
      name: "DecodeSampler"
      num_frames: 4
      sampling_rate: 1
    transform: &training
      - JitterScale: {{min_size: 36, max_size: 44}}
      - MultiCrop: {{target_size: 32}}
      - RandomFlip:
      - Image2Array: {{transpose: False}}
      - Normalization: {{mean: [0.45, 0.45, 0.45], std: [0.225, 0.225, 0.225], tensor_shape: [1, 1, 1, 3]}}
      - PackOutput: {{alpha: 4}}
  valid:
    decode_sampler:
      name: "DecodeSampler"
      num_frames: 4
      sampling_rate: 1
    transform: *training
  test:
    decode_sampler:
      name: "DecodeSampler"
      num_frames: 4
      sampling_rate: 1
      test_mode: True
    transform:
      - JitterScale: {{min_size: 36, max_size: 36}}
      - MultiCrop: {{target_size: 32, test_mode: True}}
      - Image2Array: {{transpose: False}}
      - Normalization: {{mean: [0.45, 0.45, 0.45], std: [0.225, 0.225, 0.225], tensor_shape: [1, 1, 1, 3]}}
      - PackOutput: {{alpha: 4}}
OPTIMIZER:
  name: 'Momentum'
  momentum: 0.9
  learning_rate:
    {{iter_step: True, name: 'CustomWarmupCosineDecay', max_epoch: 1, warmup_epochs: 0, warmup_start_lr: 0.01,
     cosine_base_lr: 0.05}}
  weight_decay: {{name: 'L2', value: 1e-4}}
  use_nesterov: True
METRIC: {{name: 'MultiCropMetric', num_ensemble_views: 10, num_spatial_crops: 3, num_cls: 4}}
model_name: SlowFast
output_dir: {output}
epochs: 1
validate: true
"""


@pytest.mark.smoke
def test_train_validate_and_test_with_views(motion_data, tmp_path, run_main, records):
    config, out = tmp_path / "slowfast.yaml", tmp_path / "out"
    config.write_text(CONFIG.format(data=motion_data, output=out))
    done = run_main(config)
    assert done.returncode == 0, done.stdout + done.stderr
    (valid,) = (record for record in records(out) if record["kind"] == "valid")
    assert valid["num_samples"] == 8

    weights = str(out / "SlowFast_best.pdparams")
    tested = run_main(config, "--test", "-w", weights)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    shown = dict(re.findall(r"(\w+): ([\d.]+)", tested.stdout.splitlines()[-1]))
    assert shown["num_samples"] == "8"
    assert float(shown["top1"]) == pytest.approx(by_hand(load_config(config), weights), abs=1e-4)


def by_hand(config, weights):
    """Top-1 of the mean softmax over the 30 views, video by video."""
    model = build_model(config["MODEL"], load_pretrained=False)
    load_weights(model, weights, strict=True)
    model.eval()
    dataset = build_dataset(config["DATASET"]["test"], config["PIPELINE"]["test"], training=False, seed=0)
    preprocess = Preprocess([0.45] * 3, [0.225] * 3, model.layout)
    right = []
    for index, record in enumerate(dataset.records):
        requests = [ClipRequest(index, 0, view, 10) for view in range(10)]
        clips = np.concatenate([dataset[request].clip.reshape(3, 4, 32, 32, 3) for request in requests])
        assert len(clips) == 30
        with paddle.no_grad():
            scores = paddle.nn.functional.softmax(model(preprocess(clips))).numpy().mean(0)
        right.append(scores.argmax() == record.label)
    return np.mean(right)
