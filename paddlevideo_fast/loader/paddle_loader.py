"""Batches of clips, made in this process or in workers of paddle.io.DataLoader."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import Any, Iterator, List, Sequence, Tuple

import cv2
import numpy as np

from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.loader.batches import ClipBatchSampler
from paddlevideo_fast.loader.dataset import ClipDataset, Failure, Sample
from paddlevideo_fast.loader.errors import LoaderError
from paddlevideo_fast.loader.request import ClipRequest


@dataclass
class Batch:
    """Samples of one step.

    Attributes:
        clips: uint8 [N, V * T, H, W, 3]. A sample of several crops is several clips here, and samples without
            a clip are left out, so N may differ from the batch size; where none has one, the shape is
            [0, 0, 0, 0, 3]. May be read-only.
        labels: int64 [N].
        ids: int64 [N], numbers of the records in the dataset.
        views: int64 [N].
        failures: (path, cause) of each file that did not decode.
    """

    clips: np.ndarray
    labels: np.ndarray
    ids: np.ndarray
    views: np.ndarray
    failures: List[Failure] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.labels)


def collate(samples: Sequence[Sample]) -> Batch:
    """Stacks samples.

    Raises:
        LoaderError: their clips have different shapes.
    """
    kept = [sample for sample in samples if sample.clip is not None]
    clips = [sample.clip for sample in kept if sample.clip is not None]
    shapes = sorted({clip.shape for clip in clips})
    if len(shapes) > 1:
        raise LoaderError(
            f"clips of different shapes {shapes} in one batch: end the transforms with a crop to one size"
        )
    num_crops = kept[0].num_crops if kept else 1
    stacked = np.stack(clips) if clips else np.empty((0, 0, 0, 0, 3), np.uint8)
    if num_crops > 1:
        stacked = stacked.reshape(len(kept) * num_crops, -1, *stacked.shape[2:])
    views = [sample.view * num_crops + crop for sample in kept for crop in range(num_crops)]
    return Batch(
        clips=stacked,
        labels=np.array([sample.label for sample in kept], np.int64).repeat(num_crops),
        ids=np.array([sample.index for sample in kept], np.int64).repeat(num_crops),
        views=np.array(views, np.int64),
        failures=[failure for sample in samples for failure in sample.failures],
    )


class ClipLoader:
    """Iterates over the batches of an epoch. The batches are the same for any number of workers.

    Args:
        dataset: makes the samples.
        batch_sampler: says which.
        num_workers: processes; 0 makes the batches here, when they are asked for.
        prefetch_factor: batches each worker may be ahead.
    """

    def __init__(
        self,
        dataset: ClipDataset,
        batch_sampler: ClipBatchSampler,
        num_workers: int = 0,
        prefetch_factor: int = 2,
    ) -> None:
        if num_workers < 0:
            raise LoaderError(f"num_workers is {num_workers}, expected 0 or more")
        self.dataset = dataset
        self.batch_sampler = batch_sampler
        self.num_workers = num_workers
        self.prefetch_factor = prefetch_factor

    def __len__(self) -> int:
        return self.batch_sampler.num_batches

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from `start_batch` on.

        Leaving the loop early ends the workers.

        Raises:
            PaddleVideoFastError: what a user can mend, with its cause.
            RuntimeError: any other error of a worker, with the worker's traceback.
        """
        batches = self.batch_sampler.batches(epoch, start_batch)
        if self.num_workers == 0 or not batches:
            for requests in batches:
                yield collate([self.dataset[request] for request in requests])
            return
        yield from self._from_workers(batches)

    def _from_workers(self, batches: List[List[ClipRequest]]) -> Iterator[Batch]:
        import paddle

        loader = paddle.io.DataLoader(
            _PackedBatches(self.dataset),
            batch_sampler=[[requests] for requests in batches],
            collate_fn=itemgetter(0),
            num_workers=min(self.num_workers, len(batches)),
            places=paddle.CPUPlace(),
            return_list=True,
            use_shared_memory=True,
            use_buffer_reader=False,
            prefetch_factor=self.prefetch_factor,
            worker_init_fn=partial(_init_worker, os.getpid()),
        )
        iterator = iter(loader)
        try:
            for _ in batches:
                try:
                    packed = next(iterator)
                except (StopIteration, RuntimeError, SystemError) as error:
                    raise LoaderError(
                        "a loader worker ended without a word: it was killed, or memory or shared memory "
                        f"(df -h /dev/shm) ran out; lower num_workers or batch_size ({error})"
                    ) from error
                yield _unpack(packed)
        finally:
            iterator._try_shutdown_all()  # else the workers live until the iterator is collected


_PR_SET_PDEATHSIG = 1  # linux/prctl.h

# Paddle's reader takes a batch without arrays for the end, and shared memory holds no empty ones
_FILLER = np.zeros(1, np.uint8)


class _PackedBatches:
    """Whole batches as [clips, labels, ids, views, note]: arrays for shared memory, and the rest as JSON.

    Exceptions are part of the note: those that Paddle carries to the parent arrive without their text.
    """

    def __init__(self, dataset: ClipDataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, requests: Sequence[ClipRequest]) -> List[Any]:
        try:
            batch = collate([self.dataset[request] for request in requests])
        except PaddleVideoFastError as error:
            return [_FILLER, json.dumps({"message": str(error)})]
        except Exception:
            return [_FILLER, json.dumps({"traceback": traceback.format_exc()})]
        note = json.dumps({"failures": batch.failures})
        if not len(batch):
            return [_FILLER, note]
        return [batch.clips, batch.labels, batch.ids, batch.views, note]


def _unpack(packed: Sequence[Any]) -> Batch:
    *arrays, text = packed
    note = json.loads(text)
    if "message" in note:
        raise LoaderError(note["message"])
    if "traceback" in note:
        raise RuntimeError(f"error in a loader worker:\n{note['traceback']}")
    failures = [(path, cause) for path, cause in note["failures"]]
    if len(arrays) == 1:
        return replace(collate([]), failures=failures)
    clips, *numbers = arrays
    labels, ids, views = (array.numpy() for array in numbers)
    return Batch(np.from_dlpack(_SharedArray(clips)), labels, ids, views, failures)


class _SharedArray:
    """A tensor on the CPU that numpy reads in place; `Tensor.numpy()` copies, 4–9 ms for 64 frames of 224².

    The array is read-only and keeps the tensor's memory.
    """

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        from paddle.utils.dlpack import to_dlpack

        return to_dlpack(self._tensor)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return 1, 0  # kDLCPU


def _init_worker(parent: int, worker_id: int) -> None:
    cv2.setNumThreads(0)  # the workers are the parallelism
    # A terminal sends Ctrl-C, and a job scheduler SIGTERM, to all processes of a run: the parent finishes its
    # step with the workers' help, saves, and then ends them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _end_with(parent)


def _end_with(parent: int) -> None:
    """Has the kernel kill this process when its parent ends, by SIGKILL too; on Linux."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)
