"""The reader alone: what a clip costs in one process, stage by stage, and on its way out of a worker."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Sequence

import cv2

from paddlevideo_fast.bench.stopwatch import Stopwatch
from paddlevideo_fast.errors import BadSampleShareError
from paddlevideo_fast.loader import ClipBatchSampler, ClipLoader, ClipRequest, Sample, VideoRecord
from paddlevideo_fast.loader.collate import Batch, make_batch
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.loader.transforms import Resample

STAGES = ("open", "decode", "resample", "augment", "other", "collate", "transport")


@dataclass
class ReadingCost:
    """Seconds that one clip takes in one process.

    Attributes:
        stages: of `STAGES`; "other" is choosing frames and geometry, closing files and the bookkeeping.
        augment_steps: class name of each transform that changes pixels to its part of "augment".
        num_clips: clips they are the mean of.
        samples: the last of them.
    """

    stages: Dict[str, float]
    augment_steps: Dict[str, float]
    num_clips: int
    samples: List[Sample] = field(repr=False)

    @property
    def in_process_sec(self) -> float:
        """All of it without the transport."""
        return sum(sec for name, sec in self.stages.items() if name != "transport")


def time_reading(
    dataset: ClipDataset, requests: Sequence[ClipRequest], batch_size: int, budget_sec: float = 8.0
) -> ReadingCost:
    """Reads clips in this process on one thread, and times each stage.

    Args:
        dataset: makes them.
        requests: which; the first one only warms up.
        batch_size: clips that are stacked at a time.
        budget_sec: stops after so many seconds, and two clips.

    Raises:
        BadSampleShareError: none of them decodes.
    """
    samples: List[Sample] = []
    total_sec, began = 0.0, time.perf_counter()
    with _one_thread(), Stopwatch() as watch:
        _wrap(watch, dataset.pipeline)
        first = dataset[requests[0]]
        watch.seconds.clear()
        for request in requests[1:]:
            sample_began = time.perf_counter()
            sample = dataset[request]
            total_sec += time.perf_counter() - sample_began
            samples.append(sample)
            if len(samples) >= 2 and time.perf_counter() - began > budget_sec:
                break
        read = dict(watch.seconds)
        kept = [sample for sample in (first, *samples) if sample.clip is not None]
        if not kept:
            path, cause = first.failures[0]
            raise BadSampleShareError(
                f"none of {len(samples) + 1} clips of {dataset.file_path} decodes; {path}: {cause}"
            )
        batches = [samples[at : at + batch_size] for at in range(0, len(samples), batch_size)]
        for batch in batches[-3:]:
            with watch.stage("collate"):
                _Ready(batch).batch()
    augment = {name.split()[1]: sec for name, sec in read.items() if name.startswith("augment ")}
    stages = {name: read.get(name, 0.0) for name in ("open", "decode", "resample")}
    stages["augment"] = sum(augment.values())
    stages["other"] = total_sec - sum(stages.values())
    count = max(len(samples), 1)
    costs = {name: sec / count for name, sec in stages.items()}
    costs["collate"] = watch.seconds["collate"] / max(sum(map(len, batches[-3:])), 1)
    costs["transport"] = 0.0
    steps = {name: sec / count for name, sec in augment.items()}
    return ReadingCost(costs, steps, count, kept[-batch_size:])


def time_transport(samples: Sequence[Sample], batch_size: int, num_batches: int = 8) -> float:
    """Seconds a clip costs on its way from a worker to this process, without making or stacking it.

    One real worker sends batches of a clip that it does not have to make.
    """
    dataset = _Ready([samples[0]] * batch_size * (num_batches + 2))
    sampler = ClipBatchSampler(len(dataset), batch_size, shuffle=False, drop_last=True, seed=0)
    with contextlib.closing(ClipLoader(dataset, sampler, num_workers=1)) as loader:
        batches = loader.epoch(0)
        for _ in range(2):  # the worker starts
            next(batches)
        began = time.perf_counter()
        for _ in batches:
            pass
        sent_sec = (time.perf_counter() - began) / num_batches
    with Stopwatch() as watch, watch.stage("collate"):
        _Ready([samples[0]] * batch_size).batch()
    return max(sent_sec - watch.seconds["collate"], 0.0) / batch_size


class _Ready:
    """A dataset whose clips are made already."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = samples
        self.records = [VideoRecord("a clip that is made already", sample.label) for sample in samples]

    def __len__(self) -> int:
        return len(self.samples)

    def load(self, request: ClipRequest, out: Any = None) -> Sample:
        """The sample; its clip stays where it is."""
        return self.samples[request.index]

    def batch(self) -> Batch:
        """All of them as one batch."""
        return make_batch(self, [ClipRequest(number, epoch=0) for number in range(len(self))])


def _wrap(watch: Stopwatch, pipeline: Any) -> None:
    opened = watch.timed("open", pipeline.decode.open)

    def open_timed(record: Any) -> Any:
        reader = opened(record)
        reader.read = watch.timed("decode", reader.read)
        return reader

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
