"""Batches of clips, made in this process or by workers that live as long as the loader."""

from __future__ import annotations

from typing import Any, Iterator, List, Literal, Optional, Union

from paddlevideo_fast.loader.auto_workers import choose_num_workers
from paddlevideo_fast.loader.batches import ClipBatchSampler
from paddlevideo_fast.loader.collate import Batch, make_batch
from paddlevideo_fast.loader.errors import LoaderError
from paddlevideo_fast.loader.request import ClipRequest
from paddlevideo_fast.loader.workers import WorkerOptions, WorkerPool


class ClipLoader:
    """Iterates over the batches of an epoch. The batches are the same for any number of workers.

    The workers start with the first epoch and serve all of them; they know the dataset as it was then. They
    end with `close`, with the loader, or with this process, however that ends.

    Args:
        dataset: makes the samples.
        batch_sampler: says which; another one may take its place between two epochs, the workers stay.
        num_workers: processes; 0 makes the batches here, when they are asked for; "auto" measures how many
            are of use before the first epoch.
        options: how workers are run.
    """

    def __init__(
        self,
        dataset: Any,
        batch_sampler: ClipBatchSampler,
        num_workers: Union[int, Literal["auto"]] = 0,
        options: Optional[WorkerOptions] = None,
    ) -> None:
        if isinstance(num_workers, int) and num_workers < 0:
            raise LoaderError(f"num_workers is {num_workers}, expected 0 or more, or 'auto'")
        self.dataset = dataset
        self.batch_sampler = batch_sampler
        self.num_workers = num_workers
        self.options = options or WorkerOptions()
        self._pool: Optional[WorkerPool] = None

    def __len__(self) -> int:
        return self.batch_sampler.num_batches

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from `start_batch` on.

        An epoch ends where the next one of the same loader begins. Workers are started here, in the calling
        thread, which must outlive them.

        Raises:
            PaddleVideoFastError: what a user can mend, with its cause.
            RuntimeError: any other error of a worker, with the worker's traceback.
        """
        batches = self.batch_sampler.batches(epoch, start_batch)
        num_workers = self._num_workers(batches) if batches else 0
        if num_workers == 0:
            return (make_batch(self.dataset, requests) for requests in batches)
        return self._workers(num_workers).run(batches)

    def close(self) -> None:
        """Ends the workers; an epoch that is asked for later starts new ones."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _num_workers(self, batches: List[List[ClipRequest]]) -> int:
        if self.num_workers == "auto":
            self.num_workers = choose_num_workers(self.dataset, batches, self.options)
        return self.num_workers

    def _workers(self, num_workers: int) -> WorkerPool:
        if self._pool is None or not self._pool.alive:
            self.close()
            self._pool = WorkerPool(self.dataset, min(num_workers, len(self)), self.options)
        return self._pool
