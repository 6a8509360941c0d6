"""A whole run through DALI, from PaddleVideo's short form of its data."""

import sys

import numpy as np
import pytest

from paddlevideo_fast.cli import main
from paddlevideo_fast.engine import load_checkpoint
from tests.support.dali_codecs import clip_for_dali, no_dali

CONFIG = """
MODEL:
  framework: Recognizer2D
  backbone: {{name: ResNet, depth: 18, width: 4}}
  head: {{name: TSNHead, num_classes: 3, in_channels: 32, drop_ratio: 0.2, std: 0.01}}
DALI_LOADER:
  batch_size: 2
  file_path: {data}/train.list
  num_seg: 3
  seglen: 1
  short_size: 48
  target_size: 40
  mean: [0.485, 0.456, 0.406]
  std: [0.229, 0.224, 0.225]
DATASET:
  valid_batch_size: 4
  num_workers: 2
  valid: &list {{format: VideoDataset, file_path: {data}/train.list}}
  test: *list
PIPELINE:
  valid: &valid
    decode: {{name: VideoDecoder}}
    sample: {{name: Sampler, valid_mode: true, num_seg: 3, seg_len: 1}}
    transform: [{{Scale: {{short_size: 48}}}}, {{CenterCrop: {{target_size: 40}}}}, Image2Array: ]
  test: *valid
OPTIMIZER:
  name: Momentum
  momentum: 0.9
  learning_rate: {{name: PiecewiseDecay, boundaries: [1], values: [0.01, 0.001]}}
METRIC: {{name: CenterCropMetric}}
model_name: tsn
output_dir: {output}
epochs: 2
log_interval: 1
save_interval: 1
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory, make_clip):
    """Seven clips with their labels, and one that is no video."""
    root = tmp_path_factory.mktemp("dali_run")
    for number in range(0 if no_dali() else 7):
        clip_for_dali(make_clip, root / f"{number}.mp4", 12 + number, size=(80, 60))
    (root / "bad.mp4").write_bytes(b"not a video")
    lines = [f"{root}/{number}.mp4 {number % 3}\n" for number in range(7)]
    (root / "train.list").write_text("".join(lines) + f"{root}/bad.mp4 0\n")
    return root


@pytest.fixture
def config(data, tmp_path):
    path = tmp_path / "tsn_dali.yaml"
    path.write_text(CONFIG.format(data=data, output=tmp_path / "out"))
    return path


needs_dali = pytest.mark.skipif(no_dali() is not None, reason=str(no_dali()))


@pytest.mark.slow
@needs_dali
def test_train_validate_resume_and_test(run_main, config, tmp_path, records):
    """A run that is resumed in the middle of an epoch has the same clips, so the same weights."""
    out = tmp_path / "out"
    done = run_main(config, "--train_dali", "--validate", "-o", "save_every_steps=3")
    assert "bad.mp4 does not decode and is left out" in done.stderr
    kinds = [record["kind"] for record in records(out)]
    assert kinds == [*["train"] * 4, "train_epoch", "valid"] * 2
    (valid, _) = [record for record in records(out) if record["kind"] == "valid"]
    assert (valid["num_samples"], valid["num_failed"]) == (7, 1)

    middle = next(out.glob("tsn_step_*3.pdparams")).with_suffix("")
    again = tmp_path / "again"
    resumed = run_main(config, "--train_dali", "-o", f"resume={middle}", "-o", f"output_dir={again}")
    assert "epoch 1, step 3 of it" in resumed.stderr
    one, other = (load_checkpoint(str(folder / "tsn_epoch_00002")).weights for folder in (out, again))
    assert all(np.array_equal(one[name], other[name]) for name in one)

    best = str(out / "tsn_best.pdparams")
    tested = run_main(out / "config.yaml", "--test", "-w", best)
    assert "num_samples: 7" in tested.stderr


def test_without_dali_the_flag_names_the_extra(config, monkeypatch, capfd, tmp_path):
    for name in ("nvidia", *(name for name in sys.modules if name.startswith("nvidia."))):
        monkeypatch.setitem(sys.modules, name, None)  # hides an installed one
    assert main(["-c", str(config), "--train_dali"]) == 2
    told = capfd.readouterr().err
    assert "MissingExtraError: reading videos with DALI needs the package 'nvidia-dali-cuda" in told
    assert not (tmp_path / "out" / "train.log").exists()
