"""Exported networks: their files, and how Paddle Inference and onnxruntime run them."""

import contextlib
import importlib.util
import io
import os
import statistics
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import paddle
from paddle import inference

from paddlevideo_fast.apps.predict.quiet import paddle_is_quiet
from paddlevideo_fast.errors import ProgramError
from paddlevideo_fast.extras import needing
from paddlevideo_fast.io.files import local_copy
from paddlevideo_fast.io.urls import scheme_of
from paddlevideo_fast.log import get_logger, is_unicode
from paddlevideo_fast.machine import gpu_number, num_cores
from paddlevideo_fast.sources.remote.sync import Mirror

Provider = Literal["cpu", "cuda", "tensorrt"]
Runtime = Literal["onnxruntime", "paddle", "onednn"]
"""What runs a program on a CPU: onnxruntime, or Paddle Inference without and with oneDNN."""
PROVIDERS: Sequence[Provider] = ("cpu", "cuda", "tensorrt")


_NUM_ROUNDS = 3
_TURN_SEC = 0.1


@dataclass(frozen=True)
class ProgramOptions:
    """How a program is run.

    Args:
        providers: what runs the program: the first that loads; a warning names each that does not. Empty:
            where Paddle computes by default, for a Paddle program; on a CPU, for an .onnx program.
        gpu_mem_mb: memory to take on the GPU at the start.
        precision: "fp16" computes in 16 bits; on a GPU only. By CUDA, an .onnx program needs an export in 16
            bits for it.
        cpu_threads: threads on a CPU; None: one on each core of this process.
        use_mkldnn: Paddle Inference with oneDNN's operators on a CPU, for convolutional networks, or without;
            True is not for an .onnx program. None: as `open_program` chooses, else without.
        optimize: let Paddle or onnxruntime rewrite the program before it runs.
        gpu: number of the GPU, of those that this process sees; None: the one that Paddle computes on.
    """

    providers: Sequence[Provider] = ()
    gpu_mem_mb: int = 8000
    precision: Literal["fp32", "fp16"] = "fp32"
    cpu_threads: int | None = None
    use_mkldnn: bool | None = None
    optimize: bool = True
    gpu: int | None = None

    @property
    def gpu_number(self) -> int:
        """Which GPU runs the program, where one does."""
        return gpu_number(paddle.get_device()) or 0 if self.gpu is None else self.gpu

    @property
    def num_threads(self) -> int:
        """Threads on a CPU."""
        return self.cpu_threads or num_cores()


class ProviderError(ProgramError):
    """A provider is not there, or cannot run a program with these options; another one may."""


