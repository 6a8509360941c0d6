"""Programs of Paddle Inference to ONNX."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import List, Tuple

import paddle

from paddlevideo_fast.deploy.program_files import PARAMS_SUFFIX
from paddlevideo_fast.errors import MissingExtraError, ProgramError

_TIMEOUT_SEC = 900  # a ResNet-101 takes seconds


def write_onnx(model_file: Path, target: Path, opset_version: int) -> None:
    """Converts a program by paddle2onnx.

    paddle2onnx aborts the process that it runs in where it meets an operator it does not know, so it gets
    one of its own.

    Args:
        model_file: a program as the installed Paddle writes it, its parameters next to it.
        target: the .onnx file.
        opset_version: of ONNX; paddle2onnx takes a later one where an operator needs it.

    Raises:
        MissingExtraError: paddle2onnx is not installed.
        ProgramError: it is not for this Paddle, or it cannot convert the program.
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


def _converter() -> Tuple[str, List[str]]:
    """Version of the installed paddle2onnx, and the flags that it needs."""
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
    """paddle2onnx puts what went wrong before a C++ stack."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("[ERROR]") or "Oops" in line]
    return " ".join(told or lines[-1:]) or "it says nothing"
