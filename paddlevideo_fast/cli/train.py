"""`paddlevideo-fast train` and `test`: parse the command line, load the config, train or test."""

import argparse
import json
import os
import shlex
from typing import Any

from paddlevideo_fast import annexes
from paddlevideo_fast.cli.command import (
    add_config_arguments,
    find_weights,
    load_for_run,
    prepare_run,
    print_result,
    say_interrupted,
)
from paddlevideo_fast.command_line import DRY_RUN, JSON, CommandParser, add_options, count, option
from paddlevideo_fast.config import Config
from paddlevideo_fast.config.load import import_plugins, load_config
from paddlevideo_fast.config.scaling import scaled
from paddlevideo_fast.errors import DistributionError
from paddlevideo_fast.log import get_logger

_WEIGHTS = "a .pdparams file, the output folder of a run, or a name of published weights (see zoo)"
_TRAINING: dict[str, dict[str, Any]] = {
    "--epochs": option(
        "epochs to train; the learning-rate schedule is stretched to them", type=count(1), metavar="N"
    ),
    "--batch_size": option(
        "clips in a batch of each process; the learning rate is scaled with it", type=count(1), metavar="N"
    ),
    "--resume": option(
        "continue from a checkpoint; without CHECKPOINT, from the newest one of the run; write "
        "CONFIG before it",
        nargs="?",
        const="auto",
        metavar="CHECKPOINT",
    ),
    "--output": option("folder of the run, as the key output_dir", metavar="FOLDER"),
    "--dry_run": DRY_RUN,
    "--folds": option(
        "cross-validate: split DATASET.train into K parts and train K times, validating on another "
        "part each time",
        type=count(2),
        metavar="K",
    ),
    "--validate": option(
        "validate between epochs, the default where the config has DATASET.valid", action="store_true"
    ),
    "--seed": option("seed of weights, order, sampling and augmentation", type=count(0)),
    "--train_dali": option(
        "read clips through NVIDIA DALI, while training and validating", action="store_true"
    ),
    "--multigrid": option(
        "multigrid training: small clips in large batches first, as the section MULTIGRID says",
        action="store_true",
    ),
    "-p --profiler_options": option(
        "measure the operators of some steps: key=value;key=value, such as batch_range=[10,20]",
        metavar="OPTIONS",
    ),
}
_SHARED: dict[str, dict[str, Any]] = {
    "--max_iters": option("end each epoch and evaluation after this many steps, for trials", type=count(1)),
    "--fleet": option(
        "end with an error unless a launcher has started this process; distributed training does not "
        "need this flag",
        action="store_true",
    ),
    "--amp": option("train and evaluate in mixed precision, partly with 16-bit numbers", action="store_true"),
    "--amp_level": option("how much computes in 16 bits; default O1", choices=("O1", "O2")),
    "--amp_dtype": option(
        "the 16-bit format; default bfloat16, and float16 on a GPU without it",
        choices=("float16", "bfloat16"),
    ),
    "--json": JSON,
}
_MERGE_TOKENS = option(
    "tokens that each layer of a VideoMAE merges, for a faster network with nearly the same scores",
    type=count(0),
    metavar="N",
)
_RARE = ("--max_iters", "--fleet", "--amp_level", "--amp_dtype", "--train_dali", "-p --profiler_options")
_KEYS = {"output": "output_dir"}  # of flags with another name
_FLAGS = (
    *("resume", "output", "weights", "profiler_options", "validate", "train_dali", "multigrid"),
    *("amp", "amp_level", "amp_dtype", "seed", "max_iters", "merge_tokens"),
)