class Program(ABC):
    """An exported network with one input and one output, ready to run.

    Args:
        model_file: the file that it was loaded from.
        provider: what runs it.
    """

    def __init__(self, model_file: Path, provider: Provider) -> None:
        self.model_file = model_file
        self.provider = provider

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
        provider: what runs it.

    Raises:
        ProviderError: this Paddle lacks the provider, or the options are for another one.
        ProgramError: Paddle cannot load it, or it has other inputs.
    """

    def __init__(
        self, model_file: Path, params_file: Path, options: ProgramOptions, provider: Provider
    ) -> None:
        super().__init__(model_file, provider)
        if not _looks_right(model_file):
            raise ProgramError(f"{model_file}: is no model; expected a .json or .pdmodel file")
        _check_paddle_has(provider, options)
        config = _config(model_file, params_file, options, provider)
        try:
            with paddle_is_quiet():
                self._predictor = inference.create_predictor(config)
        except Exception as error:  # whatever a damaged file leads to
            how = " with oneDNN, leave enable_mkldnn out" if options.use_mkldnn else ""
            raise ProgramError(
                f"{model_file}: this Paddle ({paddle.__version__}) cannot load it{how}: {self._cause(error)}"
            ) from error
        self._input = self._predictor.get_input_handle(self._only(self._predictor.get_input_names()))
        self._is_new = True

    def _run(self, clips: np.ndarray) -> np.ndarray:
        self._input.copy_from_cpu(clips)
        with paddle_is_quiet() if self._is_new else contextlib.nullcontext():
            self._predictor.run()
            self._is_new = False
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


def _check_paddle_has(provider: Provider, options: ProgramOptions) -> None:
    if provider == "cpu":
        if options.precision == "fp16":
            raise ProviderError("precision fp16: needs a GPU; use fp32")
    elif not paddle.is_compiled_with_cuda():
        raise ProviderError(f"{provider}: this Paddle is built for CPUs; install paddlepaddle-gpu")
    elif not (num_gpus := paddle.device.cuda.device_count()):
        raise ProviderError(f"{provider}: Paddle finds no GPU here; take the provider cpu")
    elif options.gpu_number >= num_gpus:
        text = f"the GPUs here have the numbers 0 to {num_gpus - 1}"
        raise ProviderError(f"{provider}: there is no GPU {options.gpu_number}; {text}")
    elif provider == "tensorrt" and not any(inference.get_trt_compile_version()):
        raise ProviderError(
            f"tensorrt: this Paddle ({paddle.__version__}) is built without TensorRT; take the provider cuda"
        )
    elif options.use_mkldnn:
        raise ProviderError(f"enable_mkldnn: its operators are for CPUs, not for {provider}; leave it out")


def _config(model_file: Path, params_file: Path, options: ProgramOptions, provider: Provider) -> Any:
    config = inference.Config(str(model_file), str(params_file))
    config.disable_glog_info()
    config.switch_ir_optim(options.optimize)
    if provider != "cpu":
        half = options.precision == "fp16"
        kind = inference.PrecisionType.Half if half else inference.PrecisionType.Float32
        config.enable_use_gpu(options.gpu_mem_mb, options.gpu_number, kind)
        config.enable_memory_optim()
        if provider == "tensorrt":
            config.enable_tensorrt_engine(
                workspace_size=_TENSORRT_WORKSPACE, precision_mode=kind, use_static=False
            )
            config.enable_tuned_tensorrt_dynamic_shape("", True)  # engines for the shapes that come
        return config
    config.disable_gpu()
    config.set_cpu_math_library_num_threads(options.num_threads)
    if options.use_mkldnn:
        config.enable_mkldnn()
        # Paddle 3.3.1 crashes in this pass on a convolution with a leaky ReLU: in ppTSM's programs that
        # PaddleVideo wrote (ours: see `operators_for`). Paddle 2 has no such pass.
        config.delete_pass("conv_activation_onednn_fuse_pass")
    elif hasattr(config, "disable_mkldnn"):  # Paddle 3 turns it on by itself
        config.disable_mkldnn()
    return config


class OnnxProgram(Program):
    """A program that onnxruntime runs.

    Args:
        model_file: .onnx.
        options: how to run it.
        provider: what runs it.

    Raises:
        ProviderError: this onnxruntime lacks the provider or cannot load it, or the options are for another
            one.
        ProgramError: onnxruntime cannot load it, or it has other inputs or outputs.
        MissingExtraError: onnxruntime is not installed.
    """

    def __init__(self, model_file: Path, options: ProgramOptions, provider: Provider) -> None:
        super().__init__(model_file, provider)
        with needing("onnx", "running an .onnx model"):
            import onnxruntime
        _check_onnxruntime_has(onnxruntime, provider, options)
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 4  # what is less than fatal becomes an exception
        settings.intra_op_num_threads = options.num_threads
        # threads without work sleep after 1 ms, as Paddle's do; older versions take cores that readers need
        settings.add_session_config_entry("session.intra_op.spin_duration_us", "1000")
        if not options.optimize:
            settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        printed = io.StringIO()  # onnxruntime prints which libraries it does not find
        try:
            with contextlib.redirect_stdout(printed):
                if provider != "cpu" and hasattr(onnxruntime, "preload_dlls"):  # since onnxruntime 1.21
                    onnxruntime.preload_dlls()  # CUDA and cuDNN of pip, which the system does not find
                self._session = onnxruntime.InferenceSession(
                    str(model_file), settings, providers=_onnx_providers(provider, options)
                )
        except Exception as error:  # whatever a damaged file leads to
            text = f"{model_file}: onnxruntime {onnxruntime.__version__} cannot load it: {self._cause(error)}"
            raise ProgramError(text) from error
        # onnxruntime goes on without a provider whose libraries it cannot load
        if _ONNX_PROVIDERS[provider] not in self._session.get_providers():
            raise ProviderError(
                f"{provider}: onnxruntime {onnxruntime.__version__} cannot load {_ONNX_PROVIDERS[provider]}: "
                "it needs a GPU with its driver, and the CUDA, cuDNN and TensorRT that it was built for. "
                f"{_GPU_PACKAGE} brings CUDA and cuDNN{_missing(printed.getvalue())}"
            )
        outputs = self._session.get_outputs()
        if not outputs or not outputs[0].type.startswith("tensor(float"):
            text = f"{model_file}: its first output is no logits, which are floating-point numbers"
            raise ProgramError(text)
        self._input = self._only([value.name for value in self._session.get_inputs()], " --onnx")

    def _run(self, clips: np.ndarray) -> np.ndarray:
        return self._session.run(None, {self._input: clips})[0]

    def _cause(self, error: Exception) -> str:
        return " ".join(str(error).split()) or type(error).__name__


_ONNX_PROVIDERS: Mapping[Provider, str] = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
_TENSORRT_WORKSPACE = 1 << 30  # bytes


def _onnx_providers(provider: Provider, options: ProgramOptions) -> list[Any]:
    """What onnxruntime tries for each operator, in this order; operators without a kernel go to the next."""
    shared = {"device_id": options.gpu_number}
    settings: dict[Provider, dict[str, Any]] = {
        # its exhaustive search, the default, costs up to a second at each new shape
        "cuda": {"gpu_mem_limit": options.gpu_mem_mb << 20, "cudnn_conv_algo_search": "HEURISTIC"},
        "tensorrt": {
            "trt_max_workspace_size": _TENSORRT_WORKSPACE,
            "trt_fp16_enable": options.precision == "fp16",
        },
    }
    on_gpu = [(_ONNX_PROVIDERS[name], {**shared, **own}) for name, own in settings.items()]
    return [*on_gpu[: PROVIDERS.index(provider)][::-1], _ONNX_PROVIDERS["cpu"]]


_GPU_PACKAGE = 'pip install "onnxruntime-gpu[cuda,cudnn]"'


def _missing(printed: str) -> str:
    """The first library that onnxruntime has not found, of what it has printed."""
    return next((f" ({line.strip()})" for line in printed.splitlines() if "Failed to load" in line), "")


def _check_onnxruntime_has(onnxruntime: Any, provider: Provider, options: ProgramOptions) -> None:
    if options.use_mkldnn:
        raise ProviderError("enable_mkldnn: its operators are Paddle's; leave it out for an .onnx model")
    if options.precision == "fp16" and provider != "tensorrt":
        raise ProviderError(
            f"precision fp16: {provider} runs an .onnx model in the precision of its export; export it "
            "with --fp16, or take the provider tensorrt"
        )
    there = onnxruntime.get_available_providers()
    if _ONNX_PROVIDERS[provider] not in there:
        raise ProviderError(
            f"{provider}: onnxruntime {onnxruntime.__version__} is built without {_ONNX_PROVIDERS[provider]} "
            f"(it has {', '.join(there)}); {_GPU_PACKAGE} in its place"
        )


# The ending that the installed Paddle writes comes first. FLAGS_enable_pir_api=0 asks Paddle 3 for the format
# of Paddle 2.
_WRITES_JSON = getattr(paddle.framework, "use_pir_api", lambda: False)()
PADDLE_SUFFIXES = (".json", ".pdmodel") if _WRITES_JSON else (".pdmodel", ".json")
PARAMS_SUFFIX = ".pdiparams"
ONNX_SUFFIX = ".onnx"
PROGRAM_SUFFIXES = (*PADDLE_SUFFIXES, ONNX_SUFFIX)


def find_program(model_file: str | Path) -> Path:
    """The file of a program. Its ending may be left out; a program of Paddle comes before ONNX.

    Raises:
        ProgramError: there is no such file.
    """
    if scheme_of(os.fspath(model_file)):
        model_file = _fetched_program(os.fspath(model_file))
    path = Path(model_file)
    with_endings = [] if path.suffix in PROGRAM_SUFFIXES else [f"{path}{end}" for end in PROGRAM_SUFFIXES]
    for candidate in (*map(Path, with_endings), path):
        if candidate.is_file():
            return candidate
    raise ProgramError(
        f"{path}: there is no such file or folder; name the output folder of a run, or a program that "
        "paddlevideo-fast export has written"
    )


def _fetched_program(url: str) -> Path:
    """Where the files of a program at a URL are on this machine, without the ending if the URL has none."""
    folder, _, name = url.rpartition("/")
    mirror = Mirror(folder)
    stem = str(Path(name).with_suffix("")) if Path(name).suffix in PROGRAM_SUFFIXES else name
    mirror.fetch_named([stem + ending for ending in (*PROGRAM_SUFFIXES, PARAMS_SUFFIX, ".yaml", ".yml")])
    return mirror.folder / name


def settings_file(model_file: str | Path) -> Path:
    """The settings file that export writes next to a program: `.yaml`, or `.yml` in PaddleX's form.

    Raises:
        ProgramError: there is no such program.
    """
    program = find_program(model_file)
    files = [file for file in map(program.with_suffix, (".yaml", ".yml")) if file.is_file()]
    return files[0] if files else program.with_suffix(".yaml")


def open_program(
    model_file: str | Path,
    params_file: str | Path | None = None,
    options: ProgramOptions | None = None,
    checksums: Mapping[str, int] | None = None,
    runtime: Runtime = "paddle",
) -> Program:
    """Loads an exported network.

    Args:
        model_file: .json or .pdmodel for Paddle Inference, .onnx for onnxruntime. Without the ending it is
            Paddle's, but on a CPU `runtime` decides.
        params_file: parameters of a program for Paddle Inference; None: next to the program.
        options: how to run it.
        checksums: see `ProgramSettings`.
        runtime: what runs it on a CPU, where neither `model_file` nor `options` say. An .onnx must be of the
            export that `checksums` are of, and onnxruntime must be installed.

    Raises:
        ProviderError: no provider of `options` can run the program; names the last.
        ProgramError: a file is missing, not the exported one, or no program.
        MissingExtraError: onnxruntime is needed and not installed.
    """
    options = options or ProgramOptions()
    has_ending = Path(os.fspath(model_file)).suffix in PROGRAM_SUFFIXES
    model_file = find_program(model_file)
    if not has_ending and params_file is None and model_file.suffix != ONNX_SUFFIX:
        named = model_file.name
        model_file, options = _fastest(model_file, options, runtime, checksums or {})
        if model_file.suffix == ONNX_SUFFIX:
            get_logger().info("onnxruntime runs %s; to use Paddle Inference, name %s", model_file, named)
    if model_file.suffix not in PROGRAM_SUFFIXES:
        raise ProgramError(f"{model_file}: is no model; expected one of {', '.join(PROGRAM_SUFFIXES)}")
    params = None
    if model_file.suffix != ONNX_SUFFIX:
        params = Path(local_copy(params_file)) if params_file else model_file.with_suffix(PARAMS_SUFFIX)
    elif params_file is not None:
        raise ProgramError(f"params_file {params_file}: {model_file} has its weights in it; leave it out")
    files = [model_file] if params is None else [model_file, params]
    for file in files:
        require_unicode(file)
    if params is not None and not params.is_file():
        raise ProgramError(f"{params}: there is no such file; paddlevideo-fast export writes it")
    if checksums is not None:
        _check_files(files, checksums)
    providers = _providers(options, is_onnx=params is None)
    for provider in providers:
        try:
            if params is None:
                return OnnxProgram(model_file, options, provider)
            return PaddleProgram(model_file, params, options, provider)
        except ProviderError as error:
            if provider == providers[-1]:
                raise
            get_logger().warning("%s; the next provider is tried", error)
    raise AssertionError("there is at least one provider")


def _fastest(
    model_file: Path, options: ProgramOptions, runtime: Runtime, checksums: Mapping[str, int]
) -> tuple[Path, ProgramOptions]:
    """A program of Paddle, or the .onnx beside it, and options: on a CPU as `runtime` says."""
    if model_file.suffix == ONNX_SUFFIX or not is_on_cpu(options) or options.use_mkldnn is not None:
        return model_file, options
    if runtime == "onednn":
        return model_file, replace(options, use_mkldnn=True)
    onnx = model_file.with_suffix(ONNX_SUFFIX)
    is_there = onnx.is_file() and ONNX_SUFFIX in checksums
    if runtime == "paddle" or not is_there or importlib.util.find_spec("onnxruntime") is None:
        return model_file, options
    return onnx, options


_Key = TypeVar("_Key")


def median_times(programs: Mapping[_Key, Program], clips: np.ndarray) -> dict[_Key, float]:
    """Median seconds of several runs of each program; they take turns.

    The first runs of a turn do not count: the threads of the program before wait for work for a while, and
    keep the cores busy with it.
    """
    times: dict[_Key, list[float]] = {key: [] for key in programs}
    for _ in range(_NUM_ROUNDS):
        for key, program in programs.items():
            _timed_runs(program, clips)
            times[key] += _timed_runs(program, clips)
    return {key: statistics.median(several) for key, several in times.items()}


def _timed_runs(program: Program, clips: np.ndarray) -> list[float]:
    """Seconds of each run, of one or as many as a turn has time for."""
    seconds: list[float] = []
    while sum(seconds) < _TURN_SEC:
        began = time.perf_counter()
        program.run(clips)
        seconds.append(time.perf_counter() - began)
    return seconds


def is_on_cpu(options: ProgramOptions) -> bool:
    """Whether a program of Paddle runs on a CPU."""
    return list(_providers(options, is_onnx=False)) == ["cpu"]


def _providers(options: ProgramOptions, is_onnx: bool) -> Sequence[Provider]:
    by_default: Provider = "cuda" if not is_onnx and paddle.get_device().startswith("gpu") else "cpu"
    return options.providers or (by_default,)


def require_unicode(path: str | Path) -> None:
    """Raises `ProgramError` where Paddle and onnxruntime cannot take a path."""
    if not is_unicode(os.path.abspath(path)):
        raise ProgramError(f"{path}: Paddle takes no path that is not UTF-8; choose another folder or name")


def checksum_of(path: Path) -> int:
    """CRC-32 of a file."""
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
        if checksum_of(path) != checksums[path.suffix]:
            raise ProgramError(
                f"{path}: is damaged, or of another export than {settings}; copy the files of one export "
                "together, or export it again"
            )
