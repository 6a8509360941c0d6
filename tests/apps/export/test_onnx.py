"""Checkpoints to ONNX, and onnxruntime's answers; `test_predict.py` has them on encoded videos."""

import copy
import dataclasses
import importlib.metadata
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.static import InputSpec

from paddlevideo_fast.apps.export import targets
from paddlevideo_fast.apps.export.export import ExportOptions, export_model
from paddlevideo_fast.apps.export.onnx_conversion import write_onnx
from paddlevideo_fast.apps.predict.predictor import Predictor
from paddlevideo_fast.apps.predict.program import (
    PADDLE_SUFFIXES,
    OnnxProgram,
    PaddleProgram,
    ProgramOptions,
    _onnx_providers,
    find_program,
    open_program,
)
from paddlevideo_fast.cli.commands import main
from paddlevideo_fast.errors import ConfigError, MissingExtraError, ProgramError
from paddlevideo_fast.machine import num_cores
from paddlevideo_fast.modeling import Preprocess
from paddlevideo_fast.modeling.heads import mean_logits
from tests.apps.conftest import close, logits_of
from tests.support.json_lines import entries_of
from tests.support.onnx_packages import OPSET_VERSION, needs_onnx

FLOAT32, UINT8 = (ExportOptions(dtype, onnx_opset=OPSET_VERSION) for dtype in ("float32", "uint8"))


def write_program_of_sizes(path):
    """Writes a valid .onnx file whose output, int64, is the shape of its input."""
    onnx = pytest.importorskip("onnx")
    clips = onnx.helper.make_tensor_value_info("clips", onnx.TensorProto.FLOAT, [2])
    sizes = onnx.helper.make_tensor_value_info("sizes", onnx.TensorProto.INT64, [1])
    node = onnx.helper.make_node("Shape", ["clips"], ["sizes"])
    graph = onnx.helper.make_graph([node], "graph", [clips], [sizes])
    opset = onnx.helper.make_opsetid("", OPSET_VERSION)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), path)


def deviates_nowhere(run, path, sizes, input_dtype):
    """Compares an .onnx file with the network on random clips: `sizes` are their N, T, H, W."""
    program = open_program(path)
    preprocess = Preprocess(*run.normalization, run.model.layout)
    rng = np.random.default_rng(3)
    for size in sizes:
        pixels = rng.integers(0, 256, (*size, 3), np.uint8)
        clips = preprocess.in_numpy(pixels)
        expected = logits_of(run.model, clips)
        assert len({tuple(row) for row in expected.round(4).tolist()}) == size[0]  # the clips differ
        assert close(program.run(pixels if input_dtype == "uint8" else clips), expected), size


@needs_onnx
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_logits_of_mean_probabilities_are_finite_in_programs(activation, tmp_path):
    """Near -115, a sigmoid in float32 is 0, and its logarithm -inf."""

    class Mean(nn.Layer):  # Paddle 2.6 traces no closures, and its paddle2onnx needs a parameter
        def __init__(self):
            super().__init__()
            self.zero, self.activation = self.create_parameter([1], is_bias=True), activation

        def forward(self, logits):
            return mean_logits(logits + self.zero, "probabilities", self.activation)

    logits = np.random.default_rng(0).uniform(-115, 115, (3, 4, 5)).astype("float32")
    network = paddle.jit.to_static(Mean(), input_spec=[InputSpec([None, 4, 5])], full_graph=True)
    paddle.jit.save(network, str(tmp_path / "mean"))
    write_onnx(tmp_path / f"mean{PADDLE_SUFFIXES[0]}", tmp_path / "mean.onnx", OPSET_VERSION)
    session = pytest.importorskip("onnxruntime").InferenceSession(str(tmp_path / "mean.onnx"))
    (found,) = session.run(None, {session.get_inputs()[0].name: logits})
    expected = mean_logits(paddle.to_tensor(logits), "probabilities", activation).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@needs_onnx
