"""The learning-rate schedules that configs name. Epochs count from 0 and may be fractions."""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

from paddlevideo_fast.config.sections import Arguments
from paddlevideo_fast.config.types import Count, Epochs, NonNegative, Role, Share, mismatches
from paddlevideo_fast.errors import SettingError
from paddlevideo_fast.log import get_logger, warn_once
from paddlevideo_fast.registry import LEARNING_RATES
from paddlevideo_fast.schedule.curves import cosine, linear_warmup, piecewise
from paddlevideo_fast.schedule.multigrid import RateStep

EpochCount = Annotated[NonNegative, Role.EPOCHS]

_KEY = "OPTIMIZER.learning_rate"
_IGNORED = {
    "last_epoch": "the trainer knows the epoch",
    "verbose": "the learning rate is in the log line",
    "num_iters": "the curve is a function of the epoch",
}


@dataclass(eq=False)
class LearningRate:
    """A learning rate as a function of the epoch; the base of the registered ones, which define `_curve`.

    Arguments that are epochs are annotated as `Epochs`.

    Args:
        iter_step: follow the curve at each step; else an epoch keeps the value of its start. A warm-up
            follows each step in any case: the first epoch would not train at a rate of 0.
        warmup_steps: optimizer steps of a warm-up; 0: none. During it the rate is the curve's times a factor
            that rises in a straight line to 1, at each step, whatever `iter_step` says.
        warmup_factor: the factor at the first step.

    Attributes:
        warmup_epochs: epochs of a straight line from `warmup_start_lr` to the curve.
        warmup_start_lr: at epoch 0 of this line.
    """

    iter_step: bool = field(default=False, kw_only=True)
    warmup_steps: Count = field(default=0, kw_only=True)
    warmup_factor: Share = field(default=0.0, kw_only=True)

    ignored_arguments: ClassVar[dict[str, str]] = _IGNORED
    end_argument: ClassVar[str] = ""  # names the epoch at which the curve ends
    warmup_epochs = warmup_start_lr = 0.0  # a required field of this name is field(): not the value here

    def __post_init__(self) -> None:
        if self.warmup_factor and not self.warmup_steps:
            warn_once(get_logger(), f"{_KEY}.warmup_factor has no effect without warmup_steps")
        self._factor = 1.0

    @classmethod
    def stretched(cls, arguments: Mapping[str, Any], before: int, epochs: int) -> dict[str, Any]:
        """The arguments that change where a training of `before` epochs gets `epochs`, the end first."""
        changed: dict[str, Any] = {}
        own = Arguments((), cls, arguments).with_role(Role.EPOCHS)
        for name, value in sorted(own.items(), key=lambda item: item[0] != cls.end_argument):
            if not value or any(mismatches(value, float | Sequence[float])):
                continue  # the check of the config says what is wrong
            if isinstance(value, (int, float)):
                changed[name] = epochs if value == before else round(value * (epochs / before), 2)
            else:
                changed[name] = _stretched_steps(value, epochs / before)
        return changed

    def times(self, factor: float) -> "LearningRate":
        """The same curve with all rates multiplied by `factor`, also during the warm-up."""
        other = copy.copy(self)
        other._factor *= factor
        return other

    def at(self, epoch: float) -> float:
        """The learning rate at `epoch`, without `warm_up`: 2.5 is in the middle of the third epoch."""
        return self._factor * self._value(epoch)

    def warm_up(self, num_steps: int) -> float:
        """The factor on the rate after so many optimizer steps of the run; 1 when the warm-up is over."""
        if num_steps >= self.warmup_steps:
            return 1.0
        return linear_warmup(num_steps, self.warmup_factor, 1.0, self.warmup_steps)

    def misfit(self, epochs: int) -> str:
        """Why a run of `epochs` epochs does not go along the whole curve, in words; empty where it does."""
        end = getattr(self, self.end_argument) if self.end_argument else epochs
        return "" if end == epochs else f"ends at epoch {end:g}, its {self.end_argument}"

    def _value(self, epoch: float) -> float:
        """The curve with its warm-up by epochs."""
        if epoch < self.warmup_epochs:
            end = self._curve(self.warmup_epochs)
            return linear_warmup(epoch, self.warmup_start_lr, end, self.warmup_epochs)
        return self._curve(epoch if self.iter_step else max(math.floor(epoch), self.warmup_epochs))

    def _curve(self, epoch: float) -> float:
        raise NotImplementedError

    def _check_warm_up(self, key: str = "warmup_epochs") -> None:
        """Checks a warm-up by epochs, whose length the argument `key` gives.

        Raises:
            SettingError: the warm-up is longer than the curve, or there is a warm-up by steps as well.
        """
        epochs, end = getattr(self, key), getattr(self, self.end_argument)
        if not 0 <= epochs <= end or end <= 0:
            text = f"must lie between 0 and {self.end_argument}={end}"
            raise SettingError(f"{_KEY}.{key}={epochs}", text)
        if self.warmup_epochs and self.warmup_steps:
            raise SettingError(_KEY, "has warmup_epochs and warmup_steps; give one of the two")


