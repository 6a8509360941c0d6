from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlevideo_fast.assembly.checks import check_evaluation
from paddlevideo_fast.assembly.plan import plan_run
from paddlevideo_fast.cli.config import copy, copy_parser
from paddlevideo_fast.config import RunSpec, build, load_config
from paddlevideo_fast.config.yaml_source import dump
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.loader import ClipRequest, VideoRecord, build_pipeline
from paddlevideo_fast.loader.request import MidpointGenerator
from paddlevideo_fast.registry import LEARNING_RATES
from paddlevideo_fast.solver.learning_rate import scaled

pytestmark = pytest.mark.annex  # the configs name options

REPOSITORY = Path(__file__).resolve().parents[2]
QUICKSTART = REPOSITORY / "configs" / "quickstart"
CONFIGS = sorted((REPOSITORY / "configs").glob("[!_]*/**/*.yaml"))


# PaddleVideo's own recipes of PP-TSM, PP-TSMv2 and MoViNet scale to 4:3, whatever the video's ratio is. Their
# published weights were trained so, and PaddleX, whose modules run PP-TSM and PP-TSMv2, knows no other way.
TO_4_3 = {
    "movinet_k400_frame",
    "pptsm_k400_frames_dense",
    "pptsm_k400_frames_dense_r101",
    "pptsm_k400_frames_uniform",
    "pptsm_k400_videos_uniform",
    "pptsm_mv2_k400_videos_uniform",
    "pptsm_mv3_k400_frames_uniform",
    "pptsm_lcnet_k400_16frames_uniform",
    "pptsm_lcnet_k400_16frames_uniform_dml_distillation",
    "pptsm_lcnet_k400_8frames_uniform",
    "pptsm_lcnet_k400_8frames_uniform_dml_distillation",
}
# These have the frames of PaddleVideo's config of this name, also in a video that is shorter than the clip.
FRAMES_OF_PADDLEVIDEO = TO_4_3 | {
    "pptimesformer_k400_videos",
    "pptsn_k400_frames",
    "pptsn_k400_videos",
    "timesformer_k400_videos",
    "tokshift_ucf101_256_videos",
    "tsm_k400_frames",
    "tsm_k400_frames_nhwc",
    "tsm_k400_videos",
    "tsm_ucf101_frames",
    "tsm_ucf101_frames_nhwc",
    "tsm_ucf101_videos",
    "tsn_k400_frames",
    "tsn_k400_videos",
}
SOURCES = [(1920, 1080), (1080, 1920), (455, 256)]
# PaddleVideo does not say for how many processes their rates are.
_UNKNOWN_BATCH = ("pptsm", "pptsn", "movinet")


class Source:
    """What a pipeline asks of a video before it has read a frame."""

    num_frames = 600
    avg_fps = 30.0

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.height = height
        self.square_size = width, height


