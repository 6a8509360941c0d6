"""What configs of PaddleX mean here. The sections have PaddleX's shape, around a small network."""

from __future__ import annotations

import logging
from pathlib import Path

import paddle
import pytest
import yaml

from paddlevideo_fast.apps.export import command as export
from paddlevideo_fast.apps.paddlex import commands
from paddlevideo_fast.apps.paddlex.translate import is_paddlex_config, load_paddlex_config
from paddlevideo_fast.cli import train
from paddlevideo_fast.config import load_config
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.loader import read_class_names
from paddlevideo_fast.modeling import build_model


@pytest.fixture
def write(paddlex_config, tmp_path):
    """Function that writes a config of PaddleX, changed by a function; gives its path."""

    def make(change=lambda config: None):
        config = yaml.safe_load(paddlex_config.read_text())
        change(config)
        path = tmp_path / "cfg.yml"
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        return path

    return make


@pytest.fixture(scope="module")
def weights(paddlex_config, tmp_path_factory):
    """Weights of the network with its 8 classes and with 400."""
    folder, made = tmp_path_factory.mktemp("weights"), {}
    for num_classes in (8, 400):
        overrides = [f"MODEL.head.num_classes={num_classes}", "Infer.PostProcess={}"]
        cfg, _ = load_paddlex_config(paddlex_config, overrides, "export")
        made[num_classes] = str(folder / f"{num_classes}.pdparams")
        paddle.save(build_model(cfg["MODEL"], load_pretrained=False).state_dict(), made[num_classes])
    return made


def test_global_and_infer_become_keys_of_ours(write, tmp_path):
    def change(config):
        config["Global"].update(use_visuald=False, seed=7, to_static=True, log_ranks="0", device="cpu")
        config.update(output_dir=str(tmp_path / "out"))

    cfg, order = load_paddlex_config(write(change), ["validate=true"], "train")
    assert not {"Global", "Infer", "INFERENCE"} & set(cfg)
    assert (cfg["use_visualdl"], cfg["seed"], cfg["to_static"], cfg["validate"]) == (False, 7, True, True)
    assert cfg["output_dir"] == str(tmp_path / "out/paddlevideo_fast")
    assert cfg["keep_last"] == 5
    assert order.output == tmp_path / "out"
    assert (order.model_name, order.topk, order.uniform_output) == ("PP-TSM-R50_8frames_uniform", 1, True)
    assert cfg["DATASET"]["class_names"] == order.labels
    for section in cfg["PIPELINE"].values():  # as PaddleX predicts, and by our reader
        assert section["resample"] == "bilinear"
        assert "backend" not in section["decode"]
    assert load_config(str(_saved(cfg, tmp_path))) == cfg


def _saved(cfg, folder) -> Path:
    cfg.save(folder / "saved.yaml")
    return folder / "saved.yaml"


def test_evaluation_during_training_can_be_off(write):
    cfg, _ = load_paddlex_config(write(), ["validate=true", "Global.eval_during_train=False"], "train")
    assert cfg["validate"] is False


def test_weights_mean_what_the_task_makes_of_them(write, weights):
    def asked(path, task):
        return load_paddlex_config(write(), [f"Global.pretrained_model={path}"], task)

    cfg, _ = asked(weights[8], "train")
    assert cfg["weights"] == weights[8]
    cfg, _ = asked(weights[400], "train")
    assert "weights" not in cfg
    assert cfg["MODEL"]["backbone"]["pretrained"] == weights[400]
    cfg, _ = asked(weights[400], "test")
    assert cfg["weights"] == weights[400]
    cfg, order = asked(weights[400], "export")
    assert "weights" not in cfg
    assert order.weights == weights[400]
    cfg, order = asked("/data/set/null", "train")  # what PaddleX makes of a null
    assert "weights" not in cfg
    assert cfg["MODEL"]["backbone"]["pretrained"] is None
    assert order.weights is None


