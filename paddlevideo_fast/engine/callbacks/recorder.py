"""Turns a run's numbers into records and hands them to sinks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Dict, Optional, Protocol, Sequence

from paddlevideo_fast.engine.callbacks.base import Callback

if TYPE_CHECKING:
    from paddlevideo_fast.engine.trainer import Trainer

Record = Dict[str, Any]


class Sink(Protocol):
    """A place records go to; see `engine.sinks`."""

    def open(self, step: int, epoch: int) -> None:
        """Prepares to go on after `step` optimizer steps and `epoch` whole epochs."""

    def write(self, record: Record) -> None:
        """Takes one record."""

    def close(self) -> None:
        """Flushes and releases."""


class Recorder(Callback):
    """Writes a "train" record every `interval` steps, "train_epoch" and "valid" ones after epochs.

    Between two records nothing is read back from the device. Costs are means over the steps since the last
    record, in seconds; what the device still has to do at the record is part of them.

    Args:
        sinks: get every record, in order.
        interval: in optimizer steps, counted from the first of each epoch.
        one_process_ips: clips a second of one process alone, for the efficiency; None: it is left out.
    """

    def __init__(
        self, sinks: Sequence[Sink], interval: int = 10, one_process_ips: Optional[float] = None
    ) -> None:
        self.sinks = list(sinks)
        self.interval = interval
        self.one_process_ips = one_process_ips
        self._reset_costs()

    def fit_begin(self, trainer: Trainer) -> None:
        for sink in self.sinks:
            sink.open(trainer.state.step, trainer.state.epoch)

    def epoch_begin(self, trainer: Trainer) -> None:
        self._reset_costs()

    def step_end(self, trainer: Trainer) -> None:
        self._steps += 1
        self._clips += trainer.num_clips
        self._batch_sec += trainer.batch_cost_sec
        self._reader_sec += trainer.reader_cost_sec
        if (trainer.state.step_in_epoch - 1) % self.interval == 0:
            self._write_step(trainer)

    def epoch_end(self, trainer: Trainer) -> None:
        state = trainer.state
        where = {"epoch": state.epoch, "epochs": trainer.num_epochs, "step": state.step}
        means = {name: average.mean for name, average in state.epoch_averages.items()}
        counts = {"num_replaced": state.num_replaced, "num_skipped": state.num_skipped}
        self._write({"kind": "train_epoch", **where, **means, **counts, "sec": trainer.epoch_cost_sec})
        if state.last_validation.get("epoch") == state.epoch:
            best = {f"best_{name}": value for name, value in state.best.items()}
            self._write({"kind": "valid", **where, **state.last_validation, **best})

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()

    def _write_step(self, trainer: Trainer) -> None:
        state = trainer.state
        steps_left = max(trainer.total_steps - state.step, 0)
        began = time.perf_counter()
        latest = trainer.drain()  # the device ends the steps that it has only been told of
        self._batch_sec += time.perf_counter() - began
        if not latest:
            return  # nothing decoded since the last record
        batch_sec, ips = self._batch_sec / self._steps, self._clips / self._batch_sec
        alone = self.one_process_ips and self.one_process_ips * trainer.distribution.world_size
        self._write(
            {
                "kind": "train",
                "epoch": state.epoch + 1,
                "epochs": trainer.num_epochs,
                "step": state.step,
                "step_in_epoch": state.step_in_epoch - 1,
                **latest,
                "lr": float(trainer.optimizer.get_lr()),
                "num_skipped": state.num_skipped,
                "batch_cost": batch_sec,
                "reader_cost": self._reader_sec / self._steps,
                "ips": ips,
                **({"efficiency": ips / alone} if alone else {}),
                "eta_sec": steps_left * batch_sec,
            }
        )
        self._reset_costs()

    def _write(self, record: Record) -> None:
        for sink in self.sinks:
            sink.write(record)

    def _reset_costs(self) -> None:
        self._steps = self._clips = 0
        self._batch_sec = self._reader_sec = 0.0
