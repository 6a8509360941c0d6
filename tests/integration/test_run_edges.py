"""What happens at the edges of a run: beside another, after an older checkpoint, when its end goes wrong."""

import json
import os
import re
import shutil
import signal

import pytest

from paddlevideo_fast import assembly
from paddlevideo_fast.apps.predict.recipe import read_recipe
from paddlevideo_fast.cli import train
from paddlevideo_fast.cli.commands import main as commands_main
from paddlevideo_fast.config import load_config
from paddlevideo_fast.engine import CheckpointStore, Evaluator, load_checkpoint
from paddlevideo_fast.log import setup_logging
from tests.support.json_lines import entries_of
from tests.support.launching import overriding


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def position(prefix):
    state = load_checkpoint(str(prefix)).state["trainer"]
    return state["epoch"], state["step"]


def test_a_test_beside_a_training_touches_no_file_of_it(run, out, after_run):
    mine = out / f".saving-{os.getppid()}-tiny_step_00000001.pdparams"  # as of a training that is saving now
    mine.write_bytes(b"half")
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    assert run("--test", "-w", str(out / "tiny_best.pdparams")) == 0
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before


def test_classes_that_have_moved_are_refused(run, out, tiny_config, tmp_path, capfd):
    """Labels that were sorted anew give weights a plausible accuracy on other classes."""
    for name, order in {"old": "left right up down", "new": "down left right up"}.items():
        (tmp_path / f"{name}.txt").write_text(order.replace(" ", "\n"))
    old, new = (f"DATASET.class_names={tmp_path / name}.txt" for name in ("old", "new"))
    assert run("-o", "epochs=1", "-o", old) == 0
    weights, beside = out / "tiny_best.pdparams", out / "class_names.txt"
    export = [
        "export",
        "-c",
        tiny_config,
        "-w",
        weights,
        "--output",
        tmp_path / "program",
        "--save_name",
        "net",
    ]
    predict = ["predict", "-i", weights, "--model_file", tmp_path / "program" / "net"]

    def commands(names):
        yield ["-c", tiny_config, "--test", "-w", weights, "-o", names]
        yield ["-c", tiny_config, "-o", "resume=auto", "-o", "epochs=1", "-o", names]
        yield [*export, "--override", names]

    for words in commands(old):
        assert commands_main([str(word) for word in words]) == 0
    recipe = read_recipe(tmp_path / "program" / "net.yaml")
    assert recipe.settings.class_names == ["left", "right", "up", "down"]
    capfd.readouterr()
    given = [*export, "--class_names", tmp_path / "new.txt"]
    for words in [*commands(new), given, [*predict, "-c", tiny_config, "-o", new]]:
        assert commands_main([str(word) for word in words]) == 2, words
        said = "".join(capfd.readouterr())
        assert "the classes are not those of " in said
        assert "class 0 was 'left' and is 'down'; class 1 was 'right' and is 'left'" in said
        assert ", and 1 more" in said
    assert beside.read_text() == "left\nright\nup\ndown\n"
    beside.unlink()  # a checkpoint knows its names by itself
    for words in commands(new):
        if "resume=auto" in words:
            assert commands_main([str(word) for word in words]) == 2
            assert "tiny_epoch_00001.json: class 0 was 'left'" in "".join(capfd.readouterr())
    more = ["-o", f"DATASET.class_names={tmp_path / 'more.txt'}", "-o", "MODEL.head.num_classes=5"]
    (tmp_path / "more.txt").write_text("about\nleft\nright\nup\ndown\n")
    last = ["-c", tiny_config, "--test", "-w", out / "tiny_epoch_00001.pdparams", *more]
    assert commands_main([*map(str, last)]) == 2
    said = "".join(capfd.readouterr())
    assert "class 0 was 'left' and is 'about'" in said  # and not that shapes differ
    capfd.readouterr()
    assert commands_main([*map(str, export), "--override", old]) == 0
    assert f"classes not compared: no class_names.txt beside {weights}" in "".join(capfd.readouterr())
    assert read_recipe(tmp_path / "program" / "net.yaml").settings.class_names[0] == "left"


