"""Times the training steps of a config: the trainer of a run, on its own loader or on made-up batches."""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle

from paddlevideo_fast.assembly import TrainingSetup
from paddlevideo_fast.engine import Precision, Trainer
from paddlevideo_fast.engine.callbacks import Callback
from paddlevideo_fast.engine.protocols import BatchLoader
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.loader import Batch, ClipLoader
from paddlevideo_fast.schedule import plain_phases

STAGES = ("normalise", "mix", "forward", "backward", "optimizer", "other")
OF_A_STEP = 0.4  # what predicting a clip takes of training on it
_NO_END = 1_000_000


class Stopwatch(contextlib.ExitStack):
    """Adds up the time of methods by stage; a stage inside another one counts for itself alone.

    It wraps methods of living objects from outside, so the hot path has no code for it. Use it as a context
    manager: at its end the wrapped objects are as they were.

    Attributes:
        seconds: stage → seconds.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seconds: dict[str, float] = defaultdict(float)
        self._inside: list[float] = []
        self._on_gpu = paddle.get_device() != "cpu"

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Counts the time of a block, with the work that it has started on a GPU."""
        self._wait()
        self._inside.append(0.0)
        began = time.perf_counter()
        try:
            yield
        finally:
            self._wait()
            elapsed = time.perf_counter() - began
            self.seconds[name] += elapsed - self._inside.pop()
            if self._inside:
                self._inside[-1] += elapsed

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that calls `function` and counts its time for stage `name`."""

        def call(*args: Any, **options: Any) -> Any:
            with self.stage(name):
                return function(*args, **options)

        return call

    def timed_steps(self, name: str, function: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        """A generator that counts the time which that of `function` takes for each item."""

        def call(*args: Any, **options: Any) -> Iterator[Any]:
            items, end = function(*args, **options), object()
            with contextlib.closing(items):  # type: ignore[type-var]
                while True:
                    with self.stage(name):
                        item = next(items, end)
                    if item is end:
                        return
                    yield item

        return call

    def wrap(self, owner: Any, method: str, stage: str) -> None:
        """Counts the time of a method of an object, or of all objects of a class."""
        self.replace(owner, method, self.timed(stage, getattr(owner, method)))

    def replace(self, owner: Any, method: str, function: Callable[..., Any]) -> None:
        """Puts `function` in the place of a method until the stopwatch ends."""
        if method in vars(owner):
            self.callback(setattr, owner, method, vars(owner)[method])
        else:
            self.callback(delattr, owner, method)
        setattr(owner, method, function)

    def _wait(self) -> None:
        """Waits for the GPU, which works on after a call has returned."""
        if self._on_gpu:
            paddle.device.synchronize()


@dataclass(frozen=True)
class StepTimes:
    """How long the timed steps of a trainer took.

    Attributes:
        num_steps: optimizer steps.
        num_clips: clips in their batches.
        total_sec: all steps together.
        wait_sec: how much of that the trainer waited for batches.
        cpu_sec: CPU time of all threads of the training process; workers are not counted.
        median_sec: the median step.
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
    """A loader that gives one batch of random pixels and labels again and again: training without reading.

    Args:
        batch_size: clips in the batch.
        clip_shape: (T, H, W, 3) of a clip.
        model: labels are drawn below its `num_classes`, any number of them where its activation is sigmoid.
    """

    def __init__(self, batch_size: int, clip_shape: Sequence[int], model: Any) -> None:
        rng = np.random.default_rng(0)
        self.batch = Batch(
            clips=rng.integers(0, 256, (batch_size, *clip_shape), dtype=np.uint8),
            labels=_labels(model, batch_size, rng),
            ids=np.arange(batch_size),
            views=np.zeros(batch_size, np.int64),
        )

    def __len__(self) -> int:
        return _NO_END

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """Without end."""
        while True:
            yield self.batch

    def close(self) -> None:
        """There are no workers to end."""


def _labels(model: Any, batch_size: int, rng: np.random.Generator) -> np.ndarray:
    labels = rng.integers(0, max(model.num_classes, 1), batch_size)
    if getattr(model, "activation", "softmax") == "softmax":
        return labels
    return np.eye(model.num_classes, dtype=np.float32)[labels]