def distortion_px(section: dict[str, Any], width: int, height: int) -> float:
    """How much wider or narrower than in its own ratio the whole source is shown, in pixels of the output."""
    pipeline = build_pipeline(section)
    request, rng = ClipRequest(0, 0), np.random.default_rng(0)
    geometry = pipeline.plan(Source(width, height), VideoRecord("video.mp4", 0), request, rng).geometry
    return max(
        abs(geometry.width / view.width - geometry.height / view.height) * max(width, height)
        for view in geometry.views
    )


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_fits_together(path, warnings, logged):
    """It leaves no doubt, has one clip everywhere, says for how many clips its rate is, keeps the ratio."""
    config = load_config(path)
    assert warnings == []
    logged.clear()
    check_evaluation(RunSpec.for_training(config), "train", "valid", "test")
    assert logged == []
    samplers = {
        name: part.get("decode_sampler") or part["sample"] for name, part in config["PIPELINE"].items()
    }
    own = (config.get("DISTILLATION") or {}).get("student_num_frames")
    frames = {sampler.get("num_seg", sampler.get("num_frames")) for sampler in samplers.values()}
    if own:  # training makes the clips of the teacher
        valid, test = (samplers[name] for name in ("valid", "test"))
        frames = {own, *(each.get("num_seg", each.get("num_frames")) for each in (valid, test))}
    named = [parts for item in config["MODEL"].get("models", []) for parts in item.values()]
    for network in named or [config["MODEL"]]:
        if "num_seg" in network["backbone"]:
            assert frames == {network["backbone"]["num_seg"]}
    if config["MODEL"]["framework"] == "Recognizer3D":
        assert len({(each["num_frames"], each.get("sampling_rate")) for each in samplers.values()}) == 1
    if "recognition" in path.parts and not path.stem.startswith(_UNKNOWN_BATCH):
        accumulated = config.get("GRADIENT_ACCUMULATION", {}).get("global_batch_size")
        assert config["OPTIMIZER"].get("base_batch_size") or accumulated
    squeezed = {
        (split, size)
        for split, size in product(("valid", "test"), SOURCES)
        if distortion_px(config["PIPELINE"][split], *size) > 1  # by rounding
    }
    if path.stem in TO_4_3:
        assert squeezed >= set(product(("valid", "test"), SOURCES[:2])), f"{path.stem}: take it off the list"
    else:
        assert squeezed == set()


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_frames_of_short_videos_rise_except_where_the_config_is_paddlevideos(path):
    config = load_config(path)
    if path.stem in FRAMES_OF_PADDLEVIDEO:
        samplers = [section["sample"] for section in config["PIPELINE"].values()]
        assert not any(sampler.get("by_ratio") for sampler in samplers)
        return
    for section in config["PIPELINE"].values():
        sampler = build_pipeline(section).sample
        for num_frames in (1, 2, 5, 7, 12, 40):
            rng = MidpointGenerator() if getattr(sampler, "valid_mode", True) else np.random.default_rng(0)
            clips = sampler.sample(num_frames, 30.0, ClipRequest(0, 0), rng).reshape(sampler.num_clips, -1)
            assert (np.diff(clips, axis=1) >= 0).all()
            assert (np.ptp(clips, axis=1) > 0).all() or num_frames == 1


def test_the_named_configs_exist():
    assert {path.stem for path in CONFIGS} >= FRAMES_OF_PADDLEVIDEO


def curve_of(name, *overrides):
    config = load_config(REPOSITORY / "configs" / "recognition" / name, overrides)
    return config, build(LEARNING_RATES, config["OPTIMIZER"]["learning_rate"])


@pytest.mark.parametrize(
    "override",
    [
        "MODEL.backbone.num_seg=0",
        "MODEL.backbone.width=-8",
        "MODEL.backbone.stage_blocks=[1,0,1,1]",
        "MODEL.backbone.shift_ratio=0.7",
        "MODEL.head.drop_ratio=1.5",
        "MODEL.head.ls_eps=-0.1",
        "MODEL.head.num_classes=0",
        "MODEL.head.std=-1",
        "OPTIMIZER.momentum=2",
        "OPTIMIZER.learning_rate=-0.1",
        "PIPELINE.train.sample.seg_len=0",
        "PIPELINE.train.transform=[{Scale: {short_size: 0}}]",
        "seed=4294967296",
    ],
)
def test_numbers_out_of_range_are_problems_of_the_config(override):
    with pytest.raises(ConfigError, match=r"-o #1  .*: expected (list|int|float)"):
        curve_of("tsm/tsm_k400_frames.yaml", override)


def test_a_large_learning_rate_is_allowed():
    config, _ = curve_of("tsm/tsm_k400_frames.yaml", "OPTIMIZER.learning_rate.values.0=1e+30")
    assert config["OPTIMIZER"]["learning_rate"]["values"][0] == 1e30


