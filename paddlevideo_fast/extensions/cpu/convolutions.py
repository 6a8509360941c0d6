"""Convolutions as a CPU computes them fast; devices and exported programs take Paddle's own.

Paddle's CPU kernels write the patches under a kernel to memory, and compute a depthwise convolution number by
number, on one thread. Here oneDNN computes kernels of several pixels. It has layouts of its own, in which
channels lie together in blocks: what it reads and writes is copied, and this takes less time still. Kernels
of one pixel and several frames are a sum over frames. Results and gradients agree with Paddle's to rounding.
docs/adr/0042 has the reasons and the measurements.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, TypeAlias

import paddle
import paddle.nn.functional as F
from paddle import nn
from paddle.autograd import PyLayer

from paddlevideo_fast.extensions.cpu import onednn
from paddlevideo_fast.extensions.cpu.onednn import Argument
from paddlevideo_fast.extensions.cpu.operators import transpose
from paddlevideo_fast.extensions.cpu.tensors import as_array, empty, is_on_cpu, wanted

_DIRECT = 1  # oneDNN's name of an algorithm
Padding: TypeAlias = tuple[tuple[int, int], ...]  # of each axis, before and after


class Conv2D(nn.Conv2D):
    """Paddle's 2D convolution; on a CPU oneDNN's, where it pays."""

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """[N, in_channels, H, W] to [N, out_channels, H', W']."""
        if not _onednn_pays(self, x):
            return nn.Conv2D.forward(self, x)
        out = _convolve(self, x)
        return out if self.bias is None else out + self.bias.reshape([-1, 1, 1])


class Conv3D(nn.Conv3D):
    """Paddle's 3D convolution of [N, C, T, H, W]; on a CPU oneDNN's or a sum over frames, where it pays.

    A kernel of k frames and one pixel is k kernels: all are applied to each frame, and their results are
    added along time. Paddle instead writes the patches of all k frames to memory. Kernels take this way where
    they write half the channels that they read, or fewer.
    """

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """[N, C, T, H, W] to [N, out_channels, T', H', W']."""
        if _onednn_pays(self, x):
            out = _convolve(self, x)
        elif self._has_many_pixels(x):
            out = self._of_pixels(x)
        else:
            return nn.Conv3D.forward(self, x)
        return out if self.bias is None else out + self.bias.reshape([-1, 1, 1, 1])

    def _of_pixels(self, x: paddle.Tensor) -> paddle.Tensor:
        """By kernels of one pixel: one product for all frames of a clip."""
        kernels = transpose(self.weight, [2, 0, 1, 3, 4]).flatten(0, 1).unsqueeze(2)
        each = F.conv3d(x, kernels, stride=self._stride, padding=[0, *self._updated_padding[1:]])
        each = each.reshape([x.shape[0], self._kernel_size[0], self._out_channels, *each.shape[2:]])
        return _SumOverTime.apply(each, self._updated_padding[0])

    def _has_many_pixels(self, x: paddle.Tensor) -> bool:
        """Whether `_of_pixels` takes less time; for fewer pixels, its kernels are too much to copy."""
        out_channels, channels, depth = self.weight.shape[:3]
        return (
            is_on_cpu(x)
            and self._groups == max(self._kernel_size[1:]) == 1
            and self._stride[0] == max(self._dilation) == 1
            and self._padding_algorithm == "EXPLICIT"
            and len(self._updated_padding) == 3
            and self._padding_mode == "zeros"
            and self._data_format == "NCDHW"
            and depth > 1
            and channels >= 2 * out_channels
            and math.prod(x.shape) >= 2 * channels * out_channels
        )


class _SumOverTime(PyLayer):
    """What each of k kernels gives for each frame, [N, k, C, T, H, W], to [N, C, T', H, W].

    With a padding of p frames, frame t of the output is the sum over i of kernel i's result for frame
    t + i - p; frames outside the clip count as zeros.
    """

    @staticmethod
    def forward(ctx: Any, each: paddle.Tensor, padding: int) -> paddle.Tensor:
        ctx.shape, ctx.padding = each.shape, padding
        num_clips, size, channels, num_frames, *others = each.shape
        out = empty([num_clips, channels, num_frames + 2 * padding - size + 1, *others])
        results, written = as_array(each), as_array(out)
        written[...] = 0
        for number, frames, sources in _pairs(num_frames, size, padding):
            written[:, :, frames] += results[:, number, :, sources]
        return out

    @staticmethod
    def backward(ctx: Any, gradient: paddle.Tensor) -> paddle.Tensor:
        out = empty(ctx.shape)
        written, given = as_array(out), as_array(gradient)
        for number, frames, sources in _pairs(ctx.shape[3], ctx.shape[1], ctx.padding):
            of_kernel = written[:, number]
            of_kernel[:, :, : sources.start] = of_kernel[:, :, sources.stop :] = 0
            of_kernel[:, :, sources] = given[:, :, frames]
        return out


def _pairs(num_frames: int, size: int, padding: int) -> Iterator[tuple[int, slice, slice]]:
    """For each kernel: its number, frames of the output, and the frames of `each` that are added to them."""
    for number in range(size):
        shift = number - padding
        begin = max(0, -shift)
        end = max(begin, min(num_frames + 2 * padding - size + 1, num_frames - shift))
        yield number, slice(begin, end), slice(begin + shift, end + shift)


# --- by oneDNN


def _onednn_pays(layer: Any, x: paddle.Tensor) -> bool:
    """Whether `_convolve` computes a layer of Paddle for `x`, and takes less time than Paddle.

    Kernels of one pixel stay Paddle's, which copies nothing for them. The size of the batch does not count: a
    clip has the same result in each batch.
    """
    return (
        is_on_cpu(x)
        and max(layer._kernel_size[-2:]) > 1
        and max(layer._dilation) == 1
        and layer._padding_mode == "zeros"
        and layer._data_format[1] == "C"
        and x.shape[1] == layer._in_channels
        and min(_shape_of_output(x.shape, layer.weight.shape, layer._stride, _padding(layer, x))[2:]) > 0
        and onednn.library() is not None
    )


def _convolve(layer: Any, x: paddle.Tensor) -> paddle.Tensor:
    """[N, C, (T,) H, W] to [N, O, (T',) H', W'], without the bias."""
    return _Convolve.apply(x, layer.weight, tuple(layer._stride), _padding(layer, x), layer._groups)


def _padding(layer: Any, x: paddle.Tensor) -> Padding:
    numbers = layer._updated_padding
    if layer._padding_algorithm == "SAME":
        lacking = (
            max((math.ceil(size / step) - 1) * step + kernel - size, 0)
            for size, step, kernel in zip(x.shape[2:], layer._stride, layer._kernel_size)
        )
        return tuple((number // 2, number - number // 2) for number in lacking)
    if len(numbers) == x.ndim - 2:
        return tuple((number, number) for number in numbers)
    return tuple(zip(numbers[::2], numbers[1::2]))


def _shape_of_output(
    x: Sequence[int], weight: Sequence[int], stride: Sequence[int], padding: Padding
) -> list[int]:
    sizes = zip(x[2:], weight[2:], stride, padding)
    return [x[0], weight[0], *((size + sum(p) - kernel) // step + 1 for size, kernel, step, p in sizes)]


class _Convolve(PyLayer):
    @staticmethod
    def forward(
        ctx: Any,
        x: paddle.Tensor,
        weight: paddle.Tensor,
        stride: tuple[int, ...],
        padding: Padding,
        groups: int,
    ) -> paddle.Tensor:
        ctx.wanted = [not one.stop_gradient for one in (x, weight)]
        x, weight = x.contiguous(), weight.contiguous()
        ctx.save_for_backward(x, weight)
        ctx.form = tuple(x.shape), tuple(weight.shape), stride, padding, groups
        return _computation("forward", *ctx.form)(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: paddle.Tensor) -> tuple[paddle.Tensor | None, ...]:
        x, weight = ctx.saved_tensor()
        gradient = gradient.contiguous()
        of_x = of_weight = None
        if ctx.wanted[0]:
            of_x = _computation("backward_data", *ctx.form)(gradient, weight)
        if ctx.wanted[1]:
            of_weight = _computation("backward_weights", *ctx.form)(x, gradient)
        return wanted(ctx, of_x, of_weight)


class _Computation:
    """Gives an output, or a gradient, for given shapes.

    Args:
        kind: a key of `arguments`.
        x, weight: shapes.
        stride, padding: of each axis.
        groups: of the channels.
    """

    # Two inputs, then the output. The numbers choose a shape: 0 is x, 1 the weights, 2 the output.
    arguments: ClassVar = {
        "forward": ((Argument.X, 0), (Argument.WEIGHT, 1), (Argument.OUT, 2)),
        "backward_data": ((Argument.GRADIENT, 2), (Argument.WEIGHT, 1), (Argument.OF_X, 0)),
        "backward_weights": ((Argument.X, 0), (Argument.GRADIENT, 2), (Argument.OF_WEIGHT, 1)),
    }

    def __init__(
        self,
        kind: str,
        x: Sequence[int],
        weight: Sequence[int],
        stride: Sequence[int],
        padding: Padding,
        groups: int,
    ) -> None:
        self._shapes = [x, weight, _shape_of_output(x, weight, stride, padding)]
        shapes = [x, (groups, weight[0] // groups, *weight[1:]) if groups > 1 else weight, self._shapes[2]]
        of_x, of_weight, of_output = (onednn.layout(shape, is_free=True) for shape in shapes)
        dilation = [0] * len(stride)  # zeros between the numbers of a kernel
        geometry = [onednn.integers(numbers) for numbers in (stride, dilation, *zip(*padding))]
        with_bias = of_x, of_weight, None, of_output
        described = onednn.description("convolution_forward", onednn.TRAINING, _DIRECT, *with_bias, *geometry)
        if kind != "forward":
            tensors = with_bias if kind == "backward_weights" else (of_x, of_weight, of_output)
            described = onednn.description(f"convolution_{kind}", _DIRECT, *tensors, *geometry, described)
        self._primitive = onednn.Primitive(described)
        *inputs, (self._number, self._which) = self.arguments[kind]
        self._inputs = [
            (number, onednn.Copy(onednn.layout(shapes[place]), self._primitive.layout(number)))
            for number, place in inputs
        ]
        computed, shape = self._primitive.layout(self._number), shapes[self._which]
        self._output = onednn.Copy(computed, onednn.layout(shape))

    def __call__(self, *tensors: paddle.Tensor) -> paddle.Tensor:
        given = {number: copy(x) for (number, copy), x in zip(self._inputs, tensors)}
        out = empty(self._shapes[self._which])
        computed = onednn.room(self._output.source) if self._output.is_needed else out
        self._primitive({**given, self._number: computed})
        return self._output(computed, out)


@onednn.prepared
def _computation(kind: str, *form: Any) -> _Computation:
    return _Computation(kind, *form)