def time_steps(
    parts: TrainingSetup,
    loader: BatchLoader,
    num_steps: int,
    num_warmup: int = 2,
    budget_sec: float = 15.0,
    precision: Precision | None = None,
) -> StepTimes:
    """Trains on `loader` until enough steps were timed; a short epoch is followed by the next one.

    Args:
        parts: model, optimizer and data of the config. The learning rate becomes 0: a step takes as long as
            ever, and the weights stay as they are.
        loader: the loader of the run, or a `SyntheticLoader`.
        num_steps: optimizer steps to time.
        num_warmup: steps before them, at least 1.
        budget_sec: once two steps were timed, no step starts after so many seconds.
        precision: used in place of the trainer's own.

    Raises:
        PaddleVideoFastError: as training does.
    """
    timer = _StepTimer(num_steps, num_warmup, budget_sec)
    trainer = trial_trainer(parts, loader, timer)
    if precision is not None:
        trainer.precision = precision
    with contextlib.suppress(_Enough):
        trainer.fit()
    return timer.times()


def child_environment(variables: Mapping[str, str | None]) -> dict[str, str]:
    """The environment of a process that imports this package, with other `variables`; None: not set there."""
    changed = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return {name: value for name, value in changed.items() if value is not None}


def time_training_stages(parts: TrainingSetup, loader: SyntheticLoader, num_steps: int) -> dict[str, float]:
    """Seconds of a training step by stage (`STAGES`); on a GPU a stage ends when the device is done."""
    timer = _StepTimer(num_steps, 1, budget_sec=10.0)
    trainer = trial_trainer(parts, loader, timer)
    with Stopwatch() as watch:
        watch.wrap(trainer, "preprocess", "normalise")
        if trainer.mix is not None:
            watch.wrap(trainer, "mix", "mix")
        watch.wrap(trainer.model, "forward", "forward")
        watch.wrap(trainer.model if trainer.objective is None else trainer.objective, "loss", "forward")
        if hasattr(trainer.objective, "logits_of"):  # of a teacher, inside of what normalises the clips
            watch.wrap(trainer.objective, "logits_of", "forward")
        watch.wrap(trainer.precision, "backward", "backward")
        watch.wrap(trainer.precision, "optimizer_step", "optimizer")
        timer.on_start = watch.seconds.clear
        with contextlib.suppress(_Enough):
            trainer.fit()
    times = timer.times()
    stages = {name: watch.seconds.get(name, 0.0) / times.num_steps for name in STAGES}
    stages["other"] = max(times.step_sec - sum(stages.values()), 0.0)
    return stages


def own_loader(parts: TrainingSetup) -> ClipLoader:
    """The loader of the training clips, if it is our own, which can be taken apart.

    Raises:
        PaddleVideoFastError: DALI reads.
    """
    loader = parts.split.loader
    if not isinstance(loader, ClipLoader):
        raise PaddleVideoFastError(
            "this measurement takes our own reader apart, and the config reads through another loader: add "
            "-o train_dali=false -o features=null, and compare with  tools/benchmark.py train"
        )
    return loader


class _Enough(Exception):
    """Ends the training once enough steps were timed."""


class _StepTimer(Callback):
    def __init__(self, num_steps: int, num_warmup: int, budget_sec: float) -> None:
        self.num_steps, self.budget_sec = num_steps, budget_sec
        self.on_start: Callable[[], None] = lambda: None
        self.done = -max(num_warmup, 1)  # the clock starts at the end of a step
        self.num_clips, self.wait_sec = 0, 0.0
        self.ends: list[float] = []
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


def trial_trainer(parts: TrainingSetup, loader: BatchLoader, callback: Callback) -> Trainer:
    """A trainer without end, at learning rate 0, whose one callback ends it by an exception."""
    parts.optimizer.set_lr(0.0)
    trainer = parts.trainer(lambda phase: loader, [callback], plain_phases(_NO_END))
    trainer.max_iters = None
    return trainer
