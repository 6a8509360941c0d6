"""A config as PaddleVideo's users have it loads as it is, builds, and says what has no effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from paddlevideo_fast.config import PreciseBNSettings, RunSettings, accumulation_of, load_config
from paddlevideo_fast.modeling import build_model
from paddlevideo_fast.solver import build_optimizer

FLAT = Path(__file__).with_name("data_flat.yaml")


@pytest.mark.smoke
def test_it_loads_and_names_what_has_no_effect(warnings):
    config = load_config(FLAT)
    without_effect = [line.split("  ")[1].split(":")[0] for line in warnings]
    assert without_effect == [
        "use_xpu",
        "DATASET.test.test_mode",
        "PIPELINE.train.transform.0.Scale.backend",
        "PIPELINE.train.transform.1.MultiScaleCrop.backend",
        "PIPELINE.train.transform.5.Normalization.tensor_shape",
        "INFERENCE",
    ]
    assert config["OPTIMIZER"]["weight_decay"]["value"] == 1e-4
    assert config["PIPELINE"]["valid"]["decode"] == {"name": "VideoDecoder", "backend": "decord"}
    assert RunSettings.from_config(config).output_dir == "output/ppTSM"
    assert accumulation_of(config) == 4
    precise = PreciseBNSettings.from_config(config)
    assert (precise.preciseBN_interval, precise.num_iters_preciseBN) == (5, 200)


def test_the_saved_form_has_nothing_left_to_warn_about(tmp_path, warnings):
    config = load_config(FLAT)
    config.save(tmp_path / "config.yaml")
    warnings.clear()
    assert load_config(tmp_path / "config.yaml") == config
    assert warnings == []


def test_model_and_optimizer_come_from_it():
    config = load_config(FLAT, ["MODEL.backbone.width=8", "MODEL.head.in_channels=64"])
    model = build_model(config["MODEL"])
    optimizer, curve = build_optimizer(config["OPTIMIZER"], model)
    assert model.num_classes == 101
    assert optimizer.get_lr() == pytest.approx(curve.at(0)) == pytest.approx(0.005)
