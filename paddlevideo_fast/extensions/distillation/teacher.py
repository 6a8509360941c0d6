"""The teacher that DISTILLATION names, before it is built, and what is wrong with the section."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from paddlevideo_fast.assembly.data import Pipelines
from paddlevideo_fast.config import RunSpec, load_config
from paddlevideo_fast.config.settings import SplitName
from paddlevideo_fast.config.spec import placed
from paddlevideo_fast.errors import ConfigError, SettingError
from paddlevideo_fast.loader.transforms.crop import RandomFlip
from paddlevideo_fast.modeling import activation_of, classes_of

_TEACHER = "DISTILLATION.teacher"


@dataclass(frozen=True)
class TeacherPlan:
    """The teacher that the key `teacher` names, before it is built.

    Attributes:
        spec: of its config.
        num_frames, crop_size: of its clips; crop_size 0: its config does not say.
        normalization: mean and standard deviation of its clips.
    """

    spec: RunSpec
    num_frames: int
    crop_size: int
    normalization: tuple[Any, Any]


@placed
def plan_teacher(spec: RunSpec) -> TeacherPlan | None:
    """The teacher of a run; None where the run has none, or has stored logits of it.

    Raises:
        SettingError: its config is wrong or describes no clips.
    """
    if spec.distillation is None or spec.distillation.teacher is None:
        return None
    named = spec.distillation.teacher
    try:
        teacher = RunSpec.of(load_config(named))
        names: list[SplitName] = [name for name in ("train", "valid", "test") if name in teacher.splits]
        if not names:
            raise ConfigError(["PIPELINE: is missing, so nothing says which clips the teacher takes"])
        pipelines = Pipelines(teacher)
        pipeline, size = pipelines[names[0]], pipelines.crop_size(names[0])
    except ConfigError as error:
        raise SettingError(f"{_TEACHER}={named}", f"this config of the teacher is wrong: {error}") from None
    return TeacherPlan(teacher, pipeline.sample.num_frames, size, pipeline.normalization)


def distillation_problems(
    spec: RunSpec, teacher: TeacherPlan | None, pipelines: Pipelines
) -> Iterator[tuple[str, str]]:
    """Key and text of all that is wrong with DISTILLATION in a run."""
    settings = spec.distillation
    if settings is None:
        return
    if (settings.teacher is None) == (settings.logits is None):
        yield "DISTILLATION", "needs one of the two: teacher, or the logits that it has stored"
    if settings.teacher_weights is not None and settings.teacher is None:
        yield "DISTILLATION.teacher_weights", "are of use with DISTILLATION.teacher only; take the key out"
    if "models" in spec.model:
        text = f"{spec.model['framework']} has teachers of its own; name the student alone in MODEL"
        yield "DISTILLATION", text
    elif not classes_of(spec.model):
        text = f"compares scores of classes, and {spec.model['framework']} has none; take it out"
        yield "DISTILLATION", text
    elif activation_of(spec.model) != "softmax":
        text = "compares softmax scores, of one class a video, and the head has a sigmoid; take it out"
        yield "DISTILLATION", text
    else:
        yield from _of_teachers_classes(spec, teacher)
    yield from _of_clips(spec, teacher, pipelines)
    if settings.logits is not None:
        for step in pipelines["train"].geometric:
            if isinstance(step, RandomFlip) and step.swapped_labels:
                text = "stored logits do not say which clips are mirrored; take the flip out, or a teacher"
                yield "PIPELINE.train.transform", f"RandomFlip.swapped_labels: {text} that computes along"


def _of_teachers_classes(spec: RunSpec, teacher: TeacherPlan | None) -> Iterator[tuple[str, str]]:
    if teacher is None:
        return
    key = f"{_TEACHER}={spec.distillation and spec.distillation.teacher}"
    own, others = classes_of(spec.model), classes_of(teacher.spec.model)
    if own != others:
        yield (
            key,
            f"the teacher has {others} classes, and MODEL has {own}; train a teacher on the same classes",
        )
    elif activation_of(teacher.spec.model) != "softmax":
        yield key, "the teacher has a sigmoid, and distillation compares softmax scores; take another teacher"


def _of_clips(spec: RunSpec, teacher: TeacherPlan | None, pipelines: Pipelines) -> Iterator[tuple[str, str]]:
    """Clips that cannot be made out of those of PIPELINE.train, which have to be the largest."""
    settings, pipeline, size = spec.distillation, pipelines["train"], pipelines.crop_size("train")
    assert settings is not None
    sizes = (
        ("num_frames", "frames", pipeline.sample.num_frames, settings.student_num_frames),
        ("crop_size", "pixels", size, settings.student_crop_size),
    )
    for name, unit, there, own in sizes:
        if own is not None and own > there:
            text = f"clips of PIPELINE.train have {there} {unit}; make them larger there"
            yield f"DISTILLATION.student_{name}={own}", text
    for name, unit, there, _ in sizes if teacher else ():
        taken = getattr(teacher, name)
        if taken > there:
            text = f"the teacher takes clips of {taken} {unit}, and PIPELINE.train makes {there}"
            more = f"make {taken} there, and give the student its {there} by DISTILLATION.student_{name}"
            yield f"{_TEACHER}={settings.teacher}", f"{text}: {more}"
    shaped = teacher is not None or any(own is not None for *_, own in sizes)
    if shaped and spec.run.multigrid:
        text = (
            "changes the shape of the clips from step to step, and teacher and student have one; leave it out"
        )
        yield "multigrid", text
    if shaped and spec.holds("features"):
        yield "features", "there are no clips for a teacher; train on videos, or with DISTILLATION.logits"
