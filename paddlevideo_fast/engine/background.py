"""Checkpoints that are written while training goes on."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from paddlevideo_fast.engine.checkpoint import Buffers, CheckpointStore, Snapshot
from paddlevideo_fast.errors import PaddleVideoFastError, UnsavedError
from paddlevideo_fast.log import get_logger

logger = get_logger(__name__)


class BackgroundStore(CheckpointStore):
    """Writes checkpoints in a thread, from copies in host memory; training stops for the copy only.

    A save waits for the last save of its kind, as both use the same memory: beside the network it takes as
    much as weights, optimizer and moving average together, and the weights once more for the best. What the
    thread meets is raised by the next call of `check`, `wait`, or a save of the same kind; of several errors
    one is raised and the others are logged. Files are as whole as those of `CheckpointStore`, at any moment.

    Args:
        folder: the run's output folder.
        name: the model's name, with which the names of the files start.
    """

    def __init__(self, folder: Any, name: str) -> None:
        super().__init__(folder, name)
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._coming: list[Future] = []
        self._last: dict[str, Future] = {}  # of each kind
        self._buffers: dict[str, Buffers] = {}

    def _put(self, kind: str, snapshot: Snapshot, write: Callable[[Snapshot], None]) -> None:
        self._wait_for(kind)
        copied = snapshot.on_host(self._buffers.setdefault(kind, {}))
        self._last[kind] = self._thread.submit(write, copied)
        self._coming.append(self._last[kind])

    def remove_all_but(self, num_kept: int) -> None:
        self._coming.append(self._thread.submit(super().remove_all_but, num_kept))  # behind what is written

    def check(self) -> None:
        self._collect([each for each in self._coming if each.done()])

    def wait(self) -> None:
        self._collect(list(self._coming))

    def close(self) -> None:
        while self._coming:
            try:
                self.wait()
            except PaddleVideoFastError as error:
                logger.error("%s", error)
        self._thread.shutdown()  # neither thread nor memory outlives the run
        self._thread = ThreadPoolExecutor(1, "checkpoints")  # starts with the next save
        self._last.clear()
        self._buffers.clear()

    def _wait_for(self, kind: str) -> None:
        if kind in self._last:
            last = self._last.pop(kind)
            last.exception()
            self._collect([last] if last in self._coming else [])

    def _collect(self, ended: list[Future]) -> None:
        """Waits for these saves; raises one error, an `UnsavedError` if there is one, and logs the others."""
        errors = [error for error in (each.exception() for each in ended) if error is not None]
        self._coming = [each for each in self._coming if each not in ended]
        errors.sort(key=lambda error: not isinstance(error, UnsavedError))
        for error in errors[1:]:
            logger.error("%s", error, exc_info=None if isinstance(error, PaddleVideoFastError) else error)
        if errors:
            raise errors[0]