@pytest.mark.smoke
def test_slopes_and_pads_keep_their_numbers(tmp_path):
    pads = [nn.Pad2D(1, value=value) for value in (0.0, 0.5, 0.0, -2.0)]
    layers = [nn.Linear(4, 8), nn.LeakyReLU(0.25), *pads, nn.Linear(16, 4), nn.LeakyReLU(0.01)]
    network = nn.Sequential(*layers)
    traced = paddle.jit.to_static(network, input_spec=[InputSpec([None, 1, 3, 4])], full_graph=True)
    paddle.jit.save(traced, str(tmp_path / "numbers"))
    write_onnx(tmp_path / f"numbers{PADDLE_SUFFIXES[0]}", tmp_path / "numbers.onnx", OPSET_VERSION)
    session = pytest.importorskip("onnxruntime").InferenceSession(str(tmp_path / "numbers.onnx"))
    values = np.linspace(-8, 8, 24, dtype="float32").reshape(2, 1, 3, 4)
    (found,) = session.run(None, {session.get_inputs()[0].name: values})
    expected = nn.Sequential(*layers)(paddle.to_tensor(values)).numpy()
    assert (expected < 0).any()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@needs_onnx
@pytest.mark.smoke
def test_the_command_writes_onnx_with_free_axes_or_says_why_not(trained, tmp_path, capfd):
    words = ["export", "-c", "tsm_motion", "-w", str(trained("tsm").weights), "--uint8"]
    words += ["--input_shape=-1,-1,-1", "--onnx"]
    assert main([*words, "--output", str(tmp_path / "bad"), "--opset_version", "99"]) == 2
    out, err = capfd.readouterr()  # of the converter's process, too
    assert (out, err.count("ProgramError")) == ("", 1)
    assert "cannot write it with opset_version 99" in err
    assert "is aborted" in err.splitlines()[-1]
    assert not (tmp_path / "bad").exists()
    assert main([*words, "--output", str(tmp_path / "good"), "--save_name", "portable"]) == 0
    written = [Path(line) for line in capfd.readouterr().out.split()]
    assert sorted(written) == sorted((tmp_path / "good").iterdir())
    sizes = [(1, 8, 56, 56), (2, 8, 48, 64), (3, 8, 33, 57), (5, 8, 64, 48)]
    deviates_nowhere(trained("tsm"), tmp_path / "good" / "portable.onnx", sizes, "uint8")
    assert main([*words[:-1], "--opset_version", "11"]) == 2


@pytest.mark.slow
@needs_onnx
@pytest.mark.parametrize(
    "network",
    [
        *("videomae", "vjepa2", "timesformer", "pptsm", "i3d", "x3d", "swin", "mvit", "hiera"),
        *("efficientnet_lite", "distillation"),
    ],
)
def test_every_kind_of_network_converts(trained, tmp_path, network):
    run = trained(network)
    files = export_model(run.cfg, run.weights, tmp_path, options=FLOAT32)
    sides = {"pptsm": 56, "efficientnet_lite": 56, "distillation": 56, "videomae": 28, "vjepa2": 28}
    side = sides.get(network, 40)
    deviates_nowhere(run, files.onnx, [(1, 8, side, side), (3, 8, side, side)], "float32")


def test_channels_last_are_refused_with_the_way_out(trained, tmp_path):
    run = trained("tsm")
    cfg = copy.deepcopy(run.cfg)
    cfg["MODEL"]["backbone"]["data_format"] = cfg["MODEL"]["head"]["data_format"] = "NHWC"
    with pytest.raises(ProgramError, match="set data_format to NCHW .* changes no weight"):
        export_model(cfg, run.weights, tmp_path, options=ExportOptions(onnx_opset=13))
    assert list(tmp_path.iterdir()) == []


@needs_onnx
def test_threads_and_optimization_are_onnxruntimes(exported, trained):
    path = exported("tsm", FLOAT32).onnx

    def threads_with(num_threads):
        before = {*os.listdir("/proc/self/task")}
        program = open_program(path, options=ProgramOptions(cpu_threads=num_threads, optimize=False))
        clips = np.random.default_rng(1).standard_normal((2, 8, 3, 56, 56)).astype("float32")
        assert close(program.run(clips), logits_of(trained("tsm").model, clips))
        return len({*os.listdir("/proc/self/task")} - before)  # threads of other programs may end meanwhile

    assert (threads_with(1), threads_with(4)) == (0, 3)  # besides the calling one
    assert threads_with(None) == num_cores() - 1


@needs_onnx
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ProgramOptions(providers=("tensorrt",)),
            r"tensorrt: onnxruntime .* pip install \"onnxruntime-gpu\[cuda,cudnn\]\" in its place",
        ),
        (ProgramOptions(providers=("cuda",)), "cuda: onnxruntime .* is built without CUDAExecutionProvider"),
        (ProgramOptions(precision="fp16"), "precision fp16: cpu runs .* export it with --fp16"),
        (ProgramOptions(use_mkldnn=True), "enable_mkldnn: its operators are Paddle"),
    ],
)
def test_a_provider_that_is_not_there_is_one_sentence(exported, monkeypatch, options, told):
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(ProgramError, match=told) as caught:
        open_program(exported("tsm", FLOAT32).onnx, options=options)
    assert len(str(caught.value).splitlines()) == 1


