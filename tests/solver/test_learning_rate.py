"""Curves against the schedulers that they stand for, step by step."""

from __future__ import annotations

import math

import paddle
import pytest

from paddlevideo_fast.config.build import build
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.registry import LEARNING_RATES


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


def test_a_curve_of_whole_epochs_waits_for_the_next():
    arguments = {"max_epoch": 4, "warmup_epochs": 2, "warmup_start_lr": 0.0, "cosine_base_lr": 1.0}
    stepped = curve("CustomWarmupCosineDecay", iter_step=False, **arguments)
    smooth = curve("CustomWarmupCosineDecay", **arguments)
    assert stepped.at(1.99) == stepped.at(1.0) == smooth.at(1.0) < smooth.at(1.5)


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "PiecewiseDecay", "boundaries": [1, 2], "values": [1, 2]}, "need 3 values"),
        ({"name": "PiecewiseDecay", "boundaries": [2, 2], "values": [1, 2, 3]}, "must rise"),
        ({"name": "CosineAnnealingDecay", "learning_rate": 1, "T_max": 3, "warmup_epochs": 4}, "T_max=3"),
        (
            {
                "name": "CustomWarmupPiecewiseDecay", "warmup_start_lr": 0, "warmup_epochs": 0, "gamma": 1,
                "step_base_lr": 1, "lrs": [1], "steps": [0, 3], "max_epoch": 5,
            },
            "a factor each",
        ),
    ],
)  # fmt: skip
def test_curves_that_make_no_sense_are_refused(arguments, words):
    with pytest.raises(ConfigError, match=words):
        build(LEARNING_RATES, arguments)
