"""Exported networks: their files, and how Paddle Inference and onnxruntime run them."""

from __future__ import annotations

import os
import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterable, Literal, Mapping, Optional, Sequence, Union

import numpy as np
import paddle
from paddle import inference

from paddlevideo_fast.errors import MissingExtraError, ProgramError
from paddlevideo_fast.names import is_unicode


@dataclass(frozen=True)
class ProgramOptions:
    """How a program is run.

    Args:
        use_gpu: run on a GPU; None: where Paddle computes by default. An .onnx program runs on a CPU only.
        gpu_mem_mb: memory to take on the GPU at the start.
        precision: "fp16" computes in 16 bits; on a GPU only.
        cpu_threads: threads on a CPU; None: Paddle's or onnxruntime's choice.
        use_mkldnn: oneDNN's operators on a CPU; not for an .onnx program.
        optimize: let Paddle or onnxruntime rewrite the program before it runs.
    """

    use_gpu: Optional[bool] = None
    gpu_mem_mb: int = 8000
    precision: Literal["fp32", "fp16"] = "fp32"
    cpu_threads: Optional[int] = None
    use_mkldnn: bool = False
    optimize: bool = True


class Program(ABC):
    """An exported network with one input and one output, ready to run.

    Args:
        model_file: the file that it was loaded from.
    """

    def __init__(self, model_file: Path) -> None:
        self.model_file = model_file

    def run(self, clips: np.ndarray) -> np.ndarray:
        """Logits of a batch.

        Args:
            clips: clips in the program's dtype and layout, the number of clips first.

        Returns:
            float32 [N, num_classes].

        Raises:
            ProgramError: the clips do not fit the program.
        """
        try:
            return self._run(np.ascontiguousarray(clips))
        except Exception as error:  # Paddle and onnxruntime name no narrower one
            raise ProgramError(
                f"{self.model_file}: does not run on {clips.dtype} {list(clips.shape)}: {self._cause(error)}"
            ) from error

    @abstractmethod
    def _run(self, clips: np.ndarray) -> np.ndarray:
        """Logits of a batch; any error says that the clips do not fit."""

    @abstractmethod
    def _cause(self, error: Exception) -> str:
        """The one line of an error that says what went wrong."""

    def _only(self, names: Sequence[str], option: str = "") -> str:
        """The name of the input, of which there must be one."""
        if len(names) != 1:
            raise ProgramError(
                f"{self.model_file}: has the inputs {', '.join(names)}, expected one; export it with "
                f"paddlevideo-fast export{option}"
            )
        return names[0]


class PaddleProgram(Program):
    """A program that Paddle Inference runs.

    Args:
        model_file: .json of Paddle 3 or .pdmodel of Paddle 2.
        params_file: .pdiparams.
        options: how to run it.

    Raises:
        ProgramError: Paddle cannot load it, it has other inputs, or it cannot run with these options.
    """

    def __init__(self, model_file: Path, params_file: Path, options: ProgramOptions) -> None:
        super().__init__(model_file)
        if not _looks_right(model_file):
            raise ProgramError(f"{model_file}: is no program; expected a .json or .pdmodel file")
        config = _config(model_file, params_file, options)
        try:
            self._predictor = inference.create_predictor(config)
        except Exception as error:  # whatever a damaged file leads to
            raise ProgramError(
                f"{model_file}: this Paddle ({paddle.__version__}) cannot load it: {self._cause(error)}"
            ) from error
        self._input = self._predictor.get_input_handle(self._only(self._predictor.get_input_names()))

    def _run(self, clips: np.ndarray) -> np.ndarray:
        self._input.copy_from_cpu(clips)
        self._predictor.run()
        return self._predictor.get_output_handle(self._predictor.get_output_names()[0]).copy_to_cpu()

    def _cause(self, error: Exception) -> str:
        # Paddle puts a C++ stack before what went wrong
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        told = [line for line in lines if "Error:" in line]
        return (told or lines or [type(error).__name__])[-1]


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
        # Paddle 3.3.1 crashes in this pass on a convolution with a leaky ReLU: in ppTSM's programs that
        # PaddleVideo wrote (ours: see `inference_operators`). Paddle 2 has no such pass.
        config.delete_pass("conv_activation_onednn_fuse_pass")
    elif hasattr(config, "disable_mkldnn"):  # Paddle 3 turns it on by itself
        config.disable_mkldnn()
    return config


def _on_gpu(options: ProgramOptions) -> bool:
    use_gpu = paddle.get_device().startswith("gpu") if options.use_gpu is None else options.use_gpu
    if use_gpu and not (paddle.is_compiled_with_cuda() and paddle.device.cuda.device_count()):
        raise ProgramError("use_gpu: Paddle finds no GPU here; set it to False")
    if options.precision == "fp16" and not use_gpu:
        raise ProgramError("precision fp16: needs a GPU; use fp32")
    return use_gpu


