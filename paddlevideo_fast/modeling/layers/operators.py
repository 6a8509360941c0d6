"""The temporal shift, and operators for programs: those that ONNX has too, and those that oneDNN runs.

Reference: Lin, Gan, Han, "TSM: Temporal Shift Module for Efficient Video Understanding", arXiv 1811.08383,
section 3.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Literal

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle.autograd import PyLayer

from paddlevideo_fast.modeling.layers import cpu

_RUNTIME = contextvars.ContextVar("runtime of the program that is traced", default="")
_LEAKY_SLOPE = 0.01


@contextlib.contextmanager
def operators_for(runtime: Literal["onnx", "inference"]) -> Iterator[None]:
    """Networks that are traced inside the block use only operators that this runtime has, too.

    "onnx": those that ONNX has. Paddle's own are faster, so only programs on their way to ONNX do without.

    "inference": those that Paddle Inference runs on oneDNN. Where a leaky ReLU follows a convolution,
    oneDNN's passes of Paddle 3 fuse the two and crash (`conv_activation_onednn_fuse_pass`). A scale by 1
    between them keeps them apart; it costs about 2 % of the network's time there.
    """
    token = _RUNTIME.set(runtime)
    try:
        yield
    finally:
        _RUNTIME.reset(token)


def is_traced() -> bool:
    """Whether a program is traced: its network is in evaluation, and its weights stay as they are."""
    return bool(_RUNTIME.get())


def constant(tensor_of: Callable[..., paddle.Tensor], *arguments: Hashable) -> paddle.Tensor:
    """The tensor that a pure function computes of some arguments, on the current device.

    It is computed once and kept for later calls. A traced program computes it each time, from the arrays that
    the function gives to Paddle. The file of the program holds each number of an array in tens of bytes, so
    the arrays must be small.
    """
    if not paddle.in_dynamic_mode():
        return tensor_of(*arguments)
    return _cached(tensor_of, arguments, paddle.get_device())


@functools.lru_cache(maxsize=64)
def _cached(
    tensor_of: Callable[..., paddle.Tensor], arguments: tuple[Hashable, ...], device: str
) -> paddle.Tensor:
    return tensor_of(*arguments)


def activation(name: str) -> Callable[[paddle.Tensor], paddle.Tensor]:
    """The function of `paddle.nn.functional` with this name."""
    return _leaky_relu if name == "leaky_relu" else getattr(F, name)


def _leaky_relu(x: paddle.Tensor) -> paddle.Tensor:
    if _RUNTIME.get() == "inference":
        x = paddle.scale(x)
    return F.leaky_relu(x, _LEAKY_SLOPE)


def frames_of(clips: paddle.Tensor) -> paddle.Tensor:
    """Clips [N, T, ...] to frames [N*T, ...].

    A portable program for one size has numbers for it: onnxruntime's int8 has the channels last, which is
    fast, where it knows the shapes of tensors.
    """
    size = clips.shape[2:]
    if _RUNTIME.get() == "onnx" and all(isinstance(length, int) and length > 0 for length in size):
        return clips.reshape([-1, *size])
    return clips.flatten(0, 1)


def of_each(parts: paddle.Tensor, numbers: paddle.Tensor) -> paddle.Tensor:
    """Of each clip some of its parts: [N, L, ...] and their numbers, int64 [N, K], to [N, K, ...]."""
    num_clips, length = parts.shape[:2]
    first = paddle.arange(num_clips, dtype="int64").unsqueeze(1) * length
    chosen = paddle.gather(parts.flatten(0, 1), (numbers + first).flatten())
    return chosen.reshape([num_clips, numbers.shape[1], *parts.shape[2:]])


def temporal_shift(
    frames: paddle.Tensor, num_seg: int, shift_ratio: float = 0.125, data_format: str = "NCHW"
) -> paddle.Tensor:
    """Moves two folds of channels along time, in one operator.

    On a GPU, and in an exported program, this is Paddle's fused operator. Its CPU kernel goes element by
    element and has no 16-bit types, so on a CPU five block copies give the same bits several times faster
    (`tools/benchmark.py shift`, docs/adr/0009). A portable program chooses channels instead.

    With C channels and fold = int(C * shift_ratio), frame t of the output takes

        channels [0, fold)          from frame t-1 (zeros at the first frame)
        channels [fold, 2*fold)     from frame t+1 (zeros at the last frame)
        the others                  from frame t

    MIT's and MMAction2's networks have the first two lines the other way round; their converters in
    `modeling.backbones.resnet` exchange the folds in the weights.

    Args:
        frames: [N*T, C, H, W], or [N*T, H, W, C] where `data_format` is "NHWC"; the frames of a clip follow
            each other.
        num_seg: T.
        shift_ratio: share of the channels in each of the two folds.
        data_format: "NCHW" or "NHWC".

    Returns:
        A tensor of the same shape and dtype.
    """
    channels = frames.shape[1 if data_format == "NCHW" else -1]
    folds = int(channels * shift_ratio), int(channels * 2 * shift_ratio)
    if _RUNTIME.get() == "onnx" and data_format == "NCHW":
        return _chosen_channels(frames, num_seg, folds)
    if paddle.in_dynamic_mode() and frames.place.is_cpu_place():
        return _BlockCopies.apply(frames, num_seg, folds, 2 if data_format == "NCHW" else -1)
    return F.temporal_shift(frames, num_seg, shift_ratio, data_format=data_format)


def _chosen_channels(frames: paddle.Tensor, num_seg: int, folds: tuple[int, int]) -> paddle.Tensor:
    """The shift of [N*T, C, H, W]: each channel is one of the clip's T*C channels, or a channel of zeros."""
    channels = frames.shape[1]
    clips = frames.reshape([-1, num_seg * channels, 0, 0])  # 0 keeps an axis; its size may not be known
    with_zeros = paddle.concat([paddle.zeros_like(clips[:, :1]), clips], axis=1)
    numbers = np.arange(1, num_seg * channels + 1, dtype="int32").reshape((1, num_seg, channels))
    moved = np.empty_like(numbers)
    _move(numbers, moved, 1, folds, 2)
    chosen = paddle.to_tensor(moved.ravel())
    return paddle.index_select(with_zeros, chosen, axis=1).reshape([-1, channels, 0, 0])


