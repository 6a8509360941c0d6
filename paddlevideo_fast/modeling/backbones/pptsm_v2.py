"""PP-TSMv2: PP-LCNetV2 with the temporal shift and an attention over frames."""

from typing import Any, ClassVar, NamedTuple

import paddle
import paddle.nn.functional as F
from paddle import nn

from paddlevideo_fast.modeling.backbones.mobilenet import WideClassifier
from paddlevideo_fast.modeling.layers.conv_bn import ConvBNPlain, SqueezeExcitation
from paddlevideo_fast.modeling.layers.operators import is_traced, temporal_shift
from paddlevideo_fast.registry import BACKBONES


class _StageStyle(NamedTuple):
    """What the blocks of a stage have in common."""

    kernel_size: int = 3
    split_pointwise: bool = False
    branches: bool = False
    squeeze: bool = False
    shortcut: bool = False


# channels, blocks, style of each stage
_STAGES = (
    (128, 2, _StageStyle()),
    (256, 2, _StageStyle()),
    (512, 6, _StageStyle(5, split_pointwise=True, branches=True, squeeze=True)),
    (1024, 2, _StageStyle(5, branches=True, shortcut=True)),
)
_SHIFTED_STAGE = 2


class DepthwiseSeparable(nn.Layer):
    """A depthwise convolution, or several of falling size side by side, and one or two 1x1 convolutions.

    Args:
        in_channels, out_channels: channels.
        stride: stride of the depthwise convolution.
        style: style of its stage.

    References:
        PP-LCNetV2, PaddleClas: https://github.com/PaddlePaddle/PaddleClas.
        Ding et al., "RepVGG: Making VGG-style ConvNets Great Again", arXiv 2101.03697, for the branches;
        section 3.3 for the one convolution that a program has in their place.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int, style: _StageStyle) -> None:
        super().__init__()
        self._has_shortcut = style.shortcut and stride == 1 and in_channels == out_channels
        if style.branches:
            self.dw_conv_list = nn.LayerList(
                ConvBNPlain(in_channels, in_channels, size, stride, groups=in_channels)
                for size in range(style.kernel_size, 0, -2)
                if size > 1 or stride == 1
            )
        else:
            self.dw_conv = ConvBNPlain(
                in_channels, in_channels, style.kernel_size, stride, "relu", groups=in_channels
            )
        self._has_branches = style.branches
        self.se = SqueezeExcitation(in_channels, F.sigmoid) if style.squeeze else None
        self._has_two = style.split_pointwise
        if style.split_pointwise:
            self.pw_conv_1 = ConvBNPlain(in_channels, out_channels // 2, 1, act="relu")
            self.pw_conv_2 = ConvBNPlain(out_channels // 2, out_channels, 1, act="relu")
        else:
            self.pw_conv = ConvBNPlain(in_channels, out_channels, 1, act="relu")

    def _merged(self, x: paddle.Tensor) -> paddle.Tensor:
        """The sum of the branches as one convolution; smaller kernels get zeros around them."""
        size, stride = self.dw_conv_list[0].conv.weight.shape[-1], self.dw_conv_list[0].conv._stride
        weights, biases = zip(*(branch.as_convolution() for branch in self.dw_conv_list))
        padded = [F.pad(weight, [(size - weight.shape[-1]) // 2] * 4) for weight in weights]
        return F.conv2d(
            x, paddle.add_n(padded), paddle.add_n(list(biases)), stride, size // 2, groups=x.shape[1]
        )

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """[N*T, C, H, W] to the same with `out_channels` and the stride."""
        if self._has_branches:
            y = self._merged(x) if is_traced() else paddle.add_n([each(x) for each in self.dw_conv_list])
            y = F.relu(y)
        else:
            y = self.dw_conv(x)
        if self.se is not None:
            y = self.se(y)
        y = self.pw_conv_2(self.pw_conv_1(y)) if self._has_two else self.pw_conv(y)
        return x + y if self._has_shortcut else y


class FrameAttention(nn.Layer):
    """Attention over frames: scales each frame of a clip by a number computed from the means of all frames.

    Args:
        num_seg: frames of a clip.
    """

    def __init__(self, num_seg: int) -> None:
        super().__init__()
        self._num_seg = num_seg
        self.fc = nn.Linear(num_seg, num_seg)

    def forward(self, frames: paddle.Tensor) -> paddle.Tensor:
        """[N*T, C, H, W] to the same."""
        means = frames.mean(axis=[1, 2, 3]).reshape([-1, self._num_seg])
        return frames * F.sigmoid(self.fc(means)).reshape([-1, 1, 1, 1])


@BACKBONES.register()
class PPTSM_v2(WideClassifier):
    """PP-LCNetV2 with one temporal shift, before its third stage. It ends in its own classifier and takes
    `MoViNetHead`.

    Weights of PaddleVideo and PaddleClas fit. Their files also have `dw_conv.weight` and `.bias` for the
    blocks with branches. No network computes with these, and the network here lacks them.

    Args:
        use_temporal_att: an attention over the frames before the shift.

    References:
        PP-TSMv2, PaddleVideo: https://github.com/PaddlePaddle/PaddleVideo.
        Lin, Gan, Han, "TSM: Temporal Shift Module for Efficient Video Understanding", arXiv 1811.08383.
    """

    ignored_arguments: ClassVar[dict[str, str]] = {"use_ssld": "`pretrained` names the file"}

    def __init__(self, use_temporal_att: bool = False, **shared: Any) -> None:
        super().__init__(**shared)
        channels, narrow = self.channels(64), self.channels(32)
        self.stem = nn.Sequential(
            ConvBNPlain(3, narrow, 3, stride=2, act="relu"),
            DepthwiseSeparable(narrow, channels, 1, _StageStyle()),
        )
        self.stages = nn.LayerList()
        for width, num_blocks, style in _STAGES:
            layers = []
            for index in range(num_blocks):
                out_channels = self.channels(width)
                layers.append(DepthwiseSeparable(channels, out_channels, 1 if index else 2, style))
                channels = out_channels
            self.stages.append(nn.Sequential(*layers))
        self.add_classifier(channels, "relu")
        self.global_attention = FrameAttention(self.num_seg) if use_temporal_att else None
        blocks = [[f"stages.{at}.{name}" for name, _ in self.stages[at].named_children()] for at in range(4)]
        if use_temporal_att:
            self.lr_multipliers = {"global_attention.fc.weight": 5.0, "global_attention.fc.bias": 10.0}
            blocks[_SHIFTED_STAGE].insert(0, "global_attention")
        self.declare_stages(["stem.0", "stem.1"], blocks, last=["last_conv"])

    def forward(self, frames: paddle.Tensor) -> paddle.Tensor:
        """Frames [N*T, 3, H, W] to their logits [N*T, class_num]."""
        x = self.stem(frames)
        for index, stage in enumerate(self.stages):
            if index == _SHIFTED_STAGE:
                if self.global_attention is not None:
                    x = self.global_attention(x)
                x = temporal_shift(x, *self.shift)
            x = stage(x)
        return self.classify(x)
