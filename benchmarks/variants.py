"""Variants of one training beside each other: a metric of real runs, over several seeds.

A run that is complete is kept and not repeated, so a benchmark that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import paddle

from benchmarks.measuring import add_output_arguments, show
from benchmarks.runs import finished_run
from paddlevideo_fast.cli import add_config_arguments, count, timed_progress
from paddlevideo_fast.errors import PaddleVideoFastError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's options."""
    add_config_arguments(parser)
    parser.add_argument(
        "--row",
        action="append",
        nargs="+",
        required=True,
        metavar=("NAME", "KEY=VALUE"),
        help="a variant: its name, and what it changes; the first one is the baseline",
    )
    parser.add_argument("--metric", default="top1", help="value of the last validation (default top1)")
    parser.add_argument("--seeds", type=count(1), default=3, help="runs of each variant (default 3)")
    parser.add_argument("--output", type=Path, default=Path("output/variants"), help="folder of the runs")
    add_output_arguments(parser)


def main(args: argparse.Namespace) -> None:
    """Runs the benchmark and prints it."""
    rows = {name: changes for name, *changes in args.row}
    result = run(args.config, args.override, rows, args.metric, args.seeds, args.output, timed_progress())
    show(result, args, table)


def run(
    config: str,
    overrides: Sequence[str],
    rows: Mapping[str, Sequence[str]],
    metric: str,
    num_seeds: int,
    output: Path,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Trains all variants with each seed in turn.

    Args:
        config: the file of the training.
        overrides: KEY=VALUE for all variants, as in `tools/main.py`.
        rows: name of a variant → its own overrides.
        metric: name of a value of the validation.
        num_seeds: number of seeds, from 0.
        output: the folder of the runs, each in a folder of its own.
        progress: called with the name of each run that starts.

    Returns:
        "config", "overrides", "metric", "device", "paddle" and "rows", by name: "overrides", "steps" and
        "epochs" of a run; "values" of the metric after the last epoch and "train_sec", lists over seeds.

    Raises:
        PaddleVideoFastError: a run fails, or has no such metric, or the folder has a run of another config.
    """
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in rows}
    for seed in range(num_seeds):
        for place, (name, changes) in enumerate(rows.items()):
            folder = output / f"{place}_{seed}"
            progress(f"seed {seed}, {name}")
            own = [f"seed={seed}", f"output_dir={json.dumps(str(folder))}", "validate=true"]
            result = finished_run(config, [*overrides, *changes, *own], folder)
            if metric not in result["metrics"]:
                known = ", ".join(key for key in result["metrics"] if key != "kind")
                raise PaddleVideoFastError(f"--metric {metric}: the validation has {known}")
            found[name].append(result)
    return {
        "config": config,
        "overrides": list(overrides),
        "metric": metric,
        "device": paddle.get_device(),
        "paddle": paddle.__version__,
        "rows": {
            name: {
                "overrides": list(rows[name]),
                "steps": runs[0]["steps"],
                "values": [one["metrics"][metric] for one in runs],
                "train_sec": [one["train_sec"] for one in runs],
            }
            for name, runs in found.items()
        },
    }


def table(result: Mapping[str, Any]) -> str:
    """The result of `run` as a Markdown table; differences are of the same seed, to the first row."""
    rows = result["rows"]
    base = next(iter(rows.values()))["values"]
    lines = [
        f"| variant | steps | {result['metric']}, mean | each seed | difference, mean |",
        "|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        each = ", ".join(f"{100 * value:.1f}" for value in row["values"])
        difference = 100 * mean(own - other for own, other in zip(row["values"], base))
        lines.append(
            f"| {name} | {row['steps']} | {100 * mean(row['values']):.1f} % | {each} | {difference:+.1f} |"
        )
    return "\n".join([*lines, "", f"{result['config']}, {result['device']}, Paddle {result['paddle']}."])
