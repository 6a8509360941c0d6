"""Training steps of a config: its own trainer on its own clips, or on made-up batches of the same shape."""

from __future__ import annotations

import argparse
import contextlib
import json
from typing import Any, Dict

import paddle

from paddlevideo_fast.assembly import training_parts
from paddlevideo_fast.bench.training import SyntheticLoader, clip_shape, require_own_loader, time_steps
from paddlevideo_fast.cli import add_config_arguments, count
from paddlevideo_fast.config import Config, load_config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's options."""
    add_config_arguments(parser)
    parser.add_argument("--synthetic", action="store_true", help="made-up batches: training without reading")
    parser.add_argument("--steps", type=count(1), default=30, help="optimizer steps to time (default 30)")
    parser.add_argument("--warmup", type=count(1), default=5, help="steps before them (default 5)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def main(args: argparse.Namespace) -> int:
    """Runs the benchmark and prints it."""
    cfg = load_config(args.config, args.override)
    result = run(cfg, args.synthetic, args.steps, args.warmup)
    print(json.dumps(result, indent=1) if args.json else table(result))
    return 0


def run(cfg: Config, synthetic: bool = False, steps: int = 30, warmup: int = 5) -> Dict[str, Any]:
    """Trains some steps at learning rate 0 and keeps nothing.

    Returns:
        "device", "paddle", "batches" ("real" or "synthetic"), "num_workers", "steps", "steps_per_sec",
        "clips_per_sec", "step_sec" and "wait_share", the share of the time spent waiting for a batch.

    Raises:
        PaddleVideoFastError: as training does.
    """
    parts = training_parts(cfg, load_pretrained=False)
    loader = parts.split.loader
    if synthetic:
        require_own_loader(loader)
        loader = SyntheticLoader(loader.batch_sampler.batch_size, clip_shape(parts), parts.model.num_classes)
    with contextlib.closing(parts.split.loader):
        times = time_steps(parts, loader, steps, warmup, budget_sec=float("inf"))
    return {
        "device": paddle.get_device(),
        "paddle": paddle.__version__,
        "batches": "synthetic" if synthetic else "real",
        "num_workers": getattr(loader, "num_workers", 0),
        "steps": times.num_steps,
        "steps_per_sec": 1 / times.step_sec,
        "clips_per_sec": times.clips_per_sec,
        "step_sec": times.step_sec,
        "wait_share": times.wait_share,
    }


def table(result: Dict[str, Any]) -> str:
    """`run`'s result as text."""
    source = "made-up batches" if result["batches"] == "synthetic" else f"{result['num_workers']} workers"
    return (
        f"training on {result['device']}, Paddle {result['paddle']}, {source}, {result['steps']} steps\n"
        f"  {result['steps_per_sec']:.2f} steps/s, {result['clips_per_sec']:.1f} clips/s, "
        f"{result['step_sec'] * 1e3:.1f} ms a step, {result['wait_share']:.0%} of it waiting for clips"
    )
