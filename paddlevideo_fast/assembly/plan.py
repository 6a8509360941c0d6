"""Plans a run from its spec: phases, learning rate and precision, before any data is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from paddlevideo_fast.assembly.checks import check_training
from paddlevideo_fast.assembly.data import Pipelines
from paddlevideo_fast.config import RunSpec, build
from paddlevideo_fast.config.sections import arguments_in
from paddlevideo_fast.config.settings import MultigridSettings, SplitName
from paddlevideo_fast.config.spec import ComponentSection, placed
from paddlevideo_fast.engine import Precision
from paddlevideo_fast.engine.precision import make_precision
from paddlevideo_fast.errors import ScheduleError, SettingError
from paddlevideo_fast.loader import DecodeSampler
from paddlevideo_fast.loader.pipeline import Pipeline
from paddlevideo_fast.metrics import VideoMetric
from paddlevideo_fast.modeling import Backbone
from paddlevideo_fast.registry import LEARNING_RATES, METRICS
from paddlevideo_fast.schedule import Baseline, Phase, multigrid_schedule, plain_phases
from paddlevideo_fast.solver.learning_rate import Constant, CustomWarmupPiecewiseDecay, LearningRate


class ClipShape(NamedTuple):
    """What a clip is made of.

    Attributes:
        num_frames: number of frames.
        crop_size: side of a frame in pixels.
        sampling_rate: frames of the video from one frame of the clip to the next.
    """

    num_frames: int
    crop_size: int
    sampling_rate: float


@dataclass(frozen=True)
class RunPlan:
    """A training run that passed all checks, and what is built for them and used by it.

    Attributes:
        spec: of the run.
        pipelines: of the parts of the data.
        phases: spans of epochs at one shape of clips; one for ordinary training.
        curve: the learning-rate schedule, not yet scaled.
        metric: of the validation; None where the run does not validate.
        precision: of the training steps.
        accumulate_steps: batches of a process that make one optimizer step.
        global_batch_size: clips of one optimizer step, over all processes and batches.
        full_clip: of plain training, which a multigrid training changes; None without multigrid.
    """

    spec: RunSpec
    pipelines: Pipelines
    phases: list[Phase]
    curve: LearningRate
    metric: VideoMetric | None
    precision: Precision
    accumulate_steps: int
    global_batch_size: int
    full_clip: ClipShape | None

    @property
    def has_fixed_shapes(self) -> bool:
        """Whether all steps of an epoch have the same shape. In multigrid's short cycle they do not."""
        return not any(phase.short_cycle for phase in self.phases)


@placed
def plan_run(spec: RunSpec, world_size: int = 1) -> RunPlan:
    """Plans the training of a spec on `world_size` processes.

    Raises:
        ConfigError: sections do not fit each other or this machine.
    """
    rate = (spec.optimizer or {})["learning_rate"]
    curve = build(LEARNING_RATES, rate) if isinstance(rate, Mapping) else Constant(rate)
    pipelines = Pipelines(spec.splits)
    phases, planned, clip = plan_phases(spec, curve, pipelines["train"], world_size)
    metric = make_metric(spec.metric) if spec.run.validate else None
    names: list[SplitName] = ["train", "valid"] if spec.run.validate else ["train"]
    sizes = spec.accumulate_steps(world_size), spec.global_batch_size(world_size)
    plan = RunPlan(spec, pipelines, phases, planned, metric, Precision(), *sizes, clip)
    check_training(plan, names, curve)
    return replace(plan, precision=make_precision(spec.run))


def make_metric(section: ComponentSection | None) -> VideoMetric:
    """The metric of the section METRIC."""
    return build(METRICS, section or {})


def plan_phases(
    spec: RunSpec, curve: LearningRate, pipeline: Pipeline, world_size: int
) -> tuple[list[Phase], LearningRate, ClipShape | None]:
    """Phases, learning rate and full clip of a run.

    Multigrid training has many phases, ordinary training has one and no full clip.

    Args:
        spec: of the run.
        curve: the configured learning rate.
        pipeline: of the training clips.
        world_size: processes.

    Raises:
        SettingError: MULTIGRID is missing or does not fit the data, the learning rate or the processes.
    """
    grid = _checked_grid(spec) if spec.run.multigrid else None
    if grid is None or not (grid.long_factors or grid.short_factors):
        num_devices = world_size if spec.distributed.sync_bn else 1
        return plain_phases(spec.run.epochs, bn_sync_devices=num_devices), curve, None
    clip, steps = plain_clip(pipeline), _steps(spec, grid, curve)
    try:
        baseline = Baseline(spec.run.epochs, steps, *clip)
        cycles = grid.long_factors, grid.short_factors
        schedule = multigrid_schedule(baseline, *cycles, grid.epoch_factor, grid.lr_scaling, grid.finish)
    except ScheduleError as error:
        raise SettingError("MULTIGRID", str(error)) from None
    if isinstance(curve, CustomWarmupPiecewiseDecay):
        curve = curve.along(schedule.rate_steps, schedule.phases[-1].end_epoch)
    networks = [each.cls for each in arguments_in(spec.config, "MODEL") if issubclass(each.cls, Backbone)]
    if not any(network.has_batch_norm for network in networks):
        return schedule.phases, curve, clip
    return [_with_batch_norm(spec, phase, grid, world_size) for phase in schedule.phases], curve, clip


