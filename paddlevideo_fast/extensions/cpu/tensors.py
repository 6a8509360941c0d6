"""Tensors of a CPU as the operators here take them: which ones, their memory, and new ones."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import paddle


def is_on_cpu(x: paddle.Tensor) -> bool:
    """Whether `x` is a float32 tensor on a CPU, where Paddle computes now, and no program is traced."""
    return (
        paddle.in_dynamic_mode()
        and x.dtype == paddle.float32
        and x.place.is_cpu_place()
        and paddle.get_device() == "cpu"  # where new tensors are made
    )


class _Memory:
    """What NumPy needs to use a tensor's memory; keeps the tensor alive."""

    def __init__(self, x: paddle.Tensor) -> None:
        self.tensor = x
        self.__array_interface__ = {
            "version": 3,
            "typestr": "<f4",
            "shape": tuple(x.shape),
            "strides": tuple(4 * step for step in x.get_strides()),
            "data": (x.data_ptr(), False),
        }


def as_array(x: paddle.Tensor) -> np.ndarray:
    """The memory of a float32 tensor on a CPU as an array; writing to it changes the tensor.

    Raises:
        TypeError: the tensor is of another type.
    """
    if x.dtype != paddle.float32:
        raise TypeError(f"a tensor of {x.dtype}; expected float32")
    return np.asarray(_Memory(x)) if x.size else np.empty(x.shape, "float32")


def empty(shape: Sequence[int]) -> paddle.Tensor:
    """A tensor to write; `paddle.empty` would take the default type, which a user may set."""
    return paddle.empty(shape, "float32")


def wanted(ctx: Any, *gradients: paddle.Tensor | None) -> tuple[paddle.Tensor | None, ...]:
    """The gradients, with None for inputs that want none; Paddle refuses a gradient there."""
    return tuple(one if is_wanted else None for one, is_wanted in zip(gradients, ctx.wanted))
