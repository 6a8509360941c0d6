"""Counts how often the host reads the value of a tensor, for which it waits on a GPU."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paddle

from paddlevideo_fast.device import LAG, HostCopy
from paddlevideo_fast.engine import Trainer

READS = ("numpy", "item", "tolist", "__bool__", "__float__", "__int__", "__index__", "__array__")
# What computes in NumPy on a CPU: the temporal shift, and the rounding to 16 bits.
_NUMPY = ("operators.py:_copied", "precision.py:forward", "precision.py:backward")


class ReadBacks:
    """The values that were read while steps were taken.

    `Trainer.drain` waits on purpose, at a log line or a save, and does not count. Neither does a copy that
    was started at least LAG steps before, nor what the ranks tell each other once, before their first step.

    Attributes:
        steps: for each step, where values were read.
        num_late: copies that were read LAG steps after they were started, or later.
    """

    def __init__(self) -> None:
        self.steps: list[list[str]] = []
        self.num_late = 0
        self.counts = False

    @contextlib.contextmanager
    def counting(self, on: bool) -> Iterator[None]:
        """Context in which reads count, or do not."""
        before, self.counts = self.counts, on
        try:
            yield
        finally:
            self.counts = before

    def note(self, name: str) -> None:
        """Called at each read of a tensor."""
        if self.counts:
            stack = [line for line in traceback.extract_stack() if "/paddlevideo_fast/" in line.filename]
            if f"{Path(stack[-1].filename).name}:{stack[-1].name}" not in _NUMPY:
                self.steps[-1].append(f"{name} in {stack[-1].filename}:{stack[-1].lineno}")


@contextlib.contextmanager
def read_backs() -> Iterator[ReadBacks]:
    """Context that counts what trainers read back."""
    found = ReadBacks()

    def reading(name: str) -> Callable[..., Any]:
        original = getattr(paddle.Tensor, name)

        def read(tensor: paddle.Tensor, *args: Any, **options: Any) -> Any:
            found.note(name)
            return original(tensor, *args, **options)

        return read

    train_epoch, train_step, drain = Trainer._train_epoch, Trainer.train_step, Trainer.drain
    share_stand_in = Trainer._share_stand_in
    start, arrive = HostCopy.__init__, HostCopy.read

    def training(self: Trainer, loader: Any) -> None:
        found.steps.append([])  # what comes before the first step
        with found.counting(True):
            train_epoch(self, loader)

    def stepping(self: Trainer, batches: Any) -> None:
        found.steps.append([])
        train_step(self, batches)

    def draining(self: Trainer) -> Any:
        with found.counting(False):
            return drain(self)

    def sharing(self: Trainer, batches: Any) -> None:
        with found.counting(len(found.steps) > 2):
            share_stand_in(self, batches)

    def starting(self: HostCopy, tensors: Any) -> None:
        self.started = len(found.steps)
        start(self, tensors)

    def arriving(self: HostCopy) -> Any:
        is_late = len(found.steps) - self.started >= LAG - 1
        found.num_late += is_late
        with found.counting(found.counts and not is_late):
            return arrive(self)

    patches = {(paddle.Tensor, name): reading(name) for name in READS if hasattr(paddle.Tensor, name)}
    patches[Trainer, "_train_epoch"], patches[Trainer, "train_step"] = training, stepping
    patches[Trainer, "drain"], patches[HostCopy, "__init__"] = draining, starting
    patches[HostCopy, "read"] = arriving
    patches[Trainer, "_share_stand_in"] = sharing
    originals = {(owner, name): getattr(owner, name) for owner, name in patches}
    try:
        for (owner, name), patch in patches.items():
            setattr(owner, name, patch)
        yield found
    finally:
        for (owner, name), original in originals.items():
            setattr(owner, name, original)
