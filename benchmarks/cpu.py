"""A training step, a prediction and operators on a CPU: here, in an earlier revision and in PyTorch.

With `--runtimes`, a prediction by the network and by its exported programs instead.
"""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from benchmarks.cpu_child import EXPORT, NETWORKS, OPERATORS, RUNTIMES
from benchmarks.measuring import ROOT, Positive, json_of_process, medians_in_turn
from paddlevideo_fast.cli import timed_progress
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.machine import num_cores

_CHILD = Path(__file__).with_name("cpu_child.py")
_MEASURED = (*NETWORKS, OPERATORS)


class _Side(NamedTuple):
    """What is measured: the first word of `cpu_child.py`, interpreter, checkout, and further variables."""

    what: str
    python: str = sys.executable
    root: Path | None = ROOT
    variables: Mapping[str, str] = {}


def run(
    networks: Annotated[Sequence[str], _MEASURED] = _MEASURED,
    threads: Sequence[Positive] = (1, 2),
    clips: Positive = 1,
    times: Positive = 1,
    rounds: Positive = 3,
    torch: str | None = None,
    before: Path | None = None,
    runtimes: bool = False,
) -> dict[str, Any]:
    """Measures each network in new processes, the sides in turn.

    Args:
        networks: what to measure; "operators" are measured on one thread. By default, all.
        threads: numbers of threads.
        clips: of a step and of a prediction, of random numbers.
        times: steps to time in a process, after one for warm-up.
        rounds: processes of each side.
        torch: interpreter that has torch, torchvision, transformers and pytorchvideo; by default, no PyTorch.
        before: checkout of an earlier revision; it runs without what the toolkit sets for MKL and for memory.
        runtimes: measure a prediction by what runs an exported network, in place of steps and operators.

    Returns:
        "networks": {network: {threads: {side: {"step": [wall, CPU seconds], "predict": the same, "peak_mb":
        of a step}}}}, and "operators": {operator: {side: ms of CPU time}}; medians over the rounds. With
        `runtimes`, the sides are the runtimes, with {"predict", "peak_mb"}, or {"error": why not}.

    Raises:
        PaddleVideoFastError: a process failed, with what it wrote; or `before` is no checkout.
    """
    sides = {"now": _Side("ours")}
    if before is not None:
        off = {"PADDLEVIDEO_FAST_MKL": "off", "PADDLEVIDEO_FAST_MALLOC": "off"}
        sides["before"] = _Side("ours", root=before.resolve(), variables=off)
    if torch is not None:
        sides["torch"] = _Side("torch", torch, None)
    if runtimes:
        sides = {name: _Side(name) for name in RUNTIMES}
        networks = [name for name in networks if name != OPERATORS]
    progress = timed_progress()
    found: dict[str, Any] = {}
    for network in networks:
        with tempfile.TemporaryDirectory() as folder:
            words = [network, clips, times, *[folder] * runtimes]
            if runtimes:
                _child(_Side(EXPORT), words, num_cores())
            for number in [1] if network == OPERATORS else threads:
                progress(f"{network}, {number} threads")
                calls = {name: partial(_child, side, words, number) for name, side in sides.items()}
                found.setdefault(network, {})[str(number)] = medians_in_turn(calls, rounds)
    by_side = found.pop(OPERATORS, {"1": {"now": {}}})["1"]
    operators = {name: {side: by_side[side][name] for side in by_side} for name in by_side["now"]}
    return {"networks": found, OPERATORS: operators}


def _child(side: _Side, words: Sequence[Any], threads: int) -> dict[str, Any]:
    variables = {"PYTHONPATH": str(side.root) if side.root else None, "OMP_NUM_THREADS": str(threads)}
    found = json_of_process([side.python, _CHILD, side.what, *words], **variables, **side.variables)
    folder = found.pop("toolkit", None)
    if folder is not None and side.root is not None and not Path(folder).is_relative_to(side.root):
        raise PaddleVideoFastError(
            f"--before {side.root}: is no checkout of paddlevideo_fast; {folder} was run"
        )
    return found
