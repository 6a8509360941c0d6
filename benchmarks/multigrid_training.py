"""Multigrid against plain training, in real runs one after the other.

A run that is complete is kept and not repeated, so a benchmark that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import paddle

from benchmarks.measuring import add_output_arguments, show
from benchmarks.runs import finished_run
from benchmarks.tables import multigrid_rows
from paddlevideo_fast.cli import add_config_arguments, count, timed_progress
from paddlevideo_fast.config import Config, load_config
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.report import picture, save_json

PLAIN, MULTIGRID, CUT = "plain", "multigrid", "plain, cut"
ROWS: dict[str, Sequence[str]] = {PLAIN: ("multigrid=false",), MULTIGRID: ("multigrid=true",)}
CYCLES: dict[str, Sequence[str]] = {  # rows of a config that has both
    "long cycle": ("multigrid=true", "MULTIGRID.SHORT_CYCLE=false"),
    "short cycle": ("multigrid=true", "MULTIGRID.LONG_CYCLE=false"),
}
COSTS = ("train_sec", "wall_sec", "cpu_sec")
_RATE = "OPTIMIZER.learning_rate"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's options."""
    add_config_arguments(parser)
    parser.add_argument(
        "--plain", help="config of the plain training (default: the config of -c, without multigrid)"
    )
    parser.add_argument("--seeds", type=count(1), default=3, help="runs of plain and multigrid (default 3)")
    parser.add_argument("--beside", type=count(1), default=1, help="runs of the other rows (default 1)")
    parser.add_argument(
        "--trial",
        nargs="+",
        action="append",
        default=[],
        metavar=("NAME", "KEY=VALUE"),
        help="another row: a multigrid run with these overrides, to change one cause at a time; repeatable",
    )
    parser.add_argument(
        "--output", type=Path, default=Path("output/multigrid_training"), help="folder of runs and results"
    )
    add_output_arguments(parser)


def main(args: argparse.Namespace) -> None:
    """Runs the benchmark, prints the table and writes it as JSON and as a picture."""
    plain = args.plain or args.config
    trials = _trials(args.trial)
    seeds = args.seeds, args.beside
    result = run(args.config, plain, args.override, *seeds, args.output, timed_progress(), trials)
    show(result, args, table)
    save_json(result, args.output / "multigrid_training.json")
    draw(result, args.output / "multigrid_training.png")


def run(
    config: str,
    plain: str,
    overrides: Sequence[str],
    num_seeds: int,
    num_beside: int,
    output: Path,
    progress: Callable[[str], None] = lambda text: None,
    trials: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """Trains plain and multigrid with every seed, and the other rows with the first seeds.

    The last row is the plain training cut to the time of multigrid: so many epochs as take it at least, with
    the steps of the learning rate at the same share of them.

    Args:
        config: a file with a MULTIGRID section.
        plain: the file of the plain training; its learning rate has steps.
        overrides: KEY=VALUE for both, as in `tools/main.py`.
        num_seeds: number of seeds, from 0.
        num_beside: number of seeds of the other rows.
        output: the folder of the runs, each in a folder of its own.
        progress: called with the name of each run that starts.
        trials: overrides of further multigrid runs, by the names of their rows.

    Returns:
        "config", "plain", "device", "paddle" and "rows", by name: "epochs" and "steps" of the first seed;
        "top1" after the last epoch, "train_sec" (epochs without what follows them), "wall_sec" and "cpu_sec"
        (the whole process with its workers), lists over seeds; and "curves", for each seed [train_sec, top1]
        after each epoch.

    Raises:
        PaddleVideoFastError: a run fails, or the folder has a run of another config.
    """
    plain_cfg = load_config(plain, overrides)
    grid = load_config(config, overrides).get("MULTIGRID")
    if not grid:
        raise ConfigError([f"{config}  MULTIGRID: the comparison needs this section"])
    rate = plain_cfg["OPTIMIZER"]["learning_rate"]
    if not isinstance(rate, Mapping) or "steps" not in rate:
        raise ConfigError([f"{plain}  {_RATE}: the comparison needs steps, to cut the plain training"])
    cycles = CYCLES if grid.get("LONG_CYCLE") and grid.get("SHORT_CYCLE") else {}
    known = {
        **ROWS,
        **cycles,
        **{name: (*ROWS[MULTIGRID], *values) for name, values in (trials or {}).items()},
    }
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in (*known, CUT)}
    for seed in range(num_seeds):
        for name in runs if seed < num_beside else (PLAIN, MULTIGRID):
            row = known[name] if name in known else _cut(plain_cfg, runs)
            folder = output / f"{name.replace(', ', '_').replace(' ', '_')}_{seed}"
            progress(f"seed {seed}, {name}")
            common = [f"seed={seed}", f"output_dir={json.dumps(str(folder))}", "validate=true"]
            source = plain if name in (PLAIN, CUT) else config
            runs[name].append(finished_run(source, [*overrides, *row, *common], folder))
    return {
        "config": config,
        "plain": plain,
        "device": paddle.get_device(),
        "paddle": paddle.__version__,
        "rows": {name: _row(rows) for name, rows in runs.items()},
    }


