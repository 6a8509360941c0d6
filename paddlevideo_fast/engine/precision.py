"""Numeric precision of a step: an object whose plain form does nothing."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, ContextManager, Dict, Iterator, Literal, Tuple, Type

import numpy as np
import paddle
from paddle import nn
from paddle.amp import GradScaler
from paddle.autograd import PyLayer

from paddlevideo_fast.engine.protocols import Logits
from paddlevideo_fast.errors import NonFiniteGradientError
from paddlevideo_fast.log import get_logger

logger = get_logger(__name__)

Level = Literal["O1", "O2"]
Dtype = Literal["float16", "bfloat16"]

_NEVER = 2**31 - 1  # the scaler's own decrease prints at each overflow, and fails with NumPy 2.4
_MATRIX_LAYERS = (nn.Conv2D, nn.Conv3D, nn.Linear)
_NORMS = (
    *(nn.BatchNorm, nn.BatchNorm1D, nn.BatchNorm2D, nn.BatchNorm3D, nn.SyncBatchNorm),
    *(nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm1D, nn.InstanceNorm2D, nn.InstanceNorm3D),
)


class Precision:
    """Full precision (float32): no casts, no loss scaling.

    Attributes:
        name: for the log and the checkpoint.
    """

    name = "float32"

    def wrap_scaler(self, wrap: Callable[[GradScaler], GradScaler]) -> None:
        """Replaces the loss scaler by `wrap(scaler)`, so that all ranks skip the same steps."""

    def forward(self, model: Callable[[paddle.Tensor], Logits], clips: paddle.Tensor) -> Logits:
        """The logits of `model`, or a tuple of logits, as float32: the loss is computed in full precision."""
        return model(clips)

    def backward(self, loss: paddle.Tensor) -> None:
        """Back-propagates a scalar loss."""
        loss.backward()

    def optimizer_step(self, optimizer: paddle.optimizer.Optimizer) -> bool:
        """Applies the gathered gradients and clears them.

        Returns:
            Whether the weights were updated; False where the gradients overflowed and the step is skipped.
        """
        optimizer.step()
        optimizer.clear_grad()
        return True

    def state_dict(self) -> Dict[str, Any]:
        """JSON values that a checkpoint must hold: the state of a loss scaler, empty without one."""
        return {}

    def set_state_dict(self, state: Dict[str, Any]) -> None:
        """Restores what `state_dict` gave; the state of another precision is ignored."""


class MixedPrecision(Precision):
    """Layers compute in 16 bits, through `paddle.amp`; the model's parameters stay float32.

    While the model runs, its layers see 16-bit copies of their parameters, and gradients flow through the
    copies to the parameters. So the model itself holds the master weights: gradients are summed, unscaled and
    clipped in float32, and optimizer, moving average and checkpoints need no change (docs/adr/0016).

    Batch norms keep their parameters, statistics and arithmetic in float32 at both levels, and the loss is
    computed in float32.

    Args:
        level: "O1": convolutions and linear layers compute in 16 bits, the operators of Paddle's black list
            in float32, all others in the type of their inputs. "O2": all layers but norms compute in 16 bits.
        dtype: "float16" scales the loss by a factor that adapts during training, and skips steps whose
            gradients overflow. "bfloat16" has the range of float32 and needs neither.

    References:
        Micikevicius et al., "Mixed Precision Training", arXiv 1710.03740.
        Kalamkar et al., "A Study of BFLOAT16 for Deep Learning Training", arXiv 1905.12322.
    """

    def __init__(self, level: Level = "O1", dtype: Dtype = "float16") -> None:
        self.name = f"{dtype} {level}"
        self.level = level
        self.dtype = dtype
        self._scaler = GradScaler(enable=dtype == "float16", decr_every_n_nan_or_inf=_NEVER)

    @property
    def low_layers(self) -> Tuple[Type[nn.Layer], ...]:
        """The classes of layers that compute in 16 bits; norms never do."""
        return _MATRIX_LAYERS if self.level == "O1" else (nn.Layer,)

    def wrap_scaler(self, wrap: Callable[[GradScaler], GradScaler]) -> None:
        self._scaler = wrap(self._scaler)

    def forward(self, model: Callable[[paddle.Tensor], Logits], clips: paddle.Tensor) -> Logits:
        with self.operators(model), _low_parameters(model, self.low_layers, self.cast):
            outputs = model(clips)
        if isinstance(outputs, tuple):
            return tuple(logits.astype("float32") for logits in outputs)
        return outputs.astype("float32")

    def cast(self, tensor: paddle.Tensor) -> paddle.Tensor:
        """A float32 tensor in 16 bits."""
        return tensor.astype(self.dtype)

    def operators(self, model: nn.Layer) -> ContextManager[Any]:
        """Context in which operators compute in 16 bits; 3D convolutions too, which Paddle's lists lack."""
        return paddle.amp.auto_cast(level=self.level, dtype=self.dtype, custom_white_list={"conv3d"})

    def backward(self, loss: paddle.Tensor) -> None:
        self._scaler.scale(loss).backward()

    def optimizer_step(self, optimizer: paddle.optimizer.Optimizer) -> bool:
        self._scaler.step(optimizer)  # unscales the gradients before the optimizer clips them
        self._scaler.update()
        optimizer.clear_grad()
        # a plain number that `update` has set; reading the tensor would wait for the device once more
        overflow = getattr(self._scaler, "_decr_count", 0) > 0
        if overflow:
            self._halve_scale()
        return not overflow

    def _halve_scale(self) -> None:
        scale = self._scaler.state_dict()["scale"].item() / 2
        self._scaler.set_init_loss_scaling(scale)
        if scale < 1:
            raise NonFiniteGradientError(
                f"the gradients are infinite or NaN in {self.dtype} at every loss scale down to 1. Lower the "
                "learning rate, or train with --amp_dtype bfloat16, then go on with -o resume=auto"
            )
        logger.info(
            "the gradients overflow %s: the step is left out, the loss scale is now %.0f", self.dtype, scale
        )

    def state_dict(self) -> Dict[str, Any]:
        state = self._scaler.state_dict()
        return {
            key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in state.items()
        }

    def set_state_dict(self, state: Dict[str, Any]) -> None:
        if state:
            self._scaler.load_state_dict(state)