COSINE = {epoch: 0.05 * (1 + math.cos(math.pi * epoch / 196)) for epoch in (34, 98, 196)}
LARGE_RATE = 0.00125 * (1 + math.cos(math.pi * 5 / 100)) / 2
_CLIP = "PIPELINE.train.decode_sampler.num_frames={} PIPELINE.train.decode_sampler.sampling_rate={}"
_V2 = "epochs=120 MODEL.backbone.num_seg={}"
_V2_RATES = {0: 0.005, 60: 0.005, 120: 0.0}
# What the papers and PaddleVideo's configs say: keys, and the learning rate at some epochs.
RECIPES: dict[str, tuple[str, dict[float, float]]] = {
    "tsm/tsm_k400_frames": (
        "epochs=50 DATASET.batch_size=16 MODEL.head.drop_ratio=0.5 OPTIMIZER.weight_decay.name=L2 "
        "OPTIMIZER.weight_decay.value=1e-4 OPTIMIZER.grad_clip.value=20.0",
        {0: 0.02, 19.9: 0.02, 20: 0.002, 39.9: 0.002, 40: 0.0002},
    ),
    "tsm/tsm_ucf101_videos": (
        "epochs=25 MODEL.head.drop_ratio=0.8 MODEL.head.num_classes=101 MODEL.backbone.partial_bn=true "
        "DATASET.train.suffix=.avi",
        {0: 0.001, 10: 0.0001, 20: 0.00001},
    ),
    "tsm/tsm_k400_largebatch": (
        "epochs=100 MODEL.head.drop_ratio=0.0 OPTIMIZER.weight_decay.name=L2 "
        "OPTIMIZER.weight_decay.value=1e-4 OPTIMIZER.decay_bn_bias=false",
        {0: 0.0, 2.5: LARGE_RATE / 2, 5: LARGE_RATE, 100: 0.0},
    ),
    "pptsm/v2/pptsm_lcnet_k400_8frames_uniform": (_V2.format(8), _V2_RATES),
    "pptsm/v2/pptsm_lcnet_k400_16frames_uniform": (_V2.format(16), _V2_RATES),
    "slowfast/slowfast_8x8": (
        "epochs=196 DATASET.batch_size=8 DATASET.test.num_ensemble_views=10 OPTIMIZER.use_nesterov=true "
        "PIPELINE.train.transform.0.JitterScale.min_size=256 "
        "PIPELINE.train.transform.0.JitterScale.max_size=320 "
        f"MODEL.backbone.alpha=4 MODEL.backbone.fusion_kernel_sz=7 {_CLIP.format(32, 2)}",
        {0: 0.01, **COSINE},
    ),
    "slowfast/slowfast_4x16": (
        f"MODEL.backbone.alpha=8 MODEL.backbone.fusion_kernel_sz=5 {_CLIP.format(32, 2)}",
        {},
    ),
    "slowfast/slow_8x8": (f"MODEL.backbone.name=ResNetSlow {_CLIP.format(8, 8)}", {}),
    "i3d/i3d_8x8": (f"MODEL.backbone.name=ResNetI3D {_CLIP.format(8, 8)}", {}),
    "i3d/i3d_32x2": (f"MODEL.backbone.name=ResNetI3D {_CLIP.format(32, 2)}", {}),
}


@pytest.mark.smoke
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_the_published_one(name):
    config, curve = curve_of(f"{name}.yaml")
    keys, rates = RECIPES[name]
    assert curve_of(f"{name}.yaml", *keys.split())[0] == config, "it says so already"
    assert {epoch: curve.at(epoch) for epoch in rates} == pytest.approx(rates, abs=1e-9)


def test_variants_inherit_the_rest():
    plain, _ = curve_of("pptsm/pptsm_k400_frames_uniform.yaml")
    dense, curve = curve_of("pptsm/pptsm_k400_frames_dense_r101.yaml")
    assert dense["MODEL"]["head"] == plain["MODEL"]["head"]
    assert dense["MODEL"]["backbone"]["depth"] == 101
    assert dense["PIPELINE"]["train"]["sample"] == {
        **plain["PIPELINE"]["train"]["sample"],
        "dense_sample": True,
    }
    assert curve.at(10) == pytest.approx(0.02 * (1 + math.cos(math.pi / 10)) / 2)


