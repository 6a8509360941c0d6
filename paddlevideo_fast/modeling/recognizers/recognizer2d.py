"""Recognizers whose backbone sees single frames."""

from __future__ import annotations

import paddle

from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling.recognizers.base import Recognizer
from paddlevideo_fast.registry import RECOGNIZERS


@RECOGNIZERS.register()
class Recognizer2D(Recognizer):
    """A 2D backbone over all frames and a head that takes the mean over them (TSN, TSM).

    Args:
        backbone: frames [N*T, 3, H, W] to features.
        head: features and T to logits.

    Raises:
        ConfigError: the head expects other channels or another layout than the backbone gives.
    """

    layout = "NTCHW"
    data_formats = ("NCHW", "NHWC")

    def forward(self, clips: paddle.Tensor) -> paddle.Tensor:
        """Clips to logits.

        Args:
            clips: normalised float [N, T, 3, H, W]. T may be several views of `num_seg` frames, one after the
                other; their logits are averaged.

        Returns:
            [N, num_classes].

        Raises:
            ConfigError: T is not a multiple of the backbone's `num_seg`.
        """
        num_frames = clips.shape[1]
        num_seg = self.backbone.num_seg
        if num_seg is not None and isinstance(num_frames, int) and num_frames > 0 and num_frames % num_seg:
            raise ConfigError(
                [
                    f"MODEL.backbone.num_seg={num_seg}: clips have {num_frames} frames; "
                    "give it the num_seg of PIPELINE's sample"
                ]
            )
        features = self.backbone(clips.flatten(0, 1))
        return self.head(features, num_frames)

    def set_partial_bn(self, on: bool = True) -> None:
        """Freezes all batch norms of the backbone but the first, or frees them again."""
        self.backbone.set_partial_bn(on)
