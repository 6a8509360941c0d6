"""Measures where the time of a training run goes, and says what would make it faster.

Examples:
    paddlevideo-fast doctor my_set -o DATASET.num_workers=2
    paddlevideo-fast doctor my_set --find lr
    paddlevideo-fast doctor --device_check

--find lr proposes a learning rate instead. --device_check compares a GPU with the CPU instead.
"""

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from paddlevideo_fast.cli.command import (
    add_config_arguments,
    load_for_run,
    print_result,
    quiet_import,
    say,
)
from paddlevideo_fast.command_line import JSON, CommandParser, count
from paddlevideo_fast.config.startup import prepare_process
from paddlevideo_fast.errors import EXIT_FAILURES
from paddlevideo_fast.io.locks import only_writer


def build_parser() -> argparse.ArgumentParser:
    """The parser of `paddlevideo-fast doctor`."""
    parser = CommandParser("doctor", __doc__, _rules)
    add_config_arguments(parser, required=False)
    parser.add_argument(
        "--device_check",
        action="store_true",
        help="compare the GPU with the CPU in a minute, without a config; writes device_check.json",
    )
    text = "propose a learning rate by a range test; nothing is written"
    parser.add_argument("--find", choices=("lr",), help=text)
    parser.add_argument(
        "--steps",
        type=count(2),
        metavar="N",
        rare=True,
        help="steps to time, fewer where they are slow (default 20); with --find, all of them (default 100)",
    )
    parser.add_argument(
        "--output", type=Path, metavar="FOLDER", help="folder of doctor.json (default output/doctor)"
    )
    parser.add_argument("--json", **JSON)
    return parser


def _rules(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    if not args.device_check and args.config is None:
        parser.error("CONFIG is missing: give one, or --device_check")
    if args.device_check and (args.config or args.override):
        parser.error("--device_check: takes no config; leave out CONFIG and -o")
    if args.find and args.device_check:
        parser.error("--find: measures a config, and --device_check none; leave one of the two out")
    if args.find and args.output:
        parser.error("--find: writes nothing; leave --output out")
    if not args.find:
        args.output = args.output or Path("output/doctor")


def _check_device(args: argparse.Namespace) -> int:
    prepare_process()
    progress = timed_progress()
    with quiet_import():
        from paddlevideo_fast.apps.doctor import device_check
    result = device_check.check_device(progress)
    show_result(result, args, device_check.table, "device_check")
    progress(f"written to {args.output / 'device_check.json'}")
    return EXIT_FAILURES if any(each["outcome"] == "failed" for each in result["checks"]) else 0


def run(args: argparse.Namespace) -> int:
    """Runs the doctor; 1: a check of the device failed; 2: wrong input, told in one message."""
    if args.device_check:
        return _check_device(args)
    progress = timed_progress()
    cfg = load_for_run(args)
    from paddlevideo_fast.apps.doctor.diagnosis import examine
    from paddlevideo_fast.apps.doctor.finding import find_rate, rate_report
    from paddlevideo_fast.apps.doctor.report import report

    if args.find:
        show_result(find_rate(cfg, args.steps or 100, progress), args, rate_report, "")
    else:
        result = examine(cfg, args.steps or 20, progress)
        show_result(result, args, report, "doctor")
        progress(f"written to {args.output}")
    return 0


def timed_progress() -> Callable[[str], None]:
    """A function that prints the progress of a measurement on stderr, with the seconds since this call."""
    began = time.monotonic()
    return lambda text: say(f"[{time.monotonic() - began:3.0f} s] {text}")


def show_result(
    result: Mapping[str, Any],
    args: argparse.Namespace,
    as_text: Callable[[Mapping[str, Any]], str],
    name: str,
) -> None:
    """Prints what a measurement found, as text or JSON, and writes it to the output folder.

    Args:
        result: JSON values.
        args: a command line with `json` and `output`, a folder or None.
        as_text: gives the text.
        name: of the file in the folder, NAME.json.

    Raises:
        PaddleVideoFastError: the file cannot be written, or another process writes it.
    """
    print_result(result, args.json, as_text)
    if args.output:
        from paddlevideo_fast.extensions.report import save_json

        with only_writer(args.output, name):
            save_json(result, args.output / f"{name}.json")
