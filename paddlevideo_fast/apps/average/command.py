"""Averages the weights of a run's checkpoints, and validates the average and each checkpoint.

--last takes the newest checkpoints, or the last of the files of -w. The statistics of batch norms are
computed again on the training data, as PRECISEBN says. A report with all validations is written beside the
weights.

Examples:
    paddlevideo-fast average output/my_set --last 5
    paddlevideo-fast average my_set --last 2 -w output/a output/b --output_file mean.pdparams
"""

import argparse
from collections.abc import Mapping
from typing import Any

from paddlevideo_fast.cli.command import add_config_arguments, find_weights, load_for_run, print_result
from paddlevideo_fast.command_line import JSON, CommandParser, count
from paddlevideo_fast.io.files import as_path


def build_parser() -> argparse.ArgumentParser:
    """The parser of `paddlevideo-fast average`."""
    parser = CommandParser("average", __doc__)
    add_config_arguments(parser)
    parser.add_argument(
        "-w",
        "--weights",
        was="-p",
        nargs="+",
        action="extend",
        default=[],
        metavar="WEIGHTS",
        help="weights of one network, or folders of runs, oldest first, in place of the run's checkpoints",
    )
    parser.add_argument(
        "--output_file",
        type=as_path,
        metavar="FILE",
        was="--output",
        help="file for the weights (default in output_dir, such as <model_name>_average_last5.pdparams)",
    )
    parser.add_argument(
        "--last", type=count(2), metavar="K", required=True, help="average the K newest checkpoints"
    )
    parser.add_argument("--json", **JSON)
    return parser


def run(args: argparse.Namespace) -> None:
    """Averages; 2: wrong input, told in one message."""
    cfg = load_for_run(args)
    from paddlevideo_fast.apps.average.averaging import average

    done = average(cfg, args.last, [as_path(find_weights(given)) for given in args.weights], args.output_file)
    print_result({"weights": done.path, "report": done.report, **done.facts}, args.json, as_text)


def as_text(result: Mapping[str, Any]) -> str:
    """What was written, in a line."""
    num_averaged, report = len(result["averaged"]), result["report"]
    return f"{result['weights']}: the mean of {num_averaged} checkpoints; {report}: validations"