@needs_onnx
def test_convolutions_on_a_gpu_are_chosen_without_an_exhaustive_search():
    chain = _onnx_providers("tensorrt", ProgramOptions(gpu_mem_mb=2))
    assert [one if isinstance(one, str) else one[0] for one in chain] == [
        "TensorrtExecutionProvider",
        "CUDAExecutionProvider",
        "CPUExecutionProvider",
    ]
    assert chain[1][1] == {"device_id": 0, "gpu_mem_limit": 2 << 20, "cudnn_conv_algo_search": "HEURISTIC"}


@needs_onnx
def test_a_provider_whose_libraries_do_not_load_is_told(exported, trained, monkeypatch, caplog, capsys):
    there = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: there)
    searched = []
    monkeypatch.setattr(
        "onnxruntime.preload_dlls", lambda: searched.append(print("Failed to load libcudnn")), raising=False
    )
    path = exported("tsm", FLOAT32).onnx
    open_program(path)
    assert searched == []  # a CPU needs none of them
    with pytest.raises(
        ProgramError,
        match=r"cuda: onnxruntime .* cannot load CUDAExecutionProvider.*\(Failed to load libcudnn\)$",
    ):
        open_program(path, options=ProgramOptions(providers=("cuda",)))
    with caplog.at_level("WARNING"):
        program = open_program(path, options=ProgramOptions(providers=("tensorrt", "cuda", "cpu")))
    assert [text.partition(":")[0] for text in caplog.messages] == ["tensorrt", "cuda"]
    assert program.provider == "cpu"
    assert len(searched) == 3
    assert "libcudnn" not in capsys.readouterr().out
    clips = np.random.default_rng(1).standard_normal((2, 8, 3, 56, 56)).astype("float32")
    assert close(program.run(clips), logits_of(trained("tsm").model, clips))


@pytest.mark.slow
@needs_onnx
def test_a_program_in_16_bits_takes_and_gives_32(exported, trained):
    files = exported("tsm", dataclasses.replace(UINT8, onnx_fp16=True))
    assert files.onnx.stat().st_size < 0.6 * exported("tsm", UINT8).onnx.stat().st_size
    run = trained("tsm")
    pixels = np.random.default_rng(3).integers(0, 256, (3, 8, 56, 56, 3), np.uint8)
    logits = open_program(files.onnx).run(pixels)
    expected = logits_of(run.model, Preprocess(*run.normalization, run.model.layout).in_numpy(pixels))
    deviation = np.abs(logits - expected).max() / np.abs(expected).max()
    assert logits.dtype == np.float32
    assert 0 < deviation < 0.02


@needs_onnx
def test_wrong_onnx_files_are_one_error(exported, tmp_path):
    files = exported("tsm", FLOAT32)
    content = files.onnx.read_bytes()
    half = content[: len(content) // 2]
    wrong = {"short": half, "empty": b"", "text": b"no program\n" * 9, "changed": content[9:]}
    for name, data in wrong.items():
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(data)
        with pytest.raises(ProgramError, match=rf"{name}\.onnx: onnxruntime [\d.]+ cannot load it") as caught:
            open_program(path)
        assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(ProgramError, match="no such file"):
        open_program(tmp_path / "missing.onnx")
    with pytest.raises(ProgramError, match="has its weights in it"):
        open_program(files.onnx, files.params)
    with pytest.raises(ProgramError, match=r"does not run on float32 \[1, 8, 5, 56, 56\]"):
        open_program(files.onnx).run(np.zeros((1, 8, 5, 56, 56), "float32"))
    write_program_of_sizes(tmp_path / "sizes.onnx")
    with pytest.raises(ProgramError, match=r"sizes\.onnx: its first output is no logits"):
        open_program(tmp_path / "sizes.onnx")
    alone = tmp_path / "alone.onnx"
    alone.write_bytes(content)
    with pytest.raises(ConfigError, match=r"alone\.yaml"):
        Predictor(alone)


@pytest.mark.slow
@needs_onnx
def test_the_files_of_two_exports_are_not_mixed(exported, trained, tmp_path, monkeypatch):
    for path in exported("tsm", UINT8).all:
        shutil.copy(path, tmp_path)
    model = tmp_path / exported("tsm", UINT8).onnx.name
    assert isinstance(Predictor(model).program, OnnxProgram)
    assert isinstance(Predictor(model.with_suffix("")).program, OnnxProgram)  # the faster one
    on_cpu = ProgramOptions(providers=["cpu"])
    assert isinstance(Predictor(model.with_suffix(""), options=on_cpu).program, OnnxProgram)
    with_onednn = Predictor(model.with_suffix(""), options=ProgramOptions(use_mkldnn=True)).program
    assert isinstance(with_onednn, PaddleProgram)
    assert isinstance(Predictor(find_program(model.with_suffix(""))).program, PaddleProgram)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "onnxruntime", None)
        assert isinstance(Predictor(model.with_suffix("")).program, PaddleProgram)
    content = bytearray(model.read_bytes())
    content[-5] ^= 1
    model.write_bytes(content)
    with pytest.raises(ProgramError, match=r"\.onnx: is damaged, or of another export"):
        Predictor(model)
    export_model(trained("tsm").cfg, trained("tsm").weights, tmp_path)  # float32, without ONNX
    with pytest.raises(ProgramError, match=r"\.onnx: .*\.yaml is of an export that wrote .* only"):
        Predictor(model)
    assert isinstance(Predictor(model.with_suffix("")).program, PaddleProgram)
    for path in tmp_path.iterdir():
        if path.suffix not in (".onnx", ".yaml"):
            path.unlink()
    assert find_program(model.with_suffix("")) == model


