"""Says where the time of a training run goes and what would make it faster.

Example:
    python tools/doctor.py -c configs/quickstart/tsm_motion.yaml -o DATASET.num_workers=2
"""

from __future__ import annotations

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
    timed_progress,
)
from paddlevideo_fast.config.load import load_config
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.process import prepare_process

_DATA_TOOLS = Path(__file__).resolve().parent.parent / "data"


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
    args = parse_args(argv)
    progress = timed_progress()
    try:
        prepare_process(args.config, args.override)
        with quiet_import():
            from paddlevideo_fast.bench import doctor, findings
        result = doctor.examine(load_config(args.config, args.override), args.steps, _DATA_TOOLS, progress)
        print(json.dumps(result, indent=1) if args.json else doctor.report(result))
        findings.save(result, args.output, "doctor", doctor.draw)
    except PaddleVideoFastError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    progress(f"written to {args.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
