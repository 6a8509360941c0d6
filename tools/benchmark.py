"""Measures parts of the toolkit against a named baseline: python tools/benchmark.py shift."""

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # runs from a clone, installed or not

from paddlevideo_fast.cli import (
    add_config_arguments,
    quiet_import,
    run_command,
)
from paddlevideo_fast.command_line import CommandParser
from paddlevideo_fast.config.startup import prepare_process

# Modules of benchmarks/ with a function `run`, whose arguments are the options; it returns what was measured
# as JSON values. Each module is imported when it is asked for, so none needs what another one needs.
BENCHMARKS = {
    "cpu": "a training step, a prediction and operators on a CPU: here and in PyTorch",
    "cut_clips": "no measurement: cuts real videos by time into a set for trainings",
    "dali": "training clips through NVIDIA DALI on a CPU or a GPU, and through our own reader",
    "duplicates": "copies of videos that `data check --duplicates` finds, by kind, and its time",
    "exactness": "wrong frames of our reader, decord and OpenCV on clips whose frames carry their number",
    "explain": "Grad-CAM and occlusion on clips whose moving object is known",
    "fast_transformers": "training of a ViT with run-length tokens, multigrid and both: time, tokens, top-1",
    "features": "an epoch of a head on stored features, and through the network with a frozen backbone",
    "frames_cache": "CPU time of reading in runs at once that share decoded frames, and that do not",
    "gpu": "training of six networks on a GPU with and without each setting: clips a second, memory, waiting",
    "live": "a simulated camera: delay of predictions, memory, dropped frames",
    "loader": "batches a second: uint8 through our workers, and float32 through Paddle's",
    "networks": "parameters and multiply-adds of the networks of built-in configs",
    "paddlevideo": "from a file to a training clip, against PaddleVideo's own pipelines",
    "paddlevideo_runs": "training and test with PaddleVideo and with ours: time, memory, losses",
    "pipeline": "from a file to a training clip, against decord, PIL and float32",
    "programs": "exported networks in float32 and in int8: time, size, top-1 of trained ones; ONNX on a GPU",
    "reader": "CPU time and wrong frames: OpenCV, decord, PyAV in sequence, ours, ours on prepared videos",
    "reader_trials": "joined and damaged files: wrong without a word, refused, right; ours and three others",
    "remote": "clips a second from packed shards in a store with 20 ms a request, with prefetch and without",
    "runs": "real trainings that differ in some settings: a metric, time and learning curves",
    "saving": "how long a checkpoint stops training; kills while it is written",
    "scale": "training steps of one process and of several, and the share of time in communication",
    "shift": "the temporal shift, ours and Paddle's, against the one of pad, slice and concat",
    "tables": "no measurement: writes the tables of the documentation from benchmarks/results",
    "train": "training steps of a config, on its clips or on made-up batches; several settings in turn",
    "token_merging": "a ViT that merges tokens against the plain one: time of a batch, top-1",
    "trainer": "what the trainer costs over a bare Paddle loop",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Parses the command line and runs one benchmark; 2: wrong input."""
    listing = "\n".join(f"  {name:<15}{text}" for name, text in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="tools/benchmark.py",
        description=__doc__,
        epilog=f"benchmarks:\n{listing}\n\ntools/benchmark.py NAME --help has the options of one",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("benchmark", choices=BENCHMARKS)
    parser.add_argument("options", nargs=argparse.REMAINDER)
    return run_command(_run, parser.parse_args(argv))


def _run(chosen: argparse.Namespace) -> None:
    _prepare(chosen.options)
    with quiet_import():
        module = importlib.import_module(f"benchmarks.{chosen.benchmark}")
        from benchmarks.measuring import show_run
    show_run(module.run, **vars(parser_of(chosen.benchmark, module).parse_args(chosen.options)))


def parser_of(name: str, module: ModuleType) -> argparse.ArgumentParser:
    """The parser of a benchmark, whose module is imported."""
    from benchmarks.measuring import add_options

    parser = CommandParser("", module.__doc__)
    parser.prog = f"tools/benchmark.py {name}"
    add_options(parser, module.run)
    return parser


def _prepare(options: Sequence[str]) -> None:
    """Threads and flags of the config that the options name, if they do; Paddle reads them at its import."""
    parser = CommandParser("", "", add_help=False)
    add_config_arguments(parser, required=False)
    known = parser.parse_known_args(options)[0]
    prepare_process(known.config, known.override)


if __name__ == "__main__":
    sys.exit(main())
