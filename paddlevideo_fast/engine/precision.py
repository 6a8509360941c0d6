"""Numeric precision of a step: an object whose plain form does nothing."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Literal

import numpy as np
import paddle
from paddle import nn
from paddle.autograd import PyLayer

from paddlevideo_fast.config.settings import RunSettings
from paddlevideo_fast.device import compute_capability
from paddlevideo_fast.engine.protocols import Logits, VideoModel
from paddlevideo_fast.errors import NonFiniteGradientError, SettingError
from paddlevideo_fast.log import get_logger
from paddlevideo_fast.machine import gpu_number
from paddlevideo_fast.modeling.contexts import hooked, showing
from paddlevideo_fast.modeling.layers.batch_norm import RunningStatistics

logger = get_logger(__name__)

Level = Literal["O1", "O2"]
Dtype = Literal["float16", "bfloat16"]

_MATRIX_LAYERS = (nn.Conv2D, nn.Conv3D, nn.Linear)
_NORMS = (
    *(nn.BatchNorm, nn.BatchNorm1D, nn.BatchNorm2D, nn.BatchNorm3D, nn.SyncBatchNorm),
    *(nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm1D, nn.InstanceNorm2D, nn.InstanceNorm3D),
)
_FULL_PRECISION_OPS = {"layer_norm", "group_norm", "instance_norm", "softmax"}  # at both levels
_NEVER = 2**31 - 1

# of GPUs, in the order of preference; below them `auto_cast` does nothing
FIRST_CAPABILITY: dict[Dtype, int] = {"bfloat16": 80, "float16": 70}


class Precision:
    """Full precision (float32): no casts, no loss scaling.

    Attributes:
        name: for the log and the checkpoint.
        reason: why this one was chosen, for the log.
        scaler: Paddle's `GradScaler`; None where the loss is not scaled.
        scale: what the loss, and so every gradient, is multiplied by.
    """

    name = "float32"
    reason = ""
    scaler: Any = None

    @property
    def scale(self) -> float | paddle.Tensor:
        return 1.0 if self.scaler is None else self.scaler.scale(paddle.ones([1]))

    def forward(self, model: Callable[[paddle.Tensor], Logits], clips: paddle.Tensor) -> Logits:
        """The logits of `model`, or a tuple of logits, as float32: the loss is computed in full precision."""
        with self.operators(model):
            outputs = model(clips)
        if isinstance(outputs, tuple):
            return tuple(_float32(logits) for logits in outputs)
        return _float32(outputs)

    def operators(self, model: Any) -> AbstractContextManager[Any]:
        """Context in which the operators of a model, or of a part of it, compute in this precision."""
        return contextlib.nullcontext()

    def cast_frozen(self, model: nn.Layer) -> None:
        """Casts the parameters of a network that never trains once, so that no step has to."""

    def backward(self, loss: paddle.Tensor) -> None:
        """Back-propagates a scalar loss."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def optimizer_step(self, optimizer: paddle.optimizer.Optimizer, model: VideoModel) -> bool:
        """Applies the gathered gradients of the model and clears them.

        Returns:
            Whether the step was taken. Where float16 overflows it is skipped: model and optimizer stay as
            they are.

        Raises:
            NonFiniteGradientError: no scale of the loss keeps the gradients finite.
        """
        optimizer.step()
        optimizer.clear_grad()
        return True

    def state_dict(self) -> dict[str, Any]:
        """JSON values that a checkpoint must hold: the state of the scaler, empty without one."""
        state = {} if self.scaler is None else self.scaler.state_dict()
        stored = ("scale", "incr_count", "incr_every_n_steps")
        return {name: np.asarray(state[name]).tolist() for name in stored if name in state}

    def set_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what `state_dict` gave; the state of another precision is ignored."""
        if state and self.scaler is not None:
            counts = {name: int(state[name]) for name in ("incr_count", "incr_every_n_steps")}
            scale = [float(state["scale"][0])]
            self.scaler.load_state_dict({**self.scaler.state_dict(), **counts, "scale": scale})


class MixedPrecision(Precision):
    """Layers compute in 16 bits on a GPU, by `paddle.amp.auto_cast`; the parameters stay float32.

    Operators cast the parameters, and gradients flow through the casts. So the model itself holds the master
    weights: gradients are summed, unscaled and clipped in float32, and optimizer, moving average and
    checkpoints need no change. A static graph holds the same casts. See docs/adr/0016.

    Norms keep their parameters, statistics and arithmetic in float32 at both levels. Softmax (in attention,
    too) and the loss are computed in float32.

    float16 needs Paddle's `GradScaler`, which scales the loss by a factor that adapts during training, and
    skips steps whose gradients overflow. It reads one flag a step, for which the host waits. A step whose
    forward pass overflows is skipped as well, and running statistics of batch norms are put back. bfloat16
    has the range of float32, needs none of this, and reads nothing.

    Args:
        level: "O1": convolutions and linear layers compute in 16 bits, the operators of Paddle's black list
            in float32, all others in the widest type of their inputs. "O2": all but norms and softmax compute
            in 16 bits.
        dtype: the 16-bit format.

    References:
        Micikevicius et al., "Mixed Precision Training", arXiv 1710.03740.
        Kalamkar et al., "A Study of BFLOAT16 for Deep Learning Training", arXiv 1905.12322.
    """

    def __init__(self, level: Level = "O1", dtype: Dtype = "float16") -> None:
        self.name = f"{dtype} {level}"
        self.level = level
        self.dtype = dtype
        if dtype == "float16":  # lowered here: Paddle prints then, and fails with NumPy from 2.4 on
            self.scaler = paddle.amp.GradScaler(decr_every_n_nan_or_inf=_NEVER)
        self._statistics: RunningStatistics | None = None  # from before the step

    def forward(self, model: Callable[[paddle.Tensor], Logits], clips: paddle.Tensor) -> Logits:
        if self.scaler is not None and self._statistics is None and paddle.is_grad_enabled():
            self._statistics = RunningStatistics(model)
        return super().forward(model, clips)

    def operators(self, model: Any) -> AbstractContextManager[Any]:
        """Context in which operators compute in 16 bits; 3D convolutions too, which Paddle's lists lack.

        At level O2 those lists leave no operator in float32 that transformers need there. An explicit cast
        to float32 before it does not help: Paddle casts the inputs back. Without `use_promote=False` every
        operator that reads a float32 parameter would compute in float32, and so would all that follow.

        At level O1 a bias, which is added in float32, would do the same to what follows a linear layer.
        """
        stack = contextlib.ExitStack()
        stack.enter_context(
            paddle.amp.auto_cast(
                level=self.level,
                dtype=self.dtype,
                custom_white_list={"conv3d"},
                custom_black_list=_FULL_PRECISION_OPS,
                use_promote=self.level == "O1",
            )
        )
        if self.level == "O1" and gpu_number(paddle.get_device()) is not None:
            layers = (each for each in model.sublayers(include_self=True) if isinstance(each, _MATRIX_LAYERS))
            hooks = [layer.register_forward_post_hook(self._narrowed) for layer in layers]
            stack.enter_context(hooked(hooks))
        return stack

    def _narrowed(self, layer: nn.Layer, inputs: Any, output: paddle.Tensor) -> paddle.Tensor:
        return output.astype(self.dtype) if output.dtype == paddle.float32 else output

    def cast_frozen(self, model: nn.Layer) -> None:
        paddle.amp.decorate(model, level="O2", dtype=self.dtype, excluded_layers=list(_NORMS))

    def optimizer_step(self, optimizer: paddle.optimizer.Optimizer, model: VideoModel) -> bool:
        if self.scaler is None:
            return super().optimizer_step(optimizer, model)
        self.scaler.step(optimizer)
        self.scaler.update()
        optimizer.clear_grad()
        statistics, self._statistics = self._statistics, None
        if not optimizer._get_auxiliary_var("found_inf"):
            return True
        if statistics is not None:
            statistics.put_back()
        self._lower_scale()
        return False

    def _lower_scale(self) -> None:
        scale = float(self.scaler.state_dict()["scale"][0]) / 2
        if scale < 1:
            raise NonFiniteGradientError(
                "the gradients are infinite or NaN in float16 at every loss scale down to 1. Lower the "
                "learning rate, or train with --amp_dtype bfloat16 or without --amp, then go on with "
                "-o resume=auto"
            )
        self.scaler.set_init_loss_scaling(scale)
        logger.info("float16 overflows: this step is left out, and the loss scale is now %.0f", scale)


class RoundedPrecision(Precision):
    """bfloat16 emulated on a CPU: the effect of the format on training, without its speed.

    Paddle has no 16-bit convolutions, matrix products, norms or optimizers for a CPU, and `paddle.amp` does
    nothing there. So layers compute in float32 on numbers rounded to the format. 16-bit hardware does the
    same: it multiplies 16-bit numbers and sums in float32. Gradients are rounded at the same places.

    Args:
        level: "O1" rounds inputs, parameters and outputs of convolutions and linear layers; "O2" also the
            parameters of all other layers but norms, and the outputs of all layers.
    """

    def __init__(self, level: Level = "O1") -> None:
        self.name = f"bfloat16 {level}"
        self._half_layers = _MATRIX_LAYERS if level == "O1" else (nn.Layer,)

    @contextlib.contextmanager
    def operators(self, model: Any) -> Iterator[None]:
        """Context in which parameters, inputs and outputs of layers in 16 bits are rounded."""
        hooks, shown = [], {}
        for layer in model.sublayers(include_self=True):
            if isinstance(layer, _MATRIX_LAYERS):
                hooks.append(layer.register_forward_pre_hook(lambda _, inputs: _rounded(inputs)))
            if isinstance(layer, self._half_layers):
                hooks.append(layer.register_forward_post_hook(lambda *values: _rounded(values[-1])))
                own = layer.named_parameters(include_sublayers=False)
                if not isinstance(layer, _NORMS):
                    shown[layer] = {name: _rounded(parameter) for name, parameter in own}
        with hooked(hooks), showing(shown):
            yield


def has_dtype(dtype: Dtype) -> bool:
    """Whether Paddle computes in a 16-bit format on the GPU in use."""
    return compute_capability() >= FIRST_CAPABILITY[dtype]


def _float32(logits: paddle.Tensor) -> paddle.Tensor:
    is_half = logits.dtype in (paddle.float16, paddle.bfloat16)
    return logits.astype("float32") if is_half else logits


def _rounded(value: Any) -> Any:
    """Rounds a parameter, or a layer's input or output: a tensor, or a sequence with tensors in it."""
    if isinstance(value, (list, tuple)):
        return type(value)(_rounded(item) for item in value)
    is_float = isinstance(value, paddle.Tensor) and value.dtype == paddle.float32
    return _Rounding.apply(value) if is_float else value


