"""What an export writes: targets, each of which writes one form of the network, and how they are verified.

PaddleTarget      a program for Paddle Inference
OnnxTarget        a program for onnxruntime
Onnx16Target      as before, in 16 bits
Int8Target        as before, in int8
SettingsTarget    how prediction feeds the programs
PaddleXTarget     as before, in the form of PaddleX
"""

import contextlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle import nn
from paddle.static import InputSpec

from paddlevideo_fast.apps.export.onnx_conversion import to_16_bits, write_onnx
from paddlevideo_fast.apps.export.paddlex_form import PaddleXFolder, save_paddlex_form
from paddlevideo_fast.apps.export.quantize import ClipsOfVideos, quantize
from paddlevideo_fast.apps.predict.program import (
    ONNX_SUFFIX,
    PADDLE_SUFFIXES,
    ProgramOptions,
    Runtime,
    median_times,
    open_program,
)
from paddlevideo_fast.apps.predict.recipe import FREE, ProgramSettings, Recipe
from paddlevideo_fast.errors import ProgramError
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.modeling import Preprocess
from paddlevideo_fast.modeling.layers.operators import operators_for

logger = get_logger(__name__)

TOLERANCE = 1e-4  # of the largest logit
_HALF_TOLERANCE = 2e-2  # as before, of a program in 16 bits
_CPU = ProgramOptions(providers=("cpu",))
_ONEDNN = replace(_CPU, use_mkldnn=True)


@dataclass(eq=False)
class Source:
    """The network that is exported.

    Args:
        model: the trained network.
        recipe: how its clips are made, and the shape that the programs take; targets add what prediction has
            to know of them.
        pipeline_shape: [T, H, W] of the clips that the pipeline makes.
    """

    model: nn.Layer
    recipe: Recipe
    pipeline_shape: Sequence[int]

    @property
    def settings(self) -> ProgramSettings:
        """The plain keys of the recipe."""
        return self.recipe.settings

    @cached_property
    def preprocess(self) -> Preprocess:
        """Normalises clips."""
        return Preprocess(*self.recipe.dataset().pipeline.normalization, self.settings.layout)

    @property
    def network(self) -> nn.Layer:
        """The network as a program, with its normalisation where the program takes pixels."""
        return _Exported(self.model, self.preprocess if self.settings.input_dtype == "uint8" else None)

    def prepare(self, clips: np.ndarray) -> np.ndarray:
        """Clips, uint8 [N, T, H, W, 3], as the programs take them."""
        return clips if self.settings.input_dtype == "uint8" else self.preprocess.in_numpy(clips)

    @cached_property
    def clips(self) -> np.ndarray:
        """Two clips of noise, uint8 [2, T, H, W, 3]."""
        sizes = zip(self.settings.input_shape, self.pipeline_shape)
        shape = (2, *(made if size == FREE else size for size, made in sizes), 3)
        return np.random.default_rng(0).integers(0, 256, shape, np.uint8)

    @cached_property
    def logits(self) -> np.ndarray:
        """What the network gives for `clips`."""
        with paddle.no_grad():
            return self.model(paddle.to_tensor(self.preprocess.in_numpy(self.clips))).numpy()


class _Exported(nn.Layer):
    """A network, and its normalisation where the program includes it."""

    def __init__(self, model: nn.Layer, preprocess: Preprocess | None) -> None:
        super().__init__()
        self.model = model
        self.preprocess = preprocess

    def forward(self, clips: paddle.Tensor) -> paddle.Tensor:
        return self.model(clips if self.preprocess is None else self.preprocess.in_paddle(clips))


class Check(NamedTuple):
    """A program that must give the network's logits; see `verify`.

    Attributes:
        file: the program.
        tolerance: allowed deviation, relative to the largest logit.
        options: how it is run.
        is_temporary: the export does not keep the file, so its settings have no checksum of it.
    """

    file: Path
    tolerance: float = TOLERANCE
    options: ProgramOptions = _CPU
    is_temporary: bool = False


