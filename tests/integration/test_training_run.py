"""From one YAML file to a checkpoint, through the command line, also with precise batch norms."""

import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios

import numpy as np
import paddle
import pytest

from paddlevideo_fast.assembly import plan_run, training_setup
from paddlevideo_fast.config import RunSpec, load_config
from paddlevideo_fast.engine import Evaluator, load_checkpoint
from paddlevideo_fast.engine.callbacks.precise_bn import population_statistics
from paddlevideo_fast.loader import build_loader
from paddlevideo_fast.machine import available_cores
from paddlevideo_fast.modeling import load_weights, read_weights
from tests.support.json_lines import entries_of
from tests.support.launching import MAIN, overriding


@pytest.mark.annex
@pytest.mark.smoke
def test_train_validate_and_test(tiny_config, tmp_path, run_main, records):
    done = run_main(tiny_config, "--json", "-o", "RUNTIME.allocator_strategy=naive_best_fit", fresh=True)
    cores = ",".join(map(str, available_cores()))
    flags = "FLAGS_allocator_strategy=naive_best_fit"
    assert f"CPU threads: 1, on cores {cores}; Paddle flags: {flags}" in done.stderr
    if not paddle.is_compiled_with_cuda():  # without a device such a build warns that it finds no cuDNN
        assert all(  # the framework's import warnings stay off the console
            re.match(r"\[\d\d/\d\d \d\d:\d\d:\d\d\] (INFO|WARNING): ", line)
            for line in done.stderr.splitlines()
        )
    assert len(re.findall(r"epoch:\[  \d/2  \] train step:\d    loss: ", done.stderr)) == 12

    out = tmp_path / "out"
    kinds = [record["kind"] for record in records(out)]
    assert kinds == ([*["train"] * 6, "train_epoch", "valid"]) * 2
    names = {path.name for path in out.iterdir()}
    assert {"tiny_epoch_00001.pdparams", "tiny_epoch_00002.pdopt", "tiny_best.pdparams"} <= names
    assert {"config.yaml", "train.log", "vdl"} <= names

    (trained,) = entries_of(done.stdout)
    weights, epoch = str(out / "tiny_best.pdparams"), trained["best"]["epoch"]
    valid = {record["epoch"]: record for record in records(out) if record["kind"] == "valid"}
    best = max(record["top1"] for record in valid.values())
    assert trained["best"] == {"top1": best, "epoch": epoch}
    assert valid[epoch]["top1"] == best
    assert (trained["weights"], trained["output_dir"], trained["epochs"]) == (weights, str(out), 2)
    assert trained["last_validation"]["num_samples"] == 8

    tested = run_main(tiny_config, "--test", "-w", weights)
    assert f"INFO: test top1: {best:.5f} (95 % interval " in tested.stderr
    lines = dict(line.split(": ") for line in tested.stdout.splitlines())
    assert (lines["top1"], lines["weights"], lines["output_dir"]) == (f"{best:.5f}", weights, str(out))


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
    assert "%|" not in run_main(tiny_config, "--max_iters", "2").stderr
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


# --- A run of the command line that starts from other classes, freezes, frees, and recomputes


OPTIONS = (
    "validate=false",
    "max_iters=2",
    "FINETUNE={freeze: [stem, res2], unfreeze_at: 1}",
    "OPTIMIZER.layer_decay=0.5",
    "RUNTIME.recompute=true",
    "EMA={decay: 0.9}",
    "MODEL.head.num_classes=5",
)


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """Files of the names of the classes of the first run and of the second."""
    folder = tmp_path_factory.mktemp("names")
    (folder / "old.txt").write_text("left\nright\nup\ndown\n")
    (folder / "new.txt").write_text("up\nround\ndown\nright\nstill\n")
    return folder


