"""Runs of a config without output_dir: each has its own folder, named after the config."""

import os
import re

import pytest

from paddlevideo_fast import assembly
from paddlevideo_fast.config import load_config
from paddlevideo_fast.engine.output import folder_of_run, newest_run, run_with

SHORT = ["epochs=1", "validate=false", "use_visualdl=false"]


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def made(folder, at):
    folder.mkdir(parents=True)
    for name in ("config.yaml", "m_best.pdparams"):
        (folder / name).write_text("")
        os.utime(folder / name, (at, at))
    return folder


@pytest.mark.annex
def test_each_run_has_its_folder(work, motion_data, tiny_text, caplog):
    caplog.set_level("INFO", "paddlevideo_fast")
    (work / "my_set").mkdir()
    config = work / "my_set" / "config.yaml"
    config.write_text(tiny_text.format(data=motion_data, output="''"))
    first = assembly.train(load_config(config, SHORT))
    assert first.last_checkpoint == "output/my_set/tiny_epoch_00001"
    assert load_config("output/my_set/config.yaml")["output_dir"] == "output/my_set"
    second = assembly.train(load_config(config, [*SHORT, "max_iters=1"]))
    assert second.last_checkpoint == "output/my_set_2/tiny_epoch_00001"
    assert "output/my_set holds an earlier run: this one writes to output/my_set_2" in caplog.text
    assembly.train(load_config(config, [*SHORT, "epochs=2", "resume=auto", "max_iters=1"]))
    assert sorted(os.listdir("output")) == ["my_set", "my_set_2"]
    assert re.search(r"resumed output/my_set_2/tiny_epoch_00001", caplog.text)
    assembly.test(load_config(config, [*SHORT, "weights=output/my_set/tiny_epoch_00001.pdparams"]))
    assert (work / "output/my_set/test/metrics.json").exists()


def test_which_folder_a_run_takes(work):
    base = work / "output" / "a"
    assert (folder_of_run(base), folder_of_run(base, "auto"), newest_run(base)) == (base, base, None)
    for name, at in (("a", 10), ("a_2", 30), ("a_3", 20), ("a_b", 50)):
        made(work / "output" / name, at)
    assert folder_of_run(base) == work / "output" / "a_4"
    assert folder_of_run(base, "auto") == newest_run(base) == work / "output" / "a_2"
    assert folder_of_run(base, str(base / "m_epoch_00001")) == base
    assert folder_of_run(base, str(work / "output" / "a_3")) == work / "output" / "a_3"
    assert folder_of_run(base, "elsewhere/m_epoch_00001") == work / "output" / "a_4"
    assert run_with(base, "elsewhere/x.pdparams") is None
    (work / "output" / "a_4").mkdir()
    (work / "output" / "a_4" / ".lock").touch()  # another run begins there
    assert folder_of_run(base) == work / "output" / "a_5"


@pytest.mark.parametrize(("path", "name"), [("sets/my.v2.yaml", "my.v2"), ("my/config.yaml", "my")])
def test_the_name_is_that_of_the_config(work, tiny_text, path, name):
    (work / path).parent.mkdir()
    (work / path).write_text(tiny_text.format(data=work, output="''"))
    assert load_config(path).name == name
