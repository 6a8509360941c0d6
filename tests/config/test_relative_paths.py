"""The key `paths`: relative paths of a file's data start from its folder, or from the working folder."""

import pytest

from paddlevideo_fast.config import load_config
from paddlevideo_fast.errors import ConfigError


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
