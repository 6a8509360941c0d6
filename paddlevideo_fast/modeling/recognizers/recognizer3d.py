"""Recognizers whose backbone sees whole clips."""

from __future__ import annotations

import paddle

from paddlevideo_fast.modeling.recognizers.base import Recognizer
from paddlevideo_fast.registry import RECOGNIZERS


@RECOGNIZERS.register()
class Recognizer3D(Recognizer):
    """A 3D backbone and a head over the whole clip (SlowFast, Slow-only, I3D).

    Args:
        backbone: clips [N, 3, T, H, W] to a list of feature maps.
        head: the feature maps to logits.

    Raises:
        ConfigError: the head expects other channels than the backbone gives, or the backbone is a 2D one.
    """

    layout = "NCTHW"
    data_formats = ("NCDHW",)

    def forward(self, clips: paddle.Tensor) -> paddle.Tensor:
        """Clips, normalised float [N, 3, T, H, W], to logits [N, num_classes]."""
        return self.head(self.backbone(clips))
