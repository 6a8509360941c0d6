"""Configs that ask for too much, or hold what no config holds, are one error, soon and in little memory."""

import os
import random
from pathlib import Path

import pytest

from paddlevideo_fast.config import load_config
from paddlevideo_fast.config.load import read_with_bases
from paddlevideo_fast.config.yaml_source import dump, parse
from paddlevideo_fast.errors import MAX_PROBLEMS, AnnotationError, ConfigError, shown
from tests import fuzz_config
from tests.config.conftest import problems_of as refused

TOO_MANY = "more than 25,000 values; do aliases, merge keys or files repeat each other?"


def problems_of(path, *overrides):
    with fuzz_config.limits(None, fuzz_config.MAX_BYTES):
        return refused(path, *overrides)


def chain(item, num_levels=9):
    """Lines that each refer to the line before ten times."""
    lines = ["a0: &a0 {x: 1, y: 2}"]
    return "\n".join(
        lines + [f"a{n}: &a{n} {item(', '.join([f'*a{n - 1}'] * 10))}" for n in range(1, num_levels)]
    )


GROWING = {
    "aliases": chain(lambda refs: f"[{refs}]"),
    "aliases of nothing": chain(lambda refs: f"[{refs}]").replace("{x: 1, y: 2}", "[]"),
    "merge keys": chain(lambda refs: f"{{<<: [{refs}]}}"),
    "merge keys of nothing": chain(lambda refs: f"{{<<: [{refs}]}}").replace("{x: 1, y: 2}", "{}"),
    "merge keys one by one": chain(lambda refs: "{<<: " + refs.replace(", ", ", <<: ") + "}"),
    "merge keys in merge keys": chain(lambda refs: f"{{<<: {{<<: [{refs}]}}}}"),
    "many merge keys of nothing": f"a: &a {{}}\nb: &b {{<<: [{'*a,' * 1000}]}}\nc: [{'*b,' * 1000}]",
    "equal keys": chain(lambda refs: f"{{k: [{refs}], k: [{refs}]}}"),
    "items": "[" + "1," * 26_000 + "]",
    "keys": "\n".join(f"k{number}: 1" for number in range(26_000)),
}


@pytest.mark.parametrize("text", GROWING.values(), ids=GROWING)
def test_a_text_that_means_too_much(text):
    with pytest.raises(ConfigError) as caught, fuzz_config.limits(None, fuzz_config.MAX_BYTES):
        parse(text, "t")
    (problem,) = caught.value.problems
    assert problem.partition("  ")[2] == TOO_MANY


