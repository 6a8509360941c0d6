"""Measures a training run, finds what limits it, and tries what would make it faster.

It times the run's trainer on its own loader, the trainer on made-up batches, and the reader alone. A model of
a training step predicts from these what a change would gain:

    no workers:   step = train + read
    W workers:    step = max(train, read / W, (train_cpu + read) / cores)

`train` is a step on made-up batches. `read` is the time in which one process makes the batch of a step.
Workers hand it over in memory that they share with the trainer, which takes next to nothing. `train_cpu` is
the CPU time of `train` over all its threads: the last term is the machine, whose cores training and reading
share.
"""

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import paddle

from paddlevideo_fast.apps.doctor.reading import (
    Form,
    ReadingCost,
    other_forms,
    share_of_cost,
    time_reading,
)
from paddlevideo_fast.apps.doctor.repeats import (
    USUAL,
    repeated_tokens,
    shorter_training,
    takes_run_lengths,
)
from paddlevideo_fast.apps.doctor.report import MIN_SPEEDUP, summary
from paddlevideo_fast.apps.doctor.timing import (
    StepTimes,
    SyntheticLoader,
    own_loader,
    time_steps,
    time_training_stages,
)
from paddlevideo_fast.assembly import TrainingSetup, plan_run, training_setup
from paddlevideo_fast.config import Config, RunSpec
from paddlevideo_fast.engine import MixedPrecision, Precision, has_dtype
from paddlevideo_fast.errors import PaddleVideoFastError, VideoDecodeError
from paddlevideo_fast.loader import Batch, ClipRequest
from paddlevideo_fast.loader.collate import make_batch
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.loader.request import group_by_video
from paddlevideo_fast.machine import num_cores
from paddlevideo_fast.modeling.recognizers import Recognizer3D

_MAX_CLIPS = 64
_TRIAL_STEPS, _TRIAL_SEC = 5, 6.0
_MOSTLY, _SOME = 0.5, 0.1


@dataclass(frozen=True)
class StepCost:
    """The terms of the model, in seconds a step.

    Attributes:
        train_sec: normalise, forward, backward and optimizer.
        train_cpu_sec: CPU time of these, over all threads.
        read_sec: one process makes a batch.
        num_workers: processes that read; 0: the training process reads.
        num_cores: CPU cores that the run may use.
    """

    train_sec: float
    train_cpu_sec: float
    read_sec: float
    num_workers: int
    num_cores: int

    @property
    def step_sec(self) -> float:
        """The predicted step."""
        if self.num_workers == 0:
            return self.train_sec + self.read_sec
        both_sec = (self.train_cpu_sec + self.read_sec) / self.num_cores
        return max(self.train_sec, self.read_sec / self.num_workers, both_sec)

    def gain(self, **changes: Any) -> float:
        """How many times faster a step becomes when fields change."""
        return self.step_sec / max(replace(self, **changes).step_sec, 1e-9)

    def scaled(self, train: float, read: float) -> float:
        """The gain where training takes `train` times as long, and reading `read` times."""
        return self.gain(
            train_sec=train * self.train_sec,
            train_cpu_sec=train * self.train_cpu_sec,
            read_sec=read * self.read_sec,
        )

    def best_num_workers(self) -> int:
        """The fewest workers, up to the number of cores, within 3 % of the fastest step."""
        steps = {number: replace(self, num_workers=number).step_sec for number in range(self.num_cores + 1)}
        fastest = min(steps.values())
        return next(number for number, step_sec in steps.items() if step_sec <= 1.03 * fastest)


@dataclass(frozen=True)
class Suggestion:
    """A change of the run and its predicted gain.

    Attributes:
        name: of the change.
        gain: clips a second with the change over clips a second without; None: unknown.
        basis: "model": predicted from measured stages; "measured": the change was tried; else the reason why
            the gain is unknown.
        how: what the user does for it.
    """

    name: str
    gain: float | None
    basis: str
    how: str

    @property
    def helps(self) -> bool:
        """Whether the gain is known and worth the trouble."""
        return self.gain is not None and self.gain >= MIN_SPEEDUP


@dataclass(frozen=True)
class Run:
    """What was measured of a run.

    Attributes:
        parts: model, optimizer and data.
        cost: of a step.
        reading: of a clip.
        batch_size: clips of a batch.
        decoded: a batch of the training clips, if the network is one that RLT is for.
    """

    parts: TrainingSetup
    cost: StepCost
    reading: ReadingCost
    batch_size: int
    decoded: Batch | None = None

    @property
    def dataset(self) -> ClipDataset:
        return self.parts.split.dataset


