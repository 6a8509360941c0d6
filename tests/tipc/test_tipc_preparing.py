"""prepare.sh: what is there is left alone, what can be made is made, the rest is an error."""

import pytest

from test_tipc.run import main
from test_tipc.tipc import preparing

LITE = "lite_train_lite_infer"
# Stands for data/make_motion_dataset.py.
FAKE_MAKER = """
import sys
from pathlib import Path
folder = Path(sys.argv[sys.argv.index("--output") + 1])
(folder / "valid").mkdir(parents=True, exist_ok=True)
for name in ("train.list", "valid.list"):
    (folder / name).write_text(" ".join(sys.argv))
"""
CONFIG = """
DATASET:
  train: {{format: VideoDataset, file_path: {train}}}
  valid: {{format: VideoDataset, file_path: {valid}}}
  test: {{format: VideoDataset, file_path: {valid}}}
"""


@pytest.fixture
def place(workplace, monkeypatch):
    """A workplace whose data sets can be made; a config is read without the check that needs all of it."""
    load = preparing.load_config
    monkeypatch.setattr(preparing, "load_config", lambda path, overrides: load(path, overrides, check=False))
    (workplace.root / "data").mkdir()
    (workplace.root / "data/make_motion_dataset.py").write_text(FAKE_MAKER)
    (workplace.root / "x.yaml").write_text(CONFIG.format(train="mine/train.list", valid="mine/valid.list"))
    workplace.change("norm_train", "tools/main.py --validate -c x.yaml")
    workplace.change("eval", "tools/main.py --test -c x.yaml")
    return workplace


def prepare(place, mode=LITE):
    return main(["prepare", str(place.text), mode])


def test_the_small_data_is_made_once(place, capsys):
    assert prepare(place) == 0
    made = place.root / "test_tipc/data/motion/train.list"
    assert "--output test_tipc/data/motion --train 64 --valid 16" in made.read_text()
    made.write_text("mine")
    assert prepare(place) == 0
    assert made.read_text() == "mine"
    assert "ready for lite_train_lite_infer" in capsys.readouterr().out
    assert not place.calls()


def test_whole_modes_take_the_data_of_the_config(place, capsys):
    assert prepare(place, "whole_train_whole_infer") == 2
    shown = capsys.readouterr().err
    assert "tsm.txt:16: mine/train.list: no such file; put your data there" in shown
    (place.root / "mine").mkdir()
    for name in ("train.list", "valid.list"):
        (place.root / "mine" / name).write_text("")
    assert prepare(place, "whole_train_whole_infer") == 0
    assert (place.root / "test_tipc/data/motion/valid").is_dir()  # what is predicted
    assert prepare(place, "lite_train_whole_infer") == 0
    assert not place.calls()


def test_a_generated_whole_set_has_the_size_of_its_config(place):
    for folder, size in (("data/motion", ""), ("data/motion_small", " --train 3000")):
        config = CONFIG.format(train=f"{folder}/train.list", valid=f"{folder}/valid.list")
        (place.root / "x.yaml").write_text(config)
        assert prepare(place, "whole_train_whole_infer") == 0
        assert (place.root / folder / "train.list").read_text().endswith(f"--output {folder}{size}")


def test_weights_of_whole_infer_are_trained_where_they_may_be(place, capsys):
    assert prepare(place, "whole_infer") == 0
    assert place.stages() == ["train"]
    weights = place.root / "test_tipc/data/TSM.pdparams"
    assert weights.read_text() == "00002"
    weights.write_text("mine")
    assert prepare(place, "whole_infer") == 0
    assert weights.read_text() == "mine"
    place.change("infer_model", "elsewhere.pdparams")
    assert prepare(place, "whole_infer") == 2
    assert "elsewhere.pdparams: no such file; put the weights there" in capsys.readouterr().err
    assert place.stages() == ["train"]


def test_what_fails_while_it_is_made_ends_with_1(place):
    place.break_stages("train")
    assert prepare(place, "whole_infer") == 1
    assert not (place.root / "test_tipc/data/TSM.pdparams").exists()
    (place.root / "data/make_motion_dataset.py").write_text("raise SystemExit(5)")
    (place.root / "test_tipc/data/motion").rename(place.root / "away")
    assert prepare(place) == 1


def test_arguments_that_no_tool_takes_end_with_2(place, capsys):
    place.change("norm_train", "tools/main.py --validat -c x.yaml --quick")
    assert prepare(place) == 2
    assert "tsm.txt:16: tools/main.py does not take these arguments" in capsys.readouterr().err
    place.change("trainer", "pact_train")
    place.change("pact_train", "tools/main.py --quick -c x.yaml")
    assert prepare(place) == 2
    assert "tsm.txt:17: tools/main.py does not take" in capsys.readouterr().err
    place.change("trainer", "norm_train")
    place.change("norm_train", "tools/main.py -c missing.yaml")
    assert prepare(place) == 2
    assert "missing.yaml" in capsys.readouterr().err
    place.change("norm_train", "tools/main.py -c x.yaml")
    place.change("--input_file", "test_tipc/data/motion/film.mp4")
    assert prepare(place) == 2
    assert "film.mp4: is not part of the generated test_tipc/data/motion" in capsys.readouterr().err