class _BlockCopies(PyLayer):
    """The shift on a CPU. Its gradient is the shift with both directions reversed."""

    @staticmethod
    def forward(
        ctx: Any, frames: paddle.Tensor, num_seg: int, folds: tuple[int, int], channel_axis: int
    ) -> paddle.Tensor:
        ctx.arguments = num_seg, folds, channel_axis
        return _copied(frames, 1, *ctx.arguments)

    @staticmethod
    def backward(ctx: Any, gradient: paddle.Tensor) -> paddle.Tensor:
        return _copied(gradient, -1, *ctx.arguments)


def _copied(
    frames: paddle.Tensor, direction: int, num_seg: int, folds: tuple[int, int], channel_axis: int
) -> paddle.Tensor:
    def move(old: np.ndarray, new: np.ndarray) -> None:
        clips, moved = (array.reshape((-1, num_seg, *frames.shape[1:])) for array in (old, new))
        _move(clips, moved, direction, folds, channel_axis)

    return cpu.computed(frames, move)


def _move(
    clips: np.ndarray, target: np.ndarray, direction: int, folds: tuple[int, int], channel_axis: int
) -> None:
    """Moves the first fold of [N, T, ...] by `direction` frames and the second by as many the other way."""
    # views with time on axis 0 and channels on axis 1: the copies below read the same for both layouts
    old, new = (np.moveaxis(array, (1, channel_axis), (0, 1)) for array in (clips, target))
    first, second = slice(0, folds[0]), slice(folds[0], folds[1])
    later, earlier = (first, second) if direction > 0 else (second, first)
    new[1:, later], new[0, later] = old[:-1, later], 0
    new[:-1, earlier], new[-1, earlier] = old[1:, earlier], 0
    new[:, folds[1] :] = old[:, folds[1] :]
