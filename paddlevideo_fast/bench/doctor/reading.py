"""The reader alone: what a clip costs in one process, stage by stage, and on its way out of a worker."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import cv2
import numpy as np

from paddlevideo_fast.bench.stopwatch import Stopwatch
from paddlevideo_fast.errors import BadSampleShareError
from paddlevideo_fast.loader import ClipBatchSampler, ClipLoader, ClipRequest, Sample, VideoRecord
from paddlevideo_fast.loader.collate import make_batch
from paddlevideo_fast.loader.dataset import ClipDataset, Failure
from paddlevideo_fast.loader.transforms.resample import Resample

_BATCH = 8


@dataclass
class ReadingCost:
    """Seconds that one clip takes in one process.

    Attributes:
        stages: "open", "decode", "resample", "augment" (transforms that change pixels), "other" (choosing
            frames and geometry, closing files), "collate".
        augment_steps: class name of each transform that changes pixels to its part of "augment".
        clip_shape: (T, H, W, 3).
    """

    stages: Dict[str, float]
    augment_steps: Dict[str, float]
    clip_shape: Tuple[int, ...]

    @property
    def source_sec(self) -> float:
        """What depends on the form that the clips are stored in."""
        return sum(self.stages[name] for name in ("open", "decode", "resample"))

    @property
    def total_sec(self) -> float:
        """All stages."""
        return sum(self.stages.values())


def time_reading(
    dataset: ClipDataset, requests: Sequence[ClipRequest], budget_sec: float = 8.0
) -> ReadingCost:
    """Reads clips in this process on one thread, and times each stage.

    Args:
        dataset: makes them.
        requests: which; the first one is read twice, to warm up.
        budget_sec: stops after so many seconds.

    Raises:
        BadSampleShareError: none of them decodes.
    """
    requests = [*requests[:1], *requests]
    failures: List[Failure] = []
    shape: Tuple[int, ...] = ()
    num_clips, began = 0, time.perf_counter()
    with _one_thread(), Stopwatch() as watch:
        _wrap(watch, dataset)
        failures += make_batch(dataset, requests[:1]).failures
        watch.seconds.clear()
        for first in range(1, len(requests), _BATCH):
            with watch.stage("collate"):
                batch = make_batch(dataset, requests[first : first + _BATCH])
            num_clips += len(batch)
            failures += batch.failures
            shape = batch.clips.shape[1:] if len(batch) else shape
            if num_clips and time.perf_counter() - began > budget_sec:
                break
    if not num_clips:
        path, cause = failures[0]
        raise BadSampleShareError(f"no clip of {dataset.file_path} decodes; {path}: {cause}")
    costs = {name: sec / num_clips for name, sec in watch.seconds.items()}
    augment = {name.split()[1]: sec for name, sec in costs.items() if name.startswith("augment ")}
    names = ("open", "decode", "resample", "augment", "other", "collate")
    stages = {name: costs.get(name, 0.0) for name in names}
    stages["augment"] = sum(augment.values())
    return ReadingCost(stages, augment, shape)


def time_transport(clip_shape: Sequence[int], batch_size: int, num_batches: int = 8) -> float:
    """Seconds a clip costs on its way from a worker to this process, without making it.

    One real worker sends batches of a clip that it does not have to make.
    """
    dataset: Any = _Ready(clip_shape, batch_size * (num_batches + 2))
    sampler = ClipBatchSampler(len(dataset), batch_size, shuffle=False, drop_last=True, seed=0)
    with contextlib.closing(ClipLoader(dataset, sampler, num_workers=1)) as loader:
        batches = loader.epoch(0)
        for _ in range(2):  # the worker starts
            next(batches)
        began = time.perf_counter()
        for _ in batches:
            pass
        sent_sec = (time.perf_counter() - began) / num_batches
    with Stopwatch() as watch, watch.stage("made"):
        make_batch(dataset, [ClipRequest(0, epoch=0)] * batch_size)
    return max(sent_sec - watch.seconds["made"], 0.0) / batch_size


class _Ready:
    """A dataset whose clips are made already, each in its place."""

    def __init__(self, clip_shape: Sequence[int], size: int) -> None:
        self.clip = np.zeros(tuple(clip_shape), np.uint8)
        self.records = [VideoRecord("made up", 0)] * size

    def __len__(self) -> int:
        return len(self.records)

    def load(self, request: ClipRequest, out: Optional[np.ndarray] = None) -> Sample:
        return Sample(self.clip if out is None else out, label=0, index=0, view=0)


def _wrap(watch: Stopwatch, dataset: ClipDataset) -> None:
    pipeline = dataset.pipeline
    opened = watch.timed("open", pipeline.decode.open)

    def open_timed(record: VideoRecord) -> Any:
        reader = opened(record)
        reader.read = watch.timed("decode", reader.read)
        return reader

    watch.wrap(dataset, "load", "other")  # what is left of it when the stages inside are taken out
    watch.replace(pipeline.decode, "open", open_timed)
    watch.wrap(Resample, "render", "resample")
    for step in pipeline.pixelwise:
        watch.wrap(step, "apply", f"augment {type(step).__name__}")


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """OpenCV on one thread, as it is in a worker."""
    threads = cv2.getNumThreads()
    cv2.setNumThreads(0)
    try:
        yield
    finally:
        cv2.setNumThreads(threads)
