"""What the pickles of numpy arrays and numbers refer to: stand-ins that check before they make an array."""

from __future__ import annotations

import math
import re
from typing import Any, Callable, Dict, Sequence, Tuple

import numpy as np

from paddlevideo_fast.modeling.pickles import Buildable, PickleError, dict_of

_MAX_AXES = 32  # of NumPy 1
_MAX_ELEMENTS = 2**48
_NUMBERS = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248]|c8|c16)")


def array_of(
    data: bytes, dtype: np.dtype, shape: Sequence[int], strides: Sequence[int] = (), offset: int = 0
) -> np.ndarray:
    """A view of a part of `data`; a copy would let a small file ask for many large arrays of the same bytes.

    Args:
        data: numbers, one after the other.
        dtype: of them.
        shape: of the array; each element of it must be an element of `data` of its own.
        strides: for each axis, in elements; empty: C order.
        offset: of the first element, in elements.

    Raises:
        PickleError: shape, strides or offset reach out of `data`.
    """
    check_layout(shape, strides, offset)
    held, count = len(data) // dtype.itemsize, math.prod(shape)
    strides = tuple(strides) or tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides))
    if len(strides) != len(shape) or count > held or (count and last >= held):
        raise PickleError(f"has a tensor of shape {list(shape)} and data of {held} numbers for it")
    flat = np.frombuffer(data, dtype, held)[offset:]
    steps = [stride * dtype.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(flat, shape, steps) if count else np.zeros(shape, dtype)


def check_layout(shape: Sequence[int], strides: Sequence[int], offset: int) -> None:
    """Checks numbers of a file before anything is computed with them.

    Raises:
        PickleError: no tensor can have them. What they are instead is not shown: the text of a few nested
            lists can be of any length.
    """
    numbers = (*shape[:_MAX_AXES], *strides[:_MAX_AXES], offset)
    if (
        max(len(shape), len(strides)) > _MAX_AXES
        or not all(isinstance(number, int) and 0 <= number < _MAX_ELEMENTS for number in numbers)
        or math.prod(size or 1 for size in shape) >= _MAX_ELEMENTS
    ):
        raise PickleError("has a tensor with a shape, strides or an offset that none can have")


class _Dtype(Buildable):
    def __init__(self, code: Any, *_: Any) -> None:
        if not isinstance(code, str) or not _NUMBERS.fullmatch(code):
            raise PickleError("has an array that is not of numbers")
        self.dtype = np.dtype(code)

    def build(self, state: Any) -> None:
        order = state[1]
        if not isinstance(order, str) or order not in "<>|=" or any(state[2:5]):
            raise PickleError("has an array that is not of plain numbers")
        if order in "<>":
            self.dtype = np.dtype(order + self.dtype.str[1:])

    def value(self) -> np.dtype:
        return self.dtype


class _Encoder:
    """Text to bytes as Latin-1, each text once."""

    def __init__(self) -> None:
        self._encoded: Dict[int, Tuple[str, bytes]] = {}  # by identity; the text stays alive

    def __call__(self, text: Any, encoding: Any = "latin1") -> bytes:
        if not isinstance(text, str) or encoding != "latin1":
            raise PickleError("has an array of objects, not of numbers")
        if id(text) not in self._encoded:
            self._encoded[id(text)] = text, text.encode("latin1")
        return self._encoded[id(text)][1]


class _Array(Buildable):
    def __init__(self, encode: _Encoder) -> None:
        self._encode = encode
        self.array = np.zeros(0)

    def build(self, state: Any) -> None:
        _, shape, dtype, is_fortran, data = state
        if not isinstance(data, bytes):  # text: written by Python 2
            data = self._encode(data)
        if not isinstance(dtype, _Dtype) or not isinstance(shape, tuple):
            raise PickleError("has a damaged array")
        array = array_of(data, dtype.dtype, shape[::-1] if is_fortran else shape)
        self.array = array.T if is_fortran else array

    def value(self) -> np.ndarray:
        return self.array


def tuple_of(items: Any = ()) -> Any:
    """The tuple of a list or tuple; the array, where Paddle writes a tensor as tuple((name, array))."""
    if not isinstance(items, (list, tuple)):
        raise PickleError(f"has a tuple of a {type(items).__name__}")
    if len(items) == 2 and isinstance(items[1], _Array):
        return items[1]
    return tuple(items)


def _ordered_dict(pairs: Any = ()) -> Dict[Any, Any]:
    return dict_of(pairs.items() if isinstance(pairs, dict) else pairs)


def _name_only(*_: Any) -> None:
    raise PickleError("makes an array in a way that no file of weights does")


def array_table() -> Dict[Tuple[str, str], Callable[..., Any]]:
    """A table for one `read_pickle`: arrays, under numpy's names from 1 on, and their containers."""
    encode = _Encoder()

    def array(*_: Any) -> _Array:  # of a made-up shape and type: build() brings the real ones
        return _Array(encode)

    def scalar(dtype: Any, data: Any) -> Any:
        return array_of(data if isinstance(data, bytes) else encode(data), dtype.dtype, ())[()]

    table: Dict[Tuple[str, str], Callable[..., Any]] = {
        ("numpy", "ndarray"): _name_only,
        ("numpy", "dtype"): _Dtype,
        ("_codecs", "encode"): encode,  # protocol 2 writes bytes as (text, "latin1")
        ("collections", "OrderedDict"): _ordered_dict,
    }
    for core in ("core", "_core"):
        table[f"numpy.{core}.multiarray", "_reconstruct"] = array
        table[f"numpy.{core}.multiarray", "scalar"] = scalar
    for module in ("builtins", "__builtin__"):
        table[module, "tuple"] = tuple_of
    return table
