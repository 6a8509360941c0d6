"""Convolutions as a CPU computes them fast; devices and exported programs take Paddle's own.

Paddle's CPU kernels write the patches of a 3D convolution out as a whole, and compute a depthwise convolution
number by number, on one thread. Here kernels of several pixels are oneDNN's, those of one pixel and several
frames a sum over frames, and depthwise ones a product of matrices. Results and gradients agree with Paddle's
to rounding. docs/adr/0042 has the reasons.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import paddle
import paddle.nn.functional as F
from numpy.lib.stride_tricks import as_strided
from paddle import nn
from paddle.autograd import PyLayer

from paddlevideo_fast.extensions.cpu import onednn
from paddlevideo_fast.extensions.cpu.operators import as_array, empty, is_on_cpu, transpose, wanted

_MOST_PIXELS = 14 * 14  # of a frame that a depthwise convolution writes; larger ones are too much to copy
_MIN_FRAMES = 4  # of a depthwise convolution; for fewer, its matrices are too much to write
_TILE = 7  # rows and columns


# --- 3D


class Conv3D(nn.Conv3D):
    """Paddle's 3D convolution of [N, C, T, H, W]; on a CPU, where it pays, `onednn`'s, or a sum over frames.

    A kernel of k frames is k kernels of one frame: all are applied to each frame, and their results are added
    along time. Paddle instead writes the patches of all k frames to memory. Small frames take this way where
    the convolution is depthwise. Kernels of one pixel take it where they write half the channels that they
    read, or fewer.
    """

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """[N, C, T, H, W] to [N, out_channels, T', H', W']."""
        tiling = _tiling(self, x) if self._has_frames_apart(x) else None
        if tiling is not None:
            frames = transpose(x, [0, 2, 1, 3, 4]).flatten(0, 1)
            each = _Depthwise.apply(frames, self.weight, tiling)
            each = each.reshape([x.shape[0], x.shape[2], *each.shape[1:]])
            out = _SumOverTime.apply(each, (0, 1, 2, 3, 4, 5), self._updated_padding[0])
        elif onednn.pays(self, x):
            out = onednn.convolve(x, self.weight, self._stride, self._updated_padding)
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
        return _SumOverTime.apply(each, (0, 3, 1, 2, 4, 5), self._updated_padding[0])

    def _has_many_pixels(self, x: paddle.Tensor) -> bool:
        """Whether `_of_pixels` takes less time; for fewer pixels, its kernels are too much to copy."""
        out_channels, channels, depth = self.weight.shape[:3]
        return (
            self._has_frames_apart(x)
            and self._groups == max(self._kernel_size[1:]) == 1
            and depth > 1
            and channels >= 2 * out_channels
            and math.prod(x.shape) >= 2 * channels * out_channels
        )

    def _has_frames_apart(self, x: paddle.Tensor) -> bool:
        """Whether the convolution of a clip is a sum over convolutions of its frames, on a CPU."""
        return (
            is_on_cpu(x)
            and self._stride[0] == max(self._dilation) == 1
            and isinstance(self._padding, (int, list, tuple))
            and len(self._updated_padding) == 3
            and self._padding_mode == "zeros"
            and self._data_format == "NCDHW"
        )


class _SumOverTime(PyLayer):
    """What each of k kernels gives for each frame, to [N, C, T', H, W].

    `order` puts the axes of what is given into the order [N, T, k, C, H, W].
    With a padding of p frames, frame t of the output is the sum over i of kernel i's result for frame
    t + i - p; frames outside the clip count as zeros.
    """

    @staticmethod
    def forward(ctx: Any, each: paddle.Tensor, order: tuple[int, ...], padding: int) -> paddle.Tensor:
        ctx.shape, ctx.order, ctx.padding = each.shape, order, padding
        results = as_array(each).transpose(order)
        num_clips, num_frames, size, channels, *others = results.shape
        out = empty([num_clips, channels, num_frames + 2 * padding - size + 1, *others])
        written = as_array(out).swapaxes(1, 2)
        written[...] = 0
        for number, frames, sources in _pairs(num_frames, size, padding):
            written[:, frames] += results[:, sources, number]
        return out

    @staticmethod
    def backward(ctx: Any, gradient: paddle.Tensor) -> paddle.Tensor:
        out = empty(ctx.shape)
        written, given = as_array(out).transpose(ctx.order), as_array(gradient).swapaxes(1, 2)
        num_frames, size = written.shape[1:3]
        for number, frames, sources in _pairs(num_frames, size, ctx.padding):
            written[:, : sources.start, number] = written[:, sources.stop :, number] = 0
            written[:, sources, number] = given[:, frames]
        return out


def _pairs(num_frames: int, size: int, padding: int) -> Iterator[tuple[int, slice, slice]]:
    """For each kernel: its number, frames of the output, and the frames of `each` that are added to them."""
    for number in range(size):
        shift = number - padding
        begin = max(0, -shift)
        end = max(begin, min(num_frames + 2 * padding - size + 1, num_frames - shift))
        yield number, slice(begin, end), slice(begin + shift, end + shift)


# --- depthwise


class Conv2D(nn.Conv2D):
    """Paddle's 2D convolution; on a CPU, where it pays, `onednn`'s, or products of matrices if depthwise.

    A depthwise convolution has one kernel for each channel. What it writes is cut into tiles. The part of a
    channel under a tile, as a row, times a matrix that holds the kernel once for each number of the tile, is
    the tile. Most of the matrix is zeros, and still the product takes a tenth of the time of Paddle's kernel.
    """

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """[N, in_channels, H, W] to [N, out_channels, H', W']."""
        tiling = _tiling(self, x) if self._data_format == "NCHW" else None
        if tiling is not None:
            out = _Depthwise.apply(x, self.weight, tiling).squeeze(1)
        elif onednn.pays(self, x):
            out = onednn.convolve(x, self.weight, self._stride, self._updated_padding)
        else:
            return nn.Conv2D.forward(self, x)
        return out if self.bias is None else out + self.bias.reshape([-1, 1, 1])


class _Axis(NamedTuple):
    """The tiles of a depthwise convolution along the rows, or the columns, of what it writes.

    Attributes:
        out: numbers that the convolution writes.
        tile, num_tiles: numbers of a tile, of which the last one may be longer than what is written.
        kernel, stride: of the convolution.
        before: zeros before the first number that it reads.
    """

    out: int
    tile: int
    num_tiles: int
    kernel: int
    stride: int
    before: int

    @property
    def whole(self) -> int:
        """Numbers of all tiles."""
        return self.num_tiles * self.tile

    @property
    def step(self) -> int:
        """From what one tile reads to what the next one does."""
        return self.tile * self.stride

    @property
    def window(self) -> int:
        """Numbers that a tile reads."""
        return self.step - self.stride + self.kernel

    @property
    def padded(self) -> int:
        """Numbers that all tiles read, with the zeros around the frame."""
        return (self.num_tiles - 1) * self.step + self.window


_Tiling = tuple[_Axis, _Axis]


def _tiling(layer: Any, x: paddle.Tensor) -> _Tiling | None:
    """The tiles of frames, the last two axes of `x`; None where the convolution stays Paddle's."""
    size, kernel, stride = list(x.shape[-2:]), layer._kernel_size[-2:], layer._stride[-2:]
    if not (
        is_on_cpu(x)
        and layer._groups == layer._in_channels == layer._out_channels > 1
        and max(layer._dilation) == 1
        and 2 * max(stride) <= min(kernel)  # with fewer overlaps, most of what a tile reads is for nothing
        and layer._padding_mode == "zeros"
        and math.prod(x.shape) >= _MIN_FRAMES * x.shape[1] * math.prod(size)
    ):
        return None
    if layer._padding == "SAME":
        lacking = [max((math.ceil(n / s) - 1) * s + k - n, 0) for n, k, s in zip(size, kernel, stride)]
        around = [(number // 2, number - number // 2) for number in lacking]
    elif len(layer._updated_padding) == 4:
        top, bottom, left, right = layer._updated_padding
        around = [(top, bottom), (left, right)]
    else:
        around = [(number, number) for number in layer._updated_padding[-2:]]
    axes = []
    for n, k, s, (before, after) in zip(size, kernel, stride, around):
        out = (n + before + after - k) // s + 1
        tile = max(min(out, _TILE), 1)
        axes.append(_Axis(out, tile, math.ceil(out / tile), k, s, before))
    rows, columns = axes
    return (rows, columns) if 0 < rows.out * columns.out <= _MOST_PIXELS else None


class _Depthwise(PyLayer):
    """Frames [N, C, H, W] and k kernels for each channel, [C, 1, (k,) h, w], to [N, k, C, H', W']."""

    @staticmethod
    def forward(ctx: Any, x: paddle.Tensor, weight: paddle.Tensor, tiling: _Tiling) -> paddle.Tensor:
        ctx.wanted, ctx.tiling = [not one.stop_gradient for one in (x, weight)], tiling
        x = x.contiguous()
        ctx.save_for_backward(x, weight)
        rows, columns = tiling
        tiles = paddle.matmul(_windows_of(x, tiling), _matrices(weight, tiling), transpose_y=True)
        num_kernels = weight.size // (weight.shape[0] * rows.kernel * columns.kernel)
        shape = [x.shape[0], num_kernels, x.shape[1]]
        whole = empty([*shape, rows.whole, columns.whole])
        by_tile = _by_tile(as_array(whole), tiling)
        by_tile[...] = as_array(tiles).reshape(by_tile.shape)
        if rows.whole == rows.out and columns.whole == columns.out:
            return whole
        out = empty([*shape, rows.out, columns.out])
        as_array(out)[...] = as_array(whole)[..., : rows.out, : columns.out]
        return out

    @staticmethod
    def backward(ctx: Any, gradient: paddle.Tensor) -> tuple[paddle.Tensor | None, ...]:
        (x, weight), (rows, columns) = ctx.saved_tensor(), ctx.tiling
        whole = np.zeros([*gradient.shape[:3], rows.whole, columns.whole], "float32")
        whole[..., : rows.out, : columns.out] = as_array(gradient)
        by_tile = _by_tile(whole, ctx.tiling)
        windows = _windows_of(x, ctx.tiling)
        tiles = empty([*windows.shape[:2], math.prod(by_tile.shape[4:])])
        as_array(tiles).reshape(by_tile.shape)[...] = by_tile
        of_x = of_weight = None
        if ctx.wanted[0]:
            of_windows = paddle.matmul(tiles, _matrices(weight, ctx.tiling))
            of_x = empty(x.shape)
            as_array(of_x)[...] = _summed(as_array(of_windows), x.shape, ctx.tiling)
        if ctx.wanted[1]:
            products = paddle.matmul(tiles, windows, transpose_x=True)
            positions = _positions(ctx.tiling)
            products = products.reshape([-1, positions.shape[1]])
            of_weight = paddle.matmul(products, positions, transpose_y=True).reshape(weight.shape)
        return wanted(ctx, of_x, of_weight)


def _windows_of(x: paddle.Tensor, tiling: _Tiling) -> paddle.Tensor:
    """What each tile of the frames [N, C, H, W] reads, as rows: [C, N * tiles, numbers of a window]."""
    padded, inside = _padded(x.shape, tiling)
    inside[...] = as_array(x).swapaxes(0, 1)[..., : inside.shape[2], : inside.shape[3]]
    windows = _windows(padded, tiling)
    out = empty([x.shape[1], math.prod(windows.shape[1:4]), math.prod(windows.shape[4:])])
    as_array(out).reshape(windows.shape)[...] = windows
    return out


def _summed(of_windows: np.ndarray, shape: Sequence[int], tiling: _Tiling) -> np.ndarray:
    """Frames [N, C, H, W] in which each number is the sum of its values in all windows, `_windows_of`'s rows.

    Windows overlap; those that are some tiles apart do not, and are added at once.
    """
    padded, inside = _padded(shape, tiling)
    windows = _windows(padded, tiling)
    values = of_windows.reshape(windows.shape)
    down, across = (math.ceil(axis.window / axis.step) for axis in tiling)
    for row, column in np.ndindex(down, across):
        windows[:, :, row::down, column::across] += values[:, :, row::down, column::across]
    out = np.zeros([shape[1], shape[0], *shape[2:]], "float32")
    out[..., : inside.shape[2], : inside.shape[3]] = inside
    return out.swapaxes(0, 1)


def _padded(shape: Sequence[int], tiling: _Tiling) -> tuple[np.ndarray, np.ndarray]:
    """Zeros for frames of a shape, [C, N, padded rows, padded columns], and the view that holds the frames.

    The view lacks the rows and columns that no tile reads.
    """
    padded = np.zeros([shape[1], shape[0], *(axis.padded for axis in tiling)], "float32")
    (top, left), (height, width) = (axis.before for axis in tiling), shape[2:]
    return padded, padded[..., top : top + height, left : left + width]


def _windows(padded: np.ndarray, tiling: _Tiling) -> np.ndarray:
    """A view of what each tile reads, [C, N, tiles down, tiles across, rows, columns]."""
    rows, columns = tiling
    down, across = padded.strides[2:]
    shape = (*padded.shape[:2], rows.num_tiles, columns.num_tiles, rows.window, columns.window)
    return as_strided(
        padded, shape, (*padded.strides[:2], down * rows.step, across * columns.step, down, across)
    )


def _by_tile(frames: np.ndarray, tiling: _Tiling) -> np.ndarray:
    """A view of frames [N, k, C, H', W'] of whole tiles as [C, N, tiles down, across, k, rows, columns]."""
    rows, columns = tiling
    parts = frames.reshape(*frames.shape[:3], rows.num_tiles, rows.tile, columns.num_tiles, columns.tile)
    return parts.transpose(2, 0, 3, 5, 1, 4, 6)


def _matrices(weight: paddle.Tensor, tiling: _Tiling) -> paddle.Tensor:
    """The matrix of each channel, [C, numbers of its k tiles, numbers of a window]."""
    rows, columns = tiling
    kernels = weight.reshape([-1, rows.kernel * columns.kernel])
    return paddle.matmul(kernels, _positions(tiling)).reshape(
        [weight.shape[0], -1, rows.window * columns.window]
    )


@functools.lru_cache(maxsize=64)
def _positions(tiling: _Tiling) -> paddle.Tensor:
    """1 where a number of the kernel stands in a matrix: [h * w, numbers of a tile * numbers of a window]."""
    rows, columns = tiling
    shape = rows.kernel, columns.kernel, rows.tile, columns.tile, rows.window, columns.window
    positions = empty([rows.kernel * columns.kernel, math.prod(shape[2:])])
    ones = as_array(positions).reshape(shape)
    ones[...] = 0
    for i, j, row, column in np.ndindex(*shape[:4]):
        ones[i, j, row, column, row * rows.stride + i, column * columns.stride + j] = 1
    return positions
