"""The learning-rate schedules that configs name. Epochs count from 0 and may be fractions."""

from __future__ import annotations

import copy
import math
from typing import ClassVar, Dict, Sequence

from paddlevideo_fast.config.types import NonNegative
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.registry import LEARNING_RATES
from paddlevideo_fast.schedule.curves import cosine, linear_warmup, piecewise
from paddlevideo_fast.schedule.multigrid import RateStep

_KEY = "OPTIMIZER.learning_rate"
_IGNORED = {
    "last_epoch": "the trainer knows the epoch",
    "verbose": "the learning rate is in the log line",
    "num_iters": "the curve is a function of the epoch",
}


class LearningRate:
    """A learning rate as a function of the epoch.

    Args:
        iter_step: follow the curve at each step; else an epoch keeps the value of its start.
    """

    ignored_arguments: ClassVar[Dict[str, str]] = _IGNORED

    def __init__(self, iter_step: bool) -> None:
        self.iter_step = iter_step
        self._factor = 1.0

    def times(self, factor: float) -> LearningRate:
        """The same curve with all rates multiplied by `factor`, also during the warm-up."""
        other = copy.copy(self)
        other._factor *= factor
        return other

    def at(self, epoch: float) -> float:
        """The learning rate at `epoch`: 2.5 is in the middle of the third epoch."""
        return self._factor * self._value(epoch if self.iter_step else math.floor(epoch))

    def misfit(self, epochs: int) -> str:
        """Why a run of `epochs` epochs does not go along the whole curve, in words; empty where it does."""
        return ""

    def _value(self, epoch: float) -> float:
        raise NotImplementedError


@LEARNING_RATES.register()
class Constant(LearningRate):
    """One learning rate for the whole run; what a plain number in the config means.

    Args:
        learning_rate: the number.
    """

    def __init__(self, learning_rate: NonNegative) -> None:
        super().__init__(iter_step=False)
        self.learning_rate = float(learning_rate)

    def _value(self, epoch: float) -> float:
        return self.learning_rate


@LEARNING_RATES.register()
class PiecewiseDecay(LearningRate):
    """Steps: `values[i]` before epoch `boundaries[i]`, the last value after them.

    Args:
        boundaries: epochs, rising.
        values: learning rates, one more than boundaries.
        iter_step: see `LearningRate`; it makes no difference to whole boundaries.

    Raises:
        ConfigError: there is not one value more than boundaries, or the boundaries do not rise.
    """

    def __init__(
        self, boundaries: Sequence[NonNegative], values: Sequence[NonNegative], iter_step: bool = False
    ) -> None:
        super().__init__(iter_step)
        if len(values) != len(boundaries) + 1:
            raise ConfigError(
                [
                    f"{_KEY}: {len(boundaries)} boundaries need {len(boundaries) + 1} values, "
                    f"there are {len(values)}"
                ]
            )
        _check_rising("boundaries", boundaries)
        self.boundaries = list(boundaries)
        self.values = [float(value) for value in values]

    def misfit(self, epochs: int) -> str:
        last = self.boundaries[-1] if self.boundaries else 0
        return f"has its last value from epoch {last:g} on" if last >= epochs else ""

    def _value(self, epoch: float) -> float:
        return piecewise(epoch, self.boundaries, self.values)


@LEARNING_RATES.register()
class CosineAnnealingDecay(LearningRate):
    """Half a cosine from `learning_rate` to `eta_min` at epoch `T_max`, where it stays; optional linear
    warm-up.

    Args:
        learning_rate: of the cosine's start.
        T_max: epochs of the cosine, the warm-up's included.
        eta_min: of its end.
        warmup_epochs: the line from `warmup_start_lr` meets the cosine here.
        warmup_start_lr: at epoch 0 where there is a warm-up.
        iter_step: see `LearningRate`.
    """

    def __init__(
        self,
        learning_rate: NonNegative,
        T_max: float,
        eta_min: NonNegative = 0.0,
        warmup_epochs: NonNegative = 0.0,
        warmup_start_lr: NonNegative = 0.0,
        iter_step: bool = False,
    ) -> None:
        super().__init__(iter_step)
        _check_warmup(warmup_epochs, T_max, "T_max")
        self.learning_rate = learning_rate
        self.num_epochs = T_max
        self.eta_min = eta_min
        self.warmup_epochs = warmup_epochs
        self.warmup_start_lr = warmup_start_lr

    def misfit(self, epochs: int) -> str:
        return _other_end(self.num_epochs, epochs)

    def _cosine(self, epoch: float) -> float:
        return cosine(min(epoch, self.num_epochs), self.learning_rate, self.num_epochs, self.eta_min)

    def _value(self, epoch: float) -> float:
        if epoch < self.warmup_epochs:
            end = self._cosine(self.warmup_epochs)
            return linear_warmup(epoch, self.warmup_start_lr, end, self.warmup_epochs)
        return self._cosine(epoch)


