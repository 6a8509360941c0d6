"""The multigrid schedule: shapes of clips, batch sizes and learning rates over the epochs of a run.

Reference: Wu et al., "A Multigrid Method for Efficiently Training Video Models", arXiv 1912.00998, section 3.
Rounding and fine-tuning follow PySlowFast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from statistics import mean
from typing import Literal

from paddlevideo_fast.errors import ScheduleError
from paddlevideo_fast.schedule.phases import Phase, ShortShape

LrScaling = Literal["linear", "sqrt", "none"]
_POWERS = {"linear": 1.0, "sqrt": 0.5, "none": 0.0}


@dataclass(frozen=True)
class Baseline:
    """The plain training that a multigrid run replaces.

    Attributes:
        epochs: of the training.
        steps: epochs at which the learning rate changes; the first is 0.
        num_frames: frames of a clip.
        crop_size: side of a clip in pixels.
        sampling_rate: frames of the video from one frame of the clip to the next.
    """

    epochs: int
    steps: Sequence[float]
    num_frames: int
    crop_size: int
    sampling_rate: float


@dataclass(frozen=True)
class RateStep:
    """From `epoch` on, the learning rate is the rate of the baseline's `stage` times `multiplier`."""

    epoch: int
    stage: int
    multiplier: float


@dataclass(frozen=True)
class Schedule:
    """Phases and learning rate of a multigrid run.

    Attributes:
        phases: spans of epochs at one shape of the long cycle.
        rate_steps: steps of the learning rate.
    """

    phases: list[Phase]
    rate_steps: list[RateStep]


def multigrid_schedule(
    baseline: Baseline,
    long_factors: Sequence[tuple[float, float]],
    short_factors: Sequence[float],
    epoch_factor: float,
    lr_scaling: LrScaling = "linear",
    finish: float = 0.0,
) -> Schedule:
    """The schedule of a run with a long cycle, a short cycle or both.

    Clips of T frames and S² pixels come in batches T0·S0² / (T·S²) times as large as the baseline's, so every
    step costs about the same. In each stage of the learning rate all shapes of the long cycle get the same
    number of steps. The last stage trains at the last shape alone; its first half keeps the previous rate.
    A rate of one stage, such as a cosine, goes through the shapes once.

    Args:
        baseline: the plain training.
        long_factors: (share of the frames, share of the side) of the long cycle's shapes, small to large;
            empty: no long cycle.
        short_factors: shares of the baseline's side through which a short cycle goes before the phase's own
            side; empty: no short cycle.
        epoch_factor: epochs of the run for each epoch of the baseline.
        lr_scaling: how the learning rate grows with the batch of the long cycle: in proportion (the paper),
            with its root, or not at all.
        finish: share of the epochs at the end that train at the baseline's shape alone, without cycles.
            0: as the paper.

    Raises:
        ScheduleError: the steps do not rise, or a shape has no frames or no pixels, or a phase no epoch.
    """
    if list(baseline.steps) != sorted(set(baseline.steps)) or list(baseline.steps[:1]) != [0]:
        raise ScheduleError(f"steps {list(baseline.steps)} of the learning rate must start at 0 and rise")
    shapes = [_Shape(baseline, *factors, short_factors) for factors in long_factors or [(1.0, 1.0)]]
    cycles = _both_cycles if long_factors else _short_cycle_alone
    schedule = cycles(baseline, shapes, epoch_factor)
    if finish:
        schedule = _finished(schedule, _Shape(baseline, 1.0, 1.0, ()), finish)
    rate_steps = [
        replace(step, multiplier=rate_multiplier(step.multiplier, lr_scaling)) for step in schedule.rate_steps
    ]
    return Schedule(schedule.phases, rate_steps)


def rate_multiplier(batch_multiplier: float, lr_scaling: LrScaling) -> float:
    """The factor on the learning rate for a batch that is `batch_multiplier` times as large."""
    return batch_multiplier ** _POWERS[lr_scaling]


def _both_cycles(baseline: Baseline, shapes: Sequence[_Shape], epoch_factor: float) -> Schedule:
    """The paper's schedule; with one stage, its long cycle alone, without the stage that fine-tunes."""
    if baseline.steps[-1] >= baseline.epochs:
        raise ScheduleError(
            f"steps {list(baseline.steps)} of the learning rate: the long cycle needs the last one before "
            f"the end at epoch {baseline.epochs}"
        )
    spans = _long_cycle(baseline, shapes)
    scale = baseline.epochs * epoch_factor / sum(epochs for _, _, epochs in spans)
    ends = [round(end) for end in accumulate(epochs * scale for _, _, epochs in spans)]
    starts = [0, *ends[:-1]]
    if any(start >= end for start, end in zip(starts, ends)):
        raise ScheduleError(
            f"{ends[-1]} epochs for {len(ends)} phases leave one without any: raise epochs or epoch_factor, "
            "or take fewer long_cycle_factors"
        )
    phases = [shape.phase(start, end) for (_, shape, _), start, end in zip(spans, starts, ends)]
    rate_steps = [RateStep(start, stage, shape.batch) for (stage, shape, _), start in zip(spans, starts)]
    if len(baseline.steps) > 1:
        previous, last = rate_steps[-2:]
        middle = (starts[-1] + ends[-1]) // 2
        rate_steps[-1] = RateStep(middle, last.stage, last.multiplier)
        if middle > last.epoch:
            rate_steps.insert(-1, RateStep(last.epoch, previous.stage, previous.multiplier))
    return Schedule(phases, rate_steps)


