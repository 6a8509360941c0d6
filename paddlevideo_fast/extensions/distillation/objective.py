"""The loss of a training with a teacher, which computes beside the training, or has stored its logits."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import paddle

from paddlevideo_fast.assembly.data import Split
from paddlevideo_fast.config import RunSpec
from paddlevideo_fast.device import upload
from paddlevideo_fast.engine import Precision
from paddlevideo_fast.engine.protocols import Preprocess
from paddlevideo_fast.errors import FeatureError
from paddlevideo_fast.extensions.distillation.soft_labels import soft_label_loss
from paddlevideo_fast.extensions.features.loader import KIND, StoredFeatures, first_row
from paddlevideo_fast.extensions.features.model import digest_of
from paddlevideo_fast.extensions.features.recipe import local_folder, require_same_list
from paddlevideo_fast.loader import ClipRequest
from paddlevideo_fast.loader.class_names import checked_class_names
from paddlevideo_fast.loader.dataset import ClipDataset
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.modeling import classes_of

_RULED_OUT = -1e30  # a logit whose score is 0 at any temperature
logger = get_logger(__name__)


@dataclass(eq=False, kw_only=True)
class SoftLabels:
    """The loss of a training with a teacher; see `engine.protocols.Objective`.

    The teacher gives its scores for the clips before a mix, and `MixedLabels` blend them. Label smoothing and
    weights of classes belong to the loss of the labels, and leave the scores of the teacher alone.

    Args:
        student: the network that trains.
        temperature, share: see the section DISTILLATION.

    Attributes:
        identity: JSON values that decide the soft labels of a step.
    """

    student: Any
    temperature: float
    share: float
    identity: dict[str, Any] = field(init=False)
    _logits: paddle.Tensor | None = field(default=None, init=False)

    def observing(self, preprocess: Preprocess) -> Preprocess:
        return preprocess

    def loss(self, outputs: Any, labels: Any) -> paddle.Tensor:
        """Share · temperature² · KL(teacher ‖ student) + (1 − share) · loss of the labels; scalar float32."""
        assert self._logits is not None
        own = self.student.loss(outputs, labels)
        logits = outputs[0] if isinstance(outputs, tuple) else outputs
        soft = soft_label_loss(logits, self._logits, self.temperature, labels)
        return soft * self.share + own * (1 - self.share)


@dataclass(eq=False, kw_only=True)
class LiveTeacher(SoftLabels):
    """A teacher that computes on the clips of each batch, in evaluation mode.

    Args:
        teacher: the network, with its weights.
        preprocess: from a batch to its clips.
        precision: that it computes in.
    """

    teacher: Any
    preprocess: Preprocess
    precision: Precision

    def __post_init__(self) -> None:
        self.identity = {"teacher": digest_of(self.teacher)}
        self.precision.cast_frozen(self.teacher)

    def observing(self, preprocess: Preprocess) -> Preprocess:
        def observed(clips: Any) -> paddle.Tensor:
            # before the student runs, whose values for the backward pass take the memory
            self._logits = self.logits_of(clips)
            return preprocess(clips)

        return observed

    @paddle.no_grad()
    def logits_of(self, clips: Any) -> paddle.Tensor:
        """The teacher's logits, float32 [N, num_classes], of clips uint8 [N, T, H, W, 3]."""
        return self.precision.forward(self.teacher, self.preprocess(clips))


@dataclass(eq=False, kw_only=True)
class StoredTeacher(SoftLabels):
    """The logits that a teacher has stored for each record, in place of the teacher.

    They belong to a record and a copy of it, and not to the crop that the student sees. Epochs take the
    copies in turn. A clip whose logits are missing, because it did not decode then, has its label in their
    place.

    Args:
        stored: the logits.
        dataset: the records.
    """

    stored: StoredFeatures
    dataset: ClipDataset

    def __post_init__(self) -> None:
        self.identity = {"teacher": self.stored.index.files}

    @classmethod
    def of(cls, folder: str, spec: RunSpec, split: Split, **shared: Any) -> "StoredTeacher":
        """The logits in a folder, for the training data of a run.

        Raises:
            AnnotationError: the teacher has other classes.
            FeatureError: they are missing, or belong to other videos or classes.
        """
        stored = StoredFeatures(local_folder(folder) / "train")
        if stored.index.recipe.get(KIND) != "logits":
            text = "holds features, and DISTILLATION.logits needs logits; store them with  features --logits"
            raise FeatureError(f"{stored.folder}: {text}")
        require_same_list(stored, split.dataset)
        own, others = classes_of(spec.model), list(stored.features.shape[1:])
        if others != [own]:
            text = f"holds logits of shape {others} for a clip, and MODEL has {own} classes"
            raise FeatureError(f"{stored.folder}: {text}; take a teacher of the same classes")
        checked_class_names(spec.config, own, str(stored.folder))
        logger.info("logits of the teacher: %s, %d copies", stored.folder, stored.index.num_copies)
        return cls(stored=stored, dataset=split.dataset, **shared)

    def key_clips(self, keys: Sequence[tuple[int, int, int, int]]) -> None:
        """Takes the logits of a batch, by (seed, epoch, number of the record, view) of each clip."""
        self._logits = upload(np.stack([self._row(*key) for key in keys]))

    def _row(self, seed: int, epoch: int, index: int, view: int) -> np.ndarray:
        dataset, stored = self.dataset, self.stored
        view, crop = divmod(view, dataset.num_crops)
        request = ClipRequest(index, epoch, view, dataset.clips_per_video)
        row = first_row(dataset, stored.index.num_copies, index, request) + crop
        if row not in stored.index.failed:
            return np.asarray(stored.features[row], np.float32)
        certain = np.full(stored.features.shape[1:], _RULED_OUT, np.float32)
        certain[list(dataset.records[index].labels)] = 0.0
        return certain
