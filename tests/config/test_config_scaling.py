"""--epochs and --batch_size: the learning rate follows; what an override says stays."""

import pytest

from paddlevideo_fast.cli import train
from paddlevideo_fast.config import build, load_config
from paddlevideo_fast.config.builtin import built_in_configs
from paddlevideo_fast.config.scaling import scaled
from paddlevideo_fast.registry import LEARNING_RATES

CURVES = [
    (
        "CustomWarmupCosineDecay",
        {"max_epoch": 100, "warmup_epochs": 10},
        5,
        {"max_epoch": 5, "warmup_epochs": 0.5},
    ),
    ("CosineAnnealingDecay", {"T_max": 50}, 20, {"T_max": 10.0}),  # ended before the run, and still does
    (
        "CustomWarmupPiecewiseDecay",
        {"steps": [0, 40, 80], "max_epoch": 100},
        50,
        {"steps": [0, 20, 40], "max_epoch": 50},
    ),
    # they rise, and none is before training
    ("PiecewiseDecay", {"boundaries": [40, 80]}, 1, {"boundaries": [1, 2]}),
    ("MultiStepDecay", {"milestones": [40, 80]}, 200, {"milestones": [80, 160]}),
    (
        "CustomWarmupCosineStepDecay",
        {"max_epoch": 100, "warmup_iters": 2.5},
        200,
        {"max_epoch": 200, "warmup_iters": 5.0},
    ),
    ("CustomWarmupCosineStepDecay", {}, 200, {"max_epoch": 60.0}),  # of 30, its default
    ("CosineAnnealingDecay", {"learning_rate": 0.1, "warmup_epochs": 0}, 5, {}),
    ("CosineAnnealingDecay", {"T_max": "all"}, 5, {}),  # the check of the config says what is wrong
]


@pytest.mark.parametrize(("name", "rate", "epochs", "expected"), CURVES)
def test_a_curve_is_stretched(name, rate, epochs, expected):
    assert LEARNING_RATES.get(name).stretched(rate, 100, epochs) == expected


@pytest.mark.annex
@pytest.mark.parametrize("name", built_in_configs())
def test_each_shipped_curve_still_fits_its_epochs(name):
    before = load_config(name)
    epochs = -(-before["epochs"] // 2)
    after = load_config(name, scaled(before, epochs, None)[0])
    curves = [each["OPTIMIZER"]["learning_rate"] for each in (before, after)]
    if isinstance(curves[0], dict):
        fits = [build(LEARNING_RATES, curve).misfit for curve in curves]
        assert fits[0](before["epochs"]) or not fits[1](epochs)


def given(*words):
    args = train.build_parser().parse_args(["tsm_motion", *words])
    overrides, told = train.overrides_of(args)
    config = load_config(args.config, overrides, check=False)
    return config, config["OPTIMIZER"], told


def test_the_flags_and_what_they_say():
    config, optimizer, told = given("--epochs", "2", "--batch-size", "4")
    assert (config["epochs"], config["DATASET"]["batch_size"], optimizer["base_batch_size"]) == (2, 4, 8)
    assert optimizer["learning_rate"].items() >= {"max_epoch": 2, "warmup_epochs": 0.1}.items()
    assert told == (
        "--epochs 2, and 4 in the config; learning rate: max_epoch 2, warmup_epochs 0.1; --batch_size 4, and "
        "8 in the config; the learning rate is for updates of 8 clips and follows their number"
    )
    assert given()[::2] == (load_config("tsm_motion", check=False), "")


def test_overrides_are_literal(monkeypatch):
    key = "OPTIMIZER.learning_rate.max_epoch"
    assert given("--epochs=2", "-o", f"{key}=3")[1]["learning_rate"]["max_epoch"] == 3
    assert given("-o", "epochs=2")[1]["learning_rate"]["max_epoch"] == 4
    assert given("--batch_size=4", "-o", "OPTIMIZER.base_batch_size=64")[1]["base_batch_size"] == 64
    accumulated = "GRADIENT_ACCUMULATION={global_batch_size: 64}"
    assert "base_batch_size" not in given("--batch_size=4", "-o", accumulated)[1]
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "2")  # the rate was for the clips of both processes
    assert given("--batch_size=4")[1]["base_batch_size"] == 16
