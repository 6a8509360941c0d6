"""A training step, a prediction and operators on a CPU: here and in PyTorch.

With `--runtimes`, a prediction by the network, by its exported programs and in PyTorch instead.
"""

import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from benchmarks.cpu_child import NETWORKS, OPERATORS, RUNTIMES
from benchmarks.measuring import ROOT, Positive, json_of_process, medians_in_turn
from benchmarks.networks import write_random_weights
from paddlevideo_fast.apps.doctor.command import timed_progress
from paddlevideo_fast.apps.export.export import ExportOptions, export_model
from paddlevideo_fast.config import load_config

_CHILD = Path(__file__).with_name("cpu_child.py")
_MEASURED = (*NETWORKS, OPERATORS)


def run(
    networks: Annotated[Sequence[str], _MEASURED] = _MEASURED,
    threads: Sequence[Positive] = (1, 2),
    rounds: Positive = 3,
    torch: str | None = None,
    runtimes: bool = False,
) -> dict[str, Any]:
    """Measures each network on one clip of random numbers in new processes, the sides in turn.

    Args:
        networks: what to measure; "operators" are measured on one thread. By default, all.
        threads: numbers of threads.
        rounds: processes of each side.
        torch: interpreter that has torch, torchvision, transformers and pytorchvideo; by default, no PyTorch.
        runtimes: measure a prediction by what runs an exported network, in place of steps and operators.

    Returns:
        "networks": {network: {threads: {side: {"step": [wall, CPU seconds], "predict": the same, "peak_mb":
        of a step}}}}, and "operators": {operator: {side: ms of CPU time}}; medians over the rounds. With
        `runtimes`, the sides are the runtimes and PyTorch, with {"predict", "peak_mb"} or {"error": why not}.

    Raises:
        PaddleVideoFastError: a process failed, with what it wrote.
    """
    sides = dict.fromkeys(RUNTIMES, sys.executable) if runtimes else {"now": sys.executable}
    if torch is not None:
        sides["torch"] = torch
    progress = timed_progress()
    found: dict[str, Any] = {}
    for network in networks:
        if runtimes and network == OPERATORS:
            continue
        with tempfile.TemporaryDirectory() as folder:
            words = {side: [network, *[folder] * (side in RUNTIMES)] for side in sides}
            if runtimes:
                _export(network, Path(folder))
            for number in [1] if network == OPERATORS else threads:
                progress(f"{network}, {number} threads")
                calls = {side: partial(_child, sides[side], side, words[side], number) for side in sides}
                found.setdefault(network, {})[str(number)] = medians_in_turn(calls, rounds)
    by_side = found.pop(OPERATORS, {"1": {"now": {}}})["1"]
    operators = {name: {side: by_side[side][name] for side in by_side} for name in by_side["now"]}
    return {"networks": found, OPERATORS: operators}


def _export(network: str, folder: Path) -> None:
    cfg = load_config(NETWORKS[network][1], ["MODEL.backbone.pretrained=null"])
    weights = write_random_weights(cfg["MODEL"], folder / f"{network}.pdparams")
    export_model(cfg, weights, folder, network, ExportOptions(onnx_opset=17))


def _child(python: str, side: str, words: Sequence[Any], threads: int) -> dict[str, Any]:
    variables = {
        "PYTHONPATH": str(ROOT) if python == sys.executable else None,
        "OMP_NUM_THREADS": str(threads),
    }
    found: dict[str, Any] = json_of_process([python, _CHILD, side, *words], **variables)
    return found