class Target(ABC):
    """One form of the network. Its file has the name of the export and the ending `suffix`."""

    suffix: str

    def file(self, prefix: Path) -> Path:
        """The file for the path of an export without its ending."""
        return prefix.with_name(prefix.name + self.suffix)

    @abstractmethod
    def write(self, source: Source, prefix: Path) -> Sequence[Check]:
        """Writes the file and says what is to be verified; raises `PaddleVideoFastError` where it fails."""


@dataclass(frozen=True)
class PaddleTarget(Target):
    """A program of Paddle, with its parameters beside it.

    Args:
        suffix: ".json" of Paddle 3, or ".pdmodel".
    """

    suffix: str

    def write(self, source: Source, prefix: Path) -> Sequence[Check]:
        file = self.file(prefix)
        with operators_for("inference"), _writing(self.suffix):
            _write_paddle(source, file)
        ways = [_CPU, _ONEDNN] if source.settings.cpu_runtime == "onednn" else [_CPU]
        return [Check(file, options=options) for options in ways]


@dataclass(frozen=True)
class OnnxTarget(Target):
    """A program in ONNX.

    Args:
        opset: version of ONNX's operators, or a later one.
    """

    opset: int
    suffix = ONNX_SUFFIX

    def write(self, source: Source, prefix: Path) -> Sequence[Check]:
        self._convert(source, prefix, self.file(prefix))
        return [Check(self.file(prefix))]

    def _convert(self, source: Source, prefix: Path, file: Path) -> None:
        """Writes `file` in float32, from a program of Paddle with operators that ONNX has."""
        portable = _portable(prefix, PADDLE_SUFFIXES[0])
        with operators_for("onnx"):
            _write_paddle(source, portable)
        write_onnx(portable, file, self.opset)


class Onnx16Target(OnnxTarget):
    """A program in ONNX that computes in 16 bits; its input and its logits stay as they are."""

    def write(self, source: Source, prefix: Path) -> Sequence[Check]:
        super().write(source, prefix)
        to_16_bits(self.file(prefix))
        return [Check(self.file(prefix), _HALF_TOLERANCE)]


@dataclass(frozen=True)
class Int8Target(OnnxTarget):
    """A program in ONNX that computes in int8. `quantize` judges it; its float32 form is verified.

    Args:
        videos: that calibrate.
        num_clips: of them; as many others compare.
        paddle: the program that int8 is timed against.
    """

    videos: ClipDataset
    num_clips: int
    paddle: PaddleTarget

    def write(self, source: Source, prefix: Path) -> Sequence[Check]:
        in_float, in_int8 = _portable(prefix, ONNX_SUFFIX), self.file(prefix)
        self._convert(source, prefix, in_float)
        clips = ClipsOfVideos(self.videos, self.num_clips, source.prepare)
        comparison, float_layers = quantize(in_float, in_int8, clips, source.settings.activation)
        files = self.paddle.file(prefix), in_float, in_int8
        runtime, speedup = time_int8(*files, source.settings.cpu_runtime, source.prepare(source.clips[:1]))
        int8 = {**asdict(comparison), "speedup": speedup, "float_layers": float_layers}
        source.recipe = source.recipe.with_settings(int8=int8, cpu_runtime=runtime)
        return [Check(in_float, is_temporary=True)]


class SettingsTarget(Target):
    """Our own settings file; see `recipe`."""

    suffix = ".yaml"

    def write(self, source: Source, prefix: Path) -> Sequence[Check]:
        source.recipe.save(self.file(prefix))
        return ()


@dataclass(frozen=True)
class PaddleXTarget(Target):
    """The settings file of PaddleX.

    Args:
        folder: what else it says.
    """

    folder: PaddleXFolder
    suffix = ".yml"

    def write(self, source: Source, prefix: Path) -> Sequence[Check]:
        names = source.settings.class_names or [str(number) for number in range(source.settings.num_classes)]
        save_paddlex_form(source.recipe.dataset(), names, self.folder, self.file(prefix))
        return ()


