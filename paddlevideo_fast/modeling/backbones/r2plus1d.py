"""R(2+1)D: ResNets whose 3D convolutions are one in space and one in time."""

import re
from collections.abc import Sequence

import paddle
import paddle.nn.functional as F
from paddle import nn

from paddlevideo_fast.config.types import Size
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling.backbones.blocks3d import Block, Branch, Kernel, StagedNetwork, Stem, conv3d
from paddlevideo_fast.modeling.backbones.resnet import STAGE_BLOCKS
from paddlevideo_fast.modeling.backbones.resnet3d import PyTorchVideoConverter
from paddlevideo_fast.modeling.converters import RenamingConverter
from paddlevideo_fast.modeling.layers.batch_norm import SubBatchNorm3D
from paddlevideo_fast.registry import BACKBONES


class Factorized(nn.Layer):
    """A 3D convolution in two: one in space, `xy`, and one in time, `t`, with batch norm and ReLU between.

    Args:
        in_channels, inner_channels, out_channels: channels before, between and after the two.
        kernel: frames and pixels that the two span.
        stride: in time and space.
        time_first: the convolution in time comes first.
    """

    def __init__(
        self,
        in_channels: int,
        inner_channels: int,
        out_channels: int,
        kernel: Kernel,
        stride: Kernel,
        time_first: bool = False,
    ) -> None:
        super().__init__()
        self._names = ("t", "xy") if time_first else ("xy", "t")
        parts = {"xy": ((1, *kernel[1:]), (1, *stride[1:])), "t": ((kernel[0], 1, 1), (stride[0], 1, 1))}
        channels = (in_channels, inner_channels, out_channels)
        for name, sizes in zip(self._names, zip(channels, channels[1:])):
            self.add_sublayer(name, conv3d(*sizes, *parts[name]))
        self.bn = SubBatchNorm3D(inner_channels)
        self._out_channels = out_channels

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """[N, C, T, H, W] to the same with `out_channels` and the stride."""
        first, second = (getattr(self, name) for name in self._names)
        return second(F.relu(self.bn(first(x))))


def _inner_channels(in_channels: int, out_channels: int) -> int:
    """So many that the two convolutions have as many parameters as one of 3×3×3; section 3.5 of the paper."""
    return in_channels * out_channels * 27 // (in_channels * 9 + 3 * out_channels)


def _basic(in_channels: int, out_channels: int, stride: Kernel) -> Branch:
    # The paper counts each convolution's own channels; torchvision's networks count the block's for both.
    inner = _inner_channels(in_channels, out_channels)
    return Branch(
        Factorized(in_channels, inner, out_channels, (3, 3, 3), stride),
        Factorized(out_channels, inner, out_channels, (3, 3, 3), (1, 1, 1)),
    )


def _bottleneck(in_channels: int, out_channels: int, stride: Kernel) -> Branch:
    channels = out_channels // 4
    return Branch(
        conv3d(in_channels, channels, (1, 1, 1)),
        Factorized(channels, channels, channels, (3, 3, 3), stride, time_first=True),
        conv3d(channels, out_channels, (1, 1, 1)),
    )


class PyTorchVideoR2Plus1DConverter(PyTorchVideoConverter):
    """PyTorchVideo's R(2+1)D, of depth 50."""

    layers = (
        (r"(s\d)\.0\.res_blocks\.(\d+)\.branch2\.conv_b\.conv_(t|xy)", r"\1.pathway0_res\2.branch2.b.\3"),
        (r"(s\d)\.0\.res_blocks\.(\d+)\.branch2\.conv_b\.norm", r"\1.pathway0_res\2.branch2.b.bn"),
        *PyTorchVideoConverter.layers,
    )


class TorchvisionR2Plus1DConverter(RenamingConverter):
    """torchvision's R(2+1)D, of depth 18, trained on videos: its classifier is converted, too."""

    classifier = "fc"
    layers = (
        (r"stem\.(xy|bn|t)", r"s1.pathway0_stem._conv.\1"),
        (r"stem\.4", r"s1.pathway0_stem._bn"),
        (r"(s\d)\.(\d+)\.([ab])\.0\.(xy|bn|t)", r"\1.pathway0_res\2.branch2.\3.\4"),
        (r"(s\d)\.(\d+)\.([ab])\.1", r"\1.pathway0_res\2.branch2.\3_bn"),
        (r"(s\d)\.(\d+)\.downsample\.0", r"\1.pathway0_res\2.branch1"),
        (r"(s\d)\.(\d+)\.downsample\.1", r"\1.pathway0_res\2.branch1_bn"),
    )

    def normalized(self, name: str) -> str:
        """`layer1.0.conv2.0.3.weight` to `s2.0.b.0.t.weight`; `stem.0.weight` to `stem.xy.weight`."""
        name = re.sub(r"^layer([1-4])", lambda match: f"s{int(match[1]) + 1}", name)
        name = re.sub(r"\.conv([12])\.", lambda match: f".{'ab'[int(match[1]) - 1]}.", name)
        parts = {"0": "xy", "1": "bn", "3": "t"}
        return re.sub(
            r"^(stem|.*\.[ab]\.0)\.([013])(?=\.)", lambda match: f"{match[1]}.{parts[match[2]]}", name
        )


@BACKBONES.register()
class ResNetR2Plus1D(StagedNetwork):
    """R(2+1)D. It takes clips of any number of frames and any size.

    Depths 18 and 34 are torchvision's networks, 16 pixels to one of the feature map, time halved three times.
    Depth 50 is PyTorchVideo's network of bottleneck blocks, 32 pixels to one, time halved twice.

    Args:
        depth: 18, 34 or 50.
        width: channels of the stem and the first stage; at depth 50 the blocks' inner channels.
        stage_blocks: blocks in each of the four stages; null: what the depth says.
        pretrained: weights to start from.

    Raises:
        ConfigError: a depth that does not exist.

    Reference: Tran et al., "A Closer Look at Spatiotemporal Convolutions for Action Recognition", arXiv
    1711.11248, sections 3.4 and 3.5.
    """

    converters = {"pytorchvideo": PyTorchVideoR2Plus1DConverter, "torchvision": TorchvisionR2Plus1DConverter}

    def __init__(
        self,
        depth: int = 18,
        width: Size = 64,
        stage_blocks: Sequence[Size] | None = None,
        pretrained: str | None = None,
    ) -> None:
        super().__init__()
        if depth not in (18, 34, 50):
            raise ConfigError(f"MODEL.backbone.depth={depth}: R(2+1)D has depth 18, 34 or 50")
        self.pretrained = pretrained
        self.depth = depth
        halved = (1, 2, 2)
        if depth == 50:
            strides: list[Kernel] = [(1, 2, 2), (1, 2, 2), (2, 2, 2), (2, 2, 2)]
            make, expansion = _bottleneck, 4
            stem = Stem(conv3d(3, width, (1, 7, 7), halved))
        else:
            strides = [(1, 1, 1), (2, 2, 2), (2, 2, 2), (2, 2, 2)]
            make, expansion = _basic, 1
            # the authors' stem has 45 inner channels, which do not follow from the rule of the blocks
            stem = Stem(Factorized(3, width * 45 // 64, width, (3, 7, 7), halved))

        def block(pathway: int, stage: int, index: int, in_channels: int, stride: Kernel) -> Block:
            return Block(in_channels, width * 2**stage * expansion, stride, make)

        self.add_stages([(stem, width)], stage_blocks or STAGE_BLOCKS[depth], strides, block)
