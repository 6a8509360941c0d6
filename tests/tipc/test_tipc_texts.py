"""The text format, and that every command of the shipped texts is one that the tools take."""

import re
from pathlib import Path

import pytest

from paddlevideo_fast.apps.export import command as export
from paddlevideo_fast.apps.predict import command as predict
from paddlevideo_fast.cli import build_parser
from paddlevideo_fast.config import load_config
from test_tipc.tipc import commands
from test_tipc.tipc.pipeline import branches
from test_tipc.tipc.text import TipcError, read_text

ROOT = Path(__file__).resolve().parents[2]
TEXTS = sorted((ROOT / "test_tipc/configs").rglob("*.txt"))


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_tools_take_every_command(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    text = read_text(path)
    assert text.model_name == path.parent.name
    folder, weights = Path("out"), Path("out/x.pdparams")
    for mode in ("lite_train_lite_infer", "whole_train_whole_infer"):
        for branch in branches(text):
            words = commands.train_words(text, mode, branch.trainer.words, folder)
            args = build_parser().parse_args([*words, *branch.amp][1:])
            assert words[0] == "tools/main.py"
            assert load_config(args.config, args.override)["output_dir"] == "out"
            assert args.amp == (branch.trainer.name == "amp_train")
        words = commands.eval_words(text, mode, weights, folder)
        args = build_parser().parse_args(words[1:])
        assert (words[0], args.test, args.weights) == ("tools/main.py", True, "out/x.pdparams")
        test_set = load_config(args.config, args.override)["DATASET"]["test"]
        assert test_set["data_prefix"].startswith("test_tipc/data" if "lite" in mode else "data/motion")
    exports = [branch.trainer.export for branch in branches(text)]
    for line in (*exports, commands.infer_models(text)[0][1]):
        words = commands.export_words(text, line, weights, folder)
        args = export.build_script_parser().parse_args(words[1:])
        assert (words[0], args.weights, args.output) == ("tools/export_model.py", str(weights), "out")
        assert load_config(args.config, args.override)
        assert args.save_name == "inference"
    found = [one for one in commands.predictions(text, folder, 1, "p") if not one.skipped]
    assert len({one.name for one in found}) == len(found) >= 2
    for prediction in found:
        args = predict.build_parser().parse_args(prediction.words[1:])
        assert (args.model_file, args.params_file) == ("out/inference", "out/inference.pdiparams")
        assert args.json
        assert args.enable_benchmark
        assert f"batchsize_{args.batch_size}" in prediction.name


def test_a_text_of_paddlevideo_is_run_with_our_tools(workplace):
    workplace.change("python", "python3.7")
    workplace.change("norm_train", "main.py --validate -c x.yaml")
    workplace.change("--model_file", "inference.pdmodel")
    workplace.change("norm_export", "tools/export_model.py -c x.yaml")
    workplace.change("-o MODEL.backbone.pretrained", "'data/Res Net.pdparams'")
    text = read_text(workplace.text)
    (trainer,) = commands.trainers(text)
    assert trainer.words == ["tools/main.py", "--validate", "-c", "x.yaml"]
    words = commands.train_words(text, "lite_train_lite_infer", trainer.words, Path("out"))
    assert "MODEL.backbone.pretrained=data/Res Net.pdparams" in words
    assert words[-1] == "--max_iters=30"
    assert "--save_name=inference" in commands.export_words(text, trainer.export, Path("w"), Path("out"))
    first = next(commands.predictions(text, Path("out"), 0, "p"))
    assert "--model_file=out/inference" in first.words  # its ending is Paddle's to know


def read_all(path):
    """Reads everything that a text says."""
    text = read_text(path)
    assert list(branches(text))
    assert list(commands.predictions(text, Path("out"), 0, "p"))
    assert commands.infer_models(text)


def replaced(old, new):
    return lambda text: re.sub(old, new, text, count=1, flags=re.M)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (replaced("^model_name:", "model:"), r"tsm.txt:2: key model: expected model_name"),
        (replaced("^gpu_list:.*\n", ""), r"tsm.txt:4: key Global.use_gpu: expected gpu_list"),
        (replaced("^null:null\n", ""), r"tsm.txt:\d+: section train_params has 18 lines, expected 19"),
        (replaced("=eval_params=", "=evil_params="), r"tsm.txt:\d+: section evil_params: expected"),
        (replaced("=+infer_params=+\n(.*\n){24}", ""), "has no section infer_params"),
        (replaced("^eval:.*", "eval tools/main.py"), r"tsm.txt:\d+: expected a line `key:value`"),
        (lambda text: "model_name:TSM\n" + text, r"tsm.txt:1: expected a line"),
        (lambda text: "", "has no section train_params, eval_params, infer_params"),
        (
            replaced("^infer_quant:False", "infer_qant:False"),
            r"tsm.txt:\d+: key infer_qant: expected infer_quant",
        ),
    ],
)
def test_a_wrong_text_is_refused_with_its_line(workplace, change, expected):
    workplace.text.write_text(change(workplace.text.read_text()))
    with pytest.raises(TipcError, match=expected):
        read_text(workplace.text)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (
            "trainer",
            "norm_train|pact_train",
            r"tsm.txt:15: trainer pact_train: has no command; known: norm_train",
        ),
        ("norm_train", "tools/nothing.py", r"tsm.txt:16: tools/nothing.py: no such file"),
        ("norm_train", "tools/main.py -c 'x", r"tsm.txt:16: No closing quotation"),
        ("gpu_list", "-1|all", r"tsm.txt:4: gpu_list: 'all': expected -1 for the CPU"),
        ("gpu_list", "-1,0", r"tsm.txt:4: gpu_list: '-1,0': expected"),
        (
            "gpu_list",
            "198.51.100.1,198.51.100.2;0",
            r"none of 198.51.100.1, 198.51.100.2 is an address of this machine",
        ),
        ("Global.auto_cast", "int8", r"tsm.txt:6: int8: expected null, fp32 or fp16"),
        ("--use_gpu", "maybe", r"--use_gpu: 'maybe': expected True or False"),
        ("--model_file", "null", r"--model_file: give the name of the exported program"),
        ("infer_quant", "True", r"infer_quant: quantised programs are not supported"),
        ("infer_model", "null", r"infer_model: whole_infer needs weights"),
        ("infer_model", "a|b", r"infer_export: 1 commands for 2 models"),
    ],
)
def test_a_wrong_value_is_refused_with_its_line(workplace, key, value, expected):
    workplace.change(key, value)
    with pytest.raises(TipcError, match=expected):
        read_all(workplace.text)
