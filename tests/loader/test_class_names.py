"""Which names the classes of a config and of weights have, and what is said where they cannot be compared."""

import json
import logging

import pytest

from paddlevideo_fast.config import Config
from paddlevideo_fast.errors import AnnotationError, ObjectMissingError, StoreAccessError, StoreAwayError
from paddlevideo_fast.loader import class_names
from paddlevideo_fast.loader.class_names import classes_of_config, classes_of_weights, compared

WEIGHTS = "https://example.org/run/net_best.pdparams?signature=a/b"


def config(folder, **section):
    return Config({"DATASET": {"train": {"file_path": str(folder / "train.list")}, **section}})


@pytest.fixture
def trained(tmp_path):
    """A checkpoint and best weights, of which a mark and a file say the names."""
    (tmp_path / "net_best.pdparams").touch()
    (tmp_path / "class_names.txt").write_text("run\nwalk\n")
    (tmp_path / "net_epoch_00001.json").write_text(json.dumps({"class_names": ["walk", "run"]}))
    return tmp_path


def test_a_config_without_names_has_those_beside_its_lists(tmp_path):
    assert classes_of_config(config(tmp_path), 2) is None
    (tmp_path / "classes.txt").write_text("walk\nrun\n")
    found = classes_of_config(config(tmp_path), 2)
    assert found == (["walk", "run"], str(tmp_path / "classes.txt"))
    assert classes_of_config(config(tmp_path), 3) is None, "a file for other classes"
    (tmp_path / "own.txt").write_text("run\nwalk\n")
    named = config(tmp_path, class_names=str(tmp_path / "own.txt"))
    assert classes_of_config(named, 2).names == ["run", "walk"]


def test_a_checkpoint_knows_its_names(trained):
    assert classes_of_weights(f"{trained}/net_best.pdparams").names == ["run", "walk"]
    checkpoint = f"{trained}/net_epoch_00001.pdparams"
    assert classes_of_weights(checkpoint).names == ["walk", "run"]
    for content in ("{}", '{"class_names": [1]}', "[", "[]"):
        (trained / "net_epoch_00001.json").write_text(content)
        assert classes_of_weights(checkpoint).names == ["run", "walk"], "the file says it"


def test_weights_without_names_are_told(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    (tmp_path / "classes.txt").write_text("walk\nrun\n")
    classes = classes_of_config(config(tmp_path), 2)
    assert compared(classes, f"{tmp_path}/net.pdparams") == classes
    assert compared(None, f"{tmp_path}/net.pdparams") is None
    assert [record.getMessage() for record in caplog.records] == [
        f"classes not compared: no class_names.txt beside {tmp_path}/net.pdparams"
    ]


@pytest.mark.annex
@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ObjectMissingError("key", "there is none"), None),
        (StoreAccessError("403"), None),  # as stores that do not let their keys be listed answer
        (StoreAwayError("does not answer"), StoreAwayError),
        (OSError("disk full"), AnnotationError),
    ],
)
def test_only_what_is_not_there_is_no_names(monkeypatch, caplog, error, raised):
    asked = []

    def local_copy(path):
        asked.append(str(path))
        raise error

    monkeypatch.setattr(class_names, "local_copy", local_copy)
    if raised is None:
        assert classes_of_weights(WEIGHTS) is None
    else:
        with pytest.raises(raised):
            classes_of_weights(WEIGHTS)
    assert asked == ["https://example.org/run/class_names.txt"]
    assert ("classes not compared: 403" in caplog.text) == isinstance(error, StoreAccessError)
