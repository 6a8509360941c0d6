"""Real trainings that differ in some settings: a metric, time and learning curves, over several seeds.

A run that is complete is kept and not repeated, so a benchmark that was stopped goes on where it was.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import paddle

from benchmarks.measuring import ROOT, Positive, children_sec
from paddlevideo_fast.apps.doctor.command import timed_progress
from paddlevideo_fast.config import load_config
from paddlevideo_fast.errors import ConfigError, PaddleVideoFastError
from paddlevideo_fast.extensions.report import save_json


def run(
    config: str,
    override: Sequence[str],
    imports: Sequence[str] | None,
    *,
    row: Sequence[Sequence[str]],
    metric: str = "top1",
    seeds: Positive = 3,
    output: Path = Path("output/runs"),
) -> dict[str, Any]:
    """Trains each row with each seed in turn.

    Args:
        config: the file of the training.
        override: KEY=VALUE for all rows, as in `tools/main.py`; `imports` are among them.
        imports: names of plug-ins.
        row: NAME, which names its folders, then CONFIG, if it has another one than -c, and KEY=VALUE ….
        metric: name of a value of the validation.
        seeds: runs of each row, with seeds from 0.
        output: the folder of the runs, each in a folder of its own.

    Returns:
        "config", "device", "overrides", "metric" and "rows", by name: "overrides", "epochs" and
        "steps" of a run; "values" of the metric after the last epoch, "train_sec" (epochs without what
        follows them), "wall_sec" and "cpu_sec" (the whole process with its workers), lists over seeds; and
        "curves", for each seed [train_sec, value] after each validation.

    Raises:
        ConfigError: two rows have one name.
        PaddleVideoFastError: a run fails, or has no such metric, or its folder has a run of another config.
    """
    rows = {name: words for name, *words in row}
    if len(rows) < len(row):
        raise ConfigError(["--row: each row needs a name of its own"])
    progress = timed_progress()
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in rows}
    for seed, (name, words) in product(range(seeds), rows.items()):
        folder = output / f"{name.replace(', ', '_').replace(' ', '_')}_{seed}"
        progress(f"seed {seed}, {name}")
        own = [f"seed={seed}", f"output_dir={json.dumps(str(folder))}", "validate=true"]
        file = [config, *(word for word in words if "=" not in word)][-1]
        result = finished_run(file, [*override, *(word for word in words if "=" in word), *own], folder)
        if metric not in result["metrics"]:
            known = ", ".join(key for key in result["metrics"] if key != "kind")
            raise PaddleVideoFastError(f"--metric {metric}: the validation has {known}")
        found[name].append(result)
    compared = {
        name: {
            "overrides": rows[name],
            **{key: runs[0][key] for key in ("epochs", "steps")},
            "values": [one["metrics"][metric] for one in runs],
            **{key: [one[key] for one in runs] for key in ("train_sec", "wall_sec", "cpu_sec")},
            "curves": [[[sec, metrics[metric]] for sec, metrics in one["curve"]] for one in runs],
        }
        for name, runs in found.items()
    }
    about = {"config": config, "device": paddle.get_device(), "overrides": list(override), "metric": metric}
    return {**about, "rows": compared}


def finished_run(config: str, overrides: Sequence[str], folder: Path) -> dict[str, Any]:
    """The result of a run; the run starts unless its folder has a result.

    Args:
        config: the file of the config.
        overrides: KEY=VALUE, as in `tools/main.py`.
        folder: of the run's output, named by an override as well.

    Returns:
        "wall_sec", "cpu_sec", "train_sec", "epochs" that were validated, "steps", "curve" ([train_sec,
        metrics] of each validation), and "metrics" of the last validation.

    Raises:
        PaddleVideoFastError: the run fails, or the folder has a run of another config.
    """
    kept, resolved = folder / "result.json", json.loads(json.dumps(load_config(config, overrides)))
    if kept.is_file():
        result: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
        if result.pop("config") != resolved:
            raise PaddleVideoFastError(f"{kept}: is of another config; remove it or choose another --output")
        return result
    folder.mkdir(parents=True, exist_ok=True)
    result = _run(config, overrides, folder)
    save_json({**result, "config": resolved}, kept)
    return result


def _run(config: str, overrides: Sequence[str], folder: Path) -> dict[str, Any]:
    flags = [part for override in overrides for part in ("-o", override)]
    command = [sys.executable, str(ROOT / "tools" / "main.py"), "-c", config, *flags]
    before, began = children_sec(), time.perf_counter()
    with (folder / "console.log").open("wb") as log:
        code = subprocess.call(command, stdout=log, stderr=log)
    spent = {"wall_sec": time.perf_counter() - began, "cpu_sec": children_sec() - before}
    if code:
        raise PaddleVideoFastError(f"{folder}/console.log: the run ended with {code}; its last lines say why")
    return {**spent, **_read(folder / "metrics.jsonl")}


def _read(path: Path) -> dict[str, Any]:
    """Time, steps and validations of a run, from its metrics.jsonl."""
    train_sec, steps, curve = 0.0, 0, []
    for record in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        if record["kind"] == "train_epoch":
            train_sec += record["sec"]
            steps = record["step"]
        elif record["kind"] == "valid":
            curve.append([train_sec, record])
    spent = {"train_sec": train_sec, "epochs": len(curve), "steps": steps}
    return {**spent, "curve": curve, "metrics": curve[-1][1]}
