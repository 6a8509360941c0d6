"""A training step, a prediction and operators on a CPU: here, in an earlier revision and in PyTorch.

With `--runtimes`, a prediction by the network and by its exported programs instead.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cpu_child import NETWORKS, RUNTIMES
from benchmarks.measuring import ROOT, add_output_arguments, in_turn, show
from paddlevideo_fast.cli import count
from paddlevideo_fast.errors import PaddleVideoFastError

_CHILD = Path(__file__).with_name("cpu_child.py")
_NAMES = {"now": "here", "before": "before", "torch": "PyTorch"}
OPERATORS = "operators"


class _Side(NamedTuple):
    """What is measured: the interpreter, the checkout on its path, and further variables."""

    python: str
    root: Path | None
    variables: Mapping[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's options."""
    parser.add_argument(
        "--torch",
        metavar="PYTHON",
        help="interpreter that has torch, torchvision, transformers and pytorchvideo (default: no PyTorch)",
    )
    parser.add_argument(
        "--before", type=Path, metavar="FOLDER", help="checkout of an earlier revision (default: none)"
    )
    parser.add_argument(
        "--networks",
        nargs="+",
        choices=(*NETWORKS, OPERATORS),
        default=[*NETWORKS, OPERATORS],
        help="what to measure (default: all)",
    )
    parser.add_argument(
        "--threads", nargs="+", type=count(1), default=[1, 2], help="numbers of threads (default 1 2)"
    )
    parser.add_argument(
        "--clips", type=count(1), default=1, help="clips of a step and a prediction (default 1)"
    )
    parser.add_argument("--times", type=count(1), default=1, help="steps to time in a process (default 1)")
    parser.add_argument("--rounds", type=count(1), default=3, help="processes of each side (default 3)")
    parser.add_argument(
        "--runtimes",
        action="store_true",
        help="compare what runs an exported network, in place of steps and operators",
    )
    add_output_arguments(parser)


def main(args: argparse.Namespace) -> None:
    """Runs the benchmark and prints it."""
    if args.runtimes:
        networks = [network for network in args.networks if network != OPERATORS]
        show(predictions(networks, args.threads, args.clips, args.times, args.rounds), args, runtimes_table)
        return
    result = run(args.networks, args.threads, args.clips, args.times, args.rounds, args.torch, args.before)
    show(result, args, table)


def run(
    networks: Sequence[str],
    threads: Sequence[int],
    clips: int = 1,
    times: int = 1,
    rounds: int = 3,
    torch: str | None = None,
    before: Path | None = None,
) -> dict[str, Any]:
    """Measures each network in new processes, the sides in turn.

    Args:
        networks: keys of `NETWORKS`, and "operators", which are measured on one thread.
        threads: of the operators.
        clips: of a step and of a prediction, of random numbers.
        times: steps to time in a process, after one for warm-up.
        rounds: processes of each side.
        torch: interpreter with PyTorch's packages; None leaves PyTorch out.
        before: checkout of an earlier revision; it runs without what the toolkit sets for MKL and for memory.

    Returns:
        "networks": {network: {threads: {side: {"step": [wall, CPU seconds], "predict": the same, "peak_mb":
        of a step}}}}, and "operators": {operator: {side: ms of CPU time}}; medians over the rounds.

    Raises:
        RuntimeError: a process failed; with what it wrote.
        PaddleVideoFastError: `before` is no checkout.
    """
    sides = {"now": _Side(sys.executable, ROOT, {})}
    if before is not None:
        off = {"PADDLEVIDEO_FAST_MKL": "off", "PADDLEVIDEO_FAST_MALLOC": "off"}
        sides["before"] = _Side(sys.executable, before.resolve(), off)
    if torch is not None:
        sides["torch"] = _Side(torch, None, {})
    found: dict[str, Any] = {"networks": {}, OPERATORS: {}}
    for network in networks:
        for number in [1] if network == OPERATORS else threads:
            results: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
            for _, side in in_turn(sides, rounds):
                results[side].append(_measured(sides[side], side, network, number, clips, times))
            medians = {side: _medians(each) for side, each in results.items()}
            if network == OPERATORS:
                found[OPERATORS] = {
                    name: {side: values[name] for side, values in medians.items()} for name in medians["now"]
                }
            else:
                found["networks"].setdefault(network, {})[str(number)] = medians
            print(f"{network}, {number} threads", file=sys.stderr, flush=True)
    return found


