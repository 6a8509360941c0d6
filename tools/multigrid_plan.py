"""Shows what a multigrid run will do, and what it will cost against the plain run.

Example:
    python tools/multigrid_plan.py -c configs/recognition/slowfast/slowfast_multigrid.yaml --clips 240000
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Optional, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # runs from a clone, installed or not

from paddlevideo_fast.cli import (
    EXIT_USER_ERROR,
    add_config_arguments,
    count,
    quiet_import,
    timed_progress,
)
from paddlevideo_fast.config.load import load_config
from paddlevideo_fast.errors import PaddleVideoFastError
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
    args = parse_args(argv)
    progress = timed_progress()
    overrides = [*args.override, "multigrid=true"]  # a MULTIGRID section is planned, whether it is on or not
    try:
        prepare_process(args.config, overrides)
        with quiet_import():
            from paddlevideo_fast.bench import findings, multigrid_plan, multigrid_report
        options = multigrid_plan.PlanOptions(
            args.clips, args.frame_size, 0 if args.no_measure else args.steps, args.limit
        )
        plan = multigrid_plan.make_plan(load_config(args.config, overrides), options, progress)
        print(json.dumps(plan, indent=1) if args.json else multigrid_report.report(plan))
        if args.output:
            findings.save(plan, args.output, "multigrid_plan", multigrid_report.draw)
            progress(f"written to {args.output}")
    except PaddleVideoFastError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main())
