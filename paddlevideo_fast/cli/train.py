"""`paddlevideo-fast train` and `test`: parse the command line, load the config, train or test."""

import argparse
import json
import os
from collections.abc import Sequence

from paddlevideo_fast.cli.command import add_config_arguments, command_parser, load_for_run, rank, run_command
from paddlevideo_fast.errors import DistributionError
from paddlevideo_fast.log import setup_logging


def build_parser(name: str = "train") -> argparse.ArgumentParser:
    """The parser of `paddlevideo-fast train`; PaddleVideo's flags keep their names."""
    parser = command_parser(
        name,
        "Train a video model from a YAML file, or evaluate one.",
        epilog="Every key of the config can be set with -o, such as -o DATASET.batch_size=8 -o resume=auto.",
    )
    add_config_arguments(parser)
    parser.add_argument("--test", action="store_true", help="evaluate the weights on DATASET.test")
    parser.add_argument("-w", "--weights", help="weights to test, or to start training from")
    parser.add_argument("--validate", action="store_true", help="validate between epochs")
    parser.add_argument("--seed", type=int, help="seed of weights, order, sampling and augmentation")
    parser.add_argument("--max_iters", type=int, help="end each epoch after this many steps (for trials)")
    parser.add_argument(
        "--train_dali",
        action="store_true",
        help="read clips through NVIDIA DALI, while training and validating",
    )
    parser.add_argument(
        "--fleet",
        action="store_true",
        help="refuse to run unless a launcher has started this process; it is noticed without this flag, too",
    )
    parser.add_argument("--multigrid", action="store_true", help="train by the schedule of MULTIGRID")
    parser.add_argument("--amp", action="store_true", help="compute in mixed precision")
    parser.add_argument("--amp_level", choices=("O1", "O2"), help="how much computes in 16 bits; default O1")
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


def build_test_parser() -> argparse.ArgumentParser:
    """The parser of `paddlevideo-fast test`, which is `train --test`."""
    parser = build_parser("test")
    parser.set_defaults(test=True)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line and returns its exit code.

    0: done. 2: wrong input, with one message in the log. 128 + n: ended by signal n, after it saved.
    """
    return start(build_parser().parse_args(argv))


def main_of_test(argv: Sequence[str] | None = None) -> int:
    """Runs a command line of `paddlevideo-fast test`, as `main`."""
    return start(build_test_parser().parse_args(argv))


def start(args: argparse.Namespace) -> int:
    """Runs a parsed command line, as `main`."""
    return run_command(_run, args, tell=setup_logging(rank=rank()).error)


def _run(args: argparse.Namespace) -> int:
    if args.fleet and "PADDLE_TRAINERS_NUM" not in os.environ:
        raise DistributionError(
            "--fleet: no launcher has started this process; type  paddlevideo-fast launch --nproc_per_node N "
            "train ...  or leave the flag out"
        )
    cfg = load_for_run(args, args.override + flags_as_overrides(args), logs=True)
    from paddlevideo_fast import assembly
    from paddlevideo_fast.engine import TrainingInterrupted

    if args.test:
        assembly.test(cfg)
        return 0
    try:
        assembly.train(cfg)
    except TrainingInterrupted as exc:
        return 128 + exc.signal_number
    return 0


def flags_as_overrides(args: argparse.Namespace) -> list[str]:
    """The flags that were given, as KEY=VALUE. Text is written as JSON, so that YAML reads it as text."""
    keys = [
        *("weights", "profiler_options", "validate", "train_dali", "multigrid"),
        *("amp", "amp_level", "amp_dtype", "seed", "max_iters"),
    ]
    given = ((key, getattr(args, key)) for key in keys)
    return [f"{key}={json.dumps(value)}" for key, value in given if value is not None and value is not False]
