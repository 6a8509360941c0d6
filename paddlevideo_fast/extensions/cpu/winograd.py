"""3×3 convolutions with 4 multiplications in place of 9, for a CPU: Winograd's F(2×2, 3×3).

A tile is 2×2 numbers that the convolution writes, and the 4×4 that they depend on. Additions make 16 numbers
of each tile that is read, and 16 of each kernel. Their products, summed over the channels, are 16 products of
matrices, and additions make of these what is written. Paddle instead copies the 9 numbers around each number.

Reference: Lavin, Gray, "Fast Algorithms for Convolutional Neural Networks", arXiv 1509.09308, section 4.1.
Results and gradients agree with Paddle's to rounding. docs/adr/0042 has the reasons and the measurements.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import paddle
from paddle.autograd import PyLayer

from paddlevideo_fast.extensions.cpu.operators import as_array, empty, slices, wanted

_MIN_CHANNELS = 128  # of fewer, additions take longer than the multiplications that they save
_MIN_TILES = 64  # for fewer, the kernels are too much to transform
_BLOCK = 2**15  # numbers: an eighth of a MB, so that what is added stays in a core's second cache
_PART = 2**21  # numbers of tiles that are in memory at once: 8 MB

# from numbers along an axis to four for each tile, or back
_Step = Callable[[np.ndarray, np.ndarray], None]


def pays(
    frames: Sequence[int], kernels: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> bool:
    """Whether `convolve` takes less time than Paddle on a CPU: where there are many channels.

    Args:
        frames: their shape, [N, C, H, W].
        kernels: their shape, [O, C / groups, h, w].
        stride: of rows and columns.
        padding: of rows and columns.
    """
    return (
        tuple(kernels[2:]) == (3, 3)
        and max(stride) == 1
        and kernels[1] == frames[1]
        and min(kernels[:2]) >= _MIN_CHANNELS
        and len(padding) == 2
        and frames[0] * math.prod(_tiles(frames, padding)) >= _MIN_TILES
    )


def convolve(x: paddle.Tensor, weight: paddle.Tensor, padding: Sequence[int]) -> paddle.Tensor:
    """The convolution of [N, C, H, W] with kernels [O, C, 3, 3], of stride 1: [N, O, H', W']."""
    return _Convolution.apply(x, weight, tuple(padding))


def _tiles(shape: Sequence[int], padding: Sequence[int]) -> list[int]:
    """Tiles down and across, the last of which may write one number too many."""
    return [(size + 2 * around - 1) // 2 for size, around in zip(shape[2:], padding)]


class _Convolution(PyLayer):
    """Some frames at a time, so that little memory is taken for a moment."""

    @staticmethod
    def forward(ctx: Any, x: paddle.Tensor, weight: paddle.Tensor, padding: tuple[int, int]) -> paddle.Tensor:
        ctx.wanted, ctx.padding = [not one.stop_gradient for one in (x, weight)], padding
        x = x.contiguous()
        ctx.save_for_backward(x, weight)
        tiles, kernels = _tiles(x.shape, padding), _of_kernels(weight)
        size = [number + 2 * around - 2 for number, around in zip(x.shape[2:], padding)]
        out = empty([x.shape[0], weight.shape[0], *size])
        frames, written = as_array(x), as_array(out)
        for some in _some_frames(weight, len(frames), tiles):
            read = _to_tiles(_read, frames[some], tiles, padding)
            _to_frames(_write, paddle.matmul(read, kernels, transpose_y=True), written[some], tiles)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: paddle.Tensor) -> tuple[paddle.Tensor | None, ...]:
        x, weight = ctx.saved_tensor()
        tiles, kernels = _tiles(x.shape, ctx.padding), _of_kernels(weight)
        of_x, of_kernels = empty(x.shape), paddle.zeros([16, *weight.shape[:2]], "float32")
        frames, upstream, written = as_array(x), as_array(gradient), as_array(of_x)
        for some in _some_frames(weight, len(frames), tiles):
            of_products = _to_tiles(_write_gradient, upstream[some], tiles)
            if ctx.wanted[0]:
                of_tiles = paddle.matmul(of_products, kernels)
                _to_frames(_read_gradient, of_tiles, written[some], tiles, ctx.padding)
            if ctx.wanted[1]:
                read = _to_tiles(_read, frames[some], tiles, ctx.padding)
                of_kernels.add_(paddle.matmul(of_products, read, transpose_x=True))
        of_weight = paddle.matmul(of_kernels.flatten(1), _KERNEL, transpose_x=True).reshape(weight.shape)
        return wanted(ctx, of_x, of_weight)


def _some_frames(weight: paddle.Tensor, num_frames: int, tiles: Sequence[int]) -> Iterator[slice]:
    """Parts of the frames whose tiles have at most `_PART` numbers, of kernels [O, C, 3, 3]."""
    return slices(num_frames, _PART // (16 * max(weight.shape[:2]) * math.prod(tiles)) or 1)


# --- along one axis: [n, numbers, ...], and [4, n, tiles, ...]


def _read(numbers: np.ndarray, out: np.ndarray) -> None:
    """Each four numbers that a tile reads, two of which the next tile reads as well."""
    first, second, third, fourth = numbers[:, :-2:2], numbers[:, 1:-2:2], numbers[:, 2::2], numbers[:, 3::2]
    np.subtract(first, third, out=out[0])
    np.add(second, third, out=out[1])
    np.subtract(third, second, out=out[2])
    np.subtract(second, fourth, out=out[3])


def _read_gradient(gradients: np.ndarray, out: np.ndarray) -> None:
    first, second, third, fourth = gradients
    even, odd = out[:, ::2], out[:, 1::2]
    even[:, :-1], even[:, -1] = first, 0
    even[:, 1:] += second + third - first
    np.add(second - third, fourth, out=odd[:, :-1])
    odd[:, -1] = 0
    odd[:, 1:] -= fourth


def _write(products: np.ndarray, out: np.ndarray) -> None:
    """Each two numbers that a tile writes."""
    first, second, third, fourth = products
    even, odd = out[:, ::2], out[:, 1::2]
    np.add(first, second, out=even)
    even += third
    np.subtract(second, third, out=odd)
    odd -= fourth


def _write_gradient(gradients: np.ndarray, out: np.ndarray) -> None:
    even, odd = gradients[:, ::2], gradients[:, 1::2]
    out[0] = even
    np.add(even, odd, out=out[1])
    np.subtract(even, odd, out=out[2])
    np.negative(odd, out=out[3])


_AXIS = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], "float32")
_KERNEL = paddle.to_tensor(np.kron(_AXIS, _AXIS), place=paddle.CPUPlace())  # both axes: [16, 9]


# --- along both axes


def _of_kernels(weight: paddle.Tensor) -> paddle.Tensor:
    """Kernels [O, C, 3, 3] to [16, O, C]."""
    kernels = paddle.matmul(_KERNEL, weight.reshape([-1, 9]), transpose_y=True)
    return kernels.reshape([16, *weight.shape[:2]])


def _to_tiles(
    step: _Step, frames: np.ndarray, tiles: Sequence[int], padding: Sequence[int] | None = None
) -> paddle.Tensor:
    """Frames [N, C, H, W], with a padding those that are read, to [16, N * tiles, C]."""
    num_frames, channels = frames.shape[:2]
    out = empty([16, num_frames * math.prod(tiles), channels])
    targets = as_array(out).reshape(4, 4, num_frames, *tiles, channels)
    size, inside = _padded(frames.shape, tiles, padding)
    for block in slices(num_frames, _BLOCK // (math.prod(size) * channels) or 1):
        part = frames[block].transpose(0, 2, 3, 1)
        padded = np.zeros([len(part), *size, channels], "float32")
        padded[inside] = part
        by_row = np.empty([4, len(part), tiles[0], size[1], channels], "float32")
        step(padded, by_row)
        for row, target in zip(by_row, targets[:, :, block]):
            step(row.swapaxes(1, 2), target.swapaxes(2, 3))
    return out


def _to_frames(
    step: _Step,
    values: paddle.Tensor,
    frames: np.ndarray,
    tiles: Sequence[int],
    padding: Sequence[int] | None = None,
) -> None:
    """Writes [16, N * tiles, C] to frames [N, C, H, W], with a padding to those that are read."""
    num_frames, channels = frames.shape[:2]
    parts = as_array(values).reshape(4, 4, num_frames, *tiles, channels)
    size, inside = _padded(frames.shape, tiles, padding)
    for block in slices(num_frames, _BLOCK // (math.prod(size) * channels) or 1):
        part = parts[:, :, block]
        by_column = np.empty([4, part.shape[2], size[0], tiles[1], channels], "float32")
        for column, target in zip(part.swapaxes(0, 1), by_column):
            step(column, target)
        padded = np.empty([part.shape[2], *size, channels], "float32")
        step(by_column.swapaxes(2, 3), padded.swapaxes(1, 2))
        frames[block] = padded[inside].transpose(0, 3, 1, 2)


def _padded(
    shape: Sequence[int], tiles: Sequence[int], padding: Sequence[int] | None
) -> tuple[list[int], tuple[slice, ...]]:
    """Rows and columns of all tiles, and where the frames of a shape are in them."""
    around = padding or (0, 0)
    inside = (slice(before, before + size) for before, size in zip(around, shape[2:]))
    return [2 * number + (2 if padding else 0) for number in tiles], (slice(None), *inside)
