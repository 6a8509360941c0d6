"""Everything that is checked of a run before it begins, over its spec and what is built of it.

An error is what is certainly wrong: a network that shifts 8 frames, and clips of 16. A warning is what has no
effect, or what may be meant and is more often a slip: validation at 112 pixels, and a test at 224.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle

from paddlevideo_fast.assembly.data import Pipelines
from paddlevideo_fast.config import RunSpec
from paddlevideo_fast.config.sections import arguments_in
from paddlevideo_fast.config.settings import SplitName
from paddlevideo_fast.config.types import Role
from paddlevideo_fast.engine.extension import Extension, Problem, Problems
from paddlevideo_fast.errors import ConfigError, SettingError
from paddlevideo_fast.loader import ClipRequest
from paddlevideo_fast.loader.dataset import FrameDecoder, VideoDecoder
from paddlevideo_fast.loader.sampling import FrameSampler
from paddlevideo_fast.machine import gpu_number
from paddlevideo_fast.modeling import Backbone, activation_of, classes_of
from paddlevideo_fast.modeling.layers.windows import nearest
from paddlevideo_fast.registry import DATASETS, METRICS
from paddlevideo_fast.solver import LearningRate

if TYPE_CHECKING:
    from paddlevideo_fast.assembly.plan import RunPlan

_USUAL_GROWTH = 1.5  # a test at 256 pixels after training at 224 is usual
_IS_MEANT = "; is that meant?"


def check_training(plan: "RunPlan", names: Sequence[SplitName], curve: LearningRate) -> None:
    """Checks a training.

    Args:
        plan: of the run.
        names: of the parts of the data that it reads.
        curve: the configured learning rate.

    Raises:
        ConfigError: with all that cannot be meant.
    """
    spec, pipelines = plan.spec, plan.pipelines
    _report(
        spec,
        chain(
            _of_environment(spec),
            _of_sections(spec, names, pipelines, curve),
            _without_effect(spec),
            *(extension.problems(plan) for extension in spec.extensions),
            _of_multigrid(plan),
        ),
    )


def check_evaluation(spec: RunSpec, *names: SplitName) -> Pipelines:
    """Checks a run that does not train, over these parts of the data; returns what it has built of them.

    Raises:
        ConfigError: see `check_training`.
    """
    pipelines = Pipelines(spec)
    _report(spec, chain(_of_environment(spec), _of_sections(spec, names, pipelines)))
    return pipelines


def require_weights(extensions: Sequence[Extension], backbone: Mapping[str, Any]) -> None:
    """Checks a run without a checkpoint and `weights`: its backbone or an option may need some.

    Raises:
        SettingError: weights are needed, and the backbone names none either.
    """
    if backbone.get("pretrained"):
        return
    needs = {key: text for each in extensions for key, text in each.needs_weights.items()}
    if backbone.get("partial_bn"):
        text = "keeps statistics of pretrained weights, and none are loaded: set it to false, or name weights"
        needs["MODEL.backbone.partial_bn"] = text
    for key, text in needs.items():
        raise SettingError(key, text)


def _report(spec: RunSpec, problems: Iterable[Problem]) -> None:
    """Raises the errors together; else logs the warnings, each once."""
    listed = list(problems)
    if errors := [spec.config.problem(key, text) for key, text, is_error in listed if is_error]:
        raise ConfigError(errors)
    for key, text, _ in listed:
        spec.warn(key, text)


# --- what this machine and this Paddle can do


def _of_environment(spec: RunSpec) -> Problems:
    """Options that cannot take effect here, and flags that Paddle does not know."""
    on_cpu = gpu_number(paddle.get_device()) is None
    flags = paddle.base.core.globals().keys()
    for variable in spec.runtime.environment():
        name = variable[6:] if variable.startswith("FLAGS_") else "tf32"
        if on_cpu and name in spec.runtime.gpu_only:
            text = "it is for GPUs, and Paddle computes on the CPU here; take it out"
            yield Problem(f"RUNTIME.{name}", text)
        elif name != "tf32" and variable not in flags:
            yield Problem(f"RUNTIME.{name}", f"Paddle {paddle.__version__} has no {variable}; take it out")
        elif variable not in os.environ:
            text = "Paddle reads it at its import, which came first; start through paddlevideo-fast train, or"
            yield Problem(f"RUNTIME.{name}", f"{text} set {variable} in the environment")
    for extension in spec.extensions:
        keys = (key for key in extension.excludes if spec.config.at(key) not in (None, False))
        yield from (Problem(key, extension.excludes[key]) for key in keys)
    # an explicit `amp: false` may stand beside the others; where there is none, `amp` was forgotten
    for key in ("amp_level", "amp_dtype") if not spec.holds("amp") else ():
        if spec.holds(key):
            yield Problem(f"{key}={getattr(spec.run, key)}", "has no effect without amp; add --amp")


# --- do the sections fit each other?


def _of_sections(
    spec: RunSpec, names: Sequence[SplitName], pipelines: Pipelines, curve: LearningRate | None = None
) -> Problems:
    """Compares what is done to the clips of `names` with the network, and the epochs with the rate."""
    names = [name for name in names if name in spec.splits]
    for name in names:
        num_frames, crop_size = _clip(spec, pipelines, name)
        yield from _frames(spec, name, num_frames)
        yield from _patches(spec, _key_of_crop(spec, name), crop_size)
        yield from _pathways(spec, name)
        yield from _clips_per_video(spec, name)
        yield from _decoder(name, spec.splits[name].dataset["format"], pipelines[name].decoder)
    yield from _metric_of_other_labels(spec, names)
    yield from _without_classes(spec)
    yield from _sizes(spec, names, pipelines)
    if "train" in names:
        yield from _same_clips(spec, pipelines["train"].sample)
        misfit = curve.misfit(spec.run.epochs) if curve else ""
        if misfit:
            text = f"{spec.where('OPTIMIZER.learning_rate')} {misfit}{_IS_MEANT}"
            yield Problem(f"epochs={spec.run.epochs}", text, is_error=False)
        if spec.mix and spec.data.batch_size == 1 and not spec.run.multigrid:
            text = f"has no effect on batches of one clip ({spec.where('DATASET.batch_size')}){_IS_MEANT}"
            yield Problem("MIX", text, is_error=False)


def _decoder(name: SplitName, form: str, decoder: Any) -> Problems:
    """A decoder of files for a list of folders."""
    usual = getattr(DATASETS.get(form), "usual_decoder", None)
    if usual is FrameDecoder and isinstance(decoder, VideoDecoder) and decoder.backend != "auto":
        text = f"opens video files, and {form} lists folders of frames; take FrameDecoder"
        yield Problem(f"PIPELINE.{name}.decode.name=VideoDecoder", text)


def _frames(spec: RunSpec, name: SplitName, num_frames: int) -> Problems:
    """Clips whose frames the network cannot take, or takes as several clips."""
    pipeline = arguments_in(spec.config, "PIPELINE", name)
    sampled = (each.key(argument) for each in pipeline for argument in each.with_role(Role.FRAMES))
    key = next(sampled, f"PIPELINE.{name}.sample")
    if problem := _frames_problem(spec, num_frames):
        yield Problem(key, f"clips of {num_frames} frames {problem}")
    for network, num_seg in _in_model(spec, Role.FIXED_FRAMES):
        text = f"clips have {num_frames} frames, and {spec.where(network)} is {num_seg}"
        # an evaluation may look at several clips of num_seg frames, one after the other
        if num_frames % num_seg or (name == "train" and num_frames != num_seg):
            yield Problem(key, f"{text}; give both the same")
        elif num_frames != num_seg:
            text = f"{text}: {num_frames // num_seg} clips to the network{_IS_MEANT}"
            yield Problem(key, text, is_error=False)
    for view, of_view in _in_model(spec, Role.VIEW_FRAMES):
        if name != "train" and num_frames % of_view:
            text = f"clips have {num_frames} frames, no multiple of the {of_view} of {spec.where(view)}"
            yield Problem(key, f"{text}; give both the same")


def _frames_problem(spec: RunSpec, num_frames: int) -> str:
    """Why the network cannot take clips of `num_frames` frames, to be read after these words; else empty."""
    for key, divisor in _in_model(spec, Role.FRAME_DIVISOR):
        if num_frames % divisor:
            return f"do not divide into {key}={divisor}; {nearest(num_frames, divisor)} do"
    for each in arguments_in(spec.config, "MODEL"):
        if issubclass(each.cls, Backbone) and num_frames < each.cls.least_frames:
            return f"are too few for {each.given['name']}, which needs {each.cls.least_frames}"
    return ""


def _in_model(spec: RunSpec, role: Role) -> Iterator[tuple[str, int]]:
    """Key and value of each argument in MODEL that has a role; a distillation has several networks."""
    for each in arguments_in(spec.config, "MODEL"):
        yield from ((each.key(name), value) for name, value in each.with_role(role).items() if value)


def _pathways(spec: RunSpec, name: SplitName) -> Problems:
    """A transform that divides the frames in another way than the network, as PackOutput between pathways."""
    for each in arguments_in(spec.config, "PIPELINE", name):
        for argument, divisor in each.with_role(Role.FRAME_DIVISOR).items():
            for network, value in _in_model(spec, Role.FRAME_DIVISOR):
                if network.endswith(f".{argument}") and value != divisor:
                    text = f"{spec.where(network)} is {value}; give both the same"
                    yield Problem(f"{each.key(argument)}={divisor}", text)


def _key_of_crop(spec: RunSpec, name: SplitName) -> str:
    """The key that sets the side of the clips of a part."""
    steps = arguments_in(spec.config, "PIPELINE", name)
    crops = (each.key(size) for each in steps for size in each.given.keys() & each.with_role(Role.CROP_SIZE))
    *_, key = f"PIPELINE.{name}.transform", *crops  # the last one counts
    return key


def _patches(spec: RunSpec, key: str, side: int) -> Problems:
    """Crops that a network cannot cut into patches."""
    for network, patch_size in _in_model(spec, Role.SIDE_DIVISOR):
        if side % patch_size:
            text = f"clips of {side} pixels do not divide into {spec.where(network)}={patch_size}"
            yield Problem(key, f"{text}; {nearest(side, patch_size)} do")


def _clips_per_video(spec: RunSpec, name: SplitName) -> Problems:
    """Several clips of each video that do not divide a batch or the epochs."""
    key, clips = f"DATASET.{name}.clips_per_video", spec.splits[name].dataset.get("clips_per_video", 1)
    if name != "train":
        if clips > 1:
            text = "is for training; an evaluation sees several clips of a video with num_ensemble_views"
            yield Problem(f"{key}={clips}", text)
        return
    if spec.data.batch_size % clips:
        text = f"no multiple of {spec.where(key)}={clips}: a batch holds all clips of a video"
        yield Problem(f"DATASET.batch_size={spec.data.batch_size}", text)
    rest = spec.run.epochs % clips
    if spec.run.epochs < clips:
        text = f"{spec.where(key)} is {clips}: only as many epochs together read every video"
        yield Problem(f"epochs={spec.run.epochs}", text)
    elif rest and not spec.run.multigrid:
        text = f"no multiple of {spec.where(key)}={clips}: the last {rest} read a part of the videos only"
        yield Problem(f"epochs={spec.run.epochs}", f"{text}{_IS_MEANT}", is_error=False)


def _same_clips(spec: RunSpec, sampler: FrameSampler) -> Problems:
    """Several clips of each video whose sampler draws nothing."""
    clips = spec.splits["train"].dataset.get("clips_per_video", 1)
    drawn = [
        sampler.sample(1000, 25.0, ClipRequest(0, 0, view, clips), np.random.default_rng(view))
        for view in range(min(clips, 2))
    ]
    if clips > 1 and (drawn[0] == drawn[1]).all():
        text = f"{clips}, and the sampler draws nothing: all clips of a video have the same frames{_IS_MEANT}"
        yield Problem("DATASET.train.clips_per_video", text, is_error=False)


def _metric_of_other_labels(spec: RunSpec, names: Sequence[SplitName]) -> Problems:
    """A metric of one class a video and a head of several, or the other way round."""
    activation, name = activation_of(spec.model), (spec.metric or {}).get("name")
    if name is None or set(names) <= {"train"}:
        return
    meant = getattr(METRICS.get(name), "activation", activation)
    if meant and not classes_of(spec.model):
        text = f"measures classes, and {spec.model['framework']} has none; take LossMetric"
        yield Problem(f"METRIC.name={name}", text)
    elif meant and meant != activation:
        usual = {"softmax": "CenterCropMetric or MultiCropMetric", "sigmoid": "MeanAveragePrecision"}
        text = f"is for heads with {meant}, and the head has {activation}; take {usual[activation]}"
        yield Problem(f"METRIC.name={name}", text)


def _without_classes(spec: RunSpec) -> Problems:
    """Settings that have no meaning for a framework without classes."""
    if classes_of(spec.model):
        return
    name = spec.model["framework"]
    if spec.mix:
        yield Problem("MIX", f"mixes labels, and {name} has none; take the section out")
    if spec.data.class_names is not None:
        yield Problem("DATASET.class_names", f"has no effect: {name} has no classes", is_error=False)


def _sizes(spec: RunSpec, names: Sequence[SplitName], pipelines: Pipelines) -> Problems:
    """Evaluation at another size than the part before it: training, validation, test."""
    pairs: tuple[tuple[SplitName, SplitName], ...] = (("train", "valid"), ("valid", "test"))
    for before, after in pairs:
        if before in names or after in names:
            sizes = [
                _clip(spec, pipelines, name)[1] if name in spec.splits else 0 for name in (before, after)
            ]
            if all(sizes) and not sizes[0] <= sizes[1] <= sizes[0] * _USUAL_GROWTH:
                text = f"makes clips of {sizes[1]} pixels, and PIPELINE.{before} of {sizes[0]}{_IS_MEANT}"
                yield Problem(f"PIPELINE.{after}.transform", text, is_error=False)


def _clip(spec: RunSpec, pipelines: Pipelines, name: SplitName) -> tuple[int, int]:
    """Frames and side in pixels of the clips that the network takes of a part; side 0: none is known."""
    clip = pipelines[name].sample.num_frames, pipelines.crop_size(name)
    for extension in spec.extensions if name == "train" else ():
        clip = extension.clip_of_network(*clip)
    return clip


# --- what a training does beside its steps


def _without_effect(spec: RunSpec) -> Problems:
    """Options that have no effect beside another one."""
    for extension in spec.extensions:
        for key, reason in extension.replaces.items():
            if spec.holds(key):
                yield Problem(key, f"has no effect: {reason}", is_error=False)


def _of_multigrid(plan: "RunPlan") -> Problems:
    """Shapes of a multigrid schedule that the network cannot take."""
    spec, phases = plan.spec, plan.phases
    if not spec.run.multigrid or spec.multigrid is None:
        return
    if not any(phase.num_frames for phase in phases):
        text = "has no effect: MULTIGRID turns on neither LONG_CYCLE nor SHORT_CYCLE"
        yield Problem("multigrid", text, is_error=False)
        return
    if spec.multigrid.lr_scaling != "linear" and not spec.multigrid.long_factors:
        text = "has no effect without LONG_CYCLE: the short cycle never changes the learning rate"
        yield Problem("MULTIGRID.lr_scaling", text, is_error=False)
    for each in arguments_in(spec.config, "MODEL"):
        if issubclass(each.cls, Backbone) and not each.cls.takes_multigrid:
            text = f"{each.given['name']} takes clips of one size; leave multigrid out"
            yield Problem(each.key("name"), text)
    long, short = "MULTIGRID.long_cycle_factors", "MULTIGRID.short_cycle_factors"
    for num_frames in sorted({phase.num_frames for phase in phases if phase.num_frames}, reverse=True):
        if problem := _frames_problem(spec, num_frames):
            yield Problem(long, f"clips of {num_frames} frames {problem}")
            return
    sides = {shape.crop_size: short for phase in phases for shape in phase.short_cycle}
    sides.update((phase.crop_size, long) for phase in phases if phase.crop_size)
    for side, key in sides.items():
        yield from _patches(spec, key, side)