def plain_clip(pipeline: Pipeline) -> ClipShape:
    """The clip of plain training, without multigrid.

    Raises:
        SettingError: the pipeline has no sampling rate or no crop size.
    """
    sampler = pipeline.sample
    if not isinstance(sampler, DecodeSampler):
        raise SettingError("PIPELINE.train", "multigrid training needs a DecodeSampler")
    if not pipeline.crop_size:
        text = "multigrid training needs a transform with a target_size"
        raise SettingError("PIPELINE.train.transform", text)
    return ClipShape(sampler.num_frames, pipeline.crop_size, sampler.sampling_rate)


def _checked_grid(spec: RunSpec) -> MultigridSettings:
    grid = spec.multigrid
    if grid is None:
        raise SettingError("MULTIGRID", "multigrid training needs this section")
    if spec.distributed.sync_bn and (grid.long_factors or grid.short_factors):
        text = "multigrid training shares statistics where MULTIGRID.bn_base_size asks for it; leave it out"
        raise SettingError("DISTRIBUTED.sync_bn", text)
    if grid.LONG_CYCLE and not grid.long_cycle_factors:
        raise SettingError("MULTIGRID.long_cycle_factors", "LONG_CYCLE needs at least one")
    if grid.SHORT_CYCLE and not grid.short_cycle_factors:
        raise SettingError("MULTIGRID.short_cycle_factors", "SHORT_CYCLE needs at least one")
    for entry in grid.long_cycle_factors:
        if isinstance(entry, Mapping) and list(entry) != ["value"]:
            raise SettingError("MULTIGRID.long_cycle_factors", f"{dict(entry)} must have the one key 'value'")
    return grid


def _steps(spec: RunSpec, grid: MultigridSettings, curve: LearningRate) -> Sequence[float]:
    """The epochs at which the stages of the learning rate begin.

    Any other curve is one stage, which the run goes through in as many epochs.
    """
    name = CustomWarmupPiecewiseDecay.__name__
    if not isinstance(curve, CustomWarmupPiecewiseDecay):
        if grid.long_factors and grid.lr_scaling != "none":
            text = f"only the steps of a {name} follow the batch of the long cycle; set it to none"
            raise SettingError("MULTIGRID.lr_scaling", text)
        if grid.epoch_factor != 1:
            text = f"only a {name} follows it; set it to 1, and epochs and the curve as you need them"
            raise SettingError("MULTIGRID.epoch_factor", text)
        return (0,)
    if curve.max_epoch != spec.run.epochs:
        raise SettingError(
            "epochs",
            f"{spec.run.epochs}, but OPTIMIZER.learning_rate.max_epoch is {curve.max_epoch}; both describe "
            "the plain training that the schedule takes the place of",
        )
    return curve.steps


def _with_batch_norm(spec: RunSpec, phase: Phase, grid: MultigridSettings, world_size: int) -> Phase:
    """The phase with batch norms that take their statistics over `bn_base_size` clips.

    A larger batch is split, smaller batches of several processes are put together. Where all processes
    together have fewer clips, they share one statistic.
    """
    batch_size, base = spec.data.batch_size, grid.bn_base_size
    batch = batch_size * phase.batch_multiplier
    a_batch = f"a batch of {batch} clips, {phase.batch_multiplier} times DATASET.batch_size {batch_size}"
    key = "MULTIGRID.bn_base_size"
    if batch >= base:
        if batch % base:
            raise SettingError(key, f"{base} does not divide {a_batch}")
        return replace(phase, bn_splits=batch // base)
    if batch * world_size <= base:
        return replace(phase, bn_sync_devices=world_size)
    num_devices, rest = divmod(base, batch)
    if rest:
        raise SettingError(key, f"{base} is no multiple of {a_batch}")
    if world_size % num_devices:
        raise SettingError(
            key,
            f"{base} clips are the batches of {num_devices} processes, and {world_size} make no such groups",
        )
    return replace(phase, bn_sync_devices=num_devices)
