"""The check of a device: what it says without one, and what it does on one, rehearsed on the CPU."""

import json
from pathlib import Path

import numpy as np
import pytest

from paddlevideo_fast.apps.doctor import device_check
from paddlevideo_fast.apps.doctor.device_check import CHECKS, check_device, table
from paddlevideo_fast.cli.commands import COMMANDS
from paddlevideo_fast.machine import Gpu

main = COMMANDS["doctor"].start

ROOT = Path(__file__).resolve().parents[3]
REASONS = ("this Paddle is built for CPUs", "this Paddle is built for GPUs and finds none")

pytestmark = pytest.mark.skipif(device_check.no_gpu() is None, reason="there is a GPU: tests/gpu runs")


@pytest.mark.smoke
def test_without_a_gpu_nothing_passes(tmp_path, capsys):
    assert main(["--device-check", "--output", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    result = json.loads((tmp_path / "device_check.json").read_text())
    assert [each["name"] for each in result["checks"]] == list(CHECKS)
    assert {each["outcome"] for each in result["checks"]} == {"not run"}
    assert all(each["figure"].startswith(REASONS) for each in result["checks"])
    assert told.count("not run") == len(CHECKS)


def test_the_checks_compute_what_they_say(monkeypatch, capsys, tmp_path):
    """On the CPU a device that is the CPU deviates by nothing, and one that computes otherwise is found."""
    names = ["training, float32", "training, bfloat16 O1", "training, channels last", "copies to the device"]
    monkeypatch.setattr(device_check, "CHECKS", {name: CHECKS[name] for name in names})
    seen = []
    result = check_device(seen.append, "cpu")
    assert seen == names
    assert [each["outcome"] for each in result["checks"]] == ["ok", "not run", "ok", "ok"]
    assert "12 batches are the same on the device" in table(result)
    assert device_check._serving("cpu", is_onnx=False)("cpu").startswith("deviates by 0.0e+00")
    exact = device_check.losses_on("cpu")
    assert abs(exact[0] - np.log(8)) > 1e-3  # the clips count: not the loss of equal logits of 8 classes

    def losses(device, *_, **__):
        return exact if device == "cpu" else tuple(loss * 1.01 for loss in exact)

    monkeypatch.setattr(device_check, "losses_on", losses)
    monkeypatch.setattr(device_check, "no_gpu", lambda: None)
    monkeypatch.setattr(device_check, "CHECKS", {names[0]: CHECKS[names[0]]})
    monkeypatch.setattr("paddle.get_device", lambda: "gpu:0")
    monkeypatch.setattr(device_check, "_gpu_in_use", lambda: None)
    monkeypatch.setattr(device_check, "environment", dict)
    assert main(["--device-check", "--output", str(tmp_path)]) == 1
    assert "failed  training, float32" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("sm", "wheel"), [(75, None), (89, None), (90, 'paddlepaddle-gpu>=3" -i'), (120, "/cu129/")]
)
def test_a_gpu_without_code_in_this_paddle_fails_with_the_wheel_it_needs(monkeypatch, sm, wheel):
    """The wheel on PyPI has code for sm_86 at most, which sm_89 runs and sm_90 does not."""
    monkeypatch.setattr("paddle.version.cuda_archs", lambda: [61, 70, 75, 80, 86], raising=False)
    told = device_check.no_code(Gpu("a card", sm))
    assert (told is None) == (wheel is None)
    assert told is None or (wheel in told and f"the a card is sm_{sm}" in told)
    monkeypatch.setattr(device_check, "_gpu_in_use", lambda: Gpu("a card", 120))
    monkeypatch.setattr(device_check, "no_gpu", lambda: None)
    monkeypatch.setattr(device_check, "environment", dict)
    monkeypatch.setattr(device_check, "installed_gpus", list)
    assert {each["outcome"] for each in check_device()["checks"]} == {"failed"}
    monkeypatch.setattr(device_check, "installed_gpus", lambda: [Gpu("a card", 120)])
    tried = dict.fromkeys(device_check.ON_ONNXRUNTIME, lambda device: "tried")
    monkeypatch.setattr(device_check, "CHECKS", {**CHECKS, **tried})
    assert {each["name"] for each in check_device()["checks"] if each["outcome"] == "ok"} == {*tried}


def test_a_paddle_for_cpus_names_the_wheel_of_the_gpu_that_is_there(monkeypatch, tmp_path):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho NVIDIA H100 80GB HBM3, 570.86.15, 9.0\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("paddle.is_compiled_with_cuda", lambda: False)
    told = device_check.no_gpu()
    assert told.startswith("this Paddle is built for CPUs. For the NVIDIA H100 80GB HBM3:  python -m pip")
    assert told.endswith("/cu126/")
    assert device_check.environment()["driver"] == "570.86.15"
    tried = dict.fromkeys(device_check.ON_ONNXRUNTIME, lambda device: "tried")
    monkeypatch.setattr(device_check, "CHECKS", {**CHECKS, **tried})
    for each in check_device()["checks"]:  # onnxruntime is tried, whatever Paddle is built for
        assert each["figure"] == tried.get(each["name"], lambda device: told)("cpu")


@pytest.mark.parametrize("words", [[], ["--device-check", "-c", "tsm_motion"]])
def test_the_flags_fit_together(words, capsys):
    assert main(words) == 2
    assert "--device_check" in capsys.readouterr().err
