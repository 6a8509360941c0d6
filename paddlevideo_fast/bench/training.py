"""Training steps of a config, timed: the real trainer on the real loader, or on batches made beforehand."""

from __future__ import annotations

import contextlib
import statistics
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

import numpy as np
import paddle

from paddlevideo_fast.assembly import TrainingParts
from paddlevideo_fast.bench.stopwatch import Stopwatch
from paddlevideo_fast.engine import Trainer
from paddlevideo_fast.engine.callbacks import Callback
from paddlevideo_fast.errors import BadSampleShareError, PaddleVideoFastError
from paddlevideo_fast.loader import Batch, ClipLoader
from paddlevideo_fast.schedule import plain_phases

STAGES = ("normalise", "mix", "forward", "backward", "optimizer", "other")
_NO_END = 1_000_000


@dataclass(frozen=True)
class StepTimes:
    """Steps of a trainer.

    Attributes:
        num_steps: optimizer steps that were timed.
        num_clips: clips they trained on.
        total_sec: time of all of them.
        wait_sec: the part of it in which the trainer waited for a batch.
        cpu_sec: CPU time of the training process, over all its threads, without that of the workers.
        median_sec: time of the middle one of the steps.
    """

    num_steps: int
    num_clips: int
    total_sec: float
    wait_sec: float
    cpu_sec: float
    median_sec: float

    @property
    def step_sec(self) -> float:
        return self.total_sec / self.num_steps

    @property
    def wait_share(self) -> float:
        return self.wait_sec / self.total_sec

    @property
    def clips_per_sec(self) -> float:
        return self.num_clips / self.total_sec


class SyntheticLoader:
    """The same batch of made-up pixels and labels again and again, for runs without reading.

    Args:
        batch_size: clips.
        clip_shape: (T, H, W, 3) of one.
        num_classes: labels are below it.
    """

    def __init__(self, batch_size: int, clip_shape: Sequence[int], num_classes: int) -> None:
        rng = np.random.default_rng(0)
        self.batch = Batch(
            clips=rng.integers(0, 256, (batch_size, *clip_shape), dtype=np.uint8),
            labels=rng.integers(0, num_classes, batch_size),
            ids=np.arange(batch_size),
            views=np.zeros(batch_size, np.int64),
        )

    def __len__(self) -> int:
        return _NO_END

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """Without end."""
        while True:
            yield self.batch


def time_steps(
    parts: TrainingParts,
    loader: Any,
    num_steps: int,
    num_warmup: int = 2,
    budget_sec: float = 15.0,
    precision: Any = None,
) -> StepTimes:
    """Trains on `loader` for some steps; epochs follow each other until there were enough.

    Args:
        parts: of the config. Its learning rate becomes 0: a step takes as long, and the weights stay.
        loader: the real one, or a `SyntheticLoader`.
        num_steps: optimizer steps to time.
        num_warmup: steps before them, at least 1.
        budget_sec: ends after so many seconds, when at least two steps were timed.
        precision: in place of the trainer's own.

    Raises:
        PaddleVideoFastError: as training does.
    """
    timer = _StepTimer(num_steps, num_warmup, budget_sec)
    trainer = _trainer(parts, loader, timer)
    if precision is not None:
        trainer.precision = precision
    with contextlib.suppress(_Enough):
        trainer.fit()
    return timer.times()


def time_training_stages(
    parts: TrainingParts, loader: SyntheticLoader, num_steps: int, budget_sec: float = 10.0
) -> Dict[str, float]:
    """Seconds of one step by stage of `STAGES`; on a GPU the device is waited for after each."""
    timer = _StepTimer(num_steps, 1, budget_sec)
    trainer = _trainer(parts, loader, timer)
    with Stopwatch() as watch:
        watch.wrap(trainer, "preprocess", "normalise")
        if trainer.mix is not None:
            watch.wrap(trainer, "mix", "mix")
        watch.wrap(trainer.model, "forward", "forward")
        watch.wrap(trainer.model, "loss", "forward")
        watch.wrap(trainer.precision, "backward", "backward")
        watch.wrap(trainer.precision, "optimizer_step", "optimizer")
        timer.on_start = watch.seconds.clear
        with contextlib.suppress(_Enough):
            trainer.fit()
    times = timer.times()
    stages = {name: watch.seconds.get(name, 0.0) / times.num_steps for name in STAGES}
    stages["other"] = max(times.step_sec - sum(stages.values()), 0.0)
    return stages


def clip_shape(parts: TrainingParts, num_tries: int = 16) -> Tuple[int, ...]:
    """(T, H, W, 3) of a clip of the config, from the first record that decodes.

    Raises:
        BadSampleShareError: none of the first records does.
    """
    dataset = parts.split.loader.dataset
    requests = [
        request for batch in parts.split.loader.batch_sampler.batches(0)[:num_tries] for request in batch
    ]
    failures: List[Tuple[str, str]] = []
    for request in requests[:num_tries]:
        sample = dataset[request]
        if sample.clip is not None:
            return sample.clip.shape
        failures += sample.failures
    path, cause = failures[0]
    raise BadSampleShareError(f"no clip of {dataset.file_path} was found that decodes; {path}: {cause}")


def require_own_loader(loader: Any) -> None:
    """Raises `PaddleVideoFastError` where the clips come from a loader whose batches are not uint8 clips."""
    if not isinstance(loader, ClipLoader):
        raise PaddleVideoFastError(
            "this measurement takes our own reader apart, and the config reads through another loader: add "
            "-o train_dali=false, and compare with  tools/benchmark.py train  with and without it"
        )


class _Enough(Exception):
    """The timer has what it needs."""


class _StepTimer(Callback):
    def __init__(self, num_steps: int, num_warmup: int, budget_sec: float) -> None:
        self.num_steps, self.budget_sec = num_steps, budget_sec
        self.on_start: Callable[[], None] = lambda: None
        self.done = -max(num_warmup, 1)  # the clock starts at the end of a step
        self.num_clips, self.wait_sec = 0, 0.0
        self.ends: List[float] = []
        self.on_gpu = paddle.get_device() != "cpu"

    def fit_begin(self, trainer: Trainer) -> None:
        self.fit_began = time.perf_counter()

    def step_end(self, trainer: Trainer) -> None:
        if self.on_gpu:  # it works on after a call has returned
            paddle.device.synchronize()
        now = time.perf_counter()
        self.done += 1
        if self.done <= 0:
            self.on_start()
            self.ends, self.cpu_began = [now], time.process_time()
            return
        self.wait_sec += trainer.reader_cost_sec
        self.num_clips += trainer.num_clips
        self.ends.append(now)
        self.cpu_ended = time.process_time()
        late = self.done >= 2 and now - self.fit_began > self.budget_sec
        if self.done >= self.num_steps or late:
            raise _Enough

    def times(self) -> StepTimes:
        total_sec, cpu_sec = self.ends[-1] - self.ends[0], self.cpu_ended - self.cpu_began
        median_sec = statistics.median(end - begin for begin, end in zip(self.ends, self.ends[1:]))
        return StepTimes(self.done, self.num_clips, total_sec, self.wait_sec, cpu_sec, median_sec)


def _trainer(parts: TrainingParts, loader: Any, timer: _StepTimer) -> Trainer:
    parts.optimizer.set_lr(0.0)
    trainer = parts.trainer(lambda phase: loader, [timer], plain_phases(_NO_END))
    trainer.max_iters = None
    return trainer