def test_files_that_inherit_too_much(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("0.yaml").write_text("epochs: 1\n")
    for number in range(1, 300):
        Path(f"{number}.yaml").write_text(f"_BASE_: {number - 1}.yaml\n")
        Path(f"twice{number}.yaml").write_text(
            "_BASE_: [0.yaml, 0.yaml]\n"
            if number == 1
            else f"_BASE_: [twice{number - 1}.yaml, twice{number - 1}.yaml]\n"
        )
    assert problems_of("299.yaml") == [f"52.yaml:1  {TOO_MANY}"]
    assert problems_of("twice30.yaml")[0].endswith(TOO_MANY)
    assert read_with_bases("99.yaml") == {"epochs": 1}
    large = "".join(f"k{number}: 1\n" for number in range(9000))
    for number in range(3):
        Path(f"large{number}.yaml").write_text(large)
    Path("sum.yaml").write_text("_BASE_: [large0.yaml, large1.yaml, large2.yaml]\n")
    assert problems_of("sum.yaml") == [f"large2.yaml:1  {TOO_MANY}"]


def test_what_is_no_file_that_ends(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with open("sparse", "wb") as file:
        file.truncate(2**40)
    Path("line").write_text("x" * 500_000)
    Path("longest.yaml").write_text("epochs: 1\n".ljust(262_144, "#"))
    Path("top.yaml").write_text("_BASE_: pipe\n")
    no_file = "the file cannot be read: it is a pipe or a device; write the content to a file"
    assert problems_of("pipe") == [f"pipe  {no_file}"]
    assert problems_of("top.yaml") == [f"pipe  {no_file}"]
    assert problems_of("/dev/zero") == [f"/dev/zero  {no_file}"]
    assert problems_of("sparse") == ["sparse  the file cannot be read: it is larger than 1,048,576 bytes"]
    assert read_with_bases("longest.yaml") == {"epochs": 1}
    assert problems_of("line") == ["line  a config has at most 262,144 characters"]
    assert problems_of(".") == [".  the folder has no config.yaml"]
    assert problems_of("a\0b") == ["a\0b  the file cannot be read: its name holds a NUL character"]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("!!bool abc", "'abc' is no bool"),
        ("!!bool", "'' is no bool"),
        ("!!int ''", "'' is no int"),
        ("!!int 1:a", "'1:a' is no int"),
        ("!!int 0b", "'0b' is no int"),
        ("0b_", "'0b_' is no int"),
        ("!!float x", "'x' is no float"),
        ("9" * 200_000, shown("9" * 200_000) + " is no int"),
        ("!!int " + "9" * 5000, shown("9" * 5000) + " is no int"),
        ("!!binary x", "the tag '!!binary' does not fit here; leave it out"),
        ("!!set {a}", "the tag '!!set' does not fit here; leave it out"),
        ("!!timestamp 2020-99-99", "the tag '!!timestamp' does not fit here; leave it out"),
        ("!!str [a]", "the tag '!!str' does not fit here; leave it out"),
        ("!!map [a]", "the tag '!!map' does not fit here; leave it out"),
        ("!own 1", "the tag '!own' does not fit here; leave it out"),
        ('"a\\0b"', "'a\\x00b' holds a NUL character"),
        ("{<<: 1}", "'<<' takes a mapping or a list of mappings"),
        ("{<<: [1]}", "'<<' takes a mapping or a list of mappings"),
        ("{? [b] : 1}", "a key is a list or a mapping; a key is text"),
    ],
)
def test_a_value_that_no_config_holds(value, problem):
    with pytest.raises(ConfigError) as caught:
        parse(f"a: {value}", "t")
    (line,) = caught.value.problems
    assert line == f"t:1  a: {problem}"


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a [*a, *a]", "a: &a {<<: *a}", "a: &a {b: *a}"])
def test_an_alias_that_contains_itself(text):
    with pytest.raises(ConfigError, match="nested too deeply, or an alias contains itself|more than 25,000"):
        parse(text, "t")


def test_text_of_digits_stays_text():
    digits = "1" * 100_000
    assert parse(dump({"a": digits}), "t").data == {"a": digits}
    assert parse("a: =", "t").data == {"a": "="}


def test_own_keys_win_over_merged_ones_and_the_first_merged_one_wins():
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {<<: [*a, *b], z: 3}\nd: {<<: *a, x: 4, <<: *b}\n"
    data = parse(text, "t").data
    assert data["c"] == {"x": 1, "y": 1, "z": 3}
    assert data["d"] == {"x": 4, "y": 2, "z": 2}


def test_an_error_is_no_copy_of_the_file(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("".join(f"unknown{number}: {'x' * 50}\n" for number in range(3000)))
    problems = problems_of(path)
    assert len(problems) == MAX_PROBLEMS + 1
    assert problems[-1] == "and more; correct these first"
    path.write_text("epochs: 1\n")
    for override in ("epochs=" + "x" * 500_000, "x" * 500_000, "x" * 500_000 + "=1", "a." * 500_000 + "b=1"):
        assert max(map(len, problems_of(path, override))) < 5000
    assert len(str(AnnotationError("x" * 2**20))) < 5000


@pytest.mark.parametrize("number", ["1" + "0" * 26, "4294967296", "-4294967296", ".inf", ".nan"])
def test_a_number_that_no_field_has(number):
    path = fuzz_config.CONFIGS / "quickstart" / "tsm_motion.yaml"
    key = "OPTIMIZER.beta1" if "." in number else "epochs"
    (problem,) = problems_of(path, f"{key}={number}")
    assert problem.startswith(f"-o #1  {key}={number.strip('.')}: expected ")
    assert problem.endswith("(finite)" if "." in number else "(at most 4294967295)")


@pytest.mark.slow
def test_a_few_cases_of_the_fuzzer():
    """`python tests/fuzz_config.py --minutes 10` tries thousands."""
    load_config(fuzz_config.GOOD)  # imports everything, before memory is limited
    rng = random.Random(1)
    outcomes = []
    while len(outcomes) < 15 or not {"loads", "ConfigError"} <= set(outcomes):
        outcome, finding = fuzz_config.try_case(rng.randrange(10**6), seconds=None)
        assert finding is None, finding
        outcomes.append(outcome)
        assert len(outcomes) < 200, "hardly a case loads, so the fuzzer tries little"
