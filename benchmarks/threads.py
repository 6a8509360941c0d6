"""A training step on one CPU thread, and on the threads that a run has by default."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any, Dict, List, Sequence

from benchmarks.measuring import add_output_arguments, in_turn, show
from paddlevideo_fast.cli import add_config_arguments, count
from paddlevideo_fast.config.load import load_config
from paddlevideo_fast.machine import num_cores

TSM_R50 = {
    "framework": "Recognizer2D",
    "backbone": {"name": "ResNetTSM", "depth": 50, "num_seg": 8},
    "head": {"name": "TSMHead", "num_classes": 400, "in_channels": 2048, "drop_ratio": 0.5, "std": 0.01},
}
OPTIMIZER = {"name": "Momentum", "momentum": 0.9, "learning_rate": 0.0, "weight_decay": 1e-4}
_CHILD = """
import json, sys
from paddlevideo_fast.process import prepare_process

how = json.loads(sys.argv[1])
prepare_process(how["config"], how["overrides"])
from benchmarks.threads import measure

print(json.dumps(measure(**how)))
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's options."""
    add_config_arguments(parser, required=False)
    parser.add_argument("--steps", type=count(1), default=3, help="steps to time in each process (default 3)")
    parser.add_argument("--rounds", type=count(1), default=3, help="processes of each side (default 3)")
    add_output_arguments(parser)


def main(args: argparse.Namespace) -> None:
    """Runs the benchmark and prints it."""
    result = run(args.config, args.override, args.steps, args.rounds)
    show(result, args, table)


def run(config: Any = None, overrides: Sequence[str] = (), steps: int = 3, rounds: int = 3) -> Dict[str, Any]:
    """Times training steps in new processes, with one thread and with the default threads in turn.

    Args:
        config: the config to train on made-up batches; None: TSM-R50 on one clip of 8 frames of 224×224.
        overrides: KEY=VALUE for the config.
        steps: steps to time in each process, after one for warm-up.
        rounds: processes of each side.

    Returns:
        "network", "device", "paddle", "cores", "default_threads", "one_sec" and "default_sec", the medians of
        a step, and "speedup", the median over the rounds of the one over the other.

    Raises:
        ConfigError: with what is wrong in the config.
        RuntimeError: a process failed; with what it wrote.
    """
    if config:
        load_config(config, overrides)  # what is wrong in it is told here, and once
    how = {"config": config, "overrides": list(overrides), "steps": steps}
    sides: Dict[str, List[Dict[str, Any]]] = {"one": [], "default": []}
    for _, side in in_turn(sides, rounds):
        sides[side].append(_in_new_process(how, {"OMP_NUM_THREADS": "1"} if side == "one" else {}))
    first = sides["default"][0]
    seconds = {side: [result["step_sec"] for result in results] for side, results in sides.items()}
    return {
        "network": config or "TSM-R50, one clip of 8x224x224",
        "device": first["device"],
        "paddle": first["paddle"],
        "cores": first["cores"],
        "default_threads": first["threads"],
        "one_sec": statistics.median(seconds["one"]),
        "default_sec": statistics.median(seconds["default"]),
        "speedup": statistics.median(one / other for one, other in zip(seconds["one"], seconds["default"])),
    }


def table(result: Dict[str, Any]) -> str:
    """The result of `run` as text."""
    return (
        f"a training step on {result['device']}, Paddle {result['paddle']}: {result['network']}\n"
        f"  1 thread              {result['one_sec']:8.3f} s\n"
        f"  {result['default_threads']:>3} threads (default) {result['default_sec']:8.3f} s, "
        f"{result['speedup']:.2f}x as fast; {result['cores']} cores"
    )


def measure(config: Any, overrides: Sequence[str], steps: int) -> Dict[str, Any]:
    """The measurement of one process, which must call `prepare_process` before it imports this module."""
    import paddle

    step_sec = _config_step_sec(config, overrides, steps) if config else _tsm_step_sec(steps)
    return {
        "step_sec": step_sec,
        "threads": int(os.environ["OMP_NUM_THREADS"]),
        "cores": num_cores(),
        "device": paddle.get_device(),
        "paddle": paddle.__version__,
    }


def _in_new_process(how: Dict[str, Any], variables: Dict[str, str]) -> Dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-c", _CHILD, json.dumps(how)]
    done = subprocess.run(
        command, env={**environment, **variables}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"a measuring process ended with code {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def _config_step_sec(config: str, overrides: Sequence[str], steps: int) -> float:
    from paddlevideo_fast.doctor import training_rate

    return training_rate(load_config(config, overrides), synthetic=True, steps=steps, warmup=1)["step_sec"]


def _tsm_step_sec(steps: int) -> float:
    import paddle

    from paddlevideo_fast.modeling import build_model
    from paddlevideo_fast.solver import build_optimizer

    model = build_model(TSM_R50)
    optimizer, _ = build_optimizer(OPTIMIZER, model)
    clips, labels = paddle.randn([1, 8, 3, 224, 224]), paddle.to_tensor([0])
    seconds = []
    for _ in range(steps + 1):
        began = time.perf_counter()
        model.loss(model(clips), labels).backward()
        optimizer.step()
        optimizer.clear_grad()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])