def test_the_log_of_a_run_has_no_lines_of_the_next(tiny_config, out):
    logger = setup_logging()
    assembly.train(load_config(tiny_config, ["epochs=1", "validate=false"]))
    logger.info("of the next run")
    text = (out / "train.log").read_text()
    assert "last weights: " in text
    assert "of the next run" not in text


def test_an_abandoned_branch_steps_aside(run, out):
    assert run("-o", "epochs=3") == 0
    assert run("-o", "epochs=2", "-o", "resume_epoch=1", "-o", "keep_last=1") == 0
    assert [prefix for *_, prefix in CheckpointStore(out, "tiny").complete()] == [
        str(out / "tiny_epoch_00002")
    ]
    assert position(out / "earlier-1" / "tiny_epoch_00003") == (3, 18)
    assert run("-o", "epochs=3", "-o", "resume=auto") == 0
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines if line["kind"] == "valid"] == [1, 2, 3]


def test_another_name_in_the_same_folder_is_another_run(run, out, capfd):
    assert run("-o", "epochs=1", "-o", "model_name=tiny_big") == 0
    assert run("-o", "epochs=1", "-o", "resume=auto") == 0
    assert "holds no checkpoint yet" in capfd.readouterr().err
    assert position(out / "tiny_big_epoch_00001") == position(out / "tiny_epoch_00001") == (1, 6)
    assert run("-o", "epochs=1", "-o", "model_name='[a]*'") == 0
    assert run("-o", "epochs=2", "-o", "model_name='[a]*'", "-o", "resume=auto") == 0
    assert position(out / "[a]*_epoch_00002") == (2, 12)
    assert run("-o", "model_name=a/b") == 2


def test_a_failed_validation_keeps_the_epoch(run, out, capfd):
    wrong = ["-o", "PIPELINE.valid.transform.0.CenterCrop.target_size=64"]  # larger than the frames
    assert run("-o", "epochs=1", *wrong) == 2
    assert "tiny_step_00000006" in capfd.readouterr().err
    assert position(out / "tiny_step_00000006") == (0, 6)
    assert run("-o", "epochs=1", "-o", "resume=auto") == 0
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == [*["train"] * 6, "train_epoch", "valid"]


def test_a_signal_during_validation_saves_at_once(run, out, tmp_path, monkeypatch, capfd, assert_same_run):
    evaluate = Evaluator.run

    def signalled(*arguments, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "run", signalled)
        assert run("-o", "save_interval=9") == 128 + signal.SIGTERM
    assert capfd.readouterr().err.count("train step:") == 6
    assert '"valid"' not in (out / "metrics.jsonl").read_text(), "the validation went on to its end"
    assert position(out / "tiny_step_00000006") == (0, 6)
    assert run("-o", "resume=auto") == 0
    assert run("-o", f"output_dir={tmp_path}/whole") == 0
    assert_same_run(tmp_path / "whole", out)


def test_an_output_that_cannot_be_written_is_told_before_the_videos(run, after_run, tmp_path, capfd):
    (tmp_path / "file").write_text("")
    where = ["-o", f"output_dir={tmp_path / 'file'}"]
    assert run("--test", "-w", str(after_run / "tiny_best.pdparams"), *where) == 2
    printed = "".join(capfd.readouterr())
    told = printed.index("is a file; give a folder: the numbers will be in this log alone")
    assert told < printed.index("top1: ")


