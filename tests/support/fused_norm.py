"""What Paddle's `sync_batch_norm_` computes on a GPU, by its sources: the CPU build has no kernel of it."""

import paddle
from paddle.autograd import PyLayer


class Alone:
    """A group of this process alone: its sums are its own values."""

    rank = 0

    def __init__(self, is_everyone=True):
        self.is_everyone = is_everyone

    def all_sum(self, values):
        return values.clone()


class _Kernel(PyLayer):
    @staticmethod
    def forward(ctx, x, weight, bias, mean, inverse, layout, all_sum):
        ctx.save_for_backward(x, weight, mean, inverse)
        ctx.layout, ctx.all_sum, ctx.is_frozen = layout, all_sum, weight.stop_gradient
        normal = (_channels_last(x, layout).astype(mean.dtype) - mean) * inverse
        return _in_place(normal * weight + bias, layout).astype(x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        x, weight, mean, inverse = ctx.saved_tensor()
        g = _channels_last(gradient, ctx.layout).astype(mean.dtype)
        centred = _channels_last(x, ctx.layout).astype(mean.dtype) - mean
        axes = list(range(x.ndim - 1))
        own = paddle.stack([g.sum(axes), (g * centred).sum(axes), paddle.ones_like(mean)])
        of_gradient, of_product, num_devices = ctx.all_sum(own.flatten()).reshape(own.shape)
        per_value = 1 / (num_devices * (x.size // mean.size))  # of this process: each has the same weight
        inward = g - of_gradient * per_value - centred * inverse.square() * of_product * per_value
        inward = _in_place(inward * weight * inverse, ctx.layout).astype(x.dtype)
        affine = (None, None) if ctx.is_frozen else (own[1] * inverse, own[0])
        return inward, *affine, None, None


def _channels_last(x, layout):
    """The kernel knows two layouts, of any number of axes."""
    return x if layout != "NCHW" else x.transpose([0, *range(2, x.ndim), 1])


def _in_place(x, layout):
    return x if layout != "NCHW" else x.transpose([0, x.ndim - 1, *range(1, x.ndim - 1)])


def operator_over(all_sum):
    """A stand-in for `paddle._C_ops.sync_batch_norm_`.

    Args:
        all_sum: the sum of a tensor over the processes; without a communicator, the tensor itself.
    """

    def sync_batch_norm_(
        x, mean, variance, weight, bias, is_test, momentum, epsilon, layout, use_global_stats, trainable_stats
    ):
        assert (is_test, use_global_stats, trainable_stats) == (False, False, False)
        assert not x.stop_gradient, "Paddle 2.6 writes its gradient in any case"
        assert weight.stop_gradient == bias.stop_gradient, "with one of them frozen, neither gets a gradient"
        with paddle.no_grad():
            values = _channels_last(x.detach(), layout).astype(mean.dtype)
            axes = list(range(x.ndim - 1))
            own = paddle.stack([values.mean(axes), values.square().mean(axes), paddle.ones_like(mean)])
            sums = all_sum(own.flatten()).reshape(own.shape)
            of_all, of_squares = sums[0] / sums[2], sums[1] / sums[2]
            of_all_variance = of_squares - of_all.square()
            inverse = 1 / (of_all_variance + epsilon).sqrt()
            for running, new in ((mean, of_all), (variance, of_all_variance)):
                paddle.assign(running * momentum + new * (1 - momentum), running)
        mean.stop_gradient = variance.stop_gradient = False
        output = _Kernel.apply(x, weight, bias, of_all, inverse, layout, all_sum)
        return output, mean, variance, of_all, inverse, None

    return sync_batch_norm_
