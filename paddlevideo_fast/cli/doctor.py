"""Says where the time of a training run goes and what would make it faster.

Example:
    paddlevideo-fast doctor -c configs/quickstart/tsm_motion.yaml -o DATASET.num_workers=2
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Optional, Sequence

from paddlevideo_fast.cli.command import (
    add_config_arguments,
    command_parser,
    count,
    quiet_import,
    run_command,
    show_result,
    timed_progress,
)
from paddlevideo_fast.config.load import load_config
from paddlevideo_fast.process import prepare_process


def build_parser() -> argparse.ArgumentParser:
    """The parser of `paddlevideo-fast doctor`."""
    parser = command_parser("doctor", __doc__)
    add_config_arguments(parser)
    parser.add_argument(
        "--steps", type=count(2), default=20, help="steps to time, fewer where they are slow (default 20)"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("output/doctor"), help="folder of doctor.json and doctor.png"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    return parser


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs the doctor; 2: wrong input, told in one message."""
    return run_command(_run, build_parser().parse_args(argv))


def _run(args: argparse.Namespace) -> None:
    progress = timed_progress()
    prepare_process(args.config, args.override)
    with quiet_import():
        from paddlevideo_fast import doctor
    result = doctor.examine(load_config(args.config, args.override), args.steps, progress)
    show_result(result, args, doctor.report, "doctor", doctor.draw)
    progress(f"written to {args.output}")
