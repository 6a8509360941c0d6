"""Finds a learning rate by a range test, and the largest batch that fits into memory. Nothing is written."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import paddle

from paddlevideo_fast.apps.doctor.timing import (
    SyntheticLoader,
    child_environment,
    own_loader,
    time_steps,
    trial_trainer,
)
from paddlevideo_fast.assembly import plan_run, training_setup
from paddlevideo_fast.config import Config, RunSpec
from paddlevideo_fast.engine import Trainer
from paddlevideo_fast.engine.callbacks import Callback
from paddlevideo_fast.errors import (
    BadSampleShareError,
    NonFiniteGradientError,
    NonFiniteLossError,
    OutOfMemoryError,
    PaddleVideoFastError,
)
from paddlevideo_fast.loader import ClipRequest
from paddlevideo_fast.modeling import load_weights
from paddlevideo_fast.solver import LearningRate

_LOWEST, _HIGHEST = 1e-6, 10.0  # times the config's rate, and a rate
_KEPT = 0.9  # of the smoothed loss at a step
_DIVERGED = 4.0  # times the lowest smoothed loss
_LEARNS = 0.02  # share by which the loss has to fall
_MARGIN = 10.0
_RATES = (
    *("learning_rate", "values", "cosine_base_lr", "step_base_lr", "base_lr"),
    *("warmup_start_lr", "eta_min", "min_lr"),
)
_NUM_ROWS, _WIDTH = 25, 40

_RESERVE = 0.1  # of the memory that is available stays free
_TOO_LARGE = 3  # exit code of a trial
_POLL_SEC = 0.05
_TRIAL = """
import sys
from paddlevideo_fast.config.startup import prepare_process
prepare_process(sys.argv[1])
from paddlevideo_fast.config import load_config
from paddlevideo_fast.apps.doctor.finding import try_batch
sys.exit(try_batch(load_config(sys.argv[1])))
"""


class _RateTest(Callback):
    """Raises the rate from step to step, and ends the training when the loss diverges or the rates end."""

    def __init__(self, rates: list[float]) -> None:
        self.rates = rates
        self.losses: list[float] = []
        self.diverged = False

    def step_begin(self, trainer: Trainer) -> None:
        trainer.optimizer.set_lr(self.rates[len(self.losses)])

    def step_end(self, trainer: Trainer) -> None:
        try:
            latest = trainer.drain()
        except (NonFiniteLossError, NonFiniteGradientError):
            self.diverged = True
            raise _Ended from None
        if latest:  # else nothing of the batch decoded
            self.losses.append(latest["loss"])
            smooth = smoothed(self.losses)
            self.diverged = smooth[-1] > _DIVERGED * min(smooth)
        if self.diverged or len(self.losses) == len(self.rates):
            raise _Ended


class _Ended(Exception):
    """Ends a trial."""


def smoothed(losses: list[float]) -> list[float]:
    """The moving average of losses, without the pull of its start towards 0.

    Reference: Kingma and Ba, "Adam", arXiv 1412.6980, section 3, for the correction.
    """
    values, mean = [], 0.0
    for number, loss in enumerate(losses, 1):
        mean = _KEPT * mean + (1 - _KEPT) * loss
        values.append(mean / (1 - _KEPT**number))
    return values


def find_rate(cfg: Config, steps: int = 100, progress: Callable[[str], None] = print) -> dict[str, Any]:
    """The learning-rate range test: trains with a rate that rises from step to step, and keeps nothing.

    The rate rises exponentially from 10^-6 times the rate of the config, at its highest, to 10. The test
    ends early where the smoothed loss is more than 4 times its lowest value, or not finite. The proposal is a
    tenth of the rate at which the smoothed loss is lowest.

    Args:
        cfg: a checked config.
        steps: optimizer steps.
        progress: called with a line about what starts.

    Returns:
        "rates", "losses" and "smoothed" by step; "diverged"; "rate", the proposal, or None where the loss did
        not fall; "overrides", the keys of the config that set it, rates of a warm-up in proportion.

    Raises:
        PaddleVideoFastError: as training does.

    Reference: Smith, "Cyclical Learning Rates for Training Neural Networks", arXiv 1506.01186, section 3.3.
    """
    plan = plan_run(RunSpec.for_training(cfg))
    parts = training_setup(plan, load_pretrained=not plan.spec.run.weights)
    if plan.spec.run.weights:
        load_weights(parts.model, plan.spec.run.weights, strict=True)
    base = max(parts.curve.at(part / 100) for part in range(100 * plan.spec.run.epochs + 1))
    if not 0 < base < _HIGHEST / _LOWEST:
        raise cfg.error(
            "OPTIMIZER.learning_rate", f"its highest value is {base:g}, and the test starts below it"
        )
    first = _LOWEST * base
    ratio = (_HIGHEST / first) ** (1 / (steps - 1))
    test = _RateTest([first * ratio**step for step in range(steps)])
    progress(f"training {steps} steps with a learning rate from {first:.1e} to {_HIGHEST:g}")
    loader = parts.split.loader
    with contextlib.closing(loader), contextlib.suppress(_Ended):
        trial_trainer(parts, loader, test).fit()
    smooth = smoothed(test.losses)
    rate = _proposal(test.rates, test.losses)
    return {
        "config": cfg.path,
        "rates": test.rates[: len(smooth)],
        "losses": test.losses,
        "smoothed": smooth,
        "diverged": test.diverged,
        "rate": rate,
        "overrides": [] if rate is None else _overrides(plan.curve, rate / base, rate, cfg),
    }


def _proposal(rates: list[float], losses: list[float]) -> float | None:
    """A tenth of the rate of the lowest smoothed loss, two digits; None where the loss did not fall.

    In the first quarter the rate is too low to change anything, so its lowest loss is chance. So is a fall
    below its mean that the differences from batch to batch explain. The median of each three losses leaves
    out a single lucky batch.
    """
    count = len(losses)
    middles = [min(max(place, 1), count - 2) for place in range(count)]
    steady = [statistics.median(losses[middle - 1 : middle + 2]) for middle in middles if count >= 3]
    start = max(count // 4, 1)
    flat, rest = steady[:start], smoothed(steady)[start:]
    if not rest:
        return None
    level = statistics.mean(flat)
    deviation = statistics.median(abs(one - other) for one, other in zip(losses, losses[1:])) / 0.954
    chance = deviation * math.sqrt((1 - _KEPT) / (1 + _KEPT) + 1 / start)  # of two means
    if min(rest) > level - max(_LEARNS * level, 4 * chance):
        return None
    return _rounded(rates[start + rest.index(min(rest))] / _MARGIN)


def _overrides(curve: LearningRate, factor: float, rate: float, cfg: Config) -> list[str]:
    if not isinstance(cfg["OPTIMIZER"]["learning_rate"], Mapping):
        return [f"OPTIMIZER.learning_rate={_rounded(curve.at(0) * factor):g}"]
    names = [field.name for field in dataclasses.fields(curve)]
    found = []
    for name in [name for name in _RATES if name in names and getattr(curve, name)]:
        value = getattr(curve, name)
        scaled = [_rounded(each * factor) for each in value] if name == "values" else _rounded(value * factor)
        found.append(f"OPTIMIZER.learning_rate.{name}={json.dumps(scaled)}")
    return found


def _rounded(value: float) -> float:
    return float(f"{value:.1e}")


def rate_report(result: Mapping[str, Any]) -> str:
    """The curve and the proposal of `find_rate`, as text."""
    rates, smooth = result["rates"], result["smoothed"]
    every = math.ceil(len(rates) / _NUM_ROWS)
    shown = list(zip(rates, smooth))[::every]
    top = max((loss for _, loss in shown), default=1.0)
    lines = ["learning rate    smoothed loss"]
    lines += [f"{rate:13.1e} {loss:16.4f}  {'#' * round(_WIDTH * loss / top)}" for rate, loss in shown]
    if result["diverged"]:
        lines.append(f"the loss diverged after {len(rates)} steps")
    if result["rate"] is None:
        lines.append(
            f"the loss did not fall by {_LEARNS:.0%}, or by chance alone, so no rate is proposed: test more "
            "--steps, or look at labels and clips"
        )
    else:
        lines += [
            f"proposed: {result['rate']:g}, a tenth of the rate with the lowest smoothed loss",
            " ".join(f"-o {override}" for override in result["overrides"]),
        ]
    return "\n".join(lines)


def find_batch_size(
    cfg: Config, progress: Callable[[str], None] = print, limit_bytes: int | None = None
) -> dict[str, Any]:
    """The largest batch of a process whose training step fits into memory, to about an eighth.

    Each size is tried in a process of its own: two steps forward, backward and of the optimizer, on made-up
    clips of the config's shape. The batch is doubled until one does not fit, then bisected. On a GPU, Paddle
    says what does not fit. On a CPU, a trial is ended when its memory reaches what is available less a tenth,
    so that neither the machine nor other programs run out of it.

    Args:
        cfg: a checked config.
        progress: called with a line about each trial.
        limit_bytes: of a trial on a CPU; None: by what is available.

    Returns:
        "device"; "limit_bytes", None on a GPU; "trials", each with "batch_size", "fits" and "peak_bytes",
        None where it did not fit; "batch_size", the proposal; "overrides".

    Raises:
        PaddleVideoFastError: not even one clip fits, or as training does.
    """
    if cfg.get("multigrid"):
        raise cfg.error("multigrid", "changes the batch from step to step; leave it out of this search")
    plan_run(RunSpec.for_training(cfg))
    on_cpu = paddle.get_device() == "cpu"
    limit = (limit_bytes or int(available_bytes() * (1 - _RESERVE))) if on_cpu else None
    unit = int(cfg["DATASET"]["train"].get("clips_per_video", 1))
    trials: list[dict[str, Any]] = []
    most = 2**16

    def fits(size: int) -> bool:
        nonlocal most
        found = _trial(cfg, size, limit)
        trials.append(
            {"batch_size": size, "fits": found is not None, "peak_bytes": found and found["peak_bytes"]}
        )
        end = f"takes {found['peak_bytes'] / 1e9:.2f} GB" if found else "does not fit"
        progress(f"a batch of {size} {end}")
        most = min(most, found["num_clips"]) if found else most
        return found is not None

    best, failed = 0, 0
    size = unit
    while not failed and size <= most:
        best, failed = (size, 0) if fits(size) else (best, size)
        size *= 2
    if not best:
        raise PaddleVideoFastError(
            f"a batch of {unit} does not fit into memory: take fewer or smaller frames, "
            "RUNTIME.recompute=true or, on a GPU, --amp"
        )
    failed = failed or most - most % unit + unit  # there are no more clips
    while failed - best > max(unit, best // 8):
        middle = max((best + failed) // 2 // unit, best // unit + 1) * unit
        best, failed = (middle, failed) if fits(middle) else (best, middle)
    return {
        "config": cfg.path,
        "device": paddle.get_device(),
        "limit_bytes": limit,
        "trials": trials,
        "batch_size": best,
        "overrides": [f"DATASET.batch_size={best}"],
    }


def available_bytes() -> int:
    """Memory that this machine, or the control group of this process, has left, in bytes."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"))
    left = [int(found[1]) * 1024 if found else os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    group = Path("/sys/fs/cgroup")
    for most, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):  # no such group, or "max"
            left.append(int((group / most).read_text()) - int((group / used).read_text()))
    return max(min(left), 0)


