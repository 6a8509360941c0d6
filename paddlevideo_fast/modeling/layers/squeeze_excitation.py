"""Channel attention."""

from __future__ import annotations

from typing import Callable

import paddle
import paddle.nn.functional as F
from paddle import nn


class SqueezeExcitation(nn.Layer):
    """Scales each channel of a frame by a number that all channels of the frame decide.

    The sublayers are called as in PaddleClas (`conv1`, `conv2`).

    Args:
        channels: of the input.
        gate: from a tensor to numbers between 0 and 1.
        reduction: `channels` for one channel of the inner layer.

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
