"""`train --dry_run` describes a training, finds the errors that it would end with, and writes nothing."""

import json
import re

import pytest

from paddlevideo_fast.apps.doctor import dry_run
from paddlevideo_fast.cli.commands import main
from tests.support.content import content
from tests.support.launching import overriding


@pytest.fixture
def start(tiny_config, capfd, monkeypatch):
    """Function that starts a training: exit code, stdout, stderr."""
    monkeypatch.setattr(dry_run, "_NUM_STEPS", 2)

    def start(*words):
        capfd.readouterr()
        code = main(["train", str(tiny_config), *words])
        return (code, *capfd.readouterr())

    return start


def test_a_new_run_an_earlier_one_and_a_resumed_one(start, tmp_path, tiny_config):
    before = content(tmp_path)
    code, out, _ = start("--dry_run", "--epochs", "3", *overriding("keep_last=2"))
    assert (code, content(tmp_path)) == (0, before)
    assert not (tmp_path / "out").exists()
    lines = dict(line.split(": ", 1) for line in out.splitlines() if line[0] != "[")
    assert list(lines) == ["data", "network", "training", "output", "disk", "time", "dry run"]
    assert re.fullmatch(
        r"train 24 records of \S+train.list, valid 8 records of \S+valid.list, 4 classes",
        lines["data"],
    )
    assert lines["network"].endswith("from random weights")
    assert lines["training"].startswith(
        "3 epochs of 6 steps, 4 clips a step; Momentum, learning rate up to 0.01 ("
    )
    assert lines["output"] == str(tmp_path / "out")
    assert lines["disk"].startswith("2 checkpoints of ")
    assert "for 18 steps and the validations, by 2 steps of " in lines["time"]
    assert lines["dry run"] == "nothing was written"

    assert start("--epochs", "1")[0] == 0
    (size, unit) = re.search(r"2 checkpoints of ([\d.]+) (\w+)", lines["disk"]).groups()
    written = sum(path.stat().st_size for path in (tmp_path / "out").glob("tiny_epoch_00001.*"))
    assert float(size) * {"KB": 1e3, "MB": 1e6}[unit] == pytest.approx(written, rel=0.4)

    before = content(tmp_path)
    _, out, _ = start("--dry_run", "--json")
    facts = json.loads(out)
    assert facts["data"]["train"]["num_records"] == 24
    assert (facts["training"]["num_steps"], facts["time"]["num_steps"]) == (12, 12)
    assert facts["network"]["weights"] is None
    assert facts["output"]["num_moved"] > 5
    _, out, _ = start("--dry_run")
    assert re.search(r"output: \S+out; \d+ files of an earlier run there would move to \S+earlier-<n>", out)
    _, out, _ = start("--dry_run", "--resume")
    assert f"; goes on from {tmp_path / 'out' / 'tiny_epoch_00001'} in epoch 2\n" in out
    assert "disk: 1 checkpoint of " in out
    assert "for 6 steps and the validations" in out
    _, out, _ = start("--dry_run", "--resume", "--epochs", "1")
    assert "nothing is left to train" in out
    assert "time: none" in out
    assert content(tmp_path) == before


@pytest.mark.parametrize(
    "words",
    [
        overriding("MODEL.head.num_classes=3"),
        overriding("epochz=3"),
        overriding("DATASET.train.file_path=none.list"),
        ["--resume", "none"],
        ["-w", "none.pdparams"],
        ["--test", "--folds", "2"],
    ],
)
def test_wrong_input_ends_as_in_a_training(start, words, tmp_path):
    before = content(tmp_path)
    real, dry = start(*words), start("--dry_run", *words)
    assert real[0] == dry[0] == 2
    if "--test" in words:
        assert "leave --test out" in real[2]
        assert "leave --test out" in dry[2]
    else:
        assert dry[2].splitlines()[-1] == real[2].splitlines()[-1]
    assert content(tmp_path) == before


def test_several_runs_are_too_many(start):
    code, _, err = start("--dry_run", "--folds", "2")
    assert code == 2
    assert "leave --folds out" in err
