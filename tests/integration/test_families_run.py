"""A run of a network that drops paths at random goes on inside its second epoch as if nothing had been."""

import pytest
import yaml

from tests.support.launching import ROOT, overriding


@pytest.mark.slow
@pytest.mark.parametrize("family", ["swin", "mvit"])
def test_a_resumed_run_is_the_same_run(family, motion_data, tmp_path, run_main, assert_resumes):
    config = {
        "_BASE_": str(ROOT / "configs" / "quickstart" / f"{family}_motion.yaml"),
        "MODEL": {"backbone": {"embed_dim": 16, "drop_path_rate": 0.2}, "head": {"in_channels": 32}},
    }
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(config))
    settings = {
        "epochs": 2,
        "OPTIMIZER.learning_rate.max_epoch": 2,
        "DATASET.batch_size": 4,
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
