"""Layers and operators that a CPU computes faster than by Paddle's, which are here without an annex.

Devices and traced programs take Paddle's in any case.
"""

from typing import Any

import paddle
import paddle.nn.functional as F
from paddle import nn

from paddlevideo_fast import annexes

_faster: Any = annexes.load("operators", "cpu")
_has = _faster is not None

Linear: Any = _faster.Linear if _has else nn.Linear
LayerNorm: Any = _faster.LayerNorm if _has else nn.LayerNorm
Conv3D: Any = _faster.Conv3D if _has else nn.Conv3D
gelu = _faster.gelu if _has else F.gelu
transpose = _faster.transpose if _has else paddle.transpose


def attends(query: paddle.Tensor, key: paddle.Tensor, dropout: float) -> bool:
    """Whether `attend` takes these heads, [N, heads, L, D]."""
    return _has and _faster.attends(query, key, dropout)


def attend(*arguments: Any) -> paddle.Tensor:
    """`attention.attend` of heads, scale, bias and mask, which never has all scores in memory."""
    return _faster.attend(*arguments)
