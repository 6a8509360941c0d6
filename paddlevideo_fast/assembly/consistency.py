"""Do the sections of a config fit each other?

An error is what is certainly wrong: a network that shifts 8 frames, and clips of 16. A warning is what may be
meant and is more often a slip: validation at 112 pixels, and a test at 224.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from paddlevideo_fast.config import RunSpec, build
from paddlevideo_fast.config.settings import SplitName
from paddlevideo_fast.config.spec import placed
from paddlevideo_fast.config.types import arguments_of
from paddlevideo_fast.engine.selection import Selection
from paddlevideo_fast.errors import SettingError
from paddlevideo_fast.loader import ClipRequest, TransformError, build_pipeline
from paddlevideo_fast.metrics import VideoMetric
from paddlevideo_fast.modeling import activation_of, classes_of
from paddlevideo_fast.registry import BACKBONES, HEADS, METRICS, MIXES, SAMPLERS
from paddlevideo_fast.solver import LearningRate

Problem = tuple[str, str]  # a key, and what is wrong with it
_USUAL_GROWTH = 1.5  # a test at 256 pixels after training at 224 is usual


def check_sections(spec: RunSpec, *names: SplitName, curve: LearningRate | None = None) -> None:
    """Compares what is done to the clips of `names` with the network, and the epochs with the learning rate.

    What may be meant is told in the log, once.

    Args:
        spec: of the run.
        names: of the parts of the data.
        curve: the configured learning rate; None: it is not compared.

    Raises:
        ConfigError: with all that cannot be meant.
    """
    names = tuple(name for name in names if name in spec.splits)
    problems = [one for name in names for one in (*_frames(spec, name), *_pathways(spec, name))]
    problems += [*_metric_of_other_labels(spec, names), *_unfit_without_classes(spec)]
    problems += [one for name in names for one in _unfit_clips_per_video(spec, name)]
    if "train" in names:
        problems += _unfreezing(spec)
    spec.refuse(problems)
    doubts = [*_several_clips(spec, names), *_sizes(spec, names)]
    if "train" in names:
        doubts += [*_unfinished_rate(spec, curve), *_doubtful_clips_per_video(spec), *_mix_of_one(spec)]
    for key, text in doubts:
        spec.warn(key, f"{text}; is that meant?")


@placed
def check_selection(spec: RunSpec, metric: VideoMetric | None) -> None:
    """Checks that the run validates what SELECTION compares; `metric` is None where it does not validate.

    Raises:
        ConfigError: it does not validate, or validation gives no such value.
    """
    selection = spec.config.get("SELECTION")
    if not selection:
        return
    if metric is None:
        text = "compares validations, and this run has none: add --validate, or take the section out"
        raise SettingError("SELECTION", text)
    if metric.value_names:
        Selection(spec.selection).check(metric.value_names)
    if spec.selection.min_delta and spec.selection.patience is None:
        spec.warn("SELECTION.min_delta", "has no effect without SELECTION.patience")


def check_features(spec: RunSpec) -> None:
    """Checks that nothing in the spec needs clips where training reads stored features.

    Raises:
        ConfigError: with all that does.
    """
    if spec.run.features is None:
        return
    unfit = {
        "multigrid": "changes the shape of the clips, and features have one; leave one of the two out",
        "train_dali": "reads videos, and training reads features; leave one of the two out",
    }
    problems = [(key, text) for key, text in unfit.items() if getattr(spec.run, key)]
    if spec.finetune is not None and spec.finetune.unfreeze_at:
        text = "the backbone does not run in a training on features; leave one of the two out"
        problems.append(("FINETUNE.unfreeze_at", text))
    if "layout" in getattr(MIXES.get((spec.mix or {"name": "Mixup"})["name"]), "injected", ()):
        problems.append(("MIX", "cuts boxes out of frames, and training reads features; take Mixup"))
    spec.refuse(problems)
    told = {
        "PRECISEBN": "has no effect: training on features runs no batch norm",
        "FINETUNE": "has no effect: training on features trains the head and nothing else",
        "MIX": "mixes features, not clips",
    }
    for key, text in told.items():
        if spec.config.get(key):
            spec.warn(key, text)


def check_changing_shapes(spec: RunSpec) -> None:
    """Checks that the network may train on clips whose size changes from step to step.

    A transformer's windows and tables of positions belong to one size of clips.

    Raises:
        ConfigError: it may not.
    """
    for key, name, _ in _parts(spec, "backbone"):
        backbone: Any = BACKBONES.get(name)
        if not backbone.takes_multigrid:
            text = (
                f"{name} is a transformer, whose tables of positions belong to one size of clips, and "
                "multigrid changes the size from step to step; leave multigrid out, or train a convolutional "
                "network"
            )
            raise SettingError(f"{key}.name", text)


def frames_problem(spec: RunSpec, num_frames: int) -> str:
    """Why the network cannot take clips of `num_frames` frames, to be read after these words; else empty.

    SlowFast's slow pathway takes every alpha-th frame; I3D pools pairs of frames.
    """
    for key, name, arguments in _parts(spec, "backbone"):
        alpha = arguments.get("alpha", 1)
        backbone: Any = BACKBONES.get(name)
        least = backbone.least_frames
        if num_frames % alpha:
            return f"do not divide into {key}.alpha={alpha}"
        if num_frames < least:
            return f"are too few for {name}, which needs {least}"
    return ""


def _frames(spec: RunSpec, name: SplitName) -> Iterator[Problem]:
    """Clips whose frames the network cannot take."""
    key, num_frames = _clip(spec, name)
    problem = frames_problem(spec, num_frames)
    if problem:
        yield key, f"clips of {num_frames} frames {problem}"
    for network, num_seg in _fixed_frames(spec):
        # an evaluation may look at several clips of num_seg frames, one after the other
        if num_frames % num_seg or (name == "train" and num_frames != num_seg):
            text = f"clips have {num_frames} frames, and {_placed(spec, network)} is {num_seg}"
            yield key, f"{text}; give both the same"
    views = (spec.model.get("runtime_cfg") or {}).get("test") or {}
    of_view = views.get("num_seg") if spec.model["framework"] == "RecognizerTransformer" else None
    if name != "train" and of_view and num_frames % of_view:
        key_of_view = _placed(spec, "MODEL.runtime_cfg.test.num_seg")
        text = f"clips have {num_frames} frames, no multiple of the {of_view} of {key_of_view}"
        yield key, f"{text}; give both the same"


def _pathways(spec: RunSpec, name: SplitName) -> Iterator[Problem]:
    """A PackOutput that divides the frames between SlowFast's pathways in another way than the network."""
    for index, item in enumerate(spec.splits[name].pipeline.get("transform") or ()):
        alpha = (item.get("PackOutput") or {}).get("alpha")
        for network, _, arguments in _parts(spec, "backbone"):
            if alpha is not None and arguments.get("alpha", alpha) != alpha:
                text = f"{_placed(spec, f'{network}.alpha')} is {arguments['alpha']}; give both the same"
                yield f"PIPELINE.{name}.transform.{index}.PackOutput.alpha={alpha}", text


