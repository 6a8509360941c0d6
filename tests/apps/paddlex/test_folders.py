"""A training as PaddleX starts it, and the folders that it looks into afterwards."""

import json
import os
import re
from concurrent.futures import Executor, Future

import numpy as np
import paddle
import pytest

from paddlevideo_fast.apps.paddlex import commands, folders
from paddlevideo_fast.apps.paddlex.translate import load_paddlex_config
from paddlevideo_fast.apps.predict.predictor import Predictor
from paddlevideo_fast.apps.predict.program import PADDLE_SUFFIXES
from paddlevideo_fast.modeling import build_model
from paddlevideo_fast.modeling.weights import read_weights


class _AtOnce(Executor):
    """An executor that does its work when it gets it."""

    def __init__(self, max_workers):
        assert max_workers == 1

    def submit(self, work, *args):
        future = Future()
        try:
            future.set_result(work(*args))
        except OSError as error:
            future.set_exception(error)
        return future


@pytest.fixture
def start(monkeypatch, paddlex_config, tmp_path, capfd):
    """Function that trains or tests as PaddleX does; gives what it prints, `out` and `err`.

    Exports run in this process, and training waits for them.
    """
    monkeypatch.setattr(os, "environ", dict(os.environ))
    exports = []

    def export(config, weights, folder, order):
        exports.append(folder)
        words = ["-c", config, "-o", folder, "-p", weights]
        assert commands.export([str(word) for word in words]) == 0

    monkeypatch.setattr(folders, "_run_export", export)
    monkeypatch.setattr(folders, "ThreadPoolExecutor", _AtOnce)

    def run(*words):
        (tmp_path / "config.yaml").write_text("# of PaddleX\n")
        (tmp_path / "train.log").write_text("opened by PaddleX\n")
        shared = ["-c", str(paddlex_config), "-o", f"output_dir={tmp_path}"]
        code = commands.main([*shared, *map(str, words)])
        assert code == 0, capfd.readouterr().err
        assert (tmp_path / "config.yaml").read_text() == "# of PaddleX\n"
        assert (tmp_path / "train.log").read_text() == "opened by PaddleX\n"
        return capfd.readouterr()

    run.exports = exports
    return run


def epochs_of(folder):
    return sorted(int(path.name[6:]) for path in folder.glob("epoch_*"))


@pytest.mark.slow
def test_a_training_leaves_what_paddlex_looks_for(start, tmp_path, paddlex_config, motion_dataset):
    kept = ("-o", "keep_last=2")
    start("--validate", "-o", "Global.eval_during_train=True", *kept)
    assert epochs_of(tmp_path) == [2, 3]
    result = json.loads((tmp_path / "train_result.json").read_text())
    assert result["done_flag"] is True
    assert result["models"]["last_2"]["pdparams"] == "epoch_2/epoch_2.pdparams"
    listed = [path for model in result["models"].values() for path in model.values() if isinstance(path, str)]
    assert len(listed) == 3 * 5
    assert all((tmp_path / path).is_file() for path in listed)
    for folder in [tmp_path / "best_model", tmp_path / "epoch_3"]:
        assert (folder / "config.yaml").read_text() == "# of PaddleX\n"
        assert (folder / f"{folder.name}.pdparams").is_file()
    own = tmp_path / "paddlevideo_fast"
    assert (own / "ppTSM_epoch_00003.pdparams").samefile(tmp_path / "epoch_3/epoch_3.pdparams")
    best = tmp_path / "best_model/best_model.pdparams"
    assert (own / "ppTSM_best.pdparams").read_bytes() == best.read_bytes()
    assert (tmp_path / "best_model/best_model.json").is_file()  # the run can go on from it, too

    # the test of the best weights says what validation said, in the words that PaddleX looks for
    shown = start("--test", "-o", f"Global.pretrained_model={tmp_path}/best_model/best_model.pdparams").out
    top1, top5 = map(float, re.search(r"avg_acc1=([\d.]+), avg_acc5=([\d.]+)", shown).groups())
    assert top1 == pytest.approx(result["models"]["best"]["score"], abs=1e-5)
    assert top1 <= top5 <= 1

    # and the program of the best weights, run as PaddleX runs it, says so for each video
    predictor = Predictor(tmp_path / "best_model/inference/inference")
    assert predictor.class_names == list(motion_dataset.classes)
    lines = [line.split() for line in motion_dataset.valid_list.read_text().splitlines()]
    found = predictor.predict([motion_dataset.root / name for name, _ in lines])
    right = [int(prediction.scores.argmax()) == int(label) for prediction, (_, label) in zip(found, lines)]
    assert np.mean(right) == pytest.approx(top1, abs=1e-5)

    # resumed from a copy, the run takes the same steps again and keeps what it leaves behind
    end = read_weights(tmp_path / "epoch_3/epoch_3.pdparams")
    text = start("--validate", "-o", f"Global.checkpoints={tmp_path}/epoch_2/epoch_2", *kept).err
    assert "resumed" in text
    assert epochs_of(tmp_path) == [2, 3]
    assert epochs_of(tmp_path / "earlier-1") == [3]
    again = read_weights(tmp_path / "epoch_3/epoch_3.pdparams")
    assert all((again[name] == value).all() for name, value in end.items())


