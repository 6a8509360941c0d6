"""Batches of clips from DALI: planned samples run through it, and those that fail are found and replaced."""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from paddlevideo_fast.errors import LoaderError, VideoDecodeError
from paddlevideo_fast.extensions.dali.graph import ClipGraph, GraphShape, cause_of
from paddlevideo_fast.extensions.dali.planner import DaliPlanner, DaliSample
from paddlevideo_fast.loader.batches import ClipBatchSampler
from paddlevideo_fast.loader.collate import Batch, Sample, batch_of
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.loader.incidents import DecodeFailure
from paddlevideo_fast.loader.request import ClipRequest
from paddlevideo_fast.machine import num_cores


class BatchMaker:
    """Makes one batch at a time.

    One damaged file fails the whole batch in DALI, and the pipeline with it. The samples then run one by one
    in new pipelines; each that fails moves on to its substitute, and the batch runs again.

    Args:
        planner: moves samples on.
        shape: of the pipelines.
    """

    def __init__(self, planner: DaliPlanner, shape: GraphShape) -> None:
        self._planner = planner
        self._shape = shape
        self._graph = ClipGraph(shape)
        self._samples: list[DaliSample] = []
        self._error: RuntimeError | None = None

    def start(self, samples: list[DaliSample]) -> None:
        """Begins with a batch; returns at once.

        Raises:
            LoaderError: its clips have different shapes.
        """
        self._samples, self._error = samples, None
        try:
            self._feed(samples)
        except RuntimeError as error:
            self._error = error  # told by `finish`, as what fails later is

    def finish(self) -> Iterator[Batch]:
        """Waits for the batch; there is none where none was begun.

        Raises:
            LoaderError: DALI fails although each of the files decodes by itself.
        """
        if not self._samples:
            return
        samples, self._samples = self._samples, []
        try:
            if self._error is not None:
                raise self._error
            clips = self._collect(samples)
        except RuntimeError as error:
            clips = self._recover(samples, error)
        yield self._batch(samples, clips)

    def close(self) -> None:
        """Ends DALI's threads."""
        self._graph.close()

    def _recover(self, samples: list[DaliSample], error: RuntimeError) -> Any:
        """The clips of a batch that failed, once its samples were run one by one."""
        self._renew()
        num_failed = sum(len(sample.incidents) for sample in samples)
        for sample in samples:
            self._replace_failed(sample)
        try:
            if num_failed == sum(len(sample.incidents) for sample in samples):
                raise error
            self._feed(samples)
            return self._collect(samples)
        except RuntimeError as again:
            text = f"DALI fails on a batch whose files decode one by one: {cause_of(again)}"
            raise LoaderError(text) from again

    def _replace_failed(self, sample: DaliSample) -> None:
        """Moves a sample on until it decodes by itself, or no record is left."""
        while sample.requests:
            try:
                self._feed([sample])
                self._collect([sample])
                return
            except RuntimeError as error:
                self._renew()
                path = self._planner.dataset.records[sample.requests[0].index].path
                failed = DecodeFailure.failed(path, VideoDecodeError(path, f"DALI: {cause_of(error)}"))
                sample.incidents.append(failed)
                self._planner.go_on(sample)

    def _renew(self) -> None:
        self._graph.close()
        self._graph = ClipGraph(self._shape)

    def _feed(self, samples: Sequence[DaliSample]) -> None:
        usable = _usable(samples)
        plans = [(len(plan.frames), plan.geometry) for sample in usable for plan in sample.plans]
        shapes = sorted({(num_frames, clip.height, clip.width) for num_frames, clip in plans})
        if len(shapes) > 1:
            raise LoaderError(
                f"clips of different shapes {shapes} in one batch: end the transforms with a crop to one size"
            )
        if usable:
            self._graph.start({name: [one.inputs[name] for one in usable] for name in usable[0].inputs})

    def _collect(self, samples: Sequence[DaliSample]) -> Any:
        usable = _usable(samples)
        if not usable:
            return None
        clips, shapes = self._graph.finish()
        for sample, (_, height, width, _) in zip(usable, shapes):
            planned = sample.plans[0].geometry
            if (height, width) != (planned.source_height, planned.source_width):
                raise RuntimeError(
                    f"its frames decode to {width}×{height}, not to the {planned.source_width}×"
                    f"{planned.source_height} that its crop was chosen for"
                )
        return clips

    def _batch(self, samples: Sequence[DaliSample], clips: Any) -> Batch:
        dataset, num_clips, usable = self._planner.dataset, self._shape.num_clips, _usable(samples)
        made = []  # as the requests are: first clip 0 of all videos
        for clip in range(num_clips):
            for sample in usable:
                request, target = sample.requests[clip], dataset.target(sample.plans[clip].geometry.labels)
                made.append(Sample(None, target, request.index, request.view, num_crops=dataset.num_crops))
        if clips is not None:  # views lie one after the other
            size = clips.shape[3:]
            clips = clips.reshape((len(usable), num_clips, -1, *size))
            if num_clips > 1:
                clips = clips.transpose((1, 0, *range(2, clips.ndim)))
            clips = clips.reshape((len(made), -1, *size))
        return batch_of(made, clips, [incident for sample in samples for incident in sample.incidents])


