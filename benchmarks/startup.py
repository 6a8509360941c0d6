"""CPU time from the command of a training to its first step, by part: this tree, and another checkout."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from benchmarks.measuring import ROOT, add_output_arguments, in_turn, show, write_clips
from paddlevideo_fast.cli import count
from paddlevideo_fast.errors import PaddleVideoFastError

# Runs in the tree that it measures, with a config as its argument; prints seconds of CPU time by part.
_WORKER = """
import json, sys, time
took, last = {}, time.process_time()
print_to, sys.stdout = sys.stdout, sys.stderr

def mark(name):
    global last
    now = time.process_time()
    took[name] = took.get(name, 0.0) + now - last
    last = now

from paddlevideo_fast import assembly
from paddlevideo_fast.config import RunSpec, load_config
from paddlevideo_fast.loader import dataset
from paddlevideo_fast.assembly import data
mark("imports")
plan = assembly.plan_run(RunSpec.for_training(load_config(sys.argv[1])))
mark("config")

def timed(module, function):
    inner = getattr(module, function)
    def call(*args, **keys):
        mark("network and optimizer")
        try:
            return inner(*args, **keys)
        finally:
            mark("list")
    setattr(module, function, call)

timed(dataset, "read_video_list")
timed(dataset, "require_files")
timed(data, "check_labels")
parts = assembly.training_setup(plan)
mark("network and optimizer")
data.data_identity(parts.spec, parts.split)
mark("list")
batches = parts.split.loader.batch_sampler.batches(0)
mark("order of the epoch")
next(iter(parts.split.loader.epoch(0)))
mark("first batch")
print(json.dumps(took), file=print_to)
"""
PARTS = ("imports", "config", "list", "network and optimizer", "order of the epoch", "first batch")
CONFIG = "configs/quickstart/tsm_motion.yaml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's options."""
    parser.add_argument(
        "--baseline", type=Path, metavar="FOLDER", help="checkout to compare with (git worktree add)"
    )
    parser.add_argument("--lines", type=count(1), default=240_000, help="of the list (default 240000)")
    parser.add_argument("--rounds", type=count(1), default=7, help="processes of each tree (default 7)")
    add_output_arguments(parser)


def main(args: argparse.Namespace) -> None:
    """Runs the benchmark and prints it."""
    show(run(args.baseline, args.lines, args.rounds), args, table)


def run(baseline: Path | None = None, num_lines: int = 240_000, rounds: int = 7) -> dict[str, Any]:
    """Measures the trees in turn, each time in a new process on one thread without workers.

    Args:
        baseline: root of the other checkout; None: only this tree.
        num_lines: of the list of training clips.
        rounds: processes of each tree.

    Returns:
        "lines", "rounds", "baseline" (its revision, or None) and "sec": tree → part, or "all" → the median.

    Raises:
        PaddleVideoFastError: the baseline is no checkout, or a tree fails.
    """
    if baseline is not None and not (baseline / "paddlevideo_fast").is_dir():
        raise PaddleVideoFastError(f"{baseline}: is no checkout of the repository")
    roots = {"this": ROOT, **({"baseline": baseline} if baseline else {})}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in roots}
    with tempfile.TemporaryDirectory() as folder:
        config = _config(Path(folder), num_lines)
        for _, name in in_turn(roots, rounds, 1):
            found[name].append(_measure(roots[name], config))
    medians = {
        name: {part: statistics.median(each[part] for each in runs[1:]) for part in (*PARTS, "all")}
        for name, runs in found.items()
    }
    git = ["git", "-C", str(baseline), "describe", "--always", "--dirty"]
    revision = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "lines": num_lines,
        "rounds": rounds,
        "baseline": revision if baseline else None,
        "sec": medians,
    }


def table(result: dict[str, Any]) -> str:
    """The result of `run` as text."""
    this, other = result["sec"]["this"], result["sec"].get("baseline")
    lines = [
        f"CPU seconds before the first step, a list of {result['lines']} lines, {result['rounds']} rounds"
    ]
    lines.append(f"{'':<24}{result['baseline'] or '':>12}{'this tree':>12}")
    for part in (*PARTS, "all"):
        before = f"{other[part]:.3f}" if other else ""
        lines.append(f"{part:<24}{before:>12}{this[part]:>12.3f}")
    return "\n".join(lines)


def _config(folder: Path, num_lines: int) -> Path:
    """A config that trains on a list of so many lines, which name the same few clips."""
    clips = write_clips(folder)
    text = "".join(f"{clip.name} {number}\n" for number, clip in enumerate(clips))
    whole, rest = divmod(num_lines, len(clips))
    (folder / "train.list").write_text(text * whole + "".join(text.splitlines(keepends=True)[:rest]))
    section = {"data_prefix": str(folder), "file_path": str(folder / "train.list")}
    settings = {
        "_BASE_": str(ROOT / CONFIG),
        "DATASET": {"num_workers": 0, "train": section, "valid": section, "test": section},
    }
    path = folder / "startup.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def _measure(root: Path, config: Path) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", _WORKER, str(config)]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PaddleVideoFastError(f"{root}: cannot be measured: {done.stderr.strip()[-500:]}")
    took = json.loads(done.stdout)
    return {**{part: took.get(part, 0.0) for part in PARTS}, "all": sum(took.values())}
