"""Checks in a minute that a GPU trains, exports and predicts as a CPU does.

Each check compares the device with the CPU's float32 on a small TSM, with the tolerances below. `tests/gpu`
has the long checks.
"""

import contextlib
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import numpy as np
import paddle

from paddlevideo_fast.apps.export.export import ExportOptions, computing_on, deviation_of, export_model
from paddlevideo_fast.apps.predict.program import ProgramOptions, Provider, ProviderError, open_program
from paddlevideo_fast.config import load_config
from paddlevideo_fast.device import upload
from paddlevideo_fast.engine import MixedPrecision, Precision, Trainer, has_dtype
from paddlevideo_fast.engine.callbacks import Callback
from paddlevideo_fast.engine.prefetch import to_device
from paddlevideo_fast.errors import MissingExtraError
from paddlevideo_fast.loader import Batch
from paddlevideo_fast.machine import Gpu, gpu_number, installed_gpus
from paddlevideo_fast.modeling import Preprocess, build_model
from paddlevideo_fast.schedule.phases import plain_phases

# of losses and logits, relative; TF32 is on
TOLERANCES = {"float32": 5e-3, "bfloat16": 5e-2, "float16": 2e-2}
_NUM_CLASSES, _NUM_STEPS, _SIDE = 8, 4, 56

Dtype = Literal["float16", "bfloat16"]


class NotRun(Exception):
    """A check cannot run here; the message says why."""


class CheckFailed(Exception):
    """A check has found something wrong; the message says what."""


def _wheel_for(gpu: Gpu) -> str:
    """The command that installs a Paddle with code for a GPU, by Paddle's documentation."""
    index = "https://www.paddlepaddle.org.cn/packages/stable"
    if gpu.sm >= 100:
        return f'python -m pip install "paddlepaddle-gpu>=3.2" -i {index}/cu129/'
    if gpu.sm > 86:
        return f'python -m pip install "paddlepaddle-gpu>=3" -i {index}/cu126/'
    return "python -m pip install paddlepaddle-gpu==2.6.2"


def no_gpu() -> str | None:
    """Why Paddle computes on no GPU here; None: it does."""
    if gpu_number(paddle.get_device()) is not None:
        return None
    if paddle.is_compiled_with_cuda():
        return "this Paddle is built for GPUs and finds none: look at the driver with nvidia-smi"
    there = installed_gpus()
    advice = f". For the {there[0].name}:  {_wheel_for(there[0])}" if there else "; install paddlepaddle-gpu"
    return f"this Paddle is built for CPUs{advice}"


_ARCHITECTURES_OF_2_6_2 = (61, 70, 75, 80, 86)  # of the wheel on PyPI; it does not say them itself


def no_code(gpu: Gpu) -> str | None:
    """Why this Paddle cannot compute on a GPU; None: it can, or nothing says for which it was built.

    The wheels hold machine code for some architectures, and none that the driver could translate for others.
    """
    built_for: Sequence[Any] = getattr(paddle.version, "cuda_archs", list)() or ()
    if (paddle.__version__, paddle.version.cuda()) == ("2.6.2", "11.8"):
        built_for = _ARCHITECTURES_OF_2_6_2
    known = [int(str(one).rstrip("af")) for one in built_for]  # sm_90a: for 9.0 alone
    if not known or gpu.runs(known):
        return None
    has = ", ".join(f"sm_{one}" for one in known)
    return f"this Paddle has code for {has}, and the {gpu.name} is sm_{gpu.sm}. For it:  {_wheel_for(gpu)}"


def _gpu_in_use() -> Gpu | None:
    """The GPU that Paddle computes on."""
    number = gpu_number(paddle.get_device())
    if number is None:
        return None
    properties = paddle.device.cuda.get_device_properties(number)
    return Gpu(properties.name, 10 * properties.major + properties.minor)


def check_device(
    progress: Callable[[str], None] = lambda text: None, device: str | None = None
) -> dict[str, Any]:
    """Runs all checks; one that fails does not keep the others from running.

    Args:
        progress: called with the name of each check before it runs.
        device: Paddle's name of the device; None: the one that Paddle computes on. Where that is the CPU,
            only the checks of onnxruntime run, if the driver lists a GPU; the others say why they do not.

    Returns:
        JSON values: "environment", and "checks", for each its "name", its "outcome" ("ok", "failed" or "not
        run") and a "figure": what was measured, or why the check failed or did not run.
    """
    reason = no_gpu() if device is None else None
    gpu = None if reason or device else _gpu_in_use()
    known = {"not run": reason, "failed": no_code(gpu) if gpu else None}
    outcomes = [(outcome, why) for outcome, why in known.items() if why]
    without_paddle = ON_ONNXRUNTIME if installed_gpus() else ()
    results = []
    for name, check in CHECKS.items():
        is_known = bool(outcomes) and name not in without_paddle
        if not is_known:
            progress(name)
        outcome, figure = outcomes[0] if is_known else _result(check, device or paddle.get_device())
        results.append({"name": name, "outcome": outcome, "figure": figure})
    return {"environment": environment(), "checks": results}


