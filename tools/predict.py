"""Says what videos show, with a program that tools/export_model.py wrote.

0: all files were predicted. 2: a file could not be read, or the input is wrong; each is told in one message.

Examples:
    python tools/predict.py -i video.mp4 --model_file inference/TSM_motion
    python tools/predict.py -i film.mp4 --model_file inference/TSM_motion --window_sec 4 --timeline film.png
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Sequence

from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # runs from a clone, installed or not

from paddlevideo_fast.cli import EXIT_USER_ERROR, count, quiet_import
from paddlevideo_fast.config.load import load_config
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.process import prepare_process

_BENCHMARK_FILES = 15  # so often one file is read to time it
_WARMUP_BATCHES = 3


def parse_args(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    """The command line; see --help. PaddleVideo's flags keep their names."""
    parser = argparse.ArgumentParser(
        prog="tools/predict.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-i", "--input_file", required=True, help="a video, or a folder of videos")
    parser.add_argument(
        "--model_file",
        required=True,
        help="the program, with its ending .json, .pdmodel or .onnx or without it",
    )
    parser.add_argument("--params_file", help="its parameters (default: next to the program)")
    parser.add_argument(
        "-c", "--config", help="read videos as this config says, not as the .yaml next to the program"
    )
    parser.add_argument(
        "-o", "--override", action="append", default=[], metavar="KEY=VALUE", help="sets a key of --config"
    )
    parser.add_argument("--class_names", metavar="FILE", help="names of the classes, one a line")
    parser.add_argument("--top_k", type=count(1), default=5, help="classes to show (default 5)")
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
    parser.add_argument(
        "--timeline", metavar="PATH", help="draw the classes over time: a .png file, or a folder of them"
    )
    parser.add_argument(
        "--annotated", metavar="DIR", help="write the videos with their classes on the frames"
    )
    parser.add_argument(
        "--annotated_format", choices=("mp4", "gif"), default="mp4", help="of them (default mp4)"
    )
    parser.add_argument("--use_gpu", type=_truth, help="True or False (default: what Paddle has)")
    parser.add_argument("--gpu_mem", type=count(1), default=8000, help="MB to take at once (default 8000)")
    parser.add_argument("--precision", choices=("fp32", "fp16"), default="fp32", help="fp16: on a GPU only")
    parser.add_argument("--cpu_threads", type=count(1), help="of the network (default: Paddle's choice)")
    parser.add_argument("--enable_mkldnn", type=_truth, default=False, help="oneDNN on a CPU")
    parser.add_argument(
        "--ir_optim", type=_truth, default=True, help="let Paddle, or onnxruntime, rewrite it"
    )
    parser.add_argument("--enable_benchmark", type=_truth, default=False, help="time it, and show no classes")
    parser.add_argument(
        "--time_test_file", type=_truth, default=False, help="--input_file is a list of videos, one a line"
    )
    parser.add_argument("--disable_glog", type=_truth, help="has no effect: Paddle's log is always off")
    for name in ("use_tensorrt", "use_xpu", "use_npu"):
        parser.add_argument(f"--{name}", type=_truth, default=False, help="not supported; False is accepted")
    args = parser.parse_args(argv)
    for name in ("use_tensorrt", "use_xpu", "use_npu"):
        if getattr(args, name):
            parser.error(f"--{name}: not supported; programs run on a CPU or on a GPU, without TensorRT")
    for name in ("stride_sec", "timeline"):
        if getattr(args, name) is not None and args.window_sec is None:
            parser.error(f"--{name}: needs --window_sec")
    if args.enable_benchmark and (args.window_sec is not None or args.annotated):
        parser.error("--enable_benchmark: times whole files; leave out --window_sec and --annotated")
    return args


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "t", "1", "false", "f", "0"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither True nor False")
    return text.lower() in ("true", "t", "1")


def recipe(args: argparse.Namespace) -> Any:
    """How the program is fed: as export wrote it down, or as --config says."""
    from paddlevideo_fast.deploy.program_files import settings_file
    from paddlevideo_fast.deploy.settings import read_recipe, recipe_of

    beside = settings_file(args.model_file)
    if args.config is None:
        return read_recipe(beside)
    found = recipe_of(load_config(args.config, args.override))
    if not beside.is_file():  # a program of PaddleVideo
        return found
    known = read_recipe(beside).settings
    kept = {name: getattr(known, name) for name in ("input_dtype", "input_shape", "class_names", "checksums")}
    return found._replace(settings=replace(found.settings, **kept))


