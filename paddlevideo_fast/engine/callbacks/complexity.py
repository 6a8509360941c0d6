"""What one clip costs the network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paddlevideo_fast.engine.callbacks.base import Callback
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.modeling.complexity import MacCounter

if TYPE_CHECKING:
    from paddlevideo_fast.engine.trainer import Trainer

logger = get_logger(__name__)


class Complexity(Callback):
    """Logs the multiply-adds of a clip, counted in the first step.

    Args:
        counter: of the model that is trained.
    """

    def __init__(self, counter: MacCounter) -> None:
        self._counter = counter
        self._done = False

    def fit_begin(self, trainer: Trainer) -> None:
        self._counter.start()

    def step_end(self, trainer: Trainer) -> None:
        if self._done or not trainer.num_own_clips:
            return
        self._done = True
        self._counter.stop()
        logger.info(
            "%.2f GFLOPs (multiply-adds) a clip of the first step",
            self._counter.macs / trainer.num_own_clips / 1e9,
        )

    def close(self) -> None:
        self._counter.stop()
