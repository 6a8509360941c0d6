"""The program that predicts: flags that name it and say how it runs, for `predict` and `serve`."""

import argparse
import contextlib
import re
from pathlib import Path
from typing import Any

from paddlevideo_fast.apps.predict.quiet import paddle_is_quiet
from paddlevideo_fast.apps.zoo import named_weights
from paddlevideo_fast.cli.command import find_weights
from paddlevideo_fast.command_line import count, option
from paddlevideo_fast.config import Config
from paddlevideo_fast.config.builtin import CONFIG_FILE, find_config
from paddlevideo_fast.config.load import load_config
from paddlevideo_fast.errors import ProgramError
from paddlevideo_fast.io.urls import scheme_of


def _probability(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= float(text) <= 1:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no probability, from 0 to 1")


def _device(text: str) -> str:
    if re.fullmatch(r"cpu|gpu(:\d+)?", text):
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is neither cpu, gpu nor gpu:N, such as gpu:1")


def truth(text: str) -> bool:
    """An argparse type: True or False, as PaddleVideo's flags have it."""
    if text.lower() not in ("true", "t", "1", "false", "f", "0"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither True nor False")
    return text.lower() in ("true", "t", "1")


PROGRAM_OPTIONS: dict[str, dict[str, Any]] = {
    "--model_file": option(
        "output folder of a run, exported folder, program, weights, or a config's name for published "
        "weights, such as slowfast_4x16; see below",
        positional="MODEL",
    ),
    "-c --config": option(
        "read videos as this config says, not as the .yaml next to the program; for weights: the "
        "config they were trained with"
    ),
    "-o --override": option(
        "sets a key of the config; may be given more than once",
        action="append",
        default=[],
        metavar="KEY=VALUE",
    ),
    "-w --weights": option(
        "the same as MODEL, for weights: a .pdparams file, the output folder of a run, or a config's name",
        was="-p",
    ),
    "--class_names": option("names of the classes, one a line, in the order of their labels", metavar="FILE"),
    "--threshold": option(
        "for networks with several labels a video: predict the classes with a probability of P or "
        "more (default 0.5)",
        type=_probability,
        metavar="P",
    ),
    "--params_file": option("file with the weights of the program, .pdiparams (default: the one beside it)"),
    "--device": option(
        "where the program runs: cpu, gpu, or gpu:N for the GPU with this number (default: Paddle's "
        "device; an .onnx model: cpu)",
        type=_device,
        metavar="DEVICE",
    ),
    "--use_gpu": option("True or False, as --device gpu and cpu", type=truth),
    "--provider": option(
        "backends in order of preference: the first that loads runs the model; a warning names the others",
        nargs="+",
        choices=("cpu", "cuda", "tensorrt"),
        default=[],
    ),
    "--use_tensorrt": option("True, as --provider tensorrt; False has no effect", type=truth),
    "--gpu_mem": option("GPU memory in MB to reserve (default 8000)", type=count(1), default=8000),
    "--precision": option("fp16: on a GPU only", choices=("fp32", "fp16"), default="fp32"),
    "--cpu_threads": option("CPU threads (default: one per core)", type=count(1)),
    "--backend": option(
        "what runs the model on a CPU: Paddle Inference, without or with oneDNN, or onnxruntime, "
        "which needs an export with --onnx (default: as export found best for the network)",
        choices=("paddle", "onednn", "onnxruntime"),
    ),
    "--enable_mkldnn": option(
        "True, False: Paddle Inference with oneDNN on a CPU (convolutional networks only), or "
        "without (default: the fastest for the network)",
        type=truth,
    ),
    "--merge_tokens": option(
        "of weights: tokens that each layer of a VideoMAE merges, for a faster program",
        type=count(0),
        metavar="N",
    ),
    "--ir_optim": option("let Paddle or onnxruntime optimize the program", type=truth, default=True),
}


RARE = (
    *("--params_file", "--use_gpu", "--provider", "--use_tensorrt", "--gpu_mem", "--precision"),
    *("--cpu_threads", "--enable_mkldnn", "--merge_tokens", "--ir_optim"),
)


def check_program(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Rules of a command line with `PROGRAM_OPTIONS`; sets `args.provider`, `gpu`, `model`, `has_weights`."""
    if args.device and args.use_gpu is not None:
        parser.error("--device: says the same as --use_gpu; leave one of the two out")
    device, _, number = (args.device or {None: "", True: "gpu", False: "cpu"}[args.use_gpu]).partition(":")
    args.gpu = int(number) if number else None
    if args.provider and (device or args.use_tensorrt):
        parser.error("--provider: says where the program runs; leave out --device, --use_gpu, --use_tensorrt")
    if args.use_tensorrt and device == "cpu":
        parser.error("--use_tensorrt: runs on a GPU, and --use_gpu or --device says CPU")
    if device or args.use_tensorrt:
        args.provider = ["tensorrt" if args.use_tensorrt else "cuda" if device == "gpu" else "cpu"]
    if args.backend:
        if any(name != "cpu" for name in args.provider):
            parser.error("--backend: is for a CPU; leave it out")
        if args.enable_mkldnn is not None:
            parser.error("--enable_mkldnn: says the same as --backend; leave one of the two out")
        if args.params_file or Path(args.model_file or "").suffix in named_weights.PROGRAM_SUFFIXES:
            parser.error("--backend: the program is named with its file ending; leave one of the two out")
    if (args.model_file is None) == (args.weights is None):
        parser.error(
            f"MODEL: {'is missing' if args.weights is None else 'is given twice, also as --weights'}"
        )
    args.model = args.model_file if args.weights is None else args.weights
    args.has_weights = args.weights is not None or _has_weights(args.model)
    if args.merge_tokens is not None:
        if not args.has_weights:
            text = "is for weights, and MODEL is an exported model; export it with --merge_tokens"
            parser.error(f"--merge_tokens: {text}")
        args.override = [*args.override, f"merge_tokens={args.merge_tokens}"]
    if args.config is None and not args.has_weights and len(args.override) > len(args.imports):
        parser.error("--override: sets a key of --config, which is missing")
    if args.params_file and args.has_weights:
        parser.error(f"--params_file: is for an exported model, and {args.model} has weights")


def _programs_in(model: str) -> list[str] | None:
    """The exported programs of a folder, without their endings; None where MODEL is no folder."""
    if not model or scheme_of(model) or not Path(model).is_dir():
        return None
    files = Path(model).iterdir()
    return sorted({str(file.with_suffix("")) for file in files if file.suffix in (".pdiparams", ".onnx")})


def _has_weights(model: str) -> bool:
    """Whether MODEL means weights: a file or a name of them, or a folder without a program."""
    programs = _programs_in(model)
    if programs is None:
        return model.endswith(".pdparams") or named_weights.is_name(model)
    return not programs


def _program(args: argparse.Namespace, options: Any) -> str:
    """The program of MODEL; that of weights is exported where it is not there yet.

    Args:
        args: the command line.
        options: a `ProgramOptions`, how the program will be run.

    Raises:
        PaddleVideoFastError: there is none, or as of `export_model`.
    """
    if not args.has_weights:
        programs = _programs_in(args.model) or [args.model]
        if len(programs) > 1:
            raise ProgramError(f"{args.model}: holds several models; name one: {', '.join(programs)}")
        return programs[0]
    from paddlevideo_fast.apps.export.from_checkpoint import program_of_weights
    from paddlevideo_fast.apps.predict.program import is_on_cpu

    is_free = args.enable_mkldnn is None and args.backend in (None, "onnxruntime")
    may_take_onnx = is_free and is_on_cpu(options)
    return str(program_of_weights(*network_of(args), may_take_onnx))


def network_of(args: argparse.Namespace) -> tuple[Config, Path]:
    """The config and the weights that MODEL means.

    Raises:
        PaddleVideoFastError: there are none.
    """
    if scheme_of(args.model):
        raise ProgramError(
            f"{args.model}: weights at a URL are exported first:  paddlevideo-fast export CONFIG -w URL"
        )
    source = named_weights.source_of(args.model) if named_weights.is_name(args.model) else None
    if source and source.config and not args.config:
        published = load_config(find_config(source.config), [*source.options, *args.override])
        return published, Path(find_weights(args.model))
    given = Path(args.model)
    config = args.config or (given if given.is_dir() else given.parent) / CONFIG_FILE
    if not args.config and not config.is_file():
        lacks = "holds no exported model and" if given.is_dir() else "has beside it"
        raise ProgramError(f"{given}: {lacks} no {CONFIG_FILE} of a run; give a config with -c")
    if args.config or not given.is_dir():
        weights = Path(find_weights(args.model))
    else:
        weights = Path(find_weights(None, load_config(config), args.model))
        if (weights.parent / CONFIG_FILE).is_file():
            config = weights.parent / CONFIG_FILE  # as it was when they were trained
    return load_config(config, args.override), weights


@paddle_is_quiet()
def make_predictor(args: argparse.Namespace) -> Any:
    """The predictor that the command line describes."""
    from paddlevideo_fast.apps.predict.predictor import Predictor
    from paddlevideo_fast.apps.predict.program import ProgramOptions, settings_file
    from paddlevideo_fast.apps.predict.recipe import read_recipe, recipe_in_place
    from paddlevideo_fast.loader import read_class_names

    options = ProgramOptions(
        providers=args.provider,
        gpu_mem_mb=args.gpu_mem,
        precision=args.precision,
        cpu_threads=args.cpu_threads,
        use_mkldnn=args.enable_mkldnn,
        optimize=args.ir_optim,
        gpu=args.gpu,
    )
    program = _program(args, options)
    beside = settings_file(program)
    if args.config is None or args.has_weights:
        recipe = read_recipe(beside, args.imports)
    else:
        recipe = recipe_in_place(beside, load_config(args.config, args.override), bool(args.class_names))
    names = read_class_names(args.class_names, recipe.settings.num_classes) if args.class_names else None
    return Predictor(program, args.params_file, recipe, names, options, args.threshold, args.backend)