def _trial(cfg: Config, batch_size: int, limit_bytes: int | None) -> dict[str, Any] | None:
    """What `try_batch` prints in a process of its own; None where the batch does not fit."""
    changed = {**cfg, "DATASET": {**cfg["DATASET"], "batch_size": batch_size}, "GRADIENT_ACCUMULATION": None}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        Config(changed).save(path)
        words, pipe = [sys.executable, "-c", _TRIAL, str(path)], subprocess.PIPE
        environment = child_environment({})
        with subprocess.Popen(words, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
            printed, complaint = _output_of(process, limit_bytes)
    if process.returncode in (_TOO_LARGE, -9):  # -9: ended by `_output_of`, or by the kernel
        return None
    if process.returncode:
        cause = (complaint.strip() or f"exit code {process.returncode}").splitlines()[-1]
        raise PaddleVideoFastError(f"a trial of a batch of {batch_size} fails: {cause}")
    found = json.loads(printed.strip().splitlines()[-1])
    return None if limit_bytes is not None and found["peak_bytes"] > limit_bytes else found


def _output_of(process: subprocess.Popen[str], limit_bytes: int | None) -> tuple[str, str]:
    """What a process writes to stdout and stderr; it is ended where its memory reaches the limit."""
    while True:
        try:
            return process.communicate(timeout=None if limit_bytes is None else _POLL_SEC)
        except subprocess.TimeoutExpired:
            if limit_bytes is not None and _resident_bytes(process.pid) > limit_bytes:
                process.kill()


def _resident_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) * 1024 if found else 0
    return 0


