"""Multigrid runs of the real command line: SlowFast from PaddleVideo's sections on real encoded clips."""

import re

import numpy as np
import paddle
import pytest

from paddlevideo_fast.cli import main
from paddlevideo_fast.config import load_config
from paddlevideo_fast.loader import ClipRequest, DecodeSampler, build_dataset
from paddlevideo_fast.modeling import Preprocess, build_model, load_weights
from paddlevideo_fast.modeling.recognizers import Recognizer3D
from tests.support.launching import overriding

# PaddleVideo's slowfast_multigrid.yaml with smaller numbers: 8 frames of 28 pixels, a narrow network
CONFIG = """
MODEL:
  framework: "Recognizer3D"
  backbone:
    {{name: "ResNetSlowFast", depth: 50, alpha: 2, beta: 2, width_per_group: 4, fusion_kernel_sz: 5,
     stage_blocks: [1, 1, 1, 1], bn_norm_type: "batchnorm"}}
  head:
    {{name: "SlowFastHead", width_per_group: 4, alpha: 2, beta: 2, num_classes: 4, num_frames: 8,
     crop_size: 28, dropout_rate: 0.5, multigrid_short: True}}
DATASET:
  batch_size: 2
  valid_batch_size: 4
  num_workers: 0
  train: {{format: "SFVideoDataset", data_prefix: {data}, file_path: "{data}/train.list"}}
  valid: {{format: "SFVideoDataset", data_prefix: {data}, file_path: "{data}/valid.list"}}
PIPELINE:
  train: &training
    decode_sampler: {{name: "DecodeSampler", num_frames: 8, sampling_rate: 1}}
    transform:
      - JitterScale: {{min_size: 30, max_size: 34}}
      - MultiCrop: {{target_size: 28}}
      - RandomFlip:
      - Image2Array: {{transpose: False}}
      - Normalization: {{mean: [0.45, 0.45, 0.45], std: [0.225, 0.225, 0.225], tensor_shape: [1, 1, 1, 3]}}
      - PackOutput: {{alpha: 2}}
  valid: *training
OPTIMIZER:
  name: 'Momentum'
  momentum: 0.9
  learning_rate:
    iter_step: True
    name: 'CustomWarmupPiecewiseDecay'
    warmup_epochs: 1
    warmup_start_lr: 0.001
    step_base_lr: 0.01
    lrs: [1, 0.1, 0.01]
    gamma: 0.1
    steps: [0, 3]
    max_epoch: 4
  weight_decay: {{name: 'L2', value: 1e-4}}
  use_nesterov: True
METRIC: {{name: 'MultiCropMetric', num_ensemble_views: 10, num_spatial_crops: 3, num_classes: 4}}
MULTIGRID:
  LONG_CYCLE: True
  SHORT_CYCLE: True
  default_batch_size: 0
  default_temporal_size: 0
  default_crop_size: 0
  epoch_factor: 1.0
  bn_base_size: 2
  long_cycle_sampling_rate: 0
  long_cycle_factors:
      - value: [0.5, 0.7071]
      - value: [1, 1]
  short_cycle_factors: [0.5, 0.7071]
  EVAL_FREQ: 3
model_name: tiny
output_dir: {output}
epochs: 4
log_interval: 1
save_interval: 1
validate: true
"""


@pytest.fixture
def config(motion_data, tmp_path):
    path = tmp_path / "multigrid.yaml"
    path.write_text(CONFIG.format(data=motion_data, output=tmp_path / "out"))
    return path


def cycles(long, short):
    return ["--multigrid", *overriding(f"MULTIGRID.LONG_CYCLE={long}", f"MULTIGRID.SHORT_CYCLE={short}")]


