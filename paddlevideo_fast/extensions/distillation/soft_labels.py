"""Soft labels: a network learns the scores that a trained one, its teacher, gives for the same videos.

Reference: Hinton et al., "Distilling the Knowledge in a Neural Network", arXiv 1503.02531, section 2.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F

from paddlevideo_fast.engine.protocols import Preprocess
from paddlevideo_fast.errors import SettingError
from paddlevideo_fast.modeling.preprocess import Layout, MixedLabels

_LEAST = 1e-30  # keeps the logarithm of a score of 0 finite


@dataclass(eq=False, frozen=True)
class ShapedPreprocess:
    """`Preprocess` of clips that are made out of longer or larger ones, on the device.

    Frames are taken evenly: the one in the middle of each of `num_frames` equal spans of the clip. They are
    shrunk by area: a pixel is the mean of the pixels that it covers.

    Args:
        preprocess: normalises the clips.
        layout: of the clips that come out.
        num_frames: frames of the clips that come out; None: all.
        crop_size: their side in pixels; None: the whole side.
    """

    preprocess: Preprocess
    layout: Layout
    num_frames: int | None = None
    crop_size: int | None = None

    def __call__(self, clips: np.ndarray | paddle.Tensor) -> paddle.Tensor:
        """Clips uint8 [N, T, H, W, 3] to float32 in `layout`."""
        num_frames = clips.shape[1]
        if self.num_frames not in (None, num_frames):
            frames = middle_frames(num_frames, self.num_frames or num_frames)
            if isinstance(clips, np.ndarray):
                clips = clips[:, frames]
            else:
                clips = paddle.concat([clips[:, frame : frame + 1] for frame in frames], axis=1)
        clips = self.preprocess(clips)
        return clips if self.crop_size is None else self._shrunk(clips, self.crop_size)

    def _shrunk(self, clips: paddle.Tensor, size: int) -> paddle.Tensor:
        if self.layout == "NTHWC":
            pooled = F.adaptive_avg_pool2d(clips.flatten(0, 1), size, data_format="NHWC")
            return pooled.reshape([*clips.shape[:2], size, size, 3])
        pooled = F.adaptive_avg_pool2d(clips.flatten(1, 2), size)
        return pooled.reshape([*clips.shape[:3], size, size])


def middle_frames(num_frames: int, num_taken: int) -> list[int]:
    """The frame in the middle of each of `num_taken` equal spans of `num_frames` frames: 1, 3, 5, 7 of 8."""
    return [(2 * span + 1) * num_frames // (2 * num_taken) for span in range(num_taken)]


def soft_label_loss(
    logits: paddle.Tensor, teacher_logits: paddle.Tensor, temperature: float, labels: Any = None
) -> paddle.Tensor:
    """Mean of the Kullback-Leibler divergences KL(teacher ‖ student) times temperature².

    The scores are softmax(logits / temperature). The square keeps the size of the gradients where the
    temperature changes.

    Args:
        logits: of the student, float [N, num_classes].
        teacher_logits: float [N, num_classes], of the clips before a mix.
        temperature: > 0.
        labels: those of the step. `MixedLabels` blend the teacher's scores as they blend the labels.

    Returns:
        Scalar float32.

    Raises:
        SettingError: the mix does not say which clips it has blended.
    """
    targets = F.softmax(teacher_logits.astype("float32") / temperature, axis=-1)
    if isinstance(labels, MixedLabels):
        if labels.order is None:
            text = "gives MixedLabels without an order, and DISTILLATION blends soft labels by it; set it"
            raise SettingError("MIX", text)
        others = paddle.index_select(targets, labels.order)
        targets = targets * labels.lam + others * (1 - labels.lam)
    log_prob = F.log_softmax(logits.astype("float32") / temperature, axis=-1)
    terms = targets * (paddle.log(targets.clip(min=_LEAST)) - log_prob)
    return terms.sum(axis=-1).mean() * temperature**2
