"""Predicts the classes of videos with a trained network.

MODEL is one of:
    the output folder of a run, such as output/my_set: its best weights are taken
    a folder that `paddlevideo-fast export` wrote, or a program in it
    weights, a .pdparams file; the config of their training is the config.yaml beside them, or -c
Weights are exported to a folder `inference` beside them; the next call takes the program that is there.

A file that cannot be read is named with the cause, and the others go on. Exit code: 0, all files were
predicted; 1, some were; 2, none was, or the input is wrong.

Examples:
    paddlevideo-fast predict output/my_set -i video.mp4
    paddlevideo-fast predict inference -i film.mp4 --window_sec 4 --timeline film.png
"""

import argparse
import codecs
import contextlib
import ctypes
import itertools
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from paddlevideo_fast.cli.command import add_import_argument, find_weights, quiet_import
from paddlevideo_fast.command_line import CommandParser, add_options, count
from paddlevideo_fast.config import Config
from paddlevideo_fast.config.builtin import CONFIG_FILE
from paddlevideo_fast.config.load import load_config
from paddlevideo_fast.config.startup import prepare_process
from paddlevideo_fast.errors import (
    EXIT_FAILURES,
    EXIT_USER_ERROR,
    PaddleVideoFastError,
    ProgramError,
)
from paddlevideo_fast.io.files import as_path, is_live
from paddlevideo_fast.io.locks import only_writer
from paddlevideo_fast.io.sync import staged
from paddlevideo_fast.io.urls import is_url, shown_url
from paddlevideo_fast.log import printable
from paddlevideo_fast.machine import num_cores

_MOST_READERS = 8  # by default
_BENCHMARK_FILES = 15  # how often a single file is read to time it


