"""Convolutions by oneDNN, a library in Paddle's folder that Paddle's eager mode leaves alone.

Paddle copies the numbers under each position of a kernel and multiplies matrices. oneDNN computes on layouts
of its own, in which channels lie together in blocks: what it reads and writes is copied, and the copies take
less time than Paddle's. Results and gradients agree with Paddle's to rounding. docs/adr/0042 has the reasons
and the measurements. Names and numbers are those of oneDNN's C interface, the same in all versions 3.
"""

import ctypes
import functools
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import paddle
from paddle.autograd import PyLayer

from paddlevideo_fast.extensions.cpu.operators import empty, is_on_cpu, wanted

_CPU, _FLOAT32, _ANY, _IN_ORDER, _ROOM_IS_GIVEN = 1, 3, 1, 1, 1
_TRAINING, _DIRECT = 64, 1
_FROM, _TO, _SCRATCHPAD, _QUERY_SCRATCHPAD = 1, 17, 80, 136

# For each computation its two inputs and its output: number of the argument, query of its layout, and whether
# its shape is that of the input (0), the kernels (1) or the output (2).
_ARGUMENTS = {
    "forward": ((1, 129, 0), (33, 131, 1), (17, 133, 2)),
    "backward_data": ((145, 134, 2), (33, 131, 1), (129, 130, 0)),
    "backward_weights": ((1, 129, 0), (145, 134, 2), (161, 132, 1)),
}


def pays(layer: Any, x: paddle.Tensor) -> bool:
    """Whether `convolve` computes a layer of Paddle for `x`, and takes less time than Paddle.

    Kernels of one pixel stay Paddle's, which copies nothing for them. The size of the batch does not count: a
    clip has the same result in each batch.
    """
    return (
        is_on_cpu(x)
        and max(layer._kernel_size[-2:]) > 1
        and layer._groups == max(layer._dilation) == 1
        and layer._padding_mode == "zeros"
        and not isinstance(layer._padding, str)
        and len(layer._updated_padding) == x.ndim - 2
        and layer._data_format[1] == "C"
        and x.shape[1] == layer._in_channels
        and min(_shape_of_output(x.shape, layer.weight.shape, layer._stride, layer._updated_padding)) > 0
        and _library() is not None
    )


def convolve(
    x: paddle.Tensor, weight: paddle.Tensor, stride: Sequence[int], padding: Sequence[int]
) -> paddle.Tensor:
    """The convolution of [N, C, (T,) H, W] with kernels [O, C, (t,) h, w]."""
    return _Convolve.apply(x, weight, tuple(stride), tuple(padding))


class _Convolve(PyLayer):
    @staticmethod
    def forward(
        ctx: Any, x: paddle.Tensor, weight: paddle.Tensor, stride: tuple[int, ...], padding: tuple[int, ...]
    ) -> paddle.Tensor:
        ctx.wanted = [not one.stop_gradient for one in (x, weight)]
        x, weight = x.contiguous(), weight.contiguous()
        ctx.save_for_backward(x, weight)
        ctx.form = tuple(x.shape), tuple(weight.shape), stride, padding
        return _computation("forward", *ctx.form)(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: paddle.Tensor) -> tuple[paddle.Tensor | None, ...]:
        x, weight = ctx.saved_tensor()
        gradient = gradient.contiguous()
        of_x = of_weight = None
        if ctx.wanted[0]:
            of_x = _computation("backward_data", *ctx.form)(gradient, weight)
        if ctx.wanted[1]:
            of_weight = _computation("backward_weights", *ctx.form)(x, gradient)
        return wanted(ctx, of_x, of_weight)


