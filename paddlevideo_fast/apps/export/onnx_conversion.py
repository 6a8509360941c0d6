"""Converts programs of Paddle to ONNX by paddle2onnx, and programs in ONNX to 16 bits."""

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import paddle

from paddlevideo_fast.apps.predict.program import PARAMS_SUFFIX
from paddlevideo_fast.errors import MissingExtraError, ProgramError
from paddlevideo_fast.extras import needing

_TIMEOUT_SEC = 900  # a ResNet-101 takes seconds


def write_onnx(model_file: Path, target: Path, opset_version: int) -> None:
    """Converts a program by paddle2onnx.

    paddle2onnx aborts its process when it meets an unknown operator, so it runs in a process of its own.

    Args:
        model_file: a program as the installed Paddle writes it, its parameters next to it.
        target: the .onnx file.
        opset_version: version of ONNX's operators; paddle2onnx takes a later one where an operator needs it.

    Raises:
        MissingExtraError: paddle2onnx is not installed.
        ProgramError: the installed paddle2onnx is not for this Paddle, or it cannot convert the program.
    """
    version, options = _converter()
    words = [
        *("--model_dir", model_file.parent, "--model_filename", model_file.name, "--save_file", target),
        *("--params_filename", model_file.with_suffix(PARAMS_SUFFIX).name, "--opset_version", opset_version),
    ]
    command = [sys.executable, "-m", "paddle2onnx.command", *map(str, words), *options]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_TIMEOUT_SEC
        )
    except subprocess.TimeoutExpired as error:
        raise ProgramError(f"paddle2onnx {version}: was not done after {_TIMEOUT_SEC} s") from error
    if done.returncode or not target.is_file() or not target.stat().st_size:
        raise ProgramError(
            f"{target.name}: paddle2onnx {version} cannot write it with opset_version {opset_version}: "
            f"{_reason(done.stdout)}; nothing was written"
        )
    if model_file.suffix == ".json":
        _mend_numbers(model_file, target)


# By operator of ONNX: Paddle's operator, and its attribute that paddle2onnx 2.1 reads from the wrong bytes.
_NUMBERS = {"LeakyRelu": ("1.leaky_relu", "negative_slope"), "Pad": ("1.pad3d", "pad_value")}


def _mend_numbers(model_file: Path, target: Path) -> None:
    """Gives leaky ReLUs of an .onnx program the slopes of Paddle's, and pads their values, in their order."""
    operators = json.loads(model_file.read_text("utf-8"))["program"]["regions"][0]["blocks"][0]["ops"]
    numbers = {
        kind: [
            next(each["AT"]["D"] for each in operator["A"] if each["N"] == attribute)
            for operator in operators
            if operator["#"] == own
        ]
        for kind, (own, attribute) in _NUMBERS.items()
    }
    if not any(numbers.values()):
        return
    import onnx

    program = onnx.load(str(target))
    graph = program.graph
    for kind, values in numbers.items():
        for node, value in zip((node for node in graph.node if node.op_type == kind), values):
            if kind == "LeakyRelu":
                del node.attribute[:]
                node.attribute.append(onnx.helper.make_attribute("alpha", value))
            elif len(node.input) > 2:  # it pads with a number
                node.input[2] = f"{node.output[0]}.value"
                graph.initializer.append(onnx.numpy_helper.from_array(np.float32(value), node.input[2]))
    onnx.save(program, str(target))


def to_16_bits(path: Path) -> None:
    """Converts the weights and operators of an .onnx program to float16, but for its input and output."""
    with needing("onnx", "export to ONNX in 16 bits"):
        import onnx
        from onnxruntime.transformers import float16
    onnx.save(float16.convert_float_to_float16(onnx.load(str(path)), keep_io_types=True), str(path))


def _converter() -> tuple[str, list[str]]:
    """The version of the installed paddle2onnx, and the flags that this version needs."""
    try:
        version = metadata.version("paddle2onnx")
    except metadata.PackageNotFoundError as error:
        raise MissingExtraError("paddle2onnx", "onnx", "export to ONNX") from error
    for_paddle2 = int(version.partition(".")[0]) < 2
    if for_paddle2 != paddle.__version__.startswith("2."):
        needed = "paddle2onnx>=2" if for_paddle2 else "paddle2onnx<2"
        raise ProgramError(
            f"paddle2onnx {version} does not read programs of Paddle {paddle.__version__}: "
            f'type  pip install "{needed}"'
        )
    # Without the flag it folds constants, which onnxruntime does anyway, and may install packages for that.
    return version, [] if for_paddle2 else ["--optimize_tool", "None"]


def _reason(output: str) -> str:
    """What went wrong; paddle2onnx prints it before a C++ stack."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("[ERROR]") or "Oops" in line]
    return " ".join(errors or lines[-1:]) or "it says nothing"
