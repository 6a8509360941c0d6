"""Shows what a multigrid run will do, and what it will cost against the plain run.

Example:
    python tools/multigrid_plan.py -c configs/recognition/slowfast/slowfast_multigrid.yaml --clips 240000
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Optional, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # runs from a clone, installed or not

from paddlevideo_fast.cli import (
    add_config_arguments,
    count,
    quiet_import,
    run_command,
    show_result,
    timed_progress,
)
from paddlevideo_fast.config.load import load_config
from paddlevideo_fast.process import prepare_process


def parse_args(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    """The command line; see --help."""
    parser = argparse.ArgumentParser(
        prog="tools/multigrid_plan.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_config_arguments(parser)
    parser.add_argument(
        "--clips", type=count(1), help="clips of the training list (default: counted, where it exists)"
    )
    parser.add_argument(
        "--frame-size",
        type=_frame_size,
        default=(340, 256),
        metavar="WxH",
        help="of the videos, for the bytes that are decoded (default 340x256)",
    )
    parser.add_argument(
        "--steps", type=count(1), default=3, help="steps to time at each shape, after a first (default 3)"
    )
    parser.add_argument(
        "--limit",
        type=count(1),
        default=120,
        metavar="SEC",
        help="time no step where timing would take longer (default 120)",
    )
    parser.add_argument("--no-measure", action="store_true", help="time nothing: no predicted speed-up")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="folder for multigrid_plan.json and multigrid_plan.png"
    )
    return parser.parse_args(argv)


def _frame_size(text: str) -> Tuple[int, int]:
    width, _, height = text.partition("x")
    positive = count(1)
    return positive(width), positive(height)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Prints the plan of a config; 2: wrong input, told in one message."""
    return run_command(_run, parse_args(argv))


def _run(args: argparse.Namespace) -> None:
    progress = timed_progress()
    overrides = [*args.override, "multigrid=true"]  # a MULTIGRID section is planned, whether it is on or not
    prepare_process(args.config, overrides)
    with quiet_import():
        from paddlevideo_fast.doctor import multigrid
    options = multigrid.PlanOptions(
        args.clips, args.frame_size, 0 if args.no_measure else args.steps, args.limit
    )
    plan = multigrid.make_plan(load_config(args.config, overrides), options, progress)
    show_result(plan, args, multigrid.report, "multigrid_plan", multigrid.draw)
    if args.output:
        progress(f"written to {args.output}")


if __name__ == "__main__":
    sys.exit(main())
