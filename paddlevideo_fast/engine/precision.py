"""Numeric precision of a step as an object whose plain form does nothing."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, ContextManager, Dict, Iterator, Literal, Tuple, Type

import numpy as np
import paddle
from paddle import nn

from paddlevideo_fast.errors import NonFiniteGradientError
from paddlevideo_fast.log import get_logger

logger = get_logger(__name__)

Level = Literal["O1", "O2"]
Dtype = Literal["float16", "bfloat16"]

_NEVER = 2**31 - 1  # the scaler's own way down prints at each overflow, and fails with NumPy 2.4
MATRIX_LAYERS = (nn.Conv2D, nn.Conv3D, nn.Linear)
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

    def wrap_scaler(self, wrap: Callable[[Any], Any]) -> None:
        """Puts what `wrap` makes of the loss scaler in its place: all ranks must leave the same steps out."""

    def forward(self, model: Any, clips: Any) -> Any:
        """What `model` gives, logits or a tuple of them, float32: the loss is computed in full precision."""
        return model(clips)

    def backward(self, loss: Any) -> None:
        """Back-propagates a scalar loss."""
        loss.backward()

    def optimizer_step(self, optimizer: Any) -> bool:
        """Applies the gathered gradients and clears them.

        Returns:
            Whether the weights were updated; False where the gradients overflowed and the step is left out.
        """
        optimizer.step()
        optimizer.clear_grad()
        return True

    def state_dict(self) -> Dict[str, Any]:
        """JSON values that a checkpoint must hold: the state of a loss scaler, empty without one."""
        return {}

    def set_state_dict(self, state: Dict[str, Any]) -> None:
        """Takes back what `state_dict` gave; what another precision has saved is of no use and left out."""


class MixedPrecision(Precision):
    """Layers compute in 16 bits, through `paddle.amp`; the model's parameters stay float32.

    While the model runs, its layers see 16-bit copies of their parameters, and the gradients go through the
    copies to the parameters themselves. So the model holds the master weights: gradients are summed, unscaled
    and clipped in float32, and optimizer, moving average and checkpoints know nothing of it (docs/adr/0016).

    Batch norms keep their parameters, statistics and arithmetic in float32 at both levels, and the loss is
    computed in float32.

    Args:
        level: "O1": convolutions and linear layers compute in 16 bits, Paddle's list of operators that lose
            too much by it in float32, the others in the type of their inputs. "O2": all layers but norms
            compute in 16 bits.
        dtype: "float16" scales the loss by a factor that is found while training, and leaves steps out whose
            gradients overflow. "bfloat16" has the range of float32 and needs neither.

    References:
        Micikevicius et al., "Mixed Precision Training", arXiv 1710.03740.
        Kalamkar et al., "A Study of BFLOAT16 for Deep Learning Training", arXiv 1905.12322.
    """

    def __init__(self, level: Level = "O1", dtype: Dtype = "float16") -> None:
        self.name = f"{dtype} {level}"
        self.level = level
        self.dtype = dtype
        self._scaler = paddle.amp.GradScaler(enable=dtype == "float16", decr_every_n_nan_or_inf=_NEVER)

    @property
    def low_layers(self) -> Tuple[Type[nn.Layer], ...]:
        """The layers that compute in 16 bits; norms are never meant."""
        return MATRIX_LAYERS if self.level == "O1" else (nn.Layer,)

    def wrap_scaler(self, wrap: Callable[[Any], Any]) -> None:
        self._scaler = wrap(self._scaler)

    def forward(self, model: Any, clips: Any) -> Any:
        with self.operators(model), _low_parameters(model, self.low_layers, self.cast):
            outputs = model(clips)
        if isinstance(outputs, tuple):
            return tuple(logits.astype("float32") for logits in outputs)
        return outputs.astype("float32")

    def cast(self, tensor: Any) -> Any:
        """A float32 tensor in 16 bits."""
        return tensor.astype(self.dtype)

    def operators(self, model: Any) -> ContextManager[Any]:
        """While it lasts, operators compute in 16 bits, 3D convolutions too: Paddle's lists lack them."""
        return paddle.amp.auto_cast(level=self.level, dtype=self.dtype, custom_white_list={"conv3d"})

    def backward(self, loss: Any) -> None:
        self._scaler.scale(loss).backward()

    def optimizer_step(self, optimizer: Any) -> bool:
        self._scaler.step(optimizer)  # unscales the gradients before the optimizer clips them
        self._scaler.update()
        optimizer.clear_grad()
        # a plain number, which the update has set: reading the tensor would wait for the device once more
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


@contextlib.contextmanager
def _low_parameters(
    model: nn.Layer, layers: Tuple[Type[nn.Layer], ...], cast: Callable[[Any], Any]
) -> Iterator[None]:
    """While it lasts, the layers of these classes find `cast(parameter)` under their parameters' names."""
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
