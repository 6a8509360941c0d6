"""A bar on a terminal, below the lines of the log."""

import contextlib
from typing import Any

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from paddlevideo_fast.engine.trainer import Callback, Slot, Trainer
from paddlevideo_fast.log import get_logger


class ProgressBar(Callback):
    """One bar an epoch, below the log lines; for a terminal only."""

    slot = Slot.SHOW
    non_critical = True

    def __init__(self) -> None:
        self._bar: Any = None
        self._stack = contextlib.ExitStack()

    def fit_begin(self, trainer: Trainer) -> None:
        self._stack.enter_context(logging_redirect_tqdm(loggers=[get_logger()]))

    def epoch_begin(self, trainer: Trainer) -> None:
        self._bar = tqdm(
            total=trainer.steps_per_epoch,
            initial=trainer.state.step_in_epoch,
            desc=f"epoch {trainer.state.epoch + 1}/{trainer.num_epochs}",
            unit="step",
            leave=False,
            dynamic_ncols=True,
        )

    def step_end(self, trainer: Trainer) -> None:
        self._bar.update()

    def epoch_end(self, trainer: Trainer) -> None:
        self._bar.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._stack.close()
