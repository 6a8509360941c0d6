"""Predicts the classes of videos with a program that `paddlevideo-fast export` wrote.

A file that cannot be read is named with the cause, and the others go on. Exit code: 0, all files were
predicted; 1, some were; 2, none was, or the input is wrong.

Examples:
    paddlevideo-fast predict -i video.mp4 --model_file inference/TSM_motion
    paddlevideo-fast predict -i film.mp4 --model_file inference/TSM_motion --window_sec 4 --timeline film.png
"""

import argparse
import codecs
import contextlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from paddlevideo_fast.cli.command import (
    add_import_argument,
    command_parser,
    count,
    quiet_import,
    run_command,
)
from paddlevideo_fast.config.load import load_config
from paddlevideo_fast.config.startup import prepare_process
from paddlevideo_fast.errors import EXIT_FAILURES, EXIT_USER_ERROR, PaddleVideoFastError
from paddlevideo_fast.io.files import as_path, is_live
from paddlevideo_fast.io.locks import only_writer
from paddlevideo_fast.io.sync import staged
from paddlevideo_fast.io.urls import is_url
from paddlevideo_fast.log import printable

_BENCHMARK_FILES = 15  # how often a single file is read to time it


def build_parser() -> argparse.ArgumentParser:
    """The parser of `paddlevideo-fast predict`; PaddleVideo's flags keep their names."""
    parser = command_parser("predict", __doc__)
    parser.add_argument(
        "-i",
        "--input_file",
        required=True,
        help="a video, a folder of videos, the URL of either, or live: rtsp://…, /dev/video0, - for the "
        "standard input",
    )
    parser.add_argument(
        "--model_file",
        required=True,
        help="the program; its ending .json, .pdmodel or .onnx may be left out",
    )
    parser.add_argument("--params_file", help="its parameters (default: next to the program)")
    parser.add_argument(
        "-c", "--config", help="read videos as this config says, not as the .yaml next to the program"
    )
    parser.add_argument(
        "-o", "--override", action="append", default=[], metavar="KEY=VALUE", help="sets a key of --config"
    )
    add_import_argument(parser, in_overrides=False)
    parser.add_argument("--class_names", metavar="FILE", help="names of the classes, one a line")
    parser.add_argument("--top_k", type=count(1), default=5, help="classes to show (default 5)")
    parser.add_argument(
        "--threshold",
        type=_probability,
        metavar="P",
        help="where a video has any number of classes, predict those with a probability of P or more "
        "(default 0.5)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("-b", "--batch_size", type=count(1), default=1, help="files at a time (default 1)")
    parser.add_argument(
        "--window_sec",
        type=float,
        metavar="S",
        help="predict windows of S seconds, not each video as a whole",
    )
    parser.add_argument(
        "--stride_sec",
        type=float,
        metavar="S",
        help="seconds from one window to the next (default: --window_sec)",
    )
    live = parser.add_argument_group("live input")
    live.add_argument(
        "--when_slow",
        choices=("drop", "wait"),
        help="if predictions take longer than strides: drop frames, or let the source wait (default: a pipe "
        "waits, other sources drop)",
    )
    live.add_argument(
        "--stall_sec", type=float, default=5.0, metavar="S", help="tell if no frame comes for so long"
    )
    live.add_argument(
        "--reconnects",
        type=count(0),
        default=10,
        help="how often in a row to connect again (default 10); not for a pipe",
    )
    live.add_argument("--live_format", metavar="NAME", help="FFmpeg's format, if it does not find out itself")
    live.add_argument(
        "--live_option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of FFmpeg's input, such as framerate=30; may be given more than once",
    )
    parser.add_argument(
        "--timeline", metavar="PATH", help="draw the classes over time: a .png file, or a folder of them"
    )
    parser.add_argument(
        "--annotated", metavar="DIR", help="write the videos with their classes on the frames"
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "gpu"),
        help="where the program runs (default: Paddle's device; an .onnx program: cpu)",
    )
    parser.add_argument("--use_gpu", type=_truth, help="True or False, as --device gpu and cpu")
    parser.add_argument(
        "--provider",
        nargs="+",
        choices=("cpu", "cuda", "tensorrt"),
        default=[],
        help="what runs the program: the first of these that loads; a warning names each that does not",
    )
    parser.add_argument(
        "--use_tensorrt", type=_truth, help="True, as --provider tensorrt; False has no effect"
    )
    parser.add_argument(
        "--gpu_mem", type=count(1), default=8000, help="MB of GPU memory to take (default 8000)"
    )
    parser.add_argument("--precision", choices=("fp32", "fp16"), default="fp32", help="fp16: on a GPU only")
    parser.add_argument("--cpu_threads", type=count(1), help="CPU threads (default: one per core)")
    parser.add_argument(
        "--enable_mkldnn",
        type=_truth,
        help="True, False: Paddle Inference with oneDNN on a CPU (convolutional networks only), or without "
        "(default: the fastest for the network)",
    )
    parser.add_argument(
        "--ir_optim", type=_truth, default=True, help="let Paddle or onnxruntime optimize the program"
    )
    parser.add_argument("--enable_benchmark", type=_truth, default=False, help="print times, no classes")
    parser.add_argument(
        "--time_test_file", type=_truth, default=False, help="--input_file is a list of videos, one a line"
    )
    return parser


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line, with the rules between its flags."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.device and args.use_gpu is not None:
        parser.error("--device: says the same as --use_gpu; leave one of the two out")
    device = args.device or {None: None, True: "gpu", False: "cpu"}[args.use_gpu]
    if args.provider and (device or args.use_tensorrt):
        parser.error("--provider: says where the program runs; leave out --device, --use_gpu, --use_tensorrt")
    if args.use_tensorrt and device == "cpu":
        parser.error("--use_tensorrt: runs on a GPU, and --use_gpu or --device says CPU")
    if device or args.use_tensorrt:
        args.provider = ["tensorrt" if args.use_tensorrt else "cuda" if device == "gpu" else "cpu"]
    for name in ("stride_sec", "timeline"):
        if getattr(args, name) is not None and args.window_sec is None:
            parser.error(f"--{name}: needs --window_sec")
    if is_live(args.input_file):
        if args.window_sec is None:
            parser.error("--input_file: a live input is predicted in windows; give --window_sec")
        for name in ("timeline", "annotated", "enable_benchmark", "time_test_file"):
            if getattr(args, name):
                parser.error(f"--{name}: is for files, not for live input")
        if any("=" not in option for option in args.live_option):
            parser.error(f"--live_option: {args.live_option}: expected KEY=VALUE")
    elif args.when_slow or args.live_format or args.live_option:
        parser.error(f"--input_file: {args.input_file} is no live input; leave out the flags of live input")
    if args.override and args.config is None:
        parser.error("--override: sets a key of --config, which is missing")
    if args.enable_benchmark and (args.window_sec is not None or args.annotated):
        parser.error("--enable_benchmark: times whole files; leave out --window_sec and --annotated")
    return args