def test_the_names_that_paddlevideo_has_mean_its_networks():
    """Its slowfast.yaml is 4×16, its slowfast_multigrid.yaml 8×8: the weights it publishes fit these."""
    config, _ = curve_of("slowfast/slowfast.yaml")
    assert config == curve_of("slowfast/slowfast_4x16.yaml")[0]
    grid, _ = curve_of("slowfast/slowfast_multigrid.yaml")
    model = curve_of("slowfast/slowfast_8x8.yaml")[0]["MODEL"]
    assert grid["MODEL"] == {**model, "head": {**model["head"], "multigrid_short": True}}


@pytest.mark.parametrize(
    ("name", "phases", "rates"),
    [
        ("", [(3, 4, 8, 20, 4), (6, 1, 8, 40, 1), (7, 1, 8, 40, 1)], {1: 0.004, 3: 0.001, 6: 0.0001}),
        ("_28", [(4, 2, 8, 28, 1), (6, 1, 8, 40, 1)], {2: 0.003, 3: 0.003, 4: 0.003, 5: 0.0003}),
        ("_56", [(4, 2, 8, 40, 1), (6, 1, 8, 56, 1)], {2: 0.003, 3: 0.003, 4: 0.003, 5: 0.0003}),
    ],
)
def test_the_quick_multigrid_runs_end_with_plain_training(name, phases, rates):
    plan = plan_run(RunSpec.of(load_config(QUICKSTART / f"slowfast_motion{name}_multigrid.yaml")))
    keys = ("end_epoch", "batch_multiplier", "num_frames", "crop_size", "bn_splits")
    assert [tuple(getattr(phase, key) for key in keys) for phase in plan.phases] == phases
    assert {epoch: plan.curve.at(epoch) for epoch in rates} == pytest.approx(rates)


def test_the_large_batch_recipe_grows_with_the_clips_of_an_update():
    config, curve = curve_of("tsm/tsm_k400_largebatch.yaml")
    factor = RunSpec.of(config).global_batch_size(world_size=1536) / config["OPTIMIZER"]["base_batch_size"]
    assert curve.times(factor).at(50) == pytest.approx(1.92 / 2)
    pipeline = build_pipeline(config["PIPELINE"]["test"])
    assert (pipeline.sample.num_clips, pipeline.crop_size) == (10, 256)


@pytest.mark.parametrize(
    ("name", "world_size", "level", "text"),
    [
        ("tsm_k400_videos", 8, None, ""),
        ("tsm_k400_videos", 4, "INFO", "times 0.5: updates are of 64 clips, and the recipe is for 128"),
        ("tsm_k400_videos", 1, "WARNING", "of 16 clips, and the recipe is for 128; GRADIENT_ACC"),
        ("tsm_k400_videos", 32, "WARNING", "learning rate times 4: updates are of 512 clips"),
        ("slowfast_8x8", 32, "INFO", "learning rate times 4: updates are of 256 clips"),  # it has a warm-up
        ("slowfast_8x8", 1, "WARNING", "of 8 clips, and the recipe is for 64"),
    ],
)
def test_a_batch_far_from_the_recipes_is_said(name, world_size, level, text, caplog):
    spec = RunSpec.of(load_config(name))
    curve = build(LEARNING_RATES, spec.optimizer["learning_rate"])
    factor = spec.global_batch_size(world_size) / spec.optimizer["base_batch_size"]
    with caplog.at_level("INFO"):
        base, batch_size = spec.optimizer["base_batch_size"], spec.data.batch_size * world_size
        wanted = spec.global_batch_size(world_size)
        assert scaled(curve, base, wanted, batch_size, 10**6).at(50) == factor * curve.at(50)
    assert [record.levelname for record in caplog.records] == [level] * bool(level)
    assert text in caplog.text


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_copy_and_what_is_shown_are_the_same_config(path, tmp_path):
    config = load_config(path)
    copied, shown = tmp_path / "copied.yaml", tmp_path / "shown.yaml"
    copy(copy_parser().parse_args([path.stem, str(copied)]))
    shown.write_text(dump(dict(config)), encoding="utf-8")
    for same in (copied, shown):
        assert repr(load_config(same)) == repr(config)  # also in the order of transforms and keys
