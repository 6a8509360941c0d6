"""Shows what a multigrid run will do, what it will cost against the plain run, and what speaks against it.

Example:
    paddlevideo-fast plan -c configs/recognition/slowfast/slowfast_multigrid.yaml --clips 240000
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional, Sequence, Tuple

from paddlevideo_fast.cli.command import (
    add_config_arguments,
    command_parser,
    count,
    quiet_import,
    run_command,
    show_result,
    timed_progress,
)
from paddlevideo_fast.cli.plot import read_run
from paddlevideo_fast.config.load import load_config
from paddlevideo_fast.config.startup import prepare_process
from paddlevideo_fast.errors import PaddleVideoFastError


def build_parser() -> argparse.ArgumentParser:
    """The parser of `paddlevideo-fast plan`."""
    parser = command_parser("plan", __doc__)
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
    parser.add_argument(
        "--learn",
        nargs="+",
        type=Path,
        default=(),
        metavar="RUN",
        help="output folders of earlier runs of this network, plain or multigrid: predicts how long each "
        "schedule takes here to an accuracy",
    )
    parser.add_argument(
        "--accuracy",
        type=_share,
        metavar="SHARE",
        help="top-1 (or mAP) for --learn, such as 0.9 (default: the highest that all RUNs reach)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="folder for multigrid_plan.json and multigrid_plan.png"
    )
    return parser


def _frame_size(text: str) -> Tuple[int, int]:
    width, _, height = text.partition("x")
    positive = count(1)
    return positive(width), positive(height)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share above 0 and up to 1, such as 0.9")
    return value


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Prints the plan of a config; 2: wrong input, told in one message."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.accuracy is not None and not args.learn:
        parser.error("--accuracy: has no effect without --learn RUN")
    return run_command(_run, args)


def _run(args: argparse.Namespace) -> None:
    progress = timed_progress()
    overrides = [*args.override, "multigrid=true"]  # a MULTIGRID section is planned, whether it is on or not
    prepare_process(args.config, overrides)
    with quiet_import():
        from paddlevideo_fast.config import RunSpec
        from paddlevideo_fast.doctor import multigrid, multigrid_advice
        from paddlevideo_fast.doctor.shape_cost import ShapeCosts
    options = multigrid.PlanOptions(
        args.clips, args.frame_size, 0 if args.no_measure else args.steps, args.limit
    )
    cfg = load_config(args.config, overrides)
    runs = [_learned(folder) for folder in args.learn]
    costs = ShapeCosts(RunSpec.of(cfg), options.num_steps)
    plan = multigrid.make_plan(cfg, options, progress, costs)
    plan.update(multigrid_advice.advise(cfg, options, plan, costs, progress))
    if runs:
        options = replace(options, num_clips=plan["num_clips"])
        plan["learned"] = multigrid_advice.time_to_accuracy(
            cfg, options, costs, runs, args.accuracy, progress
        )
    show_result(plan, args, multigrid_advice.report, "multigrid_plan", multigrid.draw)
    if args.output:
        progress(f"written to {args.output}")


def _learned(folder: Path) -> Any:
    from paddlevideo_fast.doctor.multigrid_advice import Learned

    run = read_run(folder)
    name, validations = run.measured, run.records.get("valid", [])
    measured = [(record["epoch"], record[name]) for record in validations if name in record]
    if not measured:
        raise PaddleVideoFastError(
            f"{folder}: this run has no validation to learn from; train with --validate"
        )
    return Learned(str(folder), load_config(str(folder / "config.yaml")), *zip(*measured))
