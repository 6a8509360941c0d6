"""A program on Paddle Inference."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Optional, Union

import numpy as np
import paddle
from paddle import inference

from paddlevideo_fast.errors import ProgramError

# The one that the installed Paddle writes comes first.
PROGRAM_SUFFIXES = (".pdmodel", ".json") if paddle.__version__.startswith("2.") else (".json", ".pdmodel")


def find_program(model_file: Union[str, Path]) -> Path:
    """The file of a program, whose ending may be left out."""
    path = Path(model_file)
    if path.suffix in PROGRAM_SUFFIXES:
        return path
    candidates = [Path(f"{path}{suffix}") for suffix in PROGRAM_SUFFIXES]
    return next((candidate for candidate in candidates if candidate.is_file()), path)


def settings_file(model_file: Union[str, Path]) -> Path:
    """Where export puts what prediction needs to know of a program."""
    return find_program(model_file).with_suffix(".yaml")


@dataclass(frozen=True)
class ProgramOptions:
    """How a program is run.

    Args:
        use_gpu: None: where Paddle computes by default.
        gpu_mem_mb: taken on the GPU at the start.
        precision: "fp16" computes in 16 bits; on a GPU only.
        cpu_threads: None: as many as Paddle takes.
        use_mkldnn: oneDNN's operators on a CPU.
        optimize: let Paddle rewrite the program before it runs.
    """

    use_gpu: Optional[bool] = None
    gpu_mem_mb: int = 8000
    precision: Literal["fp32", "fp16"] = "fp32"
    cpu_threads: Optional[int] = None
    use_mkldnn: bool = False
    optimize: bool = True

    @property
    def on_gpu(self) -> bool:
        """Whether the program runs on a GPU.

        Raises:
            ProgramError: this Paddle, or this machine, has none; or 16 bits are wanted without one.
        """
        use_gpu = paddle.get_device().startswith("gpu") if self.use_gpu is None else self.use_gpu
        if use_gpu and not (paddle.is_compiled_with_cuda() and paddle.device.cuda.device_count()):
            raise ProgramError("use_gpu: Paddle finds no GPU here; set it to False")
        if self.precision == "fp16" and not use_gpu:
            raise ProgramError("precision fp16: needs a GPU; use fp32")
        return use_gpu


class Program:
    """An exported network with one input and one output.

    Args:
        model_file: .json of Paddle 3 or .pdmodel of Paddle 2; the ending may be left out.
        params_file: .pdiparams; None: next to the program.
        options: how it is run.

    Raises:
        ProgramError: a file is missing or none of these, or the program has other inputs.
    """

    def __init__(
        self,
        model_file: Union[str, Path],
        params_file: Optional[Union[str, Path]] = None,
        options: Optional[ProgramOptions] = None,
    ) -> None:
        self.model_file = find_program(model_file)
        params_file = Path(params_file or self.model_file.with_suffix(".pdiparams"))
        for path in (self.model_file, params_file):
            if not path.is_file():
                raise ProgramError(f"{path}: there is no such file; tools/export_model.py writes it")
        if self.model_file.suffix not in PROGRAM_SUFFIXES or not _looks_right(self.model_file):
            raise ProgramError(f"{model_file}: is no program; expected a .json or .pdmodel file")
        config = _config(self.model_file, params_file, options or ProgramOptions())
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
        """Logits of a batch.

        Args:
            clips: as the program takes them, the number of clips first.

        Returns:
            float32 [N, num_classes].

        Raises:
            ProgramError: the clips do not fit it.
        """
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
    if options.on_gpu:
        half = options.precision == "fp16"
        kind = inference.PrecisionType.Half if half else inference.PrecisionType.Float32
        config.enable_use_gpu(options.gpu_mem_mb, 0, kind)
        return config
    config.disable_gpu()
    if options.cpu_threads:
        config.set_cpu_math_library_num_threads(options.cpu_threads)
    if options.use_mkldnn:
        config.enable_mkldnn()
    elif hasattr(config, "disable_mkldnn"):  # Paddle 3 turns it on by itself
        config.disable_mkldnn()
    return config


def _last_line(error: Exception) -> str:
    """Paddle puts a C++ stack before what went wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "Error:" in line]
    return (told or lines or [type(error).__name__])[-1]