@LEARNING_RATES.register()
class CustomWarmupCosineDecay(CosineAnnealingDecay):
    """PaddleVideo's name for a cosine to 0 at `max_epoch` with linear warm-up.

    Args:
        warmup_start_lr: at epoch 0.
        warmup_epochs: the line from `warmup_start_lr` meets the cosine here; 0: no warm-up.
        cosine_base_lr: of the cosine at epoch 0.
        max_epoch: where it reaches 0.
        iter_step: see `LearningRate`.
    """

    def __init__(
        self,
        warmup_start_lr: NonNegative,
        warmup_epochs: NonNegative,
        cosine_base_lr: NonNegative,
        max_epoch: float,
        iter_step: bool = True,
    ) -> None:
        _check_warmup(warmup_epochs, max_epoch, "max_epoch")
        super().__init__(cosine_base_lr, max_epoch, 0.0, warmup_epochs, warmup_start_lr, iter_step)


@LEARNING_RATES.register()
class CustomWarmupPiecewiseDecay(LearningRate):
    """Steps with linear warm-up: `step_base_lr * lrs[i]` from epoch `steps[i]` on, followed in each step.

    Args:
        warmup_start_lr: at epoch 0.
        warmup_epochs: the line meets the steps here; 0: no warm-up.
        step_base_lr: what the factors multiply.
        lrs: factors, one a step or more.
        gamma: accepted because PaddleVideo requires it; `lrs` says the same.
        steps: epochs, the first one 0.
        max_epoch: epochs of the run; the last step ends here.
        iter_step: see `LearningRate`.

    Raises:
        ConfigError: steps and factors do not fit.
    """

    def __init__(
        self,
        warmup_start_lr: NonNegative,
        warmup_epochs: NonNegative,
        step_base_lr: NonNegative,
        lrs: Sequence[NonNegative],
        gamma: float,
        steps: Sequence[float],
        max_epoch: float,
        iter_step: bool = True,
    ) -> None:
        super().__init__(iter_step)
        _check_rising("steps", steps)
        if not steps or steps[0] != 0 or len(lrs) < len(steps):
            raise ConfigError(
                [f"{_KEY}: steps={list(steps)} must start with 0 and have a factor each in lrs"]
            )
        _check_warmup(warmup_epochs, max_epoch, "max_epoch")
        self.warmup_start_lr = warmup_start_lr
        self.warmup_epochs = warmup_epochs
        self.step_base_lr = step_base_lr
        self.lrs = [float(factor) for factor in lrs]
        self.gamma = gamma
        self.steps = list(steps)
        self.max_epoch = max_epoch

    def misfit(self, epochs: int) -> str:
        return _other_end(self.max_epoch, epochs)

    def along(self, rate_steps: Sequence[RateStep], max_epoch: float) -> CustomWarmupPiecewiseDecay:
        """The same rates and warm-up, with the steps of a multigrid schedule that runs to `max_epoch`.

        Raises:
            ConfigError: the warm-up is longer than the schedule.
        """
        return CustomWarmupPiecewiseDecay(
            self.warmup_start_lr,
            self.warmup_epochs,
            self.step_base_lr,
            lrs=[self.lrs[step.stage] * step.multiplier for step in rate_steps],
            gamma=self.gamma,
            steps=[step.epoch for step in rate_steps],
            max_epoch=max_epoch,
            iter_step=self.iter_step,
        )

    def _value(self, epoch: float) -> float:
        if epoch < self.warmup_epochs:
            end = self._step(self.warmup_epochs)
            return linear_warmup(epoch, self.warmup_start_lr, end, self.warmup_epochs)
        return self._step(epoch)

    def _step(self, epoch: float) -> float:
        return self.step_base_lr * piecewise(epoch, self.steps[1:], self.lrs)


def _other_end(end: float, epochs: int) -> str:
    return "" if end == epochs else f"ends at epoch {end:g}"


def _check_rising(name: str, epochs: Sequence[float]) -> None:
    if any(later <= earlier for earlier, later in zip(epochs, epochs[1:])):
        raise ConfigError([f"{_KEY}.{name}={list(epochs)}: must rise"])


def _check_warmup(warmup_epochs: float, num_epochs: float, name: str) -> None:
    if not 0 <= warmup_epochs <= num_epochs or num_epochs <= 0:
        raise ConfigError(
            [f"{_KEY}.warmup_epochs={warmup_epochs}: must lie between 0 and {name}={num_epochs}"]
        )
