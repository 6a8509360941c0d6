"""Shows the phases of a multigrid run, its cost compared with the plain run, and reasons against it.

Examples:
    paddlevideo-fast plan slowfast_multigrid
    paddlevideo-fast plan slowfast_multigrid --clips 240000 --no_measure
"""

import argparse
from pathlib import Path

from paddlevideo_fast.apps.doctor.command import show_result, timed_progress
from paddlevideo_fast.cli.command import add_config_arguments, load_for_run
from paddlevideo_fast.command_line import JSON, CommandParser, count


def build_parser() -> argparse.ArgumentParser:
    """The parser of `paddlevideo-fast plan`."""
    parser = CommandParser("plan", __doc__)
    add_config_arguments(parser)
    parser.add_argument(
        "--clips",
        type=count(1),
        metavar="N",
        help="clips of the training list (default: counted, if the list exists)",
    )
    parser.add_argument(
        "--steps",
        type=count(1),
        metavar="N",
        default=3,
        rare=True,
        help="steps to time at each shape, after one warm-up step (default 3)",
    )
    parser.add_argument(
        "--limit",
        type=count(1),
        default=120,
        metavar="SEC",
        rare=True,
        help="do not time steps if timing would take longer (default 120)",
    )
    parser.add_argument(
        "--no_measure", action="store_true", help="do not time steps, and predict no speed-up"
    )
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="folder for multigrid_plan.json")
    parser.add_argument("--json", **JSON)
    return parser


def run(args: argparse.Namespace) -> None:
    """Prints the plan of a config; 2: wrong input, told in one message."""
    progress = timed_progress()
    # a MULTIGRID section is planned, whether it is on or not
    cfg = load_for_run(args, [*args.override, "multigrid=true"])
    from paddlevideo_fast.apps.doctor import multigrid

    num_steps = 0 if args.no_measure else args.steps
    options = multigrid.PlanOptions(args.clips, num_steps, args.limit)
    plan = multigrid.make_plan(cfg, options, progress)
    show_result(plan, args, multigrid.report, "multigrid_plan")
    if args.output:
        progress(f"written to {args.output}")
