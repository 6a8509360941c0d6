"""Batches of clips through DALI."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Deque, Generator, Iterator, List, Literal, Optional, Union

import numpy as np

from paddlevideo_fast.loader.batches import ClipBatchSampler
from paddlevideo_fast.loader.collate import Batch
from paddlevideo_fast.loader.dali.drafts import Draft, Drafter
from paddlevideo_fast.loader.dali.graph import GraphShape, Normalized
from paddlevideo_fast.loader.dali.maker import BatchMaker
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.loader.errors import LoaderError
from paddlevideo_fast.loader.request import ClipRequest
from paddlevideo_fast.machine import num_cores

_BATCHES_AHEAD = 2  # read from disk and planned while DALI works on another


@dataclass(frozen=True)
class DaliOptions:
    """Where DALI works, and what comes out.

    Args:
        device_id: the GPU; None: the CPU.
        layout: the network's, "NTCHW" or "NCTHW": clips are float32 and normalised by the pipeline's mean and
            std. None: they stay uint8 [N, V * T, H, W, 3].
    """

    device_id: Optional[int] = None
    layout: Optional[str] = None


class DaliLoader:
    """Iterates over the batches of an epoch, as `ClipLoader` does, with the same samples for the same seed.

    Our sampler, datasets and transforms decide which record, which frames, which region, mirrored or not,
    and which change of colour; DALI decodes, resamples, jitters and normalises. While the trainer works on a
    batch, DALI makes the next one, and threads read and index the files after it.

    A batch that DALI cannot decode is taken apart: the samples run one by one, each that fails is replaced by
    its substitute, in evaluation left out, and the rest runs again.

    Args:
        dataset: video files and their pipeline.
        batch_sampler: says which.
        num_threads: of DALI in host memory, and as many that open files; 0 is 1, "auto" one for each core.
        options: where, and what comes out.

    Raises:
        LoaderError: the pipeline asks for something that DALI does not do.
        MissingExtraError: DALI is not installed.
    """

    def __init__(
        self,
        dataset: ClipDataset,
        batch_sampler: ClipBatchSampler,
        num_threads: Union[int, Literal["auto"]] = 1,
        options: DaliOptions = DaliOptions(),
    ) -> None:
        self.dataset = dataset
        self.batch_sampler = batch_sampler
        wanted = num_cores() if num_threads == "auto" else num_threads
        self.num_threads = max(1, wanted)
        self._running: Optional[Generator[Batch, None, None]] = None
        self._drafter = Drafter(dataset, "cpu" if options.device_id is None else "gpu")
        pipeline = dataset.pipeline
        num_views = int(np.prod([step.num_views for step in pipeline.geometric]))
        if options.layout == "NCTHW" and num_views != dataset.num_crops:
            raise LoaderError(
                "a 3D network takes several views as clips of their own: set the format SFVideoDataset"
            )
        self._shape = GraphShape(
            batch_size=batch_sampler.batch_size,
            num_threads=self.num_threads,
            device_id=options.device_id,
            num_views=num_views,
            num_changes=self._drafter.num_changes,
            normalized=Normalized(*pipeline.normalization, options.layout) if options.layout else None,
        )

    def __len__(self) -> int:
        return self.batch_sampler.num_batches

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from `start_batch` on. An epoch ends where the next one begins.

        Raises:
            PaddleVideoFastError: what a user can mend, such as a codec that this DALI does not decode.
        """
        self.close()
        self._running = _batches(self._drafter, self._shape, self.batch_sampler.batches(epoch, start_batch))
        return self._running

    def close(self) -> None:
        """Ends the epoch under way, with its threads and its DALI pipeline."""
        if self._running is not None:
            self._running.close()
            self._running = None


def _batches(
    drafter: Drafter, shape: GraphShape, requested: List[List[ClipRequest]]
) -> Generator[Batch, None, None]:
    """See `DaliLoader.epoch`.

    It knows nothing of the loader: were the two a reference cycle, an epoch that is left early would end in
    the garbage collector, in any thread and at any time, and wait there for its own threads.
    """
    maker = BatchMaker(drafter, shape)
    pool = ThreadPoolExecutor(shape.num_threads, thread_name_prefix="dali-open")
    try:
        for drafts in _drafted(drafter, requested, pool):
            batch = maker.finish()
            maker.start(drafts)
            if batch is not None:
                yield batch
        batch = maker.finish()
        if batch is not None:
            yield batch
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        maker.close()


def _drafted(
    drafter: Drafter, requested: List[List[ClipRequest]], pool: ThreadPoolExecutor
) -> Iterator[List[Draft]]:
    waiting: Deque[List[Future[Draft]]] = deque()
    for requests in requested:
        waiting.append([pool.submit(drafter.draft, request) for request in requests])
        if len(waiting) > _BATCHES_AHEAD:
            yield [future.result() for future in waiting.popleft()]
    for futures in waiting:
        yield [future.result() for future in futures]


def to_tensor(clips: Any) -> Any:
    """Clips that DALI has normalised as the network's input; takes the place of `modeling.Preprocess`."""
    import paddle

    return paddle.to_tensor(clips) if isinstance(clips, np.ndarray) else clips
