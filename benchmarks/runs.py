"""Real runs for benchmarks that compare trainings, each in a process of its own; a complete run is kept."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measuring import ROOT
from paddlevideo_fast.config import Config, load_config
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.report import save_json

_MAIN = ROOT / "tools" / "main.py"


def finished_run(config: str, overrides: Sequence[str], folder: Path) -> dict[str, Any]:
    """The result of a run; the run starts unless its folder has a result.

    Args:
        config: the file of the config.
        overrides: KEY=VALUE, as in `tools/main.py`.
        folder: of the run's output, named by an override as well.

    Returns:
        "wall_sec" and "cpu_sec" of the whole process with its workers, "train_sec" (epochs without what
        follows them), "epochs" that were validated, "steps", "curve" ([train_sec, metrics] of each
        validation), and "metrics" of the last validation.

    Raises:
        PaddleVideoFastError: the run fails, or the folder has a run of another config.
    """
    return kept_result(folder, load_config(config, overrides), lambda: _run(config, overrides, folder))


def kept_result(folder: Path, config: Config, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of a run, which starts unless its folder has a result.

    Args:
        folder: of the run's output.
        config: of the run.
        run: trains, and returns JSON values.

    Raises:
        PaddleVideoFastError: the folder has a run of another config.
    """
    kept, resolved = folder / "result.json", json.loads(json.dumps(config))
    if kept.is_file():
        result: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
        if result.pop("config") != resolved:
            raise PaddleVideoFastError(f"{kept}: is of another config; remove it or choose another --output")
        return result
    folder.mkdir(parents=True, exist_ok=True)
    result = run()
    save_json({**result, "config": resolved}, kept)
    return result


def _run(config: str, overrides: Sequence[str], folder: Path) -> dict[str, Any]:
    flags = [part for override in overrides for part in ("-o", override)]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with (folder / "console.log").open("wb") as log:
        code = subprocess.call([sys.executable, str(_MAIN), "-c", config, *flags], stdout=log, stderr=log)
    wall_sec, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if code:
        raise PaddleVideoFastError(f"{folder}/console.log: the run ended with {code}; its last lines say why")
    cpu_sec = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_sec": wall_sec, "cpu_sec": cpu_sec, **_read(folder / "metrics.jsonl")}


def _read(path: Path) -> dict[str, Any]:
    """Time, steps and validations of a run, from its metrics.jsonl."""
    train_sec, steps, curve = 0.0, 0, []
    for record in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        if record["kind"] == "train_epoch":
            train_sec += record["sec"]
            steps = record["step"]
        elif record["kind"] == "valid":
            curve.append([train_sec, record])
    return {
        "train_sec": train_sec,
        "epochs": len(curve),
        "steps": steps,
        "curve": curve,
        "metrics": curve[-1][1],
    }