class Watch:
    """What reaches the network and the sampler in a run within this process."""

    def __init__(self, monkeypatch):
        self.steps, self.evaluations, self.spans = [], [], []
        forward, sample = Recognizer3D.forward, DecodeSampler.sample

        def watched_forward(model, clips):
            num_clips, _, num_frames, height, width = clips.shape
            assert height == width
            shapes = self.steps if model.training else self.evaluations
            shapes.append((num_clips, num_frames, height))
            return forward(model, clips)

        def watched_sample(sampler, num_frames, avg_fps, request, rng):
            widest = request.sampling_rate or sampler.sampling_rate
            self.spans.append((request.num_frames or sampler.num_frames) * widest / sampler.target_fps)
            return sample(sampler, num_frames, avg_fps, request, rng)

        monkeypatch.setattr(Recognizer3D, "forward", watched_forward)
        monkeypatch.setattr(DecodeSampler, "sample", watched_sample)


# (clips, frames, side) of each step; the last of the 24 clips are dropped where they do not make a batch
SMALL_BOTH = [(16, 4, 14), (8, 4, 20)]
FULL_BOTH = [(8, 8, 14), (4, 8, 20), (2, 8, 28), (8, 8, 14)]
SMALL_LONG = [(8, 4, 20)] * 3
FULL_LONG = [(2, 8, 28)] * 12


@pytest.mark.slow
@pytest.mark.smoke
@pytest.mark.parametrize(
    ("short", "factor", "workers", "epochs"),
    [
        (True, 1, 0, [SMALL_BOTH, SMALL_BOTH, FULL_BOTH, FULL_BOTH]),
        (False, 1.5, 2, [SMALL_LONG] * 4 + [FULL_LONG] * 2),
    ],
    ids=["both", "long"],
)
def test_the_shapes_of_all_phases(
    config, tmp_path, monkeypatch, capfd, records, short, factor, workers, epochs
):
    watch = Watch(monkeypatch)
    overrides = overriding(f"MULTIGRID.epoch_factor={factor}", f"DATASET.num_workers={workers}")
    assert main(["-c", str(config), *cycles(True, short), *overrides]) == 0
    assert watch.steps == [shape for epoch in epochs for shape in epoch]
    validation, explanations = watch.evaluations[: 2 * len(epochs)], watch.evaluations[2 * len(epochs) :]
    assert validation == [(4, 8, 28)] * 2 * len(epochs)  # the full shape, in every phase
    assert {shape[1:] for shape in explanations} == {(8, 28)}  # of the report, after the last epoch
    assert workers or set(watch.spans) == {8 / 30}  # seconds, the longest that a clip may last
    if not short:
        return
    rates = {line["step"]: line["lr"] for line in records(tmp_path / "out") if line["kind"] == "train"}
    # to 4 × 0.01 in an epoch of two steps; the fine-tuning is one epoch, which has no first half
    expected = {1: 0.001, 2: 0.0205, 3: 0.04, 4: 0.04, **dict.fromkeys((5, 6, 7, 8), 0.01)}
    assert rates == pytest.approx(expected | dict.fromkeys((9, 10, 11, 12), 0.001))
    told = capfd.readouterr().err
    for line in (
        "epochs 1 to 2, 2 steps each: 16 clips of 4×14×14, 8 of 4×20×20, 8 of 4×20×20, at rates up to 2",
        "epochs 3 to 3, 4 steps each: 8 clips of 8×14×14, 4 of 8×20×20, 2 of 8×28×28, at rates up to 1",
    ):
        assert line in told


VIEWS = """
_BASE_: {base}
DATASET:
  test:
    {{format: "SFVideoDataset", data_prefix: {data}, file_path: "{data}/valid.list", test_mode: True,
     num_ensemble_views: 10, num_spatial_crops: 3}}
  test_batch_size: 3
PIPELINE:
  test:
    decode_sampler: {{name: "DecodeSampler", num_frames: 8, sampling_rate: 1, test_mode: True}}
    transform:
      - JitterScale: {{min_size: 32, max_size: 32}}
      - MultiCrop: {{target_size: 28, test_mode: True}}
      - Image2Array: {{transpose: False}}
      - Normalization: {{mean: [0.45, 0.45, 0.45], std: [0.225, 0.225, 0.225], tensor_shape: [1, 1, 1, 3]}}
      - PackOutput: {{alpha: 2}}
"""