def verify(source: Source, check: Check, checksums: dict[str, int] | None) -> None:
    """Compares a program with the network.

    Args:
        source: the network.
        check: what to compare.
        checksums: of the files of the export, as prediction reads them.

    Raises:
        ProgramError: its logits are not the network's.
    """
    program = open_program(
        check.file, options=check.options, checksums=None if check.is_temporary else checksums
    )
    deviation = deviation_of(program.run(source.prepare(source.clips)), source.logits)
    if not deviation <= check.tolerance:  # nor where it is NaN
        raise ProgramError(
            f"{check.file.name}: its logits are not the network's (relative deviation {deviation:.1e}, "
            f"allowed {check.tolerance:.0e}); nothing was written"
        )


def deviation_of(values: Any, expected: Any) -> float:
    """The largest difference from the expected values, relative to the largest of them; NaN where one is."""
    values, expected = np.asarray(values, np.float64), np.asarray(expected, np.float64)
    return float(np.abs(values - expected).max() / max(np.abs(expected).max(), 1e-12))


def time_int8(
    in_paddle: Path, in_float: Path, in_int8: Path, usual: Runtime, clip: np.ndarray
) -> tuple[Runtime, float]:
    """Times a clip on this CPU.

    Args:
        in_paddle: the program of Paddle.
        in_float: the .onnx in float32.
        in_int8: the .onnx in int8.
        usual: what runs the network fastest in float32.
        clip: one clip.

    Returns:
        What runs it faster, onnxruntime in int8 or Paddle; and the time of the .onnx in float32 over int8's.
    """
    own: Runtime = "onednn" if usual == "onednn" else "paddle"
    programs = {
        own: open_program(in_paddle, options=replace(_CPU, use_mkldnn=own == "onednn")),
        "onnxruntime": open_program(in_float, options=_CPU),
        "onnxruntime in int8": open_program(in_int8, options=_CPU),
    }
    sec = median_times(programs, clip)
    speedup = sec["onnxruntime"] / sec["onnxruntime in int8"]
    times = ", ".join(f"{name} {1e3 * each:.1f} ms" for name, each in sec.items())
    is_faster = sec["onnxruntime in int8"] <= sec[own]
    fastest = "onnxruntime in int8" if is_faster else own
    logger.info("a clip takes %s; on a CPU predict takes %s", times, fastest)
    if speedup <= 1:
        logger.warning(
            "int8 is slower than the same program in float32 here, since onnxruntime needs VNNI or AMX for "
            "it: an export without --int8 is faster on this machine, and more exact"
        )
    return "onnxruntime" if is_faster else own, speedup


def _portable(prefix: Path, suffix: str) -> Path:
    """A file that the export does not keep."""
    return prefix.parent / "portable" / f"{prefix.name}{suffix}"


@contextlib.contextmanager
def _writing(suffix: str) -> Iterator[None]:
    """Makes Paddle write programs with this ending.

    Raises:
        ProgramError: it cannot.
    """
    if suffix == PADDLE_SUFFIXES[0]:
        yield
    elif suffix == ".json":
        raise ProgramError(
            f"--program_format json: Paddle {paddle.__version__} writes .pdmodel; use Paddle 3 for it"
        )
    else:
        with paddle.pir_utils.DygraphOldIrGuard():
            yield


def _write_paddle(source: Source, file: Path) -> None:
    settings = source.settings
    num_frames, height, width = (None if size == FREE else size for size in settings.input_shape)
    axes = {"N": None, "C": 3, "T": num_frames, "H": height, "W": width}
    order = "NTHWC" if settings.input_dtype == "uint8" else settings.layout
    spec = InputSpec([axes[axis] for axis in order], settings.input_dtype, name="clips")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Paddle about its own static graphs
        static = paddle.jit.to_static(source.network, input_spec=[spec], full_graph=True)
        paddle.jit.save(static, str(file.with_suffix("")))
