"""Shows what a multigrid run will do and cost: python tools/multigrid_plan.py -c CONFIG."""

import argparse
import json
import sys
from pathlib import Path
from typing import Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # runs from a clone, installed or not

from paddlevideo_fast.cli import (
    EXIT_USER_ERROR,
    add_config_arguments,
    count,
    quiet_import,
    set_threads,
    wanted_threads,
)
from paddlevideo_fast.config.load import load_config
from paddlevideo_fast.errors import PaddleVideoFastError


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Parses the command line and prints the plan; 2: wrong input."""
    parser = argparse.ArgumentParser(prog="tools/multigrid_plan.py", description=__doc__)
    add_config_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--num_clips", type=count(1), help="of the training list, where that is not there")
    parser.add_argument(
        "--measure", action="store_true", help="count the multiply-adds and time one step at each shape"
    )
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the schedule into a PNG file")
    args = parser.parse_args(argv)
    overrides = [*args.override, "multigrid=true"]
    set_threads(wanted_threads(args.config, overrides))
    try:
        with quiet_import():
            from paddlevideo_fast.bench import multigrid_plan

        cfg = load_config(args.config, overrides)
        schedule = multigrid_plan.schedule_of(cfg)
        num_clips = args.num_clips or multigrid_plan.num_clips_of(cfg)
        costs = multigrid_plan.cost_of(cfg, num_clips, args.measure) if num_clips else None
        if args.picture:
            multigrid_plan.draw(schedule, args.picture)
        if args.json:
            print(json.dumps({**schedule, "cost": costs}, indent=1))
        else:
            print(multigrid_plan.table(schedule, costs))
    except PaddleVideoFastError as exc:
        print(f"{type(exc).__name__}: {exc}", file=sys.stderr)
        return EXIT_USER_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main())
