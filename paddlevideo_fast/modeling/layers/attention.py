"""What the transformers are made of: attention, the two-layer perceptron, stochastic depth."""

from __future__ import annotations

from typing import List, Optional

import paddle
import paddle.nn.functional as F
from paddle import nn


def attend(
    query: paddle.Tensor,
    key: paddle.Tensor,
    value: paddle.Tensor,
    bias: Optional[paddle.Tensor] = None,
) -> paddle.Tensor:
    """Attention, softmax(query · keyᵀ / sqrt(D) + bias) · value.

    On a device without a bias this is Paddle's fused operator, which is flash attention where the device has
    it. Elsewhere, in an exported program, and with a bias, whose gradient the fused operator does not give,
    it is two matrix products with the softmax between them in float32.

    Args:
        query: [N, heads, L, D].
        key: [N, heads, M, D].
        value: [N, heads, M, D].
        bias: is added to the scores; of a shape that broadcasts to [N, heads, L, M].

    Returns:
        [N, heads, L, D].

    Reference: Vaswani et al., "Attention Is All You Need", arXiv 1706.03762, section 3.2.1.
    """
    if bias is None and paddle.in_dynamic_mode() and not query.place.is_cpu_place():
        return fused_attend(query, key, value)
    scores = paddle.matmul(query * query.shape[-1] ** -0.5, key, transpose_y=True)
    if bias is not None:
        scores = scores + bias
    return paddle.matmul(F.softmax(scores.astype("float32")).astype(value.dtype), value)


def fused_attend(query: paddle.Tensor, key: paddle.Tensor, value: paddle.Tensor) -> paddle.Tensor:
    """`attend` without a bias, by Paddle's fused operator."""
    swapped = (x.transpose([0, 2, 1, 3]) for x in (query, key, value))  # it takes [N, L, heads, D]
    return F.scaled_dot_product_attention(*swapped).transpose([0, 2, 1, 3])


class Mlp(nn.Layer):
    """Two linear layers with GELU between them; the sublayers are `fc1` and `fc2`, as in PaddleVideo.

    Args:
        channels: of input and output.
        hidden_channels: between the layers.
        out_channels: of the output; None: `channels`.
        dropout: after each of the layers.
    """

    def __init__(
        self,
        channels: int,
        hidden_channels: int,
        out_channels: Optional[int] = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.fc1 = linear(channels, hidden_channels)
        self.fc2 = linear(hidden_channels, out_channels or channels)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """[..., channels] to the same, or to [..., out_channels]."""
        return self.dropout(self.fc2(self.dropout(F.gelu(self.fc1(x)))))


def linear(in_channels: int, out_channels: int, bias: bool = True, std: float = 0.02) -> nn.Linear:
    """A linear layer as transformers start it: truncated normal weights, a bias of zeros."""
    return nn.Linear(
        in_channels,
        out_channels,
        weight_attr=paddle.ParamAttr(initializer=nn.initializer.TruncatedNormal(std=std)),
        bias_attr=paddle.ParamAttr(initializer=nn.initializer.Constant(0.0)) if bias else False,
    )


class DropPath(nn.Layer):
    """Stochastic depth: in training, some samples go without a residual branch, which is scaled for the rest.

    Args:
        rate: share of the samples that go without the branch.

    Reference: Huang et al., "Deep Networks with Stochastic Depth", arXiv 1603.09382, section 3.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, branch: paddle.Tensor) -> paddle.Tensor:
        """The output of a branch, [N, ...], to the same shape."""
        if not (self.training and self.rate):
            return branch
        kept = (paddle.rand([branch.shape[0]] + [1] * (branch.ndim - 1)) >= self.rate).astype(branch.dtype)
        return branch * kept / (1 - self.rate)


def drop_path_rates(last: float, depth: int) -> List[float]:
    """The rates of `depth` blocks: they rise in equal steps from 0 to `last`."""
    return [last * index / max(depth - 1, 1) for index in range(depth)]