def nearest(values: np.ndarray) -> np.ndarray:
    """Rounds float32 numbers to the nearest of bfloat16, ties to even; the result is float32.

    Paddle's own cast to bfloat16 rounds towards zero on a CPU before version 3.
    """
    bits = values.view(np.uint32)
    last_kept = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + (np.uint32(0x7FFF) + last_kept)) & np.uint32(0xFFFF0000)
    np.copyto(rounded, bits, where=np.isnan(values))  # rounding up the bits of a NaN could give a number
    return rounded.view(np.float32)


class _Rounding(PyLayer):
    """Rounds numbers on the way forward and gradients on the way back."""

    @staticmethod
    def forward(ctx: Any, x: paddle.Tensor) -> paddle.Tensor:
        return paddle.to_tensor(nearest(x.numpy()))

    @staticmethod
    def backward(ctx: Any, gradient: paddle.Tensor) -> paddle.Tensor:
        return paddle.to_tensor(nearest(gradient.numpy()))


def make_precision(run: RunSettings) -> Precision:
    """The precision that `amp` and its keys describe, on the device that is there.

    Without `amp_dtype` it is bfloat16 where the device has it, which needs no scaling of the loss.

    Raises:
        SettingError: the device cannot compute in the format.
    """
    if not run.amp:
        return Precision()
    on_cpu = gpu_number(paddle.get_device()) is None
    able: list[Dtype] = ["bfloat16"] if on_cpu else [each for each in FIRST_CAPABILITY if has_dtype(each)]
    dtype = run.amp_dtype or (able or ["float16"])[0]
    if dtype not in able:
        other = f"take --amp_dtype {able[0]}, or " if able else ""
        text = f"this {'CPU' if on_cpu else 'GPU'} cannot train in it; {other}leave --amp out"
        raise SettingError(f"amp_dtype={dtype}", text)
    precision = RoundedPrecision(run.amp_level) if on_cpu else MixedPrecision(run.amp_level, dtype)
    if on_cpu:
        precision.reason = "rounded, as a CPU has no 16-bit kernels: it saves nothing"
    elif run.amp_dtype is None:
        precision.reason = f"this GPU {'has' if dtype == 'bfloat16' else 'lacks'} bfloat16"
    return precision
