"""MobileNetV2 and MobileNetV3 with the temporal shift, and what all light networks share."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import paddle
import paddle.nn.functional as F
from paddle import nn

from paddlevideo_fast.config.types import FixedFrames, Range, Share, Size
from paddlevideo_fast.modeling.backbones.base import Backbone
from paddlevideo_fast.modeling.backbones.resnet import ShiftRatio
from paddlevideo_fast.modeling.layers.conv_bn import ConvBN, ConvBNPlain, SqueezeExcitation, make_divisible
from paddlevideo_fast.modeling.layers.operators import activation, temporal_shift
from paddlevideo_fast.modeling.stages import HEAD
from paddlevideo_fast.registry import BACKBONES

Scale = Annotated[float, Range(0.1, 16.0)]
Shift = tuple[int, float]


class FrameClassifier(Backbone):
    """A backbone whose outputs are the logits of frames, for `MoViNetHead`, which takes their mean.

    Args:
        pretrained: path or URL of weights; null: random weights.
        num_seg: frames of a clip.
        class_num: classes.
        shift_ratio: share of the channels in each fold of the temporal shift; null: 1/num_seg, as
            PaddleVideo trained these networks.

    Attributes:
        shift: frames of a clip, and the share of the channels in each fold of the temporal shift.
    """

    classifiers = ("fc",)
    data_format = "NCHW"
    num_seg: int

    def __init__(
        self,
        pretrained: str | None = None,
        num_seg: FixedFrames = 8,
        class_num: Size = 400,
        shift_ratio: ShiftRatio | None = None,
    ) -> None:
        super().__init__()
        self.pretrained = pretrained
        self.num_seg = num_seg
        self.num_classes = self.out_channels = class_num
        self.shift_ratio = 1 / num_seg if shift_ratio is None else shift_ratio
        self.shift: Shift = (num_seg, self.shift_ratio)

    def declare_stages(self, stem: list[str], stages: Sequence[list[str]], last: list[str]) -> None:
        """Sets `stage_layers`; `last` are the layers between the last stage and the classifier."""
        numbered = {f"stage{number}": names for number, names in enumerate(stages, 1)}
        self.stage_layers = {"stem": stem, **numbered, "last": last, HEAD: list(self.classifiers)}


class WideClassifier(FrameClassifier):
    """A `FrameClassifier` that ends in a wide layer, under the names `last_conv` and `fc`.

    Args:
        scale: factor on the channels of all layers but the last convolution.
        class_expand: channels of the last convolution.
        dropout_prob: dropout before the classifier.
    """

    def __init__(
        self, scale: Scale = 1.0, class_expand: Size = 1280, dropout_prob: Share = 0.2, **shared: Any
    ) -> None:
        super().__init__(**shared)
        self._scale, self._width, self._dropout_prob = scale, class_expand, dropout_prob

    def channels(self, channels: int) -> int:
        """The channels that a layer has at this network's scale."""
        return make_divisible(channels * self._scale)

    def add_classifier(self, channels: int, act: str) -> None:
        """Adds the last layers, which take `channels` channels."""
        init = paddle.ParamAttr(initializer=nn.initializer.KaimingNormal())
        self.last_conv = nn.Conv2D(channels, self._width, 1, weight_attr=init, bias_attr=False)
        self.last_act = activation(act)
        self.dropout = nn.Dropout(self._dropout_prob, mode="downscale_in_infer")
        self.fc = nn.Linear(self._width, self.num_classes)

    def classify(self, x: paddle.Tensor) -> paddle.Tensor:
        """Features [N*T, channels, H, W] to logits [N*T, class_num]."""
        x = self.last_act(self.last_conv(x.mean(axis=[2, 3], keepdim=True)))
        return self.fc(self.dropout(x).flatten(1))


# expansion, channels, blocks, stride of the first one; table 2 of the paper
_V2_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)

# kernel, inner channels, channels, squeeze-and-excitation, activation, stride; table 1 of the paper
_V3_BLOCKS = (
    (3, 16, 16, False, "relu", 1),
    (3, 64, 24, False, "relu", 2),
    (3, 72, 24, False, "relu", 1),
    (5, 72, 40, True, "relu", 2),
    (5, 120, 40, True, "relu", 1),
    (5, 120, 40, True, "relu", 1),
    (3, 240, 80, False, "hardswish", 2),
    (3, 200, 80, False, "hardswish", 1),
    (3, 184, 80, False, "hardswish", 1),
    (3, 184, 80, False, "hardswish", 1),
    (3, 480, 112, True, "hardswish", 1),
    (3, 672, 112, True, "hardswish", 1),
    (5, 672, 160, True, "hardswish", 2),
    (5, 960, 160, True, "hardswish", 1),
    (5, 960, 160, True, "hardswish", 1),
)


def _hard_sigmoid(x: paddle.Tensor) -> paddle.Tensor:
    """With the slope that PaddleClas trained with; the paper has 1/6."""
    return F.hardsigmoid(x, slope=0.2, offset=0.5)


