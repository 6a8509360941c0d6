"""What a GPU gets where neither the config nor the environment says anything; without a GPU."""

import os
from types import SimpleNamespace

import paddle
import pytest

from paddlevideo_fast import device
from paddlevideo_fast.assembly import build
from paddlevideo_fast.assembly.plan import plan_run
from paddlevideo_fast.config import RunSpec, load_config, startup
from paddlevideo_fast.modeling import build_for_clips

SEARCH, NORM, WORKSPACE, ADDED = (
    "FLAGS_cudnn_exhaustive_search",
    "FLAGS_cudnn_batchnorm_spatial_persistent",
    "FLAGS_conv_workspace_size_limit",
    "FLAGS_max_inplace_grad_add",
)
MOBILE = {"name": "PPTSM_MobileNetV2", "num_seg": 2, "class_num": 3, "scale": 0.25}
OFF = {"FLAGS_cudnn_deterministic": False, SEARCH: False, NORM: False, WORKSPACE: 512, ADDED: 0}


@pytest.fixture
def flags(monkeypatch):
    """The flags of a Paddle that computes on the second GPU of the machine, with 24 GiB."""
    flags = dict(OFF)

    gpu = SimpleNamespace(name="NVIDIA A10", major=8, minor=6, total_memory=24 << 30)
    monkeypatch.setattr(paddle, "get_device", lambda: "gpu:1")
    monkeypatch.setattr(paddle, "get_flags", lambda name: {name: flags[name]})
    monkeypatch.setattr(paddle, "set_flags", flags.update)
    monkeypatch.setattr(paddle.device.cuda, "get_device_properties", {1: gpu}.__getitem__)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FLAGS_")}
    monkeypatch.setattr(os, "environ", environment)
    return flags


def test_steps_of_one_shape_get_the_search_and_16_bits_the_batch_norm(flags):
    told = device.tune_gpu(has_fixed_shapes=True, in_16_bits=True)
    assert flags == {**OFF, SEARCH: True, NORM: True, WORKSPACE: 1536, ADDED: 8}
    assert told == (
        "NVIDIA A10 (sm 86, 24 GiB), cuDNN search on, persistent batch norm on, workspace 1536 MiB"
    )


def test_a_search_for_each_step_and_an_overflow_in_32_bits_are_not_risked(flags):
    told = device.tune_gpu(has_fixed_shapes=False, in_16_bits=False)
    assert (flags[SEARCH], flags[NORM], flags[WORKSPACE]) == (False, False, 1536)
    assert "cuDNN search off, persistent batch norm off" in told


def test_a_large_gpu_has_no_endless_workspace(flags, monkeypatch):
    gpu = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, total_memory=141 << 30)
    monkeypatch.setattr(paddle.device.cuda, "get_device_properties", lambda number: gpu)
    assert device.tune_gpu(True, False).endswith("workspace 4096 MiB")


def test_no_search_where_paddle_must_repeat_itself(flags):
    """Paddle's convolutions refuse both flags together."""
    flags["FLAGS_cudnn_deterministic"] = True
    device.tune_gpu(True, True)
    assert not flags[SEARCH]


def test_the_environment_and_runtime_win(flags, tiny_config):
    os.environ[WORKSPACE] = "300"
    startup.prepare_process(
        str(tiny_config), ["RUNTIME.cudnn_exhaustive_search=false", "RUNTIME.conv_workspace_size_limit=900"]
    )
    flags[WORKSPACE] = 300  # as Paddle reads its environment
    told = device.tune_gpu(True, True)
    assert told.endswith("cuDNN search off, persistent batch norm on, workspace 300 MiB")


def test_on_a_cpu_nothing_changes(monkeypatch):
    monkeypatch.setattr(paddle, "set_flags", None)
    assert device.tune_gpu(True, True) == ""


@pytest.mark.parametrize(
    ("name", "overrides", "expected"),
    [
        ("tsm_motion", ["amp=true"], (True, True)),
        ("tsm_motion", [], (True, False)),
        ("slowfast_motion_28_multigrid", ["MULTIGRID.SHORT_CYCLE=true"], (False, False)),
        ("slowfast_motion_28_multigrid", ["amp=true"], (True, True)),  # a shape changes between epochs alone
    ],
)
def test_a_training_asks_for_what_its_steps_are(name, overrides, expected, motion_data, monkeypatch, caplog):
    found = []
    monkeypatch.setattr(build, "tune_gpu", lambda *asked: found.append(asked) or "a GPU")
    data = [
        f"DATASET.train.{key}={motion_data}{end}"
        for key, end in (("data_prefix", ""), ("file_path", "/train.list"))
    ]
    spec = RunSpec.for_training(load_config(name, [*overrides, *data, "validate=false"]))
    with caplog.at_level("INFO", logger="paddlevideo_fast"):
        build.training_setup(plan_run(spec), load_pretrained=False)
    assert found == [expected]
    assert "device: a GPU\n" in f"{caplog.text}"


@pytest.mark.parametrize(
    ("changes", "layout"),
    [
        ({}, "NTHWC"),
        ({"backbone": {"data_format": "NCHW"}}, "NTCHW"),  # what a config says stays
        ({"head": {"data_format": "NCHW"}}, "NTCHW"),
        ({"backbone": MOBILE, "head": {"name": "MoViNetHead"}}, "NTCHW"),  # it has one layout
    ],
)
def test_2d_networks_in_16_bits_have_channels_last(flags, changes, layout):
    section = {
        "framework": "Recognizer2D",
        "backbone": {"name": "ResNetTSM", "depth": 18, "num_seg": 2},
        "head": {"name": "TSMHead", "num_classes": 3, "in_channels": 512, "num_seg": 2},
    }
    for name, change in changes.items():
        section[name] = change if "name" in change else {**section[name], **change}
    assert build_for_clips(section, in_16_bits=True).layout == layout
    assert build_for_clips(section).layout == "NTCHW"