def predictions(
    networks: Sequence[str], threads: Sequence[int], clips: int = 1, times: int = 1, rounds: int = 3
) -> dict[str, Any]:
    """Measures a prediction by each of `RUNTIMES` in new processes, in turn; arguments as of `run`.

    Returns:
        {network: {threads: {runtime: {"predict": [wall, CPU seconds], "peak_mb"}, or {"error": why not}}}}
    """
    here = _Side(sys.executable, None, {"PYTHONPATH": str(ROOT)})
    found: dict[str, Any] = {}
    for network in networks:
        with tempfile.TemporaryDirectory() as folder:
            _child(here, ["export", network, 1, 1, folder], os.cpu_count() or 1)
            for number in threads:
                results: dict[str, list[dict[str, Any]]] = {runtime: [] for runtime in RUNTIMES}
                for _, runtime in in_turn(results, rounds):
                    results[runtime].append(_child(here, [runtime, network, clips, times, folder], number))
                found.setdefault(network, {})[str(number)] = {
                    runtime: each[0] if "error" in each[0] else _medians(each)
                    for runtime, each in results.items()
                }
                print(f"{network}, {number} threads", file=sys.stderr, flush=True)
    return found


def _measured(side: _Side, name: str, network: str, threads: int, clips: int, times: int) -> dict[str, Any]:
    words = ["torch" if name == "torch" else "ours", network, clips, times]
    found = _child(side, words, threads)
    folder = found.pop("toolkit", None)
    if side.root is not None and not Path(folder).is_relative_to(side.root):
        raise PaddleVideoFastError(
            f"--before {side.root}: is no checkout of paddlevideo_fast; {folder} was run"
        )
    return found


def _child(side: _Side, words: Sequence[Any], threads: int) -> dict[str, Any]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if side.root is not None:
        environment["PYTHONPATH"] = str(side.root)
    done = subprocess.run(
        [side.python, str(_CHILD), *map(str, words)],
        env={**environment, **side.variables, "OMP_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"a measuring process ended with code {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def _medians(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = results[0]
    return {
        key: [round(statistics.median(each), 3) for each in zip(*(result[key] for result in results))]
        if isinstance(value, list)
        else round(statistics.median(result[key] for result in results), 3)
        for key, value in first.items()
    }


def table(result: dict[str, Any]) -> str:
    """The result of `run` as text."""
    lines = []
    for network, by_threads in result["networks"].items():
        for threads, sides in by_threads.items():
            lines.append(f"{network}, threads: {threads}; wall and CPU seconds")
            lines += [
                f"  {_NAMES[side]:<8} step {values['step'][0]:7.2f} {values['step'][1]:7.2f}   prediction "
                f"{values['predict'][0]:7.2f} {values['predict'][1]:7.2f}   {values['peak_mb']:5.0f} MB"
                for side, values in sides.items()
            ]
    for operator, sides in result[OPERATORS].items():
        cells = "  ".join(f"{_NAMES[side]} {ms:.1f} ms" for side, ms in sides.items())
        lines.append(f"{operator:<40} {cells}")
    return "\n".join(lines)


def runtimes_table(result: dict[str, Any]) -> str:
    """The result of `predictions` as text."""
    lines = []
    for network, by_threads in result.items():
        for threads, runtimes in by_threads.items():
            lines.append(f"{network}, threads: {threads}; wall and CPU seconds of a prediction")
            lines += [
                f"  {name:<12} {values['error']}"
                if "error" in values
                else f"  {name:<12} {values['predict'][0]:7.3f} {values['predict'][1]:7.3f}   "
                f"{values['peak_mb']:5.0f} MB"
                for name, values in runtimes.items()
            ]
    return "\n".join(lines)
