"""`paddlevideo-fast train` and `test`: parse the command line, load the config, train or test."""

import argparse
import json
import os

from paddlevideo_fast.cli.command import CommandParser, add_config_arguments, load_for_run
from paddlevideo_fast.errors import DistributionError


def build_parser(name: str = "train") -> argparse.ArgumentParser:
    """The parser of `paddlevideo-fast train`; PaddleVideo's flags keep their names."""
    parser = CommandParser(
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


def run(args: argparse.Namespace) -> int:
    """Trains or tests; 2: wrong input, told in one message; 128 + n: ended by signal n, after it saved."""
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
