"""The model of a training step that predicts what a change would gain.

    no workers:   step = train + read
    W workers:    step = max(train, read / W, (train_cpu + read) / cores)

`train` is a step on made-up batches; `read` what one process needs to make the step's batch, with its way
out of a worker where there are workers; `train_cpu` the CPU time of `train`, over all its threads. The last
term is the machine, whose cores training and reading share.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class StepCost:
    """What a step costs, in seconds.

    Attributes:
        train_sec: normalise, forward, backward, optimizer.
        train_cpu_sec: CPU time of that.
        read_sec: to make a batch in one process.
        transport_sec: more for it where a worker makes it.
        num_workers: processes that read; 0: the training process itself.
        num_cores: CPU cores that the run may use.
    """

    train_sec: float
    train_cpu_sec: float
    read_sec: float
    transport_sec: float
    num_workers: int
    num_cores: int

    @property
    def step_sec(self) -> float:
        """The predicted step."""
        if self.num_workers == 0:
            return self.train_sec + self.read_sec
        read_sec = self.read_sec + self.transport_sec
        return max(
            self.train_sec,
            read_sec / self.num_workers,
            (self.train_cpu_sec + read_sec) / self.num_cores,
        )

    def gain(self, **changes: Any) -> float:
        """How many times faster a step is with other values of some fields."""
        return self.step_sec / max(replace(self, **changes).step_sec, 1e-9)

    def best_num_workers(self) -> int:
        """The fewest workers, up to the number of cores, within 3 % of the fastest step."""
        steps = {number: replace(self, num_workers=number).step_sec for number in range(self.num_cores + 1)}
        fastest = min(steps.values())
        return next(number for number, step_sec in steps.items() if step_sec <= 1.03 * fastest)
