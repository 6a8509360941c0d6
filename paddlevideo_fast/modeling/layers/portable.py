"""Operators that a converter leaves out or gets wrong, from ones that every other runtime has.

Paddle's own are faster, so these are taken only in a program that is on its way to ONNX.
"""

from __future__ import annotations

import contextlib
import contextvars
from typing import Callable, Iterator

import paddle
import paddle.nn.functional as F

_PORTABLE = contextvars.ContextVar("portable", default=False)
_LEAKY_SLOPE = 0.01


@contextlib.contextmanager
def portable_operators() -> Iterator[None]:
    """Networks that are traced inside have no operator of Paddle alone."""
    token = _PORTABLE.set(True)
    try:
        yield
    finally:
        _PORTABLE.reset(token)


def is_portable() -> bool:
    """Whether the network that is being traced is to be portable."""
    return _PORTABLE.get()


def activation(name: str) -> Callable[[paddle.Tensor], paddle.Tensor]:
    """The function of `paddle.nn.functional` with this name; the same bits in a portable program."""
    return _leaky_relu if name == "leaky_relu" else getattr(F, name)


def _leaky_relu(x: paddle.Tensor) -> paddle.Tensor:
    if is_portable():  # paddle2onnx 2.1 writes a plain ReLU
        return paddle.maximum(x, _LEAKY_SLOPE * x)
    return F.leaky_relu(x, _LEAKY_SLOPE)
