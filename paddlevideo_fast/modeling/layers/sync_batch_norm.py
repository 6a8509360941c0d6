"""Batch norm whose statistics come from the batches of several processes together."""

from __future__ import annotations

from typing import Any, List, Tuple

import paddle
import paddle.nn.functional as F
from paddle.autograd import PyLayer


def sync_batch_norm(
    x: paddle.Tensor,
    running_mean: paddle.Tensor,
    running_variance: paddle.Tensor,
    weight: paddle.Tensor,
    bias: paddle.Tensor,
    momentum: float,
    epsilon: float,
    data_format: str,
    group: Any,
) -> paddle.Tensor:
    """Batch norm in training over the batches of all processes of a group, whose sizes may differ.

    It is made of Paddle's batch norm with given statistics, one message of 2C + 1 numbers forward and one of
    2C backward, and runs on any device; Paddle's `sync_batch_norm` has no CPU kernel and knows neither groups
    nor batches of different sizes. The gradient is that of the sum of the processes' losses, as data parallel
    training expects. All processes of the group must call it, and back-propagate through it.

    Args:
        x: [N, C, ...] or [N, ..., C], as `data_format` says; N is at least 1. 16-bit values are computed with
            as float32.
        running_mean: [C]; updated in place.
        running_variance: [C]; updated in place, with the variance of the population.
        weight: [C].
        bias: [C].
        momentum: share of the running statistics that is kept.
        epsilon: is added to the variance.
        data_format: of Paddle's batch norm, such as "NCHW".
        group: its `all_sum(tensor)` gives the sum of a tensor [M] over the processes of the group.

    Returns:
        A tensor of the same shape and dtype as `x`.

    Reference: Ioffe and Szegedy, "Batch Normalization", arXiv 1502.03167, section 3.
    """
    with paddle.amp.auto_cast(enable=False):
        with paddle.no_grad():
            count, mean, variance = _moments_of_group(_wide(x.detach()), data_format, group)
            for running, new in ((running_mean, mean), (running_variance, variance)):
                paddle.assign(running * momentum + new * (1 - momentum), running)
        return _Normalized.apply(x, weight, bias, mean, variance, count, epsilon, data_format, group)


class _Normalized(PyLayer):
    """Normalises by statistics that depend on `x`. With n values of a channel in the group,

        dx = weight / σ · (g − Σ g / n − x̂ · Σ (g · x̂) / n),  x̂ = (x − mean) / σ,

    where the sums go over the group; this process's shares of them are the gradients of bias and weight.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: paddle.Tensor,
        weight: paddle.Tensor,
        bias: paddle.Tensor,
        mean: paddle.Tensor,
        variance: paddle.Tensor,
        count: paddle.Tensor,
        epsilon: float,
        data_format: str,
        group: Any,
    ) -> paddle.Tensor:
        ctx.save_for_backward(x, weight, bias, mean, variance, count)
        ctx.group = group
        ctx.options = {"epsilon": epsilon, "data_format": data_format}
        return F.batch_norm(_wide(x), mean, variance, weight, bias, **ctx.options).astype(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: paddle.Tensor) -> Tuple[Any, ...]:
        inputs = ctx.saved_tensor()
        x, weight, bias, mean, variance, count = inputs
        wide_x = _wide(x)
        with paddle.enable_grad():
            leaves = _leaves(wide_x, weight, bias)
            output = F.batch_norm(leaves[0], mean, variance, *leaves[1:], **ctx.options)
        direct, of_weight, of_bias = paddle.grad(output, leaves, _wide(gradient))
        sums = ctx.group.all_sum(paddle.concat([of_weight, of_bias]).astype("float64"))
        scale = weight * paddle.rsqrt(variance + ctx.options["epsilon"])
        slope, offset = ((part / count).astype(weight.dtype) * -scale for part in paddle.split(sums, 2))
        # slope · x̂ + offset is what the statistics pass on, and a batch norm itself
        of_x = direct + F.batch_norm(wide_x, mean, variance, slope, offset, **ctx.options)
        gradients = of_x.astype(x.dtype), of_weight, of_bias, None, None, None
        return tuple(None if tensor.stop_gradient else each for tensor, each in zip(inputs, gradients))


def _leaves(*tensors: paddle.Tensor) -> List[paddle.Tensor]:
    """The same values at the beginning of a graph of their own."""
    detached = [tensor.detach() for tensor in tensors]
    for tensor in detached:
        tensor.stop_gradient = False
    return detached


def _wide(x: paddle.Tensor) -> paddle.Tensor:
    return x if x.dtype in (paddle.float32, paddle.float64) else x.astype("float32")


def _moments_of_group(x: Any, data_format: str, group: Any) -> Tuple[Any, Any, Any]:
    """Number of values of a channel [1], their mean and their variance [C], in all processes of the group."""
    channel_axis = 1 if data_format[1] == "C" else x.ndim - 1
    axes = [axis for axis in range(x.ndim) if axis != channel_axis]
    mean = x.mean(axes)
    # centred first: the mean of squares less the square of the mean would cancel in float32
    ones, zeros = paddle.ones_like(mean), paddle.zeros_like(mean)
    centred = F.batch_norm(x, mean, 0.75 * ones, ones, zeros, epsilon=0.25, data_format=data_format)
    squares = centred.square().mean(axes).astype("float64") + mean.astype("float64").square()
    own = paddle.concat([paddle.ones([1], "float64"), mean.astype("float64"), squares])
    sums = group.all_sum(own * (x.size // mean.size))
    count, of_values, of_squares = paddle.split(sums, [1, mean.size, mean.size])
    whole = of_values / count
    variance = (of_squares / count - whole.square()).clip(min=0.0)
    return count, whole.astype(mean.dtype), variance.astype(mean.dtype)
