"""Fetches what coming batches read from a store, in a process beside the workers."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Iterator, List, Protocol, Sequence, Tuple, runtime_checkable

from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.loader.collate import Batch
from paddlevideo_fast.loader.request import ClipRequest, together
from paddlevideo_fast.loader.worker_process import become_child, end_at_exit
from paddlevideo_fast.log import get_logger, warn_once

Message = Tuple[int, int, int, List[ClipRequest]]  # run, batch that is made now, batch to fetch, its requests


@dataclass(frozen=True)
class PrefetchOptions:
    """How far ahead of the batches their bytes are fetched.

    Args:
        num_batches: fetched before they are made; 0: none.
        max_bytes: of them that may wait in the cache, beside those of the next batch.
        num_at_once: videos of which the next frames are fetched at the same time.
    """

    num_batches: int = 16
    max_bytes: int = 2**30
    num_at_once: int = 16


@runtime_checkable
class RemoteSource(Protocol):
    """A data set whose files may lie in a store."""

    @property
    def is_remote(self) -> bool:
        """Whether there is anything to fetch."""

    def fetch(self, requests: Sequence[ClipRequest]) -> int:
        """Brings what requests for one record read into the cache; the number of bytes that came."""


class Prefetcher:
    """Fetches the files of coming batches into the cache of the machine, in a process of its own.

    Which batches come is known, and which frames a clip has is a function of its request. So the process
    plans the reads of the next batches and makes many requests at a time, whoever makes the batches. What it
    does changes nothing but the time: a block that it could not fetch is fetched by its reader, who reports
    what is wrong with it.

    It must be made in a thread that outlives it, as a `WorkerPool`.

    Args:
        dataset: plans the reads; the process has it as it is at this moment.
        options: how far ahead.
    """

    def __init__(self, dataset: RemoteSource, options: PrefetchOptions) -> None:
        self._options = options
        self._run = 0
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        self._process: Any = context.Process(
            target=_serve, args=(dataset, theirs, self._pipe, options, os.getpid()), daemon=True
        )
        self._process.start()
        theirs.close()
        self._stop = end_at_exit(self, [self._process])

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._stop.alive and self._process.is_alive()

    def close(self) -> None:
        """Ends the process at once."""
        self._stop()
        atexit.unregister(self._stop)
        self._pipe.close()

    def beside(self, batches: Sequence[List[ClipRequest]], made: Iterator[Batch]) -> Iterator[Batch]:
        """The batches that `made` yields, whose files are fetched before.

        Args:
            batches: the requests of each.
            made: the batches.
        """
        self._run += 1
        told = 0
        for number in range(len(batches)):
            until = min(number + 1 + self._options.num_batches, len(batches))
            for coming in range(told, until):
                self._tell((self._run, number, coming, batches[coming]))
            told = until
            yield next(made)

    def _tell(self, message: Message) -> None:
        try:
            self._pipe.send(message)
        except (OSError, ValueError):  # ValueError: closed
            warn_once(get_logger(), "the process that fetches ahead has ended: batches fetch for themselves")


def _serve(
    dataset: RemoteSource, pipe: Connection, parents: Connection, options: PrefetchOptions, parent: int
) -> None:
    parents.close()
    become_child(parent)
    with contextlib.suppress(EOFError, OSError):
        _Fetching(dataset, options).serve(pipe)
    os._exit(0)  # the threads may wait for a store


class _Fetching:
    """What the process does.

    Attributes:
        run: the run whose batches are wanted.
        number: the batch of it that is made now.
        waiting: bytes in the cache for each batch that is not made yet.
    """

    def __init__(self, dataset: RemoteSource, options: PrefetchOptions) -> None:
        self._dataset = dataset
        self._options = options
        self._threads = ThreadPoolExecutor(options.num_at_once, "fetch")
        self._changed = threading.Condition()
        self.run, self.number = 0, 0
        self.waiting: Counter[int] = Counter()

    def serve(self, pipe: Connection) -> None:
        """Fetches what the messages ask for, until the pipe closes."""
        while True:
            message: Message = pipe.recv()
            run, number, coming, requests = message
            with self._changed:
                if run != self.run:
                    self.waiting.clear()
                self.run, self.number = run, number
                for made in [each for each in self.waiting if each <= number]:
                    del self.waiting[made]
                self._changed.notify_all()
            for places in together(requests):
                self._threads.submit(self._fetch, run, coming, [requests[place] for place in places])

    def _fetch(self, run: int, batch: int, requests: List[ClipRequest]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: run != self.run or self._may_fetch(batch))
            if run != self.run or batch < self.number:  # nobody waits for it any more
                return
        with contextlib.suppress(PaddleVideoFastError):  # the reader meets the same, and reports it
            num_bytes = self._dataset.fetch(requests)
            with self._changed:
                if run == self.run and batch > self.number:
                    self.waiting[batch] += num_bytes

    def _may_fetch(self, batch: int) -> bool:
        return batch <= self.number + 1 or sum(self.waiting.values()) < self._options.max_bytes
