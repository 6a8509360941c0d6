"""Where a run stands: everything that is needed to go on, besides the tensors."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np
import paddle

from paddlevideo_fast.engine.distribution import Distribution
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
        num_skipped: optimizer steps of the epoch under way that were left out: their gradients overflowed.
        last_validation: the newest validation's metrics.
    """

    epoch: int = 0
    step_in_epoch: int = 0
    step: int = 0
    best: Dict[str, float] = field(default_factory=dict)
    epoch_averages: Dict[str, Average] = field(default_factory=dict)
    num_replaced: int = 0
    num_skipped: int = 0
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


@dataclass
class StepNews:
    """What a rank tells the others before a step.

    Attributes:
        sizes: clips of each of its batches.
        failures, replaced: of its batches; see `loader.Batch`.
        num_replaced: frames of its batches that did not decode and were replaced by others.
        signal_number: that asks it to stop.
    """

    sizes: List[int]
    failures: List[Any]
    replaced: List[Any]
    num_replaced: int
    signal_number: Optional[int]

    @classmethod
    def of(cls, batches: Sequence[Any], signal_number: Optional[int]) -> StepNews:
        """The news of the batches of a step."""
        return cls(
            sizes=[len(batch.labels) for batch in batches],
            failures=[failure for batch in batches for failure in batch.failures],
            replaced=[clip for batch in batches for clip in batch.replaced],
            num_replaced=sum(batch.num_replaced for batch in batches),
            signal_number=signal_number,
        )

    @property
    def is_news(self) -> bool:
        """Whether there is anything that the others do not expect."""
        return bool(self.failures or self.replaced or not all(self.sizes) or self.signal_number is not None)


class StepWindow:
    """Losses and logits of the steps since the last look, left on the device until someone needs them.

    Reading a value makes the host wait for the device, so it happens once a window and not once a step. The
    check for a loss that is not finite happens then, too: before anything is logged, evaluated or saved.

    Args:
        distribution: all ranks look at the same steps, and see the values of all.
    """

    def __init__(self, distribution: Distribution) -> None:
        self._distribution = distribution
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
        records, self._records = self._records, []
        if not records:
            return {}
        ranks = self._distribution.gather_from(lambda: [_read(record, last_good) for record in records])
        latest: Dict[str, float] = {}
        for shares in zip(*ranks):
            num_clips = sum(share.num_clips for share in shares)
            latest = {
                "loss": sum(share.loss for share in shares) / len(shares),
                "top1": sum(share.num_top1 for share in shares) / num_clips,
                "top5": sum(share.num_top5 for share in shares) / num_clips,
            }
            for name, value in latest.items():
                averages.setdefault(name, Average()).add(value, num_clips)
        return latest


class _Share(NamedTuple):
    """What a step came to on one rank; the mean of the ranks' losses is that of all clips."""

    loss: float
    num_top1: int
    num_top5: int
    num_clips: int


def _read(record: StepRecord, last_good: Optional[str]) -> _Share:
    """A step's values, by the rule of the evaluation.

    Raises:
        NonFiniteLossError: see `StepWindow.drain`.
    """
    loss = float(record.loss)
    if not math.isfinite(loss):
        raise NonFiniteLossError(
            f"the loss is {loss} at step {record.step} (clips {record.ids}); "
            f"last good checkpoint: {last_good or 'none yet'}. Lower the learning rate, add "
            "OPTIMIZER.grad_clip, or look at these clips, then go on with -o resume=auto"
        )
    ranks = np.concatenate(
        [
            rank_of_label(logits, paddle.to_tensor(labels)).numpy()
            for logits, labels in zip(record.logits, record.labels)
        ]
    )
    return _Share(loss, int((ranks < 1).sum()), int((ranks < 5).sum()), len(ranks))
