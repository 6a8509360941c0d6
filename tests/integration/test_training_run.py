"""From one YAML file to a checkpoint, through the command line."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios

import numpy as np
import paddle
import pytest

from paddlevideo_fast.config import load_config
from paddlevideo_fast.engine import load_checkpoint


@pytest.mark.smoke
def test_train_validate_and_test(tiny_config, tmp_path, run_main, records):
    done = run_main(tiny_config, fresh=True)
    assert done.returncode == 0, done.stdout + done.stderr
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
    assert tested.returncode == 0, tested.stdout
    best = max(record["top1"] for record in records(out) if record["kind"] == "valid")
    assert f"top1: {best:.5f}" in tested.stdout


def test_the_saved_config_is_the_same_run(tiny_config, tmp_path, run_main, records):
    assert run_main(tiny_config, "-o", "epochs=1").returncode == 0
    first = records(tmp_path / "out")
    again = run_main(tmp_path / "out" / "config.yaml", "-o", f"output_dir={tmp_path}/again")
    assert again.returncode == 0, again.stdout
    assert records(tmp_path / "again") == first
    assert load_config(tmp_path / "again" / "config.yaml")["epochs"] == 1


def test_seeds_decide(tiny_config, tmp_path, run_main):
    def run(name, seed, *more):
        arguments = ["-o", f"output_dir={tmp_path}/{name}", "-o", "epochs=1", "--seed", str(seed), *more]
        assert run_main(tiny_config, *arguments).returncode == 0
        return load_checkpoint(str(tmp_path / name / "tiny_epoch_00001")).weights

    one, same, other = run("a", 1), run("b", 1, "-o", "DATASET.num_workers=2"), run("c", 2)
    assert all(np.array_equal(one[name], same[name]) for name in one)
    assert not all(np.array_equal(one[name], other[name]) for name in one)


def test_a_second_run_moves_the_first_aside(tiny_config, tmp_path, run_main):
    for _ in range(2):
        assert run_main(tiny_config, "--max_iters", "1").returncode == 0
    assert (
        load_checkpoint(str(tmp_path / "out" / "earlier-1" / "tiny_epoch_00002")).state["trainer"]["step"]
        == 2
    )
    assert load_checkpoint(str(tmp_path / "out" / "tiny_epoch_00002")).state["trainer"]["step"] == 2


def test_fine_tuning_from_weights(tiny_config, tmp_path, run_main):
    assert run_main(tiny_config, "-o", "epochs=1").returncode == 0
    weights = str(tmp_path / "out" / "tiny_epoch_00001.pdparams")
    tuned = run_main(tiny_config, "-w", weights, "-o", f"output_dir={tmp_path}/tuned", "-o", "epochs=1")
    assert tuned.returncode == 0, tuned.stdout
    assert "weights from " in tuned.stdout


@pytest.mark.slow
def test_plain_lines_without_a_terminal_and_a_bar_on_one(tiny_config, main_command, run_main, environment):
    assert "%|" not in run_main(tiny_config, "--max_iters", "2").stdout
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    process = subprocess.Popen(
        main_command(tiny_config, "--max_iters", "2"),
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
    arguments = [
        *("-o", f"MODEL.head.num_classes={len(files)}", "-o", "DATASET.batch_size=3"),
    ]
    for split in ("train", "valid"):
        crop = "RandomCrop" if split == "train" else "CenterCrop"
        transform = f"[{{Scale: {{short_size: 40}}}}, {{{crop}: {{target_size: 32}}}}]"
        arguments += ["-o", f"DATASET.{split}.file_path={tmp_path}/real.list"]
        arguments += [
            "-o",
            f"DATASET.{split}.data_prefix=''",
            "-o",
            f"PIPELINE.{split}.transform={transform}",
        ]
    done = run_main(tiny_config, *arguments, "-o", "DATASET.max_bad_share=0.5", timeout=300)
    assert done.returncode == 0, done.stdout
    listed = (tmp_path / "out" / "bad_samples.txt").read_text()
    assert str(tmp_path / "text.mp4") in listed
    assert str(tmp_path / "cut.mp4") in listed
    valid = [record for record in records(tmp_path / "out") if record["kind"] == "valid"]
    assert all(record["num_failed"] >= 2 for record in valid)
    assert all(record["num_failed"] + record["num_samples"] == len(files) for record in valid)

    strict = run_main(tiny_config, *arguments, "-o", "DATASET.max_bad_share=0.01", timeout=300)
    assert strict.returncode == 2
    assert "max_bad_share" in strict.stdout
    assert "Traceback" not in strict.stdout + strict.stderr
