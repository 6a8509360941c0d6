"""One program for many threads: clips that come at the same time are computed together."""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np

from paddlevideo_fast.apps.predict.program import Program


class _Call(NamedTuple):
    clips: np.ndarray
    logits: "Future[np.ndarray]"


class BatchedProgram(Program):
    """Runs a program in a thread of its own, on the clips of all threads that wait for it.

    While a batch is computed, the clips of the next one gather. Clips of one call stay together, and only
    clips of the same shape share a batch.

    Args:
        program: computes.
        max_clips: of a batch; a call with more is a batch of its own.
        max_wait_sec: how long a batch that is not full waits for more.
        on_batch: gets the number of clips of each batch and the seconds that it took.
    """

    def __init__(
        self, program: Program, max_clips: int, max_wait_sec: float, on_batch: Callable[[int, float], None]
    ) -> None:
        super().__init__(program.model_file, program.provider)
        self._program = program
        self._max_clips, self._max_wait_sec, self._on_batch = max_clips, max_wait_sec, on_batch
        self._waiting: deque[_Call] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._loop, name="network", daemon=True)
        self._thread.start()

    def run(self, clips: np.ndarray) -> np.ndarray:
        """See `Program`; waits for the batch."""
        call = _Call(clips, Future())
        with self._changed:
            self._waiting.append(call)
            self._changed.notify()
        return call.logits.result()

    def _run(self, clips: np.ndarray) -> np.ndarray:
        return self.run(clips)

    def _cause(self, error: Exception) -> str:
        return str(error)

    def close(self) -> None:
        """Computes what waits and ends the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _loop(self) -> None:
        while batch := self._next_batch():
            began = time.perf_counter()
            try:
                logits = self._program.run(np.concatenate([call.clips for call in batch]))
            except Exception as error:  # each caller raises it
                for call in batch:
                    call.logits.set_exception(error)
                continue
            self._on_batch(len(logits), time.perf_counter() - began)
            ends = np.cumsum([len(call.clips) for call in batch])[:-1]
            for call, own in zip(batch, np.split(logits, ends)):
                call.logits.set_result(own)

    def _next_batch(self) -> list[_Call]:
        """The calls of a batch; none where the program was closed and nothing waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            self._changed.wait_for(lambda: self._is_closed or self._is_full(), self._max_wait_sec)
            batch: list[_Call] = []
            others: deque[_Call] = deque()
            num_clips = 0
            for call in self._waiting:
                fits = not batch or (
                    num_clips + len(call.clips) <= self._max_clips
                    and call.clips.shape[1:] == batch[0].clips.shape[1:]
                )
                (batch if fits else others).append(call)
                num_clips += len(call.clips) if fits else 0
            self._waiting = others
            return batch

    def _is_full(self) -> bool:
        return sum(len(call.clips) for call in self._waiting) >= self._max_clips
