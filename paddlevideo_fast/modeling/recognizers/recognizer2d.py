"""Recognizers whose backbone sees single frames."""

from __future__ import annotations

from typing import ClassVar, Dict, Optional, Union

import paddle
from paddle import nn

from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling.mix import MixedLabels
from paddlevideo_fast.modeling.weights import WeightReport, load_weights
from paddlevideo_fast.registry import BACKBONES, HEADS, RECOGNIZERS, Registry


@RECOGNIZERS.register()
class Recognizer2D(nn.Layer):
    """A 2D backbone over all frames and a head that takes the mean over them (TSN, TSM).

    Args:
        backbone: frames [N*T, 3, H, W] to features.
        head: features and T to logits.

    Attributes:
        load_report: what the last `load_pretrained` took from its file.

    Raises:
        ConfigError: the head expects other channels or another layout than the backbone gives.
    """

    parts: ClassVar[Dict[str, Registry]] = {"backbone": BACKBONES, "head": HEADS}
    ignored_arguments: ClassVar[Dict[str, str]] = {
        "runtime_cfg": "it steers graph-mode details of another trainer",
    }

    def __init__(self, backbone: nn.Layer, head: nn.Layer) -> None:
        super().__init__()
        problems = []
        if head.in_channels != backbone.out_channels:
            problems.append(
                f"MODEL.head.in_channels={head.in_channels}: set it to {backbone.out_channels}, "
                "the channels that the backbone gives"
            )
        if head.data_format != backbone.data_format:
            problems.append(
                f"MODEL.head.data_format={head.data_format}: the backbone has {backbone.data_format}; "
                "give both the same"
            )
        if problems:
            raise ConfigError(problems)
        self.backbone = backbone
        self.head = head
        self.load_report: Optional[WeightReport] = None

    @property
    def num_classes(self) -> int:
        """Classes of the head."""
        return self.head.num_classes

    @property
    def lr_multipliers(self) -> Dict[str, float]:
        """Structured parameter name to the factor on the learning rate that the head asks for."""
        return {f"head.{name}": factor for name, factor in self.head.lr_multipliers.items()}

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

    def loss(self, logits: paddle.Tensor, labels: Union[paddle.Tensor, MixedLabels]) -> paddle.Tensor:
        """Scalar loss of logits [N, num_classes] and labels (int64 [N] or `MixedLabels`)."""
        return self.head.loss(logits, labels)

    def set_partial_bn(self, on: bool = True) -> None:
        """Freezes all batch norms of the backbone but the first, or frees them again."""
        self.backbone.set_partial_bn(on)

    def load_pretrained(self) -> Optional[WeightReport]:
        """Loads the file that the backbone's `pretrained` names, if any.

        Raises:
            WeightError: the file cannot be had or read, or nothing in it fits.
        """
        if self.backbone.pretrained:
            self.load_report = load_weights(self.backbone, self.backbone.pretrained)
        return self.load_report
