"""The temporal shift: a quarter of the channels moves one frame, at no multiplication.

Reference: Lin, Gan, Han, "TSM: Temporal Shift Module for Efficient Video Understanding", arXiv 1811.08383,
section 3.
"""

from __future__ import annotations

from typing import Any, Tuple

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle.autograd import PyLayer

from paddlevideo_fast.modeling.layers.portable import is_portable


def temporal_shift(
    frames: paddle.Tensor, num_seg: int, shift_ratio: float = 0.125, data_format: str = "NCHW"
) -> paddle.Tensor:
    """Moves two folds of channels along time, in one operator.

    On a GPU, and in a program that is being exported, that is Paddle's fused operator. Its CPU kernel goes
    element by element and knows no 16-bit type; there the same result, bit for bit, comes from five block
    copies, several times faster (`tools/benchmark.py shift`, docs/adr/0009). In a portable program it is a
    choice of channels.

    With C channels and fold = int(C * shift_ratio), frame t of the output takes

        channels [0, fold)          from frame t-1 (zeros at the first frame)
        channels [fold, 2*fold)     from frame t+1 (zeros at the last frame)
        the others                  from frame t

    The first two lines are the other way round in MIT's and MMAction2's networks; `deploy.converters`
    deals with it.

    Args:
        frames: [N*T, C, H, W], or [N*T, H, W, C] where `data_format` is "NHWC"; the frames of a clip in a
            row.
        num_seg: T.
        shift_ratio: share of the channels in each of the two folds.
        data_format: "NCHW" or "NHWC".

    Returns:
        A tensor of the same shape and dtype.
    """
    channels = frames.shape[1 if data_format == "NCHW" else -1]
    folds = int(channels * shift_ratio), int(channels * 2 * shift_ratio)
    if is_portable() and data_format == "NCHW":
        return _chosen_channels(frames, num_seg, folds)
    if paddle.in_dynamic_mode() and frames.place.is_cpu_place():
        return _BlockCopies.apply(frames, num_seg, folds, 2 if data_format == "NCHW" else -1)
    return F.temporal_shift(frames, num_seg, shift_ratio, data_format=data_format)


def _chosen_channels(frames: paddle.Tensor, num_seg: int, folds: Tuple[int, int]) -> paddle.Tensor:
    """The shift of [N*T, C, H, W], each channel chosen from a clip's T*C ones and one of zeros."""
    channels = frames.shape[1]
    clips = frames.reshape([-1, num_seg * channels, 0, 0])  # 0 keeps an axis; its size may not be known
    with_zeros = paddle.concat([paddle.zeros_like(clips[:, :1]), clips], axis=1)
    numbers = np.arange(1, num_seg * channels + 1, dtype="int32").reshape((1, num_seg, channels))
    chosen = paddle.to_tensor(_moved(numbers, 1, folds, 2).ravel())
    return paddle.index_select(with_zeros, chosen, axis=1).reshape([-1, channels, 0, 0])


class _BlockCopies(PyLayer):
    """The shift on a CPU; its gradient is the shift with both directions turned round."""

    @staticmethod
    def forward(
        ctx: Any, frames: paddle.Tensor, num_seg: int, folds: Tuple[int, int], channel_axis: int
    ) -> paddle.Tensor:
        ctx.arguments = num_seg, folds, channel_axis
        return _copied(frames, 1, *ctx.arguments)

    @staticmethod
    def backward(ctx: Any, gradient: paddle.Tensor) -> paddle.Tensor:
        return _copied(gradient, -1, *ctx.arguments)


def _copied(
    frames: paddle.Tensor, direction: int, num_seg: int, folds: Tuple[int, int], channel_axis: int
) -> paddle.Tensor:
    clips = frames.numpy().reshape((-1, num_seg, *frames.shape[1:]))
    moved = _moved(clips, direction, folds, channel_axis)
    return paddle.to_tensor(moved.reshape(frames.shape), place=frames.place)


def _moved(clips: np.ndarray, direction: int, folds: Tuple[int, int], channel_axis: int) -> np.ndarray:
    """Moves the first fold of [N, T, ...] by `direction` frames and the second by as many the other way."""
    target = np.empty_like(clips)
    # views with time on axis 0 and channels on axis 1: the copies below read the same for both layouts
    old, new = (np.moveaxis(array, (1, channel_axis), (0, 1)) for array in (clips, target))
    first, second = slice(0, folds[0]), slice(folds[0], folds[1])
    later, earlier = (first, second) if direction > 0 else (second, first)
    new[1:, later], new[0, later] = old[:-1, later], 0
    new[:-1, earlier], new[-1, earlier] = old[1:, earlier], 0
    new[:, folds[1] :] = old[:, folds[1] :]
    return target


def temporal_shift_composed(
    frames: paddle.Tensor, num_seg: int, shift_ratio: float = 0.125, data_format: str = "NCHW"
) -> paddle.Tensor:
    """The same from reshape, pad, slice and concat: what tests and the benchmark compare with."""
    shape = frames.shape
    axis = 2 if data_format == "NCHW" else 4
    channels = shape[axis - 1]
    first, second = int(channels * shift_ratio), int(channels * 2 * shift_ratio)
    clips = frames.reshape([-1, num_seg, *shape[1:]])
    padded = F.pad(clips, [0, 0, 1, 1, 0, 0, 0, 0, 0, 0])
    pieces = []
    for start, low, high in ((0, 0, first), (2, first, second), (1, second, channels)):
        if high > low and data_format == "NCHW":
            pieces.append(padded[:, start : start + num_seg, low:high])
        elif high > low:
            pieces.append(padded[:, start : start + num_seg, :, :, low:high])
    return paddle.concat(pieces, axis=axis).reshape(shape)
