"""`tools/benchmark.py variants`: real runs of every variant and seed, kept and compared."""

from __future__ import annotations

import json

import pytest

CONFIG = """
MODEL:
  framework: Recognizer2D
  backbone: {{name: ResNetTSM, depth: 18, num_seg: 2, width: 4, stage_blocks: [1, 1, 1, 1]}}
  head: {{name: TSMHead, num_classes: 8, in_channels: 32, fclr5: false}}
DATASET:
  batch_size: 16
  train: &clips {{format: VideoDataset, data_prefix: {data}, file_path: {list}}}
  valid: *clips
PIPELINE:
  train: &clip
    decode: {{name: VideoDecoder}}
    sample: {{name: Sampler, num_seg: 2, seg_len: 1}}
    transform: [{{RandomCrop: {{target_size: 16}}}}]
  valid: *clip
OPTIMIZER: {{name: AdamW, learning_rate: 0.01}}
METRIC: {{name: CenterCropMetric}}
model_name: compared
epochs: 2
num_threads: 1
use_visualdl: false
report: false
"""


@pytest.fixture
def arguments(tmp_path, motion_dataset):
    path = tmp_path / "variants.yaml"
    path.write_text(CONFIG.format(data=motion_dataset.root, list=motion_dataset.train_list))
    rows = ["--row", "one clip", "--row", "two clips", "DATASET.train.clips_per_video=2"]
    return ["variants", "-c", str(path), *rows, "--seeds", "1", "--output", str(tmp_path / "out")]


@pytest.mark.slow
def test_variants_take_as_many_steps_and_are_compared(arguments, tmp_path, command, capsys):
    assert command("benchmark").main([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    rows = result["rows"]
    assert list(rows) == ["one clip", "two clips"]
    assert [row["steps"] for row in rows.values()] == [4, 4]  # twice 32 clips in batches of 16
    assert rows["two clips"]["overrides"] == ["DATASET.train.clips_per_video=2"]
    for place, row in enumerate(rows.values()):
        kept = json.loads((tmp_path / "out" / f"{place}_0" / "result.json").read_text())
        assert row["values"] == [kept["metrics"]["top1"]]
        assert row["train_sec"] == [kept["train_sec"]]
    assert command("benchmark").main([*arguments, "--metric", "loss"]) == 0  # the runs are not repeated
    printed = capsys.readouterr().out
    assert "| variant | steps | loss, mean | each seed | difference, mean |" in printed
    assert "| one clip | 4 |" in printed


def test_what_cannot_be_compared(arguments, tmp_path, command, capsys):
    kept = tmp_path / "out" / "0_0" / "result.json"
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps({"config": {"epochs": 3}}))
    assert command("benchmark").main(arguments) == 2
    assert f"{kept}: is of another config; remove it or" in capsys.readouterr().err
