"""From one YAML file to a checkpoint, through the command line."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import numpy as np
import paddle
import pytest

from paddlevideo_fast.config import load_config
from paddlevideo_fast.engine import load_checkpoint
from paddlevideo_fast.machine import available_cores
from tests.support.launching import MAIN, overriding


@pytest.mark.annex
@pytest.mark.smoke
def test_train_validate_and_test(tiny_config, tmp_path, run_main, records):
    done = run_main(tiny_config, "-o", "RUNTIME.allocator_strategy=naive_best_fit", fresh=True)
    cores = ",".join(map(str, available_cores()))
    assert f"1 CPU threads on cores {cores}; flags: FLAGS_allocator_strategy=naive_best_fit" in done.stdout
    if not paddle.is_compiled_with_cuda():  # without a device such a build warns that it finds no cuDNN
        assert done.stderr == ""  # the framework's import warnings stay off the console
    assert all(
        re.match(r"\[\d\d/\d\d \d\d:\d\d:\d\d\] (INFO|WARNING): ", line) for line in done.stdout.splitlines()
    )
    assert len(re.findall(r"epoch:\[  \d/2  \] train step:\d    loss: ", done.stdout)) == 12

    out = tmp_path / "out"
    kinds = [record["kind"] for record in records(out)]
    assert kinds == ([*["train"] * 6, "train_epoch", "valid"]) * 2
    names = {path.name for path in out.iterdir()}
    assert {"tiny_epoch_00001.pdparams", "tiny_epoch_00002.pdopt", "tiny_best.pdparams"} <= names
    assert {"config.yaml", "train.log", "vdl"} <= names

    tested = run_main(tiny_config, "--test", "-w", str(out / "tiny_best.pdparams"))
    best = max(record["top1"] for record in records(out) if record["kind"] == "valid")
    assert f"top1: {best:.5f}" in tested.stdout


def test_the_saved_config_is_the_same_run(finished_run, tmp_path, run_main, records):
    run_main(finished_run / "config.yaml", "-o", f"output_dir={tmp_path}/again")
    assert records(tmp_path / "again") == records(finished_run)
    assert load_config(tmp_path / "again" / "config.yaml")["epochs"] == 1


def test_seeds_decide(tiny_config, tmp_path, finished_run, run_main):
    def weights(folder):
        return load_checkpoint(str(folder / "tiny_epoch_00001")).weights

    one = weights(finished_run)
    for seed, workers in (1234, 2), (2, 0):
        options = overriding(f"output_dir={tmp_path}/{seed}", "epochs=1", f"DATASET.num_workers={workers}")
        run_main(tiny_config, *options, "--seed", seed)
        other = weights(tmp_path / str(seed))
        assert all(np.array_equal(one[name], other[name]) for name in one) == (seed == 1234)


def test_a_second_run_moves_the_first_aside(tiny_config, after_run, run_main):
    before = (after_run / "tiny_epoch_00001.pdparams").read_bytes()
    run_main(tiny_config, "--max_iters", "1")
    assert (after_run / "earlier-1" / "tiny_epoch_00001.pdparams").read_bytes() == before
    assert load_checkpoint(str(after_run / "tiny_epoch_00002")).state["trainer"]["step"] == 2


@pytest.mark.slow
def test_plain_lines_without_a_terminal_and_a_bar_on_one(tiny_config, run_main, environment):
    assert "%|" not in run_main(tiny_config, "--max_iters", "2").stdout
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    process = subprocess.Popen(
        [sys.executable, MAIN, "-c", tiny_config, "--max_iters", "2"],
        stdout=follower,
        stderr=follower,
        env={**environment, "TERM": "xterm"},
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            block = os.read(leader, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not block:
            break
        shown += block
    assert process.wait(60) == 0
    assert b"epoch 2/2" in shown
    assert b"%|" in shown
    assert b"train step:0" in shown


@pytest.mark.slow
def test_real_clips_with_bad_files_among_them(tiny_config, tmp_path, real_clips_dir, run_main, records):
    real_clips = sorted(path for path in real_clips_dir.iterdir() if path.suffix != ".md")
    (tmp_path / "text.mp4").write_text("this is no video\n")
    (tmp_path / "cut.mp4").write_bytes(real_clips[0].read_bytes()[:2000])
    files = [*real_clips, tmp_path / "text.mp4", tmp_path / "cut.mp4"]
    (tmp_path / "real.list").write_text("".join(f"{path} {number}\n" for number, path in enumerate(files)))
    settings = [f"MODEL.head.num_classes={len(files)}", "DATASET.batch_size=3"]
    for split, crop in ("train", "RandomCrop"), ("valid", "CenterCrop"):
        settings += [
            f"DATASET.{split}.file_path={tmp_path}/real.list",
            f"DATASET.{split}.data_prefix=''",
            f"PIPELINE.{split}.transform=[{{Scale: {{short_size: 40}}}}, {{{crop}: {{target_size: 32}}}}]",
        ]
    arguments = overriding(*settings)
    run_main(tiny_config, *arguments, "-o", "DATASET.max_bad_share=0.5")
    listed = (tmp_path / "out" / "bad_samples.txt").read_text()
    assert str(tmp_path / "text.mp4") in listed
    assert str(tmp_path / "cut.mp4") in listed
    valid = [record for record in records(tmp_path / "out") if record["kind"] == "valid"]
    assert all(record["num_failed"] >= 2 for record in valid)
    assert all(record["num_failed"] + record["num_samples"] == len(files) for record in valid)

    strict = run_main(tiny_config, *arguments, "-o", "DATASET.max_bad_share=0.01", code=2)
    assert "max_bad_share" in strict.stderr
    assert "Traceback" not in strict.stdout + strict.stderr