@LEARNING_RATES.register()
@dataclass(eq=False)
class Constant(LearningRate):
    """One learning rate for the whole run; what a plain number in the config means.

    Args:
        learning_rate: the number.
        warmup_steps: see `LearningRate`.
        warmup_factor: see `LearningRate`.
    """

    iter_step: bool = field(default=False, init=False)
    learning_rate: NonNegative

    def _curve(self, epoch: float) -> float:
        return self.learning_rate


class _Steps(LearningRate):
    """Steps: `values[i]` before epoch `boundaries[i]`, which the argument `end_argument` gives.

    Raises:
        SettingError: the boundaries do not rise.
    """

    boundaries: Sequence[float]
    values: Sequence[float]

    def _set(self, boundaries: Sequence[float], values: Sequence[float]) -> None:
        _check_rising(self.end_argument, boundaries)
        self.boundaries, self.values = list(boundaries), [float(value) for value in values]

    def misfit(self, epochs: int) -> str:
        last = self.boundaries[-1] if self.boundaries else 0
        return (
            f"has its last value from epoch {last:g} on, by its {self.end_argument}" if last >= epochs else ""
        )

    def _curve(self, epoch: float) -> float:
        return piecewise(epoch, self.boundaries, self.values)


@LEARNING_RATES.register()
@dataclass(eq=False)
class PiecewiseDecay(_Steps):
    """Steps: `values[i]` before epoch `boundaries[i]`, the last value after them.

    Args:
        boundaries: epochs, rising.
        values: learning rates, one more than boundaries.
        iter_step: see `LearningRate`; it makes no difference to whole boundaries.

    Raises:
        SettingError: there is not one value more than boundaries, or the boundaries do not rise.
    """

    end_argument = "boundaries"

    boundaries: Sequence[EpochCount]
    values: Sequence[NonNegative]

    def __post_init__(self) -> None:
        super().__post_init__()
        num, num_values = len(self.boundaries), len(self.values)
        if num_values != num + 1:
            raise SettingError(_KEY, f"{num} boundaries need {num + 1} values, there are {num_values}")
        self._set(self.boundaries, self.values)


@LEARNING_RATES.register()
@dataclass(eq=False)
class MultiStepDecay(_Steps):
    """Steps: the rate is multiplied by `gamma` at each of the epochs in `milestones`.

    Args:
        learning_rate: before the first of them.
        milestones: epochs, rising.
        gamma: factor of each step.
        iter_step: see `LearningRate`; it makes no difference to whole milestones.

    Raises:
        SettingError: the milestones do not rise.
    """

    end_argument = "milestones"

    learning_rate: NonNegative
    milestones: Sequence[EpochCount]
    gamma: NonNegative = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        rates = [self.learning_rate * self.gamma**power for power in range(len(self.milestones) + 1)]
        self._set(self.milestones, rates)


