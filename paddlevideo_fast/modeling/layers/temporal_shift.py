"""The temporal shift: a quarter of the channels moves one frame, at no multiplication.

Reference: Lin, Gan, Han, "TSM: Temporal Shift Module for Efficient Video Understanding", arXiv 1811.08383,
section 3.
"""

from __future__ import annotations

import paddle
import paddle.nn.functional as F


def temporal_shift(
    frames: paddle.Tensor, num_seg: int, shift_ratio: float = 0.125, data_format: str = "NCHW"
) -> paddle.Tensor:
    """Moves two folds of channels along time, in one fused operator.

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
    return F.temporal_shift(frames, num_seg, shift_ratio, data_format=data_format)


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
