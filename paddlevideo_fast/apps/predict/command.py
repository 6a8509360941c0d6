"""Predicts the classes of videos with a trained network.

Examples:
    paddlevideo-fast predict output/my_set -i video.mp4
    paddlevideo-fast predict inference -i film.mp4 --window_sec 4 --timeline film.png

MODEL is one of:
    the output folder of a run, such as output/my_set: its best weights are taken
    a folder that `paddlevideo-fast export` wrote, or a program in it (no ending: the fastest)
    weights, a .pdparams file; their config is the config.yaml beside them, or -c

Weights are exported to a folder `inference` beside them; the next call takes the program that is there.

A file that cannot be read is named with the cause, and the others go on. Exit code: 0, all files were
predicted; 1, some were; 2, none was, or the input is wrong.
"""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from paddlevideo_fast.apps.predict.addresses import is_live
from paddlevideo_fast.apps.predict.flags import (
    PROGRAM_OPTIONS,
    RARE,
    check_program,
    make_predictor,
    network_of,
    truth,
)
from paddlevideo_fast.apps.predict.quiet import paddle_is_quiet
from paddlevideo_fast.cli.command import add_import_argument, print_result, quiet_import
from paddlevideo_fast.command_line import JSON, CommandParser, add_options, count, option
from paddlevideo_fast.config.startup import prepare_process
from paddlevideo_fast.errors import EXIT_FAILURES, EXIT_USER_ERROR, PaddleVideoFastError
from paddlevideo_fast.io.files import as_path
from paddlevideo_fast.io.locks import only_writer
from paddlevideo_fast.io.urls import shown_url
from paddlevideo_fast.log import printable
from paddlevideo_fast.machine import num_cores
from paddlevideo_fast.sources.remote.sync import staged

_MOST_READERS = 8  # by default
_BENCHMARK_FILES = 15  # how often a single file is read to time it


_OPTIONS: dict[str, dict[str, Any]] = {
    "-i --input_file": option(
        "a video, a folder of videos, the URL of either, or live: rtsp://…, /dev/video0, - for the "
        "standard input",
        required=True,
    ),
    "--top_k": option("classes to show (default 5)", type=count(1), default=5),
    "-b --batch_size": option("files at a time (default 1)", type=count(1), default=1, metavar="N"),
    "--num_readers": option(
        "threads that read the next files or windows while the network computes; 0: read and compute in turn "
        "(default: one per core, 8 at most)",
        type=count(0),
        metavar="N",
    ),
    "--window_sec": option(
        "predict windows of S seconds, not each video as a whole", type=float, metavar="S"
    ),
    "--stride_sec": option(
        "seconds from one window to the next (default: --window_sec)", type=float, metavar="S"
    ),
    "--tracks": option(
        "a track file of the video, of ultralytics or MOTChallenge: predict what each of its ids does",
        metavar="FILE",
    ),
    "--timeline": option("draw the classes over time: a .png file, or a folder of them", metavar="PATH"),
    "--annotated": option("write the videos with their classes on the frames", metavar="FOLDER"),
    "--explain": option(
        "write a picture of each video: the frames of its first view, and a heat map of what decided",
        metavar="FOLDER",
    ),
    "--explain_by": option(
        "gradcam: one pass back through the network; occlusion: hundreds of passes forth, of any "
        "program (default: gradcam where MODEL is weights or a run's folder, else occlusion)",
        choices=("gradcam", "occlusion"),
    ),
    "--enable_benchmark": option("print times, no classes", type=truth, default=False, rare=True),
    "--time_test_file": option(
        "--input_file is a list of videos, one a line", type=truth, default=False, rare=True
    ),
}
_LIVE_OPTIONS: dict[str, dict[str, Any]] = {
    "--when_slow": option(
        "live input: if predictions take longer than strides: drop frames, or let the source wait "
        "(default: a pipe waits, other sources drop)",
        choices=("drop", "wait"),
    ),
    "--stall_sec": option(
        "live input: warn if no frame comes for S seconds (default 5)", type=float, default=5.0, metavar="S"
    ),
    "--reconnects": option(
        "live input: attempts in a row to connect again (default 10); not for a pipe",
        type=count(0),
        default=10,
    ),
    "--live_format": option(
        "FFmpeg's name of the input format, if FFmpeg does not detect it", metavar="NAME"
    ),
    "--live_option": option(
        "an option of FFmpeg's input, such as framerate=30; may be given more than once",
        action="append",
        default=[],
        metavar="KEY=VALUE",
    ),
}


