"""Reads pickles of arrays without running anything that is in them.

A pickle is a program for a small stack machine. The machine here has only the instructions that weight files
need. It looks a global up in a table of its caller, never imports anything, and calls nothing but the
functions of that table. Time and memory grow with the size of the file: a length is checked against the rest
of the file before memory is taken, and the number of instructions is limited.
"""

import io
import math
import mmap
import pickletools
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, cast

import numpy as np

_MAX_INSTRUCTIONS = 1_000_000  # an optimizer's state of 500 tensors has 20,000
_MAX_DEPTH = 100
_MAX_ARGUMENTS = 16
_MAX_BITS = 256  # a generator's state in a checkpoint has 128

Stream = io.BytesIO | mmap.mmap

_LITERALS = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
}
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_STORES = {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}
_FETCHES = {"GET", "BINGET", "LONG_BINGET"}


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


@dataclass(frozen=True)
class _Global:
    name: str
    call: Callable[..., Any]


def read_pickle(
    stream: Stream,
    table: Mapping[tuple[str, str], Callable[..., Any]],
    load_persistent: Callable[[Any], Any] | None = None,
) -> Any:
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
        return _Machine(table, load_persistent).run(stream)
    except PickleError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, struct.error) as exc:
        raise PickleError(f"cannot be followed: {exc or type(exc).__name__}") from exc


def settle(content: Any) -> Any:
    """A copy of `content` with each `Buildable` replaced by its value.

    A container that is in several places is one object in the copy, too.

    Raises:
        PickleError: the content is nested too deeply, or contains itself.
    """
    return _Settling().settle(content)


