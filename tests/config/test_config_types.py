from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import pytest

from paddlevideo_fast.config.types import PositiveInt, Range, arguments_of, describe, mismatches

FITS = [
    (1, int),
    (1, float),
    (1e-4, float),
    (True, bool),
    ("a", str),
    (None, int | None),
    (3, int | None),
    ([1, 2.5], Sequence[float]),
    ([], list[int]),
    ([1, 2, 3], tuple[int, int, int]),
    ([1, 2, 3], tuple[int, ...]),
    ([1, 2], int | Sequence[int]),
    (224, int | Sequence[int]),
    ("O1", Literal["O1", "O2"]),
    ({"a": 1}, dict[str, int]),
    ({"a": "x"}, Mapping[str, Any]),
    ({}, dict),
    ([[1, 2], [3, 4]], Sequence[tuple[int, int]]),
    (object(), Any),
    (1, PositiveInt),
    (0.5, Annotated[float, Range(0, 1)]),
    (None, PositiveInt | None),
]

DOES_NOT = [
    (True, int, (), "int"),
    (1.0, int, (), "int"),
    ("1", int, (), "int"),
    (True, float, (), "float"),
    ("0.1", float, (), "float"),
    (1, bool, (), "bool"),
    (1, str, (), "str"),
    (None, int, (), "int"),
    ("x", int | None, (), "int or null"),
    ("12", Sequence[int], (), "list of int"),
    ([1, "a"], Sequence[float], (1,), "float"),
    ([1, 2], tuple[int, int, int], (), "list of 3: int, int, int"),
    ([1, 2, "x"], tuple[int, int, int], (2,), "int"),
    ([1, None], int | Sequence[int], (1,), "int"),
    ("x", int | Sequence[int], (), "int or list of int"),
    (1, Literal[True], (), "True"),
    ("O3", Literal["O1", "O2"], (), "'O1' or 'O2'"),
    ({"a": {"b": "x"}}, dict[str, dict[str, int]], ("a", "b"), "int"),
    ([], Mapping[str, int], (), "mapping"),
    (0, PositiveInt, (), "int, at least 1"),
    (1.5, Annotated[float, Range(0, 1)], (), "float, from 0 to 1"),
    (float("nan"), Annotated[float, Range(0, 1)], (), "float, from 0 to 1 (finite)"),
    (float("inf"), Annotated[float, Range(0)], (), "float, at least 0 (finite)"),
    (float("-inf"), float | None, (), "float or null (finite)"),
    ([1, 10**400], Sequence[float], (1,), "float (at most 4294967295)"),
    (10**26, PositiveInt, (), "int, at least 1 (at most 4294967295)"),
    (-(2**32), int | None, (), "int or null (at most 4294967295)"),
    ("a", Annotated[float, Range(0, 1)], (), "float, from 0 to 1"),
    (1, Annotated[float, Range(0, below=1)], (), "float, at least 0 and below 1"),
    (2**31, Annotated[int, Range(0, 2**31 - 1)], (), "int, from 0 to 2147483647"),
    (-1, PositiveInt | None, (), "int, at least 1 or null"),
]


@pytest.mark.parametrize(("value", "hint"), FITS)
def test_fits(value, hint):
    assert list(mismatches(value, hint)) == []


@pytest.mark.parametrize(("value", "hint", "path", "expected"), DOES_NOT)
def test_does_not_fit(value, hint, path, expected):
    (problem,) = mismatches(value, hint)
    assert (problem.path, problem.expected) == (path, expected)


def test_each_bad_item_is_named():
    assert [problem.path for problem in mismatches(["a", 1, "b"], Sequence[int])] == [(0,), (2,)]


def test_describe():
    assert describe(Sequence[int | str] | None) == "list of int or str or null"
    assert describe(dict[str, int]) == "mapping"
    assert describe(Any) == "anything"
    assert describe(tuple[float, ...]) == "list of float"


def test_arguments_come_from_the_constructor():
    class Base:
        def __init__(self, depth: int, width: float | None = None) -> None:
            self.depth = depth

    class Child(Base):
        injected = ("width",)

    arguments = arguments_of(Base)
    assert list(arguments) == ["depth", "width"]
    assert arguments["depth"].required
    assert arguments["width"].default is None
    assert list(arguments_of(Child)) == ["depth"]


def test_arguments_that_are_passed_on_belong_to_the_base_class():
    class Root:
        def __init__(self, seed: int = 0) -> None:
            self.seed = seed

    class Base(Root):
        def __init__(self, depth: int, width: float | None = None) -> None:
            super().__init__()

    class Child(Base):
        def __init__(self, height: int, width: float = 2.0, **shared: Any) -> None:
            super().__init__(width=width, **shared)

    arguments = arguments_of(Child)
    assert list(arguments) == ["height", "width", "depth"]
    assert (arguments["width"].default, arguments["width"].hint) == (2.0, float)
    assert arguments["depth"].required


@pytest.mark.parametrize("hint", [Callable[[int], int], set[int], "int"])
def test_an_annotation_that_is_not_known_is_an_error_of_the_program(hint):
    with pytest.raises(TypeError, match="does not know what fits the annotation"):
        list(mismatches(3, hint))
    with pytest.raises(TypeError, match="does not know what fits the annotation"):
        describe(hint)