def test_a_new_training_moves_an_earlier_one_aside(start, tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "_run_export", lambda *args: None)
    for _ in range(2):
        kept = ("-o", "epochs=2", "-o", "keep_last=1", "-o", "Global.eval_during_train=False")
        start(*kept, "-o", "OPTIMIZER.learning_rate=0.01")
    assert epochs_of(tmp_path) == epochs_of(tmp_path / "earlier-1") == [2]
    assert not (tmp_path / "best_model").exists()
    assert (tmp_path / "earlier-1/train_result.json").is_file()


def test_without_uniform_output_there_is_our_run_alone(start, tmp_path):
    words = ("epochs=1", "OPTIMIZER.learning_rate=0.01", "Global.uniform_output_enabled=False")
    start(*(word for setting in words for word in ("-o", setting)))
    assert not epochs_of(tmp_path)
    assert start.exports == []
    assert (tmp_path / "paddlevideo_fast/ppTSM_epoch_00001.json").is_file()


def test_an_export_that_fails_is_a_warning(start, tmp_path, monkeypatch):
    def fail(*args):
        raise OSError("no room on the disk")

    monkeypatch.setattr(folders, "_run_export", fail)
    text = start("-o", "epochs=1", "-o", "OPTIMIZER.learning_rate=0.01").err
    assert text.count("cannot be written: no room on the disk") == 1
    assert json.loads((tmp_path / "train_result.json").read_text())["done_flag"] is True


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["1", "0"])
def test_programs_are_exported_by_a_process_of_their_own(paddlex_config, tmp_path, monkeypatch, flag):
    """Paddle 3 writes the format of Paddle 2 where PaddleX's flag says so."""
    monkeypatch.setenv("FLAGS_json_format_model", flag)
    cfg, order = load_paddlex_config(paddlex_config, [], "export")
    weights = tmp_path / "w.pdparams"
    paddle.save(build_model(cfg["MODEL"], load_pretrained=False).state_dict(), str(weights))
    folders._run_export(paddlex_config, weights, tmp_path / "inference", order)
    predictor = Predictor(tmp_path / "inference/inference")
    assert predictor.recipe.settings.num_classes == 8
    assert predictor.program.model_file.suffix == (".pdmodel" if flag == "0" else PADDLE_SUFFIXES[0])


def test_several_labels_a_video_are_refused_with_the_reason(paddlex_config, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    words = ["-c", str(paddlex_config), "-o", f"output_dir={tmp_path}", "-o", "MODEL.head.activation=sigmoid"]
    assert commands.main(words) == 2
    told = "".join(capfd.readouterr())
    assert "-o #2  MODEL.head.activation: PaddleX trains and measures one class a video; use paddle" in told
