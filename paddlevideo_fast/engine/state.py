"""Where a run stands: everything that is needed to go on, besides the tensors."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, List, Optional

import numpy as np
import paddle

from paddlevideo_fast.errors import NonFiniteLossError
from paddlevideo_fast.metrics.center_crop import rank_of_label


@dataclass
class Average:
    """A running mean over samples, in plain Python floats so that a resumed run adds in the same order."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float, count: int = 1) -> None:
        self.total += value * count
        self.count += count

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else float("nan")


@dataclass
class TrainerState:
    """Position and history of a run.

    Attributes:
        epoch: the epoch under way, from 0; equal to the number of finished epochs between two of them.
        step_in_epoch: optimizer steps done in that epoch.
        step: optimizer steps done in all.
        best: value of the best validation so far and the epoch (from 1) it came after.
        epoch_averages: means of the epoch under way, by name ("loss", "top1", "top5").
        num_replaced: frames of the epoch under way that did not decode and were replaced by others.
        last_validation: the newest validation's metrics.
    """

    epoch: int = 0
    step_in_epoch: int = 0
    step: int = 0
    best: Dict[str, float] = field(default_factory=dict)
    epoch_averages: Dict[str, Average] = field(default_factory=dict)
    num_replaced: int = 0
    last_validation: Dict[str, float] = field(default_factory=dict)

    def state_dict(self) -> Dict[str, Any]:
        return asdict(self)

    def set_state_dict(self, state: Dict[str, Any]) -> None:
        values = dict(state)
        averages = values.pop("epoch_averages", {})
        for name, value in values.items():
            setattr(self, name, value)
        self.epoch_averages = {name: Average(**value) for name, value in averages.items()}


@dataclass
class StepRecord:
    """One optimizer step whose values are still on the device."""

    step: int
    loss: Any
    logits: List[Any]
    labels: List[Any]
    ids: List[int]


class StepWindow:
    """Losses and logits of the steps since the last look, left on the device until someone needs them.

    Reading a value makes the host wait for the device, so it happens once a window and not once a step. The
    check for a loss that is not finite happens then, too: before anything is logged, evaluated or saved.
    """

    def __init__(self) -> None:
        self._records: List[StepRecord] = []

    def add(self, record: StepRecord) -> None:
        self._records.append(record)

    def drain(self, averages: Dict[str, Average], last_good: Optional[str]) -> Dict[str, float]:
        """Moves the window into the running averages and forgets it.

        Args:
            averages: of the epoch; updated in place.
            last_good: the newest checkpoint, for the error's message.

        Returns:
            The newest step's loss, top1 and top5; empty where the window is.

        Raises:
            NonFiniteLossError: a loss is NaN or infinite; names the step, the clips and the last checkpoint.
        """
        latest: Dict[str, float] = {}
        for record in self._records:
            loss = float(record.loss)
            if not math.isfinite(loss):
                raise NonFiniteLossError(
                    f"the loss is {loss} at step {record.step} (clips {record.ids}); "
                    f"last good checkpoint: {last_good or 'none yet'}. Lower the learning rate, add "
                    "OPTIMIZER.grad_clip, or look at these clips, then go on with -o resume=auto"
                )
            latest = {"loss": loss, **_accuracy(record)}
            for name, value in latest.items():
                averages.setdefault(name, Average()).add(value, len(record.ids))
        self._records.clear()
        return latest


def _accuracy(record: StepRecord) -> Dict[str, float]:
    """Top-1 and top-5 of a step, by the rule of the evaluation."""
    ranks = np.concatenate(
        [
            rank_of_label(logits, paddle.to_tensor(labels)).numpy()
            for logits, labels in zip(record.logits, record.labels)
        ]
    )
    return {"top1": float((ranks < 1).mean()), "top5": float((ranks < 5).mean())}