def table(result: Mapping[str, Any]) -> str:
    """The result of `check_device` as text."""
    environment_lines = [f"{name:<12}{value}" for name, value in result["environment"].items()]
    rows = [f"{each['outcome']:<8}{each['name']:<34}{each['figure']}" for each in result["checks"]]
    return "\n".join([*environment_lines, "", *rows])


def environment() -> dict[str, str]:
    """What decides whether a device computes right: versions, device and driver."""
    facts = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "paddle": paddle.__version__,
        "cuda": str(paddle.version.cuda()),
        "cudnn": str(paddle.version.cudnn()),
    }
    for package in ("onnxruntime", "onnxruntime-gpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            facts[package] = metadata.version(package)
    gpu, installed = _gpu_in_use(), installed_gpus()
    if installed:
        facts["driver"] = installed[0].driver
    if gpu is None:
        facts["gpu"] = ", ".join(f"{each.name}, sm_{each.sm}" for each in installed) or "none"
    else:
        properties = paddle.device.cuda.get_device_properties(gpu_number(paddle.get_device()))
        facts["device"] = f"{gpu.name}, sm_{gpu.sm}"
        facts["memory"] = f"{properties.total_memory / 2**30:.0f} GiB"
        facts["devices"] = str(paddle.device.cuda.device_count())
    return facts


def _result(check: Callable[[str], str], device: str) -> tuple[str, str]:
    try:
        return "ok", check(device)
    except (NotRun, ProviderError, MissingExtraError) as reason:
        return "not run", str(reason)
    except Exception as error:  # whatever a device or its driver does is what the table is for
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return "failed", f"{type(error).__name__}: {lines[-1] if lines else ''}"


@dataclass(frozen=True, eq=False)
class BatchList:
    """A loader of given batches; each takes `sec` to make."""

    batches: Sequence[Batch]
    sec: float = 0.0

    def __len__(self) -> int:
        return len(self.batches)

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """The batches, from `start_batch` on."""
        for batch in self.batches[start_batch:]:
            time.sleep(self.sec)
            yield batch

    def close(self) -> None:
        """There are no workers to end."""


class _Losses(Callback):
    def __init__(self) -> None:
        self.losses: list[float] = []

    def step_end(self, trainer: Trainer) -> None:
        self.losses.append(trainer.drain()["loss"])


def made_up_batches(num: int, batch_size: int = 4, side: int = _SIDE) -> list[Batch]:
    """Batches of noise, the same in each call."""
    rng = np.random.default_rng(0)
    return [
        Batch(
            rng.integers(0, 256, (batch_size, 8, side, side, 3), np.uint8),
            rng.integers(0, _NUM_CLASSES, batch_size),
            np.arange(batch_size),
            np.zeros(batch_size, np.int64),
        )
        for _ in range(num)
    ]


def small_trainer(
    loader: BatchList,
    callbacks: Sequence[Callback] = (),
    precision: Precision | None = None,
    data_format: str = "NCHW",
    width: int = 8,
) -> Trainer:
    """A trainer of a small TSM on the current device; its weights are the same on all devices."""
    device = paddle.get_device()
    backbone = {"name": "ResNetTSM", "depth": 18, "num_seg": 8, "width": width, "data_format": data_format}
    head = {"name": "TSMHead", "num_classes": _NUM_CLASSES, "in_channels": 8 * width}
    head |= {"drop_ratio": 0.0, "data_format": data_format}
    section = {"framework": "Recognizer2D", "backbone": backbone, "head": head}
    with computing_on("cpu"):
        paddle.seed(0)
        state = {name: value.numpy() for name, value in build_model(section).state_dict().items()}
    with computing_on(device):
        model = build_model(section)
        model.set_state_dict(state)
        optimizer = paddle.optimizer.Momentum(0.01, 0.9, model.parameters())
    return Trainer(
        model,
        optimizer,
        lambda phase: loader,
        Preprocess(layout=model.layout),
        plain_phases(1),
        callbacks,
        precision=precision or Precision(),
    )


def losses_on(
    device: str, precision: Precision | None = None, data_format: str = "NCHW"
) -> tuple[float, ...]:
    """The losses of a few training steps."""
    kept = _Losses()
    with computing_on(device):
        small_trainer(BatchList(made_up_batches(_NUM_STEPS)), [kept], precision, data_format).fit()
    return tuple(kept.losses)


def _within(actual: Any, expected: Any, tolerance: float) -> str:
    value = deviation_of(actual, expected)
    told = f"deviates by {value:.1e}, allowed {tolerance:.0e}"
    if not value <= tolerance:  # nor where it is NaN
        raise CheckFailed(told)
    return told


def _training(dtype: Dtype | None, level: Literal["O1", "O2"] = "O1") -> Callable[[str], str]:
    def check(device: str) -> str:
        with computing_on(device):
            if dtype is not None and (device == "cpu" or not has_dtype(dtype)):
                raise NotRun(f"this device cannot train in {dtype}")
            precision = None if dtype is None else MixedPrecision(level, dtype)
        return _within(losses_on(device, precision), losses_on("cpu"), TOLERANCES[dtype or "float32"])

    return check


def _channels_last(device: str) -> str:
    return _within(losses_on(device, data_format="NHWC"), losses_on("cpu"), TOLERANCES["float32"])


def _copies(device: str) -> str:
    batches = made_up_batches(12, side=_SIDE)
    with computing_on(device):
        for batch, moved in zip(batches, to_device(iter(batches))):
            labels = upload(batch.labels)
            if (
                not (np.asarray(moved.clips) == batch.clips).all()
                or not (labels.numpy() == batch.labels).all()
            ):
                raise CheckFailed("a batch has changed on its way to the device")
    return f"{len(batches)} batches are the same on the device"


def _overlap(device: str) -> str:
    batches = made_up_batches(12, batch_size=8, side=112)

    def step_sec(loader_sec: float) -> float:
        with computing_on(device):
            trainer = small_trainer(BatchList(batches, loader_sec), width=32)
            began = time.perf_counter()
            trainer.fit()
            if gpu_number(device) is not None:
                paddle.device.synchronize()
        return (time.perf_counter() - began) / len(batches)

    step_sec(0.0)  # the first run finds its algorithms
    train_sec = step_sec(0.0)
    both_sec = step_sec(train_sec)
    told = f"a step of {train_sec * 1e3:.0f} ms takes {both_sec * 1e3:.0f} ms with as long a reading"
    if gpu_number(device) is not None and both_sec > 1.6 * train_sec:
        raise CheckFailed(f"{told}: reading and computing do not overlap")
    return told


def _serving(provider: Provider, is_onnx: bool, half: bool = False) -> Callable[[str], str]:
    def check(device: str) -> str:
        with tempfile.TemporaryDirectory() as name:
            whole = _exported(Path(name), is_onnx)
            program = _exported(Path(name), is_onnx, half) if half else whole
            clips = np.random.default_rng(0).standard_normal((2, 8, 3, _SIDE, _SIDE)).astype("float32")
            expected = open_program(whole, options=ProgramOptions(providers=("cpu",))).run(clips)
            actual = open_program(program, options=ProgramOptions(providers=(provider,))).run(clips)
        return _within(actual, expected, TOLERANCES["float16" if half else "float32"])

    return check


def _exported(folder: Path, is_onnx: bool, half: bool = False) -> Path:
    """The program of a small TSM, with the same weights in each call for one folder."""
    config, weights = load_config("tsm_motion"), folder / "weights.pdparams"
    options = ExportOptions(onnx_opset=13 if is_onnx else None, onnx_fp16=half)
    with computing_on("cpu"):  # this Paddle may have no code for the GPU
        if not weights.exists():
            paddle.save(build_model(config["MODEL"]).state_dict(), str(weights))
        files = export_model(config, weights, folder / ("half" if half else "whole"), options=options)
    return files.onnx or files.program


ON_ONNXRUNTIME: dict[str, Callable[[str], str]] = {
    "onnxruntime, CUDA": _serving("cuda", True),
    "onnxruntime, CUDA in 16 bits": _serving("cuda", True, half=True),
    "onnxruntime, TensorRT": _serving("tensorrt", True),
}
CHECKS: dict[str, Callable[[str], str]] = {
    "training, float32": _training(None),
    "training, bfloat16 O1": _training("bfloat16"),
    "training, bfloat16 O2": _training("bfloat16", "O2"),
    "training, float16 O1": _training("float16"),
    "training, float16 O2": _training("float16", "O2"),
    "training, channels last": _channels_last,
    "copies to the device": _copies,
    "reading beside computing": _overlap,
    "Paddle Inference, CUDA": _serving("cuda", False),
    "Paddle Inference, TensorRT": _serving("tensorrt", False),
    **ON_ONNXRUNTIME,
}