def build_parser() -> argparse.ArgumentParser:
    """Trains a video model from a YAML file.

    Examples:
        paddlevideo-fast train my_set --epochs 20 --batch_size 16
        paddlevideo-fast train my_set --resume

    Every key of the config can be set with -o, such as -o num_frames=16.
    """
    parser = CommandParser("train", build_parser.__doc__)  # PaddleVideo's flags keep their names
    add_config_arguments(parser)
    parser.add_argument("-w", "--weights", help=f"weights to start from, or with --test to test: {_WEIGHTS}")
    parser.add_argument("--test", action="store_true", rare=True, help="test, as PaddleVideo spells it")
    optional = {"--dry_run", "--folds"} - annexes.modules_of(
        "flag"
    ).keys()  # of an annex that is not installed
    options = {name: each for name, each in {**_TRAINING, **_SHARED}.items() if name not in optional}
    add_options(parser, options, _RARE)
    parser.set_defaults(**{name.lstrip("-"): None for name in optional})
    return parser


def build_test_parser() -> argparse.ArgumentParser:
    """Evaluates weights on DATASET.test.

    Examples:
        paddlevideo-fast test my_set
        paddlevideo-fast test tsm_k400_videos -w tsm.pdparams

    Every key of the config can be set with -o, such as -o DATASET.test_batch_size=4.
    """
    parser = CommandParser("test", build_test_parser.__doc__)
    add_config_arguments(parser)
    parser.add_argument("-w", "--weights", was="-p", help=f"{_WEIGHTS} (default: of the newest run)")
    add_options(parser, _SHARED, _RARE)
    if "merge_tokens" in annexes.modules_of("extension"):
        add_options(parser, {"--merge_tokens": _MERGE_TOKENS}, ["--merge_tokens"])
    parser.set_defaults(test=True)
    return parser


def run(args: argparse.Namespace) -> int:
    """Trains or tests; 2: wrong input, told in one message; 128 + n: ended by signal n, after it saved."""
    if args.fleet and "PADDLE_TRAINERS_NUM" not in os.environ:
        raise DistributionError(
            "--fleet: no launcher has started this process; type  paddlevideo-fast launch --nproc_per_node N "
            "train ...  or leave the flag out"
        )
    prepare_run(args.config, args.override)
    overrides, note = overrides_of(args)
    cfg = load_for_run(args, overrides, ready=True)
    if note:
        get_logger(__name__).info(note)
    from paddlevideo_fast import assembly
    from paddlevideo_fast.engine import TrainingInterrupted

    flag = next((each for each in annexes.modules_of("flag") if getattr(args, each[2:], None)), "")
    module = annexes.load("flag", flag)
    try:
        if module is not None:
            module.run(cfg, args)
        else:
            if args.test:
                cfg["weights"] = cfg.get("weights") or find_weights(None, cfg, args.config)
            work = assembly.test if args.test else assembly.train
            print_result(work(cfg).results, args.json)
    except TrainingInterrupted as exc:
        return say_interrupted(exc.signal_number, _to_go_on(args, cfg, exc.folder))
    return 0


def _to_go_on(args: argparse.Namespace, cfg: Config, folder: str | None) -> str:
    """The command that goes on with a stopped run: as it was typed, with its folder and --resume."""
    words = [args.typed]
    if folder and not cfg.get("output_dir"):
        words.append(f"--output {shlex.quote(folder if args.folds is None else os.path.dirname(folder))}")
    return " ".join(words if cfg.get("resume") == "auto" else [*words, "--resume"])


def overrides_of(args: argparse.Namespace) -> tuple[list[str], str]:
    """The overrides and the flags of a command line as KEY=VALUE, and a text about what follows from them.

    With `--epochs` it imports Paddle, as plug-ins do: the learning-rate schedule knows what to stretch.
    """
    given = ((_KEYS.get(flag, flag), getattr(args, flag, None)) for flag in _FLAGS)
    overrides = [*args.override]  # of flags, text is written as JSON, so that YAML reads it as text
    overrides += [
        f"{key}={json.dumps(value)}" for key, value in given if value is not None and value is not False
    ]
    epochs, batch_size = getattr(args, "epochs", None), getattr(args, "batch_size", None)
    if epochs is None and batch_size is None:
        return overrides, ""
    config = load_config(args.config, overrides, check=False)
    import_plugins(config)
    more, note = scaled(config, epochs, batch_size, int(os.environ.get("PADDLE_TRAINERS_NUM", "1")))
    return [*overrides, *more], note
