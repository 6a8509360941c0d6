"""What the 2D networks are made of: convolution with batch norm and activation, channel attention."""

from __future__ import annotations

from typing import Callable, ClassVar, Optional

import paddle
import paddle.nn.functional as F
from paddle import nn

from paddlevideo_fast.modeling.layers.batch_norm import SubBatchNorm2D
from paddlevideo_fast.modeling.layers.operators import activation


class ConvBN(nn.Layer):
    """A 2D convolution without bias, its batch norm and an optional activation.

    The sublayers are called as in PaddleVideo (`_conv`, `_batch_norm`), so its weight files fit.
    Parameters get no fixed global names: two models live in one process.

    Args:
        in_channels, out_channels: channels.
        kernel_size: odd; the padding keeps the size.
        stride: stride of the convolution.
        act: name of a function in `paddle.nn.functional`, or None.
        groups: groups of the convolution; a depthwise convolution has as many as channels.
        pool: average 2x2 pixels, stride 2, before the convolution (the ResNet-D shortcut).
        data_format: "NCHW" or "NHWC".
    """

    conv_name: ClassVar[str] = "_conv"
    norm_name: ClassVar[str] = "_batch_norm"

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        act: Optional[str] = None,
        groups: int = 1,
        pool: bool = False,
        data_format: str = "NCHW",
    ) -> None:
        super().__init__()
        convolution = nn.Conv2D(
            in_channels,
            out_channels,
            kernel_size,
            stride=stride,
            padding=(kernel_size - 1) // 2,
            groups=groups,
            weight_attr=paddle.ParamAttr(initializer=nn.initializer.KaimingNormal()),
            bias_attr=False,
            data_format=data_format,
        )
        self.add_sublayer(self.conv_name, convolution)
        self.add_sublayer(self.norm_name, SubBatchNorm2D(out_channels, data_format=data_format))
        self._act = activation(act) if act else None
        self._pool = nn.AvgPool2D(2, stride=2, ceil_mode=True, data_format=data_format) if pool else None

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """[N, C, H, W] (or [N, H, W, C]) to the same with `out_channels`."""
        if self._pool is not None:
            x = self._pool(x)
        x = getattr(self, self.norm_name)(getattr(self, self.conv_name)(x))
        return self._act(x) if self._act is not None else x


class ConvBNPlain(ConvBN):
    """`ConvBN` with PaddleClas' names since 2.1, `conv` and `bn`."""

    conv_name = "conv"
    norm_name = "bn"


class SqueezeExcitation(nn.Layer):
    """Channel attention: scales each channel of a frame by a number computed from all its channels.

    The sublayers are called as in PaddleClas (`conv1`, `conv2`).

    Args:
        channels: channels of the input.
        gate: maps a tensor to numbers between 0 and 1.
        reduction: input channels per channel of the inner layer.

    Reference: Hu et al., "Squeeze-and-Excitation Networks", arXiv 1709.01507, section 3.
    """

    def __init__(
        self, channels: int, gate: Callable[[paddle.Tensor], paddle.Tensor], reduction: int = 4
    ) -> None:
        super().__init__()
        self.conv1 = _pointwise(channels, channels // reduction)
        self.conv2 = _pointwise(channels // reduction, channels)
        self._gate = gate

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """[N, C, H, W] to the same."""
        squeezed = x.mean(axis=[2, 3], keepdim=True)
        return x * self._gate(self.conv2(F.relu(self.conv1(squeezed))))


def _pointwise(in_channels: int, out_channels: int) -> nn.Conv2D:
    initializer = nn.initializer.KaimingNormal()
    return nn.Conv2D(in_channels, out_channels, 1, weight_attr=paddle.ParamAttr(initializer=initializer))
