"""Runs on a list of unequal classes, and early stopping of a real run."""

import json
import re

import numpy as np
import pytest

from paddlevideo_fast.cli import main
from paddlevideo_fast.engine import load_checkpoint
from tests.support.launching import MAIN, overriding


@pytest.fixture
def run(tiny_config, tmp_path, motion_data):
    """Trains on 6, 3, 2 and 1 clips of the four classes in this process; returns the exit code."""
    names = {label: [] for label in range(4)}
    for line in (motion_data / "train.list").read_text().splitlines():
        names[int(line.split()[1])].append(line)
    kept = [line for label, count in enumerate([6, 3, 2, 1]) for line in names[label][:count]]
    (tmp_path / "tail.list").write_text("\n".join(kept) + "\n")
    text = tiny_config.read_text().replace(f"{motion_data}/train.list", str(tmp_path / "tail.list"))
    tiny_config.write_text(text)
    return lambda *overrides: main(["-c", str(tiny_config), *overriding(*overrides)])


METHODS = (
    "DATASET.train.sampler=square_root",
    "MODEL.head.loss_cfg={name: FocalLoss, class_weights: effective, logit_adjustment: 0.5}",
    "MODEL.head.ls_eps=0.1",
    "MIX={name: VideoMix, prob: 0.8}",
    "OPTIMIZER.learning_rate={name: Constant, learning_rate: 0.01, warmup_steps: 8}",
    "save_every_steps=1",
)


def test_a_balanced_run_is_told_and_resumes_inside_an_epoch(run, tmp_path, capfd):
    assert run(*METHODS) == 0
    told = capfd.readouterr().err
    line = "training list: 4 classes with 1 (class 3) to 6 records (class 0), median 2.5; "
    assert (
        f"{line}balanced by sampler square_root, focal loss with gamma 2, class_weights effective with beta "
        "0.999, logit_adjustment 0.5" in told
    )
    inside = f"resume={tmp_path}/out/tiny_step_00000004"
    assert run(*METHODS, inside, f"output_dir={tmp_path}/again") == 0
    one, two = (load_checkpoint(str(tmp_path / name / "tiny_epoch_00002")) for name in ("out", "again"))
    assert all(np.array_equal(one.weights[name], two.weights[name]) for name in one.weights)
    assert not [name for name in one.weights if "loss" in name]
    assert run(*METHODS, inside, "DATASET.train.sampler=balanced", f"output_dir={tmp_path}/other") == 2
    assert "had sampler square_root, this one has balanced" in capfd.readouterr().err


def test_a_plain_run_says_that_nothing_balances(run, capfd):
    assert run("epochs=1", "DATASET.valid.sampler=balanced", "validate=true") == 0
    told = capfd.readouterr().err
    assert "median 2.5; no balancing" in told
    assert "VideoDataset: sampler: balanced has no effect: an evaluation has each record once" in told


LOSS = "MODEL.head.loss_cfg"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (f"{LOSS}={{name: CrossEntropyLoss, class_weights: [1, 2]}}", "has 2 weights for 4 classes"),
        (f"{LOSS}={{name: CrossEntropyLoss, class_weights: balancd}}", "expected 'balanced' or 'effective'"),
        (f"{LOSS}={{name: CrossEntropyLoss, class_weights: [1, -2, 1, 1]}}", "class_weights.1=-2: expected"),
        (f"{LOSS}={{name: CrossEntropyLoss, beta: 1.0}}", "beta=1.0: expected float, at least 0 and below 1"),
        (f"{LOSS}={{name: FocalLoss, alpha: 0.25}}", "alpha: the factors on the classes are class_weights"),
        (f"{LOSS}={{name: FocalLoss, gamma: -1}}", "gamma=-1: expected float, at least 0"),
        ("DATASET.train.sampler=balance", "sampler='balance': expected 'shuffle' or 'balanced'"),
    ],
)
def test_wrong_inputs(tiny_config, assert_refused, override, message):
    assert "-o #1  " in assert_refused(tiny_config, message, override)


# --- Early stopping of a real run, on two processes


@pytest.mark.slow
def test_two_processes_stop_after_the_same_epoch(tiny_config, tmp_path, job):
    options = overriding("SELECTION={patience: 2, min_delta: 1, mean_of: 1}", "epochs=9", "report=true")
    logs = job("job", [MAIN, "-c", tiny_config, *options]).succeed(240)
    told = r"training stops after epoch 3 of 9: no .* improved by more than 1 since epoch 1 \(top1 .*, 2 in a"
    assert re.search(told, logs[0])
    records = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    assert sum(record["kind"] == "valid" for record in records) == 3
    assert load_checkpoint(str(tmp_path / "out/tiny_epoch_00003")).state["run"]["world_size"] == 2
    assert "best: epoch" in (tmp_path / "out/report.html").read_text()  # fit_end has run
