"""Runs of several processes that fail, die, start again and end; on one machine and on two."""

import re
import signal

import numpy as np
import pytest
from test_multigrid_run import CONFIG as MULTIGRID

from paddlevideo_fast.engine import load_checkpoint
from tests.support.launching import MAIN, ROOT, free_ports

KILLED = """
import os
import signal
import sys
from pathlib import Path
from paddlevideo_fast import cli
from paddlevideo_fast.engine import Evaluator, Trainer

first_start, place = Path(sys.argv.pop()), sys.argv.pop()


def killed(self, *arguments, **options):
    if self.distribution.rank == 1 and first_start.exists():
        if place == "validation" or self.state.step == 23:
            first_start.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
    return original(self, *arguments, **options)


if place == "validation":
    original, Evaluator.visit = Evaluator.visit, killed
else:
    original, Trainer.train_step = Trainer.train_step, killed
sys.exit(cli.main())
"""


@pytest.fixture
def train_list(motion_data, tmp_path):
    """`train_list(times)`: an override for a training list that has every clip so many times."""

    def write(times):
        path = tmp_path / f"train_{times}.list"
        path.write_text((motion_data / "train.list").read_text() * times)
        return f"DATASET.train.file_path={path}"

    return write


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "every_steps", "resumed"),
    [
        pytest.param("step", 4, r"tiny_step_00000020: epoch 2, step 2 of it"),
        ("validation", 6, r"tiny_step_00000018: epoch 1, step 18 of it"),
    ],
)
def test_a_killed_rank_has_the_run_start_again_and_end_as_if_nothing_had_been(
    job, tiny_config, train_list, tmp_path, assert_same_run, place, every_steps, resumed
):
    options = ["-c", tiny_config, "-o", train_list(6), "-o", f"save_every_steps={every_steps}"]
    whole = job("whole", [MAIN, *options, "-o", f"output_dir={tmp_path}/whole/out"])
    whole.succeed()

    start = [ROOT / "tools" / "launch.py", "--max_restart", 1]
    script, first_start = tmp_path / "killed.py", tmp_path / "first_start"
    script.write_text(KILLED)
    first_start.touch()
    command = [script, *options, "-o", "resume=auto", place, first_start]
    killed = job("killed", command, launcher=[], start=start)
    assert killed.wait(120) == [0], killed.report()
    console = (tmp_path / "killed" / "output.0").read_text()
    # The launcher may see it before rank 0 does, and gloo may abort rank 0 before it says so.
    died = r"ERROR: rank 1 on \S+ died without a word: it was killed"
    assert re.search(died + "|Container rank 1 status failed .* code -9|gloo::[A-Za-z]+Exception", console)
    assert "restart 1 of 1" in console
    assert "UserWarning: No ccache found" not in console  # what Paddle's import writes tells a user nothing
    assert re.search(rf"resumed \S+{resumed}", console)

    assert_same_run(tmp_path / "whole/out", tmp_path / "out")


@pytest.mark.slow
def test_a_signal_to_the_launcher_saves_and_ends_all(job, tiny_config, train_list, tmp_path, wait_for_step):
    options = ["-o", "epochs=50", "-o", "save_interval=50", "-o", "resume=auto", "-o", train_list(6)]
    start = ["-m", "paddlevideo_fast", "launch", "--max_restart", 1]
    stopped = job("stopped", ["train", "-c", tiny_config, *options], launcher=[], start=start)
    wait_for_step(tmp_path / "out", 20, stopped.processes[0])
    stopped.send(signal.SIGTERM)
    assert stopped.wait(120) == [128 + signal.SIGTERM], stopped.report()
    logs = stopped.outputs()  # the launcher's console shows no more of them after a signal
    assert "to go on:  paddlevideo-fast launch" in logs[0], stopped.report()
    assert "died" not in "".join(logs)
    (mark,) = (tmp_path / "out").glob("tiny_step_*.json")
    assert load_checkpoint(str(mark)).state["trainer"]["step"] >= 20


BOTH = """
import sys
import time
from paddlevideo_fast import cli

tsm, slowfast, train_list, weights = sys.argv[1:]
assert cli.main(["-c", tsm]) == 0
assert cli.main(["-c", slowfast, "--multigrid", "-o", train_list]) == 0

from paddlevideo_fast.assembly import run
from paddlevideo_fast.engine.distribution import launched_rank

load_weights = run.load_weights


def slowly(*arguments, **options):
    time.sleep(launched_rank()[0])
    return load_weights(*arguments, **options)


run.load_weights = slowly
assert cli.main(["-c", tsm, "-w", weights, "-o", "epochs=1"]) == 0
"""


@pytest.mark.slow
def test_two_nodes_train_tsm_and_slowfast_in_multigrid_and_begin_anew_beside_the_weights(
    job, tiny_config, motion_data, train_list, tmp_path, records
):
    slowfast = tmp_path / "slowfast.yaml"
    slowfast.write_text(MULTIGRID.format(data=motion_data, output=tmp_path / "slowfast"))
    script = tmp_path / "both.py"
    script.write_text(BOTH)
    hosts = ["127.0.0.2", "127.0.0.3"]
    master = f"{hosts[0]}:{free_ports(1)[0]}"
    nodes = []
    for node, host in enumerate(hosts):
        options = ["--nnodes", 2, "--master", master, "--rank", node, "--host", host]
        weights = tmp_path / "out" / "tiny_best.pdparams"
        command = [script, tiny_config, slowfast, train_list(2), weights]
        nodes.append(job(f"node{node}", command, num_processes=1, launcher=options))
    for node in nodes:
        assert node.wait(180) == [0], node.report()

    for node, host in enumerate(hosts):
        variables = (tmp_path / f"node{node}" / "log" / "envlog.0").read_text()
        assert f"PADDLE_CURRENT_ENDPOINT={host}:" in variables
        assert f"PADDLE_TRAINER_ID={node}\n" in variables
    # the third run has moved the first aside, when both ranks had read its weights
    for name, epochs in (("out/earlier-1", 2), ("slowfast", 4), ("out", 1)):
        lines = records(tmp_path / name)
        assert [line["epoch"] for line in lines if line["kind"] == "train_epoch"] == list(
            range(1, epochs + 1)
        )
        last = load_checkpoint(str(tmp_path / name / f"tiny_epoch_{epochs:05d}"))
        assert all(np.isfinite(weight).all() for weight in last.weights.values())
