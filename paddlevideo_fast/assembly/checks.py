"""Everything that is checked of a run before it begins, over its spec and what is built of it.

An error is what is certainly wrong: a network that shifts 8 frames, and clips of 16. A warning is what has no
effect, or what may be meant and is more often a slip: validation at 112 pixels, and a test at 224.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from paddlevideo_fast.assembly.data import Pipelines
from paddlevideo_fast.config import RunSpec
from paddlevideo_fast.config.sections import arguments_in
from paddlevideo_fast.config.settings import SplitName
from paddlevideo_fast.config.spec import ComponentSection
from paddlevideo_fast.engine.extension import Extension
from paddlevideo_fast.errors import ConfigError, Problem, Problems, SettingError
from paddlevideo_fast.loader import ClipRequest
from paddlevideo_fast.loader.dataset import FrameDecoder, VideoDecoder
from paddlevideo_fast.loader.pipeline import Pipeline
from paddlevideo_fast.loader.sampling import FrameSampler
from paddlevideo_fast.loader.transforms.crop import RandomFlip
from paddlevideo_fast.modeling import activation_of, classes_of
from paddlevideo_fast.modeling.clip_needs import ClipNeeds
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
    spec = plan.spec
    problems = chain(
        _of_settings(spec),
        _of_parts(spec, names, plan.pipelines, curve),
        *(extension.problems(plan) for extension in spec.extensions),
        spec.multigrid.problems(spec.config) if spec.multigrid else (),
        ClipNeeds(spec.config).of_multigrid(plan.phases),
    )
    _report(spec, problems)


def check_evaluation(spec: RunSpec, *names: SplitName) -> Pipelines:
    """Checks a run that does not train, over these parts of the data; returns what it has built of them.

    Raises:
        ConfigError: see `check_training`.
    """
    pipelines = Pipelines(spec.splits)
    _report(spec, chain(_of_settings(spec), _of_parts(spec, names, pipelines)))
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


def _of_settings(spec: RunSpec) -> Problems:
    """What sections of settings and options say of themselves beside other keys."""
    for section in (spec.runtime, spec.run, spec.storage):
        yield from section.problems(spec.config)
    for extension in spec.extensions:
        yield from extension.clashes(spec.config)


def _of_parts(
    spec: RunSpec, names: Sequence[SplitName], pipelines: Pipelines, curve: LearningRate | None = None
) -> Problems:
    """Compares what is done to the clips of `names` with the network, and the epochs with the rate."""
    names, needs = [name for name in names if name in spec.splits], ClipNeeds(spec.config)
    num_classes = classes_of(spec.model)
    for name in names:
        split, pipeline = spec.splits[name], pipelines[name]
        steps = [*arguments_in(spec.config, "PIPELINE", name)]
        yield from needs.of_part(name, steps, *_clip(spec.extensions, name, pipeline))
        yield from split.problems(spec.run, spec.data.batch_size, spec.where)
        yield from _decoder(name, split.dataset["format"], pipeline.decoder)
        yield from _mirrored_labels(name, pipeline, num_classes)
    if not set(names) <= {"train"}:
        yield from _metric(spec.metric, spec.model)
    if not num_classes:
        yield from _without_classes(spec.model["framework"], spec.mix, spec.data.class_names)
    yield from _sizes(spec, names, pipelines)
    if "train" in names:
        yield from _same_clips(spec.splits["train"].dataset, pipelines["train"].sample)
        if curve and (misfit := curve.misfit(spec.run.epochs)):
            number = spec.run.epochs
            text = f"{spec.where('OPTIMIZER.learning_rate')} {misfit}; train --epochs {number} stretches it"
            yield Problem(f"epochs={number}", text, is_error=False)
        if spec.mix and spec.data.batch_size == 1 and not spec.run.multigrid:
            text = f"has no effect on batches of one clip ({spec.where('DATASET.batch_size')}){_IS_MEANT}"
            yield Problem("MIX", text, is_error=False)


def _mirrored_labels(name: SplitName, pipeline: Pipeline, num_classes: int) -> Problems:
    """A flip that may give a clip a label beyond the classes of the network."""
    for step in pipeline.geometric:
        largest = max(step.swapped_labels, default=0) if isinstance(step, RandomFlip) else 0
        if 0 < num_classes <= largest:
            text = f"RandomFlip.swapped_labels: label {largest} with num_classes {num_classes}"
            yield Problem(f"PIPELINE.{name}.transform", text)


def _decoder(name: SplitName, form: str, decoder: Any) -> Problems:
    """A decoder of files for a list of folders."""
    usual = getattr(DATASETS.get(form), "usual_decoder", None)
    if usual is FrameDecoder and isinstance(decoder, VideoDecoder) and decoder.backend != "auto":
        text = f"opens video files, and {form} lists folders of frames; take FrameDecoder"
        yield Problem(f"PIPELINE.{name}.decode.name=VideoDecoder", text)


def _same_clips(dataset: ComponentSection, sampler: FrameSampler) -> Problems:
    """Several clips of each training video whose sampler draws nothing."""
    clips = dataset.get("clips_per_video", 1)
    drawn = [
        sampler.sample(1000, 25.0, ClipRequest(0, 0, view, clips), np.random.default_rng(view))
        for view in range(min(clips, 2))
    ]
    if clips > 1 and (drawn[0] == drawn[1]).all():
        text = f"{clips}, and the sampler draws nothing: all clips of a video have the same frames{_IS_MEANT}"
        yield Problem("DATASET.train.clips_per_video", text, is_error=False)


def _metric(section: ComponentSection | None, model: ComponentSection) -> Problems:
    """A metric of one class a video and a head of several, or the other way round."""
    activation, name = activation_of(model), (section or {}).get("name")
    meant = name and getattr(METRICS.get(name), "activation", activation)
    if meant and not classes_of(model):
        text = f"measures classes, and {model['framework']} has none; take LossMetric"
        yield Problem(f"METRIC.name={name}", text)
    elif meant and meant != activation:
        usual = {"softmax": "CenterCropMetric or MultiCropMetric", "sigmoid": "MeanAveragePrecision"}
        text = f"is for heads with {meant}, and the head has {activation}; take {usual[activation]}"
        yield Problem(f"METRIC.name={name}", text)


def _without_classes(framework: str, mix: ComponentSection | None, class_names: str | None) -> Problems:
    """Settings that have no meaning for a framework without classes."""
    if mix:
        yield Problem("MIX", f"mixes labels, and {framework} has none; take the section out")
    if class_names is not None:
        yield Problem("DATASET.class_names", f"has no effect: {framework} has no classes", is_error=False)


def _sizes(spec: RunSpec, names: Sequence[SplitName], pipelines: Pipelines) -> Problems:
    """Evaluation at another size than the part before it: training, validation, test."""
    pairs: tuple[tuple[SplitName, SplitName], ...] = (("train", "valid"), ("valid", "test"))
    for pair in pairs:
        if {*pair} & {*names} and {*pair} <= spec.splits.keys():
            before, after = (_clip(spec.extensions, name, pipelines[name])[1] for name in pair)
            if before and after and not before <= after <= before * _USUAL_GROWTH:
                text = f"makes clips of {after} pixels, and PIPELINE.{pair[0]} of {before}{_IS_MEANT}"
                yield Problem(f"PIPELINE.{pair[1]}.transform", text, is_error=False)


def _clip(extensions: Sequence[Extension], name: SplitName, pipeline: Pipeline) -> tuple[int, int]:
    """Frames and side in pixels of the clips that the network takes of a part; side 0: none is known."""
    clip = pipeline.sample.num_frames, pipeline.crop_size
    for extension in extensions if name == "train" else ():
        clip = extension.clip_of_network(*clip)
    return clip
