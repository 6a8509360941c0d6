"""`tools/benchmark.py multigrid_training`: real runs of every row, kept, compared and drawn."""

from __future__ import annotations

import json
from statistics import mean

import pytest

CONFIG = """
MODEL:
  framework: Recognizer3D
  backbone: {{name: ResNetSlowFast, alpha: 2, beta: 2, width_per_group: 2, stage_blocks: [1, 1, 1, 1]}}
  head: {{name: SlowFastHead, width_per_group: 2, alpha: 2, beta: 2, num_classes: 8}}
DATASET:
  batch_size: 2
  train: &clips {{format: SFVideoDataset, data_prefix: {data}, file_path: {list}}}
  valid: *clips
PIPELINE:
  train: &clip
    decode_sampler: {{name: DecodeSampler, num_frames: 4, sampling_rate: 1}}
    transform: [{{JitterScale: {{min_size: 18, max_size: 20}}}}, {{MultiCrop: {{target_size: 16}}}}]
  valid: *clip
OPTIMIZER:
  name: Momentum
  learning_rate:
    {{name: CustomWarmupPiecewiseDecay, warmup_epochs: 1, warmup_start_lr: 0, step_base_lr: 0.01,
     lrs: [1, 0.1], gamma: 0.1, steps: [0, 1], max_epoch: 2}}
MULTIGRID:
  LONG_CYCLE: true
  SHORT_CYCLE: true
  epoch_factor: 1
  bn_base_size: 2
  long_cycle_factors: [[0.5, 1]]
  short_cycle_factors: [0.5]
METRIC: {{name: CenterCropMetric}}
model_name: compared
epochs: 2
num_threads: 1
use_visualdl: false
report: false
"""


@pytest.fixture
def arguments(tmp_path, motion_dataset):
    path = tmp_path / "multigrid.yaml"
    path.write_text(CONFIG.format(data=motion_dataset.root, list=motion_dataset.train_list))
    return ["multigrid_training", "-c", str(path), "--seeds", "1", "--output", str(tmp_path / "out")]


@pytest.mark.slow
def test_every_row_is_trained_once_and_compared(arguments, tmp_path, command, capsys):
    assert command("benchmark").main(arguments) == 0
    result = json.loads((tmp_path / "out" / "multigrid_training.json").read_text())
    rows = result["rows"]
    assert list(rows) == ["plain", "multigrid", "long cycle", "short cycle", "plain, cut"]
    # twice 32 clips in batches of 2; of 16 and 4, where 12 clips are left over; of 4; of 8 and 2
    assert [rows[name]["steps"] for name in list(rows)[:4]] == [32, 4, 16, 12]
    plain, printed = rows["plain"], capsys.readouterr().out
    for row in rows.values():
        (curve,) = row["curves"]
        assert len(curve) == row["epochs"]
        assert curve[-1] == [row["train_sec"][0], row["top1"][0]]
        assert 0 < row["train_sec"][0] < row["wall_sec"][0]
        assert row["cpu_sec"][0] > 0
        share = mean(row["cpu_sec"]) / mean(plain["cpu_sec"])
        assert f"| {row['epochs']} | {row['steps']} | {100 * row['top1'][0]:.1f} %" in printed
        assert f"{share:.2f} |" in printed
    assert rows["plain, cut"]["epochs"] <= plain["epochs"]
    assert (tmp_path / "out" / "multigrid_training.png").read_bytes().startswith(b"\x89PNG")

    # what is complete stays; what was stopped before its end is run anew
    (tmp_path / "out" / "long_cycle_0" / "result.json").unlink()
    trial = ["--trial", "no splits", "MULTIGRID.bn_base_size=1", "MULTIGRID.SHORT_CYCLE=false"]
    assert command("benchmark").main([*arguments, *trial]) == 0
    again = json.loads((tmp_path / "out" / "multigrid_training.json").read_text())["rows"]
    long_cycle, before = again.pop("long cycle"), rows.pop("long cycle")
    assert again.pop("no splits")["steps"] == 16
    kept = json.loads((tmp_path / "out" / "no_splits_0" / "result.json").read_text())["config"]
    assert kept["multigrid"] is True
    assert kept["MULTIGRID"]["bn_base_size"] == 1
    assert again == rows
    assert long_cycle["wall_sec"] != before["wall_sec"]
    assert long_cycle["top1"] == before["top1"]


def test_runs_of_another_config_are_not_taken(arguments, tmp_path, command, capsys):
    kept = tmp_path / "out" / "plain_0" / "result.json"
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps({"config": {"epochs": 3}}))
    assert command("benchmark").main(arguments) == 2
    assert f"{kept}: is of another config; remove it or" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_that_fails_ends_the_comparison(arguments, tmp_path, command, capsys):
    missing = tmp_path / "none.list"
    assert command("benchmark").main([*arguments, "-o", f"DATASET.train.file_path={missing}"]) == 2
    log = tmp_path / "out" / "plain_0" / "console.log"
    assert f"{log}: the run ended with 2" in capsys.readouterr().err
    assert str(missing) in log.read_text()


@pytest.mark.parametrize(
    ("override", "key"),
    [("MULTIGRID=null", "MULTIGRID: the"), ("OPTIMIZER.learning_rate=0.1", "OPTIMIZER.learning_rate: the")],
)
def test_a_config_without_a_schedule_is_refused(arguments, command, capsys, override, key):
    assert command("benchmark").main([*arguments, "-o", override]) == 2
    assert f"multigrid.yaml  {key} comparison needs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("trial", "problem"),
    [
        (["long cycle", "epochs=3"], "--trial long cycle: this row is there already; choose another name"),
        (["epochs=3", "seed=1"], "--trial epochs=3: a name has letters, digits, spaces, dots and hyphens"),
        (["slow"], "--trial slow: give KEY=VALUE after the name"),
    ],
)
def test_a_trial_without_a_name_of_its_own_is_refused(arguments, command, capsys, trial, problem):
    assert command("benchmark").main([*arguments, "--trial", *trial]) == 2
    assert problem in capsys.readouterr().err
