"""Mixed precision where there are no kernels for it: float32 arithmetic on rounded numbers."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, ContextManager, Iterator, Tuple, Type

import numpy as np
import paddle
from paddle import nn
from paddle.autograd import PyLayer

from paddlevideo_fast.engine.precision import MATRIX_LAYERS, Dtype, MixedPrecision


class RoundedPrecision(MixedPrecision):
    """Mixed precision on a CPU: what the format does to a training, without its speed.

    Paddle has no 16-bit convolutions, matrix products, norms or optimizers for a CPU, and `paddle.amp` does
    nothing there. So layers compute in float32 on numbers that were rounded to the format, as 16-bit
    hardware does, which multiplies such numbers and sums in float32. Gradients are rounded where the numbers
    were.

    Level "O1" rounds what goes into convolutions and linear layers, their parameters, and what comes out;
    "O2" also what comes out of every other layer.
    """

    def cast(self, tensor: Any) -> Any:
        return _Rounding.apply(tensor, self.dtype)

    def operators(self, model: Any) -> ContextManager[Any]:
        return _rounded_values(model, self.low_layers, self._cast_all)

    def _cast_all(self, value: Any) -> Any:
        """Casts a layer's input or output: a tensor, or a sequence with tensors in it."""
        if isinstance(value, (list, tuple)):
            return type(value)(self._cast_all(item) for item in value)
        is_float = isinstance(value, paddle.Tensor) and value.dtype == paddle.float32
        return self.cast(value) if is_float else value


def nearest(values: np.ndarray, dtype: Dtype) -> np.ndarray:
    """float32 numbers rounded to the nearest of a 16-bit format, a tie to the even one; float32 of one shape.

    Paddle's own cast to bfloat16 rounds towards zero on a CPU before version 3.
    """
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(np.float32)
    bits = values.view(np.uint32)
    last_kept = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + (np.uint32(0x7FFF) + last_kept)) & np.uint32(0xFFFF0000)
    np.copyto(rounded, bits, where=np.isnan(values))  # a carry out of a NaN would make a number of it
    return rounded.view(np.float32)


class _Rounding(PyLayer):
    """Rounds numbers on the way forward and gradients on the way back."""

    @staticmethod
    def forward(ctx: Any, x: paddle.Tensor, dtype: Dtype) -> paddle.Tensor:
        ctx.dtype = dtype
        return paddle.to_tensor(nearest(x.numpy(), dtype))

    @staticmethod
    def backward(ctx: Any, gradient: paddle.Tensor) -> paddle.Tensor:
        return paddle.to_tensor(nearest(gradient.numpy(), ctx.dtype))


@contextlib.contextmanager
def _rounded_values(
    model: nn.Layer, layers: Tuple[Type[nn.Layer], ...], cast_all: Callable[[Any], Any]
) -> Iterator[None]:
    """While it lasts, inputs of matrix layers and outputs of `layers` go through `cast_all`."""
    hooks = []
    for layer in model.sublayers(include_self=True):
        if isinstance(layer, MATRIX_LAYERS):
            hooks.append(layer.register_forward_pre_hook(lambda _, inputs: cast_all(inputs)))
        if isinstance(layer, layers):
            hooks.append(layer.register_forward_post_hook(lambda _, inputs, output: cast_all(output)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
