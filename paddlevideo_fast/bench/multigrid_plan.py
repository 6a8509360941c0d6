"""What a multigrid run will do and what it will cost against the plain one, before it is started."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import paddle

from paddlevideo_fast.bench.shape_cost import ShapeCosts
from paddlevideo_fast.config import Config, DatasetSettings, RunSettings, accumulation_of, build
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.loader import ClipBatchSampler, build_dataset
from paddlevideo_fast.planning import ClipShape, batch_shapes, plain_clip, plan_run
from paddlevideo_fast.registry import LEARNING_RATES
from paddlevideo_fast.schedule import Phase, plain_phases
from paddlevideo_fast.solver.learning_rate import Constant, LearningRate

FRAME_SIZE = (340, 256)
_YUV_BYTES = 1.5
_SUMS = ("iterations", "clips", "flops", "decoded_bytes", "clip_bytes", "train_sec")
_SECTIONS = ("MODEL", "MULTIGRID", "OPTIMIZER", "PIPELINE")


@dataclass(frozen=True)
class PlanOptions:
    """What is asked of a plan.

    Attributes:
        num_clips: of the training list; None: counted from it, where it exists.
        frame_size: (width, height) of the videos.
        num_steps: to time at each shape; 0: none.
        limit_sec: no step is timed where all of them would take longer.
    """

    num_clips: Optional[int] = None
    frame_size: Tuple[int, int] = FRAME_SIZE
    num_steps: int = 3
    limit_sec: float = 120.0


def make_plan(
    cfg: Config, options: PlanOptions, progress: Callable[[str], None] = lambda text: None
) -> Dict[str, Any]:
    """The plan of a config that has `multigrid` on, for one process.

    Args:
        cfg: checked.
        options: what to find out.
        progress: told what is measured.

    Returns:
        What docs/en/multigrid.md says of multigrid_plan.json.

    Raises:
        ConfigError: as training does; there is no MULTIGRID section.
        AnnotationError: the training list exists and cannot be read.
        LoaderError: there are fewer clips than a phase has in a batch.
    """
    for name in _SECTIONS:
        if not cfg.get(name):
            raise ConfigError([f"{cfg.path}  {name}: a multigrid plan needs this section"])
    run = plan_run(cfg)
    curve = run.curve or _configured_curve(cfg)
    (plain,) = plain_phases(RunSettings.from_config(cfg).epochs)
    max_epoch = run.phases[-1].end_epoch
    rates = [curve.at(epoch) for epoch in range(max_epoch)]
    num_clips = options.num_clips or _listed_clips(cfg)
    pricing = _Pricing(cfg, replace(options, num_clips=num_clips), progress)
    pricing.measure([plain, *run.phases])
    described, plain_run = [pricing.describe(phase) for phase in run.phases], pricing.describe(plain)
    multigrid_run = {key: sum(phase[key] for phase in described) for key in _SUMS if key in plain_run}
    speed_up = None
    if "train_sec" in plain_run:
        speed_up = plain_run["train_sec"] / multigrid_run["train_sec"]
    return {
        "config": cfg.path,
        "device": paddle.get_device(),
        "paddle": paddle.__version__,
        "num_clips": num_clips,
        "frame_size": list(options.frame_size),
        "max_epoch": max_epoch,
        "lr_at_epoch": rates,
        "phases": described,
        "plain": plain_run,
        "multigrid": multigrid_run,
        "speed_up": speed_up,
    }


def _configured_curve(cfg: Config) -> LearningRate:
    rate = cfg["OPTIMIZER"]["learning_rate"]
    return build(LEARNING_RATES, rate) if isinstance(rate, Mapping) else Constant(rate)


def _listed_clips(cfg: Config) -> Optional[int]:
    """Clips of the training list, None where there is none."""
    section = (cfg.get("DATASET") or {}).get("train") or {}
    if not Path(section.get("file_path") or "").is_file():
        return None
    return len(build_dataset(section, cfg["PIPELINE"]["train"], training=True, seed=0))


class _Pricing:
    """Phases as JSON values, with what they cost."""

    def __init__(self, cfg: Config, options: PlanOptions, progress: Callable[[str], None]) -> None:
        self._options = options
        self._progress = progress
        self._batch_size = DatasetSettings.from_config(cfg).batch_size
        self._accumulation = accumulation_of(cfg)
        self._clip = plain_clip(cfg)
        self._costs = ShapeCosts(cfg, options.num_steps)
        self._timed = False

    def measure(self, phases: Sequence[Phase]) -> None:
        """Finds the cost of all shapes, and says how far it is."""
        steps = sorted(
            {
                (batch_size, clip.num_frames, clip.crop_size, phase.bn_splits)
                for phase in phases
                for batch_size, clip in self._in_turn(phase)
            }
        )
        clips = sorted({step[1:3] for step in steps})
        for number, (num_frames, crop_size) in enumerate(clips, 1):
            self._progress(f"counting FLOPs, shape {number} of {len(clips)}: {num_frames}×{crop_size}²")
            self._costs.of_clip(num_frames, crop_size)
        if not self._options.num_steps:
            return
        expected_sec = sum(self._costs.timing_sec(*step[:3]) for step in steps)
        if expected_sec > self._options.limit_sec:
            minutes = f"{max(expected_sec / 60, 1):.0f} min"
            self._progress(f"no step is timed: that would take about {minutes}; raise --limit for a speed-up")
            return
        self._timed = True
        for number, (batch_size, num_frames, crop_size, bn_splits) in enumerate(steps, 1):
            clip = f"{num_frames}×{crop_size}²"
            self._progress(f"timing steps, shape {number} of {len(steps)}: {batch_size} clips of {clip}")
            self._costs.step_sec(batch_size, num_frames, crop_size, bn_splits)

    def describe(self, phase: Phase) -> Dict[str, Any]:
        """A phase and what it costs."""
        in_turn = self._in_turn(phase)
        batch_size, clip = in_turn[-1]
        shapes = [self._shape(*shape, phase.bn_splits) for shape in in_turn]
        values = {
            "start_epoch": phase.start_epoch,
            "end_epoch": phase.end_epoch,
            "batch_multiplier": phase.batch_multiplier,
            **clip._asdict(),
            "bn_splits": phase.bn_splits,
            "lr_multiplier": phase.batch_multiplier,
            "batch_size": batch_size,
            "shapes": shapes,
            "activation_bytes": max(shape["activation_bytes"] for shape in shapes),
        }
        if self._options.num_clips:
            values.update(self._sums(phase, clip, shapes, self._options.num_clips))
        return values

    def _in_turn(self, phase: Phase) -> List[Tuple[int, ClipShape]]:
        """Batch size and clip of the steps that a phase takes in turn, its own last."""
        return [
            (
                shape.batch_size,
                ClipShape(
                    shape.num_frames or self._clip.num_frames,
                    shape.crop_size or self._clip.crop_size,
                    shape.sampling_rate or self._clip.sampling_rate,
                ),
            )
            for shape in batch_shapes(phase, self._batch_size)
        ]

    def _shape(self, batch_size: int, clip: ClipShape, bn_splits: int) -> Dict[str, Any]:
        cost = self._costs.of_clip(clip.num_frames, clip.crop_size)
        values: Dict[str, Any] = {
            "batch_size": batch_size,
            "num_frames": clip.num_frames,
            "crop_size": clip.crop_size,
            "flops": cost.flops * batch_size,
            "activation_bytes": cost.activation_bytes * batch_size,
        }
        if self._timed:
            values["step_sec"] = self._costs.step_sec(batch_size, clip.num_frames, clip.crop_size, bn_splits)
        return values

    def _sums(
        self, phase: Phase, clip: ClipShape, shapes: Sequence[Mapping[str, Any]], num_clips: int
    ) -> Dict[str, float]:
        """Of all epochs of a phase."""
        epochs = phase.end_epoch - phase.start_epoch
        in_turn = batch_shapes(phase, self._batch_size, self._accumulation)
        sampler = ClipBatchSampler(num_clips, in_turn, shuffle=True, drop_last=True, seed=0)
        turns = Counter(batch // self._accumulation % len(shapes) for batch in range(sampler.num_batches))

        def total(of_batch: Callable[[Mapping[str, Any]], float]) -> float:
            return epochs * sum(turns[turn] * of_batch(shape) for turn, shape in enumerate(shapes))

        clips = total(lambda shape: shape["batch_size"])
        span_frames = clip.num_frames * (self._clip.sampling_rate + clip.sampling_rate) / 2  # the mean one
        width, height = self._options.frame_size
        sums = {
            "iterations": epochs * -(-sampler.num_batches // self._accumulation),
            "clips": clips,
            "flops": total(lambda shape: shape["flops"]),
            "decoded_bytes": clips * span_frames * width * height * _YUV_BYTES,
            "clip_bytes": total(
                lambda shape: shape["batch_size"] * shape["num_frames"] * shape["crop_size"] ** 2 * 3
            ),
        }
        if self._timed:
            sums["train_sec"] = total(lambda shape: shape["step_sec"]) / self._accumulation
        return sums