@pytest.mark.smoke
def test_the_plain_run_of_the_same_file_and_its_test_in_30_views(
    config, motion_data, tmp_path, monkeypatch, capfd
):
    watch = Watch(monkeypatch)
    views = tmp_path / "views.yaml"
    views.write_text(VIEWS.format(base=config, data=motion_data))
    assert main(["-c", str(views), "-o", "epochs=1"]) == 0
    assert watch.steps == FULL_LONG
    assert "MULTIGRID has no effect: add --multigrid" in capfd.readouterr().err
    weights = str(tmp_path / "out" / "tiny_best.pdparams")
    assert main(["-c", str(views), "--test", "-w", weights]) == 0
    (line,) = (line for line in capfd.readouterr().err.splitlines() if "num_samples: " in line)
    shown = dict(re.findall(r"(\w+): ([\d.]+)", line))
    assert shown["num_samples"] == "8"
    assert float(shown["top1"]) == pytest.approx(top1_by_hand(load_config(views), weights), abs=1e-4)


def top1_by_hand(cfg, weights):
    """Of the mean softmax over the 30 views, video by video."""
    model = build_model(cfg["MODEL"], load_pretrained=False)
    load_weights(model, weights, strict=True)
    model.eval()
    dataset = build_dataset(cfg["DATASET"]["test"], cfg["PIPELINE"]["test"], training=False, seed=0)
    preprocess = Preprocess([0.45] * 3, [0.225] * 3, model.layout)
    right = []
    for index, record in enumerate(dataset.records):
        requests = [ClipRequest(index, 0, view, 10) for view in range(10)]
        clips = np.concatenate([dataset[request].clip.reshape(3, 8, 28, 28, 3) for request in requests])
        assert len(clips) == 30
        with paddle.no_grad():
            scores = paddle.nn.functional.softmax(model(preprocess(clips))).numpy().mean(0)
        right.append(scores.argmax() == record.label)
    return np.mean(right)


@pytest.mark.slow
@pytest.mark.smoke
def test_going_on_in_a_short_cycle_of_the_second_phase(config, tmp_path, run_main, assert_resumes):
    common = overriding(
        *("multigrid=true", "DATASET.num_workers=2", "save_every_steps=1", "keep_last=null"),
        "EMA={decay: 0.9}",
        *("accumulate_steps=2", "amp=true", "amp_level=O2", "PRECISEBN={preciseBN_interval: 1}"),
    )
    run_main(config, *common)
    told = assert_resumes(tmp_path / "out", "tiny_step_00000003", config, *common)
    assert "tiny_step_00000003: epoch 3, step 1 of it" in told


def test_resuming_inside_an_epoch_in_another_schedule_is_refused(config, tmp_path, capfd):
    shorter = ["--max_iters", "2", *overriding("save_every_steps=1", "keep_last=null")]
    assert main(["-c", str(config), *cycles(False, True), *shorter]) == 0
    resume = [*shorter, "-o", f"resume={tmp_path}/out/tiny_step_00000001"]
    capfd.readouterr()
    assert main(["-c", str(config), *cycles(True, True), *resume]) == 2
    error = capfd.readouterr().err
    assert "had shape 8 frames at rates up to 1, batch ×4 of 14 px" in error
    assert "this one has 4 frames at rates up to 2, batch ×8 of 14 px" in error


