"""What the ranks of a run exchange at each step, without waiting for each other's devices.

    step                  s            s+1           s+2 (LAG later)
    on the device   [clips, event] ─┬─ all_reduce ─→ weight of the loss of step s
                                    └─ copy ───────────────────────→ read on the host, by all ranks alike

The loss of a rank is weighted on the device, by clips that only the device knows. The number of ranks with an
event, a file that does not decode or a signal, is read before step s + LAG, on all ranks. Only where there is
one do they gather the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import paddle

from paddlevideo_fast.device import LAG, LateReader
from paddlevideo_fast.engine.distribution import Distribution
from paddlevideo_fast.loader import Batch, DecodeFailure

Weight: TypeAlias = float | paddle.Tensor  # on the device as float64


@dataclass
class StepMessage:
    """What happened to a rank in a step.

    Attributes:
        incidents: of its batches.
        signal_number: a signal that asks it to stop.
    """

    incidents: list[DecodeFailure]
    signal_number: int | None

    @classmethod
    def of(cls, batches: Sequence[Batch], signal_number: int | None) -> StepMessage:
        """The message about the batches of a step."""
        return cls([incident for batch in batches for incident in batch.incidents], signal_number)

    @property
    def is_event(self) -> bool:
        """Whether there is anything that the other ranks do not expect."""
        return bool(self.incidents) or self.signal_number is not None


class StepSync:
    """Gives all ranks the messages of each rank, at the same step, and weights their losses.

    One process has its own message at once. Of several, each gets the messages of a step LAG steps later.

    Args:
        distribution: the ranks.
        on_incidents: called with the incidents of each rank that has any.

    Attributes:
        signal_number: a signal that asks the run to stop; the same on all ranks, at the same step.
    """

    def __init__(
        self, distribution: Distribution, on_incidents: Callable[[list[DecodeFailure]], None]
    ) -> None:
        self._distribution = distribution
        self._on_incidents = on_incidents
        self._late = LateReader(self._read, LAG)
        self.signal_number: int | None = None

    def before_step(self, batches: Sequence[Batch], signal_number: int | None) -> None:
        """Handles the messages that are due before a step over `batches`.

        Args:
            batches: of this rank.
            signal_number: a signal that this rank got.
        """
        if self._distribution.world_size > 1:
            self._late.read_due()
        elif signal_number is not None:
            self.signal_number = signal_number  # the step is not taken, so its files do not count yet
        else:
            self._handle([StepMessage.of(batches, None)])

    def post(self, batches: Sequence[Batch], signal_number: int | None) -> list[tuple[Batch, Weight]]:
        """Sends a message about a step to the other ranks, and returns the batches that it takes.

        All ranks must take the same number of batches, as they exchange gradients after the last. So a rank
        may get an empty batch here, with weight 0. A batch that is empty on all ranks is left out; only to
        know this, a rank with an empty batch waits for the device.

        Args:
            batches: of this rank.
            signal_number: a signal that this rank got.

        Returns:
            Each batch with the weight of its loss: the mean over the ranks of the sums over their batches is
            then the mean over all clips of the step.
        """
        sizes = [len(batch) for batch in batches]
        world_size = self._distribution.world_size
        if world_size == 1:
            return [(batch, size / sum(sizes)) for batch, size in zip(batches, sizes) if size]
        message = StepMessage.of(batches, signal_number)
        own = [paddle.full([1], number, "float64") for number in (*sizes, message.is_event)]
        sums = self._distribution.sum_on_device(paddle.concat(own))
        self._late.add([sums], message)
        taken = [True] * len(batches)
        if not all(sizes):
            taken = [total > 0 for total in sums.numpy()[:-1].tolist()]
        num_clips = sums[:-1].sum()
        return [
            (batch, paddle.full([], size * world_size, "float64") / num_clips)
            for batch, size, is_taken in zip(batches, sizes, taken)
            if is_taken
        ]

    def flush(self) -> None:
        """Handles the messages of all steps so far; waits for the device. All ranks call it at one step."""
        self._late.read_all()

    def _read(self, values: Sequence[np.ndarray], own: StepMessage) -> None:
        if values[0][-1]:
            self._handle(self._distribution.gather(own))

    def _handle(self, messages: Sequence[StepMessage]) -> None:
        for message in messages:
            if self.signal_number is None:
                self.signal_number = message.signal_number
        for message in messages:
            if message.incidents:
                self._on_incidents(message.incidents)
