"""Says where the time of a training run goes and what would make it faster.

Example:
    python tools/doctor.py -c configs/quickstart/tsm_motion.yaml -o DATASET.num_workers=2
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Optional, Sequence

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
        prog="tools/doctor.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_config_arguments(parser)
    parser.add_argument(
        "--steps", type=count(2), default=20, help="steps to time, fewer where they are slow (default 20)"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("output/doctor"), help="folder of doctor.json and doctor.png"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    return parser.parse_args(argv)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs the doctor; 2: wrong input, told in one message."""
    return run_command(_run, parse_args(argv))


def _run(args: argparse.Namespace) -> None:
    progress = timed_progress()
    prepare_process(args.config, args.override)
    with quiet_import():
        from paddlevideo_fast import doctor
    result = doctor.examine(load_config(args.config, args.override), args.steps, progress)
    show_result(result, args, doctor.report, "doctor", doctor.draw)
    progress(f"written to {args.output}")


if __name__ == "__main__":
    sys.exit(main())
