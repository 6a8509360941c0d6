"""Reads pickles of arrays without running anything that is in them.

A pickle is a program for a small stack machine. Here that is Python's own, in Python (`pickle._Unpickler`),
with only the instructions that weight files need. A global is looked up in a table of the caller, nothing is
ever imported, and nothing is called but the functions of that table. Time and memory grow with the size of
the file: reads stop at its end, and the number of instructions is limited.
"""

import functools
import io
import math
import mmap
import pickle
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

_MAX_INSTRUCTIONS = 1_000_000  # an optimizer's state of 500 tensors has 20,000
_MAX_DEPTH = 100
_MAX_ARGUMENTS = 16
_MAX_BITS = 256  # a generator's state in a checkpoint has 128

Stream = io.BytesIO | mmap.mmap
Table = Mapping[tuple[str, str], Callable[..., Any]]

_ALLOWED = (
    *("PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "NONE", "NEWTRUE", "NEWFALSE"),
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "LIST", "APPEND", "APPENDS"),
    *("EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "GET", "BINGET", "LONG_BINGET"),
    *("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "BINPERSID"),
)
# where an instruction that makes items of a dict finds their keys on the stack
_KEYS = {b"s": slice(-2, -1), b"u": slice(None, None, 2), b"d": slice(None, None, 2)}


class PickleError(ValueError):
    """A pickle that is damaged, or asks for something that no weight file needs."""


class Buildable:
    """A value of a pickle that may get its content after it was made."""

    def build(self, state: Any) -> None:
        """Takes the content; raises ValueError or TypeError where it has another form than expected.

        This one refuses any content, for values that are complete when they are made.
        """
        raise PickleError("sets attributes of a value that has none")

    def value(self) -> Any:
        """The value that takes this object's place in the result."""
        raise NotImplementedError


def read_pickle(stream: Stream, table: Table, load_persistent: Callable[[Any], Any] | None = None) -> Any:
    """Reads one pickle and leaves the stream behind its end.

    Args:
        stream: a stream of known length, whose `read` takes no more memory than the rest of the file needs.
        table: (module, name) of a global to the function that is called instead. The function must check its
            arguments.
        load_persistent: gives the object of a persistent id; None: the pickle may have no persistent id.

    Returns:
        None, numbers, text, bytes, tuples, lists, dicts, and what the functions of `table` return.

    Raises:
        PickleError: the pickle is damaged, or asks for something that no weight file needs.
    """
    try:
        return _Unpickler(stream, table, load_persistent).load()
    except PickleError:
        raise
    except (
        *(pickle.UnpicklingError, EOFError, struct.error),
        *(ArithmeticError, AttributeError, LookupError, TypeError, ValueError),
    ) as exc:
        raise PickleError(f"cannot be read as a pickle: {exc or type(exc).__name__}") from exc


_PythonUnpickler: Any = vars(pickle)["_Unpickler"]  # type stubs lack it


class _Unpickler(_PythonUnpickler):
    def __init__(self, stream: Stream, table: Table, load_persistent: Callable[[Any], Any] | None) -> None:
        super().__init__(stream, encoding="latin1")
        self._table = table
        if load_persistent is not None:
            self.persistent_load = load_persistent
        self.num_instructions = 0
        self._num_items = 0

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        if (module, name) not in self._table:
            raise PickleError(f"refers to '{module}.{name}', which no file of weights needs")
        return self._table[module, name]

    def load_reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(arguments, tuple) or len(arguments) > _MAX_ARGUMENTS:
            raise PickleError("calls a function with something that are no arguments, or with too many")
        # a call costs an instruction, whatever the size of the containers that it goes through
        self._num_items += sum(len(value) for value in arguments if isinstance(value, (dict, list, tuple)))
        if self._num_items > _MAX_INSTRUCTIONS:
            raise PickleError("copies a container over and over")
        self.append(function(*arguments))

    def load_build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, Buildable):
            target.build(state)
        elif not isinstance(target, dict):  # the attributes of an OrderedDict, such as PyTorch's _metadata
            raise PickleError(f"sets attributes of a {type(target).__name__}, which no file of weights needs")


_LOADS: dict[bytes, Callable[[_Unpickler], None]] = {
    **{(code := getattr(pickle, name)): _PythonUnpickler.dispatch[code[0]] for name in _ALLOWED},
    pickle.REDUCE: _Unpickler.load_reduce,
    pickle.BUILD: _Unpickler.load_build,
}


def _step(code: bytes, unpickler: _Unpickler) -> None:
    """One instruction, with what is to be checked of each."""
    if code not in _LOADS:
        raise PickleError(f"has the instruction {code!r}, which no file of weights needs")
    unpickler.num_instructions += 1
    if unpickler.num_instructions > _MAX_INSTRUCTIONS:
        raise PickleError(f"has more than {_MAX_INSTRUCTIONS:,} instructions; no file of weights does")
    _check_keys(unpickler.stack[_KEYS[code]] if code in _KEYS else ())
    _LOADS[code](unpickler)
    top = unpickler.stack[-1] if unpickler.stack else None
    if isinstance(top, int) and top.bit_length() > _MAX_BITS:
        raise PickleError(f"has a number of {top.bit_length():,} bits")


_Unpickler.dispatch = {code: functools.partial(_step, bytes([code])) for code in range(256)}


def _check_keys(keys: Iterable[Any]) -> None:
    """Refuses keys but numbers, text and None: hashing a deeply nested tuple would overflow the stack."""
    for key in keys:
        if not isinstance(key, (str, bytes, int, float, type(None))):
            raise PickleError(f"has a dict with a {type(key).__name__} as a key")


def resolved(content: Any) -> Any:
    """A copy of `content` with each `Buildable` replaced by its value.

    A container that is in several places is one object in the copy, too.

    Raises:
        PickleError: the content is nested too deeply, or contains itself.
    """
    copies: dict[int, Any] = {}  # by identity, so that shared containers cost their time once

    def copied(value: Any, depth: int) -> Any:
        if isinstance(value, Buildable):
            return value.value()
        if isinstance(value, dict):
            return {key: copy_at(item, depth) for key, item in value.items()}
        return type(value)(copy_at(item, depth) for item in value)

    def copy_at(value: Any, depth: int) -> Any:
        if not isinstance(value, (Buildable, dict, list, tuple)):
            return value
        if depth > _MAX_DEPTH:
            raise PickleError(f"is nested more than {_MAX_DEPTH} levels deep, or contains itself")
        if id(value) not in copies:
            copies[id(value)] = copied(value, depth + 1)
        return copies[id(value)]

    return copy_at(content, 0)


_MAX_AXES = 32  # of NumPy 1
_MAX_ELEMENTS = 2**48
_NUMBERS = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248]|c8|c16)")


