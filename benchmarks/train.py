"""Training steps of a config: its own trainer on its own clips, or on made-up batches of the same shape.

With `--threads` and `--workers`, each pair of these numbers in processes of its own, in turn.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.measuring import ROOT, add_output_arguments, in_turn, show
from paddlevideo_fast.cli import add_config_arguments, count
from paddlevideo_fast.config import load_config
from paddlevideo_fast.doctor import training_rate
from paddlevideo_fast.errors import PaddleVideoFastError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's options."""
    add_config_arguments(parser)
    parser.add_argument("--synthetic", action="store_true", help="made-up batches: training without reading")
    parser.add_argument("--steps", type=count(1), default=30, help="optimizer steps to time (default 30)")
    parser.add_argument("--warmup", type=count(1), default=5, help="steps before them (default 5)")
    parser.add_argument(
        "--threads", nargs="+", type=count(1), metavar="N", help="compare these values of num_threads"
    )
    parser.add_argument(
        "--workers", nargs="+", type=count(0), metavar="N", help="compare these values of DATASET.num_workers"
    )
    parser.add_argument(
        "--rounds", type=count(1), default=3, help="processes of each pair that is compared (default 3)"
    )
    add_output_arguments(parser)


def main(args: argparse.Namespace) -> None:
    """Runs the benchmark and prints it."""
    if args.threads or args.workers:
        show(_compare(args), args, comparison)
        return
    cfg = load_config(args.config, args.override)
    result = training_rate(cfg, args.synthetic, args.steps, args.warmup)
    show(result, args, table)


def _compare(args: argparse.Namespace) -> dict[str, Any]:
    threads = [f"num_threads={number}" for number in args.threads or ()]
    workers = [f"DATASET.num_workers={number}" for number in args.workers or ()]
    sides = [" ".join(pair) for pair in itertools.product(*filter(None, (threads, workers)))]
    results: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for _, side in in_turn(sides, args.rounds):
        results[side].append(_in_process(args, side.split()))
    return {"config": args.config, "rows": _rows(results)}


def _in_process(args: argparse.Namespace, overrides: Sequence[str]) -> dict[str, Any]:
    words = ["-c", args.config, "--steps", str(args.steps), "--warmup", str(args.warmup), "--json"]
    words += ["--synthetic"] * args.synthetic
    words += itertools.chain.from_iterable(("-o", each) for each in (*args.override, *overrides))
    words += itertools.chain.from_iterable(("--import", each) for each in args.imports or ())
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "benchmark.py"), "train", *words],
        env={name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise PaddleVideoFastError(
            f"training with {' '.join(overrides)} ended with code {done.returncode}; its error is above"
        )
    return json.loads(done.stdout)


def _rows(results: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Medians of each side, with its clips a second against the first side's."""
    rows = [
        {
            "how": side,
            **{
                key: round(statistics.median(each[key] for each in rounds), 4)
                for key in ("clips_per_sec", "step_sec", "wait_share")
            },
        }
        for side, rounds in results.items()
    ]
    return [{**row, "ratio": round(row["clips_per_sec"] / rows[0]["clips_per_sec"], 3)} for row in rows]


def comparison(result: dict[str, Any]) -> str:
    """The result of a comparison as text."""
    return "\n".join(
        f"{row['how']:<40} {row['clips_per_sec']:8.1f} clips/s  {row['ratio']:.2f}×  "
        f"{row['wait_share']:.0%} of a step waits for clips"
        for row in result["rows"]
    )


def table(result: dict[str, Any]) -> str:
    """`training_rate`'s result as text."""
    source = "made-up batches" if result["batches"] == "synthetic" else f"{result['num_workers']} workers"
    return (
        f"training on {result['device']}, Paddle {result['paddle']}, {source}, {result['steps']} steps\n"
        f"  {result['steps_per_sec']:.2f} steps/s, {result['clips_per_sec']:.1f} clips/s, "
        f"{result['step_sec'] * 1e3:.1f} ms a step, {result['wait_share']:.0%} of it waiting for clips"
    )
