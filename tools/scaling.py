"""Predicts the throughput of training on many devices, from one device's step time and a stated network.

Without a config it takes the published TSM and I3D on Summit, and compares itself with what was published.

Example:
    python tools/scaling.py
    python tools/scaling.py -c configs/recognition/tsm/tsm_k400_frames.yaml --measure --cluster ethernet
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

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
from paddlevideo_fast.config.startup import prepare_process


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; see --help."""
    parser = argparse.ArgumentParser(
        prog="tools/scaling.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_config_arguments(parser, required=False)
    step = parser.add_mutually_exclusive_group()
    step.add_argument("--measure", action="store_true", help="time steps of the config on this machine")
    step.add_argument("--step-ms", type=_positive, help="time of a step of the config on one device")
    parser.add_argument(
        "--cluster",
        default="summit",
        metavar="NAME",
        help="server, ethernet, summit (default) or a YAML file that describes one",
    )
    parser.add_argument("--devices", type=_counts, metavar="N,N,…", help="how many (default: 1 to 1,536)")
    parser.add_argument("--clip-kb", type=_positive, help="of a stored clip (default: 36 a frame)")
    parser.add_argument(
        "--read-ms", type=_positive, help="a core's time to read a clip (default: 0.4 a frame)"
    )
    parser.add_argument(
        "--steps", type=count(1), default=3, help="steps to time with --measure, after a first (default 3)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder for scaling.json and scaling.png")
    args = parser.parse_args(argv)
    if bool(args.config) != bool(args.measure or args.step_ms):
        parser.error("-c goes with --measure or --step-ms; without a config the published networks are taken")
    return args


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return value


def _counts(text: str) -> list[int]:
    whole_number = count(1)
    return sorted({whole_number(part.strip()) for part in text.split(",")})


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the prediction; 2: wrong input, told in one message."""
    return run_command(_run, parse_args(argv))


def _run(args: argparse.Namespace) -> None:
    progress = timed_progress()
    if args.config:
        prepare_process(args.config, args.override)
    with quiet_import():
        from benchmarks import scaling_report
        from benchmarks.scaling_plan import ScalingOptions, plan_scaling
    cfg = load_config(args.config, args.override) if args.config else None
    options = ScalingOptions(
        cluster=args.cluster,
        counts=args.devices,
        step_sec=args.step_ms and args.step_ms / 1e3,
        num_steps=args.steps,
        clip_bytes=args.clip_kb and args.clip_kb * 1e3,
        read_sec=args.read_ms and args.read_ms / 1e3,
    )
    result = plan_scaling(cfg, options)
    show_result(result, args, scaling_report.report, "scaling", scaling_report.draw)
    if args.output:
        progress(f"written to {args.output}")


if __name__ == "__main__":
    sys.exit(main())
