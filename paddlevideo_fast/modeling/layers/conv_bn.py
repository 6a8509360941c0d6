"""Convolution, batch norm, activation: what every 2D network here is made of."""

from __future__ import annotations

from typing import ClassVar, Optional

import paddle
from paddle import nn

from paddlevideo_fast.modeling.layers.portable import activation
from paddlevideo_fast.modeling.layers.sub_batchnorm import SubBatchNorm2D


class ConvBN(nn.Layer):
    """A 2D convolution without bias, its batch norm and an optional activation.

    The sublayers are called as in PaddleVideo (`_conv`, `_batch_norm`), so its weight files fit.
    Parameters get no fixed global names: two models live in one process.

    Args:
        in_channels, out_channels: channels.
        kernel_size: odd; the padding keeps the size.
        stride: of the convolution.
        act: name of a function in `paddle.nn.functional`, or None.
        groups: of the convolution; as many as channels make it a depthwise one.
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
    """The same under the names of PaddleClas since 2.1, `conv` and `bn`."""

    conv_name = "conv"
    norm_name = "bn"