def test_a_run_from_a_checkpoint_of_other_classes(tiny_config, run_main, tmp_path, names):
    old, new = (f"DATASET.class_names={names / file}" for file in ("old.txt", "new.txt"))
    run_main(tiny_config, *overriding("epochs=1", "max_iters=1", "validate=false", old))
    weights = tmp_path / "out" / "tiny_epoch_00001.pdparams"
    assert (tmp_path / "out" / "class_names.txt").read_text() == (names / "old.txt").read_text()
    arguments = [*overriding(*OPTIONS, new), "-w", str(weights)]
    runs = {}
    for name, further in {"whole": [], "cut": ["epochs=1"]}.items():
        output = f"output_dir={tmp_path / name}"
        runs[name] = run_main(tiny_config, *arguments, *overriding(output, *further))
    told = runs["whole"].stdout + runs["whole"].stderr
    assert "weights from " in told
    assert "kept 3 of 5 classes by name; 2 start anew" in told
    assert "frozen: stem, res2, 0.00 M of 0.02 M parameters, until epoch 1 ends" in told
    assert "learning rate: stem frozen, res2 frozen, res3 0.125, res4 0.25, res5 0.5, head 5 to 10" in told
    assert "epoch 2: 12 more parameter tensors train from here on" in told
    warning = "FINETUNE.unfreeze_at: the run ends after 1 epoch, so some parts never train"
    assert warning in runs["cut"].stdout + runs["cut"].stderr
    run_main(tiny_config, *overriding(*OPTIONS, new, f"output_dir={tmp_path / 'cut'}", "resume=auto"))
    start, frozen = (read_weights(path) for path in (weights, tmp_path / "cut" / "tiny_epoch_00001.pdparams"))
    for key in ("backbone.conv._conv.weight", "backbone.res2a.conv0._batch_norm._variance"):
        np.testing.assert_array_equal(frozen[key], start[key])
    ends = [read_weights(tmp_path / name / "tiny_epoch_00002.pdparams") for name in ("whole", "cut")]
    for key, value in ends[0].items():
        np.testing.assert_array_equal(ends[1][key], value, key)
    assert (ends[0]["backbone.conv._conv.weight"] != start["backbone.conv._conv.weight"]).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["FINETUNE={freeze: [stem, layer1]}"],
            "FINETUNE.freeze.1=layer1: fits no stage (stem, res2, res3, res4, res5, head) and no name of a "
            "parameter; a name may have * in it, as in backbone.*.bias",
        ),
        (["RUNTIME.recompute=[res7]"], "RUNTIME.recompute.0=res7: no such stage; the stages are stem, res2"),
    ],
)
def test_wrong_settings_are_one_sentence_with_their_place(tiny_config, assert_refused, options, message):
    assert_refused(tiny_config, f"-o #1  {message}", *options)


def test_a_list_of_names_beside_the_weights_that_does_not_fit(
    finished_run, tiny_config, tmp_path, names, assert_refused
):
    weights = tmp_path / "tiny.pdparams"  # the mark beside a checkpoint says the names, too
    shutil.copy(finished_run / "tiny_epoch_00001.pdparams", weights)
    (tmp_path / "class_names.txt").write_text("left\nright\n")
    new = f"DATASET.class_names={names / 'new.txt'}", "MODEL.head.num_classes=5", "validate=false"
    message = "class_names.txt: has 2 names, the model 4 classes"
    assert_refused(tiny_config, message, *new, flags=["-w", str(weights)])


# --- PRECISEBN in a run of the command line on real clips: the statistics of the weights that are saved


def test_a_checkpoint_holds_the_statistics_of_the_training_data(run_main, tiny_config, tmp_path):
    options = [
        "DATASET.batch_size=7",
        "DATASET.num_workers=1",
        "epochs=1",
        "PRECISEBN={preciseBN_interval: 2}",
    ]
    run_main(tiny_config, *overriding(*options))
    saved = tmp_path / "out" / "tiny_epoch_00001.pdparams"
    weights = read_weights(saved)

    setup = training_setup(plan_run(RunSpec.for_training(load_config(tiny_config, options))))
    load_weights(setup.model, str(saved), strict=True)
    loader = build_loader(
        setup.split.dataset, batch_size=7, num_workers=0, shuffle=True, drop_last=False, seed=1234
    )
    assert [len(batch) for batch in loader.epoch(1)] == [7, 7, 7, 3]  # training itself leaves the last out
    found = population_statistics(Evaluator(loader, setup.split.preprocess), setup.model, epoch=1)
    assert len(found) > 5
    for name, (mean, variance) in found.items():
        for key, value in (("_mean", mean), ("_variance", variance)):
            saved_value = weights[f"{name}.{key}"]
            np.testing.assert_allclose(saved_value, value.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)
