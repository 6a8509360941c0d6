"""ResNet-vd, with the temporal shift (ppTSM) and without it (ppTSN)."""

from __future__ import annotations

from typing import ClassVar, Dict, Literal, Optional, Sequence

from paddlevideo_fast.config.types import PositiveInt
from paddlevideo_fast.modeling.backbones.blocks import BlockStyle, ShiftRatio
from paddlevideo_fast.modeling.backbones.resnet import FrameResNet
from paddlevideo_fast.modeling.layers import ConvBN
from paddlevideo_fast.registry import BACKBONES


class TweakedResNet(FrameResNet):
    """ResNet-vd: three 3x3 convolutions as stem, and shortcuts that pool before they convolve.

    Basic blocks (depth 18 and 34) have the pooled shortcut as well, as ResNet-D and PaddleClas have it;
    PaddleVideo's ResNetTweaksTSM has a convolution of stride 2 there. The weights have the same names.

    Reference: He et al., "Bag of Tricks for Image Classification with Convolutional Neural Networks",
    arXiv 1812.01187, section 4.
    """

    def _add_stem(self, width: int, style: BlockStyle) -> None:
        self.stem_names = ["conv1_1", "conv1_2", "conv1_3"]
        half, data_format = width // 2, style.data_format
        self.conv1_1 = ConvBN(3, half, 3, stride=2, act=style.act, data_format=data_format)
        self.conv1_2 = ConvBN(half, half, 3, act=style.act, data_format=data_format)
        self.conv1_3 = ConvBN(half, width, 3, act=style.act, data_format=data_format)

    def _block_name(self, stage: int, index: int) -> str:
        return f"bb_{stage}_{index}"


@BACKBONES.register()
class ResNetTweaksTSM(TweakedResNet):
    """The ppTSM backbone: ResNet-vd with leaky ReLU and shift; see `FrameResNet` for the other arguments.

    Args:
        num_seg: frames of a clip.
        data_format: layout of the network's inner tensors.
        shift_ratio: share of the channels that moves each way; see `ResNetTSM`.
    """

    def __init__(
        self,
        depth: int,
        num_seg: PositiveInt = 8,
        pretrained: Optional[str] = None,
        data_format: Literal["NCHW", "NHWC"] = "NCHW",
        shift_ratio: ShiftRatio = 0.125,
        width: PositiveInt = 64,
        stage_blocks: Optional[Sequence[PositiveInt]] = None,
        partial_bn: bool = False,
    ) -> None:
        style = BlockStyle("leaky_relu", num_seg, shift_ratio, pooled_shortcut=True, data_format=data_format)
        super().__init__(depth, pretrained, style, width, stage_blocks, partial_bn)


@BACKBONES.register()
class ResNetTweaksTSN(TweakedResNet):
    """The ppTSN backbone: ResNet-vd; see `FrameResNet` for the other arguments.

    Args:
        layers: 18, 34, 50, 101 or 152.
        data_format: layout of the network's inner tensors.
    """

    ignored_arguments: ClassVar[Dict[str, str]] = {
        "lr_mult_list": "OPTIMIZER.lr_multipliers sets factors on the learning rate",
    }

    def __init__(
        self,
        layers: int = 50,
        pretrained: Optional[str] = None,
        data_format: Literal["NCHW", "NHWC"] = "NCHW",
        width: PositiveInt = 64,
        stage_blocks: Optional[Sequence[PositiveInt]] = None,
        partial_bn: bool = False,
    ) -> None:
        style = BlockStyle(pooled_shortcut=True, data_format=data_format)
        super().__init__(layers, pretrained, style, width, stage_blocks, partial_bn)
