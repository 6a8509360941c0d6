"""Runs that are killed, stopped or interrupted, and go on."""

import os
import re
import shlex
import shutil
import signal
from argparse import Namespace

import pytest

from paddlevideo_fast.cli.commands import main
from paddlevideo_fast.cli.train import _to_go_on
from tests.support.launching import overriding


@pytest.fixture(scope="module")
def long_epochs(motion_data, tmp_path_factory):
    """Options for epochs of 60 steps: a signal sent after one of them is there well before the last.

    Each video gives two clips, half of the videos in the first epoch.
    """
    path = tmp_path_factory.mktemp("lists") / "long.list"
    path.write_text((motion_data / "train.list").read_text() * 10)
    return overriding(
        f"DATASET.train.file_path={path}", "EMA={decay: 0.9}", "DATASET.train.clips_per_video=2"
    )


@pytest.fixture(scope="module")
def whole_run(motion_data, tiny_text, long_epochs, run_main, tmp_path_factory):
    """The folder of a run of such epochs that nothing interrupts, without workers."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "tiny.yaml").write_text(tiny_text.format(data=motion_data, output=folder / "out"))
    run_main(folder / "tiny.yaml", *long_epochs)
    return folder / "out"


@pytest.mark.parametrize(
    ("number", "workers"),
    [
        pytest.param(signal.SIGKILL, 2, marks=[pytest.mark.slow, pytest.mark.smoke]),
        *((signal.SIGTERM, 0), (signal.SIGTERM, 2), (signal.SIGINT, 2)),
    ],
)
def test_a_stopped_run_goes_on_as_the_same_run(
    tiny_config, long_epochs, whole_run, tmp_path, start, run_main, number, workers, wait_for_step,
    wait_for_checkpoint, assert_same_run
):  # fmt: skip
    """SIGKILL in the second epoch, whose first steps come again; other signals save inside the first."""
    is_killed, out = number == signal.SIGKILL, tmp_path / "out"
    common = [*long_epochs, "-o", f"DATASET.num_workers={workers}"]
    process = start(tiny_config, *common)
    wait_for_step(out, 62 if is_killed else 7, process)
    if is_killed:
        wait_for_checkpoint(out / "tiny_epoch_00001", process)
    os.killpg(process.pid, number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == (-number if is_killed else 128 + number), stdout + stderr
    assert is_killed or stderr.count("to go on:  paddlevideo-fast train") == 1
    assert is_killed or "Traceback" not in stdout + stderr
    assert not (out / "tiny_epoch_00002.json").exists()

    resumed = run_main(tiny_config, *common, "-o", "resume=auto")
    assert ("tiny_epoch_00001: epoch 2, step 0 of it" if is_killed else "tiny_step_") in resumed.stderr
    assert_same_run(whole_run, out)


def test_the_command_to_go_on_is_whole(tiny_config, long_epochs, tmp_path, start, wait_for_step, capfd):
    """What the stopped run prints is typed as it is; without its --epochs the run says what has changed."""
    out = tmp_path / "out"
    options = [*long_epochs[:-2], "--epochs", "1"]
    process = start(tiny_config, *options)
    wait_for_step(out, 3, process)
    os.killpg(process.pid, signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=60)
    typed = shlex.split(re.search(r"to go on:  paddlevideo-fast (.*)", stderr)[1])
    assert typed == ["train", "-c", str(tiny_config), *options, "--resume"]
    shutil.copytree(out, tmp_path / "copy")
    assert main(typed) == 0
    printed = "".join(capfd.readouterr())
    assert "changes keys" not in printed
    assert (out / "tiny_epoch_00001.json").exists()
    assert not (out / "tiny_epoch_00002.json").exists()

    assert main([*typed[:-3], "--resume", *overriding(f"output_dir={tmp_path / 'copy'}")]) == 0
    printed = "".join(capfd.readouterr())
    assert "this start changes keys of the run that it goes on with: " in printed
    assert "epochs was 1 and is 2" in printed
    (line,) = (line for line in printed.splitlines() if "changes keys" in line)
    assert "; to go on as before, stop it and add  -o OPTIMIZER.learning_rate.max_epoch=1 " in line
    assert line.endswith(" -o epochs=1")


@pytest.mark.parametrize(
    ("typed", "cfg", "folder", "folds", "lacking"),
    [
        ("train SET --epochs 3", {}, "output/a b_2", None, "--output 'output/a b_2' --resume"),
        ("train SET --resume", {"resume": "auto"}, "output/a", None, "--output output/a"),
        ("train SET --resume CHECKPOINT", {"resume": "CHECKPOINT", "output_dir": "x"}, "x", None, "--resume"),
        ("train SET --folds 5", {}, "output/a/fold_3", 5, "--output output/a --resume"),
    ],
)
def test_the_command_to_go_on_names_the_folder(typed, cfg, folder, folds, lacking):
    args = Namespace(typed=f"paddlevideo-fast {typed}", folds=folds)
    assert _to_go_on(args, cfg, folder) == f"paddlevideo-fast {typed} {lacking}"


def test_a_second_signal_leaves_at_once(tiny_config, tmp_path, start, wait_for_step):
    process = start(tiny_config, "-o", "epochs=500", "-o", "save_interval=1000", "-o", "log_interval=1")
    wait_for_step(tmp_path / "out", 2, process)
    os.kill(process.pid, signal.SIGSTOP)  # both signals wait for the process together
    os.kill(process.pid, signal.SIGTERM)
    os.kill(process.pid, signal.SIGINT)
    os.kill(process.pid, signal.SIGCONT)
    process.communicate(timeout=30)
    assert process.returncode in (128 + signal.SIGTERM, 128 + signal.SIGINT)
    assert not list((tmp_path / "out").glob("*_step_*.json"))


def test_resume_epoch_is_paddlevideos_key(tiny_config, tmp_path, run_main, assert_same_run):
    run_main(tiny_config)
    shutil.copytree(tmp_path / "out", tmp_path / "whole")
    run_main(tiny_config, "-o", "resume_epoch=1")
    assert_same_run(tmp_path / "whole", tmp_path / "out")


def test_resume_auto_starts_anew_where_there_is_nothing(tiny_config, run_main):
    done = run_main(tiny_config, "-o", "resume=auto", "--max_iters", "1")
    assert "holds no checkpoint yet" in done.stderr
