"""A program on onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from paddlevideo_fast.deploy.program import Program, ProgramOptions
from paddlevideo_fast.errors import MissingExtraError, ProgramError


class OnnxProgram(Program):
    """A program that onnxruntime runs, on a CPU.

    Args:
        model_file: .onnx.
        options: how it is run.

    Raises:
        ProgramError: onnxruntime cannot load it, it has other inputs or outputs, or it cannot run so.
        MissingExtraError: onnxruntime is not installed.
    """

    def __init__(self, model_file: Path, options: ProgramOptions) -> None:
        self.model_file = model_file
        _check_options(options)
        onnxruntime = _import_onnxruntime()
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 4  # what is less than fatal becomes an exception
        if options.cpu_threads:
            settings.intra_op_num_threads = options.cpu_threads
        if not options.optimize:
            settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            self._session = onnxruntime.InferenceSession(
                str(model_file), settings, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # whatever a damaged file leads to
            raise ProgramError(
                f"{model_file}: onnxruntime {onnxruntime.__version__} cannot load it: {_one_line(error)}"
            ) from error
        outputs = self._session.get_outputs()
        if not outputs or not outputs[0].type.startswith("tensor(float"):
            raise ProgramError(
                f"{model_file}: its first output is no logits, which are floating-point numbers"
            )
        names = [value.name for value in self._session.get_inputs()]
        if len(names) != 1:
            raise ProgramError(
                f"{model_file}: has the inputs {', '.join(names)}, expected one; export it with "
                "tools/export_model.py --onnx"
            )
        self._input = names[0]

    def run(self, clips: np.ndarray) -> np.ndarray:
        try:
            return self._session.run(None, {self._input: np.ascontiguousarray(clips)})[0]
        except Exception as error:  # onnxruntime has one for each of its codes
            raise ProgramError(
                f"{self.model_file}: does not run on {clips.dtype} {list(clips.shape)}: {_one_line(error)}"
            ) from error


def _check_options(options: ProgramOptions) -> None:
    wrong = {
        "use_gpu": bool(options.use_gpu),
        "precision fp16": options.precision == "fp16",
        "enable_mkldnn": options.use_mkldnn,
    }
    for name, is_wanted in wrong.items():
        if is_wanted:
            raise ProgramError(
                f"{name}: an .onnx program runs in 32 bits on onnxruntime's CPU operators; leave it "
                "out, or take the program for Paddle Inference"
            )


def _import_onnxruntime() -> Any:
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        raise MissingExtraError("onnxruntime", "onnx", "running an .onnx program") from error
    return onnxruntime


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
