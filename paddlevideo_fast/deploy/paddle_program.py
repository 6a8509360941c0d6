"""A program on Paddle Inference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import inference

from paddlevideo_fast.deploy.program import Program, ProgramOptions
from paddlevideo_fast.errors import ProgramError


class PaddleProgram(Program):
    """A program that Paddle Inference runs.

    Args:
        model_file: .json of Paddle 3 or .pdmodel of Paddle 2.
        params_file: .pdiparams.
        options: how it is run.

    Raises:
        ProgramError: Paddle cannot load it, it has other inputs, or it cannot run in this way.
    """

    def __init__(self, model_file: Path, params_file: Path, options: ProgramOptions) -> None:
        self.model_file = model_file
        if not _looks_right(model_file):
            raise ProgramError(f"{model_file}: is no program; expected a .json or .pdmodel file")
        config = _config(model_file, params_file, options)
        try:
            self._predictor = inference.create_predictor(config)
        except Exception as error:  # whatever a damaged file leads to
            raise ProgramError(
                f"{model_file}: this Paddle ({paddle.__version__}) cannot load it: {_last_line(error)}"
            ) from error
        names = self._predictor.get_input_names()
        if len(names) != 1:
            raise ProgramError(
                f"{model_file}: has the inputs {', '.join(names)}, expected one; export it with "
                "tools/export_model.py"
            )
        self._input = self._predictor.get_input_handle(names[0])

    def run(self, clips: np.ndarray) -> np.ndarray:
        try:
            self._input.copy_from_cpu(np.ascontiguousarray(clips))
            self._predictor.run()
            output = self._predictor.get_output_handle(self._predictor.get_output_names()[0])
            return output.copy_to_cpu()
        except Exception as error:  # Paddle names no narrower one
            raise ProgramError(
                f"{self.model_file}: does not run on {clips.dtype} {list(clips.shape)}: {_last_line(error)}"
            ) from error


def _looks_right(model_file: Path) -> bool:
    """Paddle crashes on a .pdmodel that is no protocol buffer; a program begins with the tag of field 1."""
    with open(model_file, "rb") as file:
        return model_file.suffix != ".pdmodel" or file.read(1) == b"\x0a"


def _config(model_file: Path, params_file: Path, options: ProgramOptions) -> Any:
    config = inference.Config(str(model_file), str(params_file))
    config.disable_glog_info()
    config.switch_ir_optim(options.optimize)
    if _on_gpu(options):
        half = options.precision == "fp16"
        kind = inference.PrecisionType.Half if half else inference.PrecisionType.Float32
        config.enable_use_gpu(options.gpu_mem_mb, 0, kind)
        return config
    config.disable_gpu()
    if options.cpu_threads:
        config.set_cpu_math_library_num_threads(options.cpu_threads)
    if options.use_mkldnn:
        config.enable_mkldnn()
        # Paddle 3.3.1 crashes in this pass on a convolution with a leaky ReLU (ppTSM); Paddle 2 has none.
        config.delete_pass("conv_activation_onednn_fuse_pass")
    elif hasattr(config, "disable_mkldnn"):  # Paddle 3 turns it on by itself
        config.disable_mkldnn()
    return config


def _last_line(error: Exception) -> str:
    """Paddle puts a C++ stack before what went wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "Error:" in line]
    return (told or lines or [type(error).__name__])[-1]


def _on_gpu(options: ProgramOptions) -> bool:
    use_gpu = paddle.get_device().startswith("gpu") if options.use_gpu is None else options.use_gpu
    if use_gpu and not (paddle.is_compiled_with_cuda() and paddle.device.cuda.device_count()):
        raise ProgramError("use_gpu: Paddle finds no GPU here; set it to False")
    if options.precision == "fp16" and not use_gpu:
        raise ProgramError("precision fp16: needs a GPU; use fp32")
    return use_gpu
