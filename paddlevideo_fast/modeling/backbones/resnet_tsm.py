"""ResNets with the temporal shift: TSM and ppTSM."""

from __future__ import annotations

from typing import Literal, Optional, Sequence

from paddlevideo_fast.modeling.backbones.blocks import BlockStyle
from paddlevideo_fast.modeling.backbones.resnet import FrameResNet
from paddlevideo_fast.modeling.layers import ConvBN
from paddlevideo_fast.registry import BACKBONES


@BACKBONES.register()
class ResNetTSM(FrameResNet):
    """ResNet whose blocks shift a quarter of their input channels along time.

    Args:
        depth, pretrained, width, stage_blocks, partial_bn: see `FrameResNet`.
        num_seg: frames of a clip.
        data_format: layout of the network's inner tensors, "NCHW" or "NHWC".
        shift_ratio: share of the channels that moves each way. PaddleVideo has 1/num_seg, the same at its
            usual 8 frames; weights that it trained with 16 need 0.0625 here.

    Reference: Lin, Gan, Han, "TSM: Temporal Shift Module for Efficient Video Understanding", arXiv
    1811.08383.
    """

    def __init__(
        self,
        depth: int,
        num_seg: int = 8,
        data_format: Literal["NCHW", "NHWC"] = "NCHW",
        pretrained: Optional[str] = None,
        shift_ratio: float = 0.125,
        width: int = 64,
        stage_blocks: Optional[Sequence[int]] = None,
        partial_bn: bool = False,
    ) -> None:
        style = BlockStyle(num_seg=num_seg, shift_ratio=shift_ratio, data_format=data_format)
        super().__init__(depth, pretrained, style, width, stage_blocks, partial_bn)


@BACKBONES.register()
class ResNetTweaksTSM(FrameResNet):
    """The ppTSM backbone: ResNet-vd (three 3x3 convolutions as stem, pooled shortcuts) with leaky ReLU and
    shift.

    Arguments as for `ResNetTSM`. Shortcuts with stride pool in basic blocks (depth 18 and 34) as well, as
    ResNet-D has it.

    Reference: He et al., "Bag of Tricks for Image Classification with Convolutional Neural Networks",
    arXiv 1812.01187, section 4.
    """

    def __init__(
        self,
        depth: int,
        num_seg: int = 8,
        pretrained: Optional[str] = None,
        data_format: Literal["NCHW", "NHWC"] = "NCHW",
        shift_ratio: float = 0.125,
        width: int = 64,
        stage_blocks: Optional[Sequence[int]] = None,
        partial_bn: bool = False,
    ) -> None:
        style = BlockStyle("leaky_relu", num_seg, shift_ratio, pooled_shortcut=True, data_format=data_format)
        super().__init__(depth, pretrained, style, width, stage_blocks, partial_bn)

    def _add_stem(self, width: int, style: BlockStyle) -> None:
        self.stem_names = ["conv1_1", "conv1_2", "conv1_3"]
        half, data_format = width // 2, style.data_format
        self.conv1_1 = ConvBN(3, half, 3, stride=2, act=style.act, data_format=data_format)
        self.conv1_2 = ConvBN(half, half, 3, act=style.act, data_format=data_format)
        self.conv1_3 = ConvBN(half, width, 3, act=style.act, data_format=data_format)

    def _block_name(self, stage: int, index: int) -> str:
        return f"bb_{stage}_{index}"
