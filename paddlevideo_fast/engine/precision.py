"""Numeric precision of a step: an object whose plain form does nothing."""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal

import numpy as np
import paddle
from paddle import nn
from paddle.autograd import PyLayer

from paddlevideo_fast.engine.protocols import Logits, VideoModel
from paddlevideo_fast.errors import NonFiniteGradientError
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.modeling.contexts import hooked, showing

logger = get_logger(__name__)

Level = Literal["O1", "O2"]
Dtype = Literal["float16", "bfloat16"]

_MATRIX_LAYERS = (nn.Conv2D, nn.Conv3D, nn.Linear)
_NORMS = (
    *(nn.BatchNorm, nn.BatchNorm1D, nn.BatchNorm2D, nn.BatchNorm3D, nn.SyncBatchNorm),
    *(nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm1D, nn.InstanceNorm2D, nn.InstanceNorm3D),
)
_FULL = ("layer_norm", "softmax")  # operators that compute in float32 at both levels


class Precision:
    """Full precision (float32): no casts, no loss scaling.

    Attributes:
        name: for the log and the checkpoint.
        scale: what the loss, and so every gradient, is multiplied by.
        any_rank: whether a flag on the device is set on any rank, so that all ranks skip the same steps.
    """

    name = "float32"
    scale: float | paddle.Tensor = 1.0
    any_rank: Callable[[paddle.Tensor], paddle.Tensor] = staticmethod(lambda flag: flag)

    def forward(self, model: Callable[[paddle.Tensor], Logits], clips: paddle.Tensor) -> Logits:
        """The logits of `model`, or a tuple of logits, as float32: the loss is computed in full precision."""
        return model(clips)

    def operators(self, model: nn.Layer) -> AbstractContextManager[Any]:
        """Context in which the operators of a model, or of a part of it, compute in this precision."""
        return contextlib.nullcontext()

    def backward(self, loss: paddle.Tensor) -> None:
        """Back-propagates a scalar loss."""
        loss.backward()

    def optimizer_step(self, optimizer: paddle.optimizer.Optimizer, model: VideoModel) -> None:
        """Applies the gathered gradients of the model and clears them.

        Where the gradients overflow, the step is skipped: model and optimizer stay as they are.
        """
        optimizer.step()
        optimizer.clear_grad()

    def count_skipped(self) -> int:
        """How many steps were skipped since the last call; waits for the device where there may be any.

        Raises:
            NonFiniteGradientError: no scale of the loss keeps the gradients finite.
        """
        return 0

    def state_dict(self) -> dict[str, Any]:
        """JSON values that a checkpoint must hold: the state of a loss scaler, empty without one."""
        return {}

    def set_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what `state_dict` gave; the state of another precision is ignored."""


class MixedPrecision(Precision):
    """Layers compute in 16 bits, through `paddle.amp`; the model's parameters stay float32.

    While the model runs, its layers see 16-bit copies of their parameters, and gradients flow through the
    copies to the parameters. So the model itself holds the master weights: gradients are summed, unscaled and
    clipped in float32, and optimizer, moving average and checkpoints need no change (docs/adr/0016).

    Norms keep their parameters, statistics and arithmetic in float32 at both levels. Softmax (in attention,
    too) and the loss are computed in float32.

    Args:
        level: "O1": convolutions and linear layers compute in 16 bits, the operators of Paddle's black list
            in float32, all others in the type of their inputs. "O2": all layers but norms and softmax compute
            in 16 bits.
        dtype: "float16" scales the loss by a factor that adapts during training, and skips steps whose
            gradients overflow; see `LossScale`. "bfloat16" has the range of float32 and needs neither.

    References:
        Micikevicius et al., "Mixed Precision Training", arXiv 1710.03740.
        Kalamkar et al., "A Study of BFLOAT16 for Deep Learning Training", arXiv 1905.12322.
    """

    def __init__(self, level: Level = "O1", dtype: Dtype = "float16") -> None:
        self.name = f"{dtype} {level}"
        self.level = level
        self.dtype = dtype
        self._scale = LossScale() if dtype == "float16" else None

    @property
    def scale(self) -> float | paddle.Tensor:  # type: ignore[override]
        return 1.0 if self._scale is None else self._scale.value

    @property
    def low_layers(self) -> tuple[type[nn.Layer], ...]:
        """The classes of layers that compute in 16 bits; norms never do."""
        return _MATRIX_LAYERS if self.level == "O1" else (nn.Layer,)

    def forward(self, model: Callable[[paddle.Tensor], Logits], clips: paddle.Tensor) -> Logits:
        with self.operators(model), showing(self._low_parameters(model)):
            outputs = model(clips)
        if isinstance(outputs, tuple):
            return tuple(logits.astype("float32") for logits in outputs)
        return outputs.astype("float32")

    def _low_parameters(self, model: Any) -> dict[nn.Layer, dict[str, paddle.Tensor]]:
        """What layers that compute in 16 bits see in place of their parameters: 16-bit copies by name."""
        return {
            layer: {name: self.cast(each) for name, each in layer.named_parameters(include_sublayers=False)}
            for layer in model.sublayers(include_self=True)
            if isinstance(layer, self.low_layers) and not isinstance(layer, _NORMS)
        }

    def cast(self, tensor: paddle.Tensor) -> paddle.Tensor:
        """A float32 tensor in 16 bits."""
        return tensor.astype(self.dtype)

    def operators(self, model: nn.Layer) -> AbstractContextManager[Any]:
        """Context in which operators compute in 16 bits; 3D convolutions too, which Paddle's lists lack.

        At level "O2" those lists leave no operator in float32 that transformers need there. An explicit cast
        to float32 before it does not help: Paddle casts the inputs back.
        """
        return paddle.amp.auto_cast(
            level=self.level, dtype=self.dtype, custom_white_list={"conv3d"}, custom_black_list=set(_FULL)
        )

    def backward(self, loss: paddle.Tensor) -> None:
        (loss if self._scale is None else loss * self.scale).backward()

    def optimizer_step(self, optimizer: paddle.optimizer.Optimizer, model: VideoModel) -> None:
        if self._scale is None:
            optimizer.step()
        else:
            self._scale.step(optimizer, model, self.any_rank)
        optimizer.clear_grad()

    def count_skipped(self) -> int:
        return 0 if self._scale is None else self._scale.count_skipped()

    def state_dict(self) -> dict[str, Any]:
        return {} if self._scale is None else self._scale.state_dict()

    def set_state_dict(self, state: dict[str, Any]) -> None:
        if state and self._scale is not None:
            self._scale.set_state_dict(state)


class LossScale:
    """The factor on a float16 loss that keeps small gradients from vanishing, by Paddle's rules.

    The factor halves when gradients overflow, and the step is skipped; it doubles after a number of good
    steps. All of this happens on the device, so that the host does not wait: the optimizer always steps, and
    its step is taken back where gradients overflowed. In two cases the host decides, and waits: where a
    parameter is trained for the first time, as the optimizer has no state of it to go back to; and where an
    optimizer keeps state on the host beside a GPU, as Adam keeps the powers of its betas.

    Attributes:
        value: float32 [1], on the device.
    """

    def __init__(self) -> None:
        self._set(2.0**16, 0, 2000)

    def _set(self, value: float, num_good: int, growth_interval: int) -> None:
        self.value = paddle.full([1], value, "float32")
        self._num_good = paddle.full([1], num_good, "int64")  # since the scale last changed
        self._num_skipped = paddle.zeros([1], "int64")  # since the host last asked
        self._growth_interval = growth_interval
        self._trained: list[str] = []

    @paddle.no_grad()
    def step(
        self,
        optimizer: paddle.optimizer.Optimizer,
        model: VideoModel,
        any_rank: Callable[[paddle.Tensor], paddle.Tensor],
    ) -> None:
        """Unscales the gradients of a model and applies them, where they are finite on all ranks."""
        trained = [each for each in model.parameters() if each.grad is not None]
        factor = 1 / self.value
        for parameter in trained:
            paddle.assign(parameter.grad * factor, parameter.grad)
        flat = paddle.concat([parameter.grad.flatten() for parameter in trained])
        overflow = any_rank(paddle.logical_not(paddle.isfinite(flat).all()).reshape([1]))
        tensors = [
            *trained,
            *(each for each in optimizer.state_dict().values() if isinstance(each, paddle.Tensor)),
        ]
        names = [parameter.name for parameter in trained]
        if names != self._trained or any(str(each.place) != str(flat.place) for each in tensors):
            if not overflow.item():
                optimizer.step()
                self._trained = names
        else:
            before = [each.clone() for each in tensors]
            optimizer.step()
            for each, kept in zip(tensors, before):
                paddle.assign(paddle.where(overflow, kept, each), each)
        self._adapt(overflow)

    def _adapt(self, overflow: paddle.Tensor) -> None:
        num_good = self._num_good + 1
        grows = num_good >= self._growth_interval
        good = paddle.where(grows, self.value * 2, self.value)
        self.value = paddle.where(overflow, (self.value / 2).clip(min=0.5), good)
        self._num_good = paddle.where(
            paddle.logical_or(overflow, grows), paddle.zeros_like(num_good), num_good
        )
        self._num_skipped = self._num_skipped + overflow.astype("int64")

    def count_skipped(self) -> int:
        """See `Precision.count_skipped`."""
        num_skipped = self._num_skipped.item()
        if num_skipped:
            self._num_skipped = paddle.zeros([1], "int64")
            value = self.value.item()
            if value < 1:
                raise NonFiniteGradientError(
                    "the gradients are infinite or NaN in float16 at every loss scale down to 1. Lower the "
                    "learning rate, or train with --amp_dtype bfloat16, then go on with -o resume=auto"
                )
            logger.info(
                "gradients overflowed float16 in %d steps, which are left out; the loss scale is now %.0f",
                num_skipped,
                value,
            )
        return num_skipped

    def state_dict(self) -> dict[str, Any]:
        """JSON values, under the names of Paddle's scaler."""
        return {
            "scale": self.value.tolist(),
            "incr_count": self._num_good.item(),
            "incr_every_n_steps": self._growth_interval,
        }

    def set_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` gave, or Paddle's scaler."""
        self._set(float(state["scale"][0]), int(state["incr_count"]), int(state["incr_every_n_steps"]))


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

    def operators(self, model: nn.Layer) -> AbstractContextManager[Any]:
        """Context in which inputs of matrix layers, and outputs of layers in 16 bits, are rounded."""
        hooks = []
        for layer in model.sublayers(include_self=True):
            if isinstance(layer, _MATRIX_LAYERS):
                hooks.append(layer.register_forward_pre_hook(lambda _, inputs: self._cast_all(inputs)))
            if isinstance(layer, self.low_layers):
                hooks.append(layer.register_forward_post_hook(lambda *values: self._cast_all(values[-1])))
        return hooked(hooks)

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
