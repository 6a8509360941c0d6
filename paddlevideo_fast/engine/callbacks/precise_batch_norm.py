"""Batch-norm statistics of the data as a whole, every few epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

from paddlevideo_fast.engine.callbacks.base import Callback
from paddlevideo_fast.engine.precise_bn import Statistics, put_statistics
from paddlevideo_fast.modeling.layers import restart_splits

if TYPE_CHECKING:
    from paddlevideo_fast.engine.trainer import Trainer


class PreciseBatchNorm(Callback):
    """Puts population statistics in the place of the running ones, before evaluation and checkpoint.

    Args:
        measure: gives the statistics of the trainer's model as it stands; see `engine.precise_bn`.
        interval: in epochs; the last one always counts.
        averaged: evaluation uses other weights than training, which get statistics of their own for it.
    """

    def __init__(
        self, measure: Callable[[Trainer], Statistics], interval: int, averaged: bool = False
    ) -> None:
        self.measure = measure
        self.interval = interval
        self.averaged = averaged
        self._trained: Statistics = {}

    def epoch_end(self, trainer: Trainer) -> None:
        if self._is_due(trainer):
            put_statistics(trainer.model, self.measure(trainer))
            restart_splits(trainer.model)

    def before_evaluation(self, trainer: Trainer) -> None:
        if self.averaged and self._is_due(trainer):
            self._trained = put_statistics(trainer.model, self.measure(trainer))

    def after_evaluation(self, trainer: Trainer) -> None:
        put_statistics(trainer.model, self._trained)
        self._trained = {}

    def _is_due(self, trainer: Trainer) -> bool:
        return trainer.state.epoch % self.interval == 0 or trainer.state.epoch == trainer.num_epochs
