"""The section DISTILLATION at work: a teacher that computes beside the training, or its stored logits."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import paddle

from paddlevideo_fast.assembly.classes import checked_class_names
from paddlevideo_fast.assembly.data import Split
from paddlevideo_fast.config import RunSpec
from paddlevideo_fast.device import upload
from paddlevideo_fast.engine import Precision
from paddlevideo_fast.engine.output import weights_of_config
from paddlevideo_fast.errors import FeatureError, SettingError, WeightError
from paddlevideo_fast.extensions.distillation.soft_labels import ShapedPreprocess, soft_label_loss
from paddlevideo_fast.extensions.distillation.teacher import TeacherPlan
from paddlevideo_fast.extensions.features.loader import KIND, StoredFeatures, first_row
from paddlevideo_fast.extensions.features.model import digest_of
from paddlevideo_fast.extensions.features.recipe import local_folder, require_same_list
from paddlevideo_fast.loader import ClipRequest
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.modeling import Preprocess, build_for_clips, classes_of, load_weights

_RULED_OUT = -1e30  # a logit whose score is 0 at any temperature
logger = get_logger(__name__)


class Distillation:
    """The loss of a training with a teacher; see `engine.protocols.Objective`.

    The teacher gives its scores for the clips before a mix, and `MixedLabels` blend them. Label smoothing and
    weights of classes belong to the loss of the labels, and leave the scores of the teacher alone.

    Args:
        student: the network that trains.
        temperature, share: see `DistillationSettings`.

    Attributes:
        identity: JSON values that decide the soft labels of a step.
    """

    identity: dict[str, Any]

    def __init__(self, student: Any, temperature: float, share: float) -> None:
        self._student = student
        self._temperature = temperature
        self._share = share
        self._logits: paddle.Tensor | None = None

    def observing(self, preprocess: Any) -> Any:
        """`preprocess`, so that this object sees the clips of a step as well."""
        return preprocess

    def loss(self, outputs: Any, labels: Any) -> paddle.Tensor:
        """Share · temperature² · KL(teacher ‖ student) + (1 − share) · loss of the labels; scalar float32."""
        assert self._logits is not None
        own = self._student.loss(outputs, labels)
        logits = outputs[0] if isinstance(outputs, tuple) else outputs
        soft = soft_label_loss(logits, self._logits, self._temperature, labels)
        return soft * self._share + own * (1 - self._share)


class LiveDistillation(Distillation):
    """A teacher that computes on the clips of each batch, in evaluation mode.

    Args:
        teacher: the network, with its weights.
        preprocess: from a batch to its clips.
        precision: that it computes in.
    """

    def __init__(self, teacher: Any, preprocess: Any, precision: Precision, **shared: Any) -> None:
        super().__init__(**shared)
        self._teacher = teacher
        self._preprocess = preprocess
        self._precision = precision
        self.identity = {"teacher": digest_of(teacher)}
        precision.cast_frozen(teacher)

    def observing(self, preprocess: Any) -> Any:
        def observed(clips: Any) -> paddle.Tensor:
            # before the student runs, whose values for the backward pass take the memory
            self._logits = self.logits_of(clips)
            return preprocess(clips)

        return observed

    @paddle.no_grad()
    def logits_of(self, clips: Any) -> paddle.Tensor:
        """The teacher's logits, float32 [N, num_classes], of clips uint8 [N, T, H, W, 3]."""
        return self._precision.forward(self._teacher, self._preprocess(clips))