def _probability(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= float(text) <= 1:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no probability, from 0 to 1")


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "t", "1", "false", "f", "0"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither True nor False")
    return text.lower() in ("true", "t", "1")


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
    beside = settings_file(args.model_file)
    if args.config is None:
        recipe = read_recipe(beside, args.imports or ())
    else:
        imports = [f"imports={json.dumps(args.imports)}"] if args.imports else []
        cfg = load_config(args.config, [*args.override, *imports])
        recipe = recipe_in_place(beside, cfg)
    names = read_class_names(args.class_names, recipe.settings.num_classes) if args.class_names else None
    return Predictor(args.model_file, args.params_file, recipe, names, options, args.threshold)


def files_of(args: argparse.Namespace) -> list[Path]:
    """The files to predict; a single file is repeated to time it."""
    from paddlevideo_fast.deploy.predictor import find_videos, listed_videos

    if args.time_test_file:
        return listed_videos(args.input_file)
    files = find_videos(args.input_file)
    return files * _BENCHMARK_FILES if args.enable_benchmark and len(files) == 1 else files


def make_pictures(args: argparse.Namespace, predictor: Any, files: Sequence[Path]) -> Any:
    """The writer of annotated videos and timelines; None where the command line asks for none."""
    from paddlevideo_fast.report.predictions import PredictionPictures

    timeline, annotated = (Path(path) if path else None for path in (args.timeline, args.annotated))
    if timeline is None and annotated is None:
        return None
    root = as_path(args.input_file)
    return PredictionPictures(predictor, files, root, annotated, timeline)


@contextlib.contextmanager
def only_writer_of_pictures(args: argparse.Namespace) -> Iterator[None]:
    """Keeps other processes out of the folders of annotated videos and timelines."""
    timeline = Path(args.timeline) if args.timeline else None
    with contextlib.ExitStack() as stack:
        if args.annotated:
            stack.enter_context(only_writer(args.annotated, given_by="--annotated"))
        if timeline and timeline.suffix.lower() == ".png":
            stack.enter_context(only_writer(timeline.parent, timeline.name, given_by="--timeline"))
        elif timeline and not (args.annotated and timeline.resolve() == Path(args.annotated).resolve()):
            stack.enter_context(only_writer(timeline, given_by="--timeline"))
        yield


def results(args: argparse.Namespace, predictor: Any, files: Sequence[Path]) -> Iterable[Any]:
    """Predictions of the files, of windows where the command line asks for them."""
    from paddlevideo_fast.deploy.predictor import Windowing

    bar = partial(tqdm, leave=False, disable=None)
    if args.window_sec is None:
        found = predictor.predict(files, args.batch_size)
    else:
        windowing = Windowing(args.window_sec, args.stride_sec)
        found = predictor.predict_windows(files, windowing, args.batch_size, partial(bar, desc="windows"))
    return bar(found, total=len(files), desc="videos") if args.json else found


def show_error(error: PaddleVideoFastError) -> None:
    """Prints what went wrong with a file, in one message."""
    print(f"{type(error).__name__}: {printable(str(error))}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Predicts and returns the exit code. After Ctrl-C, what is written by then stays."""
    return run_command(_run, parse_args(argv))


def _run(args: argparse.Namespace) -> int:
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
            for found in predict_live(predictor, source, windowing):
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
        from paddlevideo_fast.report.predictions import entries_of
    with contextlib.ExitStack() as stack:
        if args.annotated:
            args.annotated = str(stack.enter_context(staged(args.annotated)))
        if args.timeline and is_url(args.timeline):
            folder, name = args.timeline, ""
            if folder.lower().endswith(".png"):
                folder, _, name = folder.rpartition("/")
            args.timeline = str(stack.enter_context(staged(folder)) / name)
        stack.enter_context(only_writer_of_pictures(args))
        predictor = make_predictor(args)
        files = files_of(args)
        found = results(args, predictor, files)
        pictures = make_pictures(args, predictor, files)
        is_quiet = args.json or args.enable_benchmark
        show = (lambda entry: None) if is_quiet else (lambda entry: print(table(entry), flush=True))
        for entry in entries_of(found, args.top_k, pictures, show, show_error):
            entries.append(entry)
    if args.enable_benchmark:
        print(timing(predictor.times), file=sys.stderr if args.json else sys.stdout)
