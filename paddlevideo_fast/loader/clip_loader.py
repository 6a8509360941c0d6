"""Batches of clips, made in this process or by workers that live as long as the loader."""

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from paddlevideo_fast.loader.batches import ClipBatchSampler
from paddlevideo_fast.loader.collate import Batch, ClipSource, make_batch
from paddlevideo_fast.loader.fetching import Fetcher, newly_coming
from paddlevideo_fast.loader.request import ClipRequest, group_by_video
from paddlevideo_fast.loader.workers import WorkerOptions, WorkerPool
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.machine import num_cores

_ENOUGH = 0.95  # share of the best rate that a smaller number of workers has to reach
_MEASURE_SEC = 0.7
_MAX_SEC = 3.0
_MAX_READS = 4096


def choose_num_workers(
    dataset: ClipSource, batches: Sequence[list[ClipRequest]], options: WorkerOptions
) -> int:
    """The smallest number of workers whose rate comes within 5 % of the best one measured.

    Measured are 1, 2, 4, … workers up to the cores that this process may use, each for 0.7 to 3 seconds, on
    the first clips of the epoch; each number gets clips that those before it have not read, as long as there
    are any. The clips are thrown away: what an epoch yields does not depend on the choice.

    Args:
        dataset: makes the samples.
        batches: the requests of the epoch's batches.
        options: how the workers are run.
    """
    videos = (
        [requests[slot] for slot in slots] for requests in batches for slots in group_by_video(requests)
    )
    requests = itertools.cycle(videos)
    most = num_cores()
    counts = [2**power for power in range(most.bit_length()) if 2**power < most] + [most]
    rates = {count: _clips_per_sec(dataset, requests, count, options) for count in counts}
    chosen = smallest_sufficient(rates)
    measured = ", ".join(f"{count}: {rate:.1f}" for count, rate in rates.items())
    get_logger().info(f"num_workers auto: {chosen} chosen; clips a second by number of workers: {measured}")
    return chosen


def smallest_sufficient(rates: dict[int, float]) -> int:
    """The smallest number of workers that is nearly as fast as the fastest; number → rate."""
    return min(count for count, rate in rates.items() if rate >= _ENOUGH * max(rates.values()))


def _clips_per_sec(
    dataset: ClipSource, requests: Iterable[list[ClipRequest]], num_workers: int, options: WorkerOptions
) -> float:
    pool = WorkerPool(dataset, num_workers, options)
    try:
        asked = list(itertools.islice(requests, _MAX_READS))
        batches = pool.run(asked)
        for _ in range(num_workers):  # all have begun
            next(batches)
        began = time.perf_counter()
        for count, _ in enumerate(batches, start=1):
            seconds = time.perf_counter() - began
            if seconds >= _MAX_SEC or (seconds >= _MEASURE_SEC and count >= 2 * num_workers):
                break
        return sum(map(len, asked[num_workers : num_workers + count])) / seconds
    finally:
        pool.close()


class ClipLoader:
    """Iterates over the batches of an epoch. The batches are the same for any number of workers.

    The workers start with the first epoch and serve all of them; they know the data set as it was then. There
    are no more of them than an epoch has batches; an epoch with more batches than any before it starts them
    anew. They end with `close`, with the loader, or with this process, however that ends.

    Args:
        dataset: makes the samples.
        batch_sampler: says which; another one may take its place between two epochs, the workers stay.
        num_workers: processes; 0 makes the batches here, when they are asked for; "auto" measures how many
            are of use before the first epoch.
        options: how workers are run, and how far ahead of its batches a data set in a store is fetched.
    """

    def __init__(
        self,
        dataset: ClipSource,
        batch_sampler: ClipBatchSampler,
        num_workers: int | Literal["auto"] = 0,
        options: WorkerOptions | None = None,
    ) -> None:
        self.dataset = dataset
        self.batch_sampler = batch_sampler
        self.num_workers = num_workers
        self.options = options or WorkerOptions()
        self._pool: WorkerPool | None = None
        self._fetcher: Fetcher | None = None  # without workers
        self._num_epochs = 0

    def __len__(self) -> int:
        return self.batch_sampler.num_batches

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from `start_batch` on.

        An epoch ends where the next one of the same loader begins. Workers are started here, in the calling
        thread, which must outlive them.

        Raises:
            PaddleVideoFastError: an error that the user can fix, with its cause.
            RuntimeError: any other error of a worker, with the worker's traceback.
        """
        batches = self.batch_sampler.batches(epoch, start_batch)
        if self.num_workers == "auto" and batches:
            self.num_workers = choose_num_workers(self.dataset, batches, self.options)
        return self._workers().run(batches) if self.num_workers and batches else self._make(batches)

    def _make(self, batches: Sequence[list[ClipRequest]]) -> Iterator[Batch]:
        """Makes batches in this process."""
        self._num_epochs += 1
        epoch, num_ahead = self._num_epochs, self.options.prefetch
        if num_ahead and self.dataset.is_remote and self._fetcher is None:
            self._fetcher = Fetcher(self.dataset)
        for number, requests in enumerate(batches):
            if self._fetcher is not None:
                coming = batches[newly_coming(number, num_ahead)]
                self._fetcher.ask(coming, lambda: self._num_epochs == epoch)
            yield make_batch(self.dataset, requests)

    def close(self) -> None:
        """Ends the workers; an epoch that is asked for later starts new ones."""
        self._num_epochs += 1
        for helper in (self._pool, self._fetcher):
            if helper is not None:
                helper.close()
        self._pool = self._fetcher = None

    def _workers(self) -> WorkerPool:
        of_use = min(int(self.num_workers), len(self))
        if self._pool is None or not self._pool.alive or self._pool.num_workers < of_use:
            self.close()
            self._pool = WorkerPool(self.dataset, of_use, self.options)
        return self._pool
