"""Clips a second of one process and of several on this machine, and where the lost time goes."""

import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import paddle

from benchmarks.measuring import ROOT, Positive, in_turn, ratios
from paddlevideo_fast.apps.doctor.timing import SyntheticLoader
from paddlevideo_fast.command_line import count
from paddlevideo_fast.engine import Distribution, FleetDistribution, Trainer
from paddlevideo_fast.errors import DistributionError
from paddlevideo_fast.machine import tune_process
from paddlevideo_fast.modeling import Preprocess, build_model
from paddlevideo_fast.schedule.phases import plain_phases
from paddlevideo_fast.solver import build_optimizer

NUM_FRAMES, SIZE, NUM_CLASSES = 8, 56, 100
OPTIMIZER = {"name": "Momentum", "momentum": 0.9, "learning_rate": 0.0, "weight_decay": 1e-4}


def run(
    processes: Annotated[int, count(2)] = 2,
    batch_size: Positive = 8,
    width: Positive = 32,
    steps: Positive = 4,
    rounds: Positive = 9,
) -> dict[str, Any]:
    """Starts processes of one thread, which train in three ways in turn.

    "one": rank 0 trains alone, the others wait. "silent": all train and keep their gradients to themselves.
    "all": they train as a run does. So every comparison is between neighbours in time.

    Args:
        processes: of one thread each.
        batch_size: clips of 8 x 56 x 56 a process.
        width: of the TSM ResNet-18; its own is 64.
        steps: optimizer steps in a round.
        rounds: of each kind.

    Returns:
        "clips_per_sec" of "one" and of "all", "speedup" between them, "communication", the share of the time
        of "all" that the exchange of gradients takes; medians over rounds.

    Raises:
        DistributionError: the processes do not come to their end; the message has their output.
    """
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "result.json")
        launcher = ["paddle.distributed.launch", "--nproc_per_node", str(processes), "--log_dir", folder]
        ranks = [sys.executable, "-m", __name__, batch_size, width, steps, rounds, results]
        words = [sys.executable, "-m", *launcher, *map(str, ranks)]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode:
            raise DistributionError(f"the processes ended with code {done.returncode}:\n{done.stdout}")
        seconds = json.loads(results.read_text())
    one, silent, together = (seconds[kind] for kind in ("one", "silent", "all"))
    speedups = [processes * ratio for ratio in ratios(one, together)]
    speedup = statistics.median(speedups)
    return {
        "clips_per_sec": {
            "one": batch_size * steps / statistics.median(one),
            "all": processes * batch_size * steps / statistics.median(together),
        },
        "speedup": speedup,
        "speedup_spread": [min(speedups), max(speedups)],
        "communication": statistics.median(1 - quiet / full for quiet, full in zip(silent, together)),
    }


def train_rounds(batch_size: int, width: int, steps: int, rounds: int) -> dict[str, Any]:
    """The part of one rank: the seconds of each round of each kind."""
    distribution = FleetDistribution()
    with distribution.failure_detector():
        model = _model(width)
        loops = {
            "one": _loop(model, Distribution(), batch_size, steps),
            "silent": _loop(model, distribution, batch_size, steps, silent=True),
            "all": _loop(model, distribution, batch_size, steps),
        }
        seconds: dict[str, list[float]] = {name: [] for name in loops}
        for turn, name in in_turn(loops, rounds, warmup=1):
            distribution.barrier()
            began = time.perf_counter()
            if name != "one" or distribution.is_main:
                loops[name]()
            if turn >= 0:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def _model(width: int) -> dict[str, Any]:
    backbone = {"name": "ResNetTSM", "depth": 18, "num_seg": NUM_FRAMES, "width": width}
    head = {"name": "TSMHead", "num_classes": NUM_CLASSES, "in_channels": 8 * width, "drop_ratio": 0.5}
    return {"framework": "Recognizer2D", "backbone": backbone, "head": head}


def _loop(
    config: dict[str, Any], distribution: Distribution, batch_size: int, steps: int, silent: bool = False
) -> Callable[[], None]:
    """A function that trains a model of its own for `steps` steps whenever it is called."""
    paddle.seed(0)
    model = build_model(config)
    optimizer, _ = build_optimizer(OPTIMIZER, model)
    loader = SyntheticLoader(batch_size, (NUM_FRAMES, SIZE, SIZE, 3), model)
    wrapped = distribution.wrap(model, optimizer)
    fixed = copy.copy(distribution)
    vars(fixed)["wrap"] = lambda *both: wrapped  # Paddle can wrap a model once only
    if silent:
        vars(fixed)["accumulating"] = lambda model, last: distribution.accumulating(model, last=False)

    def loop() -> None:
        trained = (model, optimizer, lambda phase: loader, Preprocess(), plain_phases(1))
        Trainer(*trained, distribution=fixed, max_iters=steps).fit()

    return loop


if __name__ == "__main__":
    tune_process()
    *sizes, target = sys.argv[1:]
    measured = train_rounds(*map(int, sizes))
    if int(os.environ["PADDLE_TRAINER_ID"]) == 0:
        Path(target).write_text(json.dumps(measured))
