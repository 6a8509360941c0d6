"""ResNet with the temporal shift (TSM)."""

from __future__ import annotations

from typing import Literal, Optional, Sequence

from paddlevideo_fast.config.types import PositiveInt
from paddlevideo_fast.modeling.backbones.blocks import BlockStyle, ShiftRatio
from paddlevideo_fast.modeling.backbones.resnet import FrameResNet
from paddlevideo_fast.registry import BACKBONES


@BACKBONES.register()
class ResNetTSM(FrameResNet):
    """ResNet whose blocks shift a quarter of their input channels along time; see `FrameResNet` for
    the other arguments.

    Args:
        num_seg: frames of a clip.
        data_format: layout of the network's inner tensors.
        shift_ratio: share of the channels that moves each way. PaddleVideo has 1/num_seg, the same at its
            usual 8 frames; weights that it trained with 16 need 0.0625 here.

    Reference: Lin, Gan, Han, "TSM: Temporal Shift Module for Efficient Video Understanding", arXiv
    1811.08383.
    """

    def __init__(
        self,
        depth: int,
        num_seg: PositiveInt = 8,
        data_format: Literal["NCHW", "NHWC"] = "NCHW",
        pretrained: Optional[str] = None,
        shift_ratio: ShiftRatio = 0.125,
        width: PositiveInt = 64,
        stage_blocks: Optional[Sequence[PositiveInt]] = None,
        partial_bn: bool = False,
    ) -> None:
        style = BlockStyle(num_seg=num_seg, shift_ratio=shift_ratio, data_format=data_format)
        super().__init__(depth, pretrained, style, width, stage_blocks, partial_bn)
