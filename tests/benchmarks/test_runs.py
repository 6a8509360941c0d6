"""`tools/benchmark.py runs`: real runs of every row and seed, kept and compared."""

import json

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
    path, other = tmp_path / "multigrid.yaml", tmp_path / "longer.yaml"
    path.write_text(CONFIG.format(data=motion_dataset.root, list=motion_dataset.train_list))
    other.write_text(f"_BASE_: {path}\nmodel_name: longer\n")
    rows = ["--row", "plain", str(other), "--row", "multi, grid", "multigrid=true"]
    return ["runs", "-c", str(path), *rows, "--seeds", "1", "--output", str(tmp_path / "out")]


@pytest.mark.slow
def test_every_row_is_trained_once_and_compared(arguments, tmp_path, command, capsys):
    assert command("benchmark").main([*arguments, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert list(rows) == ["plain", "multi, grid"]
    # twice 32 clips in batches of 2; of 16 and 4, where 12 clips are left over
    assert [row["steps"] for row in rows.values()] == [32, 4]
    for folder, row in zip(("plain_0", "multi_grid_0"), rows.values()):
        kept = json.loads((tmp_path / "out" / folder / "result.json").read_text())
        (curve,) = row["curves"]
        assert len(curve) == row["epochs"]
        assert curve[-1] == [row["train_sec"][0], row["values"][0]]
        assert row["values"] == [kept["metrics"]["top1"]]
        assert 0 < row["train_sec"][0] < row["wall_sec"][0]
        assert row["cpu_sec"][0] > 0
        assert kept["config"]["model_name"] == ("longer" if folder == "plain_0" else "compared")

    # what is complete stays; what was stopped before its end is run anew
    (tmp_path / "out" / "multi_grid_0" / "result.json").unlink()
    assert command("benchmark").main([*arguments, "--metric", "loss", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)["rows"]
    assert again["plain"]["wall_sec"] == rows["plain"]["wall_sec"]
    assert again["plain"]["values"] != rows["plain"]["values"]
    assert again["multi, grid"]["wall_sec"] != rows["multi, grid"]["wall_sec"]
    assert command("benchmark").main([*arguments, "--metric", "speed"]) == 2
    assert "--metric speed: the validation has" in capsys.readouterr().err


def test_runs_of_another_config_are_not_taken(arguments, tmp_path, command, capsys):
    kept = tmp_path / "out" / "plain_0" / "result.json"
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps({"config": {"epochs": 3}}))
    assert command("benchmark").main(arguments) == 2
    assert f"{kept}: is of another config; remove it or" in capsys.readouterr().err


def test_a_run_that_fails_ends_the_comparison(arguments, tmp_path, command, capsys):
    missing = tmp_path / "none.list"
    assert command("benchmark").main([*arguments, "-o", f"DATASET.train.file_path={missing}"]) == 2
    log = tmp_path / "out" / "plain_0" / "console.log"
    assert f"{log}: the run ended with 2" in capsys.readouterr().err
    assert str(missing) in log.read_text()


def test_rows_need_names_of_their_own(arguments, command, capsys):
    assert command("benchmark").main([*arguments, "--row", "plain", "epochs=3"]) == 2
    assert "--row: each row needs a name of its own" in capsys.readouterr().err
