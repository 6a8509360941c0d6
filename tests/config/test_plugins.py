"""Components of users: what a config, an override or an installed package names, and what may go wrong."""

import pickle
import sys
import textwrap

import pytest

from paddlevideo_fast import plugins
from paddlevideo_fast.config import build, load_config
from paddlevideo_fast.registry import METRICS
from tests.config.conftest import problems_of

CONFIG = """
MODEL:
  framework: Recognizer2D
  backbone: {name: ResNetTSM, depth: 50}
  head: {name: TSMHead, num_classes: 4, in_channels: 2048}
DATASET: {batch_size: 4}
PIPELINE: {}
model_name: mine
epochs: 1
"""
METRIC = """
from paddlevideo_fast.registry import METRICS

@METRICS.register()
class %s:
    def __init__(self, limit: int = 3) -> None:
        self.limit = limit
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """`write("a/b.py", text)` writes a file below an empty current folder."""
    monkeypatch.chdir(tmp_path)
    METRICS.names()  # the toolkit's own are there
    known = dict(METRICS._entries)

    def put(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    yield put
    METRICS._entries = known


def test_files_are_found_from_the_config_that_names_them(write, tmp_path):
    write("team/parts.py", METRIC % "TeamMetric")
    write("team/base.yaml", CONFIG + "imports: ./parts.py\nMETRIC: {name: TeamMetric}\n")
    write("own/more/__init__.py", "from .metric import OwnMetric")
    write("own/more/metric.py", METRIC % "OwnMetric")
    write("third.py", METRIC % "ThirdMetric")
    config = write("own/run.yaml", "_BASE_: ../team/base.yaml\nimports: [./more]\nMETRIC: {limit: 5}\n")
    write("fourth.py", METRIC % "FourthMetric")
    cfg = load_config(config, ["imports=[third.py]", "imports=[fourth.py]"])
    places = [str(tmp_path / name) for name in ("team/parts.py", "own/more", "third.py", "fourth.py")]
    assert cfg["imports"] == places
    metric = build(METRICS, cfg["METRIC"])
    assert (type(metric).__name__, metric.limit) == ("TeamMetric", 5)
    assert pickle.loads(pickle.dumps(metric)).limit == 5
    cfg.save("elsewhere.yaml")
    assert load_config("elsewhere.yaml")["imports"] == places  # imported already, so registered once
    assert problems_of(config, "METRIC={name: OwnMetric, limit: many}") == [
        "-o #1  METRIC.limit='many': expected int"
    ]


def test_a_config_that_is_not_checked_imports_nothing(write):
    write("parts.py", "raise ValueError('imported')")
    config = write("run.yaml", CONFIG + "imports: [./parts.py]")
    assert load_config(config, check=False)["model_name"] == "mine"


def test_an_installed_package_registers_by_its_entry_point(write, monkeypatch):
    write("installed/pointed.py", METRIC % "PointedMetric")
    write("installed/pointed-1.0.dist-info/METADATA", "Name: pointed\nVersion: 1.0\n")
    point = "[paddlevideo_fast.plugins]\npointed = %s\n"
    write("installed/pointed-1.0.dist-info/entry_points.txt", point % "pointed")
    monkeypatch.syspath_prepend("installed")
    config = write("run.yaml", CONFIG + "METRIC: {name: PointedMetric}")
    plugins.installed_imports.cache_clear()
    try:
        assert build(METRICS, load_config(config)["METRIC"]).limit == 3
        write("installed/pointed-1.0.dist-info/entry_points.txt", point % "gone")
        plugins.installed_imports.cache_clear()
        (problem,) = problems_of(config)
        assert problem.startswith(
            "entry point 'pointed' of paddlevideo_fast.plugins: gone cannot be imported"
        )
    finally:
        plugins.installed_imports.cache_clear()
        sys.modules.pop("pointed", None)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("import json\n\nnowhere()\n", "NameError: name 'nowhere' is not defined ({file}:3)"),
        ("def f():\n    raise ValueError('a\\nb')\nf()\n", "ValueError: a b ({file}:3, in {file}:2)"),
        ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module' ({file}:1)"),
        ("x = (\n", "SyntaxError: '(' was never closed ({file}:1)"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3 ({file}:2)"),
        (METRIC.replace("()\n", "\n", 1) % "Bare", "TypeError: the decorator of Bare lacks its parentheses"),
        (METRIC.replace("class %s:", "def function():"), "TypeError: <function function at "),
        (METRIC % "CenterCropMetric", "ValueError: metric 'CenterCropMetric' is registered twice: in "),
    ],
)
def test_what_an_import_breaks_is_one_line(write, text, cause):
    file = write("parts.py", text)
    config = write("run.yaml", f"imports:\n- ./parts.py\n{CONFIG}METRIC: {{name: Unknown}}\n")
    before = set(sys.modules)
    (problem,) = problems_of(str(config))
    start = f"{config}:2  imports: {file} cannot be imported: "
    assert problem.startswith(start + cause.format(file=file))
    assert "\n" not in problem
    assert not any(name.startswith("plugin_") for name in set(sys.modules) - before)


@pytest.mark.parametrize(
    ("hint", "cause"),
    [
        ("Nowhere", "NameError: name 'Nowhere' is not defined"),
        ("typing.Callable", "TypeError: the check of configs does not know what fits"),
    ],
)
def test_an_annotation_that_cannot_be_checked_is_told(write, hint, cause):
    text = "from __future__ import annotations\nimport typing\n" + METRIC % "Annotated"
    write("parts.py", text.replace("limit: int", f"limit: {hint}"))
    (problem,) = problems_of(write("run.yaml", CONFIG + "imports: ./parts.py\nMETRIC: {name: Annotated}"))
    assert f"METRIC.name: the constructor of Annotated cannot be checked: {cause}" in problem


def test_a_name_registered_twice_is_told_with_both_places(write):
    first, second = write("a.py", METRIC % "Same"), write("b.py", "\n" + METRIC % "Same")
    (problem,) = problems_of(write("run.yaml", CONFIG + "imports: [./a.py, ./b.py]"))
    assert f"metric 'Same' is registered twice: in {first}:4 and in {second}:5; give one" in problem


def test_a_file_that_was_put_right_is_imported_anew(write):
    config = write("run.yaml", CONFIG + "imports: ./parts.py\nMETRIC: {name: Repaired}\n")
    file = write("parts.py", METRIC % "Repaired" + "\nnowhere()\n")
    assert "nowhere" in problems_of(config)[0]
    file.write_text(METRIC % "Repaired")
    assert build(METRICS, load_config(config)["METRIC"]).limit == 3


@pytest.mark.parametrize(
    ("imports", "problem"),
    [
        ("./none.py", "imports: {folder}/none.py cannot be imported: there is no file {folder}/none.py"),
        ("./", "imports: {folder} cannot be imported: there is no file {folder}/__init__.py"),
        (
            "no_such.parts",
            "imports: no_such.parts cannot be imported: No module named 'no_such'; it has to be",
        ),
        ("5", "imports=5: expected a module or file, or a list of them"),
        ("[[a]]", "imports=[['a']]: expected a module or file"),
    ],
)
def test_what_is_not_there_is_told(write, tmp_path, imports, problem):
    config = write("run.yaml", f"imports: {imports}\n{CONFIG}")
    (found,) = problems_of("run.yaml")
    assert found.startswith(f"run.yaml:1  {problem.format(folder=tmp_path)}")
    assert config.exists()
