"""Where a run stands: everything that is needed to go on, besides the tensors."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import paddle

from paddlevideo_fast.device import upload
from paddlevideo_fast.engine.distribution import Distribution
from paddlevideo_fast.errors import NonFiniteLossError, shown
from paddlevideo_fast.metrics.accuracy import count_hits

CountHits = Callable[[paddle.Tensor, paddle.Tensor], dict[str, tuple[int, int]]]


@dataclass
class Average:
    """A running mean over samples, in Python floats: a resumed run adds the same numbers in one order."""

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
        epoch: the epoch under way, from 0; between two epochs the number of finished ones.
        step_in_epoch: optimizer steps done in that epoch.
        step: optimizer steps done in all.
        best: value of the best validation so far, and its epoch (from 1).
        choice: how it was chosen: "validations" compared, "mean_of" so many in a row, and its "mean".
        epoch_averages: means of the epoch under way, by name ("loss", "top1", "top5"; "hit1" in place
            of these where a video has any number of classes).
        num_replaced: frames of the epoch under way that did not decode and were replaced by others.
        num_skipped: optimizer steps of the epoch under way that were left out as their gradients overflowed.
        last_validation: the newest validation's metrics.
    """

    epoch: int = 0
    step_in_epoch: int = 0
    step: int = 0
    best: dict[str, float] = field(default_factory=dict)
    choice: dict[str, float] = field(default_factory=dict)
    epoch_averages: dict[str, Average] = field(default_factory=dict)
    num_replaced: int = 0
    num_skipped: int = 0
    last_validation: dict[str, float] = field(default_factory=dict)

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def set_state_dict(self, state: dict[str, Any]) -> None:
        values = dict(state)
        averages = values.pop("epoch_averages", {})
        for name, value in values.items():
            if type(value) is not type(getattr(self, name)):
                raise TypeError(f"{name} is {shown(value)}")
            setattr(self, name, value)
        self.epoch_averages = {name: Average(**value) for name, value in averages.items()}


@dataclass
class StepRecord:
    """One optimizer step whose values are still on the device.

    Without logits: this rank had no clips. Without a gradient norm: nobody asked for it. Where the
    step was not taken, its loss may be infinite or NaN on a rank, and is left out of the averages.
    """

    step: int
    loss: paddle.Tensor
    logits: list[paddle.Tensor]
    labels: list[np.ndarray]
    ids: list[int]
    gradient_norm: paddle.Tensor | None = None
    is_taken: bool = True


class StepWindow:
    """Keeps losses and logits of the newest steps on the device until someone needs their values.

    Reading a value makes the host wait for the device, so it happens once a window and not once a step. A
    loss that is not finite is found then: before anything is logged, evaluated or saved.

    Args:
        distribution: all ranks look at the same steps, and see the values of all.
        count: as `metrics.count_hits`.
    """

    def __init__(self, distribution: Distribution, count: CountHits = count_hits) -> None:
        self._distribution = distribution
        self._count = count
        self._records: list[StepRecord] = []

    def add(self, record: StepRecord) -> None:
        self._records.append(record)

    def drain(self, averages: dict[str, Average], last_good: str | None) -> dict[str, float]:
        """Adds the steps of the window to the running averages, and empties the window.

        Args:
            averages: of the epoch; updated in place.
            last_good: the newest checkpoint, for the error's message.

        Returns:
            The newest step's loss, shares of right clips, and gradient norm if it was asked for; nothing
            where the window is empty.

        Raises:
            NonFiniteLossError: a loss is NaN or infinite; names the step, the clips and the last checkpoint.
        """
        records, self._records = self._records, []
        if not records:
            return {}
        ranks = self._distribution.gather_from(
            lambda: [_read(record, last_good, self._count) for record in records]
        )
        latest: dict[str, float] = {}
        for shares in zip(*ranks):
            if not all(math.isfinite(share.loss) for share in shares):
                continue
            num_clips = sum(share.num_clips for share in shares)
            latest = {"loss": sum(share.loss for share in shares) / len(shares)}
            counts = {"loss": num_clips}
            for name in dict.fromkeys(name for share in shares for name in share.hits):
                counted = [share.hits[name] for share in shares if name in share.hits]
                counts[name] = sum(count for _, count in counted)
                latest[name] = sum(hits for hits, _ in counted) / max(counts[name], 1)
            for name, value in latest.items():
                averages.setdefault(name, Average()).add(value, counts[name])
        if (norm := records[-1].gradient_norm) is not None:
            latest["grad_norm"] = norm.item()
        return latest


class _Share(NamedTuple):
    """The values of a step on one rank; the mean of the ranks' losses is the mean over all clips.

    `hits` has for each name how many clips are right, and of how many; see `count_hits`.
    """

    loss: float
    hits: dict[str, tuple[int, int]]
    num_clips: int


def _read(record: StepRecord, last_good: str | None, count_hits: CountHits) -> _Share:
    """The values of a step on this rank.

    Raises:
        NonFiniteLossError: see `StepWindow.drain`.
    """
    loss = float(record.loss)
    if not math.isfinite(loss) and record.is_taken:
        raise NonFiniteLossError(
            f"the loss is {loss} at step {record.step} (clips {record.ids}); "
            f"last good checkpoint: {last_good or 'none yet'}. Lower the learning rate, add "
            "OPTIMIZER.grad_clip, or look at these clips, then go on with -o resume=auto"
        )
    hits: dict[str, tuple[int, int]] = {}
    for logits, labels in zip(record.logits, record.labels):
        for name, (right, count) in count_hits(logits, upload(labels)).items():
            before = hits.get(name, (0, 0))
            hits[name] = before[0] + right, before[1] + count
    return _Share(loss, hits, sum(map(len, record.labels)))
