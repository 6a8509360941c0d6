"""A training step with frozen stages, and with recomputed ones: time and memory against plain training."""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import paddle

from benchmarks.isolated import map_isolated
from benchmarks.measuring import add_output_arguments, in_turn, show
from paddlevideo_fast.cli import count
from paddlevideo_fast.modeling import build_model
from paddlevideo_fast.modeling.freezing import Freezing
from paddlevideo_fast.modeling.recompute import recompute_stages
from paddlevideo_fast.solver import build_optimizer

MODEL = {
    "framework": "Recognizer2D",
    "backbone": {"name": "ResNetTSM", "depth": 50, "num_seg": 8},
    "head": {"name": "TSMHead", "num_classes": 101, "in_channels": 2048},
}
OPTIMIZER = {"name": "Momentum", "momentum": 0.9, "learning_rate": 0.001, "weight_decay": 1e-4}
BASELINE = "plain"


class Side(NamedTuple):
    """What is frozen, and whether activations are recomputed."""

    freeze: Sequence[str] = ()
    recompute: bool = False


SIDES: dict[str, Side] = {
    BASELINE: Side(),
    "freeze: [stem, res2]": Side(("stem", "res2")),
    "freeze: [stem, res2, res3, res4]": Side(("stem", "res2", "res3", "res4")),
    "freeze: [backbone]": Side(("backbone",)),
    "recompute: true": Side(recompute=True),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's options."""
    parser.add_argument("--rounds", type=count(1), default=5, help="steps of each side")
    parser.add_argument("--batch-size", type=count(1), default=2, help="clips of 8 frames")
    parser.add_argument("--crop-size", type=count(32), default=224, help="pixels of a side of the frames")
    add_output_arguments(parser)


def main(args: argparse.Namespace) -> None:
    """Runs the benchmark and prints it."""
    show(run(args.rounds, args.batch_size, args.crop_size), args, table)


def run(rounds: int = 5, batch_size: int = 2, crop_size: int = 224) -> dict[str, Any]:
    """Times steps of TSM ResNet-50 of all sides in turn; measures the memory of each in a process of its own.

    Returns:
        "device", "paddle", "batch_size", "crop_size", "rounds", and for each side its median seconds a step
        ("sec"; on a CPU seconds of CPU time), the median over rounds of its share of the baseline's ("ratio",
        "spread"), and its peak resident memory in MiB beyond that before the first step ("memory_mib").
    """
    clock = time.process_time if paddle.get_device() == "cpu" else time.perf_counter
    steps = {name: _step(side, batch_size, crop_size) for name, side in SIDES.items()}
    seconds: dict[str, list[float]] = {name: [] for name in SIDES}
    for turn, name in in_turn(SIDES, rounds, warmup=1):
        began = clock()
        steps[name]()
        if turn >= 0:
            seconds[name].append(clock() - began)
    steps.clear()
    gc.collect()
    tasks = [(side, batch_size, crop_size) for side in SIDES.values()]
    # a process for each: the peak of a process never falls
    memory = [next(map_isolated(_peak_memory_mib, [task], limit_sec=3600)) for task in tasks]
    rows = {}
    for name, peak in zip(SIDES, memory):
        ratios = [own / plain for own, plain in zip(seconds[name], seconds[BASELINE])]
        rows[name] = {
            "sec": statistics.median(seconds[name]),
            "ratio": statistics.median(ratios),
            "spread": [min(ratios), max(ratios)],
            "memory_mib": peak,
        }
    return {
        "device": paddle.get_device(),
        "paddle": paddle.__version__,
        "batch_size": batch_size,
        "crop_size": crop_size,
        "rounds": rounds,
        "rows": rows,
    }


def table(result: dict[str, Any]) -> str:
    """The result of `run` as text."""
    clips = f"{result['batch_size']} clips of 8 x {result['crop_size']} x {result['crop_size']}"
    lines = [
        f"a step of TSM ResNet-50 on {clips}: {result['device']}, Paddle {result['paddle']}, "
        f"{result['rounds']} rounds",
        f"  {'':<34}{'s a step':>9}{'ratio':>7}{'rounds':>14}{'MiB':>7}",
    ]
    for name, row in result["rows"].items():
        low, high = row["spread"]
        span = f"{low:.2f} to {high:.2f}"
        lines.append(f"  {name:<34}{row['sec']:>9.2f}{row['ratio']:>7.2f}{span:>14}{row['memory_mib']:>7.0f}")
    return "\n".join(lines)


def _step(side: Side, batch_size: int, crop_size: int) -> Callable[[], None]:
    """One optimizer step of a side."""
    paddle.seed(0)
    model = build_model(MODEL)
    Freezing(model, side.freeze)
    if side.recompute:
        recompute_stages(model)
    optimizer, _ = build_optimizer(OPTIMIZER, model)
    model.train()
    rng = np.random.default_rng(0)
    shape = (batch_size, 8, 3, crop_size, crop_size)
    clips = paddle.to_tensor(rng.standard_normal(shape, np.float32))
    labels = paddle.to_tensor(rng.integers(0, 101, batch_size))

    def step() -> None:
        loss = model.loss(model(clips), labels)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        float(loss)  # waits for the device

    return step


def _peak_memory_mib(task: tuple[Side, int, int]) -> float:
    step = _step(*task)
    before = _memory_mib("VmRSS")
    step()
    step()
    return _memory_mib("VmHWM") - before


def _memory_mib(field: str) -> float:
    """A line of /proc/self/status, such as the peak resident set, VmHWM."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (line,) = (line for line in lines if line.startswith(f"{field}:"))
    return int(line.split()[1]) / 1024
