"""From a checked config to the phases and the learning rate of its run, before any data is read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import List, Mapping, NamedTuple, Optional, Sequence

from paddlevideo_fast.config import (
    Config,
    DatasetSettings,
    DistributedSettings,
    MultigridSettings,
    RunSettings,
    build,
)
from paddlevideo_fast.errors import ConfigError, ScheduleError
from paddlevideo_fast.loader import BatchShape, DecodeSampler, TransformError, build_pipeline
from paddlevideo_fast.registry import BACKBONES, LEARNING_RATES
from paddlevideo_fast.schedule import Baseline, Phase, Schedule, multigrid_schedule, plain_phases
from paddlevideo_fast.solver.learning_rate import CustomWarmupPiecewiseDecay, LearningRate


@dataclass(frozen=True)
class RunPlan:
    """What a run does in which epoch.

    Attributes:
        phases: one for ordinary training.
        curve: the learning rate where it is not the configured one.
    """

    phases: List[Phase]
    curve: Optional[LearningRate] = None


def plan_run(cfg: Config, world_size: int = 1) -> RunPlan:
    """The plan of a config: multigrid where it says `multigrid`, else one phase.

    Args:
        cfg: checked.
        world_size: processes of the run.

    Raises:
        ConfigError: MULTIGRID is missing or does not fit the data, the learning rate, the network or the
            processes.
    """
    settings = RunSettings.from_config(cfg)
    sync_bn = DistributedSettings.from_config(cfg).sync_bn
    plain = RunPlan(plain_phases(settings.epochs, bn_sync_devices=world_size if sync_bn else 1))
    if not settings.multigrid:
        return plain
    if not cfg.get("MULTIGRID"):
        raise ConfigError([f"{cfg.path}  MULTIGRID: multigrid training needs this section"])
    if settings.train_dali:
        raise _problem(cfg, "train_dali", "multigrid training reads through our own loader; leave it out")
    grid = MultigridSettings.from_config(cfg)
    if not (grid.long_factors or grid.short_factors):
        return plain
    if sync_bn:
        raise _problem(
            cfg,
            "DISTRIBUTED.sync_bn",
            "multigrid training shares statistics where MULTIGRID.bn_base_size asks for it; leave it out",
        )
    plan = _multigrid(cfg, settings, grid)
    for num_frames in {phase.num_frames for phase in plan.phases if phase.num_frames}:
        _check_frames(cfg, num_frames)
    batch_size = DatasetSettings.from_config(cfg).batch_size
    return replace(
        plan,
        phases=[_with_batch_norm(cfg, phase, batch_size, grid, world_size) for phase in plan.phases],
    )


class ClipShape(NamedTuple):
    """What a clip is made of.

    Attributes:
        num_frames: frames of it.
        crop_size: its side in pixels.
        sampling_rate: frames of the video from one frame of the clip to the next.
    """

    num_frames: int
    crop_size: int
    sampling_rate: float


def plain_clip(cfg: Config) -> ClipShape:
    """A clip of the plain training of a config.

    Raises:
        ConfigError: the pipeline says no rate or no size.
    """
    pipeline = build_pipeline(cfg["PIPELINE"]["train"])
    sampler = pipeline.sample
    if not isinstance(sampler, DecodeSampler):
        raise _problem(cfg, "PIPELINE.train", "multigrid training needs a DecodeSampler")
    try:
        return ClipShape(sampler.num_frames, pipeline.crop_size, sampler.sampling_rate)
    except TransformError as error:
        raise _problem(cfg, "PIPELINE.train.transform", str(error)) from None


def batch_shapes(phase: Phase, batch_size: int, num_batches: int = 1) -> List[BatchShape]:
    """What the batches of a phase take in turn.

    Args:
        phase: of the run.
        batch_size: the configured one, of one process.
        num_batches: batches of one optimizer step, which have one shape.
    """
    batch_size *= phase.batch_multiplier
    own = BatchShape(batch_size, phase.num_frames, phase.sampling_rate, phase.crop_size)
    shapes = [
        replace(own, batch_size=batch_size * short.batch_multiplier, crop_size=short.crop_size)
        for short in phase.short_cycle
    ]
    return [shape for shape in (*shapes, own) for _ in range(num_batches)]


def _multigrid(cfg: Config, settings: RunSettings, grid: MultigridSettings) -> RunPlan:
    rate = cfg["OPTIMIZER"]["learning_rate"]
    curve = build(LEARNING_RATES, rate) if isinstance(rate, Mapping) else None
    if not isinstance(curve, CustomWarmupPiecewiseDecay):
        return RunPlan(_schedule(cfg, grid, _steps_without_stages(cfg, grid)).phases)
    if curve.max_epoch != settings.epochs:
        raise _problem(
            cfg,
            "epochs",
            f"{settings.epochs}, but OPTIMIZER.learning_rate.max_epoch is {curve.max_epoch}; both describe "
            "the plain training that the schedule takes the place of",
        )
    schedule = _schedule(cfg, grid, curve.steps)
    return RunPlan(schedule.phases, curve.along(schedule.rate_steps, schedule.phases[-1].end_epoch))


def _steps_without_stages(cfg: Config, grid: MultigridSettings) -> Sequence[float]:
    """The one stage of any other learning rate, under which a short cycle alone runs for as many epochs."""
    name = CustomWarmupPiecewiseDecay.__name__
    if grid.long_factors:
        raise _problem(cfg, "OPTIMIZER.learning_rate", f"LONG_CYCLE needs the steps of a {name}")
    if grid.epoch_factor != 1:
        message = f"only a {name} follows it; set it to 1, and epochs and the curve as you need them"
        raise _problem(cfg, "MULTIGRID.epoch_factor", message)
    return (0,)


def _schedule(cfg: Config, grid: MultigridSettings, steps: Sequence[float]) -> Schedule:
    epochs = RunSettings.from_config(cfg).epochs
    try:
        baseline = Baseline(epochs, steps, *plain_clip(cfg))
        return multigrid_schedule(baseline, grid.long_factors, grid.short_factors, grid.epoch_factor)
    except ScheduleError as error:
        raise _problem(cfg, "MULTIGRID", str(error)) from None


def _check_frames(cfg: Config, num_frames: int) -> None:
    """SlowFast's slow pathway takes every alpha-th frame; I3D pools pairs of frames."""
    backbone = cfg["MODEL"].get("backbone")
    if backbone is None:  # the networks of a distillation look at single frames
        return
    alpha = backbone.get("alpha", 1)
    least: int = getattr(BACKBONES.get(backbone["name"]), "least_frames", 1)
    problem = ""
    if num_frames % alpha:
        problem = f"do not divide into MODEL.backbone.alpha={alpha}"
    elif num_frames < least:
        problem = f"are too few for {backbone['name']}, which needs {least}"
    if problem:
        message = f"clips of {num_frames} frames {problem}"
        raise _problem(cfg, "MULTIGRID.long_cycle_factors", message)