def examine(cfg: Config, steps: int = 20, progress: Callable[[str], None] = print) -> dict[str, Any]:
    """Measures the training that a config describes. Nothing is learned, and nothing is kept.

    Args:
        cfg: a checked config.
        steps: optimizer steps to time; fewer where they take long.
        progress: called with a line about each measurement that starts.

    Returns:
        The values of doctor.json, which docs/en/performance.md describes.

    Raises:
        PaddleVideoFastError: as training does; also where DATASET.train is missing, where no clip decodes and
            where DALI reads.
    """
    if cfg.get("train_dali"):
        raise cfg.error("train_dali", "the doctor times our own reader only; set -o train_dali=false")
    parts = training_setup(plan_run(RunSpec.for_training(cfg)), load_pretrained=False)
    progress(parts.notes[0])
    loader = own_loader(parts)
    batch_size = loader.batch_sampler.batch_size
    progress(f"training {steps} steps on the real loader")
    with contextlib.closing(loader):
        real = time_steps(parts, loader, steps)
    assert loader.num_workers != "auto"  # the first epoch has measured it
    progress("reading alone, stage by stage")
    batches = loader.batch_sampler.batches(epoch=1)
    videos = ([batch[place] for place in places] for batch in batches for places in group_by_video(batch))
    num_videos = -(-_MAX_CLIPS // parts.split.dataset.clips_per_video)
    timed = list(itertools.islice(videos, num_videos))
    _fetch(parts.split.dataset, timed)
    reading = time_reading(parts.split.dataset, timed)
    progress(f"training {steps} steps on made-up batches")
    made_up = SyntheticLoader(batch_size, reading.clip_shape, parts.model)
    synthetic = time_steps(parts, made_up, steps)
    training = time_training_stages(parts, made_up, max(steps // 2, 2))
    clips_a_step = synthetic.num_clips / synthetic.num_steps
    cost = StepCost(
        train_sec=synthetic.step_sec,
        train_cpu_sec=synthetic.cpu_sec / synthetic.num_steps,
        read_sec=clips_a_step * reading.total_sec,
        num_workers=loader.num_workers,
        num_cores=num_cores(),
    )
    decoded = _real_batch(parts, timed, batch_size) if takes_run_lengths(parts.model) else None
    run = Run(parts, cost, reading, batch_size, decoded)
    proposed = sorted(suggestions(run, progress), key=lambda suggestion: -(suggestion.gain or 0.0))
    result: dict[str, Any] = {
        "config": cfg.path,
        "device": paddle.get_device(),
        "paddle": paddle.__version__,
        "num_cores": cost.num_cores,
        "num_threads": int(os.environ.get("OMP_NUM_THREADS", 1)),
        "num_workers": cost.num_workers,
        "batch_size": batch_size,
        "clip_shape": list(reading.clip_shape),
        "real": _steps(real),
        "synthetic": {**_steps(synthetic), "cpu_sec": cost.train_cpu_sec},
        "stages_sec": {"reading": _times(clips_a_step, reading.stages), "training": training},
        "augment_sec": _times(clips_a_step, reading.augment_steps),
        "model": {**asdict(cost), "step_sec": cost.step_sec},
        "remedies": [{**asdict(suggestion), "helps": suggestion.helps} for suggestion in proposed],
    }
    if decoded is not None:
        result["repeated_tokens"] = repeated_tokens(parts, decoded)
    result["limit"] = limit(result)
    result["summary"] = summary(result)
    return result


def _fetch(dataset: ClipDataset, videos: Sequence[list[ClipRequest]]) -> None:
    """Has what clips are read from in the cache, so that the reader is timed and not the store."""
    for requests in videos if dataset.is_remote else ():
        with contextlib.suppress(VideoDecodeError):  # the reader tells
            dataset.fetch(requests)


def _real_batch(parts: TrainingSetup, videos: Sequence[list[ClipRequest]], batch_size: int) -> Batch | None:
    """A batch of the training clips; None where none of them decodes."""
    requests = list(itertools.chain(*videos))[:batch_size]
    batch = make_batch(parts.split.dataset, requests)
    return batch if len(batch) else None


def _times(factor: float, stages: Mapping[str, float]) -> dict[str, float]:
    return {name: factor * sec for name, sec in stages.items()}


def _steps(times: StepTimes) -> dict[str, Any]:
    return {name: getattr(times, name) for name in ("num_steps", "step_sec", "wait_share", "clips_per_sec")}


def limit(result: Mapping[str, Any]) -> dict[str, Any]:
    """What limits the run.

    Reading does where the run waits for most of a step, however fast the reader was alone (its files may have
    been in memory by then). Else the larger term of the model does, where reading costs the run anything.

    Returns:
        "part": "reading" or "training"; "stage": the part's longest stage; "share": of the part's time.
    """
    real, model = result["real"], result["model"]
    read_sec, train_sec = model["read_sec"], model["train_sec"]
    if model["num_workers"]:
        read_sec /= model["num_workers"]
        if model["step_sec"] > max(read_sec, train_sec):  # the cores are what is short: who uses them?
            read_sec, train_sec = read_sec * model["num_workers"], model["train_cpu_sec"]
    lost = 1 - result["synthetic"]["step_sec"] / real["step_sec"]
    reading = real["wait_share"] > _MOSTLY or (lost > _SOME and read_sec > train_sec)
    part = "reading" if reading else "training"
    stages = result["stages_sec"][part]
    stage = max(stages, key=stages.__getitem__)
    return {"part": part, "stage": stage, "share": stages[stage] / sum(stages.values())}


def suggestions(run: Run, progress: Callable[[str], None]) -> Iterator[Suggestion]:
    """The changes that apply to the run. A change that could not gain a tenth even at best is not tried.

    Args:
        run: what was measured.
        progress: called with a line about each trial.
    """
    cost = run.cost
    best = cost.best_num_workers()
    if best > cost.num_workers:
        how = f"-o DATASET.num_workers={best}"
        yield Suggestion("more workers", cost.gain(num_workers=best), "model", how)
    clips_a_step = cost.read_sec / run.reading.total_sec
    source_sec = clips_a_step * run.reading.source_sec
    if cost.gain(read_sec=cost.read_sec - source_sec) >= MIN_SPEEDUP:
        yield from _cheaper_forms(run, source_sec, progress)
    augment_sec = clips_a_step * run.reading.stages["augment"]
    if augment_sec:
        worst = max(run.reading.augment_steps, key=lambda name: run.reading.augment_steps[name])
        gain = cost.gain(read_sec=cost.read_sec - augment_sec)
        how = f"leave transforms that change pixels out, {worst} first, or lower its probability"
        yield Suggestion("fewer transforms", gain, "model", how)
    if cost.gain(train_sec=0.0, train_cpu_sec=0.0) >= MIN_SPEEDUP:
        yield from _faster_training(run, progress)


def _tried(
    name: str, how: str, measure: Callable[[], float], errors: type[Exception] = PaddleVideoFastError
) -> Suggestion:
    """A change with the gain that `measure` returns; the gain is unknown where one of `errors` stops it."""
    try:
        return Suggestion(name, measure(), "measured", how)
    except errors as error:
        cause = (str(error).strip() or repr(error)).splitlines()[0]
        return Suggestion(name, None, f"unknown: {cause}", how)


def _cheaper_forms(run: Run, source_sec: float, progress: Callable[[str], None]) -> Iterator[Suggestion]:
    for form in other_forms(run.dataset, run.batch_size):
        progress(f"trying {form.name} on a few of the clips")

        def gain(form: Form = form) -> float:
            saved_sec = (1 - share_of_cost(run.dataset, form)) * source_sec
            return run.cost.gain(read_sec=run.cost.read_sec - saved_sec)

        yield _tried(form.name, form.how, gain)


def _faster_training(run: Run, progress: Callable[[str], None]) -> Iterator[Suggestion]:
    shape = run.reading.clip_shape
    side = shape[1] * 3 // 4
    smaller = (shape[0], side, shape[2] * 3 // 4, 3)
    larger = f"-o DATASET.batch_size={2 * run.batch_size}, with the learning rate that belongs to it"
    trials: list[tuple[str, int, tuple[int, ...], Precision | None, str]] = [
        ("larger batch", 2, shape, None, larger),
        ("smaller input", 1, smaller, None, f"crops of {side} pixels; may cost accuracy"),
    ]
    if paddle.get_device() != "cpu" and not run.parts.spec.run.amp:  # a CPU has no kernels for it
        mixed = MixedPrecision("O1", "bfloat16" if has_dtype("bfloat16") else "float16")
        trials.insert(0, ("mixed precision", 1, shape, mixed, "--amp"))
    for name, factor, size, precision, how in trials:
        progress(f"trying {name}")
        gain = partial(_gain_of_training, run, factor, size, precision)
        yield _tried(name, how, gain, Exception)  # whatever the device or its memory has against it
    if run.decoded is not None:
        yield _run_lengths(run, run.decoded, progress)
    if isinstance(run.parts.model, Recognizer3D) and not run.parts.spec.run.multigrid:
        how = "paddlevideo-fast plan CONFIG  predicts what --multigrid gains, and says what speaks against it"
        yield Suggestion("multigrid", None, "unknown: it depends on the schedule", how)
    yield Suggestion(
        "smaller network", None, "unknown: it depends on the network", "less depth or width in MODEL.backbone"
    )


def _run_lengths(run: Run, decoded: Batch, progress: Callable[[str], None]) -> Suggestion:
    """Training without the tokens that repeat, on real clips."""
    progress("trying run-length tokens on a batch of the clips")

    def gain() -> float:
        share = shorter_training(run.parts, decoded, run.reading.clip_shape)
        return run.cost.scaled(share, 1)

    return _tried("run-length tokens", f"-o RLT.threshold={USUAL:g}; may cost accuracy", gain, Exception)


def _gain_of_training(run: Run, factor: int, size: Sequence[int], precision: Precision | None) -> float:
    """The gain of steps on `factor` times as many made-up clips of another size or in another precision."""
    plain = SyntheticLoader(run.batch_size, run.reading.clip_shape, run.parts.model)
    loader = SyntheticLoader(factor * run.batch_size, size, run.parts.model)
    # beside the plain step, so that other programs on the machine slow both
    base = time_steps(run.parts, plain, _TRIAL_STEPS, 1, _TRIAL_SEC / 2)
    times = time_steps(run.parts, loader, _TRIAL_STEPS, 1, _TRIAL_SEC, precision)
    return factor * run.cost.scaled(times.step_sec / base.step_sec, factor)
