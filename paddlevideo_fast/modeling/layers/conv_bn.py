"""Convolution with batch norm and activation, and channel attention in 2D and 3D."""

from collections.abc import Callable, Mapping
from typing import ClassVar

import paddle
import paddle.nn.functional as F
from paddle import nn

from paddlevideo_fast.modeling.layers import cpu
from paddlevideo_fast.modeling.layers.batch_norm import SubBatchNorm2D
from paddlevideo_fast.modeling.layers.operators import activation

Activation = Callable[[paddle.Tensor], paddle.Tensor]


def make_divisible(value: float, divisor: int = 8) -> int:
    """The multiple of `divisor` nearest to `value`, but at least 0.9 times `value`.

    Reference: Howard et al., "Searching for MobileNetV3", arXiv 1905.02244.
    """
    rounded = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return rounded if rounded >= 0.9 * value else rounded + divisor


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
    padding: ClassVar[str | None] = None  # as `nn.Conv2D` takes it; None: as many pixels as keep the size
    norm_options: ClassVar[Mapping[str, float]] = {}  # of the batch norm

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        act: str | None = None,
        groups: int = 1,
        pool: bool = False,
        data_format: str = "NCHW",
    ) -> None:
        super().__init__()
        convolution = cpu.Conv2D(
            in_channels,
            out_channels,
            kernel_size,
            stride=stride,
            padding=self.padding or (kernel_size - 1) // 2,
            groups=groups,
            weight_attr=paddle.ParamAttr(initializer=nn.initializer.KaimingNormal()),
            bias_attr=False,
            data_format=data_format,
        )
        norm = SubBatchNorm2D(out_channels, data_format=data_format, **self.norm_options)
        self.add_sublayer(self.conv_name, convolution)
        self.add_sublayer(self.norm_name, norm)
        self._act = activation(act) if act else None
        self._pool = nn.AvgPool2D(2, stride=2, ceil_mode=True, data_format=data_format) if pool else None

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """[N, C, H, W] (or [N, H, W, C]) to the same with `out_channels`."""
        if self._pool is not None:
            x = self._pool(x)
        x = getattr(self, self.norm_name)(getattr(self, self.conv_name)(x))
        return self._act(x) if self._act is not None else x

    def as_convolution(self) -> tuple[paddle.Tensor, paddle.Tensor]:
        """The convolution and its batch norm, in evaluation, as one convolution with bias.

        Returns:
            Weight [C_out, C_in / groups, k, k] and bias [C_out].
        """
        weight, norm = getattr(self, self.conv_name).weight, getattr(self, self.norm_name)
        scale = norm.weight * paddle.rsqrt(norm._variance + norm._epsilon)
        return weight * scale.reshape([-1, 1, 1, 1]), norm.bias - norm._mean * scale


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
        inner_channels: channels of the inner layer; None: a quarter of the input's.
        act: the inner layer's activation.
        num_squeezed: numbers for each channel that `squeezed` gives.

    Reference: Hu et al., "Squeeze-and-Excitation Networks", arXiv 1709.01507, section 3.
    """

    names: ClassVar[tuple[str, str]] = ("conv1", "conv2")
    convolution: ClassVar[type[nn.Layer]] = nn.Conv2D

    def __init__(
        self,
        channels: int,
        gate: Activation,
        inner_channels: int | None = None,
        act: Activation = F.relu,
        num_squeezed: int = 1,
    ) -> None:
        super().__init__()
        inner_channels = channels // 4 if inner_channels is None else inner_channels
        self.add_sublayer(self.names[0], self.pointwise(channels * num_squeezed, inner_channels))
        self.add_sublayer(self.names[1], self.pointwise(inner_channels, channels))
        self._gate, self._act = gate, act

    def pointwise(self, in_channels: int, out_channels: int) -> nn.Layer:
        """A convolution with bias of a kernel of 1."""
        init = paddle.ParamAttr(initializer=nn.initializer.KaimingNormal())
        return self.convolution(in_channels, out_channels, 1, weight_attr=init)

    def squeezed(self, x: paddle.Tensor) -> paddle.Tensor:
        """The mean of each channel over all its places, the axes kept."""
        return x.mean(axis=list(range(2, x.ndim)), keepdim=True)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """[N, C, H, W] to the same; in 3D networks [N, C, T, H, W]."""
        first, second = (getattr(self, name) for name in self.names)
        return x * self._gate(second(self._act(first(self.squeezed(x)))))


class SqueezeExcitation3D(SqueezeExcitation):
    """Channel attention over clips: means over time and space. The names are PySlowFast's."""

    names = ("fc1", "fc2")
    convolution = nn.Conv3D