def make_predictor(args: argparse.Namespace) -> Any:
    """The predictor that the command line describes."""
    from paddlevideo_fast.deploy.predictor import Predictor
    from paddlevideo_fast.deploy.program import ProgramOptions
    from paddlevideo_fast.deploy.settings import read_class_names

    options = ProgramOptions(
        use_gpu=args.use_gpu,
        gpu_mem_mb=args.gpu_mem,
        precision=args.precision,
        cpu_threads=args.cpu_threads,
        use_mkldnn=args.enable_mkldnn,
        optimize=args.ir_optim,
    )
    fed = recipe(args)
    names = read_class_names(args.class_names, fed.settings.num_classes) if args.class_names else None
    return Predictor(args.model_file, args.params_file, fed, names, options)


def files_of(args: argparse.Namespace) -> List[Path]:
    """What is predicted; when one file is timed, it often."""
    from paddlevideo_fast.deploy.predictor import find_videos

    if args.time_test_file:
        try:
            lines = Path(args.input_file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise PaddleVideoFastError(f"{args.input_file}: is no list of videos: {error}") from error
        return [Path(line.strip()) for line in lines if line.strip()]
    files = find_videos(args.input_file)
    return files * _BENCHMARK_FILES if args.enable_benchmark and len(files) == 1 else files


def make_pictures(args: argparse.Namespace, predictor: Any, files: Sequence[Path]) -> Any:
    """What writes the annotated videos and timelines that the command line asks for."""
    from paddlevideo_fast.assembly.predicting import PredictionPictures, Wanted

    root = Path(args.input_file)
    if not root.is_dir():
        root = Path(os.path.commonpath([file.absolute().parent for file in files])) if files else root
    timeline, annotated = (Path(path) if path else None for path in (args.timeline, args.annotated))
    wanted = Wanted(annotated, args.annotated_format, timeline)
    return PredictionPictures(predictor, files, root, wanted)


def results(args: argparse.Namespace, predictor: Any, files: Sequence[Path]) -> Iterable[Any]:
    """Predictions of the files, of windows where the command line asks for them."""
    from paddlevideo_fast.deploy.windows import Windowing

    bar = partial(tqdm, leave=False, disable=None)
    if args.window_sec is None:
        found = predictor.predict(files, args.batch_size)
    else:
        windowing = Windowing(args.window_sec, args.stride_sec)
        found = predictor.predict_windows(files, windowing, args.batch_size, partial(bar, desc="windows"))
    return bar(found, total=len(files), desc="videos") if args.json else found


def timing(predictor: Any) -> str:
    """Medians over the batches, the first ones left out."""
    times = predictor.times[_WARMUP_BATCHES:] or predictor.times
    medians: Dict[str, float] = {
        "preprocess_time(ms)": statistics.median(time.preprocess_sec for time in times) * 1e3,
        "inference_time(ms)": statistics.median(time.inference_sec for time in times) * 1e3,
    }
    shown = ", ".join(f"{name}: {value:.1f}" for name, value in medians.items())
    return f"{shown}: median of {len(times)} batches of {times[0].num_files} files"


def handle(result: Any, args: argparse.Namespace, pictures: Any) -> Dict[str, Any]:
    """Shows and draws a result; gives its entry for JSON, with `error` where that failed."""
    from paddlevideo_fast.deploy.listing import entry_of, table
    from paddlevideo_fast.deploy.predictor import Unread

    entry: Dict[str, Any] = {"path": result.path}
    try:
        if isinstance(result, Unread):
            raise result.error
        entry = entry_of(result, args.top_k)
        if not (args.json or args.enable_benchmark):
            print(table(entry), flush=True)
        if pictures is not None:
            pictures.write(result)
    except PaddleVideoFastError as error:
        entry["error"] = str(error)
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return entry


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Predicts; 2: a file or the input is wrong. 130: interrupted; what is written by then stays."""
    args = parse_args(argv)
    entries: List[Dict[str, Any]] = []
    interrupted = False
    try:
        prepare_process(args.config, args.override)
        with quiet_import():
            importlib.import_module("paddlevideo_fast.deploy.predictor")
        predictor = make_predictor(args)
        files = files_of(args)
        found = results(args, predictor, files)
        pictures = make_pictures(args, predictor, files) if args.annotated or args.timeline else None
        for result in found:
            entries.append(handle(result, args, pictures))
        if args.enable_benchmark:
            print(timing(predictor), file=sys.stderr if args.json else sys.stdout)
    except PaddleVideoFastError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        interrupted = True
    if args.json:
        print(json.dumps(entries, indent=1, ensure_ascii=False))
    if interrupted:
        return 130
    return EXIT_USER_ERROR if any("error" in entry for entry in entries) else 0


if __name__ == "__main__":
    sys.exit(main())
