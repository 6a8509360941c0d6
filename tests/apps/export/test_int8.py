"""Programs in int8, calibrated on encoded videos, against the programs in float32."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import paddle
import pytest
import yaml

from paddlevideo_fast.apps.export import quantize, targets
from paddlevideo_fast.apps.export.export import Calibration, ExportOptions, export_model
from paddlevideo_fast.apps.predict.predictor import Predictor
from paddlevideo_fast.apps.predict.program import PADDLE_SUFFIXES
from paddlevideo_fast.config import Config
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling import classes_of
from paddlevideo_fast.modeling.weights import read_weights
from tests.support.launching import overriding
from tests.support.onnx_packages import OPSET_VERSION, needs_onnx

pytestmark = needs_onnx
OTHERWISE = {"slowfast": "onednn"}


@pytest.fixture(scope="module")
def made(trained, motion_videos, tmp_path_factory):
    """Flags of an export of weights whose classes differ from video to video, and a list of these classes."""
    folder = tmp_path_factory.mktemp("int8")
    weights = {name: np.array(value) for name, value in read_weights(trained("tsm").weights).items()}
    listed = [line.split()[0] for line in (motion_videos / "valid.list").read_text().splitlines()]
    videos = [motion_videos / name for name in listed]

    def save(name):
        paddle.save({key: paddle.to_tensor(value) for key, value in weights.items()}, str(folder / name))
        return folder / name

    program = export_model(trained("tsm").cfg, save("w.pdparams"), folder / "first").program
    logits = np.concatenate([found.logits for found in Predictor(program).predict(videos)])
    weights["head.fc.bias"] -= logits.mean(axis=0)
    classes = (logits - logits.mean(axis=0)).argmax(axis=1).tolist()
    assert len(set(classes)) > 2
    lines = [f"{name} {label}\n" for name, label in zip(listed, classes)]
    (folder / "own.list").write_text("".join(lines))

    # one channel between two convolutions is large, and the second one makes it small again
    plain = save("w.pdparams")
    for name in ("weight", "bias"):
        weights[f"backbone.res4a.conv0._batch_norm.{name}"][0] *= 3e4
    weights["backbone.res4a.conv1._conv.weight"][:, 0] /= 3e4
    data = overriding(f"DATASET.valid.data_prefix={motion_videos}", "DATASET.valid.file_path=none.list")
    words = ["tsm_motion", *data, "--onnx", "--int8", f"--calibrate={folder / 'own.list'}"]
    return {
        "plain": [*words, "-w", plain],
        "outlier": [*words, "-w", save("outlier.pdparams")],
        "videos": videos,
    }


def fitting_list(motion_videos, cfg, folder):
    """The videos of the classes that a network has."""
    lines = (motion_videos / "valid.list").read_text().splitlines(keepends=True)
    num_classes = classes_of(cfg["MODEL"])
    path = folder / "fitting.list"
    path.write_text("".join(line for line in lines if int(line.split()[1]) < num_classes))
    return path


def exported(run, words, output):
    code, _, err = run("export", *words, "--output", output)
    assert code == 0, err
    return yaml.safe_load((output / "TSM_motion.yaml").read_text())["int8"]


def test_the_program_is_small_and_predicts_as_in_float(made, run, tmp_path):
    onnx = pytest.importorskip("onnx")
    found = exported(run, made["plain"], tmp_path)
    assert (found["num_clips"], found["calibrated_with"], found["float_layers"]) == (10, 10, [])
    assert found["top1_float32"] == 1.0
    assert found["top1"] >= 0.9
    assert found["speedup"] > 0
    nodes = [node.op_type for node in onnx.load(str(tmp_path / "TSM_motion.onnx")).graph.node]
    assert nodes.count("QuantizeLinear") > nodes.count("Conv") > 5
    in_float, in_int8 = (
        [one.scores for one in Predictor(tmp_path / f"TSM_motion{ending}").predict(made["videos"][1::2])]
        for ending in (PADDLE_SUFFIXES[0], ".onnx")
    )
    differences = np.abs(np.array(in_float) - in_int8).max(axis=1)
    assert found["deviation"] == pytest.approx(differences.mean(), rel=0.3)
    assert 0 < differences.max() < 0.05


def test_the_layer_that_loses_too_much_stays_in_float(made, run, tmp_path, caplog):
    onnx = pytest.importorskip("onnx")
    found = exported(run, made["outlier"], tmp_path)
    assert found["top1"] >= 0.9
    assert 1 <= len(found["float_layers"]) <= 2
    graph = onnx.load(str(tmp_path / "TSM_motion.onnx")).graph
    inside = {value.name for value in graph.initializer}
    kept = [node for node in graph.node if node.name in found["float_layers"]]
    assert len(kept) == len(found["float_layers"])
    assert all(set(node.input[1:]) <= inside for node in kept)  # its weights are not dequantized


@pytest.mark.slow
def test_a_program_that_loses_too_much_is_not_written(made, run, tmp_path, monkeypatch):
    monkeypatch.setattr("paddlevideo_fast.apps.export.quantize._ROUNDING", -1.0)
    code, out, err = run("export", *made["plain"], "--output", tmp_path / "out")
    assert (code, out) == (2, "")
    assert "int8: with half of the layers in float, it still loses more than 1% of top-1" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--int8"], "--int8: has no effect without --onnx"),
        (["--onnx", "--calibrate", "a.list"], "--calibrate: has no effect without --int8"),
        (
            ["--onnx", "--int8", "--fp16"],
            "--fp16: the ONNX model computes in int8; leave one of the two out",
        ),
    ],
)
def test_flags_without_effect_are_told(run, words, told):
    code, _, err = run("export", "tsm_motion", *words)
    assert code == 2
    assert told in err


def test_lists_that_cannot_calibrate_are_told(made, run, trained, motion_videos, tmp_path):
    one, output = tmp_path / "one.list", tmp_path / "x"
    lines = (motion_videos / "valid.list").read_text().splitlines()
    (tmp_path / "other.list").write_text(f"{lines[0]}\n{lines[1].split()[0]} 99\n")
    one.write_text((motion_videos / "valid.list").read_text().splitlines()[0])
    for name, told in (
        ("no.list", "no.list"),
        ("one.list", "has one video, and calibrating"),
        ("other.list", "other.list:2: label 99 with num_classes 8: labels go from 0 to 7"),
    ):
        code, _, err = run("export", *made["plain"], "--calibrate", tmp_path / name, "--output", output)
        assert code == 2
        assert told in err
    tsm, options = trained("tsm"), ExportOptions(onnx_opset=OPSET_VERSION, int8=Calibration())
    without = Config({key: value for key, value in tsm.cfg.items() if key != "DATASET"})
    with pytest.raises(ConfigError, match=r"DATASET.valid: is missing; int8 reads the videos of --calibrate"):
        export_model(without, tsm.weights, output, options=options)
    assert not output.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "network", ["videomae", "mvit", "hiera", "slowfast", "x3d", "pptsm", "efficientnet_lite", "distillation"]
)
def test_other_kinds_of_networks(trained, motion_videos, tmp_path, network):
    """Only what the weights are multiplied with is in int8 in a transformer."""
    cfg = trained(network).cfg
    data = {**cfg["DATASET"]["valid"], "data_prefix": str(motion_videos)}
    cfg = type(cfg)({**cfg, "DATASET": {**cfg["DATASET"], "valid": data}})
    calibration = Calibration(str(fitting_list(motion_videos, cfg, tmp_path)), 5)
    options = ExportOptions(onnx_opset=OPSET_VERSION, int8=calibration)
    files = export_model(cfg, trained(network).weights, tmp_path, options=options)
    settings = yaml.safe_load(files.settings.read_text())
    assert settings["int8"]["num_clips"] == 5
    assert settings["int8"]["deviation"] < 0.05
    # with networks as small as these, int8 is faster on some machines only
    assert settings["cpu_runtime"] in ("onnxruntime", OTHERWISE.get(network, "paddle"))
    if network != "mvit":  # as small as this, its names are longer than its weights
        assert files.onnx.stat().st_size < files.params.stat().st_size
    if network == "videomae":  # no result of a product is quantized, only to be float again
        nodes = pytest.importorskip("onnx").load(str(files.onnx)).graph.node
        operators = [node.op_type for node in nodes]
        assert operators.count("MultiHeadAttention") == cfg["MODEL"]["backbone"]["depth"]
        assert "Softmax" not in operators
        products = {node.output[0] for node in nodes if node.op_type == "MatMul"}
        assert len(products) > 4
        assert not products.intersection(node.input[0] for node in nodes if node.op_type == "QuantizeLinear")
    if network in ("pptsm", "distillation"):  # 2D: every convolution has the channels last
        session = pytest.importorskip("onnxruntime")
        how = session.SessionOptions()
        how.optimized_model_filepath = str(tmp_path / "optimized.onnx")
        session.InferenceSession(str(files.onnx), how, providers=["CPUExecutionProvider"])
        nodes = pytest.importorskip("onnx").load(how.optimized_model_filepath).graph.node
        convolutions = [node for node in nodes if node.op_type.endswith("Conv")]
        assert {(node.op_type, node.domain) for node in convolutions} == {("QLinearConv", "com.microsoft")}
        assert not {"Sum", "Max"}.intersection(node.op_type for node in nodes)


@pytest.mark.parametrize("usual", ["onnxruntime", "paddle", "onednn"])
@pytest.mark.parametrize("int8_sec", [1.0, 3.0])
def test_predict_takes_the_program_that_was_measured_as_faster(
    exported, monkeypatch, caplog, tmp_path, usual, int8_sec
):
    files = exported("tsm", ExportOptions("uint8", onnx_opset=OPSET_VERSION))
    own = "onednn" if usual == "onednn" else "paddle"
    tried = {}

    def measured(programs, clip):
        tried.update({runtime: program.model_file for runtime, program in programs.items()})
        return {own: 2.0, "onnxruntime": 1.5, "onnxruntime in int8": int8_sec}

    monkeypatch.setattr(targets, "median_times", measured)
    clip, in_float = np.zeros((1, 8, 56, 56, 3), np.uint8), shutil.copy(files.onnx, tmp_path)
    with caplog.at_level("INFO"):
        found, speedup = targets.time_int8(files.program, Path(in_float), files.onnx, usual, clip)
    assert found == ("onnxruntime" if int8_sec < 2 else own)
    assert speedup == 1.5 / int8_sec
    assert tried == {own: files.program, "onnxruntime": Path(in_float), "onnxruntime in int8": files.onnx}
    assert ("int8 is slower" in caplog.text) == (int8_sec > 1.5)


@pytest.mark.slow
def test_swish_is_in_int8_and_the_first_to_return_to_float(trained, motion_videos, tmp_path, monkeypatch):
    import onnx

    cfg = trained("x3d").cfg
    data = {**cfg["DATASET"]["valid"], "data_prefix": str(motion_videos)}
    cfg = type(cfg)({**cfg, "DATASET": {**cfg["DATASET"], "valid": data}})
    calibration = Calibration(str(fitting_list(motion_videos, cfg, tmp_path)), 2)
    options = ExportOptions(onnx_opset=OPSET_VERSION, int8=calibration)
    whole, losses = quantize._compared, []

    def compared(*given):
        return replace(whole(*given), top1_float32=1.0, top1=1.0 - losses.pop(0))

    monkeypatch.setattr(quantize, "_compared", compared)
    in_int8 = {}
    for name, own in (("int8", [0.0]), ("float", [1.0, 0.0])):
        losses[:] = own
        files = export_model(cfg, trained("x3d").weights, tmp_path / name, options=options)
        graph = onnx.load(str(files.onnx)).graph
        made = {output: node.op_type for node in graph.node for output in node.output}
        sources = [{made.get(one) for one in node.input} for node in graph.node if node.op_type == "Mul"]
        in_int8[name] = sum(source == {"DequantizeLinear"} for source in sources)
        settings = yaml.safe_load(files.settings.read_text())
        assert settings["int8"]["float_layers"] == ([] if name == "int8" else ["Mul", "Sigmoid"])
    assert in_int8["int8"] > 0
    assert in_int8["float"] == 0


def test_missing_packages_are_named(made, run, monkeypatch, tmp_path):
    import builtins

    whole = builtins.__import__

    def lacking(name, *rest, **more):
        if name == "onnxruntime.quantization.shape_inference":
            raise ModuleNotFoundError("No module named 'ml_dtypes'", name="ml_dtypes")
        return whole(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", lacking)
    code, _, err = run("export", *made["plain"], "--output", tmp_path)
    assert code == 2
    assert "export to int8 needs the package 'ml_dtypes'" in err