def _with_batch_norm(
    cfg: Config, phase: Phase, batch_size: int, grid: MultigridSettings, world_size: int
) -> Phase:
    """Statistics of `bn_base_size` clips at the phase's own shape, from parts of a batch or several of them.

    Where all processes together have no more clips than that, they take them together.
    """
    batch, base = batch_size * phase.batch_multiplier, grid.bn_base_size
    a_batch = f"a batch of {batch} clips, {phase.batch_multiplier} times DATASET.batch_size {batch_size}"
    key = "MULTIGRID.bn_base_size"
    if batch >= base:
        if batch % base:
            raise _problem(cfg, key, f"{base} does not divide {a_batch}")
        return replace(phase, bn_splits=batch // base)
    if batch * world_size <= base:
        return replace(phase, bn_sync_devices=world_size)
    num_devices, rest = divmod(base, batch)
    if rest:
        raise _problem(cfg, key, f"{base} is no multiple of {a_batch}")
    if world_size % num_devices:
        raise _problem(
            cfg,
            key,
            f"{base} clips are the batches of {num_devices} processes, and {world_size} make no such groups",
        )
    return replace(phase, bn_sync_devices=num_devices)


def _problem(cfg: Config, key: str, message: str) -> ConfigError:
    return ConfigError([f"{cfg.where(tuple(key.split('.')))}  {key}: {message}"])