def _usable(samples: Sequence[DaliSample]) -> list[DaliSample]:
    return [sample for sample in samples if sample.requests]


_BATCHES_AHEAD = 2  # read from disk and planned while DALI works on another


@dataclass(frozen=True)
class DaliOptions:
    """Where DALI works.

    Args:
        device_id: the GPU; None: the CPU.
    """

    device_id: int | None = None


class DaliLoader:
    """Iterates over the batches of an epoch, as `ClipLoader` does, with the same samples for the same seed.

    Our sampler, datasets and transforms decide which record, which frames, which region, mirrored or not,
    and which change of colour; DALI decodes, resamples and jitters, and the clips stay uint8. While the
    trainer works on a batch, DALI makes the next one, and threads read and index the files after it.

    A batch that DALI cannot decode is taken apart: the samples run one by one, each that fails is replaced by
    its substitute, in evaluation left out, and the rest runs again.

    Args:
        dataset: video files and their pipeline.
        batch_sampler: says which.
        num_threads: of DALI in host memory, and as many that open files; 0 is 1, "auto" one for each core.
        options: where DALI works.

    Raises:
        LoaderError: the pipeline asks for something that DALI does not do.
        MissingExtraError: DALI is not installed.
    """

    def __init__(
        self,
        dataset: ClipDataset,
        batch_sampler: ClipBatchSampler,
        num_threads: int | Literal["auto"] = 1,
        options: DaliOptions = DaliOptions(),
    ) -> None:
        self.dataset = dataset
        self.batch_sampler = batch_sampler
        self.num_threads = max(1, num_cores() if num_threads == "auto" else num_threads)
        self._running: Generator[Batch, None, None] | None = None
        self._planner = DaliPlanner(dataset, "cpu" if options.device_id is None else "gpu")
        pipeline = dataset.pipeline
        num_views = int(np.prod([step.num_views for step in pipeline.geometric]))
        self._shape = GraphShape(
            batch_size=batch_sampler.batch_size // dataset.clips_per_video,
            num_threads=self.num_threads,
            device_id=options.device_id,
            num_views=num_views,
            num_changes=self._planner.num_changes,
            num_clips=dataset.clips_per_video,
            num_frames=pipeline.sample.num_frames,
        )

    def __len__(self) -> int:
        return self.batch_sampler.num_batches

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from `start_batch` on. An epoch ends where the next one begins.

        Raises:
            PaddleVideoFastError: an error that the user can fix, such as a codec unknown to this DALI.
        """
        self.close()
        self._running = _batches(self._planner, self._shape, self.batch_sampler.batches(epoch, start_batch))
        return self._running

    def close(self) -> None:
        """Ends the epoch under way, with its threads and its DALI pipeline."""
        if self._running is not None:
            self._running.close()
            self._running = None


def _batches(
    planner: DaliPlanner, shape: GraphShape, requested: Sequence[list[ClipRequest]]
) -> Generator[Batch, None, None]:
    """See `DaliLoader.epoch`.

    It knows nothing of the loader: were the two a reference cycle, an epoch that is left early would end in
    the garbage collector, in any thread and at any time, and wait there for its own threads.
    """
    maker = BatchMaker(planner, shape)
    pool = ThreadPoolExecutor(shape.num_threads, thread_name_prefix="dali-open")
    waiting: deque[list[Future[DaliSample]]] = deque()
    try:
        for number in range(len(requested) + _BATCHES_AHEAD):
            if number < len(requested):
                videos = _videos(requested[number], shape.num_clips)
                waiting.append([pool.submit(planner.plan, video) for video in videos])
            if number >= _BATCHES_AHEAD:
                samples = [future.result() for future in waiting.popleft()]
                done = list(maker.finish())
                maker.start(samples)
                yield from done
        yield from maker.finish()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        maker.close()


def _videos(requests: list[ClipRequest], num_clips: int) -> list[list[ClipRequest]]:
    """The requests of each video: a batch has first clip 0 of all of them, then clip 1, and so on."""
    num_videos = len(requests) // num_clips
    return [requests[video::num_videos] for video in range(num_videos)]
