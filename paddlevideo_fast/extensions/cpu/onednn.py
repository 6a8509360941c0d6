"""oneDNN, a library in Paddle's folder that Paddle's eager mode leaves alone, through its C interface.

Names and numbers come from this interface and are the same in all versions 3. docs/adr/0042 has the reasons.
"""

import ctypes
import functools
import math
import sys
from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

import paddle

from paddlevideo_fast.extensions.cpu.tensors import empty

_CPU, _FLOAT32, _ANY, _IN_ORDER, _ROOM_IS_GIVEN, _QUERY_ARGUMENT = 1, 3, 1, 1, 1, 255
TRAINING, BACKWARD = 64, 128  # kinds of computations

# What is prepared for given shapes is kept; a process sees a few hundred.
prepared = functools.lru_cache(maxsize=2048)


class Argument(IntEnum):
    """What a computation reads or writes."""

    X, WEIGHT, OUT = 1, 33, 17
    MEAN, VARIANCE, SCALE, SHIFT = 49, 50, 51, 52
    GRADIENT, OF_X, OF_WEIGHT, OF_SCALE, OF_SHIFT = 145, 129, 161, 255, 256
    SCRATCHPAD = 80


@functools.cache
def library() -> Any:
    """oneDNN; None where Paddle comes without it."""
    try:
        found = ctypes.CDLL(str(Path(paddle.__file__).parent / "libs" / "libdnnl.so.3"))
    except OSError:
        return None
    found.dnnl_primitive_desc_query_md.restype = ctypes.c_void_p
    found.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
    return found


def _checked(function: str, *arguments: Any) -> None:
    status = getattr(library(), f"dnnl_{function}")(*arguments)
    if status:
        raise RuntimeError(f"oneDNN: dnnl_{function} failed with status {status}")


class _Object(ctypes.c_void_p):
    """What oneDNN creates; it is destroyed with this."""

    kind = ""

    def __del__(self) -> None:
        if self and not sys.is_finalizing():
            getattr(library(), f"dnnl_{self.kind}_destroy")(self)


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


def integers(numbers: Sequence[int]) -> Any:
    """Numbers as oneDNN takes them."""
    return (ctypes.c_int64 * len(numbers))(*numbers)


def layout(shape: Sequence[int], is_free: bool = False) -> Any:
    """How a tensor of a shape lies in memory: as in Paddle, or as oneDNN likes."""
    common = len(shape), integers(shape), _FLOAT32
    if is_free:
        return _created("memory_desc", *common, _ANY, by="memory_desc_create_with_tag")
    steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return _created("memory_desc", *common, integers(steps), by="memory_desc_create_with_strides")


def room(taken: Any) -> paddle.Tensor:
    """A tensor with the memory that a layout takes."""
    return empty([math.ceil(library().dnnl_memory_desc_get_size(taken) / 4) or 1])


def description(kind: str, *arguments: Any) -> Any:
    """A computation by `dnnl_KIND_primitive_desc_create`."""
    return _description(kind, _engine(), *arguments)


def _description(kind: str, *arguments: Any) -> _Object:
    return _created("primitive_desc", *arguments, _attributes(), by=f"{kind}_primitive_desc_create")


class _Given(ctypes.Structure):
    _fields_ = (("number", ctypes.c_int), ("memory", ctypes.c_void_p))


class Primitive:
    """A description that is ready to compute."""

    def __init__(self, described: Any) -> None:
        self._description = described
        self._primitive = _created("primitive", described)
        self._layouts: dict[int, Any] = {}

    def layout(self, argument: int) -> Any:
        """How an argument lies in memory."""
        if argument not in self._layouts:
            found = library().dnnl_primitive_desc_query_md(self._description, _QUERY_ARGUMENT, argument)
            self._layouts[argument] = ctypes.c_void_p(found)
        return self._layouts[argument]

    def __call__(self, tensors: Mapping[Argument, paddle.Tensor]) -> None:
        """Computes: reads the input tensors and writes the output tensors."""
        given = {**tensors, Argument.SCRATCHPAD: room(self.layout(Argument.SCRATCHPAD))}
        memories = [
            _created("memory", self.layout(number), _engine(), ctypes.c_void_p(tensor.data_ptr()))
            for number, tensor in given.items()
        ]
        array = (_Given * len(given))(*(_Given(*one) for one in zip(given, (m.value for m in memories))))
        stream = _created("stream", _engine(), _IN_ORDER)
        _checked("primitive_execute", self._primitive, stream, len(given), array)
        _checked("stream_wait", stream)


class Copy:
    """From one layout to another; no copy where both are the same."""

    def __init__(self, source: Any, target: Any) -> None:
        self.source, self._target = source, target
        self.is_needed = not library().dnnl_memory_desc_equal(source, target)
        if self.is_needed:
            self._primitive = Primitive(_description("reorder", source, _engine(), target, _engine()))

    def __call__(self, x: paddle.Tensor, out: paddle.Tensor | None = None) -> paddle.Tensor:
        """`x` in the other layout, in `out` or in new memory."""
        if not self.is_needed:
            return x
        out = room(self._target) if out is None else out
        self._primitive({Argument.X: x, Argument.OUT: out})
        return out