def _metric_of_other_labels(spec: RunSpec, names: tuple[SplitName, ...]) -> Iterator[Problem]:
    """A metric of one class a video and a head of several, or the other way round."""
    activation = activation_of(spec.model)
    name = (spec.metric or {}).get("name")
    if name is None or set(names) <= {"train"}:
        return
    meant = getattr(METRICS.get(name), "activation", activation)
    if meant and not classes_of(spec.model):
        text = f"measures classes, and {spec.model['framework']} has none; take LossMetric"
        yield f"METRIC.name={name}", text
    elif meant and meant != activation:
        usual = {"softmax": "CenterCropMetric or MultiCropMetric", "sigmoid": "MeanAveragePrecision"}
        text = f"is for heads with {meant}, and the head has {activation}; take {usual[activation]}"
        yield f"METRIC.name={name}", text


def _unfit_without_classes(spec: RunSpec) -> Iterator[Problem]:
    """Settings that have no meaning for a framework without classes."""
    if classes_of(spec.model):
        return
    name = spec.model["framework"]
    if spec.mix:
        yield "MIX", f"mixes labels, and {name} has none; take the section out"
    if spec.run.to_static:
        yield "to_static", f"{name} draws masks outside the graph; take it out"
    if spec.run.features is not None:
        yield "features", f"are for training a classifier, and {name} has none"
    if spec.data.class_names is not None:
        spec.warn("DATASET.class_names", f"has no effect: {name} has no classes")


def _unfreezing(spec: RunSpec) -> Iterator[Problem]:
    """What fixes the parameters that train at the first step, beside parts that begin to train later."""
    key = "FINETUNE.unfreeze_at"
    if spec.finetune is None or not spec.finetune.unfreeze_at:
        return
    if spec.run.to_static:
        yield key, "a static graph keeps what is frozen; take to_static out"
    if (spec.optimizer or {}).get("use_multi_tensor"):
        text = "one operator for all parameters keeps those of the first step; take use_multi_tensor out"
        yield key, text
    if spec.distributed.sharding_degree > 1:
        text = "a sharded optimizer deals its parameters out before the first step; take sharding_degree out"
        yield key, text


def _several_clips(spec: RunSpec, names: tuple[SplitName, ...]) -> Iterator[Problem]:
    for name in names:
        key, num_frames = _clip(spec, name)
        for network, num_seg in _fixed_frames(spec):
            if num_frames != num_seg:
                text = f"clips have {num_frames} frames, and {_placed(spec, network)} is {num_seg}"
                yield key, f"{text}: {num_frames // num_seg} clips to the network"


