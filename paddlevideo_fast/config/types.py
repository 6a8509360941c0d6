"""Does a value read from YAML fit a constructor's annotation?

YAML has null, bool, int, float, str, list and mapping. The annotations of constructors are compared with
those: `Sequence`, `List` and `Tuple` are lists, `Dict` and `Mapping` are mappings, a bool is no int, an int
is a float, a number in quotes is a str and nothing else; `int | None` is `Optional[int]`. An int has at most
32 bits and a float is finite, because numbers beyond lead to overflows far from the config. An annotation of
another kind is an error of the program: it raises TypeError, so that no value goes unchecked.
"""

import collections.abc
import functools
import inspect
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Annotated, Any, Literal, Union

KeyPath = tuple[str | int, ...]
MAX_SIZE = 65_536
_MAX_INT = 2**32 - 1
_UNIONS = (Union, types.UnionType)  # the second one is `int | None`


@dataclass(frozen=True)
class Range:
    """Limits of a number, to be put into an `Annotated` type.

    Args:
        low: the smallest allowed value.
        high: the largest allowed value; None for no limit.
        below: every allowed value is smaller than this; None for no limit.
    """

    low: float
    high: float | None = None
    below: float | None = None

    def allows(self, value: float) -> bool:
        """Whether `value` lies inside; NaN never does."""
        inside = value >= self.low and (self.high is None or value <= self.high)
        return inside and (self.below is None or value < self.below)

    def __str__(self) -> str:
        low = f"from {_text(self.low)}" if self.high is not None else f"at least {_text(self.low)}"
        high = f" to {_text(self.high)}" if self.high is not None else ""
        return low + high + (f" and below {_text(self.below)}" if self.below is not None else "")


