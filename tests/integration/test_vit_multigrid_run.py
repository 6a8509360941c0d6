"""Multigrid runs of transformers by the real command line, on real encoded clips."""

import numpy as np
import pytest
from test_multigrid_run import Watch

from paddlevideo_fast.cli import main
from tests.support.launching import MAIN, overriding

CONFIG = """
MODEL:
  framework: RecognizerTransformer
  backbone: {{name: VideoMAEViT, embed_dim: 24, depth: 2, num_heads: 2, patch_size: 4, drop_path_rate: 0.2}}
  head: {{name: VideoMAEHead, num_classes: 4, in_channels: 24, ls_eps: 0.1}}
DATASET:
  batch_size: 2
  valid_batch_size: 4
  num_workers: 0
  train: {{format: SFVideoDataset, data_prefix: {data}, file_path: "{data}/train.list"}}
  valid: {{format: SFVideoDataset, data_prefix: {data}, file_path: "{data}/valid.list"}}
PIPELINE:
  train: &training
    decode_sampler: {{name: DecodeSampler, num_frames: 8, sampling_rate: 1}}
    transform:
      - JitterScale: {{min_size: 30, max_size: 34}}
      - MultiCrop: {{target_size: 28}}
      - Image2Array: {{transpose: False}}
      - Normalization: {{mean: [0.45, 0.45, 0.45], std: [0.225, 0.225, 0.225], tensor_shape: [1, 1, 1, 3]}}
  valid: *training
MIX: {{name: VideoMix, mixup_alpha: 0.8}}
OPTIMIZER:
  name: AdamW
  learning_rate:
    {{name: CosineAnnealingDecay, learning_rate: 0.001, T_max: 4, warmup_epochs: 1, iter_step: true}}
  weight_decay: 0.05
  layer_decay: 0.75
METRIC: {{name: CenterCropMetric}}
MULTIGRID:
  LONG_CYCLE: true
  SHORT_CYCLE: true
  long_cycle_factors: [[0.5, 0.7143], [1, 1]]
  short_cycle_factors: [0.5714, 0.7143]
  lr_scaling: none
  finish: 0.25
multigrid: true
model_name: tiny
output_dir: {output}
epochs: 4
log_interval: 1
save_interval: 1
"""
# (clips, frames, side) of the steps of 24 clips; the last ones are dropped where they make no batch
SMALL = [(16, 4, 16), (8, 4, 20)]
FULL = [(6, 8, 16), (4, 8, 20), (2, 8, 28), (6, 8, 16), (4, 8, 20), (2, 8, 28)]
FINISH = [(2, 8, 28)] * 12


@pytest.fixture
def config(motion_data, tmp_path):
    path = tmp_path / "vit.yaml"
    path.write_text(CONFIG.format(data=motion_data, output=tmp_path / "out"))
    return path


SIZES = "embed_dim: 24, depth: 2, num_heads: 2"
NETWORKS = {
    "VideoMAEViT": [],
    "VJEPA2": [f"MODEL.backbone={{name: VJEPA2, {SIZES}, patch_size: 4}}"],
    "TimeSformer": [
        f"MODEL.backbone={{name: VisionTransformer, {SIZES}, patch_size: 4, img_size: 28, num_seg: 8}}",
        "MODEL.head={name: ppTimeSformerHead, num_classes: 4, in_channels: 24}",
    ],
    "TokShift": [
        f"MODEL.backbone={{name: TokenShiftVisionTransformer, {SIZES}, patch_size: 4, img_size: 28}}",
        "MODEL.head={name: TokenShiftHead, num_classes: 4, in_channels: 24}",
    ],
    "MViT": [
        "MODEL.backbone={name: MViT, num_frames: 8, crop_size: 28, embed_dim: 8, depths: [1, 1]}",
        "MODEL.head={name: TransformerHead, num_classes: 4, in_channels: 16}",
    ],
    "Swin": [
        "MODEL.backbone={name: SwinTransformer3D, patch_size: [2, 4, 4], embed_dim: 12, depths: [2, 2], "
        "num_heads: [2, 4], window_size: [2, 2, 2]}",
        "MODEL.head={name: I3DHead, num_classes: 4, in_channels: 24}",
    ],
    "Hiera": [
        "MODEL.backbone={name: Hiera, num_frames: 8, crop_size: 28, embed_dim: 12, depths: [1, 1], "
        "mask_unit: 4, q_pool: 0, drop_path_rate: 0.1}",
        "MODEL.head={name: VideoMAEHead, num_classes: 4, in_channels: 24}",
    ],
}
IN_ANNEXES = ("Hiera",)


@pytest.mark.slow
@pytest.mark.parametrize(
    "network",
    [pytest.param(name, marks=[pytest.mark.annex] * (name in IN_ANNEXES)) for name in NETWORKS],
)
def test_both_cycles_in_all_phases(config, tmp_path, monkeypatch, records, network):
    watch = Watch(monkeypatch)
    assert main(["-c", str(config), *overriding(*NETWORKS[network], "report=false")]) == 0
    assert watch.steps == [*SMALL, *SMALL, *SMALL, *FINISH]
    assert {shape[1:] for shape in watch.evaluations} == {(8, 28)}  # the full shape, in every phase
    losses = [line["loss"] for line in records(tmp_path / "out") if line["kind"] == "train_epoch"]
    assert np.isfinite(losses).all()