WRONG = [
    (["MULTIGRID=null"], "MULTIGRID: multigrid training needs this section"),
    (["MULTIGRID.long_cycle_factors=[[0.01, 1], [1, 1]]"], "MULTIGRID: factors [0.01, 1] leave 0 frames"),
    (["MULTIGRID.long_cycle_factors=[[1, 0.01], [1, 1]]"], "of 0 pixels"),
    (["MULTIGRID.short_cycle_factors=[0.01]"], "of 0 pixels"),
    (["MULTIGRID.long_cycle_factors=[[2, 1]]"], "MULTIGRID.long_cycle_factors.0"),
    (["MULTIGRID.long_cycle_factors=[{values: [1, 1]}]"], "MULTIGRID.long_cycle_factors: {'values': [1, 1]}"),
    (["MULTIGRID.long_cycle_factors=[]"], "MULTIGRID.long_cycle_factors: LONG_CYCLE needs at least one"),
    (["MULTIGRID.short_cycle_factors=[]"], "MULTIGRID.short_cycle_factors: SHORT_CYCLE needs at least one"),
    (["MODEL.backbone.alpha=8"], "clips of 4 frames do not divide into MODEL.backbone.alpha=8"),
    (
        [
            "MODEL.backbone={name: ResNetI3D, width_per_group: 4, stage_blocks: [1, 1, 1, 1]}",
            "MODEL.head={name: I3DHead, num_classes: 4}",
            "MULTIGRID.long_cycle_factors=[[0.125, 0.7071]]",
        ],
        "clips of 1 frames are too few for ResNetI3D, which needs 2",
    ),
    (["MULTIGRID.bn_base_size=3"], "MULTIGRID.bn_base_size: 3 does not divide a batch of 8 clips"),
    (["MULTIGRID.epoch_factor=0"], "MULTIGRID.epoch_factor=0: expected float, at least 0.01"),
    (["MULTIGRID.epoch_factor=0.1"], "raise epochs or epoch_factor"),
    (["OPTIMIZER.learning_rate.steps=[0, 3, 2]"], "OPTIMIZER.learning_rate.steps=[0, 3, 2]: must rise"),
    (["OPTIMIZER.learning_rate.steps=[0, 4]"], "the last one before the end at epoch 4"),
    (
        [
            *("epochs=6", "OPTIMIZER.learning_rate.max_epoch=6", "OPTIMIZER.learning_rate.steps=[0, 4]"),
            *("MULTIGRID.epoch_factor=0.8", "OPTIMIZER.learning_rate.warmup_epochs=6"),
        ],
        "warmup_epochs=6: must lie between 0 and max_epoch=5",
    ),
    (
        ["OPTIMIZER.learning_rate=0.1"],
        "MULTIGRID.lr_scaling: only the steps of a CustomWarmupPiecewiseDecay follow the batch",
    ),
    (
        ["OPTIMIZER.learning_rate=0.1", "MULTIGRID.LONG_CYCLE=false", "MULTIGRID.epoch_factor=2"],
        "MULTIGRID.epoch_factor: only a CustomWarmupPiecewiseDecay follows it",
    ),
    (["epochs=5"], "epochs: 5, but OPTIMIZER.learning_rate.max_epoch is 4"),
    pytest.param(
        ["train_dali=true"],
        "train_dali: multigrid training reads through our own loader",
        marks=pytest.mark.annex,
    ),
    (
        [
            "PIPELINE.train.decode_sampler=null",
            "PIPELINE.train.decode={name: VideoDecoder}",
            "PIPELINE.train.sample={name: Sampler, num_seg: 8, seg_len: 1}",
        ],
        "PIPELINE.train: multigrid training needs a DecodeSampler",
    ),
    (
        ["PIPELINE.train.transform=[{Image2Array: {}}]"],
        "PIPELINE.train.transform: multigrid training needs a transform",
    ),
]


@pytest.mark.parametrize(("overrides", "words"), WRONG)
def test_wrong_settings_are_one_error_before_any_data_is_read(
    config, tmp_path, assert_refused, overrides, words
):
    absent = f"DATASET.train.file_path={tmp_path}/is_not_there.list"
    assert_refused(config, words, *overrides, absent, flags=["--multigrid"])
