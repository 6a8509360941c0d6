import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddlevideo_fast.config import Config
from paddlevideo_fast.config.load import apply_overrides, load_config, merge
from paddlevideo_fast.config.yaml_source import dump
from paddlevideo_fast.errors import ConfigError


def changed(*overrides):
    config = Config({"a": {"b": [{"c": 1}, {"c": 2}], "flip": None}, "n": 3}, {(): "t", ("a",): "t:1"})
    return config, apply_overrides(config, overrides)


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("n=1e-4", 1e-4),
        ("n=5", 5),
        ("n=a=b=c", "a=b=c"),
        ("n=", None),
        ("n=__import__('os').system('touch x')", "__import__('os').system('touch x')"),
        ("n=[1, 2]", [1, 2]),
        ("n={x: {y: 1}}", {"x": {"y": 1}}),
        ("n='5'", "5"),
        ("n=img_{:05}.jpg", "img_{:05}.jpg"),
        (" n =true", True),
    ],
)
def test_values_are_yaml(text, value):
    config, problems = changed(text)
    assert problems == []
    assert config["n"] == value
    assert type(config["n"]) is type(value)


def test_paths_reach_into_lists_and_add_leaves():
    config, problems = changed("a.b.1.c=9", "a.b.0.new=x", "a.flip.prob=0.3", "z={k: [1]}")
    assert problems == []
    assert config["a"] == {"b": [{"c": 1, "new": "x"}, {"c": 9}], "flip": {"prob": 0.3}}
    assert config.origins["a", "b", 1, "c"] == "-o #1"
    assert config.origins["a", "flip", "prob"] == "-o #3"
    assert config.origins["z", "k", 0] == "-o #4"
    assert config.origins["a",] == "t:1"


def test_a_section_that_the_schema_knows_needs_not_be_there():
    config = Config({"n": 3}, {(): "t"})
    assert apply_overrides(config, ["RUNTIME.cinn=true"]) == []
    assert config == {"n": 3, "RUNTIME": {"cinn": True}}
    assert config.origins["RUNTIME", "cinn"] == "-o #1"
    assert apply_overrides(config, ["n.x=1"]) == ["-o #1  n=3: is a value, 'x' cannot be set in it"]


def test_later_overrides_win():
    assert changed("n=1", "n=2")[0]["n"] == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a.b.2.c=1", "-o #1  a.b.2: '2' is no index of this list (0 'c', 1 'c')"),
        ("a.b.-1.c=1", "-o #1  a.b.-1: '-1' is no index of this list (0 'c', 1 'c')"),
        ("a.b.x=1", "-o #1  a.b.x: 'x' is no index of this list (0 'c', 1 'c')"),
        ("n.x=1", "-o #1  n=3: is a value, 'x' cannot be set in it"),
        ("n.x.y=1", "-o #1  n=3: is a value, 'x' cannot be set in it"),
        ("fla.b=1", "-o #1  fla: there is no such section; known: a, n"),
        ("a.flop.b=1", "-o #1  a.flop: there is no such section; did you mean 'flip'?"),
        ("n", "-o #1  'n': expected KEY=VALUE, for example OPTIMIZER.learning_rate.values.0=0.1"),
        ("=3", "-o #1  '=3': expected KEY=VALUE, for example OPTIMIZER.learning_rate.values.0=0.1"),
        ("a..b=3", "-o #1  'a..b=3': expected KEY=VALUE, for example OPTIMIZER.learning_rate.values.0=0.1"),
        (
            "n=[1",
            "-o #1  n='[1': not valid YAML: while parsing a flow sequence, "
            "expected ',' or ']', but got '<stream end>'",
        ),
    ],
)
def test_what_cannot_be_applied(text, problem):
    config, problems = changed(text)
    assert problems == [problem]
    assert config["n"] == 3


def test_overrides_and_content_are_reported_together(write, root):
    with pytest.raises(ConfigError) as caught:
        load_config(write("a.yaml"), ["nonsense", "MODEL.backbone.depth=fifty", "epochs=0"], root=root)
    assert caught.value.problems == [
        "-o #1  'nonsense': expected KEY=VALUE, for example OPTIMIZER.learning_rate.values.0=0.1",
        "-o #3  epochs=0: expected int, at least 1",
        "-o #2  MODEL.backbone.depth='fifty': expected int",
    ]


@pytest.mark.parametrize("key", ["format", "framework"])
def test_only_the_key_that_names_a_component_changes_it(key):
    """Another argument with the name that other sections give it is an argument."""
    config = Config({"MODEL": {"head": {"name": "Own", key: "a", "width": 3}}})
    assert apply_overrides(config, [f"MODEL.head.{key}=b"]) == []
    assert config["MODEL"]["head"] == {"name": "Own", key: "b", "width": 3}
    assert config.inherited == {}
    merge(config, Config({"MODEL": {"head": {key: "c"}}}))
    assert config.inherited == {}
    assert apply_overrides(config, ["MODEL.head.name=Other"]) == []
    assert set(config.inherited) == {("MODEL", "head", key), ("MODEL", "head", "width")}


def test_an_argument_called_name_of_a_transform_is_an_argument():
    config = Config({"PIPELINE": {"train": {"transform": [{"Own": {"name": "a", "width": 3}}]}}})
    assert apply_overrides(config, ["PIPELINE.train.transform.0.Own.name=b"]) == []
    assert config.inherited == {}


KEYS = st.text("abcdefgh_", min_size=1, max_size=5)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text("ab01:=.{}'\"- #", max_size=8),
    lambda child: st.lists(child, max_size=3) | st.dictionaries(KEYS, child, max_size=3),
    max_leaves=6,
)


@given(st.lists(KEYS, min_size=1, max_size=4), VALUES)
def test_any_value_arrives_at_its_place_only(path, value):
    config = Config({"untouched": {"x": 1}})
    section = config
    for key in path[:-1]:
        section = section.setdefault(key, {})
    assert apply_overrides(config, [f"{'.'.join(path)}={dump(value)}"]) == []
    found = config
    for key in path:
        found = found[key]
    assert found == value
    assert config["untouched"] == {"x": 1}
