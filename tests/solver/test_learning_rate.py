"""Curves against the schedulers that they stand for, step by step."""

import json
import math
from pathlib import Path

import numpy as np
import paddle
import pytest

from paddlevideo_fast.config import build
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.registry import LEARNING_RATES
from paddlevideo_fast.schedule import RateStep

PADDLEVIDEO = Path(__file__).parents[1] / "reference" / "paddlevideo_learning_rates.json"


_STEPS = {
    "name": "CustomWarmupPiecewiseDecay", "warmup_start_lr": 0, "warmup_epochs": 0, "gamma": 1,
    "step_base_lr": 1, "lrs": [1, 0.1], "steps": [0, 3], "max_epoch": 5,
}  # fmt: skip


def curve(name, **arguments):
    return build(LEARNING_RATES, {"name": name, **arguments})


@pytest.mark.smoke
def test_piecewise_is_paddles():
    ours = curve("PiecewiseDecay", boundaries=[2, 5], values=[0.1, 0.01, 0.001])
    theirs = paddle.optimizer.lr.PiecewiseDecay([2, 5], [0.1, 0.01, 0.001])
    for epoch in range(8):
        for share in (0.0, 0.3, 0.99):
            assert ours.at(epoch + share) == theirs()
        theirs.step()


def test_cosine_is_paddles():
    ours = curve("CosineAnnealingDecay", learning_rate=0.2, T_max=9, eta_min=0.01)
    theirs = paddle.optimizer.lr.CosineAnnealingDecay(0.2, 9, 0.01)
    for epoch in range(10):
        assert ours.at(epoch + 0.5) == pytest.approx(theirs(), rel=1e-6)
        theirs.step()
    assert ours.at(12) == pytest.approx(0.01)


def test_cosine_with_warm_up_meets_the_cosine():
    arguments = {"learning_rate": 0.2, "T_max": 10, "iter_step": True}
    plain = curve("CosineAnnealingDecay", **arguments)
    warm = curve("CosineAnnealingDecay", warmup_epochs=2, warmup_start_lr=0.02, **arguments)
    assert warm.at(0) == pytest.approx(0.02)
    assert warm.at(1) == pytest.approx((0.02 + plain.at(2)) / 2)
    assert warm.at(2 - 1e-9) == pytest.approx(warm.at(2))
    assert [warm.at(e) for e in (2, 3.3, 10)] == [plain.at(e) for e in (2, 3.3, 10)]


def test_a_cosine_after_the_warm_up_is_the_one_of_mvitv2_and_videomae():
    """By the formulas of PySlowFast (COSINE_AFTER_WARMUP) and of VideoMAE's `cosine_scheduler`."""
    start, peak, end, warmup, epochs = 1e-6, 1e-4, 1e-6, 30, 200
    ours = curve(
        "CosineAnnealingDecay",
        learning_rate=peak, T_max=epochs, eta_min=end, warmup_epochs=warmup, warmup_start_lr=start,
        cosine_after_warmup=True, iter_step=True,
    )  # fmt: skip
    for epoch in (0.0, 7.5, 29.99, 30.0, 80.25, 115.0, 199.5, 200.0):
        expected = start + (peak - start) * epoch / warmup
        if epoch >= warmup:
            share = (epoch - warmup) / (epochs - warmup)
            expected = end + (peak - end) * (math.cos(math.pi * share) + 1) * 0.5
        assert ours.at(epoch) == pytest.approx(expected, rel=1e-12)


@pytest.mark.smoke
def test_warm_up_and_cosine_of_pptsm():
    ours = curve(
        "CustomWarmupCosineDecay",
        iter_step=True, max_epoch=80, warmup_epochs=10, warmup_start_lr=0.005, cosine_base_lr=0.01,
    )  # fmt: skip

    def expected(epoch):
        if epoch < 10:
            end = 0.005 * (math.cos(math.pi * 10 / 80) + 1)
            return 0.005 + (end - 0.005) / 10 * epoch
        return 0.005 * (math.cos(math.pi * epoch / 80) + 1)

    for step in range(0, 8000, 37):
        assert ours.at(step / 100) == pytest.approx(expected(step / 100), rel=1e-12)


