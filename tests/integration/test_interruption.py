"""Runs that are killed, stopped or interrupted, and go on."""

import os
import shutil
import signal

import pytest

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


@pytest.mark.whole
@pytest.mark.slow
@pytest.mark.smoke
@pytest.mark.parametrize("workers", [0, 2])
def test_killed_in_the_second_epoch_and_resumed_is_the_same_run(
    tiny_config,
    tmp_path,
    run_main,
    start,
    workers,
    assert_same_run,
    wait_for_step,
    wait_for_checkpoint,
    long_epochs,
    whole_run,
):
    common = [*long_epochs, "-o", f"DATASET.num_workers={workers}"]
    process = start(tiny_config, *common)
    wait_for_step(tmp_path / "out", 62, process)
    wait_for_checkpoint(tmp_path / "out" / "tiny_epoch_00001", process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "out" / "tiny_epoch_00002.json").exists()

    resumed = run_main(tiny_config, *common, "-o", "resume=auto")
    assert "tiny_epoch_00001: epoch 2, step 0 of it" in resumed.stdout
    assert_same_run(whole_run, tmp_path / "out")


@pytest.mark.parametrize(
    ("number", "workers"), [(signal.SIGTERM, 0), (signal.SIGTERM, 2), (signal.SIGINT, 2)]
)
def test_a_signal_saves_inside_the_epoch(
    tiny_config,
    tmp_path,
    run_main,
    start,
    number,
    workers,
    assert_same_run,
    wait_for_step,
    long_epochs,
    whole_run,
):
    common = [*long_epochs, "-o", f"DATASET.num_workers={workers}"]
    process = start(tiny_config, *common)
    wait_for_step(tmp_path / "out", 7, process)
    os.killpg(process.pid, number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + number, stdout + stderr
    assert "go on with -o resume=auto" in stdout
    assert "Traceback" not in stdout + stderr

    resumed = run_main(tiny_config, *common, "-o", "resume=auto")
    assert "tiny_step_" in resumed.stdout
    assert_same_run(whole_run, tmp_path / "out")


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
    assert "holds no checkpoint yet" in done.stdout
