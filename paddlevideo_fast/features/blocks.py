"""The network that computes features, and the clips that it computes them of, in blocks of batches."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import paddle

from paddlevideo_fast.assembly.data import Split
from paddlevideo_fast.config import RunSpec
from paddlevideo_fast.config.settings import SplitName
from paddlevideo_fast.engine import Precision
from paddlevideo_fast.engine.prefetch import to_device
from paddlevideo_fast.io.urls import shown_url
from paddlevideo_fast.loader.batches import ClipBatchSampler, EpochBatches
from paddlevideo_fast.loader.clip_loader import ClipLoader
from paddlevideo_fast.loader.incidents import DecodeFailure
from paddlevideo_fast.modeling.features import PooledFeatures


class Rows(NamedTuple):
    """What a batch gives: the first five are the arguments of `FeatureWriter.add`.

    Attributes:
        incidents: of the batch.
    """

    stop: int
    rows: np.ndarray
    features: np.ndarray
    labels: np.ndarray
    failed: dict[int, tuple[str, str]]
    incidents: list[DecodeFailure]


class Block(NamedTuple):
    """Batches of a copy: `num_batches` from `first` on; None: all from there on."""

    copy: int
    first: int
    num_batches: int | None


class _SomeBatches(ClipBatchSampler):
    """A sampler that ends after `num_wanted` batches; None: with the epoch."""

    num_wanted: int | None = None

    def batches(self, epoch: int, start_batch: int = 0) -> EpochBatches:
        return super().batches(epoch, start_batch).first(self.num_wanted)


@dataclass(eq=False)
class Network:
    """A network and the clips of a part of the data, which it gives the features of.

    Args:
        spec: of the run.
        split: the part.
        name: of the part.
        pooled: the network.
        precision: to compute in.
        num_copies: of each clip.
        num_workers: processes that read; None: as configured.

    Attributes:
        rows_of_copy: rows of one copy of all clips.
    """

    spec: RunSpec
    split: Split
    name: SplitName
    pooled: PooledFeatures
    precision: Precision
    num_copies: int
    num_workers: int | None = None

    def __post_init__(self) -> None:
        dataset, data, seed = self.split.dataset, self.spec.data, self.spec.run.seed
        dataset.num_attempts = 1  # no other record takes the place of one that does not decode
        self._views = 1 if self.name == "train" else dataset.num_views
        self.rows_of_copy = len(dataset) * self._views * dataset.num_crops
        size = len(dataset), data.batch_size_of(self.name)
        self._sampler = _SomeBatches(*size, shuffle=False, drop_last=False, seed=seed, num_views=self._views)
        workers = data.num_workers_of(self.name) if self.num_workers is None else self.num_workers
        self._loader = ClipLoader(dataset, self._sampler, workers)

    def rest(self, num_done: int, num_batches: int | None = None) -> list[Block]:
        """What is to compute where `num_done` rows are there, in blocks of at most so many batches."""
        done_copies, rest = divmod(num_done, self.rows_of_copy)
        start = rest // (self._sampler.batch_size * self.split.dataset.num_crops)
        blocks = []
        for copy in range(done_copies, self.num_copies):
            step = num_batches or self._sampler.num_batches
            for first in range(0, self._sampler.num_batches, step):
                if first + step > start:
                    begin = max(first, start)
                    blocks.append(Block(copy, begin, first + step - begin if num_batches else None))
            start = 0
        return blocks

    def compute(self, block: Block) -> Iterator[Rows]:
        """The rows of the batches of a block, in their order."""
        dataset, views = self.split.dataset, self._views
        first_row = block.copy * self.rows_of_copy
        self._sampler.num_wanted = block.num_batches
        requests_of = self._sampler.batches(block.copy, block.first)
        for requests, batch in zip(requests_of, to_device(self._loader.epoch(block.copy, block.first))):
            rows, values = np.empty(0, np.int64), np.empty(0, np.float32)
            if len(batch):
                with paddle.no_grad():
                    given: Any = self.precision.forward(self.pooled, self.split.preprocess(batch.clips))
                values = given.astype("float32").numpy()
                rows = first_row + batch.ids * views * dataset.num_crops + batch.views
            begin = first_row + (requests[0].index * views + requests[0].view) * dataset.num_crops
            stop = begin + len(requests) * dataset.num_crops
            causes = {incident.path: incident.cause for incident in batch.incidents}
            failed = {
                row: _failure(dataset.records, (row - first_row) // (views * dataset.num_crops), causes)
                for row in sorted(set(range(begin, stop)) - set(rows.tolist()))
            }
            labels = np.asarray(batch.labels)
            yield Rows(stop, rows, values, labels, failed, list(batch.incidents))

    def close(self) -> None:
        """Ends the workers of the loader."""
        self._loader.close()


def _failure(records: Any, index: int, causes: dict[str, str]) -> tuple[str, str]:
    path = shown_url(records[index].path)
    return path, causes.get(path, "it does not decode")