def test_warm_up_and_steps_of_slowfast_multigrid():
    ours = curve(
        "CustomWarmupPiecewiseDecay",
        iter_step=True, warmup_epochs=34, warmup_start_lr=0.01, step_base_lr=0.1,
        lrs=[1, 0.1, 0.01, 0.001, 0.0001, 0.00001], gamma=0.1, steps=[0, 94, 154, 196], max_epoch=239,
    )  # fmt: skip
    corners = {0: 0.01, 17: 0.055, 34: 0.1, 93.99: 0.1, 94: 0.01, 153.5: 0.01, 154: 0.001, 196: 0.0001}
    for epoch, expected in {**corners, 238.9: 0.0001}.items():
        assert ours.at(epoch) == pytest.approx(expected)


def test_the_steps_of_a_schedule_keep_the_rates_and_the_warm_up():
    plain = curve(
        "CustomWarmupPiecewiseDecay",
        warmup_epochs=2, warmup_start_lr=0.01, step_base_lr=0.1, lrs=[1, 0.1], gamma=0.1, steps=[0, 6],
        max_epoch=8,
    )  # fmt: skip
    rate_steps = [RateStep(0, 0, 4), RateStep(3, 0, 1), RateStep(7, 1, 2)]
    ours = plain.along(rate_steps, 9)
    corners = {0: 0.01, 1: (0.01 + 0.4) / 2, 2: 0.4, 2.9: 0.4, 3: 0.1, 6.9: 0.1, 7: 0.02, 8.9: 0.02}
    assert {epoch: ours.at(epoch) for epoch in corners} == pytest.approx(corners)
    with pytest.raises(ConfigError, match="max_epoch=1"):
        plain.along(rate_steps[:1], 1)


@pytest.mark.parametrize("row", json.loads(PADDLEVIDEO.read_text()), ids=lambda row: row["name"])
def test_the_rates_are_paddlevideos(row):
    """The file has the rate of each step, from PaddleVideo's schedulers at a few steps an epoch."""
    ours = curve(row["name"], **row["arguments"])
    steps = row["steps_per_epoch"]
    rates = [ours.at(step // steps + step % steps / steps) for step in range(len(row["rates"]))]
    assert rates == pytest.approx(row["rates"], rel=1e-9)


@pytest.mark.parametrize(
    "section",
    [
        {"name": "Constant", "learning_rate": 0.4},
        {"name": "MultiStepDecay", "learning_rate": 0.4, "milestones": [1, 3]},
        {"name": "CosineAnnealingDecay", "learning_rate": 0.4, "T_max": 4, "iter_step": True},
        {**_STEPS, "step_base_lr": 0.4, "steps": [0, 2], "max_epoch": 4},
    ],
    ids=lambda section: section["name"],
)
def test_a_warm_up_by_steps_is_a_factor_on_the_curve(section):
    plain = build(LEARNING_RATES, section)
    warm = build(LEARNING_RATES, {**section, "warmup_steps": 8, "warmup_factor": 0.2})
    assert [warm.warm_up(step) for step in range(10)] == pytest.approx(
        [0.2 + 0.1 * step for step in range(8)] + [1.0, 1.0]
    )
    assert plain.warm_up(0) == 1.0
    assert [warm.at(epoch / 5) for epoch in range(20)] == [plain.at(epoch / 5) for epoch in range(20)]
    assert warm.times(3.0).warm_up(1) == warm.warm_up(1)
    if hasattr(warm, "along"):
        steps = [RateStep(0, 0, 1), RateStep(2, 1, 1)]
        assert warm.along(steps, 4).warm_up(1) == warm.warm_up(1)


def test_a_curve_of_whole_epochs_waits_for_the_next():
    arguments = {"max_epoch": 4, "warmup_epochs": 1, "warmup_start_lr": 0.0, "cosine_base_lr": 1.0}
    stepped = curve("CustomWarmupCosineDecay", iter_step=False, **arguments)
    smooth = curve("CustomWarmupCosineDecay", **arguments)
    assert stepped.at(2.99) == stepped.at(2.0) == smooth.at(2.0) > smooth.at(2.5)


_WARM_UPS = [
    {"name": "CosineAnnealingDecay", "learning_rate": 0.4, "T_max": 4},
    {"name": "CosineAnnealingDecay", "learning_rate": 0.4, "T_max": 4, "cosine_after_warmup": True},
    {"name": "CustomWarmupCosineDecay", "warmup_start_lr": 0.0, "cosine_base_lr": 0.4, "max_epoch": 4},
    {
        "name": "CustomWarmupPiecewiseDecay",
        "warmup_start_lr": 0.0,
        "step_base_lr": 0.4,
        "lrs": [1.0, 0.1],
        "gamma": 0.1,
        "steps": [0, 3],
        "max_epoch": 4,
    },
    {"name": "CustomWarmupCosineStepDecay", "warmup_ratio": 0.0, "base_lr": 0.4, "max_epoch": 4},
]


@pytest.mark.parametrize("section", _WARM_UPS)
@pytest.mark.parametrize("warmup_epochs", [0.5, 1.0, 2.0, 2.5])
def test_a_warm_up_rises_at_each_step_whatever_iter_step_says(section, warmup_epochs):
    key = "warmup_iters" if "StepDecay" in section["name"] else "warmup_epochs"
    warm = build(LEARNING_RATES, {**section, key: warmup_epochs, "iter_step": False})
    rates = [warm.at(warmup_epochs * part / 8) for part in range(9)]
    assert rates[0] == 0
    if key == "warmup_epochs":
        np.testing.assert_allclose(np.diff(rates), rates[-1] / 8, rtol=1e-12)
    assert rates[-1] > 0.1
    assert min(rates[1:]) > 0  # the first epoch trains
    later = [warm.at(epoch) for epoch in (3.0, 3.3, 3.99)]
    assert len(set(later)) == 1  # the curve itself changes at whole epochs


@pytest.mark.parametrize("warmup_epochs", [0, 5])
def test_a_warm_up_may_be_none_or_all_of_the_run(warmup_epochs):
    ours = build(LEARNING_RATES, {**_STEPS, "warmup_epochs": warmup_epochs})
    assert ours.at(5) == pytest.approx(0.1)
    assert ours.at(4) == pytest.approx(0.8 * 0.1 if warmup_epochs else 0.1)


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "PiecewiseDecay", "boundaries": [1, 2], "values": [1, 2]}, "need 3 values"),
        ({"name": "PiecewiseDecay", "boundaries": [2, 2], "values": [1, 2, 3]}, "must rise"),
        (
            {"name": "CosineAnnealingDecay", "learning_rate": 1, "T_max": 3, "cosine_after_warmup": True},
            "cosine_after_warmup: needs warmup_epochs",
        ),
        ({**_STEPS, "lrs": [1]}, "a factor each"),
        ({**_STEPS, "steps": []}, "a factor each"),
        ({**_STEPS, "steps": [1, 3]}, "must start with 0"),
        ({**_STEPS, "steps": [0, 3, 2], "lrs": [1, 1, 1]}, "steps.*must rise"),
        ({**_STEPS, "warmup_epochs": -1}, "warmup_epochs"),
        ({**_STEPS, "warmup_epochs": 1, "warmup_steps": 9}, "give one of the two"),
        ({"name": "MultiStepDecay", "learning_rate": 1, "milestones": [3, 2]}, "milestones.*must rise"),
        ({"name": "CustomWarmupCosineStepDecay", "warmup_iters": 31}, "warmup_iters=31.*max_epoch=30"),
    ],
)  # fmt: skip
def test_curves_that_make_no_sense_are_refused(arguments, words):
    with pytest.raises(ConfigError, match=words):
        build(LEARNING_RATES, arguments)


