"""Which samples make which batch: a pure function of (seed, epoch)."""

from __future__ import annotations

from typing import List, Optional

import numpy as np

from paddlevideo_fast.loader.errors import LoaderError
from paddlevideo_fast.loader.randomness import ORDER, generator
from paddlevideo_fast.loader.request import ClipRequest


class ClipBatchSampler:
    """Batches of requests, the share of one rank.

    Rank r takes the samples at places r, r + world_size, … of the epoch's order, so the batches of all ranks
    at one step are together what a single process with the whole batch would see.

    Args:
        num_samples: records of the dataset.
        batch_size: requests in a batch on this rank.
        shuffle: a new order each epoch.
        drop_last: leave out the last batch where it is smaller.
        seed: of the order.
        rank: this process.
        world_size: processes.
        num_views: requests for each record, one after the other.
        pad: give every rank the same number of samples by starting the order again, so that no rank waits for
            another in training; default: where the samples are shuffled. Without it each sample is seen once.

    Raises:
        LoaderError: there is no batch at all.
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        shuffle: bool,
        drop_last: bool,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        num_views: int = 1,
        pad: Optional[bool] = None,
    ) -> None:
        if batch_size < 1:
            raise LoaderError(f"batch_size is {batch_size}, expected 1 or more")
        if not 0 <= rank < world_size:
            raise LoaderError(f"rank is {rank}, expected 0 to {world_size - 1}")
        self.num_samples = num_samples
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.num_views = num_views
        self.pad = shuffle if pad is None else pad
        if drop_last and self.num_batches == 0:
            raise LoaderError(
                f"{num_samples} samples on {world_size} processes make no batch of {batch_size}: "
                "lower batch_size in DATASET or add samples"
            )

    @property
    def num_batches(self) -> int:
        """Batches of an epoch on this rank."""
        total = self.num_samples * self.num_views
        rest = total % self.world_size
        mine = total // self.world_size + int(rest > (0 if self.pad else self.rank))
        return mine // self.batch_size if self.drop_last else -(-mine // self.batch_size)

    def batches(self, epoch: int, start_batch: int = 0) -> List[List[ClipRequest]]:
        """The epoch's batches on this rank, from `start_batch` on."""
        total = self.num_samples * self.num_views
        order = np.arange(total)
        if self.shuffle:
            order = generator(ORDER, self.seed, epoch).permutation(total)
        if self.pad:
            order = np.resize(order, -(-total // self.world_size) * self.world_size)
        mine = order[self.rank :: self.world_size].tolist()
        size = self.batch_size
        views = self.num_views
        requests = [ClipRequest(place // views, epoch, place % views, views) for place in mine]
        firsts = range(start_batch * size, self.num_batches * size, size)
        return [requests[first : first + size] for first in firsts]
