"""ResNet on frames: the backbone of TSN, and the frame of the TSM ones."""

from __future__ import annotations

from typing import Dict, List, Literal, Optional, Sequence, Type

import paddle
from paddle import nn

from paddlevideo_fast.config.types import PositiveInt
from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling.backbones.blocks import BasicBlock, BlockStyle, BottleneckBlock, ResidualBlock
from paddlevideo_fast.modeling.layers import ConvBN
from paddlevideo_fast.registry import BACKBONES

STAGE_BLOCKS: Dict[int, Sequence[int]] = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}


def block_name(depth: int, stage: int, index: int) -> str:
    """PaddleVideo's: res2a, res2b, ...; in the third stage of depths 101 and 152 res4b1, ..."""
    if depth >= 101 and stage == 2 and index > 0:
        return f"res{stage + 2}b{index}"
    return f"res{stage + 2}{chr(ord('a') + index)}"


class FrameResNet(nn.Layer):
    """Stem, pooling and four stages of residual blocks; what the registered ResNets share.

    Args:
        depth: 18, 34 (basic blocks), 50, 101 or 152 (bottlenecks).
        pretrained: path or URL of weights; None or "": random weights. The file is read when `build_model`
            has built the network, so building one to load other weights needs no file.
        style: see `BlockStyle`.
        width: channels of the stem; every stage scales with it.
        stage_blocks: blocks in each of the four stages; None: what the depth says.
        partial_bn: all batch norms but the first use and keep their running statistics, and are not trained.

    Attributes:
        out_channels: channels of the feature map.
        num_seg: frames in a clip if the network mixes frames, else None.
        shift_ratio: share of the channels in each fold of the temporal shift; 0.0 if there is none.
        data_format: layout of the feature map.

    Raises:
        ConfigError: a depth that does not exist.

    Reference: He et al., "Deep Residual Learning for Image Recognition", arXiv 1512.03385; the stride sits
    in the 3x3 convolution.
    """

    def __init__(
        self,
        depth: int,
        pretrained: Optional[str],
        style: BlockStyle,
        width: int,
        stage_blocks: Optional[Sequence[int]],
        partial_bn: bool,
    ) -> None:
        super().__init__()
        if depth not in STAGE_BLOCKS:
            depths = ", ".join(map(str, STAGE_BLOCKS))
            raise ConfigError([f"MODEL.backbone.depth={depth}: there is no such ResNet; use one of {depths}"])
        self.depth = depth
        self.pretrained = pretrained
        self.num_seg = style.num_seg
        self.shift_ratio = style.shift_ratio if style.num_seg is not None else 0.0
        self.data_format = style.data_format
        self._add_stem(width, style)
        self.pool2D_max = nn.MaxPool2D(3, stride=2, padding=1, data_format=style.data_format)
        block = BottleneckBlock if depth >= 50 else BasicBlock
        self.block_names: List[str] = []
        self._add_stages(block, width, stage_blocks or STAGE_BLOCKS[depth], style)
        self.out_channels = width * 8 * block.expansion
        self.set_partial_bn(partial_bn)

    def _add_stem(self, width: int, style: BlockStyle) -> None:
        self.stem_names = ["conv"]
        self.conv = ConvBN(3, width, 7, stride=2, act=style.act, data_format=style.data_format)

    def _add_stages(
        self, block: Type[ResidualBlock], width: int, stage_blocks: Sequence[int], style: BlockStyle
    ) -> None:
        in_channels = width
        for stage, num_blocks in enumerate(stage_blocks):
            channels = width * 2**stage
            for index in range(num_blocks):
                stride = 2 if index == 0 and stage > 0 else 1
                name = self._block_name(stage, index)
                self.add_sublayer(name, block(in_channels, channels, stride, index == 0, style))
                self.block_names.append(name)
                in_channels = channels * block.expansion

    def _block_name(self, stage: int, index: int) -> str:
        return block_name(self.depth, stage, index)

    def set_partial_bn(self, on: bool) -> None:
        """Switches all batch norms but the first between training and keeping their running statistics.

        It holds whatever `train()` and `eval()` say later, also below `paddle.DataParallel`.

        Reference: Wang et al., "Temporal Segment Networks", arXiv 1608.00859, section 3.3.
        """
        norms = [layer for layer in self.sublayers() if isinstance(layer, nn.BatchNorm2D)]
        for norm in norms[1:]:
            norm._use_global_stats = True if on else None
            norm.weight.stop_gradient = norm.bias.stop_gradient = on

    def forward(self, frames: paddle.Tensor) -> paddle.Tensor:
        """Frames to features.

        Args:
            frames: float [N*T, 3, H, W], whatever `data_format` is.

        Returns:
            [N*T, out_channels, H/32, W/32], or [N*T, H/32, W/32, out_channels] where `data_format` is "NHWC".
        """
        x = frames if self.data_format == "NCHW" else frames.transpose([0, 2, 3, 1])
        for name in self.stem_names:
            x = getattr(self, name)(x)
        x = self.pool2D_max(x)
        for name in self.block_names:
            x = getattr(self, name)(x)
        return x


@BACKBONES.register()
class ResNet(FrameResNet):
    """ResNet without any exchange between frames (TSN); see `FrameResNet` for the other arguments.

    Args:
        data_format: layout of the network's inner tensors.
    """

    def __init__(
        self,
        depth: int,
        pretrained: Optional[str] = None,
        data_format: Literal["NCHW", "NHWC"] = "NCHW",
        width: PositiveInt = 64,
        stage_blocks: Optional[Sequence[PositiveInt]] = None,
        partial_bn: bool = False,
    ) -> None:
        style = BlockStyle(data_format=data_format)
        super().__init__(depth, pretrained, style, width, stage_blocks, partial_bn)
