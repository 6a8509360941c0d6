"""Positions of tokens: tables, resized for clips of other sizes or computed, and rotations."""

import math
from collections.abc import Sequence

import numpy as np
import paddle
import paddle.nn.functional as F

from paddlevideo_fast.modeling.layers.operators import constant

_FINE = 64  # positions in the smaller of the two tables of a program


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


def fixed_positions(
    grid: Sequence[int], channels: int, full_grid: Sequence[int] | None = None
) -> paddle.Tensor:
    """Positions as sines (even channels) and cosines (odd ones) of the numbers of tokens.

    A device gets each table once.

    Args:
        grid: tokens along T, H, W; the last axis runs fastest.
        channels: of a token.
        full_grid: the grid that numbers the tokens; for other grids its table is interpolated, as in V-JEPA.
            None: each grid numbers its own tokens.

    Returns:
        float32 [tokens, channels].

    References:
        Vaswani et al., "Attention Is All You Need", arXiv 1706.03762, section 3.5.
        Bardes et al., "Revisiting Feature Prediction for Learning Visual Representations from Video", arXiv
        2404.08471; facebookresearch/jepa, `interpolate_pos_encoding`.
    """
    numbered = full_grid or grid
    num_tokens = math.prod(numbered)
    table = constant(_table if paddle.in_dynamic_mode() else table_in_program, num_tokens, channels)
    return resized(table, numbered, grid)


def _table(num_tokens: int, channels: int) -> paddle.Tensor:
    numbers = np.arange(channels)
    angles = np.arange(num_tokens)[:, None] / 10000 ** (2 * (numbers // 2) / channels)
    return paddle.to_tensor(np.where(numbers % 2, np.cos(angles), np.sin(angles)).astype("float32"))


def table_in_program(num_tokens: int, channels: int) -> paddle.Tensor:
    """The same from small tables: a program holds its constants as text, and a whole one has megabytes.

    With position = coarse + fine, sin(x + y) = sin x cos y + cos x sin y, and likewise for the cosine.
    """
    numbers = np.arange(channels)
    rates = 10000.0 ** -(2 * (numbers // 2) / channels)
    fine = np.arange(_FINE)[:, None] * rates
    coarse = np.arange(0, num_tokens, _FINE)[:, None, None] * rates
    odd = numbers % 2 == 1
    beside_sine = np.where(odd, -np.sin(fine), np.cos(fine))
    beside_cosine = np.where(odd, np.cos(fine), np.sin(fine))
    parts = (np.sin(coarse), beside_sine, np.cos(coarse), beside_cosine)
    sine, by_sine, cosine, by_cosine = (paddle.to_tensor(part.astype("float32")) for part in parts)
    return (sine * by_sine + cosine * by_cosine).flatten(0, 1)[:num_tokens]


def rotation(grid: Sequence[int], channels: int, num_heads: int) -> paddle.Tensor:
    """By how much `rotated` turns the channels of each token of a grid, along three axes.

    A third of the channels, rounded down to an even number, belongs to each axis; what is left does not turn.
    Of n channels of an axis, numbers k and k + n/2 turn by position / 10000^(2k/n). Su et al. give one angle
    to the two channels of a pair; V-JEPA 2 was trained as it stands here.

    Args:
        grid: tokens along T, H, W; the last axis runs fastest.
        channels: of a head.
        num_heads: all turn alike; tables of one head would make a CPU several times slower.

    Returns:
        Cosines and sines, float32 [2, tokens, heads, channels]. A device gets each of them once.

    References:
        Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", arXiv 2104.09864.
        Assran et al., "V-JEPA 2", arXiv 2506.09985, section 2.1.
    """
    return constant(_rotation, *grid, channels, num_heads)


def rotated(x: paddle.Tensor, rotation: paddle.Tensor) -> paddle.Tensor:
    """Queries or keys [N, L, heads, D], each pair of channels turned by `rotation` [2, L, heads, D]."""
    cosines, sines = rotation.astype(x.dtype).unbind()
    quarter_turn = constant(_quarter_turn, x.shape[-1]).astype(x.dtype)
    return x * cosines + paddle.matmul(x, quarter_turn) * sines


def _rotation(
    num_times: int, num_rows: int, num_columns: int, channels: int, num_heads: int
) -> paddle.Tensor:
    grid = [num_times, num_rows, num_columns]
    half = channels // 3 // 2
    rates = np.tile(10000.0 ** -(np.arange(half) / max(half, 1)), 2)
    parts = []
    for axis, side in enumerate(grid):
        shape = [1, 1, 1, 2 * half]
        shape[axis] = side
        angles = paddle.to_tensor((np.arange(side)[:, None] * rates).astype("float32"))
        parts.append(angles.reshape(shape).expand([*grid, 2 * half]))
    if channels > 6 * half:
        parts.append(paddle.zeros([*grid, channels - 6 * half]))
    angles = paddle.concat(parts, axis=-1).flatten(0, 2)
    return paddle.stack([angles.cos(), angles.sin()]).unsqueeze(2).tile([1, 1, num_heads, 1])


def _quarter_turn(channels: int) -> paddle.Tensor:
    """The matrix that makes (-b, a) of each pair (a, b) of channels."""
    matrix = np.zeros((channels, channels), "float32")
    first = np.arange(0, channels - 1, 2)
    matrix[first + 1, first], matrix[first, first + 1] = -1, 1
    return paddle.to_tensor(matrix)
