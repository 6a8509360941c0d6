"""The learning rate as a function of progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paddlevideo_fast.engine.callbacks.base import Callback

if TYPE_CHECKING:
    from paddlevideo_fast.engine.trainer import Trainer


class LearningRate(Callback):
    """Sets the optimizer's rate before each step; there is no scheduler state to lose.

    Args:
        curve: `at(epoch)` with a fractional epoch; see `solver.learning_rate`.
    """

    def __init__(self, curve: Any) -> None:
        self.curve = curve

    def step_begin(self, trainer: Trainer) -> None:
        trainer.optimizer.set_lr(self.curve.at(trainer.progress))
