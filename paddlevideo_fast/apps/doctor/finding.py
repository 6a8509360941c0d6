"""Finds a learning rate by a range test. Nothing is written."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Mapping
from typing import Any

from paddlevideo_fast.apps.doctor.timing import trial_trainer
from paddlevideo_fast.assembly import plan_run, training_setup
from paddlevideo_fast.config import Config, RunSpec
from paddlevideo_fast.engine import Trainer
from paddlevideo_fast.engine.callbacks import Callback
from paddlevideo_fast.errors import NonFiniteGradientError, NonFiniteLossError
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
    overrides = []
    for name in [name for name in _RATES if name in names and getattr(curve, name)]:
        value = getattr(curve, name)
        scaled = [_rounded(each * factor) for each in value] if name == "values" else _rounded(value * factor)
        overrides.append(f"OPTIMIZER.learning_rate.{name}={json.dumps(scaled)}")
    return overrides


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
