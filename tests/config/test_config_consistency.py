"""Sections that do not fit each other: an error where that is certain, else a warning."""

from pathlib import Path

import pytest

from paddlevideo_fast.assembly.checks import check_evaluation
from paddlevideo_fast.assembly.plan import plan_run
from paddlevideo_fast.config import RunSpec, load_config
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.registry import BACKBONES

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
TSM = CONFIGS / "recognition" / "tsm" / "tsm_k400_videos.yaml"
SLOWFAST = CONFIGS / "recognition" / "slowfast" / "slowfast_8x8.yaml"
GRID = CONFIGS / "quickstart" / "slowfast_motion_multigrid.yaml"
ALL = ("train", "valid", "test")


def spec_of(path, *overrides):
    return RunSpec.for_training(load_config(path, overrides))


def problems_of(path, *overrides, splits=ALL):
    with pytest.raises(ConfigError) as caught:
        check_evaluation(spec_of(path, *overrides), *splits)
    return [
        problem.replace(f"{CONFIGS}/", "").replace(f"{CONFIGS.parent}/", "")
        for problem in caught.value.problems
    ]


@pytest.mark.smoke
def test_frames_of_the_sampler_and_of_a_network_that_shifts_them():
    network = "MODEL.backbone.num_seg (_base_/model/tsm_r50.yaml:7) is 8"
    text = f"clips have 16 frames, and {network}; give both the same, as -o num_frames=N does"
    assert problems_of(TSM, "PIPELINE.train.sample.num_seg=16") == [
        f"-o #1  PIPELINE.train.sample.num_seg: {text}"
    ]
    assert problems_of(TSM, "PIPELINE.train.sample.seg_len=2", "PIPELINE.train.sample.select_left=false") == [
        f"_base_/pipeline/tsm_8f.yaml:4  PIPELINE.train.sample.num_seg: {text}"
    ]
    assert problems_of(TSM, "MODEL.backbone.num_seg=4", splits=["train"]) == [
        "_base_/pipeline/tsm_8f.yaml:4  PIPELINE.train.sample.num_seg: clips have 8 frames, and "
        "MODEL.backbone.num_seg (-o #1) is 4; give both the same, as -o num_frames=N does"
    ]


def test_a_default_of_the_network_counts(tmp_path):
    (tmp_path / "mine.yaml").write_text(f"_BASE_: {TSM}\nMODEL: {{backbone: {{name: ResNetTSM}}}}\n")
    config = load_config(tmp_path / "mine.yaml", ["PIPELINE.train.sample.num_seg=16"])
    del config["MODEL"]["backbone"]["num_seg"]
    with pytest.raises(ConfigError, match=r"MODEL\.backbone\.num_seg .* is 8; give both the same"):
        check_evaluation(RunSpec.of(config), "train")


def test_an_evaluation_may_look_at_several_clips(warnings):
    overrides = ["PIPELINE.valid.sample.num_seg=16", "PIPELINE.test.sample={name: Sampler, num_seg: 8, "
                 "seg_len: 1, dense_sample: true, valid_mode: true}"]  # fmt: skip
    spec = spec_of(TSM, *overrides)
    check_evaluation(spec, *ALL)
    (warning,) = warnings
    assert warning.startswith(
        "-o #1  PIPELINE.valid.sample.num_seg: clips have 16 frames, and MODEL.backbone"
    )
    assert warning.endswith("is 8: 2 clips to the network; is that meant?")
    (problem,) = problems_of(TSM, "PIPELINE.test.sample.num_seg=12")
    assert problem.startswith("-o #1  PIPELINE.test.sample.num_seg: clips have 12 frames")


def test_frames_that_a_3d_network_cannot_take():
    assert problems_of(SLOWFAST, "PIPELINE.valid.decode_sampler.num_frames=30") == [
        "-o #1  PIPELINE.valid.decode_sampler.num_frames: clips of 30 frames do not divide into "
        "MODEL.backbone.alpha=4; 28 or 32 do"
    ]