def _shape_of_output(
    x: Sequence[int], weight: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> list[int]:
    sizes = zip(x[2:], weight[2:], stride, padding)
    return [x[0], weight[0], *((size + 2 * p - kernel) // s + 1 for size, kernel, s, p in sizes)]


# --- oneDNN's C interface


@functools.cache
def _library() -> Any:
    """oneDNN; None where Paddle comes without it."""
    try:
        library = ctypes.CDLL(str(Path(paddle.__file__).parent / "libs" / "libdnnl.so.3"))
    except OSError:
        return None
    library.dnnl_primitive_desc_query_md.restype = ctypes.c_void_p
    library.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
    return library


def _checked(function: str, *arguments: Any) -> None:
    status = getattr(_library(), f"dnnl_{function}")(*arguments)
    if status:
        raise RuntimeError(f"oneDNN: dnnl_{function} failed with status {status}")


class _Object(ctypes.c_void_p):
    """What oneDNN creates; it is destroyed with this."""

    kind = ""

    def __del__(self) -> None:
        if self and not sys.is_finalizing():
            getattr(_library(), f"dnnl_{self.kind}_destroy")(self)


def _created(kind: str, *arguments: Any, by: str = "") -> _Object:
    """By `dnnl_KIND_create`, or by `dnnl_BY`."""
    new = _Object()
    new.kind = kind
    _checked(by or f"{kind}_create", ctypes.byref(new), *arguments)
    return new


@functools.cache
def _engine() -> _Object:
    return _created("engine", _CPU, ctypes.c_size_t(0))


@functools.cache
def _attributes() -> _Object:
    """Room to compute in comes with the arguments: oneDNN's own belongs to one thread."""
    attributes = _created("primitive_attr")
    _checked("primitive_attr_set_scratchpad_mode", attributes, _ROOM_IS_GIVEN)
    return attributes


def _integers(numbers: Sequence[int]) -> Any:
    return (ctypes.c_int64 * len(numbers))(*numbers)


def _layout(shape: Sequence[int], is_free: bool) -> _Object:
    """How a tensor of a shape lies in memory: as in Paddle, or as oneDNN likes."""
    common = len(shape), _integers(shape), _FLOAT32
    if is_free:
        return _created("memory_desc", *common, _ANY, by="memory_desc_create_with_tag")
    steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return _created("memory_desc", *common, _integers(steps), by="memory_desc_create_with_strides")


def _room(layout: Any) -> paddle.Tensor:
    """A tensor with the memory that a layout takes."""
    return empty([math.ceil(_library().dnnl_memory_desc_get_size(layout) / 4) or 1])


def _description(kind: str, *arguments: Any) -> _Object:
    return _created("primitive_desc", *arguments, _attributes(), by=f"{kind}_primitive_desc_create")


class _Argument(ctypes.Structure):
    _fields_ = (("number", ctypes.c_int), ("memory", ctypes.c_void_p))


class _Primitive:
    """A description that is ready to compute."""

    def __init__(self, description: _Object) -> None:
        self._description = description
        self._primitive = _created("primitive", description)
        self._scratchpad = self.layout(_QUERY_SCRATCHPAD)

    def layout(self, query: int) -> Any:
        """How an argument lies in memory."""
        return ctypes.c_void_p(_library().dnnl_primitive_desc_query_md(self._description, query, 0))

    def __call__(self, *arguments: tuple[int, Any, paddle.Tensor]) -> None:
        """Computes with arguments: their number, layout and tensor."""
        everything = [*arguments, (_SCRATCHPAD, self._scratchpad, _room(self._scratchpad))]
        memories = [
            _created("memory", layout, _engine(), ctypes.c_void_p(tensor.data_ptr()))
            for _, layout, tensor in everything
        ]
        given = [_Argument(number, one.value) for (number, *_), one in zip(everything, memories)]
        stream = _created("stream", _engine(), _IN_ORDER)
        array = (_Argument * len(given))(*given)
        _checked("primitive_execute", self._primitive, stream, len(given), array)
        _checked("stream_wait", stream)


class _Copy:
    """From one layout to another; no copy where both are the same."""

    def __init__(self, source: Any, target: Any) -> None:
        self.source, self.target = source, target
        self.is_needed = not _library().dnnl_memory_desc_equal(source, target)
        if self.is_needed:
            self._primitive = _Primitive(_description("reorder", source, _engine(), target, _engine()))

    def __call__(self, x: paddle.Tensor, out: paddle.Tensor | None = None) -> paddle.Tensor:
        if not self.is_needed:
            return x
        out = _room(self.target) if out is None else out
        self._primitive((_FROM, self.source, x), (_TO, self.target, out))
        return out


class _Computation:
    """One of `_ARGUMENTS`, for given shapes."""

    def __init__(
        self,
        kind: str,
        x: Sequence[int],
        weight: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
    ) -> None:
        shapes = [x, weight, _shape_of_output(x, weight, stride, padding)]
        of_x, of_weight, of_output = (_layout(shape, is_free=True) for shape in shapes)
        dilation = [0] * len(stride)  # zeros between the numbers of a kernel
        geometry = [_integers(numbers) for numbers in (stride, dilation, padding, padding)]
        with_bias = of_x, of_weight, None, of_output
        description = _description(
            "convolution_forward", _engine(), _TRAINING, _DIRECT, *with_bias, *geometry
        )
        if kind != "forward":
            tensors = with_bias if kind == "backward_weights" else (of_x, of_weight, of_output)
            description = _description(
                f"convolution_{kind}", _engine(), _DIRECT, *tensors, *geometry, description
            )
        self._primitive = _Primitive(description)
        *inputs, (self._number, query, which) = _ARGUMENTS[kind]
        self._inputs = [
            (number, _Copy(_layout(shapes[place], is_free=False), self._primitive.layout(query)))
            for number, query, place in inputs
        ]
        self._shape = shapes[which]
        self._output = _Copy(self._primitive.layout(query), _layout(self._shape, is_free=False))

    def __call__(self, *tensors: paddle.Tensor) -> paddle.Tensor:
        given = [(number, copy.target, copy(x)) for (number, copy), x in zip(self._inputs, tensors)]
        out = empty(self._shape)
        computed = _room(self._output.source) if self._output.is_needed else out
        self._primitive(*given, (self._number, self._output.source, computed))
        return self._output(computed, out)


@functools.lru_cache(maxsize=1024)
def _computation(kind: str, *form: Any) -> _Computation:
    return _Computation(kind, *form)
