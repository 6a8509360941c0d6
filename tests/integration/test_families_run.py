"""A run of each newer family of networks goes on inside its second epoch as if nothing had been."""

import pytest
import yaml

from tests.support.launching import ROOT, overriding

TIMESFORMER = {
    "MODEL": {
        "backbone": {"name": "VisionTransformer", "img_size": 28, "patch_size": 14, "embed_dim": 8,
                     "depth": 2, "num_heads": 2, "num_seg": 8, "drop_path_rate": 0.2},
        "head": {"name": "TimeSformerHead", "num_classes": 6, "in_channels": 8},
    },
}  # fmt: skip
MULTIGRID = {
    "multigrid": True,
    "OPTIMIZER": {
        "learning_rate": {
            "name": "CustomWarmupPiecewiseDecay",
            "warmup_epochs": 1,
            "warmup_start_lr": 0.0005,
            "step_base_lr": 0.004,
            "lrs": [1, 0.1],
            "gamma": 0.1,
            "steps": [0, 3],
        }
    },
    "MULTIGRID": {
        "LONG_CYCLE": True,
        "SHORT_CYCLE": True,
        "epoch_factor": 1,
        "bn_base_size": 1,
        "long_cycle_factors": [[0.5, 0.7071], [1, 1]],
        "short_cycle_factors": [0.5, 0.7071],
    },
}
SMALLER = {"MODEL": {"backbone": {"embed_dim": 16, "drop_path_rate": 0.2}}}
FAMILIES = {
    "timesformer": ("vit_motion", TIMESFORMER),
    "swin": ("swin_motion", {"MODEL": {**SMALLER["MODEL"], "head": {"in_channels": 32}}}),
    "mvit": ("mvit_motion", {"MODEL": {**SMALLER["MODEL"], "head": {"in_channels": 32}}}),
    "r2plus1d": (
        "x3d_motion",
        {
            "MODEL": {
                "backbone": {"name": "ResNetR2Plus1D", "width": 8, "stage_blocks": [1, 1, 1, 1]},
                "head": {"name": "I3DHead", "num_classes": 6, "in_channels": 64},
            }
        },
    ),
    "x3d in multigrid": ("x3d_motion", MULTIGRID),
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_resumed_run_is_the_same_run(family, motion_data, tmp_path, run_main, assert_resumes):
    base, changes = FAMILIES[family]
    epochs, batch_size = (4, 1) if "MULTIGRID" in changes else (2, 4)
    config = {"_BASE_": str(ROOT / "configs" / "quickstart" / f"{base}.yaml"), **changes}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(config))
    settings = {
        "epochs": epochs,
        "OPTIMIZER.learning_rate.max_epoch": epochs,
        "DATASET.batch_size": batch_size,
        "DATASET.num_workers": 0,
        "log_interval": 1,
        "save_every_steps": 5,
    }
    settings.update(report=False, use_visualdl=False, validate=False, model_name="tiny")
    for part in ("train", "valid"):
        settings[f"DATASET.{part}.data_prefix"] = motion_data
        settings[f"DATASET.{part}.file_path"] = motion_data / f"{part}.list"
    arguments = tmp_path / "tiny.yaml", *overriding(*(f"{key}={value}" for key, value in settings.items()))
    run_main(*arguments, *overriding(f"output_dir={tmp_path / 'out'}"))
    assert_resumes(tmp_path / "out", "tiny_step_00000010", *arguments)