def test_steps_in_which_nothing_decodes(run, tmp_path, capfd, motion_data):
    clips = sorted((motion_data / "train").iterdir())[:7]
    (tmp_path / "bad.mp4").write_bytes(b"")
    files = [*clips, tmp_path / "bad.mp4"]
    (tmp_path / "some.list").write_text("".join(f"{path} 0\n" for path in files))
    common = ["-o", "DATASET.train.data_prefix=''", "-o", "DATASET.batch_size=1", "-o", "epochs=1"]
    some = ["-o", f"DATASET.train.file_path={tmp_path}/some.list", "-o", "DATASET.train.num_retries=1"]
    assert run(*common, *some) == 0
    (tmp_path / "none.list").write_text(f"{tmp_path}/bad.mp4 0\n" * 2)
    assert run(*common, "-o", f"DATASET.train.file_path={tmp_path}/none.list") == 2
    assert " ERROR: " in (tmp_path / "out/train.log").read_text().splitlines()[-1]
    printed = "".join(capfd.readouterr())
    assert "Traceback" not in printed
    assert "no clip of epoch 1 decodes" in printed


@pytest.mark.parametrize(
    ("flags", "num_clips", "wanted"),
    [
        (["--batch_size", "5000"], 24, 5000),
        (["--batch_size", "16", "-o", "accumulate_steps=9"], 16, 144),  # the rest of 24 is left out
        (["--batch_size", "12", "-o", "accumulate_steps=2"], 24, 24),
    ],
)
def test_the_learning_rate_follows_the_clips_that_an_update_has(run, out, capfd, flags, num_clips, wanted):
    rate = ["-o", "OPTIMIZER.learning_rate=0.001", "-o", "OPTIMIZER.base_batch_size=4", "-o", "epochs=1"]
    assert run(*flags, *rate, "-o", "validate=false") == 0
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["lr"] == pytest.approx(0.001 * num_clips / 4)
    told = f"updates are of {num_clips} in place of {wanted}, and so is the learning rate"
    assert (told in "".join(capfd.readouterr())) == (num_clips != wanted)


def test_other_ks_of_the_metric(run, out, capfd):
    assert run("-o", "epochs=1", "-o", "METRIC={name: CenterCropMetric, topk: [2, 3]}") == 0
    assert "best epoch so far: 1 (top2: " in capfd.readouterr().err
    assert position(out / "tiny_epoch_00001") == (1, 6)


def test_a_checkpoint_of_paddlevideo_goes_on_by_its_name(run, out, after_run, capfd):
    """Theirs have no JSON, and their optimizer's names mean nothing here."""
    import paddle

    (out / "tiny_epoch_00001.json").unlink()
    assert run("-o", "resume_epoch=1") == 2  # ours without its mark is a save that was cut short
    assert "was cut short" in capfd.readouterr().err
    paddle.save({"conv1_weights_velocity_0": paddle.ones([1])}, str(out / "tiny_epoch_00001.pdopt"))
    assert run("-o", "resume_epoch=1") == 0
    printed = capfd.readouterr().err
    assert "goes on after epoch 1 by its name" in printed
    assert "the optimizer starts afresh" in printed
    assert position(out / "tiny_epoch_00002") == (2, 12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("OPTIMIZER={name: Adam, learning_rate: 0.001}", "had optimizer Momentum, this one has Adam"),
        ("DATASET.batch_size=5", "had batch_size 4, this one has 5"),
        ("accumulate_steps=2", "had accumulate_steps 1, this one has 2"),
        ("seed=3", "had seed 1234, this one has 3"),
    ],
)
def test_a_resume_inside_an_epoch_refuses_other_samples(run, finished_run, capfd, change, message):
    assert run(*overriding("epochs=2", f"resume={finished_run}/tiny_step_00000004", change)) == 2
    assert message in capfd.readouterr().err


def test_a_resume_by_another_path_of_mkl_says_so(run, out, capfd, monkeypatch):
    monkeypatch.setenv("MKL_DEBUG_CPU_TYPE", "5")
    assert run("-o", "epochs=1", "-o", "save_every_steps=4") == 0
    assert "MKL_DEBUG_CPU_TYPE=5" in capfd.readouterr().err
    monkeypatch.setenv("MKL_DEBUG_CPU_TYPE", "7")
    assert run("-o", "epochs=1", "-o", f"resume={out}/tiny_step_00000004") == 0
    assert capfd.readouterr().err.count("had mkl_path 5, this one has 7: the steps to come differ") == 1


