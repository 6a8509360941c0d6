"""Batches of clips from DALI: drafts run through it, and those that fail are found and replaced."""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from paddlevideo_fast.errors import LoaderError, VideoDecodeError
from paddlevideo_fast.loader.batches import ClipBatchSampler
from paddlevideo_fast.loader.collate import Batch, batch_of
from paddlevideo_fast.loader.dali.drafts import Draft, Drafter
from paddlevideo_fast.loader.dali.graph import ClipGraph, GraphShape, cause_of
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.loader.request import ClipRequest
from paddlevideo_fast.machine import num_cores


class BatchMaker:
    """Makes one batch at a time.

    One damaged file fails the whole batch in DALI, and the pipeline with it. The samples then run one by one
    in new pipelines; each that fails moves on to its substitute, and the batch runs again.

    Args:
        drafter: moves drafts on.
        shape: of the pipelines.
    """

    def __init__(self, drafter: Drafter, shape: GraphShape) -> None:
        self._drafter = drafter
        self._shape = shape
        self._graph = ClipGraph(shape)
        self._drafts: list[Draft] = []
        self._error: RuntimeError | None = None

    def start(self, drafts: list[Draft]) -> None:
        """Begins with a batch; returns at once.

        Raises:
            LoaderError: its clips have different shapes.
        """
        self._drafts, self._error = drafts, None
        try:
            self._feed(_usable(drafts))
        except RuntimeError as error:
            self._error = error  # told by `finish`, as what fails later is

    def finish(self) -> Batch | None:
        """Waits for the batch; None where none was begun.

        Raises:
            LoaderError: DALI fails although each of the files decodes by itself.
        """
        if not self._drafts:
            return None
        drafts, self._drafts = self._drafts, []
        clips = None
        try:
            if self._error is not None:
                raise self._error
            clips = self._collect(_usable(drafts))
        except RuntimeError as error:
            clips = self._recover(drafts, error)
        return self._batch(drafts, clips)

    def close(self) -> None:
        """Ends DALI's threads."""
        self._graph.close()

    def _renew(self) -> None:
        self._graph.close()
        self._graph = ClipGraph(self._shape)

    def _recover(self, drafts: list[Draft], error: RuntimeError) -> Any:
        self._renew()
        num_incidents = sum(len(draft.incidents) for draft in drafts)
        for draft in drafts:
            self._settle(draft)
        if num_incidents == sum(len(draft.incidents) for draft in drafts):
            raise LoaderError(f"DALI fails on a batch whose files decode one by one: {cause_of(error)}")
        try:
            return self._run(_usable(drafts))
        except RuntimeError as again:
            raise LoaderError(
                f"DALI fails on a batch whose files decode one by one: {cause_of(again)}"
            ) from again

    def _settle(self, draft: Draft) -> None:
        """Moves a draft on until it decodes by itself, or no record is left."""
        while draft.attempt is not None:
            try:
                self._run([draft])
                return
            except RuntimeError as error:
                self._renew()
                draft.fail(VideoDecodeError(draft.attempt.record.path, f"DALI: {cause_of(error)}"))
                self._drafter.go_on(draft)

    def _run(self, drafts: Sequence[Draft]) -> Any:
        self._feed(drafts)
        return self._collect(drafts)

    def _feed(self, drafts: Sequence[Draft]) -> None:
        if not drafts:
            return
        shapes = sorted(set().union(*(draft.clip_sizes for draft in drafts)))
        if len(shapes) > 1:
            raise LoaderError(
                f"clips of different shapes {shapes} in one batch: end the transforms with a crop to one size"
            )
        self._graph.start({name: [draft.inputs[name] for draft in drafts] for name in drafts[0].inputs})

    def _collect(self, drafts: Sequence[Draft]) -> Any:
        if not drafts:
            return None
        clips, shapes = self._graph.finish()
        for draft, (_, height, width, _) in zip(drafts, shapes):
            if (height, width) != draft.frame_size:
                raise RuntimeError(
                    f"its frames decode to {width}×{height}, not to the {draft.frame_size[1]}×"
                    f"{draft.frame_size[0]} that its crop was chosen for"
                )
        return clips

    def _batch(self, drafts: Sequence[Draft], clips: Any) -> Batch:
        dataset, num_clips = self._drafter.dataset, self._shape.num_clips
        usable = _usable(drafts)
        samples = [draft.sample(clip, dataset) for clip in range(num_clips) for draft in usable]
        if clips is not None:  # views lie one after the other
            size = clips.shape[3:]
            clips = clips.reshape((len(usable), num_clips, -1, *size))
            if num_clips > 1:  # as the requests are: first clip 0 of all videos
                clips = clips.transpose((1, 0, *range(2, clips.ndim)))
            clips = clips.reshape((len(samples), -1, *size))
        return batch_of(samples, clips, [incident for draft in drafts for incident in draft.incidents])


def _usable(drafts: Sequence[Draft]) -> list[Draft]:
    return [draft for draft in drafts if draft.attempt is not None]


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
        wanted = num_cores() if num_threads == "auto" else num_threads
        self.num_threads = max(1, wanted)
        self._running: Generator[Batch, None, None] | None = None
        self._drafter = Drafter(dataset, "cpu" if options.device_id is None else "gpu")
        pipeline = dataset.pipeline
        num_views = int(np.prod([step.num_views for step in pipeline.geometric]))
        self._shape = GraphShape(
            batch_size=batch_sampler.batch_size // dataset.clips_per_video,
            num_threads=self.num_threads,
            device_id=options.device_id,
            num_views=num_views,
            num_changes=self._drafter.num_changes,
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
        self._running = _batches(self._drafter, self._shape, self.batch_sampler.batches(epoch, start_batch))
        return self._running

    def close(self) -> None:
        """Ends the epoch under way, with its threads and its DALI pipeline."""
        if self._running is not None:
            self._running.close()
            self._running = None


def _batches(
    drafter: Drafter, shape: GraphShape, requested: Sequence[list[ClipRequest]]
) -> Generator[Batch, None, None]:
    """See `DaliLoader.epoch`.

    It knows nothing of the loader: were the two a reference cycle, an epoch that is left early would end in
    the garbage collector, in any thread and at any time, and wait there for its own threads.
    """
    maker = BatchMaker(drafter, shape)
    pool = ThreadPoolExecutor(shape.num_threads, thread_name_prefix="dali-open")
    try:
        for drafts in _drafted(drafter, requested, shape.num_clips, pool):
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
    drafter: Drafter, requested: Sequence[list[ClipRequest]], num_clips: int, pool: ThreadPoolExecutor
) -> Iterator[list[Draft]]:
    waiting: deque[list[Future[Draft]]] = deque()
    for requests in requested:
        waiting.append([pool.submit(drafter.draft, group) for group in _videos(requests, num_clips)])
        if len(waiting) > _BATCHES_AHEAD:
            yield [future.result() for future in waiting.popleft()]
    for futures in waiting:
        yield [future.result() for future in futures]


def _videos(requests: list[ClipRequest], num_clips: int) -> list[list[ClipRequest]]:
    """The requests of each video: a batch has first clip 0 of all of them, then clip 1, and so on."""
    num_videos = len(requests) // num_clips
    return [requests[video::num_videos] for video in range(num_videos)]
