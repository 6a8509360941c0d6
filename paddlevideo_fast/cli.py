"""`tools/main.py`: parse the command line, load the config, train or test."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
import warnings
from typing import Callable, Iterator, List, Optional, Sequence

from paddlevideo_fast.config.load import load_config
from paddlevideo_fast.errors import (
    EXIT_USER_ERROR,
    DistributionError,
    MissingExtraError,
    PaddleVideoFastError,
)
from paddlevideo_fast.log import setup_logging
from paddlevideo_fast.process import prepare_process


def build_parser() -> argparse.ArgumentParser:
    """The parser of `tools/main.py`; PaddleVideo's flags keep their names."""
    parser = argparse.ArgumentParser(
        prog="tools/main.py",
        description="Train a video model from a YAML file, or evaluate one.",
        epilog="Every key of the config can be set with -o, such as -o DATASET.batch_size=8 -o resume=auto.",
    )
    add_config_arguments(parser)
    parser.add_argument("--test", action="store_true", help="evaluate the weights on DATASET.test")
    parser.add_argument("-w", "--weights", help="weights to test, or to start training from")
    parser.add_argument("--validate", action="store_true", help="validate between epochs")
    parser.add_argument("--seed", type=int, help="of weights, order, sampling and augmentation")
    parser.add_argument("--max_iters", type=int, help="end each epoch after so many steps (for trials)")
    parser.add_argument(
        "--train_dali",
        action="store_true",
        help="read clips through NVIDIA DALI, while training and validating",
    )
    parser.add_argument(
        "--fleet",
        action="store_true",
        help="refuse to run unless a launcher has started this process; one that did is noticed without it",
    )
    parser.add_argument("--multigrid", action="store_true", help="train in the schedule of MULTIGRID")
    parser.add_argument("--amp", action="store_true", help="compute in mixed precision")
    parser.add_argument("--amp_level", choices=("O1", "O2"), help="how much of it in 16 bits; default O1")
    parser.add_argument(
        "--amp_dtype",
        choices=("float16", "bfloat16"),
        help="the 16-bit format; default float16 on a GPU, bfloat16 on a CPU",
    )
    parser.add_argument(
        "-p",
        "--profiler_options",
        metavar="OPTIONS",
        help="measure the operators of some steps: key=value;key=value, such as batch_range=[10,20]",
    )
    return parser


def add_config_arguments(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Adds -c and -o, which mean the same in every tool that reads a config."""
    parser.add_argument("-c", "--config", required=required, help="YAML file")
    parser.add_argument(
        "-o",
        "--override",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="sets a key of the config; may be given more than once",
    )


def count(lowest: int) -> Callable[[str], int]:
    """An argparse type: a whole number from `lowest` on."""

    def convert(text: str) -> int:
        if not text.isdigit() or int(text) < lowest:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {lowest} on")
        return int(text)

    return convert


def timed_progress() -> Callable[[str], None]:
    """A function that tells on stderr what a long measurement is at, and how long it has been running."""
    began = time.monotonic()

    def progress(text: str) -> None:
        print(f"[{time.monotonic() - began:3.0f} s] {text}", file=sys.stderr, flush=True)

    return progress


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs a command line and returns its exit code.

    0: done. 2: wrong input, with one message in the log. 128 + n: ended by signal n, after it saved.
    """
    args = build_parser().parse_args(argv)
    logger = setup_logging(rank=_rank())
    try:
        return _run(args)
    except PaddleVideoFastError as exc:
        logger.error("%s: %s", type(exc).__name__, exc)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        logger.error("interrupted")
        return 130


def _run(args: argparse.Namespace) -> int:
    if args.fleet and "PADDLE_TRAINERS_NUM" not in os.environ:
        raise DistributionError(
            "--fleet: no launcher has started this process; type  python tools/launch.py --nproc_per_node N "
            "tools/main.py ...  or leave the flag out"
        )
    overrides = args.override + _flags_as_overrides(args)
    prepare_process(args.config, overrides)
    with quiet_import():
        from paddlevideo_fast import assembly
        from paddlevideo_fast.engine import TrainingInterrupted

    cfg = load_config(args.config, overrides)
    setup_logging(cfg.get("log_level", "INFO"), _rank())
    if args.test:
        assembly.test(cfg)
        return 0
    try:
        assembly.train(cfg)
    except TrainingInterrupted as exc:
        return 128 + exc.signal_number
    return 0


def _rank() -> int:
    """Of this process among those that a launcher has started."""
    return int(os.environ.get("PADDLE_TRAINER_ID", "0"))


def _flags_as_overrides(args: argparse.Namespace) -> List[str]:
    """The flags that were given, as KEY=VALUE; text as JSON, which YAML takes for nothing but text."""
    keys = [
        *("weights", "profiler_options", "validate", "train_dali", "multigrid"),
        *("amp", "amp_level", "amp_dtype", "seed", "max_iters"),
    ]
    given = ((key, getattr(args, key)) for key in keys)
    return [f"{key}={json.dumps(value)}" for key, value in given if value is not None and value is not False]


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Keeps what Paddle prints while it is imported off the console, and shows it if the import fails.

    Part of it comes from C++ straight to file descriptor 2, so that is where it is caught.

    Raises:
        MissingExtraError: Paddle is not installed.
    """
    warnings.filterwarnings("ignore", module=r"paddle\..*")
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as caught:
        os.dup2(caught.fileno(), 2)
        try:
            yield
        except ModuleNotFoundError as exc:
            if exc.name == "paddle":
                raise MissingExtraError("paddlepaddle", "cpu", "paddlevideo_fast") from exc
            raise
        except BaseException:
            caught.seek(0)
            os.write(kept, caught.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)


if __name__ == "__main__":
    sys.exit(main())
