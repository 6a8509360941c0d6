"""Tables of positions: resized for clips of other sizes, or computed."""

from collections.abc import Sequence

import numpy as np
import paddle
import paddle.nn.functional as F


def resized(table: paddle.Tensor, sizes: Sequence[int], new_sizes: Sequence[int]) -> paddle.Tensor:
    """A table of positions for a grid of another size; the same tensor where the sizes are equal.

    Args:
        table: float [L, C], L the product of `sizes`; the last axis of the grid runs fastest.
        sizes: of the table's grid, 1 to 3 axes.
        new_sizes: of the wanted grid, as many axes.

    Returns:
        [L', C], interpolated linearly along each axis; pixel centres are aligned, as in PyTorch with
        align_corners=False.
    """
    if list(sizes) == list(new_sizes):
        return table
    channels = table.shape[-1]
    modes = {1: ("linear", "NCW"), 2: ("bilinear", "NCHW"), 3: ("trilinear", "NCDHW")}
    mode, data_format = modes[len(sizes)]
    grid = table.reshape([1, *sizes, channels])
    grid = grid.transpose([0, len(sizes) + 1, *range(1, len(sizes) + 1)])
    grid = F.interpolate(grid, list(new_sizes), mode=mode, align_corners=False, data_format=data_format)
    return grid.flatten(2).transpose([0, 2, 1])[0]


def sin_cos(length: int, channels: int) -> np.ndarray:
    """Positions as sines (even channels) and cosines (odd ones), float32 [length, channels].

    Reference: Vaswani et al., "Attention Is All You Need", arXiv 1706.03762, section 3.5.
    """
    numbers = np.arange(channels)
    angles = np.arange(length)[:, None] / 10000 ** (2 * (numbers // 2) / channels)
    return np.where(numbers % 2, np.cos(angles), np.sin(angles)).astype("float32")