def _finished(schedule: Schedule, full: _Shape, share: float) -> Schedule:
    """The schedule with this share of its epochs, the last ones, at the full shape and its rates."""
    end = schedule.phases[-1].end_epoch
    start = end - max(round(end * share), 1)
    if start < 1:
        raise ScheduleError(f"finish {share:g} leaves no epoch of {end} for the cycles; lower it")
    cycles = [phase for phase in schedule.phases if phase.start_epoch < start]
    phases = [replace(phase, end_epoch=min(phase.end_epoch, start)) for phase in cycles]
    before = [step for step in schedule.rate_steps if step.epoch < start]
    finishing = [step for step in schedule.rate_steps if step.epoch >= start]
    if not finishing or finishing[0].epoch > start:
        finishing.insert(0, replace(before[-1], epoch=start))
    rate_steps = [*before, *(replace(step, multiplier=1) for step in finishing)]
    return Schedule([*phases, full.phase(start, end)], rate_steps)


class _Shape:
    """A shape of the long cycle, with the smaller shapes of the short cycle.

    Attributes:
        batch: its batch size as a multiple of the baseline's.
        mean_batch: the mean of this multiple over a short cycle.
        short_cycle: the smaller sides that come before its own side.
    """

    def __init__(
        self, baseline: Baseline, frame_factor: float, side_factor: float, short_factors: Sequence[float]
    ) -> None:
        self.baseline = baseline
        self.num_frames = round(baseline.num_frames * frame_factor)
        self.crop_size = round(baseline.crop_size * side_factor)
        sides = [*(baseline.crop_size * factor for factor in short_factors), self.crop_size]
        smallest = round(min(sides))
        if self.num_frames < 1 or smallest < 1:
            raise ScheduleError(
                f"factors [{frame_factor}, {side_factor}] leave {self.num_frames} frames of {smallest} "
                f"pixels of a clip of {baseline.num_frames} frames of {baseline.crop_size}"
            )
        volume = baseline.num_frames * baseline.crop_size**2
        batches = [round(volume / (self.num_frames * side**2)) for side in sides]
        self.batch = batches[-1]
        self.mean_batch = mean(batches)
        if self.batch < 1:
            text = "make clips larger than the baseline's: they must not be above 1"
            raise ScheduleError(f"factors [{frame_factor}, {side_factor}] {text}")
        self.short_cycle = tuple(
            ShortShape(max(round((self.crop_size / side) ** 2), 1), min(round(side), self.crop_size))
            for side in sides[:-1]
        )

    def phase(self, start: int, end: int) -> Phase:
        """Training at this shape."""
        base = self.baseline
        rate = base.sampling_rate * base.num_frames / self.num_frames
        return Phase(start, end, self.batch, self.num_frames, self.crop_size, rate, self.short_cycle)


def _long_cycle(baseline: Baseline, shapes: Sequence[_Shape]) -> list[tuple[int, _Shape, float]]:
    """Stage, shape and epochs of each phase, before the epoch factor."""
    steps = baseline.steps
    cycle = sum(shape.mean_batch for shape in shapes)
    spans = [
        (stage, shape, (end - start) * shape.mean_batch / cycle)
        for stage, (start, end) in enumerate(pairwise(steps if len(steps) > 1 else (0, baseline.epochs)))
        for shape in shapes
    ]
    if len(steps) == 1:
        return spans
    # fine-tuning saves as many steps as the rest does
    saved = steps[-1] / sum(epochs / shape.mean_batch for _, shape, epochs in spans)
    rest = (baseline.epochs - steps[-1]) / saved * shapes[-1].mean_batch
    return [*spans, (len(steps) - 1, shapes[-1], rest)]


def _short_cycle_alone(baseline: Baseline, shapes: Sequence[_Shape], epoch_factor: float) -> Schedule:
    """One phase at the baseline's shape; its epochs are cut to whole ones."""
    epochs = int(baseline.epochs * epoch_factor)
    if not epochs:
        text = f"epoch_factor {epoch_factor:g} leaves none of the {baseline.epochs} epochs; raise it"
        raise ScheduleError(text)
    rate_steps = [RateStep(int(step * epoch_factor), stage, 1) for stage, step in enumerate(baseline.steps)]
    return Schedule([shapes[0].phase(0, epochs)], rate_steps)