@pytest.mark.parametrize(
    ("warmup_epochs", "num_epochs", "fits"),
    [(0, 5, True), (5, 5, True), (4.5, 5, True), (5.1, 5, False), (0, 0, False), (0, -1, False)],
)
@pytest.mark.parametrize(
    ("name", "end", "arguments"),
    [
        ("CosineAnnealingDecay", "T_max", {"learning_rate": 1.0}),
        ("CustomWarmupCosineDecay", "max_epoch", {"cosine_base_lr": 1.0, "warmup_start_lr": 0.0}),
        ("CustomWarmupPiecewiseDecay", "max_epoch", {**_STEPS, "lrs": [1], "steps": [0]}),
    ],
)
def test_a_warm_up_may_last_as_long_as_the_curve(name, end, arguments, warmup_epochs, num_epochs, fits):
    arguments = {**arguments, "name": name, "warmup_epochs": warmup_epochs, end: num_epochs}
    if fits:
        assert build(LEARNING_RATES, arguments).at(num_epochs) >= 0
        return
    with pytest.raises(ConfigError, match=rf"must lie between 0 and {end}={num_epochs}"):
        build(LEARNING_RATES, arguments)


@pytest.mark.parametrize("lrs", [[1, 0.1], [1, 0.1, 0.01]])
def test_more_factors_than_steps_are_no_problem(lrs):
    steps = curve(**{**_STEPS, "lrs": lrs})
    assert [steps.at(epoch) for epoch in (0, 2.9, 3, 5)] == [1.0, 1.0, 0.1, 0.1]