class StoredDistillation(Distillation):
    """The logits that a teacher has stored for each record, in place of the teacher.

    They belong to a record and a copy of it, and not to the crop that the student sees. With K copies, the
    clips of epoch e take the logits of copy e modulo K. A clip whose logits are missing, because it did not
    decode then, has its label in their place.

    Args:
        stored: the logits.
        dataset: the records.
    """

    def __init__(self, stored: StoredFeatures, dataset: ClipDataset, **shared: Any) -> None:
        super().__init__(**shared)
        self._stored = stored
        self._dataset = dataset
        self.identity = {"teacher": stored.index.files}

    def key_clips(self, keys: Sequence[tuple[int, int, int, int]]) -> None:
        """Takes the logits of a batch, by (seed, epoch, number of the record, view) of each clip."""
        self._logits = upload(np.stack([self._row(*key) for key in keys]))

    def _row(self, seed: int, epoch: int, index: int, view: int) -> np.ndarray:
        dataset, stored = self._dataset, self._stored
        view, crop = divmod(view, dataset.num_crops)
        request = ClipRequest(index, epoch, view, dataset.clips_per_video)
        row = first_row(dataset, stored.index.num_copies, index, request) + crop
        if row not in stored.index.failed:
            return np.asarray(stored.features[row], np.float32)
        certain = np.full(stored.features.shape[1:], _RULED_OUT, np.float32)
        certain[list(dataset.records[index].labels)] = 0.0
        return certain


def make_distillation(
    spec: RunSpec, planned: TeacherPlan | None, student: Any, split: Split, precision: Precision
) -> Distillation | None:
    """What gives the loss of a training with DISTILLATION; None where the section is not there.

    Args:
        spec: of the run.
        planned: its teacher.
        student: the network that trains.
        split: the training data.
        precision: of the training.

    Raises:
        WeightError: the weights of the teacher are missing or do not fit.
        AnnotationError: the teacher has other classes.
        FeatureError: the stored logits are missing, or belong to other videos or classes.
    """
    settings = spec.distillation
    if settings is None:
        return None
    shared = {"student": student, "temperature": settings.temperature, "share": settings.share}
    if planned is None:
        assert settings.logits is not None
        stored = _stored_logits(spec, settings.logits, split)
        logger.info("logits of the teacher: %s, %d copies", stored.folder, stored.index.num_copies)
        return StoredDistillation(stored, split.dataset, **shared)
    weights = _weights_of(spec, planned)
    teacher = _built(planned, weights, spec.run.amp)
    checked_class_names(spec, weights)
    preprocess = Preprocess(*planned.normalization, teacher.layout)
    shaped = ShapedPreprocess(preprocess, planned.num_frames, planned.crop_size or None)
    logger.info(
        "teacher: %s, weights %s, clips of %d frames and %s pixels",
        settings.teacher,
        weights,
        planned.num_frames,
        planned.crop_size or "all",
    )
    return LiveDistillation(teacher, shaped, precision, **shared)


def _stored_logits(spec: RunSpec, folder: str, split: Split) -> StoredFeatures:
    stored = StoredFeatures(local_folder(folder) / "train")
    if stored.index.recipe.get(KIND) != "logits":
        text = "holds features, and DISTILLATION.logits needs logits; store them with  features --logits"
        raise FeatureError(f"{stored.folder}: {text}")
    require_same_list(stored, spec, split)
    own, others = classes_of(spec.model), list(stored.features.shape[1:])
    if others != [own]:
        text = f"holds logits of shape {others} for a clip, and MODEL has {own} classes"
        raise FeatureError(f"{stored.folder}: {text}; take a teacher of the same classes")
    checked_class_names(spec, str(stored.folder))
    return stored


def _weights_of(spec: RunSpec, planned: TeacherPlan) -> str:
    assert spec.distillation is not None
    given = spec.distillation.teacher_weights
    if given is not None:
        return given
    try:
        return str(weights_of_config(planned.spec.config))
    except WeightError as error:
        text = f"is missing, and {error}"
        raise SettingError(
            "DISTILLATION.teacher_weights", f"{text}; name the file, or train the teacher"
        ) from None


def _built(planned: TeacherPlan, weights: str, in_16_bits: bool) -> Any:
    with planned.spec.config.placing():
        teacher: Any = build_for_clips(planned.spec.model, in_16_bits, load_pretrained=False)
    try:
        load_weights(teacher, weights, strict=True)
    except WeightError as error:
        text = f"DISTILLATION.teacher_weights: they do not fit the teacher, {planned.spec.config.path}"
        raise WeightError(f"{text}: {error}") from error
    teacher.eval()
    for parameter in teacher.parameters():
        parameter.stop_gradient = True
    return teacher
