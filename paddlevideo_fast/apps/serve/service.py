"""What a server does with a video, without HTTP: reading, batches, classes, within limits."""

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paddlevideo_fast.apps.predict.predictor import (
    Entry,
    Prediction,
    Predictor,
    WindowedPrediction,
    entry_of,
    join,
)
from paddlevideo_fast.apps.predict.recipe import clip_shape
from paddlevideo_fast.apps.serve.batching import BatchedProgram
from paddlevideo_fast.apps.serve.errors import RequestError
from paddlevideo_fast.apps.serve.metrics import Metrics
from paddlevideo_fast.apps.serve.reading import (
    Readers,
    ReadingSettings,
    SlowError,
    UnusableError,
    VideoLimits,
)
from paddlevideo_fast.sources.untrimmed.windowing import Windowing

_VIDEO = "video"  # what answers call it


@dataclass(frozen=True)
class ServiceOptions:
    """What a server takes and how it works.

    Args:
        max_batch: clips that the network computes at a time.
        max_wait_ms: how long a batch that is not full waits for more clips.
        max_queue: requests that are worked on or wait; one more is refused.
        num_readers: processes that read videos.
        max_mb: size of a request, in MiB.
        timeout_sec: time for a request.
        limits: of videos.
    """

    max_batch: int = 8
    max_wait_ms: float = 2.0
    max_queue: int = 64
    num_readers: int = 2
    max_mb: int = 100
    timeout_sec: float = 60.0
    limits: VideoLimits = field(default_factory=VideoLimits)


class Job:
    """A request that is worked on.

    Args:
        deadline: by `time.monotonic`.

    Attributes:
        is_gone: nobody waits for the answer any more.
    """

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.is_gone = threading.Event()

    def check(self) -> None:
        """Raises `SlowError` where an answer would come too late."""
        if self.is_gone.is_set() or time.monotonic() > self.deadline:
            raise SlowError("the request was not done in its time")


class Service:
    """A network that answers requests of many threads.

    Args:
        predictor: of the network; its program runs in a thread of the service from now on.
        options: what it takes.
    """

    def __init__(self, predictor: Predictor, options: ServiceOptions) -> None:
        self.options = options
        self.metrics = Metrics()
        self._predictor = predictor
        self._program = BatchedProgram(
            predictor.program, options.max_batch, options.max_wait_ms / 1e3, self.metrics.add_batch
        )
        predictor.program = self._program
        recipe = predictor.recipe
        self._clip_shape = [*clip_shape(recipe), 3]
        self._readers = Readers(
            ReadingSettings(recipe.views, recipe.settings.imports, options.limits), options.num_readers
        )

    def close(self) -> None:
        """Ends the processes and the thread, after the requests that they work on."""
        self._readers.close()
        self._program.close()

    def description(self) -> dict[str, Any]:
        """The model and the limits, as JSON values."""
        options, settings = self.options, self._predictor.recipe.settings
        return {
            "model_name": settings.model_name,
            "num_classes": settings.num_classes,
            "class_names": list(self._predictor.class_names or []),
            "clip_shape": self._clip_shape,
            "max_mb": options.max_mb,
            "max_sec": options.limits.max_sec,
        }

    def predict_file(
        self, descriptor: int, windowing: Windowing | None, top_k: int, job: Job
    ) -> tuple[Entry, int]:
        """The classes of an open video file, see `entry_of`, and its number of clips.

        Raises:
            RequestError: the video or the windows cannot be used, or there is no time left.
        """
        read = self._readers.read(descriptor, windowing, job.deadline, job.check)
        try:
            with contextlib.closing(read):  # the reader is free as soon as nobody waits for more
                video = next(read)
                parts = list(self._predictions(read, job))
        except UnusableError as error:
            raise RequestError(422, f"the video {error}") from error
        except SlowError as error:
            raise RequestError(503, str(error)) from error
        prediction: Prediction | WindowedPrediction = parts[0]
        if video.windows is not None:
            prediction = join(parts, video.windows)
        return self._entry(prediction, top_k), sum(len(part.logits) for part in parts)

    def predict_clips(self, clips: np.ndarray, top_k: int, job: Job) -> tuple[Entry, int]:
        """The classes of a video whose views are uint8 [V, T, H, W, 3], as `predict_file`.

        Raises:
            RequestError: the network takes clips of another shape, or there is no time left.
        """
        if list(clips.shape[1:]) != self._clip_shape:
            raise RequestError(422, f"shape: expected {self._clip_shape}, T, H, W, 3")
        try:
            (prediction,) = self._predictions(iter([clips]), job)
        except SlowError as error:
            raise RequestError(503, str(error)) from error
        return self._entry(prediction, top_k), len(clips)

    def _predictions(self, read: Iterator[np.ndarray], job: Job) -> Iterator[Prediction]:
        while clips := list(itertools.islice(read, self.options.max_batch)):
            job.check()
            yield from self._predictor.predict_clips(clips, _VIDEO)

    def _entry(self, prediction: Prediction | WindowedPrediction, top_k: int) -> Entry:
        entry = entry_of(prediction, top_k)
        del entry["path"]
        return entry
