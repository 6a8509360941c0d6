"""Fetches what coming batches read from a store into the block cache, in threads of the reading process."""

import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import Any

from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.loader.collate import ClipSource
from paddlevideo_fast.loader.request import ClipRequest, group_by_video
from paddlevideo_fast.log import get_logger, warn_once

logger = get_logger(__name__)

NUM_THREADS = 16  # of all processes that make the batches of a loader

_Wanted = Callable[[], bool]
_Queue = SimpleQueue[Any]  # of requests and whether they are wanted; None ends a thread


class Fetcher:
    """Fetches files of coming batches into the cache, in threads of this process.

    Which batches come is known, and which frames a clip has is a function of its request. So threads plan the
    reads of the next batches and wait for the store while others are decoded. They change nothing but the
    time: a block that could not be fetched is fetched by its reader, who reports what is wrong with it.

    Args:
        source: plans the reads.
        num_threads: videos that are fetched at the same time.
    """

    def __init__(self, source: ClipSource, num_threads: int = NUM_THREADS) -> None:
        self._queue: _Queue = SimpleQueue()
        for _ in range(num_threads):
            Thread(target=_serve, args=(source, self._queue), daemon=True).start()
        self.close = weakref.finalize(self, _end, self._queue, num_threads)  # ends the threads

    def ask(self, batches: Sequence[list[ClipRequest]], wanted: _Wanted) -> None:
        """Has threads fetch what batches read.

        Args:
            batches: the requests of each.
            wanted: whether they are still of use; asked before each video.
        """
        for requests in batches:
            for slots in group_by_video(requests):
                self._queue.put(([requests[slot] for slot in slots], wanted))


def newly_coming(number: int, num_ahead: int) -> slice:
    """The batches to ask for before batch `number` is made: all that come first, then one each time."""
    return slice(number + num_ahead if number else 0, number + num_ahead + 1)


def _serve(source: ClipSource, queue: _Queue) -> None:
    while (asked := queue.get()) is not None:
        requests, wanted = asked
        if wanted():
            try:
                source.fetch(requests)
            except PaddleVideoFastError:
                pass  # the reader meets the same, and reports it
            except Exception as error:  # the thread goes on with the next videos
                warn_once(logger, f"a video cannot be fetched ahead: {type(error).__name__}: {error}")


def _end(queue: _Queue, num_threads: int) -> None:
    for _ in range(num_threads):
        queue.put(None)
