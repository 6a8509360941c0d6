"""The section EMA: a moving average of the weights."""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import paddle

from paddlevideo_fast.config.types import Range
from paddlevideo_fast.engine.extension import Extension
from paddlevideo_fast.engine.protocols import VideoModel
from paddlevideo_fast.engine.trainer import Callback, Slot, Trainer
from paddlevideo_fast.registry import EXTENSIONS

if TYPE_CHECKING:
    from paddlevideo_fast.assembly.build import TrainingSetup


@EXTENSIONS.register("EMA")
@dataclass(frozen=True)
class Ema(Extension):
    """A moving average of the weights, which is evaluated and saved.

    Args:
        decay: share of the average that is kept at a step.
    """

    decay: Annotated[float, Range(0.0, 1.0)] = 0.9999

    def callbacks(self, setup: "TrainingSetup") -> Iterable[Callback]:
        yield ExponentialMovingAverage(setup.model, self.decay, setup.trains_later)


class ExponentialMovingAverage(Callback):
    """Keeps a moving average of the trained parameters, which is evaluated in their place.

    After step t the average is decay_t · average + (1 − decay_t) · parameter with
    decay_t = min(decay, (1 + t) / (10 + t)), so that the first steps soon lose their weight. Batch-norm
    statistics are averages already and stay as they are.

    Args:
        model: whose parameters are averaged.
        decay: between 0 and 1, such as 0.9998.
        later: names of parameters that are frozen and will train later. A frozen parameter is its average.

    Reference:
        Polyak and Juditsky, Acceleration of stochastic approximation by averaging, 1992.
    """

    slot = Slot.STEP

    def __init__(self, model: VideoModel, decay: float, later: Collection[str] = ()) -> None:
        self.decay = decay
        self._parameters = {
            name: parameter
            for name, parameter in model.named_parameters()
            if not parameter.stop_gradient or name in later
        }
        self._average = self._flat()
        self._trained: list[paddle.Tensor] = []
        self._restored = False

    @paddle.no_grad()
    def _flat(self) -> paddle.Tensor:
        """All parameters in one tensor [M], so that a step costs a few calls and not a few for each."""
        return paddle.concat([parameter.flatten() for parameter in self._parameters.values()])

    def _cut(self, flat: paddle.Tensor) -> list[paddle.Tensor]:
        """What `_flat` put together."""
        shapes = [parameter.shape for parameter in self._parameters.values()]
        parts = paddle.split(flat, [math.prod(shape) for shape in shapes])
        return [part.reshape(shape) for part, shape in zip(parts, shapes)]

    def fit_begin(self, trainer: Trainer) -> None:
        if not self._restored:  # weights may have been loaded since
            self._average = self._flat()

    @paddle.no_grad()
    def step_end(self, trainer: Trainer) -> None:
        step = trainer.state.step
        decay = min(self.decay, (1 + step) / (10 + step))
        parameters = self._parameters.values()
        before = self._average.clone() if any(each.stop_gradient for each in parameters) else None
        self._average.scale_(decay).add_(self._flat().scale_(1 - decay))
        if before is not None:
            masks = [paddle.full([each.size], each.stop_gradient, "bool") for each in parameters]
            self._average = paddle.where(paddle.concat(masks), before, self._average)

    @paddle.no_grad()
    def before_evaluation(self, trainer: Trainer) -> None:
        self._trained = self._cut(self._flat())
        for parameter, average in zip(self._parameters.values(), self._cut(self._average)):
            paddle.assign(average, parameter)

    @paddle.no_grad()
    def after_evaluation(self, trainer: Trainer) -> None:
        for parameter, value in zip(self._parameters.values(), self._trained):
            paddle.assign(value, parameter)
        self._trained = []

    @paddle.no_grad()
    def tensors(self) -> dict[str, Any]:
        return dict(zip(self._parameters, self._cut(self._average)))

    @paddle.no_grad()
    def set_tensors(self, tensors: dict[str, Any]) -> None:
        parts = [paddle.to_tensor(tensors[name]).flatten() for name in self._parameters]
        self._average = paddle.concat(parts)
        self._restored = True