@pytest.mark.slow
def test_a_rate_of_one_stage_goes_through_the_shapes_once(config, tmp_path, monkeypatch, records):
    watch = Watch(monkeypatch)
    length = ["epochs=8", "OPTIMIZER.learning_rate.T_max=8", "MULTIGRID.finish=0.13", "validate=false"]
    assert main(["-c", str(config), *overriding(*length)]) == 0
    assert watch.steps == [*SMALL * 6, *FULL, *FINISH]
    lines = [line for line in records(tmp_path / "out") if line["kind"] == "train"]
    epochs = [2 * [epoch] for epoch in range(6)] + [6 * [6], 12 * [7]]
    shares = [epoch + step / len(each) for epoch, each in enumerate(epochs) for step in range(len(each))]
    cosine = [0.001 * (1 + np.cos(np.pi * share / 8)) / 2 for share in shares]
    rates = [line["lr"] for line in lines]
    assert rates[2:] == pytest.approx(cosine[2:])  # the batch does not change it; the first epoch is warm-up


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint", ["tiny_step_00000003", "tiny_step_00000010"])
def test_a_killed_run_goes_on_bit_for_bit_inside_a_phase(
    config, run_main, assert_resumes, tmp_path, checkpoint
):
    common = overriding(
        *("DATASET.num_workers=2", "save_every_steps=1", "keep_last=null", "EMA={decay: 0.9}"),
        *("amp=true", "amp_level=O2", "report=false"),
    )
    run_main(config, *common)
    assert_resumes(tmp_path / "out", checkpoint, config, *common)


@pytest.mark.slow
def test_two_ranks_take_the_steps_of_one(config, job, run_main, tmp_path):
    alike = overriding(
        "MIX=null", "MODEL.backbone.drop_path_rate=0", "MODEL.head.drop_ratio=0", "report=false"
    )
    alike += overriding("MULTIGRID.SHORT_CYCLE=false", "validate=false")
    one, two = tmp_path / "one", tmp_path / "two"
    run_main(config, *alike, *overriding("DATASET.batch_size=4", f"output_dir={one}"))
    job("two", [MAIN, "-c", config, *alike, "-o", f"output_dir={two}"]).succeed()
    last = sorted(path.name for path in one.glob("tiny_epoch_*.pdparams"))[-1]
    import paddle

    expected, weights = (paddle.load(str(folder / last)) for folder in (one, two))
    for name, value in expected.items():
        np.testing.assert_allclose(np.asarray(weights[name]), np.asarray(value), rtol=2e-3, atol=2e-5)


WRONG = [
    (
        ["MULTIGRID.long_cycle_factors=[[1, 0.65], [1, 1]]"],
        r"MULTIGRID.long_cycle_factors: clips of 18 pixels do not divide into MODEL.backbone.patch_size",
    ),
    (["MULTIGRID.long_cycle_factors=[[1, 0.65], [1, 1]]"], "=4; 16 or 20 do"),
    (
        ["MULTIGRID.short_cycle_factors=[0.5]"],
        "MULTIGRID.short_cycle_factors: clips of 14 pixels do not divide",
    ),
    (["MULTIGRID.short_cycle_factors=[0.1]"], "=4; 4 do"),
    (
        ["MULTIGRID.long_cycle_factors=[[0.375, 1], [1, 1]]"],
        "clips of 3 frames do not divide into MODEL.backbone.tubelet_size=2; 2 or 4 do",
    ),
    (["MULTIGRID.lr_scaling=sqrt"], "MULTIGRID.lr_scaling: only the steps of a CustomWarmupPiecewiseDecay"),
    (["MULTIGRID.finish=0.9", "epochs=1", "OPTIMIZER.learning_rate.T_max=1"], "leave one without any"),
    pytest.param(
        ["to_static=true"],
        "to_static: multigrid changes the network while it trains",
        marks=pytest.mark.annex,
    ),
]


@pytest.mark.parametrize(("overrides", "words"), WRONG)
def test_shapes_and_rates_that_do_not_fit_are_one_error(config, assert_refused, tmp_path, overrides, words):
    absent = f"DATASET.train.file_path={tmp_path}/is_not_there.list"
    assert_refused(config, words, *overrides, absent)


def test_a_transformer_has_no_batch_norm_for_which_batches_must_fit(config):
    from paddlevideo_fast.assembly.plan import plan_run
    from paddlevideo_fast.config import RunSpec, load_config

    plan = plan_run(
        RunSpec.of(load_config(str(config), ["DATASET.batch_size=3", "MULTIGRID.bn_base_size=7"]))
    )
    assert [phase.bn_splits for phase in plan.phases] == [1] * len(plan.phases)