class _Machine:
    def __init__(
        self,
        table: Mapping[tuple[str, str], Callable[..., Any]],
        load_persistent: Callable[[Any], Any] | None,
    ) -> None:
        self._table = table
        self._load_persistent = load_persistent
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._num_items = 0

    def run(self, stream: Stream) -> Any:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(cast(IO[bytes], stream))):
            if count >= _MAX_INSTRUCTIONS:
                raise PickleError(
                    f"has more than {_MAX_INSTRUCTIONS:,} instructions; no file of weights does"
                )
            if opcode.name == "STOP":
                return self._stack.pop()
            self._step(opcode.name, argument)
        raise PickleError("has no end")

    def _step(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _LITERALS:
            if isinstance(argument, int) and argument.bit_length() > _MAX_BITS:
                raise PickleError(f"has a number of {argument.bit_length():,} bits")
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name]())
        elif name in _STORES:
            self._memo[len(self._memo) if name == "MEMOIZE" else argument] = stack[-1]
        elif name in _FETCHES:
            stack.append(self._memo[argument])
        elif name in _TUPLES:
            count = _TUPLES[name]
            stack[-count:] = [tuple(stack[-count:])]
        elif name in _METHODS:
            _METHODS[name](self)
        elif name == "GLOBAL":
            stack.append(self._global(*argument.split(" ", 1)))
        elif name not in ("PROTO", "FRAME"):
            raise PickleError(f"has the instruction {name}, which no file of weights needs")

    def _global(self, module: str, name: str) -> _Global:
        if not (isinstance(module, str) and isinstance(name, str)):
            raise PickleError("refers to something that has no name")
        if (module, name) not in self._table:
            raise PickleError(f"refers to '{module}.{name}', which no file of weights needs")
        return _Global(f"{module}.{name}", self._table[module, name])

    def _since_mark(self) -> list[Any]:
        start = self._marks.pop()
        values = self._stack[start:]
        del self._stack[start:]
        return values

    def _mark(self) -> None:
        self._marks.append(len(self._stack))

    def _stack_global(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self._stack.append(self._global(module, name))

    def _reduce(self) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        if not isinstance(function, _Global) or not isinstance(arguments, tuple):
            raise PickleError("calls something that is no function")
        if len(arguments) > _MAX_ARGUMENTS:
            raise PickleError(f"calls '{function.name}' with {len(arguments):,} arguments")
        # a call costs an instruction, whatever the size of the containers that it goes through
        self._num_items += sum(len(value) for value in arguments if isinstance(value, (dict, list, tuple)))
        if self._num_items > _MAX_INSTRUCTIONS:
            raise PickleError("copies a container over and over")
        self._stack.append(function.call(*arguments))

    def _build(self) -> None:
        state, target = self._stack.pop(), self._stack[-1]
        if isinstance(target, Buildable):
            target.build(state)
        elif not isinstance(target, dict):  # the attributes of an OrderedDict, such as PyTorch's _metadata
            raise PickleError(f"sets attributes of a {type(target).__name__}, which no file of weights needs")

    def _persistent(self) -> None:
        if self._load_persistent is None:
            raise PickleError("refers to data outside of it")
        self._stack.append(self._load_persistent(self._stack.pop()))

    def _append(self) -> None:
        self._extend([self._stack.pop()])

    def _extend(self, values: list[Any]) -> None:
        if not isinstance(self._stack[-1], list):
            raise PickleError("appends to something that is no list")
        self._stack[-1].extend(values)

    def _set_item(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set_items([key, value])

    def _set_items(self, flat: list[Any]) -> None:
        if not isinstance(self._stack[-1], dict):
            raise PickleError("sets items of something that is no dict")
        self._stack[-1].update(dict_of(zip(flat[::2], flat[1::2])))

    def _dict(self) -> None:
        flat = self._since_mark()
        self._stack.append({})
        self._set_items(flat)


def dict_of(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """A dict whose keys are numbers, text or None. Hashing a deeply nested tuple would overflow the stack.

    Raises:
        PickleError: a key of another kind.
    """
    result = {}
    for key, value in pairs:
        if not isinstance(key, (str, bytes, int, float, type(None))):
            raise PickleError(f"has a dict with a {type(key).__name__} as a key")
        result[key] = value
    return result


class _Settling:
    """Replaces every `Buildable` by its value."""

    def __init__(self) -> None:
        self._settled: dict[int, Any] = {}  # by identity, so that shared containers cost their time once

    def settle(self, value: Any, depth: int = 0) -> Any:
        if not isinstance(value, (Buildable, dict, list, tuple)):
            return value
        if depth > _MAX_DEPTH:
            raise PickleError(f"is nested more than {_MAX_DEPTH} levels deep, or contains itself")
        if id(value) not in self._settled:
            self._settled[id(value)] = self._content(value, depth + 1)
        return self._settled[id(value)]

    def _content(self, value: Any, depth: int) -> Any:
        if isinstance(value, Buildable):
            return value.value()
        if isinstance(value, dict):
            return {key: self.settle(item, depth) for key, item in value.items()}
        return type(value)(self.settle(item, depth) for item in value)


_METHODS: dict[str, Callable[[_Machine], Any]] = {
    "MARK": _Machine._mark,
    "POP": lambda machine: machine._stack.pop(),
    "POP_MARK": _Machine._since_mark,
    "TUPLE": lambda machine: machine._stack.append(tuple(machine._since_mark())),
    "LIST": lambda machine: machine._stack.append(machine._since_mark()),
    "DICT": _Machine._dict,
    "APPEND": _Machine._append,
    "APPENDS": lambda machine: machine._extend(machine._since_mark()),
    "SETITEM": _Machine._set_item,
    "SETITEMS": lambda machine: machine._set_items(machine._since_mark()),
    "STACK_GLOBAL": _Machine._stack_global,
    "REDUCE": _Machine._reduce,
    "BUILD": _Machine._build,
    "BINPERSID": _Machine._persistent,
}


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


class _Encoder:
    """Encodes text as Latin-1, each text once."""

    def __init__(self) -> None:
        self._encoded: dict[int, tuple[str, bytes]] = {}  # by identity; the text stays alive

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
    """A list or tuple as a tuple. Paddle writes a tensor as tuple((name, array)); this gives the array."""
    if not isinstance(items, (list, tuple)):
        raise PickleError(f"has a tuple of a {type(items).__name__}")
    if len(items) == 2 and isinstance(items[1], _Array):
        return items[1]
    return tuple(items)


def _ordered_dict(pairs: Any = ()) -> dict[Any, Any]:
    return dict_of(pairs.items() if isinstance(pairs, dict) else pairs)


def _name_only(*_: Any) -> None:
    raise PickleError("makes an array in a way that no file of weights does")


def array_table() -> dict[tuple[str, str], Callable[..., Any]]:
    """A table for one `read_pickle`: arrays, under the names of NumPy 1 and later, and their containers."""
    encode = _Encoder()

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
