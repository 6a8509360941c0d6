"""Training steps of a config: its own trainer on its own clips, or on made-up batches of the same shape.

With `--side`, several settings in turn, each in processes of its own.
"""

import contextlib
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks.measuring import ROOT, Positive, json_of_process, medians_in_turn, memory_mib
from paddlevideo_fast.apps.doctor.timing import SyntheticLoader, own_loader, time_steps
from paddlevideo_fast.assembly import plan_run, training_setup
from paddlevideo_fast.config import Config, RunSpec, load_config
from paddlevideo_fast.device import gpu_memory_mb
from paddlevideo_fast.engine.protocols import BatchLoader
from paddlevideo_fast.errors import BadSampleShareError
from paddlevideo_fast.loader import ClipLoader

MEASURED = ("clips_per_sec", "step_sec", "wait_share", "memory_mib", "gpu_mib")


def training_rate(cfg: Config, synthetic: bool = False, steps: int = 30, warmup: int = 5) -> dict[str, Any]:
    """Trains some steps of a config at learning rate 0, and keeps nothing.

    Args:
        cfg: a checked config.
        synthetic: train on made-up batches of the same shape.
        steps: optimizer steps to time.
        warmup: steps before them.

    Returns:
        "batches" ("real" or "synthetic"), "num_workers", "clips_per_sec", "step_sec" and "wait_share", the
        share of the time spent waiting for a batch.

    Raises:
        PaddleVideoFastError: as training does.
    """
    parts = training_setup(plan_run(RunSpec.for_training(cfg)), load_pretrained=False)
    used: BatchLoader = parts.split.loader
    with contextlib.closing(parts.split.loader):
        if synthetic:
            loader = own_loader(parts)
            shape = _clip_shape(loader)
            used = SyntheticLoader(loader.batch_sampler.batch_size, shape, parts.model)
        times = time_steps(parts, used, steps, warmup, budget_sec=float("inf"))
    return {
        "batches": "synthetic" if synthetic else "real",
        "num_workers": getattr(used, "num_workers", 0),
        "clips_per_sec": times.clips_per_sec,
        "step_sec": times.step_sec,
        "wait_share": times.wait_share,
    }


def _clip_shape(loader: ClipLoader) -> Sequence[int]:
    """(T, H, W, 3) of the first clip that decodes."""
    for batch in loader.epoch(0):
        if len(batch):
            return batch.clips.shape[1:]
    path, cause = batch.failures[0]
    raise BadSampleShareError(f"no clip of {loader.dataset.file_path} decodes; {path}: {cause}")


def run(
    config: str,
    override: Sequence[str],
    imports: Sequence[str] | None,
    synthetic: bool = False,
    steps: Positive = 30,
    warmup: Positive = 5,
    side: Sequence[Sequence[str]] = (),
    rounds: Positive = 3,
) -> dict[str, Any]:
    """Times steps of one setting, or of several.

    Args:
        config: a file.
        override: KEY=VALUE; `imports` are among them.
        imports: names of plug-ins.
        synthetic: train on made-up batches, without reading.
        steps: optimizer steps to time.
        warmup: steps before these.
        side: KEY=VALUE … of a side that is compared, such as num_threads=2; the first side is the baseline.
            Without sides, the config is timed as it is, in this process.
        rounds: processes of each side.

    Returns:
        What `training_rate` returns, "memory_mib", the peak of the process, and "gpu_mib", the peak of its
        tensors on a GPU. With `side`: "config", and
        "rows", a row for each side, with medians and "ratio": its clips a second over those of the first.

    Raises:
        PaddleVideoFastError: training fails.
    """
    if not side:
        rate = training_rate(load_config(config, override), synthetic, steps, warmup)
        on_gpu = gpu_memory_mb().get("memory_peak_mb", 0)
        return {**rate, "memory_mib": memory_mib("VmHWM"), "gpu_mib": on_gpu}
    flags = ["--steps", steps, "--warmup", warmup, *["--synthetic"] * synthetic]

    def measure(overrides: Sequence[str]) -> dict[str, float]:
        return measured(config, flags, [*override, *overrides])

    sides = {" ".join(overrides): partial(measure, overrides) for overrides in side}
    rows = [{"side": name, **row} for name, row in medians_in_turn(sides, rounds).items()]
    for row in rows:
        row["ratio"] = row["clips_per_sec"] / rows[0]["clips_per_sec"]
    return {"config": config, "rows": rows}


def measured(
    config: str, flags: Sequence[Any], overrides: Sequence[str], **variables: str | None
) -> dict[str, float]:
    """What a process of its own measures of a config, with these variables."""
    words = [sys.executable, ROOT / "tools" / "benchmark.py", "train", "-c", config, "--json", *flags]
    words += [part for each in overrides for part in ("-o", each)]
    found = json_of_process(words, OMP_NUM_THREADS=None, **variables)
    return {key: found[key] for key in MEASURED}
