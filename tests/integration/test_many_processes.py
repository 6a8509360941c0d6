"""Runs of several processes that fail, die, start again and end; on one machine and on two."""

from __future__ import annotations

import re
import signal

import numpy as np
import pytest
from launching import ROOT, Job

from paddlevideo_fast.engine import load_checkpoint

MAIN = ROOT / "tools" / "main.py"

FAILING = """
import sys
from paddlevideo_fast import cli
from paddlevideo_fast.engine import Trainer

train_step = Trainer.train_step


def failing(self, batches):
    if self.distribution.rank == 1 and self.state.step == 2:
        raise ZeroDivisionError("the third step of rank 1")
    train_step(self, batches)


Trainer.train_step = failing
sys.exit(cli.main())
"""


@pytest.fixture
def job(tmp_path):
    """`job(name, command, ...)`: a `Job` with its outputs in a folder of that name."""
    jobs = []

    def start(name, command, num_processes=2, **options):
        jobs.append(Job(command, num_processes, tmp_path / name, **options))
        return jobs[-1]

    yield start
    for one in jobs:
        one.end()


def test_what_a_rank_fails_of_is_said_on_the_console(job, tiny_config, tmp_path):
    script = tmp_path / "failing.py"
    script.write_text(FAILING)
    failing = job("failing", [script, "-c", tiny_config], launcher=[])
    assert failing.wait(60) == [1], failing.report()
    console = (tmp_path / "failing" / "output.0").read_text()
    assert re.search(r"ERROR: rank 1 on \S+ failed: ZeroDivisionError: the third step of rank 1;", console)
    logs = failing.outputs()
    assert "Traceback" not in logs[0]
    assert "Traceback" in logs[1]


def test_a_killed_rank_has_the_run_start_again_and_end_as_if_nothing_had_been(
    job, tiny_config, motion_data, tmp_path, wait_for_step
):
    long_list = tmp_path / "long.list"  # epochs of 18 steps
    long_list.write_text((motion_data / "train.list").read_text() * 6)
    options = ["-c", tiny_config, "-o", f"DATASET.train.file_path={long_list}", "-o", "save_every_steps=4"]
    whole = job("whole", [MAIN, *options, "-o", f"output_dir={tmp_path}/whole/out"])
    whole.succeed()

    start = [ROOT / "tools" / "launch.py", "--max_restart", 1]
    killed = job("killed", [MAIN, *options, "-o", "resume=auto"], launcher=[], start=start)
    wait_for_step(tmp_path / "out", 23, killed.processes[0])
    killed.send(signal.SIGKILL, rank=1)
    assert killed.wait(60) == [0], killed.report()
    console = (tmp_path / "killed" / "output.0").read_text()
    assert re.search(r"ERROR: rank 1 on \S+ died without a word: it was killed", console)
    assert "restart 1 of 1" in console
    assert re.search(r"resumed \S+tiny_step_\d+: epoch 2, step \d+ of it", console)

    one, other = (
        load_checkpoint(str(out / "tiny_epoch_00002")) for out in (tmp_path / "whole/out", tmp_path / "out")
    )
    assert one.weights.keys() == other.weights.keys()
    for name in one.weights:
        np.testing.assert_array_equal(one.weights[name], other.weights[name], err_msg=name)
