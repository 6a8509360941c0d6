"""Ctrl-C and SIGTERM: finish the step, save, leave. A second signal leaves at once."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any, Dict, Optional

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class TrainingInterrupted(Exception):
    """A signal ended the run after it had saved.

    Attributes:
        signal_number: which one; the exit code is 128 plus it.
    """

    def __init__(self, signal_number: int) -> None:
        self.signal_number = signal_number
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")

    def __reduce__(self):  # made from a number, so that it crosses a process boundary
        return type(self), (self.signal_number,)


class InterruptGuard:
    """Context manager that turns the first signal into a request the loop sees between two steps.

    The handlers are in place only inside the `with` block and only in the process that entered it: a forked
    worker that inherits them dies of a second signal like any other process.
    """

    def __init__(self) -> None:
        self.requested: Optional[int] = None
        self._previous: Dict[int, Any] = {}
        self._pid = os.getpid()

    def __enter__(self) -> InterruptGuard:
        for number in _SIGNALS:
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: Optional[FrameType]) -> None:
        if self.requested is not None or os.getpid() != self._pid:
            os._exit(128 + number)
        self.requested = number
        os.write(2, b"\nstopping after this step and saving; once more leaves at once\n")

    def raise_if_requested(self) -> None:
        """Raises `TrainingInterrupted` if a signal came."""
        if self.requested is not None:
            raise TrainingInterrupted(self.requested)