def build_parser() -> argparse.ArgumentParser:
    """The parser of `paddlevideo-fast predict`; PaddleVideo's flags keep their names."""
    parser = CommandParser("predict", __doc__, _rules)
    add_import_argument(parser)
    add_options(parser, PROGRAM_OPTIONS, RARE)
    add_options(parser, _OPTIONS)
    add_options(parser, _LIVE_OPTIONS, rare=_LIVE_OPTIONS)
    parser.add_argument("--json", **JSON)
    return parser


def _rules(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    check_program(parser, args)
    for name in ("stride_sec", "timeline"):
        if getattr(args, name) is not None and args.window_sec is None:
            parser.error(f"--{name}: needs --window_sec")
    if args.num_readers is not None and (args.tracks or is_live(args.input_file)):
        parser.error(
            "--num_readers: reads files and windows ahead; leave it out with --tracks and live input"
        )
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
    if args.enable_benchmark and (args.window_sec is not None or args.annotated or args.explain):
        text = "times whole files; leave out --window_sec, --annotated and --explain"
        parser.error(f"--enable_benchmark: {text}")
    if args.tracks is not None:
        if args.window_sec is None:
            parser.error("--tracks: an id is predicted in windows; give --window_sec")
        for name in ("timeline", "time_test_file"):
            if getattr(args, name):
                parser.error(f"--{name}: leave it out with --tracks")
        if is_live(args.input_file) or as_path(args.input_file).is_dir():
            parser.error(f"--tracks: is about one video, and {args.input_file} is none")
    _rules_of_explanations(parser, args)


def _rules_of_explanations(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    if args.explain and args.window_sec is not None:
        parser.error("--explain: explains whole files; leave out --window_sec")
    if args.explain_by and not args.explain:
        parser.error("--explain_by: needs --explain")
    if args.explain_by == "gradcam" and not args.has_weights:
        text = "needs the network; give MODEL as weights or the output folder of a run, or take occlusion"
        parser.error(f"--explain_by: gradcam {text}")


def files_of(args: argparse.Namespace) -> list[Path]:
    """The files to predict; a single file is repeated to time it."""
    from paddlevideo_fast.apps.predict.predictor import find_videos, listed_videos

    if args.time_test_file:
        return listed_videos(args.input_file)
    files = find_videos(args.input_file)
    return files * _BENCHMARK_FILES if args.enable_benchmark and len(files) == 1 else files


@contextlib.contextmanager
def picture_folders(args: argparse.Namespace) -> Iterator[dict[str, Path]]:
    """Where to write pictures and annotated videos, on this machine; other processes are kept out meanwhile.

    What is for a URL is uploaded at the end.

    Yields:
        From "annotated", "timeline" and "explain", where the flag is given, to the folder or file.
    """
    folders: dict[str, Path] = {}
    with contextlib.ExitStack() as stack:
        for name in ("annotated", "timeline", "explain"):
            given = getattr(args, name)
            if not given:
                continue
            is_picture = name == "timeline" and given.lower().endswith(".png")
            folder, file = os.path.split(given) if is_picture else (given, "")
            place = stack.enter_context(staged(folder))
            if (place / file).resolve() not in {path.resolve() for path in folders.values()}:
                stack.enter_context(only_writer(place, file, given_by=f"--{name}"))
            folders[name] = place / file
        yield folders


@paddle_is_quiet()
def _explaining(args: argparse.Namespace, predictor: Any, folder: Path) -> Any:
    """How the predictions are explained, with pictures in a folder.

    Raises:
        PaddleVideoFastError: as of `load_weights`.
    """
    import paddle

    from paddlevideo_fast.apps.predict.explanations import Explaining, by_occlusion
    from paddlevideo_fast.extensions.report.explain import by_grad_cam
    from paddlevideo_fast.modeling import Preprocess, build_model, load_weights

    if args.explain_by == "occlusion" or not args.has_weights:
        return Explaining(by_occlusion(predictor), folder, shown_url(args.explain))
    if args.provider[:1] == ["cpu"]:
        paddle.set_device("cpu")
    elif args.gpu is not None:
        paddle.set_device(f"gpu:{args.gpu}")
    cfg, weights = network_of(args)
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
    from paddlevideo_fast.apps.predict.predictor import Windowing

    bar = partial(tqdm, leave=False, disable=None)
    readers = min(num_cores(), _MOST_READERS) if args.num_readers is None else args.num_readers
    if args.window_sec is None:
        predictions = predictor.predict(files, args.batch_size, readers)
    else:
        windowing = Windowing(args.window_sec, args.stride_sec)
        show = partial(bar, desc="windows")
        predictions = predictor.predict_windows(files, windowing, args.batch_size, show, readers)
    return bar(predictions, total=len(files), desc="videos") if args.json else predictions


def show_error(error: PaddleVideoFastError) -> None:
    """Prints what went wrong with a file, in one message."""
    print(f"{type(error).__name__}: {printable(str(error))}", file=sys.stderr)


def run(args: argparse.Namespace) -> int:
    """Predicts and returns the exit code. After Ctrl-C, what is written by then stays."""
    if is_live(args.input_file):
        return _predict_live(args)
    if args.tracks is not None:
        return _predict_tracks(args)
    entries: list[dict[str, Any]] = []
    times: list[str] = []
    for entry in _predict(args, times):
        if args.json:
            print_result(entry, json=True)
        entries.append(entry)
    for text in times:
        print(text, file=sys.stderr if args.json else sys.stdout)
    return _exit_code(entries)


def _exit_code(entries: Sequence[dict[str, Any]]) -> int:
    num_failed = sum("error" in entry for entry in entries)
    if not num_failed:
        return 0
    return EXIT_FAILURES if num_failed < len(entries) else EXIT_USER_ERROR


def _predict_tracks(args: argparse.Namespace) -> int:
    """Prints the prediction of each id of a track file as it comes; with --json one object a line."""
    prepare_process(args.config, args.override)
    with quiet_import():
        from paddlevideo_fast.apps.predict.predictor import Windowing, table
        from paddlevideo_fast.apps.predict.tracks import TrackedVideo

    def as_text(entry: dict[str, Any]) -> str:
        return table({**entry, "path": f"{entry['path']}, id {entry['id']}"})

    entries: list[dict[str, Any]] = []
    with picture_folders(args) as folders:
        tracked = TrackedVideo(make_predictor(args), args.input_file, args.tracks)
        target = tracked.target(folders["annotated"]) if folders else None
        for entry in tracked.entries(
            Windowing(args.window_sec, args.stride_sec), args.batch_size, args.top_k
        ):
            entries.append(entry)
            if args.json or "error" not in entry:
                print_result(entry, args.json, as_text)
            if "error" in entry:
                print(f"id {entry['id']}: {printable(entry['error'])}", file=sys.stderr)
        if target is not None:
            tracked.annotate(target)
    return _exit_code(entries)


def _predict_live(args: argparse.Namespace) -> int:
    """Prints the prediction of each window of a live input as it comes, until the input ends."""
    prepare_process(args.config, args.override)
    with quiet_import():
        from paddlevideo_fast.apps.predict.live import LiveSource, live_row, predict_live
        from paddlevideo_fast.apps.predict.predictor import Windowing
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
            for window in predict_live(predictor, source, windowing):
                entry = window.entry(args.top_k)
                num_windows += 1
                num_failed += "error" in entry
                print_result(entry, args.json, live_row)
    finally:
        if source.num_frames:
            print(source.summary(num_windows), file=sys.stderr)
    return EXIT_FAILURES if num_failed else 0


def _predict(args: argparse.Namespace, times: list[str]) -> Iterator[dict[str, Any]]:
    """Predicts the files; yields the entry of each when its pictures are written.

    Args:
        args: of the command.
        times: gets what --enable_benchmark asks for, at the end.
    """
    prepare_process(args.config, args.override)
    with quiet_import():
        from paddlevideo_fast.apps.predict.predictions import PredictionPictures, entries_of
        from paddlevideo_fast.apps.predict.predictor import table, timing
    files = files_of(args)  # first: a network takes some seconds
    with picture_folders(args) as folders:
        predictor = make_predictor(args)
        predictions = results(args, predictor, files)
        pictures = None
        if folders:
            explaining = _explaining(args, predictor, folders.pop("explain")) if args.explain else None
            root = as_path(args.input_file)
            pictures = PredictionPictures(predictor, files, root, **folders, explaining=explaining)
        is_quiet, began = args.json or args.enable_benchmark, time.perf_counter()
        show = (lambda entry: None) if is_quiet else partial(print_result, json=False, as_text=table)
        yield from entries_of(predictions, args.top_k, pictures, show, show_error)
    if args.enable_benchmark:
        times.append(timing(predictor.times, time.perf_counter() - began))
