"""The two residual blocks, with or without the temporal shift before their first convolution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Optional

import paddle
from paddle import nn

from paddlevideo_fast.config.types import Range
from paddlevideo_fast.modeling.layers import ConvBN, activation, temporal_shift

ShiftRatio = Annotated[float, Range(0.0, 0.5)]


@dataclass(frozen=True)
class BlockStyle:
    """What all blocks of one network have in common.

    Attributes:
        act: activation, a name in `paddle.nn.functional`.
        num_seg: frames of a clip for the temporal shift; None: no shift.
        shift_ratio: share of the channels in each of the two folds.
        pooled_shortcut: ResNet-D: a stride-2 shortcut pools first, then convolves with stride 1.
        data_format: "NCHW" or "NHWC".
    """

    act: str = "relu"
    num_seg: Optional[int] = None
    shift_ratio: float = 0.125
    pooled_shortcut: bool = False
    data_format: str = "NCHW"


class ResidualBlock(nn.Layer):
    """Shift, a chain of convolutions, and the sum with a shortcut that sees no shift ("residual shift").

    Args:
        in_channels: of the input.
        channels: of the inner convolutions; the output has `channels * expansion`.
        stride: of the block; the 3x3 convolution that comes first holds it.
        project: the shortcut is a 1x1 convolution instead of the identity.
        style: see `BlockStyle`.
    """

    expansion: ClassVar[int] = 1

    def __init__(
        self, in_channels: int, channels: int, stride: int, project: bool, style: BlockStyle
    ) -> None:
        super().__init__()
        self._style = style
        self._act = activation(style.act)
        self._add_convolutions(in_channels, channels, stride)
        self.short = None
        if project:
            pool = style.pooled_shortcut and stride == 2
            self.short = ConvBN(
                in_channels,
                channels * self.expansion,
                kernel_size=1,
                stride=1 if pool else stride,
                pool=pool,
                data_format=style.data_format,
            )

    def _add_convolutions(self, in_channels: int, channels: int, stride: int) -> None:
        raise NotImplementedError

    def _convolve(self, x: paddle.Tensor) -> paddle.Tensor:
        raise NotImplementedError

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """[N*T, C, H, W] (or [N*T, H, W, C]) to the same with the block's channels and stride."""
        style = self._style
        shifted = x
        if style.num_seg is not None:
            shifted = temporal_shift(x, style.num_seg, style.shift_ratio, style.data_format)
        short = x if self.short is None else self.short(x)
        return self._act(short + self._convolve(shifted))


class BasicBlock(ResidualBlock):
    """Two 3x3 convolutions (ResNet-18 and -34)."""

    def _add_convolutions(self, in_channels: int, channels: int, stride: int) -> None:
        act, data_format = self._style.act, self._style.data_format
        self.conv0 = ConvBN(in_channels, channels, 3, stride, act, data_format=data_format)
        self.conv1 = ConvBN(channels, channels, 3, data_format=data_format)

    def _convolve(self, x: paddle.Tensor) -> paddle.Tensor:
        return self.conv1(self.conv0(x))


class BottleneckBlock(ResidualBlock):
    """1x1, 3x3 and 1x1 convolutions (ResNet-50 and deeper)."""

    expansion = 4

    def _add_convolutions(self, in_channels: int, channels: int, stride: int) -> None:
        act, data_format = self._style.act, self._style.data_format
        self.conv0 = ConvBN(in_channels, channels, 1, 1, act, data_format=data_format)
        self.conv1 = ConvBN(channels, channels, 3, stride, act, data_format=data_format)
        self.conv2 = ConvBN(channels, channels * self.expansion, 1, data_format=data_format)

    def _convolve(self, x: paddle.Tensor) -> paddle.Tensor:
        return self.conv2(self.conv1(self.conv0(x)))
