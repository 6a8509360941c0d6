"""Layers and operators that a CPU computes faster than by Paddle's, which are here without an annex.

Devices and traced programs take Paddle's in any case.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn

from paddlevideo_fast import annexes

_faster: Any = annexes.load("operators", "cpu")
_convolutions: Any = annexes.load("operators", "convolution")

Linear: Any = getattr(_faster, "Linear", nn.Linear)
LayerNorm: Any = getattr(_faster, "LayerNorm", nn.LayerNorm)
Conv2D: Any = getattr(_convolutions, "Conv2D", nn.Conv2D)
Conv3D: Any = getattr(_convolutions, "Conv3D", nn.Conv3D)
gelu = getattr(_faster, "gelu", F.gelu)
add_bias = getattr(_faster, "add_bias", paddle.add)
transpose = getattr(_faster, "transpose", paddle.transpose)
# Whether `attend` takes heads [N, heads, L, D]: query, key, and the rate of dropout.
attends: Any = getattr(_faster, "attends", lambda *heads: False)
# `attention.attend` of heads, scale, bias and mask, which never has all scores in memory.
attend: Any = getattr(_faster, "attend", None)


def computed(x: paddle.Tensor, work: Callable[[np.ndarray, np.ndarray], None]) -> paddle.Tensor:
    """The result of `work` on a tensor that is on a CPU: a new tensor with the shape and dtype of `x`.

    Args:
        x: the input.
        work: gets `x` and the result as arrays, and writes every element of the second.
    """
    if _faster is not None and x.dtype == paddle.float32:  # in the memory of the tensors, without copies
        out = _faster.empty(x.shape)
        work(_faster.as_array(x), _faster.as_array(out))
        return out
    array = x.numpy()
    written = np.empty_like(array)
    work(array, written)
    return paddle.to_tensor(written, place=x.place)