def _probability(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= float(text) <= 1:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no probability, from 0 to 1")


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "t", "1", "false", "f", "0"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither True nor False")
    return text.lower() in ("true", "t", "1")


_OPTIONS: dict[str, dict[str, Any]] = {
    "-i --input_file": {
        "required": True,
        "help": "a video, a folder of videos, the URL of either, or live: rtsp://…, /dev/video0, - for the "
        "standard input",
    },
    "--model_file": {
        "positional": "MODEL",
        "help": "output folder of a run, exported folder, program, or weights; of a program without its file "
        "ending, the fastest format is taken on a CPU",
    },
    "-w --weights": {
        "help": "the same as MODEL, for weights: a .pdparams file, or the output folder of a run"
    },
    "--params_file": {
        "help": "file with the weights of the program, .pdiparams (default: the one beside it)"
    },
    "-c --config": {
        "help": "read videos as this config says, not as the .yaml next to the program; for weights: the "
        "config they were trained with"
    },
    "-o --override": {
        "action": "append",
        "default": [],
        "metavar": "KEY=VALUE",
        "help": "sets a key of the config",
    },
    "--class_names": {"metavar": "FILE", "help": "names of the classes, one a line"},
    "--top_k": {"type": count(1), "default": 5, "help": "classes to show (default 5)"},
    "--threshold": {
        "type": _probability,
        "metavar": "P",
        "help": "for networks with several labels a video: predict the classes with a probability of P or "
        "more (default 0.5)",
    },
    "--json": {"action": "store_true", "help": "print JSON instead of text"},
    "-b --batch_size": {"type": count(1), "default": 1, "help": "files at a time (default 1)"},
    "--num_readers": {
        "type": count(0),
        "metavar": "N",
        "help": "threads that read the next files while the network computes; 0: read and compute in turn "
        "(default: one per core, 8 at most); not with --window_sec",
    },
    "--window_sec": {
        "type": float,
        "metavar": "S",
        "help": "predict windows of S seconds, not each video as a whole",
    },
    "--stride_sec": {
        "type": float,
        "metavar": "S",
        "help": "seconds from one window to the next (default: --window_sec)",
    },
    "--timeline": {"metavar": "PATH", "help": "draw the classes over time: a .png file, or a folder of them"},
    "--annotated": {"metavar": "DIR", "help": "write the videos with their classes on the frames"},
    "--explain": {
        "metavar": "DIR",
        "help": "write a picture of each video: the frames of its first view, and a heat map of what decided",
    },
    "--explain_by": {
        "choices": ("gradcam", "occlusion"),
        "help": "gradcam: one pass back through the network; occlusion: hundreds of passes forth, of any "
        "program (default: gradcam where MODEL is weights or a run's folder, else occlusion)",
    },
    "--device": {
        "choices": ("cpu", "gpu"),
        "help": "where the program runs (default: Paddle's device; an .onnx program: cpu)",
    },
    "--use_gpu": {"type": _truth, "help": "True or False, as --device gpu and cpu"},
    "--provider": {
        "nargs": "+",
        "choices": ("cpu", "cuda", "tensorrt"),
        "default": [],
        "help": "backends in order of preference: the first that loads runs the program; a warning names the "
        "others",
    },
    "--use_tensorrt": {"type": _truth, "help": "True, as --provider tensorrt; False has no effect"},
    "--gpu_mem": {"type": count(1), "default": 8000, "help": "GPU memory in MB to reserve (default 8000)"},
    "--precision": {"choices": ("fp32", "fp16"), "default": "fp32", "help": "fp16: on a GPU only"},
    "--cpu_threads": {"type": count(1), "help": "CPU threads (default: one per core)"},
    "--backend": {
        "choices": ("auto", "paddle", "onednn", "onnxruntime"),
        "help": "what runs the program on a CPU: Paddle Inference, without or with oneDNN, or onnxruntime, "
        "which needs an export with --onnx; auto measures them at the start (default: as export found best "
        "for the network)",
    },
    "--enable_mkldnn": {
        "type": _truth,
        "help": "True, False: Paddle Inference with oneDNN on a CPU (convolutional networks only), or "
        "without (default: the fastest for the network)",
    },
    "--ir_optim": {"type": _truth, "default": True, "help": "let Paddle or onnxruntime optimize the program"},
    "--enable_benchmark": {"type": _truth, "default": False, "help": "print times, no classes"},
    "--time_test_file": {
        "type": _truth,
        "default": False,
        "help": "--input_file is a list of videos, one a line",
    },
}
_LIVE_OPTIONS: dict[str, dict[str, Any]] = {
    "--when_slow": {
        "choices": ("drop", "wait"),
        "help": "if predictions take longer than strides: drop frames, or let the source wait (default: a "
        "pipe waits, other sources drop)",
    },
    "--stall_sec": {
        "type": float,
        "default": 5.0,
        "metavar": "S",
        "help": "warn if no frame comes for S seconds (default 5)",
    },
    "--reconnects": {
        "type": count(0),
        "default": 10,
        "help": "attempts in a row to connect again (default 10); not for a pipe",
    },
    "--live_format": {
        "metavar": "NAME",
        "help": "FFmpeg's name of the input format, if FFmpeg does not detect it",
    },
    "--live_option": {
        "action": "append",
        "default": [],
        "metavar": "KEY=VALUE",
        "help": "an option of FFmpeg's input, such as framerate=30; may be given more than once",
    },
}


def build_parser() -> argparse.ArgumentParser:
    """The parser of `paddlevideo-fast predict`; PaddleVideo's flags keep their names."""
    parser = CommandParser("predict", __doc__, _rules)
    add_options(parser, _OPTIONS)
    add_import_argument(parser)
    add_options(parser.add_argument_group("live input"), _LIVE_OPTIONS)
    return parser


def _rules(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    if args.device and args.use_gpu is not None:
        parser.error("--device: says the same as --use_gpu; leave one of the two out")
    device = args.device or {None: None, True: "gpu", False: "cpu"}[args.use_gpu]
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
        if args.params_file or Path(args.model_file or "").suffix in (".json", ".pdmodel", ".onnx"):
            parser.error("--backend: the program is named with its file ending; leave one of the two out")
    for name in ("stride_sec", "timeline"):
        if getattr(args, name) is not None and args.window_sec is None:
            parser.error(f"--{name}: needs --window_sec")
    if args.num_readers is not None and args.window_sec is not None:
        parser.error("--num_readers: reads whole files ahead; leave it out with --window_sec")
    if is_live(args.input_file):
        if args.window_sec is None:
            parser.error("--input_file: a live input is predicted in windows; give --window_sec")
        for name in ("timeline", "annotated", "explain", "enable_benchmark", "time_test_file"):
            if getattr(args, name):
                parser.error(f"--{name}: is for files, not for live input")
        if any("=" not in option for option in args.live_option):
            parser.error(f"--live_option: {args.live_option}: expected KEY=VALUE")
    elif args.when_slow or args.live_format or args.live_option:
        parser.error(f"--input_file: {args.input_file} is no live input; leave out the flags of live input")
    if (args.model_file is None) == (args.weights is None):
        parser.error(
            f"MODEL: {'is missing' if args.weights is None else 'is given twice, also as --weights'}"
        )
    args.model = args.model_file if args.weights is None else args.weights
    args.has_weights = args.weights is not None or _has_weights(args.model)
    if args.config is None and not args.has_weights and len(args.override) > len(args.imports):
        parser.error("--override: sets a key of --config, which is missing")
    if args.params_file and args.has_weights:
        parser.error(f"--params_file: is for a program, and {args.model} has weights")
    if args.enable_benchmark and (args.window_sec is not None or args.annotated or args.explain):
        text = "times whole files; leave out --window_sec, --annotated and --explain"
        parser.error(f"--enable_benchmark: {text}")
    _rules_of_explanations(parser, args)


def _rules_of_explanations(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    if args.explain and args.window_sec is not None:
        parser.error("--explain: explains whole files; leave out --window_sec")
    if args.explain_by and not args.explain:
        parser.error("--explain_by: needs --explain")
    if args.explain_by == "gradcam" and not args.has_weights:
        text = "needs the network; give MODEL as weights or the output folder of a run, or take occlusion"
        parser.error(f"--explain_by: gradcam {text}")


def _programs_in(model: str) -> list[str] | None:
    """The exported programs of a folder, without their endings; None where MODEL is no folder."""
    if not model or is_url(model) or not Path(model).is_dir():
        return None
    files = Path(model).iterdir()
    return sorted({str(file.with_suffix("")) for file in files if file.suffix in (".pdiparams", ".onnx")})


def _has_weights(model: str) -> bool:
    """Whether MODEL means weights: a file of them, or a folder without a program."""
    programs = _programs_in(model)
    return model.endswith(".pdparams") if programs is None else not programs


def _program(args: argparse.Namespace) -> str:
    """The program of MODEL; that of weights is exported where it is not there yet.

    Raises:
        PaddleVideoFastError: there is none, or as of `export_model`.
    """
    if not args.has_weights:
        programs = _programs_in(args.model) or [args.model]
        if len(programs) > 1:
            raise ProgramError(f"{args.model}: holds several programs; name one: {', '.join(programs)}")
        return programs[0]
    from paddlevideo_fast.deploy.from_checkpoint import program_of_weights

    return str(program_of_weights(*_network(args)))


def _network(args: argparse.Namespace) -> tuple[Config, Path]:
    """The config and the weights that MODEL means.

    Raises:
        PaddleVideoFastError: there are none.
    """
    if is_url(args.model):
        raise ProgramError(
            f"{args.model}: weights at a URL are exported first:  paddlevideo-fast export CONFIG -w URL"
        )
    given = Path(args.model)
    config = args.config or (given if given.is_dir() else given.parent) / CONFIG_FILE
    if not args.config and not config.is_file():
        raise ProgramError(
            f"{config.parent}: holds no program and no {CONFIG_FILE} of a run; give a config with -c"
        )
    if args.config or not given.is_dir():
        weights = Path(find_weights(args.model))
    else:
        weights = Path(find_weights(None, load_config(config), args.model))
        if (weights.parent / CONFIG_FILE).is_file():
            config = weights.parent / CONFIG_FILE  # as it was when they were trained
    return load_config(config, args.override), weights


@contextlib.contextmanager
def _paddle_is_quiet() -> Iterator[None]:
    """Drops what passes of Paddle print on stdout, which has predictions alone; errors are on stderr."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _without_prints(found: Iterable[Any]) -> Iterator[Any]:
    """The predictions; a program is optimized, and Paddle prints, when it computes the first."""
    predictions = iter(found)
    with _paddle_is_quiet():
        first = list(itertools.islice(predictions, 1))
    yield from itertools.chain(first, predictions)


@_paddle_is_quiet()
def make_predictor(args: argparse.Namespace) -> Any:
    """The predictor that the command line describes."""
    from paddlevideo_fast.deploy.predictor import Predictor
    from paddlevideo_fast.deploy.program import ProgramOptions, settings_file
    from paddlevideo_fast.deploy.recipe import read_recipe, recipe_in_place
    from paddlevideo_fast.loader import read_class_names

    options = ProgramOptions(
        providers=args.provider,
        gpu_mem_mb=args.gpu_mem,
        precision=args.precision,
        cpu_threads=args.cpu_threads,
        use_mkldnn=args.enable_mkldnn,
        optimize=args.ir_optim,
    )
    program = _program(args)
    beside = settings_file(program)
    if args.config is None or args.has_weights:
        recipe = read_recipe(beside, args.imports)
    else:
        recipe = recipe_in_place(beside, load_config(args.config, args.override), bool(args.class_names))
    names = read_class_names(args.class_names, recipe.settings.num_classes) if args.class_names else None
    return Predictor(program, args.params_file, recipe, names, options, args.threshold, args.backend)


def files_of(args: argparse.Namespace) -> list[Path]:
    """The files to predict; a single file is repeated to time it."""
    from paddlevideo_fast.deploy.predictor import find_videos, listed_videos

    if args.time_test_file:
        return listed_videos(args.input_file)
    files = find_videos(args.input_file)
    return files * _BENCHMARK_FILES if args.enable_benchmark and len(files) == 1 else files


@contextlib.contextmanager
def picture_folders(args: argparse.Namespace) -> Iterator[dict[str, Path]]:
    """Where to write pictures and annotated videos, on this machine; other processes are kept out meanwhile.

    What is for a URL is uploaded at the end.

    Yields:
        Those of "annotated", "timeline" and "explain" that are asked for.
    """
    found: dict[str, Path] = {}
    with contextlib.ExitStack() as stack:
        for name in ("annotated", "timeline", "explain"):
            given = getattr(args, name)
            if not given:
                continue
            is_picture = name == "timeline" and given.lower().endswith(".png")
            folder, file = os.path.split(given) if is_picture else (given, "")
            place = stack.enter_context(staged(folder))
            if (place / file).resolve() not in {path.resolve() for path in found.values()}:
                stack.enter_context(only_writer(place, file, given_by=f"--{name}"))
            found[name] = place / file
        yield found


@_paddle_is_quiet()
def _explaining(args: argparse.Namespace, predictor: Any, folder: Path) -> Any:
    """How the predictions are explained, with pictures in a folder.

    Raises:
        PaddleVideoFastError: as of `load_weights`.
    """
    import paddle

    from paddlevideo_fast.modeling import Preprocess, build_model, load_weights
    from paddlevideo_fast.modeling.explain import by_grad_cam
    from paddlevideo_fast.report.explanations import Explaining, by_occlusion

    if args.explain_by == "occlusion" or not args.has_weights:
        return Explaining(by_occlusion(predictor), folder, shown_url(args.explain))
    if args.provider[:1] == ["cpu"]:
        paddle.set_device("cpu")
    cfg, weights = _network(args)
    model = build_model(cfg["MODEL"], load_pretrained=False)
    load_weights(model, weights, strict=True)
    pipeline = predictor.recipe.dataset().pipeline
    mean, std = pipeline.normalization
    of_view = by_grad_cam(model, Preprocess(mean, std, predictor.recipe.settings.layout))

    def explain(clip: Any, class_id: int) -> Any:
        return of_view(clip[: len(clip) // pipeline.num_views], class_id)

    return Explaining(explain, folder, shown_url(args.explain))


def results(args: argparse.Namespace, predictor: Any, files: Sequence[Path]) -> Iterable[Any]:
    """Predictions of the files, of windows where the command line asks for them."""
    from paddlevideo_fast.deploy.predictor import Windowing

    bar = partial(tqdm, leave=False, disable=None)
    if args.window_sec is None:
        readers = min(num_cores(), _MOST_READERS) if args.num_readers is None else args.num_readers
        found = predictor.predict(files, args.batch_size, readers)
    else:
        windowing = Windowing(args.window_sec, args.stride_sec)
        found = predictor.predict_windows(files, windowing, args.batch_size, partial(bar, desc="windows"))
    return bar(found, total=len(files), desc="videos") if args.json else found


def show_error(error: PaddleVideoFastError) -> None:
    """Prints what went wrong with a file, in one message."""
    print(f"{type(error).__name__}: {printable(str(error))}", file=sys.stderr)


def run(args: argparse.Namespace) -> int:
    """Predicts and returns the exit code. After Ctrl-C, what is written by then stays."""
    os.environ.setdefault("GLOG_minloglevel", "2")  # Paddle warns of each export
    if is_live(args.input_file):
        return _predict_live(args)
    entries: list[dict[str, Any]] = []
    try:
        _predict(args, entries)
    finally:
        if args.json and (entries or sys.exc_info()[0] in (None, KeyboardInterrupt)):
            is_utf8 = codecs.lookup(sys.stdout.encoding or "ascii").name == "utf-8"
            print(json.dumps(entries, indent=1, ensure_ascii=not is_utf8))
    num_failed = sum("error" in entry for entry in entries)
    if not num_failed:
        return 0
    return EXIT_FAILURES if num_failed < len(entries) else EXIT_USER_ERROR


def _predict_live(args: argparse.Namespace) -> int:
    """Prints the prediction of each window of a live input as it comes, until the input ends."""
    prepare_process(args.config, args.override)
    with quiet_import():
        from paddlevideo_fast.deploy.live import LiveSource, live_row, predict_live
        from paddlevideo_fast.deploy.predictor import Windowing
    windowing = Windowing(args.window_sec, args.stride_sec)
    predictor = make_predictor(args)
    options = dict(option.split("=", 1) for option in args.live_option)
    source = LiveSource(
        args.input_file,
        windowing.window_sec + (windowing.stride_sec or windowing.window_sec),
        args.when_slow,
        args.stall_sec,
        args.reconnects,
        args.live_format,
        options,
    )
    num_failed = num_windows = 0
    try:
        with source:
            for found in _without_prints(predict_live(predictor, source, windowing)):
                entry = found.entry(args.top_k)
                num_windows += 1
                num_failed += "error" in entry
                line = json.dumps(entry) if args.json else live_row(entry)
                print(line, flush=True)
    finally:
        if source.num_frames:
            print(source.summary(num_windows), file=sys.stderr)
    return EXIT_FAILURES if num_failed else 0


def _predict(args: argparse.Namespace, entries: list[dict[str, Any]]) -> None:
    """Predicts the files; adds what becomes of each to `entries`."""
    prepare_process(args.config, args.override)
    with quiet_import():
        from paddlevideo_fast.deploy.predictor import table, timing
        from paddlevideo_fast.report.predictions import PredictionPictures, entries_of
    with picture_folders(args) as folders:
        predictor = make_predictor(args)
        files = files_of(args)
        found = _without_prints(results(args, predictor, files))
        pictures = None
        if folders:
            explaining = _explaining(args, predictor, folders.pop("explain")) if args.explain else None
            root = as_path(args.input_file)
            pictures = PredictionPictures(predictor, files, root, **folders, explaining=explaining)
        is_quiet, began = args.json or args.enable_benchmark, time.perf_counter()
        show = (lambda entry: None) if is_quiet else (lambda entry: print(table(entry), flush=True))
        entries.extend(entries_of(found, args.top_k, pictures, show, show_error))
    if args.enable_benchmark:
        print(
            timing(predictor.times, time.perf_counter() - began), file=sys.stderr if args.json else sys.stdout
        )