def array_of(
    data: bytes, dtype: np.dtype, shape: Sequence[int], strides: Sequence[int] = (), offset: int = 0
) -> np.ndarray:
    """A view of a part of `data`; a copy would let a small file ask for many large arrays of the same bytes.

    Args:
        data: numbers, one after the other.
        dtype: type of the numbers.
        shape: shape of the array; no two of its elements may share an element of `data`.
        strides: stride of each axis, in elements; empty: C order.
        offset: place of the first element, in elements.

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
    """Checks the layout of a tensor before anything is computed with its numbers.

    Raises:
        PickleError: no tensor can have these numbers. The message does not show them: the text of a few
            nested lists can have any length.
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


class _Array(Buildable):
    def __init__(self, encode: Callable[[Any], bytes]) -> None:
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
    """A list or tuple as a tuple. Paddle writes a tensor as tuple((name, array)); this gives the array."""
    if not isinstance(items, (list, tuple)):
        raise PickleError(f"has a tuple of a {type(items).__name__}")
    if len(items) == 2 and isinstance(items[1], _Array):
        return items[1]
    return tuple(items)


def _ordered_dict(pairs: Any = ()) -> dict[Any, Any]:
    pairs = list(pairs.items() if isinstance(pairs, dict) else pairs)
    _check_keys(key for key, _ in pairs)
    return dict(pairs)


def _name_only(*_: Any) -> None:
    raise PickleError("makes an array in a way that no file of weights does")


def array_table() -> dict[tuple[str, str], Callable[..., Any]]:
    """A table for one `read_pickle`: arrays, under the names of NumPy 1 and later, and their containers."""
    encode_once = functools.cache(lambda text: text.encode("latin1"))

    def encode(text: Any, encoding: Any = "latin1") -> bytes:
        if not isinstance(text, str) or encoding != "latin1":
            raise PickleError("has an array of objects, not of numbers")
        return encode_once(text)

    def array(*_: Any) -> _Array:  # of a made-up shape and type: build() brings the real ones
        return _Array(encode)

    def scalar(dtype: Any, data: Any) -> Any:
        return array_of(data if isinstance(data, bytes) else encode(data), dtype.dtype, ())[()]

    table: dict[tuple[str, str], Callable[..., Any]] = {
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