@LEARNING_RATES.register()
@dataclass(eq=False)
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
        cosine_after_warmup: the cosine begins where the warm-up ends, with the whole `learning_rate`; else at
            epoch 0, so that the warm-up meets it below.
    """

    end_argument = "T_max"

    learning_rate: NonNegative
    T_max: Epochs
    eta_min: NonNegative = 0.0
    warmup_epochs: EpochCount = 0.0
    warmup_start_lr: NonNegative = 0.0
    cosine_after_warmup: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_warm_up()
        if self.cosine_after_warmup and not 0 < self.warmup_epochs < self.T_max:
            text = f"needs warmup_epochs between 0 and T_max={self.T_max:g}"
            raise SettingError(f"{_KEY}.cosine_after_warmup", text)
        self.first_epoch = self.warmup_epochs if self.cosine_after_warmup else 0.0

    def _curve(self, epoch: float) -> float:
        epoch, num_epochs = min(epoch, self.T_max) - self.first_epoch, self.T_max - self.first_epoch
        return cosine(epoch, self.learning_rate, num_epochs, self.eta_min)


@LEARNING_RATES.register()
@dataclass(eq=False)
class CustomWarmupCosineDecay(LearningRate):
    """PaddleVideo's name for a cosine to 0 at `max_epoch` with linear warm-up.

    Args:
        warmup_start_lr: at epoch 0.
        warmup_epochs: the line from `warmup_start_lr` meets the cosine here; 0: no warm-up.
        cosine_base_lr: of the cosine at epoch 0.
        max_epoch: where it reaches 0.
        iter_step: see `LearningRate`.
    """

    end_argument = "max_epoch"

    warmup_start_lr: NonNegative = field()
    warmup_epochs: EpochCount = field()
    cosine_base_lr: NonNegative
    max_epoch: Epochs
    iter_step: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_warm_up()

    def _curve(self, epoch: float) -> float:
        return cosine(min(epoch, self.max_epoch), self.cosine_base_lr, self.max_epoch)


@LEARNING_RATES.register()
@dataclass(eq=False)
class CustomWarmupCosineStepDecay(LearningRate):
    """A cosine that changes at whole epochs, and a warm-up that multiplies it and follows each step.

    This is how PaddleVideo trains Video Swin.

    Args:
        warmup_iters: epochs of the warm-up, in spite of the name, and with a fraction; 0: none.
        warmup_ratio: the factor on the cosine at epoch 0; it rises in a straight line to 1.
        min_lr: of the cosine at `max_epoch`.
        base_lr: of the cosine at epoch 0.
        max_epoch: end of the cosine.
        iter_step: has no effect: the cosine changes at whole epochs, and the warm-up at each step.
    """

    end_argument = "max_epoch"

    warmup_iters: EpochCount
    warmup_ratio: Share = 0.1
    min_lr: NonNegative = 0.0
    base_lr: NonNegative = 3e-5
    max_epoch: Epochs = 30
    iter_step: bool = field(default=True, kw_only=True)
    warmup_steps: Count = field(default=0, init=False)
    warmup_factor: Share = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_warm_up("warmup_iters")
        if not self.iter_step:
            warn_once(get_logger(), f"{_KEY}.iter_step has no effect: the warm-up follows each step")

    def _value(self, epoch: float) -> float:
        return self._curve(epoch)

    def _curve(self, epoch: float) -> float:
        whole = min(math.floor(epoch), self.max_epoch)
        rate = cosine(whole, self.base_lr, self.max_epoch, self.min_lr)
        if epoch < self.warmup_iters:
            return rate * linear_warmup(epoch, self.warmup_ratio, 1.0, self.warmup_iters)
        return rate


@LEARNING_RATES.register()
@dataclass(eq=False)
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
        SettingError: steps and factors do not fit.
    """

    end_argument = "max_epoch"

    warmup_start_lr: NonNegative = field()
    warmup_epochs: EpochCount = field()
    step_base_lr: NonNegative
    lrs: Sequence[NonNegative]
    gamma: float
    steps: Sequence[Epochs]
    max_epoch: Epochs
    iter_step: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_rising("steps", self.steps)
        if not self.steps or self.steps[0] != 0 or len(self.lrs) < len(self.steps):
            text = f"steps={list(self.steps)} must start with 0 and have a factor each in lrs"
            raise SettingError(_KEY, text)
        self._check_warm_up()

    def along(self, rate_steps: Sequence[RateStep], max_epoch: float) -> "CustomWarmupPiecewiseDecay":
        """The same rates and warm-up, with the steps of a multigrid schedule that runs to `max_epoch`.

        Raises:
            SettingError: the warm-up is longer than the schedule.
        """
        return replace(
            self,
            lrs=[self.lrs[step.stage] * step.multiplier for step in rate_steps],
            steps=[step.epoch for step in rate_steps],
            max_epoch=max_epoch,
        )

    def _curve(self, epoch: float) -> float:
        return self.step_base_lr * piecewise(epoch, self.steps[1:], self.lrs)


def _stretched_steps(steps: Sequence[float], share: float) -> list[int]:
    """Whole epochs, which rise; a step at epoch 0 stays, and no other moves there."""
    rising: list[int] = []
    for step in steps:
        least = rising[-1] + 1 if rising else 0 if step == 0 else 1
        rising.append(max(round(step * share), least))
    return rising


def _check_rising(name: str, epochs: Sequence[float]) -> None:
    if any(later <= earlier for earlier, later in zip(epochs, epochs[1:])):
        raise SettingError(f"{_KEY}.{name}={list(epochs)}", "must rise")


def scaled(curve: LearningRate, base: int, wanted: int, batch_size: int, num_samples: int) -> LearningRate:
    """The learning rate for the clips that an update really has, by the linear rule.

    Args:
        curve: for updates of `base` clips.
        base: see above.
        wanted: clips of an update, as configured.
        batch_size: clips of a step, over all processes.
        num_samples: clips of an epoch. No batch is larger, however large `batch_size` is.

    Reference: Goyal et al., "Accurate, Large Minibatch SGD", arXiv 1706.02677.
    """
    batch = min(batch_size, num_samples)
    num_clips = min(wanted, num_samples // batch * batch)
    if num_clips < wanted:
        text = "an epoch has %d clips, so updates are of %d in place of %d, and so is the learning rate"
        get_logger().warning(text, num_samples, num_clips, wanted)
    factor = num_clips / base
    if factor == 1:
        return curve
    text = f"learning rate times {factor:g}: updates are of {num_clips} clips, and the recipe is for {base}"
    if factor < 0.5 or (factor > 2 and not (curve.warmup_epochs or curve.warmup_steps)):
        more = f"; GRADIENT_ACCUMULATION.global_batch_size={base} trains with the recipe's updates"
        get_logger().warning(text + (more if factor < 1 else "; a warm-up helps with large updates"))
    else:
        get_logger().info(text)
    return curve.times(factor)
