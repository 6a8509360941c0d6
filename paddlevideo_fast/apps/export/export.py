"""Writes a trained network as a program that runs without this package's code, also as ONNX."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import paddle
from paddle import nn
from paddle.static import InputSpec

import paddlevideo_fast
from paddlevideo_fast.apps.export.paddlex_form import (
    NAME,
    PaddleXFolder,
    check_paddlex_form,
    save_paddlex_form,
)
from paddlevideo_fast.apps.export.quantize import ClipsOfVideos, quantize
from paddlevideo_fast.apps.predict.program import (
    ONNX_SUFFIX,
    PADDLE_SUFFIXES,
    PARAMS_SUFFIX,
    ProgramOptions,
    Runtime,
    checksum_of,
    median_times,
    open_program,
    require_unicode,
)
from paddlevideo_fast.apps.predict.recipe import (
    FREE,
    ProgramSettings,
    Recipe,
    Split,
    clip_shape,
    read_recipe,
    recipe_of,
    views_of,
)
from paddlevideo_fast.config import Config
from paddlevideo_fast.config.builtin import CONFIG_FILE
from paddlevideo_fast.errors import MissingExtraError, ProgramError
from paddlevideo_fast.extras import needing
from paddlevideo_fast.io.files import as_path
from paddlevideo_fast.io.locks import only_writer
from paddlevideo_fast.io.urls import scheme_of
from paddlevideo_fast.loader import build_dataset
from paddlevideo_fast.loader.annotations import check_labels, read_class_names
from paddlevideo_fast.loader.class_names import NAMES_FILE, Classes, classes_of_config, compared
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.modeling import Backbone, Preprocess
from paddlevideo_fast.modeling.layers.operators import operators_for
from paddlevideo_fast.modeling.recognizers import activation_of, build_model, classes_of
from paddlevideo_fast.modeling.weights import backbone_of, load_weights
from paddlevideo_fast.sources.remote.sync import staged

TOLERANCE = 1e-4  # of the largest logit
_HALF_TOLERANCE = 2e-2  # as before, of a program in 16 bits

logger = get_logger(__name__)


@dataclass(frozen=True)
class Calibration:
    """The clips that show a program in int8 its ranges; see `quantize`.

    Args:
        file_path: a list as DATASET.valid has it, of files from its `data_prefix` on; None: its own list.
        num_clips: that calibrate; as many others compare.
    """

    file_path: str | None = None
    num_clips: int = 128


@dataclass(frozen=True)
class ExportOptions:
    """What the exported program looks like.

    Args:
        input_dtype: "uint8": it takes pixels and normalises them; "float32": it takes normalised clips.
        input_shape: [T, H, W] of its clips; -1 leaves an axis free; None: what the pipeline makes. The number
            of clips is always free.
        split: the split whose pipeline and views prediction follows.
        class_names: file with the names of the classes, one a line; None: those of the config, or those
            that the training left beside the weights, which refuse others.
        program: its format: "json" of Paddle 3, or "pdmodel", which Paddle 2 and runtimes of its time read as
            well; None: as the installed Paddle writes it.
        onnx_opset: write the program as ONNX, too, with this version of its operators or a later one.
        onnx_fp16: the ONNX program computes in 16 bits; its input and its logits stay as they are.
        int8: the ONNX program computes in int8, calibrated so; None: in float.
        paddlex: write the folder that PaddleX runs: files named "inference", and its settings file for ours.
    """

    input_dtype: Literal["uint8", "float32"] = "float32"
    input_shape: Sequence[int] | None = None
    split: Split = "valid"
    class_names: str | Path | None = None
    program: Literal["json", "pdmodel"] | None = None
    onnx_opset: int | None = None
    onnx_fp16: bool = False
    int8: Calibration | None = None
    paddlex: PaddleXFolder | None = None


class ExportedFiles(NamedTuple):
    """The files of an export."""

    program: Path
    params: Path
    settings: Path
    onnx: Path | None = None

    @property
    def programs(self) -> list[Path]:
        """The program in each format that was written."""
        return [self.program] if self.onnx is None else [self.program, self.onnx]

    @property
    def all(self) -> list[Path]:
        """Every file."""
        return [*self.programs, self.params, self.settings]


class _Exported(nn.Layer):
    """A network, and its normalisation where the program includes it."""

    def __init__(self, model: nn.Layer, preprocess: Preprocess | None) -> None:
        super().__init__()
        self.model = model
        self.preprocess = preprocess

    def forward(self, clips: paddle.Tensor) -> paddle.Tensor:
        return self.model(clips if self.preprocess is None else self.preprocess.in_paddle(clips))


def export_model(
    cfg: Config,
    weights: str | Path,
    folder: str | Path,
    name: str | None = None,
    options: ExportOptions | None = None,
) -> ExportedFiles:
    """Writes a trained network as a program, if the program gives the network's logits.

    Network and program are compared on the CPU in float32, on whatever device the network was trained.

    Args:
        cfg: the config of the training.
        weights: the trained weights, a path or a URL.
        folder: folder of the files; it is made where it is missing.
        name: name of the files; None: `model_name`.
        options: what the program looks like.

    Raises:
        OutputInUseError: another process writes files of this name.
        PaddleVideoFastError: as its message says; `folder` is then as it was.
    """
    options = options or ExportOptions()
    require_unicode(folder)
    recipe = recipe_of(cfg, options.split, options.input_dtype)
    names = _class_names(cfg, os.fspath(weights), recipe.settings.num_classes, options.class_names)
    recipe = recipe.with_settings(class_names=names)
    videos = None if options.int8 is None else _calibrating_videos(cfg, options.split, options.int8)
    name = name or (NAME if options.paddlex else recipe.settings.model_name)
    if name != Path(name).name or name == "..":
        raise ProgramError(f"{name!r} is no name of a file; give one without a folder as --save_name")
    if options.paddlex:
        if name != NAME or options.input_shape:
            text = f"PaddleX looks for files named {NAME!r}, with the shape that the pipeline makes"
            raise ProgramError(text)
        settings = recipe.settings
        check_paddlex_form(recipe.dataset(), settings.layout, options.input_dtype, settings.activation)
    made = clip_shape(recipe)
    shape = list(options.input_shape or made)
    _check_shape(shape, recipe.settings.layout)
    recipe = recipe.with_settings(input_shape=tuple(shape))
    given = as_path(folder)
    with (
        staged(folder) as folder,
        only_writer(folder, name, given_by="--output_path"),
        computing_on("cpu") as device,
    ):
        model = _trained(cfg, weights, options)
        backbone, _ = backbone_of(model)
        made_from = checksum_of_source(cfg, weights)
        recipe = recipe.with_settings(cpu_runtime=backbone.cpu_runtime, made_from=made_from)
        _check_free_axes(backbone, shape)
        recipe = _with_own_frames(backbone, recipe, made)
        try:
            with tempfile.TemporaryDirectory(prefix=".export.", dir=folder) as temporary:
                files = _files(Path(temporary) / name, options)
                _export(model, recipe, files, made, options, device, videos)
                for file in files.all:
                    os.replace(file, folder / file.name)
            stale = [suffix for suffix in PADDLE_SUFFIXES if suffix != files.program.suffix]
            for ending in [*stale, ".yaml"] if options.paddlex else stale:
                (folder / f"{name}{ending}").unlink(missing_ok=True)  # of an earlier export; they would win
        except OSError as error:
            raise ProgramError(f"{folder}: cannot be written: {error}") from error
    return _files(given / name, options)


def checksum_of_source(cfg: Config, weights: str | Path) -> int | None:
    """A checksum of what decides a program, but for the options of its export; None for weights at a URL."""
    if scheme_of(weights):
        return None
    data, names = cfg.get("DATASET") or {}, Path(weights).with_name(NAMES_FILE)
    decisive = [
        (paddlevideo_fast.__version__, paddle.__version__, cfg["model_name"]),
        cfg["MODEL"],
        cfg.get("PIPELINE"),
        [views_of(data.get(split) or {}) for split in ("valid", "test")],
        names.read_text("utf-8", "surrogateescape") if names.is_file() else data.get("class_names"),
    ]
    return zlib.crc32(json.dumps(decisive, default=str).encode(), checksum_of(Path(weights)))


def _class_names(cfg: Config, weights: str, num_classes: int, file: str | Path | None) -> list[str] | None:
    """The names of the classes by the file, the config or the weights, of which the weights must agree.

    The config that a run has saved names a file of the data, which may have been moved or changed since: the
    names that the run has saved beside it say more.
    """
    place = Path(cfg.path or "")
    is_saved = place.name == CONFIG_FILE and place.parent == Path(weights).parent
    if file is None and is_saved and not cfg.where("DATASET.class_names").startswith("-o "):
        file = Path(weights).with_name(NAMES_FILE)
        file = file if file.is_file() else None
    if file is None:
        given = classes_of_config(cfg, num_classes)
    else:
        given = Classes(read_class_names(file, num_classes), f"--class_names {file}")
    classes = compared(given, weights)
    return classes and classes.names


def _export(
    model: nn.Layer,
    recipe: Recipe,
    files: ExportedFiles,
    made: Sequence[int],
    options: ExportOptions,
    device: str,
    videos: ClipDataset | None,
) -> None:
    """Writes the files of a network and compares the programs with it.

    Args:
        model: the trained network.
        recipe: how its clips are made, and the shape that the programs take.
        files: where to write, in an empty folder.
        made: [T, H, W] of the clips that the pipeline makes.
        options: what the program looks like.
        device: where Paddle computes by default.
        videos: that calibrate an ONNX program in int8.
    """
    settings = recipe.settings
    shape = settings.input_shape
    preprocess = Preprocess(*recipe.dataset().pipeline.normalization, settings.layout)
    inside = preprocess if settings.input_dtype == "uint8" else None
    clips = np.random.default_rng(0).integers(
        0, 256, (2, *(m if s == FREE else s for s, m in zip(shape, made)), 3), np.uint8
    )
    normalised = preprocess.in_numpy(clips)
    given = normalised if inside is None else clips
    with operators_for("inference"), _writing(files.program.suffix):
        _write(_Exported(model, inside), files.program, shape, settings)
    in_float: Path | None = None
    if files.onnx is not None and options.onnx_opset is not None:
        portable = files.program.parent / "portable" / f"{files.program.stem}{PADDLE_SUFFIXES[0]}"
        with operators_for("onnx"):
            _write(_Exported(model, inside), portable, shape, settings)
        in_float = files.onnx if videos is None else portable.with_suffix(ONNX_SUFFIX)
        write_onnx(portable, in_float, options.onnx_opset)
        if options.onnx_fp16:
            _to_16_bits(files.onnx)
        if videos is not None and options.int8 is not None:
            prepare = preprocess.in_numpy if inside is None else np.asarray
            real = ClipsOfVideos(videos, options.int8.num_clips, prepare)
            found, in_32_bits = quantize(in_float, files.onnx, real, settings.activation)
            runtime, speedup = _timed(files, in_float, settings.cpu_runtime, given[:1])
            measured = {**asdict(found), "speedup": speedup, "float_layers": in_32_bits}
            settings = replace(settings, int8=measured, cpu_runtime=runtime)
    checksums = {file.suffix: checksum_of(file) for file in (*files.programs, files.params)}
    settings = replace(settings, checksums=checksums)
    if options.paddlex is None:
        recipe._replace(settings=settings).save(files.settings)
    else:
        names = settings.class_names or [str(number) for number in range(settings.num_classes)]
        save_paddlex_form(recipe.dataset(), names, options.paddlex, files.settings)
    with paddle.no_grad():
        expected = model(paddle.to_tensor(normalised)).numpy()
    settings = read_recipe(files.settings).settings
    runs = [(path, _CPU) for path in (files.program, in_float) if path]
    if settings.cpu_runtime == "onednn":
        runs.append((files.program, replace(_CPU, use_mkldnn=True)))
    for path, how in runs:
        is_half = options.onnx_fp16 and path == files.onnx
        program = open_program(path, options=how, checksums=settings.checksums if path in files else None)
        deviation = deviation_of(program.run(given), expected)
        if not deviation <= (_HALF_TOLERANCE if is_half else TOLERANCE):  # nor where it is NaN
            raise ProgramError(
                f"{path.name}: its logits are not the network's (relative deviation {deviation:.1e}, "
                f"allowed {_HALF_TOLERANCE if is_half else TOLERANCE:.0e}); nothing was written"
            )
    if device != "cpu":
        program = open_program(files.program, options=ProgramOptions(providers=("cuda",)))
        logger.info(
            f"on {device} the program's logits differ by {deviation_of(program.run(given), expected):.1e} "
            "from those on the CPU, relative to the largest; TF32 and other kernels do that"
        )


def _timed(files: ExportedFiles, in_float: Path, usual: Runtime, clip: np.ndarray) -> tuple[Runtime, float]:
    """Times a clip on this CPU.

    Args:
        files: the program of Paddle, and the .onnx in int8.
        in_float: the .onnx in float32.
        usual: what runs the network fastest in float32.
        clip: one clip.

    Returns:
        What runs it faster, onnxruntime in int8 or Paddle; and the time of the .onnx in float32 over int8's.
    """
    assert files.onnx is not None
    own: Runtime = "onednn" if usual == "onednn" else "paddle"
    programs = {
        own: open_program(files.program, options=replace(_CPU, use_mkldnn=own == "onednn")),
        "onnxruntime": open_program(in_float, options=_CPU),
        "onnxruntime in int8": open_program(files.onnx, options=_CPU),
    }
    sec = median_times(programs, clip)
    speedup = sec["onnxruntime"] / sec["onnxruntime in int8"]
    told = ", ".join(f"{name} {1e3 * each:.1f} ms" for name, each in sec.items())
    is_faster = sec["onnxruntime in int8"] <= sec[own]
    fastest = "onnxruntime in int8" if is_faster else own
    logger.info("a clip takes %s; on a CPU predict takes %s", told, fastest)
    if speedup <= 1:
        logger.warning(
            "int8 is slower than the same program in float32 here, since onnxruntime needs VNNI or AMX for "
            "it: an export without --int8 is faster on this machine, and more exact"
        )
    return "onnxruntime" if is_faster else own, speedup


def _calibrating_videos(cfg: Config, split: Split, calibration: Calibration) -> ClipDataset:
    """The list of a calibration, read as evaluation reads it."""
    section = (cfg.get("DATASET") or {}).get(split)
    if not section:
        raise cfg.error(f"DATASET.{split}", "is missing; int8 reads the videos of --calibrate as it says")
    given = {} if calibration.file_path is None else {"file_path": calibration.file_path}
    num_classes, has_several = classes_of(cfg["MODEL"]), activation_of(cfg["MODEL"]) == "sigmoid"
    dataset = build_dataset(
        {**section, **given},
        cfg["PIPELINE"][split],
        training=False,
        seed=0,
        num_classes=num_classes if has_several else None,
        class_names=cfg["DATASET"].get("class_names"),
    )
    if num_classes:
        check_labels(dataset.records, num_classes, dataset.file_path, any_number=has_several)
    return dataset


_CPU = ProgramOptions(providers=("cpu",))


@contextlib.contextmanager
def computing_on(device: str) -> Iterator[str]:
    """Makes Paddle compute on a device; gives the device that it computed on before."""
    before = paddle.get_device()
    paddle.set_device(device)
    try:
        yield before
    finally:
        paddle.set_device(before)


def deviation_of(found: Any, expected: Any) -> float:
    """The largest difference from the expected values, relative to the largest of them; NaN where one is."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    return float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-12))


