"""Ctrl-C and SIGTERM: finish the step, save and leave. A second Ctrl-C leaves at once.

A second SIGTERM is ignored: Paddle's launcher sends SIGTERM three times within half a second, and kills the
processes that are left after 30 s.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

from paddlevideo_fast.log import get_logger

logger = get_logger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class TrainingInterrupted(Exception):
    """A signal ended the run after it had saved.

    Attributes:
        signal_number: the exit code is 128 plus this number.
        folder: where the run has saved.
    """

    folder: str | None = None

    def __init__(self, signal_number: int) -> None:
        self.signal_number = signal_number
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")

    def __reduce__(self):  # pickles as its number, not as its message
        return type(self), (self.signal_number,)


class InterruptGuard:
    """Context manager that turns the first signal into a request, which the loop sees between two steps.

    The handlers work only inside the `with` block and only in the process that entered it. A forked worker,
    which inherits them, dies of a signal like any other process. After a SIGTERM, later ones are ignored for
    good.
    """

    def __init__(self) -> None:
        self.requested: int | None = None
        self._previous: dict[int, Any] = {}
        self._pid = os.getpid()

    def __enter__(self) -> InterruptGuard:
        if threading.current_thread() is not threading.main_thread():  # others may not set handlers
            logger.warning("the run is not in the main thread: Ctrl-C and SIGTERM end it without saving")
            return self
        for number in _SIGNALS:
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._previous.items():
            repeated = number == self.requested == signal.SIGTERM  # and may come again while the process ends
            signal.signal(number, signal.SIG_IGN if repeated else handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            os._exit(128 + number)
        if self.requested is None:
            self.requested = number
            os.write(2, b"\nstopping after this step and saving; Ctrl-C once more leaves at once\n")
        elif not number == self.requested == signal.SIGTERM:
            os._exit(128 + number)

    def raise_if_requested(self) -> None:
        """Raises `TrainingInterrupted` if a signal came."""
        if self.requested is not None:
            raise TrainingInterrupted(self.requested)