def _trials(given: Sequence[Sequence[str]]) -> dict[str, Sequence[str]]:
    """Overrides by the names of their rows, which name folders too.

    Raises:
        ConfigError: a name is taken or cannot name a folder, or has no overrides.
    """
    trials: dict[str, Sequence[str]] = {}
    for name, *overrides in given:
        if name in (*ROWS, *CYCLES, CUT, *trials):
            raise ConfigError([f"--trial {name}: this row is there already; choose another name"])
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 .-]*", name):
            text = "a name has letters, digits, spaces, dots and hyphens, and comes before the overrides"
            raise ConfigError([f"--trial {name}: {text}"])
        if not overrides:
            raise ConfigError([f"--trial {name}: give KEY=VALUE after the name"])
        trials[name] = overrides
    return trials


def _cut(cfg: Config, runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Overrides that cut the plain training to the time that multigrid took with the first seed."""
    rate, epochs = cfg["OPTIMIZER"]["learning_rate"], cfg["epochs"]
    share = runs[MULTIGRID][0]["train_sec"] / runs[PLAIN][0]["train_sec"]
    fewer = min(math.ceil(epochs * share), epochs)
    steps = [step * fewer / epochs for step in rate["steps"]]
    return [
        *ROWS[PLAIN],
        f"epochs={fewer}",
        f"{_RATE}.max_epoch={fewer}",
        f"{_RATE}.steps={json.dumps(steps)}",
        f"{_RATE}.warmup_epochs={rate['warmup_epochs'] * fewer / epochs}",
    ]


def _row(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    costs = {key: [one[key] for one in runs] for key in COSTS}
    counts = {key: runs[0][key] for key in ("epochs", "steps")}
    top1 = [one["metrics"]["top1"] for one in runs]
    curves = [[[sec, metrics["top1"]] for sec, metrics in one["curve"]] for one in runs]
    return {**counts, "top1": top1, **costs, "curves": curves}


def table(result: Mapping[str, Any]) -> str:
    """The result as a Markdown table; costs are relative to the plain runs with the same seeds."""
    plain = result["rows"][PLAIN]
    head, *rows = multigrid_rows(result)
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    lines.insert(1, "|---" * len(head) + "|")
    seconds = ", ".join(
        f"{text} {mean(plain[cost]):.0f} s"
        for cost, text in zip(COSTS, ("training", "whole run", "CPU time"))
    )
    return "\n".join(
        [*lines, "", f"The plain run: {seconds}. {result['device']}, Paddle {result['paddle']}."]
    )


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draws top-1 against the time in training, means over seeds.

    Raises:
        PaddleVideoFastError: the file cannot be written.
    """
    with picture(path, figsize=(7, 4)) as (_, axes):
        for name, row in result["rows"].items():
            points = [[mean(axis) for axis in zip(*epoch)] for epoch in zip(*row["curves"])]
            style = "--" if name == CUT else "-"
            axes.plot(*zip(*points), style, marker="o", markersize=3, label=name)
        axes.set(xlabel="seconds of training", ylabel="validation top-1", ylim=(0, 1))
        axes.set_xlim(left=0)
        axes.grid(alpha=0.3)
        axes.legend()