def _trained(cfg: Config, weights: str | Path, options: ExportOptions) -> nn.Layer:
    model = build_model(cfg["MODEL"], load_pretrained=False)
    load_weights(model, weights, strict=True)
    model.eval()
    formats = {getattr(layer, "data_format", None) for layer in model.sublayers()}
    if options.onnx_opset is not None and "NHWC" in formats:
        raise ProgramError(
            f"{cfg.path}  MODEL: paddle2onnx converts channels first only; set data_format to NCHW in "
            "MODEL.backbone and MODEL.head, which changes no weight"
        )
    return model


def _check_shape(shape: Sequence[int], layout: str) -> None:
    if len(shape) != 3 or any(size < 1 and size != FREE for size in shape):
        raise ProgramError(f"input_shape {list(shape)}: expected T, H, W, each 1 or more, or -1 for free")
    if layout == "NCTHW" and shape[0] == FREE:
        raise ProgramError("input_shape: a 3D network's program is for one number of frames; give T a number")


def _check_free_axes(backbone: Backbone, shape: Sequence[int]) -> None:
    if FREE in shape and backbone.has_fixed_size:
        raise ProgramError(
            f"input_shape: a program of {type(backbone).__name__} is for clips of one size; give T, H and W "
            "numbers (the number of clips is free)"
        )


