"""What tools/multigrid_plan.py prints is the reference's schedule, and what a run then does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "configs/recognition/slowfast/slowfast_multigrid.yaml"
REFERENCE = {
    entry["name"]: entry
    for entry in json.loads((ROOT / "tests/reference/multigrid_schedule.json").read_text())
}
KEYS = [
    "start_epoch",
    "end_epoch",
    "batch_multiplier",
    "num_frames",
    "crop_size",
    "sampling_rate",
    "bn_splits",
]


def plan(*arguments, config=CONFIG):
    command = [sys.executable, str(ROOT / "tools/multigrid_plan.py"), "-c", str(config), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.smoke
def test_the_shipped_config_is_the_references_schedule():
    done = plan("--json")
    assert done.returncode == 0, done.stderr
    ours, reference = json.loads(done.stdout), REFERENCE["slowfast_8x8_stepwise_multigrid"]
    assert ours["max_epoch"] == reference["max_epoch"]
    assert ours["lr_at_epoch"] == pytest.approx(reference["lr_at_epoch"], rel=1e-8)
    assert all(list(phase) == [*KEYS, "lr_multiplier"] for phase in ours["phases"])
    assert [
        [phase["batch_multiplier"], phase["num_frames"], phase["crop_size"], phase["end_epoch"]]
        for phase in ours["phases"]
    ] == [[*shape, end] for _, shape, end in reference["schedule"]]
    by_start = {phase["start_epoch"]: phase for phase in ours["phases"]}
    for expected in reference["phases"]:
        phase = by_start[expected["start"]]
        assert phase["batch_multiplier"] * 64 == expected["B"]
        assert phase["sampling_rate"] == expected["long_rate"]
        assert phase["bn_splits"] == (expected["splits"] if expected["norm"] == "sub_batchnorm" else 1)
    assert ours["cost"] is None  # Kinetics is not there


def test_iterations_against_the_plain_schedule():
    cost = json.loads(plan("--json", "--num_clips", "240000").stdout)["cost"]
    assert cost["plain"]["iterations"] == 239 * 30000
    assert cost["plain"]["clips"] == 239 * 240000
    assert cost["plain"]["clip_bytes"] == 239 * 240000 * 32 * 224 * 224 * 3
    assert cost["plain"]["iterations"] / cost["multigrid"]["iterations"] == pytest.approx(3.42, abs=0.01)


def test_the_short_cycle_alone():
    ours = json.loads(plan("--json", "-o", "MULTIGRID.LONG_CYCLE=false").stdout)
    assert ours["max_epoch"] == REFERENCE["short_only"]["max_epoch"]
    assert ours["lr_at_epoch"] == pytest.approx(REFERENCE["short_only"]["lr_at_epoch"], rel=1e-8)


NARROW = [
    *("-o", "MODEL.backbone.width_per_group=8", "-o", "MODEL.head.width_per_group=8"),
    *("-o", "MODEL.backbone.stage_blocks=[1, 1, 1, 1]", "-o", "PIPELINE.train.decode_sampler.num_frames=8"),
    *("-o", "PIPELINE.train.transform.1.MultiCrop.target_size=32", "-o", "MODEL.backbone.alpha=2"),
    *("-o", "DATASET.batch_size=2", "-o", "MULTIGRID.bn_base_size=2", "--num_clips", "100"),
]


def test_measured_costs_and_a_picture(tmp_path):
    done = plan(*NARROW, "--measure", "--picture", str(tmp_path / "plan.png"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    lines = done.stdout.splitlines()
    assert lines[1].split() == ["1", "to", "73", "×8", "2", "23", "8", "8", "0.01", "to", "0.8"]
    rows = {line.split()[0]: [float(number) for number in line.split()[1:]] for line in lines[-5:]}
    assert set(rows) == {"iterations", "clips", "clip_bytes", "flops", "sec"}
    assert min(min(row) for row in rows.values()) > 0
    plain, multigrid, ratio = rows["flops"]
    assert ratio == pytest.approx(plain / multigrid, abs=0.01)
    assert ratio > 1.5


def test_wrong_settings_are_one_message():
    done = plan("-o", "MULTIGRID.bn_base_size=3")
    assert done.returncode == 2
    assert "MULTIGRID.bn_base_size: 3 does not divide a batch of 64 clips" in done.stderr
    assert "Traceback" not in done.stderr
