"""Training steps of a config: its own trainer on its own clips, or on made-up batches of the same shape."""

from __future__ import annotations

import argparse
from typing import Any, Dict

from benchmarks.measuring import add_output_arguments, show
from paddlevideo_fast.cli import add_config_arguments, count
from paddlevideo_fast.config import load_config
from paddlevideo_fast.doctor import training_rate


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's options."""
    add_config_arguments(parser)
    parser.add_argument("--synthetic", action="store_true", help="made-up batches: training without reading")
    parser.add_argument("--steps", type=count(1), default=30, help="optimizer steps to time (default 30)")
    parser.add_argument("--warmup", type=count(1), default=5, help="steps before them (default 5)")
    add_output_arguments(parser)


def main(args: argparse.Namespace) -> None:
    """Runs the benchmark and prints it."""
    cfg = load_config(args.config, args.override)
    result = training_rate(cfg, args.synthetic, args.steps, args.warmup)
    show(result, args, table)


def table(result: Dict[str, Any]) -> str:
    """`training_rate`'s result as text."""
    source = "made-up batches" if result["batches"] == "synthetic" else f"{result['num_workers']} workers"
    return (
        f"training on {result['device']}, Paddle {result['paddle']}, {source}, {result['steps']} steps\n"
        f"  {result['steps_per_sec']:.2f} steps/s, {result['clips_per_sec']:.1f} clips/s, "
        f"{result['step_sec'] * 1e3:.1f} ms a step, {result['wait_share']:.0%} of it waiting for clips"
    )
