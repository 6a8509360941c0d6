"""What the reader of YAML takes, and where relative paths start."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddlevideo_fast.config import load_config
from paddlevideo_fast.config.yaml_source import dump, parse
from paddlevideo_fast.errors import ConfigError

PRINTABLE = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=20)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | PRINTABLE
TREES = st.recursive(
    LEAVES,
    lambda child: st.lists(child, max_size=4) | st.dictionaries(PRINTABLE, child, max_size=4),
    max_leaves=12,
)


def equal(left, right):
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return type(left) is type(right) and left == right


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("-2E+3", -2000.0),
        ("1.5e3", 1500.0),
        (".5e1", 5.0),
        ("'1e-4'", "1e-4"),
        ("1e", "1e"),
        ("e5", "e5"),
        ("2020-01-01", "2020-01-01"),
        ("__import__('os')", "__import__('os')"),
        ("img_{:05}.jpg", "img_{:05}.jpg"),
        ("", None),
        ("None", None),
        ("'None'", "None"),
        ("Nonesuch", "Nonesuch"),
    ],
)
def test_plain_scalars(text, value):
    read = parse(text, "t").data
    assert read == value
    assert type(read) is type(value)


def test_every_key_and_item_has_its_line():
    source = parse("a:\n  - b: 1\n    c:\n      - 2\n      - 3\nd: {e: 4,\n  f: 5}\n", "t")
    assert source.data == {"a": [{"b": 1, "c": [2, 3]}], "d": {"e": 4, "f": 5}}
    expected = {
        (): 1, ("a",): 1, ("a", 0): 2, ("a", 0, "b"): 2, ("a", 0, "c"): 3, ("a", 0, "c", 0): 4,
        ("a", 0, "c", 1): 5, ("d",): 6, ("d", "e"): 6, ("d", "f"): 7,
    }  # fmt: skip
    assert source.lines == expected


def test_aliases_are_copies_and_merge_keys_yield_to_own_keys():
    text = "base: &b {x: [1], y: 2}\none: *b\ntwo: &c\n  <<: *b\n  y: 3\nthree: *c\n"
    data = parse(text, "t").data
    assert data["two"] == data["three"] == {"x": [1], "y": 3}
    data["one"]["x"].append(9)
    assert data["base"]["x"] == [1]


def test_letters_are_written_as_they_are():
    assert dump({"name": "动作 é"}) == "name: 动作 é\n"


def test_a_key_that_comes_again_alike_is_a_warning(warnings):
    text = "a: {x: 1, y: 'z'}\nb: 1\na:\n  x: 1\n  y: z\n"
    assert parse(text, "t").data == {"a": {"x": 1, "y": "z"}, "b": 1}
    assert warnings == ["t:3  a: written twice, alike, first in line 1"]
    with pytest.raises(ConfigError, match="t:3  a: written twice, with another value first in line 1"):
        parse(text.replace("x: 1\n", "x: true\n"), "t")  # True == 1 in Python


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2\na: 3\n", [
            "t:5  a: written twice, with another value first in line 1; keep one",
            "t:4  b.c: written twice, with another value first in line 3; keep one"]),
        ("a: [1\nb: 2", [
            "t:2  not valid YAML: while parsing a flow sequence, expected ',' or ']', but got ':'"]),
        ("x: 1\na: !!python/object/apply:os.system [ls]", [
            "t:2  a: the tag '!!python/object/apply:os.system' does not fit here; leave it out"]),
        ("on: 1", ["t:1  the file: the key True is no text; put it in quotes"]),
        ("a: 1\n---\nb: 1", [
            "t:2  not valid YAML: expected a single document in the stream, but found another document"]),
        ("a: *nothing", ["t:1  not valid YAML: found undefined alias 'nothing'"]),
        ("a: \0", [
            "t  not valid YAML: unacceptable character #x0000: special characters are not allowed "
            'in "<unicode string>", position 3']),
        ("[" * 1000, [
            "t  not valid YAML: lists or mappings are nested too deeply, or an alias contains itself"]),
    ],
)  # fmt: skip
def test_problems_name_file_and_line(text, problems):
    with pytest.raises(ConfigError) as caught:
        parse(text, "t")
    assert caught.value.problems == problems


@given(TREES)
def test_what_is_written_is_read_back(tree):
    assert equal(parse(dump(tree), "t").data, tree)


# --- The key `paths`: relative paths of a file's data start from its folder, or from the working folder


def test_each_file_says_where_its_own_paths_start(tmp_path, monkeypatch):
    (tmp_path / "set").mkdir()
    (tmp_path / "set/config.yaml").write_text(
        "_BASE_: tsm_small\npaths: config\nDATASET:\n  class_names: classes.txt\n  train: &own\n"
        '    file_path: train.list\n    data_prefix: ../videos\n  valid: *own\n  test: {data_prefix: ""}\n'
    )
    (tmp_path / "mine.yaml").write_text("_BASE_: set/config.yaml\nDATASET: {test: {file_path: own.list}}\n")
    monkeypatch.chdir(tmp_path)
    data = load_config("mine.yaml", ["DATASET.valid.data_prefix=other"])["DATASET"]
    assert data["class_names"] == str(tmp_path / "set/classes.txt")
    assert data["train"]["file_path"] == data["valid"]["file_path"] == str(tmp_path / "set/train.list")
    assert data["train"]["data_prefix"] == str(tmp_path / "videos")
    assert data["valid"]["data_prefix"] == "other"
    assert (data["test"]["data_prefix"], data["test"]["file_path"]) == (str(tmp_path / "set"), "own.list")


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        ("epochs: 2\npaths: here\n", [], r"x.yaml:2  paths='here': expected cwd or config"),
        ("", ["paths=config"], "-o #1  paths: is for a file"),
    ],
)
def test_a_wrong_key_is_an_error(tmp_path, text, overrides, message):
    (tmp_path / "x.yaml").write_text(f"{text}_BASE_: tsm_small\n")
    with pytest.raises(ConfigError, match=message):
        load_config(tmp_path / "x.yaml", overrides)