@pytest.mark.slow
@needs_onnx
def test_an_onnx_program_with_other_logits_is_not_kept(exported, trained, tmp_path, monkeypatch):
    run, written = trained("tsm"), exported("tsm", FLOAT32).onnx
    weights = {name: value * 1.001 for name, value in run.model.state_dict().items()}
    paddle.save(weights, str(tmp_path / "other.pdparams"))
    monkeypatch.setattr(targets, "write_onnx", lambda model_file, target, opset: shutil.copy(written, target))
    with pytest.raises(ProgramError, match=r"\.onnx: its logits are not the network's"):
        export_model(run.cfg, tmp_path / "other.pdparams", tmp_path / "out", options=FLOAT32)
    assert [path.name for path in tmp_path.iterdir()] == ["other.pdparams"]


def test_a_missing_or_unfit_package_is_named(monkeypatch, tmp_path):
    (tmp_path / "net.onnx").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"onnxruntime.*paddlevideo_fast\[onnx\]"):
        open_program(tmp_path / "net.onnx")

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(MissingExtraError, match=r"paddle2onnx.*paddlevideo_fast\[onnx\]"):
        write_onnx(tmp_path / "net.json", tmp_path / "net.onnx", 13)
    unfit, needed = (
        ("2.1.0", "paddle2onnx<2") if paddle.__version__.startswith("2.") else ("1.3.1", "paddle2onnx>=2")
    )
    monkeypatch.setattr(importlib.metadata, "version", lambda name: unfit)
    with pytest.raises(ProgramError, match=f'paddle2onnx {unfit} does not read .* pip install "{needed}"'):
        write_onnx(tmp_path / "net.json", tmp_path / "net.onnx", 13)


@needs_onnx
def test_backends_are_measured_or_named(exported, run, motion_videos):
    """Each backend predicts; one that is not there is an error."""
    video = sorted(motion_videos.glob("valid/*.mp4"))[0]
    both, alone = exported("tsm", FLOAT32).program, exported("tsm", ExportOptions()).program
    found = {}
    for backend in ("paddle", "onednn", "onnxruntime"):
        words = ["-i", video, "--backend", backend, "--json", "--cpu_threads", "1"]
        code, out, err = run("predict", both.with_suffix(""), *words)
        assert code == 0, err
        found[backend] = entries_of(out)[0]["top"][0]
    assert len({one["class_id"] for one in found.values()}) == 1
    for words, told in (
        (
            [alone.with_suffix(""), "--backend", "onnxruntime"],
            "has no .onnx of this export, or no onnxruntime",
        ),
        ([both, "--backend", "paddle"], "the program is named with its file ending"),
        ([both.with_suffix(""), "--backend", "paddle", "--device", "gpu"], "--backend: is for a CPU"),
        (
            [both.with_suffix(""), "--backend", "paddle", "--enable_mkldnn", "True"],
            "says the same as --backend",
        ),
    ):
        code, _, err = run("predict", *words, "-i", video)
        assert code == 2
        assert told in err
