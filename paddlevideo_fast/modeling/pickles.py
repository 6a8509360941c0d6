"""Pickles read without running anything that is in them.

A pickle is a program for a small stack machine. This one has the instructions that files of weights need; a
global is looked up in a table of the caller's, never imported, and nothing but an entry of that table is ever
called. Time and memory follow the size of the file: a length is checked against what is left of the file
before anything of it is made, and the number of instructions has a bound.
"""

from __future__ import annotations

import io
import mmap
import pickletools
import struct
from dataclasses import dataclass
from typing import IO, Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple, Union, cast

_MAX_INSTRUCTIONS = 1_000_000  # an optimizer's state of 500 tensors has 20,000
_MAX_DEPTH = 100
_MAX_ARGUMENTS = 16
_MAX_BITS = 256  # a generator's state in a checkpoint has 128

Stream = Union[io.BytesIO, mmap.mmap]

_LITERALS = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
}
_CONSTANTS: Dict[str, Callable[[], Any]] = {
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
    """A pickle that is damaged, or asks for something that no file of weights needs."""


class Buildable:
    """A value of a pickle that gets its content after it was made."""

    def build(self, state: Any) -> None:
        """Takes the content; raises ValueError or TypeError where it is not of the expected form.

        As it stands here, for a value that is complete when it is made, it takes none.
        """
        raise PickleError("sets attributes of a value that has none")

    def value(self) -> Any:
        """What stands in the result for this."""
        raise NotImplementedError


@dataclass(frozen=True)
class _Global:
    name: str
    call: Callable[..., Any]


def read_pickle(
    stream: Stream,
    table: Mapping[Tuple[str, str], Callable[..., Any]],
    load_persistent: Optional[Callable[[Any], Any]] = None,
) -> Any:
    """Reads one pickle and leaves the stream behind it.

    Args:
        stream: of known length, whose `read` never sets up more memory than what is left needs.
        table: (module, name) to the function that is called in place of that global. It must check its
            arguments.
        load_persistent: gives the object of a persistent id; None: the pickle may have none.

    Returns:
        None, numbers, text, bytes, tuples, lists, dicts, and what the functions of `table` return.

    Raises:
        PickleError: see there.
    """
    try:
        return _Machine(table, load_persistent).run(stream)
    except PickleError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, struct.error) as exc:
        raise PickleError(f"cannot be followed: {exc or type(exc).__name__}") from exc


def settle(content: Any) -> Any:
    """A copy of what was read with the value of each `Buildable` in its place.

    Containers that are in several places are one object in the copy as well.

    Raises:
        PickleError: the content is nested too deeply, or contains itself.
    """
    return _Settling().settle(content)


class _Machine:
    def __init__(
        self,
        table: Mapping[Tuple[str, str], Callable[..., Any]],
        load_persistent: Optional[Callable[[Any], Any]],
    ) -> None:
        self._table = table
        self._load_persistent = load_persistent
        self._stack: List[Any] = []
        self._marks: List[int] = []
        self._memo: Dict[int, Any] = {}
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

    def _since_mark(self) -> List[Any]:
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

    def _extend(self, values: List[Any]) -> None:
        if not isinstance(self._stack[-1], list):
            raise PickleError("appends to something that is no list")
        self._stack[-1].extend(values)

    def _set_item(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set_items([key, value])

    def _set_items(self, flat: List[Any]) -> None:
        if not isinstance(self._stack[-1], dict):
            raise PickleError("sets items of something that is no dict")
        self._stack[-1].update(dict_of(zip(flat[::2], flat[1::2])))

    def _dict(self) -> None:
        flat = self._since_mark()
        self._stack.append({})
        self._set_items(flat)


def dict_of(pairs: Iterable[Tuple[Any, Any]]) -> Dict[Any, Any]:
    """A dict whose keys are numbers, text or None; hashing a deeply nested tuple would overrun the stack.

    Raises:
        PickleError: another kind of key.
    """
    result = {}
    for key, value in pairs:
        if not isinstance(key, (str, bytes, int, float, type(None))):
            raise PickleError(f"has a dict with a {type(key).__name__} as a key")
        result[key] = value
    return result


class _Settling:
    """Puts the values of `Buildable`s in their places."""

    def __init__(self) -> None:
        self._settled: Dict[int, Any] = {}  # by identity, so that shared containers cost their time once

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


_METHODS: Dict[str, Callable[[_Machine], Any]] = {
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