def _sizes(spec: RunSpec, names: tuple[SplitName, ...]) -> Iterator[Problem]:
    """Evaluation at another size than the part before it: training, validation, test."""
    pairs: tuple[tuple[SplitName, SplitName], ...] = (("train", "valid"), ("valid", "test"))
    for before, after in pairs:
        if before in names or after in names:
            sizes = _crop_size(spec, before), _crop_size(spec, after)
            if all(sizes) and not sizes[0] <= sizes[1] <= sizes[0] * _USUAL_GROWTH:
                text = f"makes clips of {sizes[1]} pixels, and PIPELINE.{before} of {sizes[0]}"
                yield f"PIPELINE.{after}.transform", text


def _crop_size(spec: RunSpec, name: SplitName) -> int:
    """Side of the clips of a part, in pixels; 0 where there is no such part, or no transform sets a size."""
    try:
        return build_pipeline(spec.splits[name].pipeline).crop_size if name in spec.splits else 0
    except TransformError:
        return 0


def _unfit_clips_per_video(spec: RunSpec, name: SplitName) -> Iterator[Problem]:
    key, clips = _clips_per_video(spec, name)
    if name != "train":
        if clips > 1:
            text = "is for training; an evaluation sees several clips of a video with num_ensemble_views"
            yield f"{key}={clips}", text
        return
    if spec.data.batch_size % clips:
        text = f"no multiple of {_placed(spec, key)}={clips}: a batch holds all clips of a video"
        yield f"DATASET.batch_size={spec.data.batch_size}", text
    if spec.run.epochs < clips:
        text = f"{_placed(spec, key)} is {clips}: only as many epochs together read every video"
        yield f"epochs={spec.run.epochs}", text


def _doubtful_clips_per_video(spec: RunSpec) -> Iterator[Problem]:
    key, clips = _clips_per_video(spec)
    rest = spec.run.epochs % clips
    if rest and not spec.run.multigrid:
        text = f"no multiple of {_placed(spec, key)}={clips}: the last {rest} read a part of the videos only"
        yield f"epochs={spec.run.epochs}", text
    sampler = build_pipeline(spec.splits["train"].pipeline).sample
    drawn = [
        sampler.sample(1000, 25.0, ClipRequest(0, 0, view, clips), np.random.default_rng(view))
        for view in range(min(clips, 2))
    ]
    if clips > 1 and (drawn[0] == drawn[1]).all():
        text = f"{clips}, and the sampler draws nothing: all clips of a video have the same frames"
        yield key, text


def _mix_of_one(spec: RunSpec) -> Iterator[Problem]:
    """A mix of batches that have a single clip, which it could only mix with itself."""
    if spec.mix and spec.data.batch_size == 1 and not spec.run.multigrid:
        text = f"has no effect on batches of one clip ({_placed(spec, 'DATASET.batch_size')})"
        yield "MIX", text


def _clips_per_video(spec: RunSpec, name: SplitName = "train") -> tuple[str, int]:
    """The key, and its value."""
    return f"DATASET.{name}.clips_per_video", spec.splits[name].dataset.get("clips_per_video", 1)


def _unfinished_rate(spec: RunSpec, curve: LearningRate | None) -> Iterator[Problem]:
    misfit = curve.misfit(spec.run.epochs) if curve else ""
    if misfit:
        text = f"{_placed(spec, 'OPTIMIZER.learning_rate')} {misfit}"
        yield f"epochs={spec.run.epochs}", text


def _clip(spec: RunSpec, name: SplitName) -> tuple[str, int]:
    """The frames of a clip, and the key that says so."""
    pipeline = spec.splits[name].pipeline
    part = "decode_sampler" if pipeline.get("decode_sampler") else "sample"
    named = [key for key in ("num_seg", "num_frames") if key in pipeline[part]]
    return ".".join(["PIPELINE", name, part, *named]), build(SAMPLERS, pipeline[part]).num_frames


def _parts(spec: RunSpec, part: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Key, name and arguments (with defaults) of the `part` of each network; a distillation has several."""
    networks = [("MODEL", spec.model)]
    for index, item in enumerate(spec.model.get("models") or ()):
        networks += [(f"MODEL.models.{index}.{name}", parts) for name, parts in item.items()]
    registry = {"backbone": BACKBONES, "head": HEADS}[part]
    for key, network in networks:
        section = network.get(part)
        if section:
            known = arguments_of(registry.get(section["name"])).values()
            arguments = {item.name: section.get(item.name, item.default) for item in known}
            yield f"{key}.{part}", section["name"], arguments


def _fixed_frames(spec: RunSpec) -> Iterator[tuple[str, int]]:
    """Key and value of each `num_seg` that a network is built for, as those that mix frames are."""
    for part in ("backbone", "head"):
        for key, _, arguments in _parts(spec, part):
            if arguments.get("num_seg"):
                yield f"{key}.num_seg", arguments["num_seg"]


def _placed(spec: RunSpec, key: str) -> str:
    """A key, and where it was written."""
    return f"{key} ({spec.config.where(key)})"
