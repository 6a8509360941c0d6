"""Exponential moving average of the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict

import paddle

from paddlevideo_fast.engine.callbacks.base import Callback

if TYPE_CHECKING:
    from paddlevideo_fast.engine.trainer import Trainer


class ExponentialMovingAverage(Callback):
    """Keeps an average of the trained parameters and evaluates with it.

    After step t the average is decay_t · average + (1 − decay_t) · parameter with
    decay_t = min(decay, (1 + t) / (10 + t)), so that the first steps do not weigh for ever. Batch-norm
    statistics are averages already and stay as they are.

    Args:
        model: whose parameters are averaged.
        decay: between 0 and 1, such as 0.9998.

    Reference:
        Polyak and Juditsky, Acceleration of stochastic approximation by averaging, 1992.
    """

    def __init__(self, model: Any, decay: float) -> None:
        self.decay = decay
        self._parameters = {
            name: parameter for name, parameter in model.named_parameters() if not parameter.stop_gradient
        }
        self._average = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        self._trained: Dict[str, Any] = {}
        self._restored = False

    @paddle.no_grad()
    def fit_begin(self, trainer: Trainer) -> None:
        if not self._restored:  # weights may have been loaded since
            for name, parameter in self._parameters.items():
                paddle.assign(parameter, self._average[name])

    @paddle.no_grad()
    def step_end(self, trainer: Trainer) -> None:
        step = trainer.state.step
        decay = min(self.decay, (1 + step) / (10 + step))
        for name, parameter in self._parameters.items():
            average = self._average[name]
            paddle.assign(average * decay + parameter * (1 - decay), average)

    @paddle.no_grad()
    def before_evaluation(self, trainer: Trainer) -> None:
        self._trained = {name: parameter.clone() for name, parameter in self._parameters.items()}
        for name, parameter in self._parameters.items():
            paddle.assign(self._average[name], parameter)

    @paddle.no_grad()
    def after_evaluation(self, trainer: Trainer) -> None:
        for name, value in self._trained.items():
            paddle.assign(value, self._parameters[name])
        self._trained = {}

    def tensors(self) -> Dict[str, Any]:
        return self._average

    def set_tensors(self, tensors: Dict[str, Any]) -> None:
        for name, average in self._average.items():
            average.set_value(tensors[name])
        self._restored = True
