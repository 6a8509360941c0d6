"""Writes a trained network as a program that runs without this package's code, also as ONNX."""

import contextlib
import json
import os
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import paddle
from paddle import nn

import paddlevideo_fast
from paddlevideo_fast.apps.export.paddlex_form import NAME, PaddleXFolder, check_paddlex_form
from paddlevideo_fast.apps.export.targets import (
    Int8Target,
    Onnx16Target,
    OnnxTarget,
    PaddleTarget,
    PaddleXTarget,
    SettingsTarget,
    Source,
    Target,
    deviation_of,
    verify,
)
from paddlevideo_fast.apps.predict.program import (
    PADDLE_SUFFIXES,
    PARAMS_SUFFIX,
    ProgramOptions,
    checksum_of,
    open_program,
    require_unicode,
)
from paddlevideo_fast.apps.predict.recipe import (
    FREE,
    Recipe,
    Split,
    clip_shape,
    read_recipe,
    recipe_of,
    views_of,
)
from paddlevideo_fast.config import Config
from paddlevideo_fast.config.builtin import CONFIG_FILE
from paddlevideo_fast.errors import ProgramError
from paddlevideo_fast.io.files import as_path
from paddlevideo_fast.io.locks import only_writer
from paddlevideo_fast.io.urls import scheme_of
from paddlevideo_fast.jobs.run import size_text
from paddlevideo_fast.loader import build_dataset
from paddlevideo_fast.loader.annotations import check_labels
from paddlevideo_fast.loader.class_names import (
    NAMES_FILE,
    Classes,
    classes_of_config,
    compared,
    read_class_names,
)
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.modeling import Backbone
from paddlevideo_fast.modeling.recognizers import activation_of, build_model, classes_of
from paddlevideo_fast.modeling.weights import backbone_of, load_weights
from paddlevideo_fast.sources.remote.sync import staged

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
    recipe = _recipe(cfg, weights, options)
    name = name or (NAME if options.paddlex else recipe.settings.model_name)
    if name != Path(name).name or name == "..":
        raise ProgramError(f"{name!r} is no name of a file; give one without a folder as --save_name")
    if options.paddlex:
        if name != NAME or options.input_shape:
            text = f"PaddleX looks for files named {NAME!r}, with the shape that the pipeline makes"
            raise ProgramError(text)
        settings = recipe.settings
        check_paddlex_form(recipe.dataset(), settings.layout, options.input_dtype, settings.activation)
    targets = _targets(cfg, options)
    wanted = as_path(folder)
    with (
        staged(folder) as folder,
        only_writer(folder, name, given_by="--output_path"),
        computing_on("cpu") as device,
    ):
        source = _source(cfg, weights, options, recipe)
        try:
            with tempfile.TemporaryDirectory(prefix=".export.", dir=folder) as temporary:
                files = _files(Path(temporary) / name, targets)
                _write(source, targets, files, device)
                for file in files.all:
                    os.replace(file, folder / file.name)
            stale = [suffix for suffix in PADDLE_SUFFIXES if suffix != files.program.suffix]
            for ending in [*stale, ".yaml"] if options.paddlex else stale:
                (folder / f"{name}{ending}").unlink(missing_ok=True)  # of an earlier export; they would win
        except OSError as error:
            raise ProgramError(f"{folder}: cannot be written: {error}") from error
    return _files(wanted / name, targets)


def _recipe(cfg: Config, weights: str | Path, options: ExportOptions) -> Recipe:
    """How the programs are fed, with the names of the classes."""
    recipe = recipe_of(cfg, options.split, options.input_dtype)
    names = _class_names(cfg, os.fspath(weights), recipe.settings.num_classes, options.class_names)
    recipe = recipe.with_settings(class_names=names)
    shape = options.input_shape or clip_shape(recipe)
    _check_shape(shape, recipe.settings.layout)
    return recipe.with_settings(input_shape=tuple(shape))


def _targets(cfg: Config, options: ExportOptions) -> list[Target]:
    """What is written, in this order."""
    in_paddle = PaddleTarget(PADDLE_SUFFIXES[0] if options.program is None else f".{options.program}")
    targets: list[Target] = [in_paddle]
    opset = options.onnx_opset
    if opset is not None and options.int8 is not None:
        videos = _calibrating_videos(cfg, options.split, options.int8)
        targets.append(Int8Target(opset, videos, options.int8.num_clips, in_paddle))
    elif opset is not None:
        targets.append(Onnx16Target(opset) if options.onnx_fp16 else OnnxTarget(opset))
    targets.append(PaddleXTarget(options.paddlex) if options.paddlex else SettingsTarget())
    return targets


def _source(cfg: Config, weights: str | Path, options: ExportOptions, recipe: Recipe) -> Source:
    """The trained network with the shape that its programs take."""
    model = _trained(cfg, weights, options)
    backbone, _ = backbone_of(model)
    made_from = checksum_of_source(cfg, weights)
    recipe = recipe.with_settings(cpu_runtime=backbone.cpu_runtime, made_from=made_from)
    _check_free_axes(backbone, recipe.settings.input_shape)
    shape = clip_shape(recipe)
    return Source(model, _with_own_frames(backbone, recipe, shape), shape)


def _write(source: Source, targets: Sequence[Target], files: ExportedFiles, device: str) -> None:
    """Writes the files of a network and compares the programs with it.

    Args:
        source: the network.
        targets: what to write; the settings are the last.
        files: where, in an empty folder.
        device: where Paddle computes by default.
    """
    *programs, settings_target = targets
    prefix = files.program.with_suffix("")
    checks = [check for target in programs for check in target.write(source, prefix)]
    checksums = {file.suffix: checksum_of(file) for file in (*files.programs, files.params)}
    source.recipe = source.recipe.with_settings(checksums=checksums)
    settings_target.write(source, prefix)
    read = read_recipe(files.settings).settings
    paths = (*files.programs, files.params)
    written = ", ".join(f"{file.name} ({size_text(file.stat().st_size)})" for file in paths)
    logger.info("wrote %s; now comparing the logits of these programs with the network's", written)
    for check in checks:
        verify(source, check, read.checksums)
    if device != "cpu":
        program = open_program(files.program, options=ProgramOptions(providers=("cuda",)))
        deviation = deviation_of(program.run(source.prepare(source.clips)), source.logits)
        logger.info(
            f"on {device} the program's logits differ by {deviation:.1e} from those on the CPU, relative to "
            "the largest; TF32 and other kernels do that"
        )


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
    config = Path(cfg.path or "")
    is_saved = config.name == CONFIG_FILE and config.parent == Path(weights).parent
    if file is None and is_saved and not cfg.where("DATASET.class_names").startswith("-o "):
        file = Path(weights).with_name(NAMES_FILE)
        file = file if file.is_file() else None
    if file is None:
        given = classes_of_config(cfg, num_classes)
    else:
        given = Classes(read_class_names(file, num_classes), f"--class_names {file}")
    classes = compared(given, weights)
    return classes and classes.names


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


@contextlib.contextmanager
def computing_on(device: str) -> Iterator[str]:
    """Makes Paddle compute on a device; gives the device that it computed on before."""
    before = paddle.get_device()
    paddle.set_device(device)
    try:
        yield before
    finally:
        paddle.set_device(before)


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


def _files(prefix: Path, targets: Sequence[Target]) -> ExportedFiles:
    """The files of an export, whose path without an ending is `prefix`."""
    program, *onnx, settings = (target.file(prefix) for target in targets)
    return ExportedFiles(program, prefix.with_name(prefix.name + PARAMS_SUFFIX), settings, *onnx)
