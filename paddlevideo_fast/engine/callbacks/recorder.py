"""What a run shows of itself: records and results, and the cost of a clip."""

import time
from collections.abc import Sequence

from paddlevideo_fast.device import gpu_memory_mb
from paddlevideo_fast.engine.guard import call_hook
from paddlevideo_fast.engine.sinks import Record, Sink
from paddlevideo_fast.engine.trainer import Callback, Slot, Trainer
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.modeling.complexity import MacCounter

logger = get_logger(__name__)


class Recorder(Callback):
    """Writes "train" records every `interval` steps, and "train_epoch" and "valid" records after epochs.

    Nothing is read back from the device between two records. Costs are means over the steps since the last
    record, in seconds. They include the time in which the host waits for the device at the record. The norm
    of the gradients is measured only in the step of the record.

    Args:
        sinks: get every record, in order. A sink that fails is left out, with one warning.
        interval: in optimizer steps, counted from the first step of each epoch.
        one_process_ips: clips a second of one process alone, which efficiency is a share of; None: records
            have no efficiency.
    """

    slot = Slot.RECORD

    def __init__(
        self, sinks: Sequence[Sink], interval: int = 10, one_process_ips: float | None = None
    ) -> None:
        self.sinks = list(sinks)
        self.interval = interval
        self.one_process_ips = one_process_ips
        self._is_first = True
        self._reset_costs()

    def fit_begin(self, trainer: Trainer) -> None:
        call_hook(self.sinks, "open", trainer.state.step, trainer.state.epoch)

    def epoch_begin(self, trainer: Trainer) -> None:
        self._reset_costs()

    def step_begin(self, trainer: Trainer) -> None:
        trainer.wants_gradient_norm = trainer.state.step_in_epoch % self.interval == 0

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
            choice = {name: value for name, value in state.choice.items() if name != "validations"}
            best = {f"best_{name}": value for name, value in {**state.best, **choice}.items()}
            self._write({"kind": "valid", **where, **state.last_validation, **best})

    def close(self) -> None:
        call_hook(self.sinks, "close")

    def _write_step(self, trainer: Trainer) -> None:
        state = trainer.state
        steps_left = max(trainer.total_steps - state.step, 0)
        began = time.perf_counter()
        latest = trainer.drain()  # waits until the device has ended all steps
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
                **gpu_memory_mb(),
                **({"efficiency": ips / alone} if alone else {}),
                # the first step of a start is several times slower than those to come
                **({} if self._is_first else {"eta_sec": steps_left * batch_sec}),
            }
        )
        self._is_first = False
        self._reset_costs()

    def _write(self, record: Record) -> None:
        call_hook(self.sinks, "write", record)

    def _reset_costs(self) -> None:
        self._steps = self._clips = 0
        self._batch_sec = self._reader_sec = 0.0


class Complexity(Callback):
    """Logs the multiply-adds of a clip, counted in the first step; a validation before it does not count.

    Args:
        counter: counts in the model that is trained.
    """

    slot = Slot.STEP
    non_critical = True

    def __init__(self, counter: MacCounter) -> None:
        self._counter = counter
        self._done = False

    def step_begin(self, trainer: Trainer) -> None:
        if not self._done:
            self._counter.start()

    def step_end(self, trainer: Trainer) -> None:
        self._counter.stop()
        if self._done or not trainer.num_own_clips:
            return
        self._done = True
        giga = self._counter.macs / trainer.num_own_clips / 1e9
        number = f"{giga:.2f}" if giga >= 0.1 else f"{giga:.2g}"
        logger.info("%s GFLOPs (multiply-adds) a clip of the first step", number)

    def close(self) -> None:
        self._counter.stop()