def test_a_checkpoint_is_resumed_and_the_pretrained_weights_are_not_read(write, tmp_path):
    words = [f"output_dir={tmp_path}", "Global.pretrained_model=https://somewhere.else/x.pdparams"]
    elsewhere = f"{tmp_path}/other/epoch_3/epoch_3"
    cfg, _ = load_paddlex_config(write(), [*words, f"Global.checkpoints={elsewhere}"], "train")
    assert (cfg["resume"], cfg.get("weights")) == (elsewhere, None)
    # a copy of a checkpoint of our own run stands for it, so that curves and log go on
    (tmp_path / "paddlevideo_fast").mkdir()
    (tmp_path / "paddlevideo_fast/ppTSM_epoch_00003.json").touch()
    cfg, _ = load_paddlex_config(write(), [*words, f"Global.checkpoints={tmp_path}/epoch_3/epoch_3"], "train")
    assert cfg["resume"] == f"{tmp_path}/paddlevideo_fast/ppTSM_epoch_00003"


def test_an_unknown_key_of_global_is_one_sentence(write, caplog):
    with caplog.at_level(logging.WARNING, "paddlevideo_fast"):
        load_paddlex_config(write(lambda config: config["Global"].update(outputdir="x")), [], "train")
    (line,) = [line for line in caplog.messages if "Global" in line]
    assert line.endswith("Global.outputdir: unknown key; did you mean 'output_dir'?; it has no effect")
    assert "cfg.yml" in line


def test_labels_that_do_not_fit_are_numbers(write, tmp_path, caplog):
    labels = tmp_path / "labels.txt"
    labels.write_text("0 one\n1 two\n")
    words = [f"Infer.PostProcess.class_id_map_file={labels}"]
    cfg, order = load_paddlex_config(write(), words, "train")
    assert order.labels is None
    assert "class_names" not in cfg["DATASET"]
    assert "has 2 names, the model 8 classes" in caplog.text


def test_a_list_with_labels_is_a_list_of_names(tmp_path):
    path = tmp_path / "label.txt"
    path.write_text("1 riding a bike\n0 abseiling\n2 zumba\n")
    assert read_class_names(path, 3) == ["abseiling", "riding a bike", "zumba"]
    path.write_text("0 a\n2 b\n3 c\n")  # no labels of 3 classes
    assert read_class_names(path, 3) == ["0 a", "2 b", "3 c"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda config: config["Global"].update(seed="many"), r"cfg.yml:\d+  seed='many': expected int"),
        (
            lambda config: config["MODEL"]["head"].update(classes=3),
            "MODEL.head.classes: unknown key for ppTSMHead",
        ),
        (lambda config: config.pop("DATASET"), "DATASET: this section is missing"),
        (lambda config: config.update(AMP={"use_amp": True}), "AMP: unknown key"),
    ],
)
def test_other_mistakes_are_errors_with_their_line(write, change, message):
    with pytest.raises(ConfigError, match=message):
        load_paddlex_config(write(change), [], "train")


def test_configs_of_paddlevideo_go_to_the_usual_commands(monkeypatch, tmp_path):
    started = []
    for module in (train, export):
        monkeypatch.setattr(module, "run", lambda args: started.append((args.config, args.weights)))
    config = "configs/quickstart/tsm_motion.yaml"
    assert commands.main(["-c", config]) == 0
    assert commands.export(["-c", config, "-p", "x", "-o", "y"]) == 0
    assert commands.export(["-c", str(tmp_path / "missing.yaml"), "-p", "x"]) == 0
    assert started == [(config, None), (config, "x"), (str(tmp_path / "missing.yaml"), "x")]
    (tmp_path / "odd.yaml").write_text("Global: 3\n")
    assert not is_paddlex_config(tmp_path / "odd.yaml")


def test_an_export_needs_weights(write, tmp_path, capsys):
    assert commands.export(["-c", str(write()), "-o", str(tmp_path / "program")]) == 2
    assert "Global.pretrained_model: names no weights" in capsys.readouterr().err
    assert not (tmp_path / "program").exists()