def _with_own_frames(backbone: Backbone, recipe: Recipe, made: Sequence[int]) -> Recipe:
    """The recipe with a number in place of a free T, where the network mixes the frames of a clip."""
    settings = recipe.settings
    num_frames, height, width = settings.input_shape
    num_seg = None if backbone.has_fixed_size else backbone.num_seg
    if num_seg is None or num_frames in (num_seg, made[0]):
        return recipe
    if num_frames != FREE:
        raise ProgramError(
            f"input_shape: T is {num_frames}, and MODEL.backbone.num_seg is {num_seg}: the network mixes the "
            f"frames of a clip, and other numbers give other scores; give {made[0]}"
        )
    logger.info("T is %d: the network mixes the frames of a clip, and others give other scores", made[0])
    return recipe.with_settings(input_shape=(made[0], height, width))


@contextlib.contextmanager
def _writing(suffix: str) -> Iterator[None]:
    """Makes Paddle write programs with this ending.

    Raises:
        ProgramError: it cannot.
    """
    if suffix == PADDLE_SUFFIXES[0]:
        yield
    elif suffix == ".json":
        raise ProgramError(f"--format json: Paddle {paddle.__version__} writes .pdmodel; use Paddle 3 for it")
    else:
        with paddle.pir_utils.DygraphOldIrGuard():
            yield


def _write(network: _Exported, file: Path, shape: Sequence[int], settings: ProgramSettings) -> None:
    num_frames, height, width = (None if size == FREE else size for size in shape)
    axes = {"N": None, "C": 3, "T": num_frames, "H": height, "W": width}
    order = "NTHWC" if settings.input_dtype == "uint8" else settings.layout
    spec = InputSpec([axes[axis] for axis in order], settings.input_dtype, name="clips")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Paddle about its own static graphs
        static = paddle.jit.to_static(network, input_spec=[spec], full_graph=True)
        paddle.jit.save(static, str(file.with_suffix("")))


def _files(prefix: Path, options: ExportOptions) -> ExportedFiles:
    program = PADDLE_SUFFIXES[0] if options.program is None else f".{options.program}"
    endings = [program, PARAMS_SUFFIX, ".yml" if options.paddlex else ".yaml"]
    if options.onnx_opset is not None:
        endings.append(ONNX_SUFFIX)
    return ExportedFiles(*(prefix.parent / f"{prefix.name}{ending}" for ending in endings))


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


def _to_16_bits(path: Path) -> None:
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
    told = [line for line in lines if line.startswith("[ERROR]") or "Oops" in line]
    return " ".join(told or lines[-1:]) or "it says nothing"