def _text(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"


PositiveInt = Annotated[int, Range(1)]
# What arrays are made by. Large enough for any run, and small enough that an array of one such axis is, too.
Size = Annotated[int, Range(1, MAX_SIZE)]  # frames, pixels, clips, channels, classes
NumViews = Annotated[int, Range(1, 1000)]  # of a video
Count = Annotated[int, Range(0)]
Share = Annotated[float, Range(0.0, 1.0)]
NonNegative = Annotated[float, Range(0.0)]


class Role(Enum):
    """What an argument has to do with the clips or the epochs of a run. Its annotation says it:
    `Annotated[int, Role.FRAMES]`, or one of the types below, which plug-ins use, too.
    """

    FRAMES = auto()  # the frames of a clip: the key `num_frames` sets them
    FIXED_FRAMES = auto()  # the same for a network that takes no other number
    VIEW_FRAMES = auto()  # the same for a view: in an evaluation, a clip is one or several views
    FRAME_DIVISOR = auto()  # divides the frames of a clip
    CROP_SIZE = auto()  # the side of a clip: the key `crop_size` sets it
    LENGTH = auto()  # of pixels, on the way to the clip: keeps its ratio to the side
    SIDE_DIVISOR = auto()  # divides the side of a clip
    EPOCHS = auto()  # `--epochs` stretches it


NumFrames = Annotated[Size, Role.FRAMES]
FixedFrames = Annotated[Size, Role.FIXED_FRAMES]
FrameDivisor = Annotated[Size, Role.FRAME_DIVISOR]
CropSize = Annotated[Size, Role.CROP_SIZE]
Pixels = Annotated[Size, Role.LENGTH]
SideDivisor = Annotated[Size, Role.SIDE_DIVISOR]
Epochs = Annotated[float, Role.EPOCHS]
Activation = Literal["softmax", "sigmoid"]  # of logits: a video has one class, or any number of classes


@dataclass(frozen=True)
class Mismatch:
    """A value that does not fit.

    Args:
        path: where it is below the checked value, () for the value itself.
        value: the value.
        expected: what would fit, in words.
    """

    path: KeyPath
    value: Any
    expected: str


@dataclass(frozen=True)
class Argument:
    """One argument of a component as its users see it.

    Args:
        name: its key in YAML.
        hint: its annotation; Any where there is none.
        default: its default, `inspect.Parameter.empty` where it is required.
    """

    name: str
    hint: Any
    default: Any

    @property
    def required(self) -> bool:
        """Whether the constructor cannot do without it."""
        return self.default is inspect.Parameter.empty

    @property
    def role(self) -> Role | None:
        """What it has to do with clips or epochs, by its annotation."""
        return _role_in(self.hint)


def _role_in(hint: Any) -> Role | None:
    return hint if isinstance(hint, Role) else next(filter(None, map(_role_in, typing.get_args(hint))), None)


@functools.cache
def arguments_of(cls: type) -> Mapping[str, Argument]:
    """The named arguments of a constructor in their order.

    Left out are those that code provides (the class's `injected`) or that it ignores (`ignored_arguments`).
    A constructor that ends in `**shared` passes these on to its base class, so it also has the arguments of
    that class's constructor. Where both name an argument, the derived class's type and default count.
    """
    hidden = {"self", *getattr(cls, "injected", ()), *getattr(cls, "ignored_arguments", ())}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    arguments: dict[str, Argument] = {}
    for constructor in (vars(owner)["__init__"] for owner in cls.__mro__ if "__init__" in vars(owner)):
        hints = typing.get_type_hints(constructor, include_extras=True)
        parameters = inspect.signature(constructor).parameters
        for name, parameter in parameters.items():
            if name not in hidden and parameter.kind in named:
                arguments.setdefault(name, Argument(name, hints.get(name, Any), parameter.default))
        if all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
            break
    return arguments


def leaves(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Everything in nested mappings and lists that is neither, with its place."""
    if isinstance(value, (Mapping, list, tuple)):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from leaves(item, (*path, key))
    else:
        yield path, value


def mismatches(value: Any, hint: Any, path: KeyPath = ()) -> Iterator[Mismatch]:
    """Everything in the `value` at `path` that does not fit `hint`, with its place where possible."""
    origin, parameters = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or isinstance(hint, typing.TypeVar):
        return
    if origin is Annotated:
        limits = [extra for extra in parameters[1:] if isinstance(extra, Range)]
        if list(mismatches(value, parameters[0])) or not all(limit.allows(value) for limit in limits):
            yield _no_fit(value, hint, path)
    elif origin in _UNIONS:
        yield from _union(value, hint, parameters, path)
    elif origin is Literal:
        if not any(value == option and type(value) is type(option) for option in parameters):
            yield Mismatch(path, value, describe(hint))
    elif _is_list_hint(hint):
        yield from _items(value, hint, parameters, path)
    elif _is_mapping_hint(hint):
        if not isinstance(value, dict):
            yield Mismatch(path, value, describe(hint))
        elif len(parameters) == 2:
            for key, item in value.items():
                yield from mismatches(item, parameters[1], (*path, key))
    elif not _is_plain(value, hint):
        yield _no_fit(value, hint, path)


def describe(hint: Any) -> str:
    """An annotation in the words of a YAML author: `list of float`, `int or null`, `'a' or 'b'`."""
    origin, parameters = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or isinstance(hint, typing.TypeVar):
        return "anything"
    if origin is Annotated:
        limits = [str(extra) for extra in parameters[1:] if isinstance(extra, Range)]
        return ", ".join([describe(parameters[0]), *limits])
    if origin in _UNIONS:
        words = [describe(option) for option in parameters if option is not type(None)]
        return " or ".join(words + ["null"] * (type(None) in parameters))
    if origin is Literal:
        return " or ".join(repr(option) for option in parameters)
    if _is_list_hint(hint):
        if origin is tuple and Ellipsis not in parameters:
            return f"list of {len(parameters)}: " + ", ".join(describe(item) for item in parameters)
        return f"list of {describe(parameters[0])}" if parameters else "list"
    if _is_mapping_hint(hint):
        return "mapping"
    return "null" if hint is type(None) else _plain_type(hint).__name__


def plain_alternatives(hint: Any) -> list[str]:
    """Plain types that a component argument may have instead, in words: a learning rate may be a float."""
    options = typing.get_args(hint) if typing.get_origin(hint) in _UNIONS else (hint,)
    return [describe(option) for option in options if _bare(option) in (bool, int, float, str)]


def _bare(hint: Any) -> Any:
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def _union(value: Any, hint: Any, options: Sequence[Any], path: KeyPath) -> Iterator[Mismatch]:
    if any(not list(mismatches(value, option)) for option in options):
        return
    # One list or mapping among the options: what is wrong inside of it says more than "none of these".
    same_kind = [
        option
        for option in options
        if (isinstance(value, list) and _is_list_hint(option))
        or (isinstance(value, dict) and _is_mapping_hint(option))
    ]
    inside = list(mismatches(value, same_kind[0], path)) if len(same_kind) == 1 else []
    if inside and all(problem.path != path for problem in inside):
        yield from inside
    else:
        yield _no_fit(value, hint, path)


def _no_fit(value: Any, hint: Any, path: KeyPath) -> Mismatch:
    """A value of another kind; where it is a number, the limits of all numbers may be what it breaks."""
    limit = ""
    if isinstance(value, int) and abs(value) > _MAX_INT:
        limit = f" (at most {_MAX_INT})"
    elif isinstance(value, float) and not _is_finite(value):
        limit = " (finite)"
    return Mismatch(path, value, describe(hint) + limit)


def _is_finite(value: float) -> bool:
    return abs(value) <= sys.float_info.max  # unlike math.isfinite, for an int of any length


def _items(value: Any, hint: Any, parameters: Sequence[Any], path: KeyPath) -> Iterator[Mismatch]:
    is_fixed = typing.get_origin(hint) is tuple and Ellipsis not in parameters
    if not isinstance(value, (list, tuple)) or (is_fixed and len(parameters) != len(value)):
        yield Mismatch(path, value, describe(hint))
        return
    hints = parameters if is_fixed else [parameters[0] if parameters else Any] * len(value)
    for index, (item, item_hint) in enumerate(zip(value, hints)):
        yield from mismatches(item, item_hint, (*path, index))


def _is_list_hint(hint: Any) -> bool:
    kind = typing.get_origin(hint) or hint
    return kind in (list, tuple, collections.abc.Sequence, collections.abc.Iterable)


def _is_mapping_hint(hint: Any) -> bool:
    kind = typing.get_origin(hint) or hint
    return kind in (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def _is_plain(value: Any, hint: Any) -> bool:
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and _is_finite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MAX_INT
    return isinstance(value, _plain_type(hint))


def _plain_type(hint: Any) -> type:
    if not isinstance(hint, type):
        raise TypeError(f"the check of configs does not know what fits the annotation {hint!r}")
    return hint