class OnnxProgram(Program):
    """A program that onnxruntime runs, on a CPU.

    Args:
        model_file: .onnx.
        options: how to run it.

    Raises:
        ProgramError: onnxruntime cannot load it, it has other inputs or outputs, or it cannot run with these
            options.
        MissingExtraError: onnxruntime is not installed.
    """

    def __init__(self, model_file: Path, options: ProgramOptions) -> None:
        super().__init__(model_file)
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
                f"{model_file}: onnxruntime {onnxruntime.__version__} cannot load it: {self._cause(error)}"
            ) from error
        outputs = self._session.get_outputs()
        if not outputs or not outputs[0].type.startswith("tensor(float"):
            raise ProgramError(
                f"{model_file}: its first output is no logits, which are floating-point numbers"
            )
        self._input = self._only([value.name for value in self._session.get_inputs()], " --onnx")

    def _run(self, clips: np.ndarray) -> np.ndarray:
        return self._session.run(None, {self._input: clips})[0]

    def _cause(self, error: Exception) -> str:
        return " ".join(str(error).split()) or type(error).__name__


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


# The ending that the installed Paddle writes comes first. FLAGS_enable_pir_api=0 asks Paddle 3 for the format
# of Paddle 2.
_WRITES_JSON = getattr(paddle.framework, "use_pir_api", lambda: False)()
PADDLE_SUFFIXES = (".json", ".pdmodel") if _WRITES_JSON else (".pdmodel", ".json")
PARAMS_SUFFIX = ".pdiparams"
ONNX_SUFFIX = ".onnx"
PROGRAM_SUFFIXES = (*PADDLE_SUFFIXES, ONNX_SUFFIX)


def find_program(model_file: Union[str, Path]) -> Path:
    """The file of a program. Its ending may be left out; a program of Paddle comes before ONNX.

    Raises:
        ProgramError: there is no such file.
    """
    path = Path(model_file)
    with_endings = [] if path.suffix in PROGRAM_SUFFIXES else [f"{path}{end}" for end in PROGRAM_SUFFIXES]
    for candidate in (*map(Path, with_endings), path):
        if candidate.is_file():
            return candidate
    raise ProgramError(f"{path}: there is no such file; paddlevideo-fast export writes it")


def settings_file(model_file: Union[str, Path]) -> Path:
    """The settings file that export writes next to a program: `.yaml`, or `.yml` in PaddleX's form.

    Raises:
        ProgramError: there is no such program.
    """
    program = find_program(model_file)
    found = [file for file in map(program.with_suffix, (".yaml", ".yml")) if file.is_file()]
    return found[0] if found else program.with_suffix(".yaml")


def open_program(
    model_file: Union[str, Path],
    params_file: Optional[Union[str, Path]] = None,
    options: Optional[ProgramOptions] = None,
    checksums: Optional[Mapping[str, int]] = None,
) -> Program:
    """Loads an exported network.

    Args:
        model_file: .json or .pdmodel for Paddle Inference, .onnx for onnxruntime; the ending may be left out.
        params_file: parameters of a program for Paddle Inference; None: next to the program.
        options: how to run it.
        checksums: see `ProgramSettings`.

    Raises:
        ProgramError: a file is missing, not the exported one, or no program; or the program cannot run with
            these options.
        MissingExtraError: onnxruntime is needed and not installed.
    """
    model_file, options = find_program(model_file), options or ProgramOptions()
    if model_file.suffix not in PROGRAM_SUFFIXES:
        raise ProgramError(f"{model_file}: is no program; expected one of {', '.join(PROGRAM_SUFFIXES)}")
    params = None
    if model_file.suffix != ONNX_SUFFIX:
        params = Path(params_file or model_file.with_suffix(PARAMS_SUFFIX))
    elif params_file is not None:
        raise ProgramError(f"params_file {params_file}: {model_file} has its weights in it; leave it out")
    files = [model_file] if params is None else [model_file, params]
    for file in files:
        require_unicode(file)
    if params is not None and not params.is_file():
        raise ProgramError(f"{params}: there is no such file; paddlevideo-fast export writes it")
    if checksums is not None:
        _check_files(files, checksums)
    if params is None:
        return OnnxProgram(model_file, options)
    return PaddleProgram(model_file, params, options)


def require_unicode(path: Union[str, Path]) -> None:
    """Raises `ProgramError` where Paddle and onnxruntime cannot take a path."""
    if not is_unicode(os.path.abspath(path)):
        raise ProgramError(f"{path}: Paddle takes no path that is not UTF-8; choose another folder or name")


def checksums_of(files: Iterable[Path]) -> Dict[str, int]:
    """CRC-32 of files, by their endings."""
    return {path.suffix: _checksum(path) for path in files}


def _checksum(path: Path) -> int:
    value = 0
    try:
        with open(path, "rb") as file:
            while part := file.read(1 << 20):
                value = zlib.crc32(part, value)
    except OSError as error:
        raise ProgramError(f"{path}: cannot be read: {error.strerror or error}") from error
    return value


def _check_files(files: Sequence[Path], checksums: Mapping[str, int]) -> None:
    settings = files[0].with_suffix(".yaml").name
    for path in files:
        if path.suffix not in checksums:
            raise ProgramError(
                f"{path}: {settings} is of an export that wrote {', '.join(checksums)} only; export it again"
            )
        if _checksum(path) != checksums[path.suffix]:
            raise ProgramError(
                f"{path}: is damaged, or of another export than {settings}; copy the files of one export "
                "together, or export it again"
            )
