"""What tools/multigrid_plan.py prints is the reference's schedule, and what a run of it then does."""

import json
import math
from collections import Counter
from pathlib import Path

import paddle
import pytest
from paddle import nn

from paddlevideo_fast.apps.doctor.multigrid import PlanOptions, make_plan, output_shapes
from paddlevideo_fast.assembly import plan_run, training_setup
from paddlevideo_fast.config import RunSpec, load_config

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "configs/recognition/slowfast/slowfast_multigrid.yaml"
REFERENCE = {
    entry["name"]: entry
    for entry in json.loads((ROOT / "tests/reference/multigrid_schedule.json").read_text())
}
# the shipped schedule on a network that takes no time
NARROW = [
    *("MODEL.backbone.width_per_group=8", "MODEL.head.width_per_group=8"),
    "MODEL.backbone.stage_blocks=[1, 1, 1, 1]",
]
SMALL = [
    *(*NARROW, "MODEL.backbone.alpha=2", "PIPELINE.train.decode_sampler.num_frames=8"),
    *("PIPELINE.train.transform.1.MultiCrop.target_size=32", "DATASET.batch_size=2"),
    "MULTIGRID.bn_base_size=2",
]


@pytest.fixture
def plan(command, capsys):
    """`plan(arguments, overrides)`: exit code, stdout and stderr of the command line."""

    def run(*arguments, overrides=SMALL, config=CONFIG):
        options = [part for override in overrides for part in ("-o", override)]
        code = command("multigrid_plan").main(["-c", str(config), *options, *arguments])
        return (code, *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def shipped(run_script):
    """The plan of the shipped schedule, by the command line in a process of its own."""
    options = [part for override in NARROW for part in ("-o", override)]
    arguments = ("--json", "--no-measure", "--clips", 240000)
    return json.loads(run_script("tools/multigrid_plan.py", "-c", CONFIG, *options, *arguments).stdout)


@pytest.mark.smoke
def test_the_shipped_config_is_the_references_schedule(shipped):
    ours, reference = shipped, REFERENCE["slowfast_8x8_stepwise_multigrid"]
    assert ours["max_epoch"] == reference["max_epoch"]
    assert ours["lr_at_epoch"] == pytest.approx(reference["lr_at_epoch"], rel=1e-8)
    keys = ("batch_multiplier", "num_frames", "crop_size", "end_epoch")
    expected = [[*shape, end] for _, shape, end in reference["schedule"]]
    assert [[phase[key] for key in keys] for phase in ours["phases"]] == expected
    starts = [0, *(end for _, _, end in reference["schedule"][:-1])]
    assert [phase["start_epoch"] for phase in ours["phases"]] == starts
    by_start = {phase["start_epoch"]: phase for phase in ours["phases"]}
    for expected in reference["phases"]:
        phase = by_start[expected["start"]]
        assert phase["batch_size"] * 8 == phase["batch_multiplier"] * 64 == expected["B"]
        assert phase["lr_multiplier"] == phase["batch_multiplier"]
        assert phase["sampling_rate"] == expected["long_rate"]
        assert phase["bn_splits"] == (expected["splits"] if expected["norm"] == "sub_batchnorm" else 1)


def test_the_short_cycle_alone_and_no_cycle(plan):
    off = "MULTIGRID.LONG_CYCLE=false"
    ours = json.loads(plan("--json", "--no-measure", overrides=[*SMALL, off])[1])
    assert ours["max_epoch"] == REFERENCE["short_only"]["max_epoch"]
    assert ours["lr_at_epoch"] == pytest.approx(REFERENCE["short_only"]["lr_at_epoch"], rel=1e-8)
    assert (ours["num_clips"], ours["multigrid"]) == (None, {})  # Kinetics is not there
    overrides = [*SMALL, off, "MULTIGRID.SHORT_CYCLE=false"]
    neither = json.loads(plan("--json", "--no-measure", "--clips", "50", overrides=overrides)[1])
    (phase,) = neither["phases"]
    assert phase == neither["plain"]
    assert (phase["start_epoch"], phase["end_epoch"]) == (0, neither["max_epoch"]) == (0, 239)
    assert (phase["num_frames"], phase["crop_size"], phase["bn_splits"]) == (8, 32, 1)


def test_costs_against_the_plain_run(shipped):
    plain, multigrid = shipped["plain"], shipped["multigrid"]
    assert (plain["iterations"], plain["clips"]) == (239 * 30000, 239 * 240000)
    assert plain["flops"] * 8 == plain["shapes"][0]["flops"] * plain["clips"]
    assert plain["iterations"] / multigrid["iterations"] == pytest.approx(3.42, abs=0.01)
    for key, value in multigrid.items():
        assert value == sum(phase[key] for phase in shipped["phases"])
    assert shipped["speed_up"] is None


def test_steps_and_clips_are_those_of_the_run(motion_dataset):
    """Counted over all batches that the run's own sampler makes, with gradients of two added up."""
    rate = {"max_epoch": 20, "steps": [0, 14], "warmup_epochs": 2}
    data = {"data_prefix": motion_dataset.root, "file_path": motion_dataset.train_list}
    overrides = [
        *(*SMALL, "multigrid=true", "accumulate_steps=2", "MULTIGRID.epoch_factor=1", "epochs=20"),
        *(f"OPTIMIZER.learning_rate.{key}={value}" for key, value in rate.items()),
        *(f"DATASET.train.{key}={value}" for key, value in data.items()),
    ]
    cfg = load_config(str(CONFIG), overrides)
    ours = make_plan(cfg, PlanOptions(num_steps=0))
    assert ours["num_clips"] == 32
    parts = training_setup(plan_run(RunSpec.for_training(cfg)))
    make_loader = parts.phase_loader()
    for phase, planned in zip(parts.plan.phases, ours["phases"]):
        sampler = make_loader(phase).batch_sampler
        epochs = range(phase.start_epoch, phase.end_epoch)
        batches = [batch for epoch in epochs for batch in sampler.batches(epoch)]
        assert planned["clips"] == sum(len(batch) for batch in batches)
        assert planned["iterations"] == len(epochs) * math.ceil(sampler.num_batches / 2)
        crops = Counter(batch[0].crop_size for batch in batches)
        flops = {shape["crop_size"]: shape["flops"] for shape in planned["shapes"]}
        assert planned["flops"] == sum(count * flops[crop] for crop, count in crops.items())
    assert len(parts.plan.phases) == len(ours["phases"]) == 5


def test_measured_steps_and_a_report(plan, tmp_path):
    code, out, err = plan(
        *["--clips", "100", "--steps", "1", "--limit", "6000", "--output"], str(tmp_path / "new")
    )
    assert code == 0, err
    assert "timing steps, shape 1 of" in err
    saved = json.loads((tmp_path / "new" / "multigrid_plan.json").read_text())
    seconds = [shape["step_sec"] for phase in saved["phases"] for shape in phase["shapes"]]
    assert min(seconds) > 0
    plain, multigrid = saved["plain"], saved["multigrid"]
    steps = plain["iterations"] * plain["shapes"][0]["step_sec"]
    assert plain["train_sec"] == pytest.approx(steps)
    assert saved["speed_up"] == pytest.approx(plain["train_sec"] / multigrid["train_sec"])
    assert f"Predicted: {saved['speed_up']:.2f} times" in out
    first = next(line for line in out.splitlines() if line.startswith("1 to 73"))
    assert " ".join(first.split()[3:-2]) == "32/16/16 2 16/23/23 2 to 8 8 0.01 to 0.8"
    assert next(line for line in out.splitlines() if line.startswith("forward FLOPs"))


def test_activations_are_the_outputs_of_the_innermost_layers():
    inner = nn.Sequential(nn.Conv3D(3, 4, 3, padding=1), nn.BatchNorm3D(4), nn.MaxPool3D(2))
    with output_shapes(nn.Sequential(inner, nn.Flatten(), nn.Linear(32, 5))) as outputs:
        nn.Sequential(inner)(paddle.zeros([1, 3, 4, 4, 4]))
    assert [math.prod(shape) for _, shape in outputs] == [4 * 64, 4 * 64, 4 * 8]
    inner(paddle.zeros([1, 3, 4, 4, 4]))
    assert len(outputs) == 3  # it is over


def test_steps_that_would_take_too_long_are_not_timed(plan):
    code, out, err = plan("--clips", "100", "--steps", "100000", "--limit", "1")
    assert code == 0
    assert "no step is timed: that would take about" in err
    assert "Predicted" not in out
    assert "forward FLOPs" in out


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["MULTIGRID.bn_base_size=3"], "MULTIGRID.bn_base_size: 3 does not divide a batch of 16 clips"),
        (["MULTIGRID=null"], "MULTIGRID: a multigrid plan needs this section"),
        (["DATASET.train=null", "OPTIMIZER=null"], "OPTIMIZER: a multigrid plan needs this section"),
        (["MULTIGRID.long_cycle_factors=[[0.01, 1], [1, 1]]"], "leave 0 frames"),
        (["MULTIGRID.epoch_factr=1"], "epoch_factr: unknown key"),
    ],
)
def test_wrong_settings_are_one_message(plan, overrides, words):
    code, out, err = plan("--no-measure", overrides=[*SMALL, *overrides])
    assert code == 2
    assert out == ""
    assert err.startswith("ConfigError: 1 problem\n")
    assert words in err


def test_fewer_clips_than_a_batch(plan):
    code, _, err = plan("--no-measure", "--clips", "5")
    assert code == 2
    assert err.splitlines()[-1].startswith("LoaderError: 5 samples on 1 processes make no batch of 32")
