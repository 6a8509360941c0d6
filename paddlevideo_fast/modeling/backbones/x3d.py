"""X3D: a small network expanded in frames, pixels, width and depth, one at a time.

Two versions exist: PyTorchVideo's networks have no batch norm in the shortcut of the first stage, where the
number of channels stays the same.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import paddle
import paddle.nn.functional as F
from paddle import nn

from paddlevideo_fast.config.types import Range, Size
from paddlevideo_fast.modeling.backbones.blocks3d import Block, Branch, Kernel, StagedNetwork, conv3d
from paddlevideo_fast.modeling.backbones.resnet3d import PySlowFastConverter, PyTorchVideoConverter
from paddlevideo_fast.modeling.layers.batch_norm import SubBatchNorm3D
from paddlevideo_fast.modeling.layers.conv_bn import SqueezeExcitation3D, make_divisible
from paddlevideo_fast.registry import BACKBONES

Factor = Annotated[float, Range(0.01, 32.0)]
_BLOCKS = (1, 2, 5, 3)  # of each stage, before the expansion in depth
_STEM_FRAMES = 5


class X3DStem(nn.Layer):
    """A convolution in space, a depthwise one in time, batch norm, ReLU.

    [N, 3, T, H, W] to [N, channels, T, H/2, W/2].
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv_xy = conv3d(3, channels, (1, 3, 3), (1, 2, 2))
        self.conv = conv3d(channels, channels, (_STEM_FRAMES, 1, 1), groups=channels)
        self.bn = SubBatchNorm3D(channels)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return F.relu(self.bn(self.conv(self.conv_xy(x))))


class X3DBranch(Branch):
    """1×1×1 to more channels, a depthwise 3×3×3 convolution, swish, 1×1×1 back.

    Args:
        in_channels, out_channels, inner_channels: channels.
        stride: stride of the depthwise convolution.
        squeezed_channels: inner channels of the channel attention before the swish; 0: there is none.
    """

    def __init__(
        self, in_channels: int, out_channels: int, stride: Kernel, inner_channels: int, squeezed_channels: int
    ) -> None:
        super().__init__(
            conv3d(in_channels, inner_channels, (1, 1, 1)),
            conv3d(inner_channels, inner_channels, (3, 3, 3), stride, inner_channels),
            conv3d(inner_channels, out_channels, (1, 1, 1)),
        )
        self.se: nn.Layer | None = None
        if squeezed_channels:
            self.se = SqueezeExcitation3D(inner_channels, F.sigmoid, squeezed_channels)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        x = self.b_bn(self.b(F.relu(self.a_bn(self.a(x)))))
        if self.se is not None:
            x = self.se(x)
        return self.c_bn(self.c(F.swish(x)))


_CROPS = "160 (XS, S), 224 (M) or 312 (L)"


class PySlowFastX3DConverter(PySlowFastConverter):
    """PySlowFast's X3D. Most of its names are ours."""

    settings: ClassVar[Mapping[str, Any]] = {"shortcut_norm": "always"}
    training_crop = _CROPS
    layers = (
        (r"(s1\.pathway0_stem\.(?:conv_xy|conv|bn))", r"\1"),
        (r"(s[2-5]\.pathway0_res\d+\.branch2\.se\.fc[12])", r"\1"),
        (r"head\.(conv_5(?:_bn)?)", r"\1"),
        (r"head\.lin_5", r"head.lin_5"),
        *PySlowFastConverter.layers,
    )


