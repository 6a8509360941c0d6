"""What the plan says against a schedule is so, its proposals keep their promise, runs teach the time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paddlevideo_fast.config import Config, RunSpec, load_config
from paddlevideo_fast.doctor.multigrid import PlanOptions, make_plan
from paddlevideo_fast.doctor.multigrid_advice import Learned, advise, report, time_to_accuracy
from paddlevideo_fast.doctor.shape_cost import ShapeCosts
from paddlevideo_fast.errors import ConfigError

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "configs/quickstart"
NARROW = QUICKSTART / "slowfast_motion_multigrid.yaml"  # 8×40², down to 20 pixels
WIDE = QUICKSTART / "slowfast_motion_56_multigrid.yaml"  # 8×56² and 40 pixels
FINE = QUICKSTART / "slowfast_motion_28_multigrid.yaml"  # 8×40² and 28 pixels, without the last stride
OPTIONS = PlanOptions(num_clips=3000, num_steps=1, limit_sec=float("inf"))  # a slow machine prices them too


class ByPixels(ShapeCosts):
    """The real network, with steps that take a nanosecond a value; `dear` says which sides take longer."""

    def __init__(self, cfg, dear=None, a_split=0.0):
        super().__init__(RunSpec.of(cfg), num_steps=1)
        self.dear, self.a_split = dear or {}, a_split

    def step_sec(self, batch_size, num_frames, crop_size, bn_splits):
        factor = self.dear.get(crop_size, 1.0) + self.a_split * (bn_splits - 1)
        return 1e-9 * batch_size * num_frames * crop_size**2 * factor


@pytest.fixture
def judged():
    """`judged(path, overrides, dear=…, a_split=…)`: the plan of a config and what is said of it."""

    def judge(path, *overrides, options=OPTIONS, **prices):
        cfg = load_config(str(path), ["multigrid=true", *overrides])
        costs = ByPixels(cfg, **prices)
        plan = make_plan(cfg, options, costs=costs)
        return {**plan, **advise(cfg, options, plan, costs)}

    return judge


@pytest.mark.parametrize(("path", "small", "full"), [(WIDE, 40, 56), (FINE, 28, 40)])
def test_nothing_speaks_against_the_settings_that_were_seen_to_pay(judged, path, small, full):
    plan = judged(path)
    assert (plan["pays"], plan["reasons"], plan["proposals"]) == (True, [], [])
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
    assert dear.startswith(
        "32 clips of 8×20² cost 1.50 (1.20 without the 4 splits of batch norm) of the plain "
    )
    assert maps.startswith("at crops of 20 and 28 pixels the last feature maps have one value")
    assert maps.endswith("see MODEL.backbone.spatial_strides")
    assert rate.startswith("AdamW wants nearly the same learning rate")
    assert "by up to 4," in rate
    assert all(f"- {reason}" in report(plan) for reason in plan["reasons"])


@pytest.mark.parametrize("dear", [{}, {40: 2.2}])
def test_proposals_are_sound_and_as_fast_as_promised(judged, dear):
    given = () if not dear else ("MULTIGRID.long_cycle_factors=[[0.5, 1], [1, 0.7071]]",)
    path = NARROW if not dear else WIDE
    proposals = judged(path, *given, dear=dear)["proposals"]
    assert proposals
    gains = [proposal["speed_up"] for proposal in proposals]
    assert gains == sorted(gains, reverse=True)
    for proposal in proposals:
        plan = judged(path, *given, *proposal["overrides"], dear=dear)
        assert (plan["pays"], plan["reasons"]) == (True, [])
        assert plan["speed_up"] == pytest.approx(proposal["speed_up"])


def test_a_schedule_that_gains_nothing_does_not_pay(judged):
    plan = judged(WIDE, "MULTIGRID.epoch_factor=1", dear={40: 2.5, 47: 2.5})
    assert plan["speed_up"] < 1.1
    assert (plan["pays"], plan["proposals"]) == (False, [])
    assert plan["reasons"] == ["64 clips of 8×40² cost 2.50 of the plain step's time a pixel"]
    text = report(plan)
    assert "Multigrid does not pay here" in text
    assert text.endswith("No factors were found that pay here and have none of these problems.")


def test_a_gain_of_fewer_clips_is_told(judged):
    plan = judged(WIDE, dear={40: 2.0, 47: 2.0})
    assert plan["speed_up"] == pytest.approx(8 / 6, rel=0.02)  # six epochs in place of eight
    assert not plan["pays"]
    reason = "the gain comes from fewer clips: plain training with 0.74 of its epochs gains as much"
    assert plan["reasons"][0] == reason


def test_without_times_only_shapes_and_rates_are_judged(judged):
    plan = judged(NARROW, options=PlanOptions(num_clips=3000, num_steps=0))
    assert (plan["pays"], plan["proposals"], len(plan["reasons"])) == (None, [], 2)
    assert "pay" not in report(plan)


@pytest.fixture
def learned():
    """`learned(path, values, overrides)`: a run that was validated after each epoch."""

    def run(path, values, *overrides):
        config = load_config(str(path), overrides)
        return Learned(path.stem, config, range(1, len(values) + 1), values)

    return run


def test_time_to_an_accuracy_is_that_of_the_epochs_it_took(learned):
    cfg = load_config(str(WIDE))
    costs = ByPixels(cfg)
    plain = learned(QUICKSTART / "slowfast_motion_56.yaml", [0.2, 0.8, 0.91, 0.9, 0.99])
    multigrid = learned(WIDE, [0.1, 0.3, 0.4, 0.5, 0.95, 1.0])
    found = time_to_accuracy(cfg, OPTIONS, costs, [plain, multigrid], 0.9)
    full, small = 93 * 32 * 8 * 56**2 * 1e-9, 46 * 64 * 8 * 40**2 * 1e-9
    first, second = found["runs"]
    assert (found["accuracy"], first["epochs"], first["of_epochs"]) == (0.9, 3, 8)
    assert first["train_sec"] == pytest.approx(3 * full)
    assert (second["epochs"], second["of_epochs"]) == (5, 6)
    assert second["train_sec"] == pytest.approx(4 * small + full)
    assert time_to_accuracy(cfg, OPTIONS, costs, [plain, multigrid])["accuracy"] == 0.99
    never = time_to_accuracy(cfg, OPTIONS, costs, [plain], 0.995)["runs"]
    assert never == [{"run": "slowfast_motion_56", "epochs": None, "of_epochs": 8, "train_sec": None}]


def test_a_run_of_another_network_teaches_nothing(learned):
    cfg = load_config(str(WIDE))
    other = learned(WIDE, [0.5], "MODEL.backbone.width_per_group=16", "MODEL.head.width_per_group=16")
    with pytest.raises(ConfigError, match="slowfast_motion_56_multigrid was a run of another network"):
        time_to_accuracy(cfg, OPTIONS, ByPixels(cfg), [other])


def test_advice_of_a_config_without_origins(judged):
    """The doctor plans configs that it makes itself."""
    cfg = load_config(str(WIDE))
    made = Config({**cfg, "MULTIGRID": {"SHORT_CYCLE": True, "short_cycle_factors": [0.7071]}})
    costs = ByPixels(made)
    plan = make_plan(made, OPTIONS, costs=costs)
    assert advise(made, OPTIONS, plan, costs)["pays"]


@pytest.fixture(scope="module")
def run_folder(motion_dataset, run_script, tmp_path_factory):
    """A real run of two epochs, validated after each."""
    folder = tmp_path_factory.mktemp("run")
    overrides = [
        *(f"DATASET.{split}.data_prefix={motion_dataset.root}" for split in ("train", "valid")),
        f"DATASET.train.file_path={motion_dataset.train_list}",
        f"DATASET.valid.file_path={motion_dataset.valid_list}",
        *("epochs=2", "OPTIMIZER.learning_rate.max_epoch=2", "OPTIMIZER.learning_rate.steps=[0, 1]"),
        *(
            "DATASET.batch_size=8",
            "DATASET.num_workers=0",
            f"output_dir={folder}",
            "MODEL.head.num_classes=8",
        ),
    ]
    options = [part for override in overrides for part in ("-o", override)]
    run_script("tools/main.py", "-c", QUICKSTART / "slowfast_motion_56.yaml", "--validate", *options)
    return folder


@pytest.mark.slow
def test_the_command_learns_from_a_real_run(command, capsys, run_folder):
    options = ["-c", str(WIDE), "--clips", "200", "--steps", "1"]
    assert command("multigrid_plan").main([*options, "--learn", str(run_folder), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    (found,) = plan["learned"]["runs"]
    records = map(json.loads, (run_folder / "metrics.jsonl").read_text().splitlines())
    values = [record["top1"] for record in records if record["kind"] == "valid"]
    assert plan["learned"]["accuracy"] == max(values)
    assert found["epochs"] == values.index(max(values)) + 1
    steps = 200 // 8 * found["epochs"]  # the run's batches, not the plan's
    assert found["of_epochs"] == 2
    assert 0 < found["train_sec"] < steps * plan["plain"]["shapes"][0]["step_sec"]
    options = [
        "-c",
        str(WIDE),
        "--clips",
        "200",
        "--no-measure",
        "--learn",
        str(run_folder),
        "--accuracy",
        "1",
    ]
    assert command("multigrid_plan").main(options) == 0
    text = capsys.readouterr().out
    assert "To an accuracy of 100.0 %, as these runs learned:" in text
    assert str(run_folder) in text.splitlines()[-1]


def test_wrong_runs_and_accuracies_are_one_message(command, capsys, tmp_path):
    main = command("multigrid_plan").main
    options = ["-c", str(WIDE), "--no-measure"]
    assert main([*options, "--learn", str(tmp_path)]) == 2
    assert f"{tmp_path}/metrics.jsonl: there is no such file" in capsys.readouterr().err
    (tmp_path / "metrics.jsonl").write_text('{"kind": "train", "step": 1, "loss": 1.0}\n')
    assert main([*options, "--learn", str(tmp_path)]) == 2
    assert "no validation to learn from; train with --validate" in capsys.readouterr().err
    (tmp_path / "metrics.jsonl").write_text('{"kind": "valid", "epoch": 1, "step": 1, "top1": 0.5}\n')
    assert main([*options, "--learn", str(tmp_path)]) == 2
    assert "config.yaml" in capsys.readouterr().err
    for wrong in ("1.5", "0", "high"):
        with pytest.raises(SystemExit):
            main([*options, "--learn", str(tmp_path), "--accuracy", wrong])
        assert f"'{wrong}' is no share above 0 and up to 1" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*options, "--accuracy", "0.9"])
    assert "--accuracy: has no effect without --learn RUN" in capsys.readouterr().err
