"""The section DISTILLATION: what it asks of the run, and the loss that it gives."""

import functools
from dataclasses import dataclass
from typing import Annotated, Any

from paddlevideo_fast.assembly.build import TrainingSetup
from paddlevideo_fast.assembly.data import Pipelines
from paddlevideo_fast.assembly.plan import RunPlan
from paddlevideo_fast.config import RunSpec
from paddlevideo_fast.config.settings import SplitName
from paddlevideo_fast.config.types import Range, Share, Size
from paddlevideo_fast.engine.extension import Extension, Problem, Problems
from paddlevideo_fast.engine.protocols import Preprocess
from paddlevideo_fast.extensions.distillation.objective import LiveTeacher, SoftLabels, StoredTeacher
from paddlevideo_fast.extensions.distillation.soft_labels import ShapedPreprocess
from paddlevideo_fast.extensions.distillation.teacher import KEY, TeacherPlan
from paddlevideo_fast.loader.class_names import checked_class_names
from paddlevideo_fast.loader.transforms.crop import RandomFlip
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.modeling import activation_of, classes_of
from paddlevideo_fast.modeling.preprocess import Layout
from paddlevideo_fast.registry import EXTENSIONS

logger = get_logger(__name__)


@EXTENSIONS.register("DISTILLATION")
@dataclass(frozen=True)
class Distillation(Extension):
    """A trained network, the teacher, whose scores the network of MODEL learns beside the labels.

    Args:
        teacher: config of the teacher: a YAML file, the name of a built-in config, or the output folder of a
            run. The teacher computes on the clips of each batch, as its own config shapes and normalises
            them.
        teacher_weights: weight file of the teacher, a path or a URL; null for the best weights of its run.
        logits: folder of logits that `paddlevideo-fast features --logits` has stored, in place of `teacher`.
        temperature: divides the logits of both networks before their softmax. The higher it is, the more the
            classes count that the teacher holds for unlikely.
        share: share of the loss that the scores of the teacher have; the labels have the rest.
        student_num_frames: frames of a clip of the network of MODEL, taken evenly out of a clip of
            PIPELINE.train; null for all.
        student_crop_size: side of a clip of the network of MODEL in pixels, to which a clip of PIPELINE.train
            is shrunk; null for the whole side.

    Reference: Hinton et al., "Distilling the Knowledge in a Neural Network", arXiv 1503.02531, section 2.
    """

    teacher: str | None = None
    teacher_weights: str | None = None
    logits: str | None = None
    temperature: Annotated[float, Range(0.01)] = 4.0
    share: Share = 0.9
    student_num_frames: Size | None = None
    student_crop_size: Size | None = None

    @functools.cached_property
    def planned(self) -> TeacherPlan | None:
        """The teacher; None where the run has stored logits of it.

        Raises:
            SettingError: its config is wrong or describes no clips.
        """
        return None if self.teacher is None else TeacherPlan.of(self.teacher)

    def problems(self, plan: RunPlan) -> Problems:
        """A network or clips that do not fit the teacher.

        Raises:
            SettingError: see `planned`.
        """
        spec, pipelines, framework = plan.spec, plan.pipelines, plan.spec.model["framework"]
        if (self.teacher is None) == (self.logits is None):
            yield Problem("DISTILLATION", "needs one of the two: teacher, or the logits that it has stored")
        if self.teacher_weights is not None and self.teacher is None:
            text = "are of use with DISTILLATION.teacher only; take the key out"
            yield Problem("DISTILLATION.teacher_weights", text)
        if "models" in spec.model:
            text = f"{framework} has teachers of its own; name the student alone in MODEL"
            yield Problem("DISTILLATION", text)
        elif not classes_of(spec.model):
            text = f"compares scores of classes, and {framework} has none; take it out"
            yield Problem("DISTILLATION", text)
        elif activation_of(spec.model) != "softmax":
            text = "compares softmax scores, of one class a video, and the head has a sigmoid; take it out"
            yield Problem("DISTILLATION", text)
        elif self.planned is not None:
            yield from self._of_classes(classes_of(spec.model), self.planned.spec)
        yield from self._of_clips(spec, pipelines)
        if self.logits is not None:
            for step in pipelines["train"].geometric:
                if isinstance(step, RandomFlip) and step.swapped_labels:
                    text = "stored logits do not say which clips are mirrored; take the flip out, or"
                    text = f"RandomFlip.swapped_labels: {text} a teacher that computes along"
                    yield Problem("PIPELINE.train.transform", text)

    def clip_of_network(self, num_frames: int, crop_size: int) -> tuple[int, int]:
        return self.student_num_frames or num_frames, self.student_crop_size or crop_size

    def on_clips(self, name: SplitName, preprocess: Preprocess, layout: Layout) -> Preprocess:
        """Makes the clips of the student, which may be smaller than the teacher's, of those of training."""
        if name != "train" or not (self.student_num_frames or self.student_crop_size):
            return preprocess
        return ShapedPreprocess(preprocess, layout, self.student_num_frames, self.student_crop_size)

    def objective(self, setup: TrainingSetup) -> SoftLabels:
        """The loss of the teacher's scores and of the labels.

        Raises:
            WeightError: the weights of the teacher are missing or do not fit.
            AnnotationError: the teacher has other classes.
            FeatureError: the stored logits are missing, or belong to other videos or classes.
        """
        spec, planned = setup.spec, self.planned
        shared: Any = {"student": setup.model, "temperature": self.temperature, "share": self.share}
        if planned is None:
            assert self.logits is not None
            return StoredTeacher.of(self.logits, spec, setup.split, **shared)
        weights = self.teacher_weights or planned.usual_weights()
        teacher = planned.build(weights, spec.run.amp)
        checked_class_names(spec.config, classes_of(spec.model), weights)
        size = planned.crop_size or "all"
        text = "teacher: %s, weights %s, clips of %d frames and %s pixels"
        logger.info(text, self.teacher, weights, planned.num_frames, size)
        preprocess = planned.preprocess(teacher.layout)
        return LiveTeacher(teacher=teacher, preprocess=preprocess, precision=setup.plan.precision, **shared)

    def _of_classes(self, num_classes: int, teacher: RunSpec) -> Problems:
        """A teacher of other classes."""
        others = classes_of(teacher.model)
        if num_classes != others:
            text = f"the teacher has {others} classes, and MODEL has {num_classes}"
            yield Problem(f"{KEY}={self.teacher}", f"{text}; train a teacher on the same classes")
        elif activation_of(teacher.model) != "softmax":
            text = "the teacher has a sigmoid, and distillation compares softmax scores; take another teacher"
            yield Problem(f"{KEY}={self.teacher}", text)

    def _of_clips(self, spec: RunSpec, pipelines: Pipelines) -> Problems:
        """Clips that cannot be made out of those of PIPELINE.train, which have to be the largest."""
        teacher, pipeline = self.planned, pipelines["train"]
        sizes = (
            ("num_frames", "frames", pipeline.sample.num_frames, self.student_num_frames),
            ("crop_size", "pixels", pipeline.crop_size, self.student_crop_size),
        )
        for name, unit, there, own in sizes:
            if own is not None and own > there:
                text = f"clips of PIPELINE.train have {there} {unit}; make them larger there"
                yield Problem(f"DISTILLATION.student_{name}={own}", text)
        for name, unit, there, _ in sizes if teacher else ():
            taken = getattr(teacher, name)
            if taken > there:
                text = f"the teacher takes clips of {taken} {unit}, and PIPELINE.train makes {there}"
                more = f"make {taken} there, and give the student its {there} by DISTILLATION.student_{name}"
                yield Problem(f"{KEY}={self.teacher}", f"{text}: {more}")
        if teacher is None and all(own is None for *_, own in sizes):
            return
        if spec.run.multigrid:
            text = "changes the shape of the clips from step to step, and teacher and student have one"
            yield Problem("multigrid", f"{text}; leave it out")
        if spec.holds("features"):
            text = "there are no clips for a teacher; train on videos, or with DISTILLATION.logits"
            yield Problem("features", text)