def test_a_folder_to_resume_from(run, out, after_run, tmp_path, capfd):
    assert run("--resume", out, "--output", f"{tmp_path}/on") == 0
    assert position(tmp_path / "on" / "tiny_epoch_00002") == (2, 12)
    assert run("-o", f"resume={tmp_path}", "-o", f"output_dir={tmp_path}/on") == 2
    assert "no checkpoint of 'tiny' in" in capfd.readouterr().err


def test_nothing_left_to_train_is_said(run, after_run, capfd):
    assert run("-o", "epochs=1", "--resume") == 0
    assert "nothing is left to train: epoch 1 of 1 is done" in capfd.readouterr().err


def test_the_saved_config_starts_from_the_beginning(run, out, after_run):
    assert run("-o", "epochs=2", "-o", "resume=auto") == 0
    assert load_config(out / "config.yaml").get("resume") is None


@pytest.mark.parametrize("name", ["w #1.pdparams", "a: b.pdparams", "123"])
def test_any_path_of_weights(run, finished_run, tmp_path, name):
    weights = tmp_path / name
    weights.write_bytes((finished_run / "tiny_best.pdparams").read_bytes())
    assert run("--test", "-w", str(weights)) == 0


def test_a_full_disk_at_the_start(run, after_run, capfd, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert run("-o", "epochs=1", "-o", "resume=auto") == 2
    assert "cannot be written: No space left on device" in capfd.readouterr().err


def test_weights_of_a_run_that_has_stopped_early_say_so(after_run, tmp_path, capfd):
    shutil.copytree(after_run, tmp_path / "stopped")
    config = tmp_path / "stopped/config.yaml"
    config.write_text(re.sub(r"(?m)^epochs: \d+$", "epochs: 99", config.read_text()))
    # its config names the folder of `finished_run`, which other tests copy
    own = f"output_dir={tmp_path / 'stopped'}"
    assert commands_main(["test", str(tmp_path / "stopped"), "-o", own]) == 0
    assert re.search(r"WARNING: this run has done \d of its 99 epochs\n", capfd.readouterr().err)


def test_the_folder_of_a_run_is_a_config_with_weights(after_run, tmp_path, capfd):
    best = f"weights: {after_run}/tiny_best.pdparams\n"
    assert commands_main(["test", str(after_run), "--json"]) == 0
    out, err = capfd.readouterr()
    assert best in err
    assert "this run has done" not in err
    (result,) = entries_of(out)
    assert result["weights"] == f"{after_run}/tiny_best.pdparams"
    assert result.keys() >= {"top1", "loss", "num_samples", "num_failed", "output_dir"}
    assert commands_main(["export", str(after_run), "--output", str(tmp_path / "program")]) == 0
    out, err = capfd.readouterr()
    assert best in err
    assert str(tmp_path / "program" / "tiny.pdiparams") in out.splitlines()


def test_flags_are_keys_of_the_config():
    """A seed of 0 is a seed, and a path is text, also where YAML would read a number or a truth value."""
    given = ["-w", "no", "-p", "batch_range=[1,2]", "--validate", "--amp", "--amp_level", "O2", "--seed", "0"]
    assert train.overrides_of(train.build_parser().parse_args(["x.yaml", *given]))[0] == [
        'weights="no"',
        'profiler_options="batch_range=[1,2]"',
        "validate=true",
        "amp=true",
        'amp_level="O2"',
        "seed=0",
    ]


def test_the_log_counts_the_steps_that_are_taken(run, out):
    assert run("-o", "epochs=1", "-o", "validate=false", "--max_iters", "2") == 0
    text = (out / "train.log").read_text()
    assert "8 clips an epoch in 2 batches" in text
    assert "max_iters: an epoch takes 8 of the 24 clips" in text
