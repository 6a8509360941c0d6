"""What the plan says against a schedule is so."""

from pathlib import Path

import pytest

from paddlevideo_fast.apps.doctor.multigrid import PlanOptions, ShapeCosts, make_plan, report
from paddlevideo_fast.config import Config, load_config

ROOT = Path(__file__).parents[3]
QUICKSTART = ROOT / "configs/quickstart"
NARROW = QUICKSTART / "slowfast_motion_multigrid.yaml"  # 8×40², down to 20 pixels
WIDE = QUICKSTART / "slowfast_motion_56_multigrid.yaml"  # 8×56² and 40 pixels
FINE = QUICKSTART / "slowfast_motion_28_multigrid.yaml"  # 8×40² and 28 pixels, without the last stride
OPTIONS = PlanOptions(num_clips=3000, num_steps=1, limit_sec=float("inf"))  # a slow machine prices them too


@pytest.fixture
def judged(monkeypatch):
    """`judged(path, overrides, dear=…, a_split=…)`: the plan of a config and what is said of it.

    The network is real; its steps take a nanosecond a value, and `dear` says which sides take longer.
    """

    def judge(path, *overrides, options=OPTIONS, dear=None, a_split=0.0):
        def step_sec(costs, batch_size, num_frames, crop_size, bn_splits):
            factor = (dear or {}).get(crop_size, 1.0) + a_split * (bn_splits - 1)
            return 1e-9 * batch_size * num_frames * crop_size**2 * factor

        monkeypatch.setattr(ShapeCosts, "step_sec", step_sec)
        cfg = path if isinstance(path, Config) else load_config(str(path), ["multigrid=true", *overrides])
        return make_plan(cfg, options)

    return judge


@pytest.mark.parametrize(("path", "small", "full"), [(WIDE, 40, 56), (FINE, 28, 40)])
def test_nothing_speaks_against_the_settings_that_were_seen_to_pay(judged, path, small, full):
    plan = judged(path)
    assert (plan["pays"], plan["reasons"]) == (True, [])
    steps = 4 * 46 * 64 * small**2 + 2 * 93 * 32 * full**2
    assert plan["speed_up"] == pytest.approx(8 * 93 * 32 * full**2 / steps)
    last = report(plan).splitlines()[-1]
    assert last.startswith("it must deliver up to 2.0 times")  # the share of the pixels


def test_with_the_last_stride_the_map_has_one_value(judged):
    (reason,) = judged(FINE, "MODEL.backbone.spatial_strides=[1, 2, 2, 2]")["reasons"]
    assert reason.startswith("at crops of 28 pixels the last feature maps have one value")


def test_what_speaks_against_the_setting_that_was_seen_to_lose(judged):
    plan = judged(NARROW, dear={20: 1.2}, a_split=0.1)
    assert plan["pays"]
    dear, maps, rate = plan["reasons"]
    assert dear.startswith("32 clips of 8×20² cost 1.50 of the plain ")
    assert maps.startswith("at crops of 20 and 28 pixels the last feature maps have one value")
    assert maps.endswith("see MODEL.backbone.spatial_strides")
    assert rate.startswith("AdamW wants nearly the same learning rate")
    assert "by up to 4," in rate
    assert all(f"- {reason}" in report(plan) for reason in plan["reasons"])


def test_a_schedule_that_gains_nothing_does_not_pay(judged):
    plan = judged(WIDE, "MULTIGRID.epoch_factor=1", dear={40: 2.5, 47: 2.5})
    assert plan["speed_up"] < 1.1
    assert plan["pays"] is False
    assert plan["reasons"] == ["64 clips of 8×40² cost 2.50 of the plain step's time a pixel"]
    assert "Multigrid does not pay here" in report(plan)


def test_a_gain_of_fewer_clips_is_told(judged):
    plan = judged(WIDE, dear={40: 2.0, 47: 2.0})
    assert plan["speed_up"] == pytest.approx(8 / 6, rel=0.02)  # six epochs in place of eight
    assert not plan["pays"]
    reason = "the gain comes from fewer clips: plain training with 0.74 of its epochs gains as much"
    assert plan["reasons"][0] == reason


def test_without_times_only_shapes_and_rates_are_judged(judged):
    plan = judged(NARROW, options=PlanOptions(num_clips=3000, num_steps=0))
    assert (plan["pays"], len(plan["reasons"])) == (None, 2)
    assert "pay" not in report(plan)


def test_advice_of_a_config_without_origins(judged):
    """The doctor plans configs that it makes itself."""
    made = {"multigrid": True, "MULTIGRID": {"SHORT_CYCLE": True, "short_cycle_factors": [0.7071]}}
    assert judged(Config({**load_config(str(WIDE)), **made}))["pays"]