class PyTorchVideoX3DConverter(PyTorchVideoConverter):
    """PyTorchVideo's X3D. Its stem calls the convolution in space `conv_t`, and the one in time `conv_xy`."""

    settings: ClassVar[Mapping[str, Any]] = {"shortcut_norm": "widening"}
    training_crop = _CROPS
    layers = (
        (r"s1\.0\.conv\.conv_t", r"s1.pathway0_stem.conv_xy"),
        (r"s1\.0\.conv\.conv_xy", r"s1.pathway0_stem.conv"),
        (r"s1\.0\.norm", r"s1.pathway0_stem.bn"),
        (r"(s\d)\.0\.res_blocks\.(\d+)\.branch2\.norm_b\.0", r"\1.pathway0_res\2.branch2.b_bn"),
        (r"(s\d)\.0\.res_blocks\.(\d+)\.branch2\.norm_b\.1\.block\.0", r"\1.pathway0_res\2.branch2.se.fc1"),
        (r"(s\d)\.0\.res_blocks\.(\d+)\.branch2\.norm_b\.1\.block\.2", r"\1.pathway0_res\2.branch2.se.fc2"),
        (r"s6\.0\.pool\.pre_conv", r"conv_5"),
        (r"s6\.0\.pool\.pre_norm", r"conv_5_bn"),
        (r"s6\.0\.pool\.post_conv", r"head.lin_5"),
        *PyTorchVideoConverter.layers,
    )


@BACKBONES.register()
class X3D(StagedNetwork):
    """X3D, up to the convolution before the pooling. It takes clips of any number of frames and any size.

    XS, S and M are one network at 4, 13 and 16 frames of 160², 160² and 224²; L has a depth factor of 5 and
    takes 16 frames of 312².

    Args:
        depth_factor: factor on the number of blocks: 2.2 in XS, S and M; 5 in L.
        width_factor: factor on the channels of all stages.
        bottleneck_factor: inner channels of a block for one of its output channels.
        dim_c1: channels of the stem and the first stage before the expansion in width; each later stage has
            twice as many as the stage before.
        se_ratio: inner channels of the channel attention, in every other block, for one channel.
        shortcut_norm: batch norms after the convolutions in shortcuts: "always" (PySlowFast), or "widening",
            only where the number of channels changes (PyTorchVideo).
        pretrained: weights to start from.

    Reference: Feichtenhofer, "X3D: Expanding Architectures for Efficient Video Recognition", arXiv
    2004.04730, table 1 and section 3.
    """

    converters = {"pyslowfast": PySlowFastX3DConverter, "pytorchvideo": PyTorchVideoX3DConverter}

    def __init__(
        self,
        depth_factor: Factor = 2.2,
        width_factor: Factor = 2.0,
        bottleneck_factor: Factor = 2.25,
        dim_c1: Size = 12,
        se_ratio: Annotated[float, Range(0.0, 1.0)] = 0.0625,
        shortcut_norm: Literal["always", "widening"] = "always",
        pretrained: str | None = None,
    ) -> None:
        super().__init__()
        self.pretrained = pretrained
        self.shortcut_norm = shortcut_norm
        widths = [dim_c1]
        for _ in _BLOCKS[1:]:
            widths.append(make_divisible(widths[-1] * 2))
        widths = [make_divisible(width * width_factor) for width in widths]

        def block(pathway: int, stage: int, index: int, in_channels: int, stride: Kernel) -> Block:
            out_channels = widths[stage]
            inner = int(out_channels * bottleneck_factor)
            squeezed = make_divisible(inner * se_ratio) if se_ratio and index % 2 == 0 else 0
            branch = partial(X3DBranch, inner_channels=inner, squeezed_channels=squeezed)
            has_norm = shortcut_norm == "always" or in_channels != out_channels
            return Block(in_channels, out_channels, stride, branch, has_norm)

        num_blocks = [math.ceil(number * depth_factor) for number in _BLOCKS]
        self.add_stages([(X3DStem(widths[0]), widths[0])], num_blocks, [(1, 2, 2)] * 4, block)
        channels, inner = widths[-1], int(widths[-1] * bottleneck_factor)
        self.conv_5 = conv3d(channels, inner, (1, 1, 1))
        self.conv_5_bn = SubBatchNorm3D(inner)
        self.stage_layers["conv5"] = ["conv_5", "conv_5_bn"]
        self.out_channels = inner

    def forward(self, clips: paddle.Tensor) -> list[paddle.Tensor]:
        """Clips, float [N, 3, T, H, W], to one feature map [N, out_channels, T, H/32, W/32]."""
        (x,) = StagedNetwork.forward(self, clips)  # Paddle 2 traces no super()
        return [F.relu(self.conv_5_bn(self.conv_5(x)))]