class RoundedPrecision(MixedPrecision):
    """Mixed precision emulated on a CPU: the effect of the format on training, without its speed.

    Paddle has no 16-bit convolutions, matrix products, norms or optimizers for a CPU, and `paddle.amp` does
    nothing there. So layers compute in float32 on numbers rounded to the format. 16-bit hardware does the
    same: it multiplies 16-bit numbers and sums in float32. Gradients are rounded at the same places.

    Level "O1" rounds inputs, parameters and outputs of convolutions and linear layers; "O2" also the outputs
    of every other layer.
    """

    def cast(self, tensor: paddle.Tensor) -> paddle.Tensor:
        return _Rounding.apply(tensor, self.dtype)

    def operators(self, model: nn.Layer) -> ContextManager[Any]:
        return _rounded_values(model, self.low_layers, self._cast_all)

    def _cast_all(self, value: Any) -> Any:
        """Casts a layer's input or output: a tensor, or a sequence with tensors in it."""
        if isinstance(value, (list, tuple)):
            return type(value)(self._cast_all(item) for item in value)
        is_float = isinstance(value, paddle.Tensor) and value.dtype == paddle.float32
        return self.cast(value) if is_float else value


def nearest(values: np.ndarray, dtype: Dtype) -> np.ndarray:
    """Rounds float32 numbers to the nearest number of a 16-bit format, ties to even; the result is float32.

    Paddle's own cast to bfloat16 rounds towards zero on a CPU before version 3.
    """
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(np.float32)
    bits = values.view(np.uint32)
    last_kept = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + (np.uint32(0x7FFF) + last_kept)) & np.uint32(0xFFFF0000)
    np.copyto(rounded, bits, where=np.isnan(values))  # rounding up the bits of a NaN could give a number
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
def _low_parameters(
    model: nn.Layer, layers: Tuple[Type[nn.Layer], ...], cast: Callable[[paddle.Tensor], paddle.Tensor]
) -> Iterator[None]:
    """Context in which layers of these classes see `cast(parameter)` in place of each of their parameters."""
    shadowed = [
        (layer, name, parameter)
        for layer in model.sublayers(include_self=True)
        if isinstance(layer, layers) and not isinstance(layer, _NORMS)
        for name, parameter in layer.named_parameters(include_sublayers=False)
    ]
    try:
        for layer, name, parameter in shadowed:
            vars(layer)[name] = cast(parameter)  # found before the parameter, which stays registered
        yield
    finally:
        for layer, name, _ in shadowed:
            vars(layer).pop(name, None)


@contextlib.contextmanager
def _rounded_values(
    model: nn.Layer, layers: Tuple[Type[nn.Layer], ...], cast_all: Callable[[Any], Any]
) -> Iterator[None]:
    """Context in which inputs of matrix layers and outputs of `layers` go through `cast_all`."""
    hooks = []
    for layer in model.sublayers(include_self=True):
        if isinstance(layer, _MATRIX_LAYERS):
            hooks.append(layer.register_forward_pre_hook(lambda _, inputs: cast_all(inputs)))
        if isinstance(layer, layers):
            hooks.append(layer.register_forward_post_hook(lambda _, inputs, output: cast_all(output)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