class InvertedResidual(nn.Layer):
    """1x1 to more channels, a depthwise convolution, 1x1 back without activation.

    Where the block keeps its shape, its input is added to the output, and the convolutions see the input
    shifted in time.

    Args:
        in_channels, inner_channels, out_channels: channels.
        kernel_size: kernel size of the depthwise convolution.
        stride: stride of the depthwise convolution.
        act: name of a function in `paddle.nn.functional`.
        shift: of the temporal shift; see `FrameClassifier`.
        squeeze: channel attention behind the depthwise convolution.

    Reference: Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", arXiv 1801.04381,
    section 3.3.
    """

    conv_bn: ClassVar[type[ConvBN]] = ConvBN
    prefix: ClassVar[str] = "_"

    def __init__(
        self,
        in_channels: int,
        inner_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int,
        act: str,
        shift: Shift,
        squeeze: bool = False,
    ) -> None:
        super().__init__()
        self._shift = shift if stride == 1 and in_channels == out_channels else None
        layers = {
            "expand_conv": self.conv_bn(in_channels, inner_channels, 1, act=act),
            "bottleneck_conv": self.conv_bn(
                inner_channels, inner_channels, kernel_size, stride, act, groups=inner_channels
            ),
        }
        if squeeze:
            layers["mid_se"] = SqueezeExcitation(inner_channels, _hard_sigmoid)
        layers["linear_conv"] = self.conv_bn(inner_channels, out_channels, 1)
        self._names = [f"{self.prefix}{name}" for name in layers]
        for name, layer in zip(self._names, layers.values()):
            self.add_sublayer(name, layer)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """[N*T, C, H, W] to the same with `out_channels` and the stride."""
        y = x if self._shift is None else temporal_shift(x, *self._shift)
        for name in self._names:
            y = getattr(self, name)(y)
        return y if self._shift is None else x + y


def _stage(
    name: str, in_channels: int, expansion: int, channels: int, num_blocks: int, stride: int, shift: Shift
) -> nn.Sequential:
    """Blocks of MobileNetV2 under PaddleVideo's names: `_first_block`, `conv3_2`, ..."""
    blocks = []
    for number in range(1, num_blocks + 1):
        inner = round(in_channels * expansion)
        block = InvertedResidual(in_channels, inner, channels, 3, stride, "relu6", shift)
        blocks.append((f"{name}_{number}" if number > 1 else "_first_block", block))
        in_channels, stride = channels, 1
    return nn.Sequential(*blocks)


@BACKBONES.register()
class PPTSM_MobileNetV2(FrameClassifier):
    """MobileNetV2 whose residual blocks shift their input along time. It ends in its own classifier and
    takes `MoViNetHead`.

    Args:
        scale: factor on the channels of all layers but the last convolution.

    References:
        Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", arXiv 1801.04381, table 2.
        Lin, Gan, Han, "TSM: Temporal Shift Module for Efficient Video Understanding", arXiv 1811.08383.
    """

    classifiers = ("out",)

    def __init__(self, scale: Scale = 1.0, **shared: Any) -> None:
        super().__init__(**shared)
        channels = int(32 * scale)
        self.conv1 = ConvBN(3, channels, 3, stride=2, act="relu6")
        self._stage_names, blocks = [], []
        for number, (expansion, width, num_blocks, stride) in enumerate(_V2_STAGES, 2):
            name, out_channels = f"conv{number}", int(width * scale)
            stage = _stage(name, channels, expansion, out_channels, num_blocks, stride, self.shift)
            self.add_sublayer(name, stage)
            self._stage_names.append(name)
            blocks.append([f"{name}.{block}" for block, _ in stage.named_children()])
            channels = out_channels
        last_channels = int(1280 * max(scale, 1.0))
        self.conv9 = ConvBN(channels, last_channels, 1, act="relu6")
        self.out = nn.Linear(last_channels, self.num_classes)
        self.declare_stages(["conv1"], blocks, last=["conv9"])

    def forward(self, frames: paddle.Tensor) -> paddle.Tensor:
        """Frames [N*T, 3, H, W] to their logits [N*T, class_num]."""
        x = self.conv1(frames)
        for name in self._stage_names:
            x = getattr(self, name)(x)
        return self.out(self.conv9(x).mean(axis=[2, 3]))


class _PlainResidual(InvertedResidual):
    """The block of MobileNetV3, under PaddleClas' names."""

    conv_bn = ConvBNPlain
    prefix = ""


@BACKBONES.register()
class PPTSM_MobileNetV3(WideClassifier):
    """MobileNetV3-Large whose residual blocks shift their input along time. It ends in its own classifier
    and takes `MoViNetHead`.

    References:
        Howard et al., "Searching for MobileNetV3", arXiv 1905.02244, table 1.
        Lin, Gan, Han, "TSM: Temporal Shift Module for Efficient Video Understanding", arXiv 1811.08383.
    """

    def __init__(self, **shared: Any) -> None:
        super().__init__(**shared)
        channels = self.channels(16)
        self.conv = ConvBNPlain(3, channels, 3, stride=2, act="hardswish")
        blocks: list[nn.Layer] = []
        stages: list[list[str]] = [[]]
        for kernel_size, inner, width, squeeze, act, stride in _V3_BLOCKS:
            if stride > 1:
                stages.append([])
            stages[-1].append(f"blocks.{len(blocks)}")
            sizes = channels, self.channels(inner), self.channels(width)
            blocks.append(_PlainResidual(*sizes, kernel_size, stride, act, self.shift, squeeze))
            channels = sizes[-1]
        self.blocks = nn.Sequential(*blocks)
        squeezed = self.channels(960)
        self.last_second_conv = ConvBNPlain(channels, squeezed, 1, act="hardswish")
        self.add_classifier(squeezed, "hardswish")
        self.declare_stages(["conv"], stages, last=["last_second_conv", "last_conv"])

    def forward(self, frames: paddle.Tensor) -> paddle.Tensor:
        """Frames [N*T, 3, H, W] to their logits [N*T, class_num]."""
        return self.classify(self.last_second_conv(self.blocks(self.conv(frames))))