def try_batch(cfg: Config) -> int:
    """Trains two steps on a made-up batch, prints the peak of memory as JSON, and returns the exit code."""
    with contextlib.suppress(OSError):  # where memory ends, the kernel ends this process before others
        Path("/proc/self/oom_score_adj").write_text("1000")
    try:
        parts = training_setup(plan_run(RunSpec.for_training(cfg)), load_pretrained=False)
        own_loader(parts)
        dataset = parts.split.dataset
        clip = dataset[ClipRequest(0, 0, num_views=dataset.clips_per_video)].clip
        if clip is None:
            raise BadSampleShareError(f"the first clips of {dataset.file_path} do not decode")
        time_steps(parts, SyntheticLoader(parts.spec.data.batch_size, clip.shape, parts.model), 1, 1)
    except Exception as error:
        if OutOfMemoryError.is_told_by(error):
            return _TOO_LARGE
        raise
    if paddle.get_device() == "cpu":
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    else:
        peak = paddle.device.cuda.max_memory_reserved()
    print(json.dumps({"peak_bytes": peak, "num_clips": len(dataset)}))
    return 0


def batch_report(result: Mapping[str, Any]) -> str:
    """The trials and the proposal of `find_batch_size`, as text."""
    lines = ["batch size       memory"]
    for trial in sorted(result["trials"], key=lambda trial: trial["batch_size"]):
        memory = f"{trial['peak_bytes'] / 1e9:.2f} GB" if trial["fits"] else "does not fit"
        lines.append(f"{trial['batch_size']:10d} {memory:>12}")
    limit = result["limit_bytes"]
    bound = "the GPU's memory" if limit is None else f"{limit / 1e9:.2f} GB, what is available less a tenth"
    size = result["batch_size"]
    lines += [
        f"proposed: {size}, the largest of these that fits into {bound}",
        f"-o {result['overrides'][0]}",
        f"the learning rate belongs to the batch: paddlevideo-fast train CONFIG --batch_size {size}  "
        "lets it follow",
    ]
    return "\n".join(lines)