def test_the_alpha_of_pack_output_and_of_the_network():
    index = len(load_config(SLOWFAST)["PIPELINE"]["train"]["transform"]) - 1
    overrides = [f"PIPELINE.train.transform.{index}={{PackOutput: {{alpha: 8}}}}"]
    (problem,) = problems_of(SLOWFAST, *overrides)
    assert problem.startswith(
        f"-o #1  PIPELINE.train.transform.{index}.PackOutput.alpha=8: MODEL.backbone.alpha ("
    )
    assert problem.endswith(") is 4; give both the same")
    check_evaluation(spec_of(SLOWFAST, *overrides, "MODEL.backbone.alpha=8"), *ALL)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ["PIPELINE.valid.transform.1.CenterCrop.target_size=112"],
            [
                "PIPELINE.valid.transform: makes clips of 112 pixels, and PIPELINE.train of 224",
                "PIPELINE.test.transform: makes clips of 224 pixels, and PIPELINE.valid of 112",
            ],
        ),
        (["PIPELINE.test.transform.1.CenterCrop.target_size=256"], []),
        (["epochs=50", "OPTIMIZER.learning_rate=0.1"], []),
    ],
)
def test_sizes_of_the_parts(overrides, expected, warnings):
    check_evaluation(spec_of(TSM, *overrides), *ALL)
    assert [warning.partition("  ")[2].partition("; is that")[0] for warning in warnings] == expected


@pytest.mark.parametrize(
    ("path", "overrides", "expected"),
    [
        (TSM, ["epochs=40"], "has its last value from epoch 40 on, by its boundaries"),
        (TSM, ["epochs=41"], None),
        (SLOWFAST, ["epochs=100"], "ends at epoch 196, its max_epoch"),
        (SLOWFAST, ["epochs=200"], "ends at epoch 196, its max_epoch"),
        (SLOWFAST, ["epochs=200", "OPTIMIZER.learning_rate.max_epoch=200"], None),
    ],
)
def test_epochs_and_the_end_of_the_learning_rate(path, overrides, expected, warnings):
    spec = spec_of(path, *overrides)
    plan_run(spec)
    if expected is None:
        assert warnings == []
        return
    (warning,) = warnings
    assert warning.startswith(f"-o #1  {overrides[0]}: OPTIMIZER.learning_rate (")
    assert warning.endswith(f") {expected}; train --epochs {overrides[0][len('epochs=') :]} stretches it")
    plan_run(spec)
    assert len(warnings) == 1, "it is said once"


def test_a_run_is_checked_before_it_begins():
    with pytest.raises(ConfigError, match="clips have 16 frames"):
        plan_run(spec_of(TSM, "PIPELINE.train.sample.num_seg=16"))
    plan_run(spec_of(TSM, "PIPELINE.valid.sample.num_seg=12", "validate=false"))


def test_problems_of_training_and_validation_are_told_together():
    with pytest.raises(ConfigError) as caught:
        plan_run(spec_of(TSM, "MODEL.backbone.num_seg=16", "MODEL.head.num_seg=16", "validate=true"))
    parts = [problem.partition("  ")[2].partition(":")[0] for problem in caught.value.problems]
    assert sorted({*parts}) == ["PIPELINE.train.sample.num_seg", "PIPELINE.valid.sample.num_seg"]


def test_multigrid_without_a_cycle_is_told(warnings):
    spec = spec_of(GRID, "MULTIGRID={LONG_CYCLE: false}")
    assert len(plan_run(spec).phases) == 1
    (warning,) = warnings
    assert warning.endswith(
        "  multigrid: has no effect: MULTIGRID turns on neither LONG_CYCLE nor SHORT_CYCLE"
    )


def test_lr_scaling_without_the_long_cycle_is_told(warnings):
    plan_run(spec_of(GRID, "multigrid=true", "MULTIGRID.lr_scaling=none"))
    assert warnings == []
    plan_run(spec_of(GRID, "multigrid=true", "MULTIGRID.lr_scaling=none", "MULTIGRID.LONG_CYCLE=false"))
    (warning,) = warnings
    assert "  MULTIGRID.lr_scaling: has no effect without LONG_CYCLE" in warning


def test_a_short_cycle_that_leaves_no_epoch():
    overrides = ["multigrid=true", "MULTIGRID.LONG_CYCLE=false", "MULTIGRID.SHORT_CYCLE=true"]
    with pytest.raises(ConfigError) as caught:
        plan_run(spec_of(GRID, *overrides, "MULTIGRID.epoch_factor=0.1"))
    (problem,) = caught.value.problems
    assert problem.startswith(f"{GRID}:")
    assert problem.endswith("  MULTIGRID: epoch_factor 0.1 leaves none of the 7 epochs; raise it")


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (
            ["SELECTION={patience: 3}", "validate=false"],
            "-o #1  SELECTION: compares validations, and this run has none: it needs DATASET.valid and "
            "validate",
        ),
        (
            ["SELECTION={metric: mean_clas_acc}", "validate=true"],
            "-o #1  SELECTION.metric=mean_clas_acc: validation gives no such value; did you mean "
            "'mean_class_acc'? Known: loss, mean_class_acc, top1, top5",
        ),
    ],
)
def test_a_selection_that_nothing_decides(overrides, problem):
    with pytest.raises(ConfigError) as caught:
        plan_run(spec_of(TSM, *overrides))
    assert caught.value.problems == [problem]


