"""What the light networks share: the temporal shift inside, and a linear layer of their own at the end."""

from __future__ import annotations

from typing import Annotated, Optional

import paddle
from paddle import nn

from paddlevideo_fast.config.types import Range
from paddlevideo_fast.modeling.layers import activation, temporal_shift

Scale = Annotated[float, Range(0.1)]


def make_divisible(value: float, divisor: int = 8) -> int:
    """The multiple of `divisor` nearest to `value`, and no less than 0.9 of it.

    Reference: Howard et al., "Searching for MobileNetV3", arXiv 1905.02244.
    """
    rounded = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return rounded if rounded >= 0.9 * value else rounded + divisor


class TemporalShift(nn.Layer):
    """The temporal shift as a layer without parameters; see `layers.temporal_shift`."""

    def __init__(self, num_seg: int, shift_ratio: float) -> None:
        super().__init__()
        self._num_seg = num_seg
        self._shift_ratio = shift_ratio

    def forward(self, frames: paddle.Tensor) -> paddle.Tensor:
        """[N*T, C, H, W] to the same."""
        return temporal_shift(frames, self._num_seg, self._shift_ratio)


class FrameClassifier(nn.Layer):
    """A backbone whose outputs are the logits of frames, for `MoViNetHead`, which takes their mean.

    Args:
        pretrained: path or URL of weights; null: random weights.
        num_seg: frames of a clip.
        class_num: classes.
        shift_ratio: share of the channels in each fold of the temporal shift; null: 1/num_seg, as
            PaddleVideo trained these networks.

    Attributes:
        num_classes: of its logits.
        out_channels: the same.
        shift: the temporal shift, without parameters.
    """

    data_format = "NCHW"

    def __init__(
        self, pretrained: Optional[str], num_seg: int, class_num: int, shift_ratio: Optional[float]
    ) -> None:
        super().__init__()
        self.pretrained = pretrained
        self.num_seg = num_seg
        self.num_classes = self.out_channels = class_num
        self.shift_ratio = 1 / num_seg if shift_ratio is None else shift_ratio
        self.shift = TemporalShift(num_seg, self.shift_ratio)


class WideClassifier(FrameClassifier):
    """A `FrameClassifier` that ends in a wide layer, under the names `last_conv` and `fc`."""

    def add_classifier(self, channels: int, width: int, act: str, dropout_prob: float) -> None:
        """Adds the last layers, which take `channels` channels and have `width` inside."""
        init = paddle.ParamAttr(initializer=nn.initializer.KaimingNormal())
        self.last_conv = nn.Conv2D(channels, width, 1, weight_attr=init, bias_attr=False)
        self.last_act = activation(act)
        self.dropout = nn.Dropout(dropout_prob, mode="downscale_in_infer")
        self.fc = nn.Linear(width, self.num_classes)

    def classify(self, x: paddle.Tensor) -> paddle.Tensor:
        """Features [N*T, channels, H, W] to logits [N*T, class_num]."""
        x = self.last_act(self.last_conv(x.mean(axis=[2, 3], keepdim=True)))
        return self.fc(self.dropout(x).flatten(1))
