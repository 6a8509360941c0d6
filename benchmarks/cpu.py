"""A training step, a prediction and operators on a CPU: here, in an earlier revision and in PyTorch.

With `--runtimes`, a prediction by the network and by its exported programs instead.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cpu_child import NETWORKS, RUNTIMES
from benchmarks.measuring import ROOT, json_of_process, medians_in_turn
from paddlevideo_fast.cli import count, timed_progress
from paddlevideo_fast.errors import PaddleVideoFastError

_CHILD = Path(__file__).with_name("cpu_child.py")
OPERATORS = "operators"


class _Side(NamedTuple):
    """What is measured: the first word of `cpu_child.py`, interpreter, checkout, and further variables."""

    what: str
    python: str
    root: Path | None = None
    variables: Mapping[str, str] = {}


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


def run(
    networks: Sequence[str],
    threads: Sequence[int],
    clips: int = 1,
    times: int = 1,
    rounds: int = 3,
    torch: str | None = None,
    before: Path | None = None,
    runtimes: bool = False,
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
        runtimes: measure a prediction by each of `RUNTIMES` instead.

    Returns:
        "networks": {network: {threads: {side: {"step": [wall, CPU seconds], "predict": the same, "peak_mb":
        of a step}}}}, and "operators": {operator: {side: ms of CPU time}}; medians over the rounds. With
        `runtimes` {network: {threads: {runtime: {"predict", "peak_mb"}, or {"error": why not}}}}.

    Raises:
        PaddleVideoFastError: a process failed, with what it wrote; or `before` is no checkout.
    """
    progress = timed_progress()
    if runtimes:
        return _predictions([each for each in networks if each != OPERATORS], threads, clips, times, rounds)
    sides = {"now": _Side("ours", sys.executable, ROOT)}
    if before is not None:
        off = {"PADDLEVIDEO_FAST_MKL": "off", "PADDLEVIDEO_FAST_MALLOC": "off"}
        sides["before"] = _Side("ours", sys.executable, before.resolve(), off)
    if torch is not None:
        sides["torch"] = _Side("torch", torch)
    found: dict[str, Any] = {"networks": {}, OPERATORS: {}}
    for network in networks:
        for number in [1] if network == OPERATORS else threads:
            progress(f"{network}, {number} threads")
            words = network, clips, times
            values = medians_in_turn(
                {name: partial(_child, side, words, number) for name, side in sides.items()}, rounds
            )
            if network == OPERATORS:
                found[OPERATORS] = {
                    name: {side: each[name] for side, each in values.items()} for name in values["now"]
                }
            else:
                found["networks"].setdefault(network, {})[str(number)] = values
    return found


def _predictions(
    networks: Sequence[str], threads: Sequence[int], clips: int, times: int, rounds: int
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for network in networks:
        with tempfile.TemporaryDirectory() as folder:
            export = _Side("export", sys.executable, ROOT)
            _child(export, (network, 1, 1, folder), os.cpu_count() or 1)
            for number in threads:
                calls = {
                    runtime: partial(
                        _child, export._replace(what=runtime), (network, clips, times, folder), number
                    )
                    for runtime in RUNTIMES
                }
                found.setdefault(network, {})[str(number)] = medians_in_turn(calls, rounds)
    return found


def _child(side: _Side, words: Sequence[Any], threads: int) -> dict[str, Any]:
    variables = {"PYTHONPATH": str(side.root) if side.root else None, "OMP_NUM_THREADS": str(threads)}
    found = json_of_process([side.python, _CHILD, side.what, *words], **variables, **side.variables)
    folder = found.pop("toolkit", None)
    if folder is not None and side.root is not None and not Path(folder).is_relative_to(side.root):
        raise PaddleVideoFastError(
            f"--before {side.root}: is no checkout of paddlevideo_fast; {folder} was run"
        )
    return found