def test_a_least_improvement_without_patience_has_no_effect(logged):
    plan_run(spec_of(TSM, "SELECTION={metric: loss, min_delta: 0.1}", "validate=true"))
    (text,) = [text for text in logged if "SELECTION" in text]
    assert text.endswith("SELECTION.min_delta: has no effect without SELECTION.patience")


def test_several_clips_of_a_video_that_do_not_fit():
    key = "DATASET.train.clips_per_video"
    assert problems_of(TSM, f"{key}=3", "DATASET.batch_size=8", "epochs=2") == [
        f"-o #2  DATASET.batch_size=8: no multiple of {key} (-o #1)=3: a batch holds all clips of a video",
        f"-o #3  epochs=2: {key} (-o #1) is 3: only as many epochs together read every video",
    ]
    assert problems_of(TSM, "DATASET.valid.clips_per_video=4") == [
        "-o #1  DATASET.valid.clips_per_video=4: is for training; an evaluation sees several clips of a "
        "video with num_ensemble_views"
    ]
    with pytest.raises(ConfigError, match=r"-o #1  DATASET\.train\.clips_per_video"):
        load_config(TSM, [f"{key}=0"])


@pytest.mark.parametrize(
    ("num_clips", "override", "expected"),
    [
        (2, "epochs=50", []),
        (
            4,
            "epochs=50",
            ["-o #2  epochs=50: no multiple of DATASET.train.clips_per_video (-o #1)=4: the last"],
        ),
        (
            2,
            "PIPELINE.train.sample.linspace_sample=true",
            ["-o #1  DATASET.train.clips_per_video: 2, and the sampler draws nothing: all clips of a video"],
        ),
    ],
)
def test_several_clips_of_a_video_that_may_be_a_slip(num_clips, override, expected, logged):
    spec = spec_of(TSM, f"DATASET.train.clips_per_video={num_clips}", override)
    logged.clear()
    check_evaluation(spec, "train")
    assert len(logged) == len(expected)
    assert all(text.startswith(start) for text, start in zip(logged, expected))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        pytest.param(
            "to_static=true",
            "a static graph keeps what is frozen; take to_static out",
            marks=pytest.mark.annex,
        ),
        ("OPTIMIZER.use_multi_tensor=true", "keeps those of the first step; take use_multi_tensor out"),
        ("DISTRIBUTED={sharding_degree: 2}", "before the first step; take sharding_degree out"),
    ],
)
def test_parts_that_train_later_beside_what_is_settled_at_the_first_step(override, message):
    with pytest.raises(ConfigError) as error:
        plan_run(spec_of(TSM, "FINETUNE={freeze: [stem], unfreeze_at: 3}", override))
    (problem,) = error.value.problems
    assert problem.startswith("-o #1  FINETUNE.unfreeze_at: ")
    assert problem.endswith(message)
    plan_run(spec_of(TSM, "FINETUNE={freeze: [stem]}", override))


def test_a_mix_of_batches_of_one_clip_has_no_effect(logged):
    spec = spec_of(TSM, "MIX={name: VideoMix}", "DATASET.batch_size=1")
    logged.clear()
    check_evaluation(spec, "train")
    (told,) = logged
    assert told.startswith("-o #1  MIX: has no effect on batches of one clip (DATASET.batch_size (-o #2))")


def test_multigrid_is_not_for_backbones_that_declare_one_size(monkeypatch):
    spec = spec_of(CONFIGS / "recognition" / "slowfast" / "slowfast_multigrid.yaml", "multigrid=true")
    assert len(plan_run(spec).phases) > 1
    monkeypatch.setattr(BACKBONES.get("ResNetSlowFast"), "takes_multigrid", False)
    text = "MODEL.backbone.name: ResNetSlowFast takes clips of one size; leave multigrid out"
    with pytest.raises(ConfigError, match=text):
        plan_run(spec)
