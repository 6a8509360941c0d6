"""Validation between epochs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Callable, Dict, Optional

from paddlevideo_fast.engine.callbacks.base import Callback
from paddlevideo_fast.log import get_logger

if TYPE_CHECKING:
    from paddlevideo_fast.engine.trainer import Trainer

logger = get_logger(__name__)


class Evaluation(Callback):
    """Validates after every `interval`-th epoch and after the last, and remembers the best.

    Args:
        run: gives the metrics of the trainer's model as it stands; the first that begins with "top" decides
            which is best.
        interval: in epochs.
        save_best: called with the trainer while the evaluated weights are in place.
    """

    def __init__(
        self,
        run: Callable[[Trainer], Dict[str, float]],
        interval: int = 1,
        save_best: Optional[Callable[[Trainer], None]] = None,
    ) -> None:
        self.run = run
        self.interval = interval
        self.save_best = save_best

    def epoch_end(self, trainer: Trainer) -> None:
        epoch = trainer.state.epoch
        if epoch % self.interval != 0 and epoch != trainer.num_epochs:
            return
        try:
            for callback in trainer.callbacks:
                callback.before_evaluation(trainer)
            metrics = self.run(trainer)
            trainer.state.last_validation = {**metrics, "epoch": epoch}
            name = next((name for name in metrics if name.startswith("top")), None)
            if not math.isfinite(metrics.get("loss", 0.0)):
                logger.warning(
                    "the validation loss is %s: these weights are no candidate for the best", metrics["loss"]
                )
            elif name is not None and metrics[name] > trainer.state.best.get(name, -1.0):
                trainer.state.best = {name: metrics[name], "epoch": epoch}
                self._save_best(trainer)
        finally:
            for callback in trainer.callbacks:
                callback.after_evaluation(trainer)

    def _save_best(self, trainer: Trainer) -> None:
        save = self.save_best
        if save is not None:
            trainer.distribution.gather_from(lambda: save(trainer))
