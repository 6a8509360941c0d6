"""What worked at revision 3a6f499 works: commands, flags, configs, public names and files on disk.

The lists beside this file say what users may rely on. A list grows when something new is to stay. Taking out
a line breaks a promise.
"""

import gzip
import importlib
import inspect
import json
import re
import runpy
import shutil
from pathlib import Path

import pytest

from paddlevideo_fast.apps.predict.predictor import Predictor
from paddlevideo_fast.cli import main
from paddlevideo_fast.config import load_config
from paddlevideo_fast.loader.build import build_pipeline
from paddlevideo_fast.loader.dataset import VideoDecoder
from tests.compat.present import config_keys, options_of, read_list
from tests.support.tools import SCRIPTS
from tools.config_reference import reference

ROOT = Path(__file__).resolve().parents[2]
OLD_FILES = ROOT / "tests" / "data" / "3a6f499"
COMMANDS = read_list("commands")
NAMES = read_list("names")

pytestmark = pytest.mark.smoke


def lost_options(old, new):
    """What a command line with the options `old` may write that a parser with the options `new` refuses."""
    kinds = {name: kind for names, kind in new.items() for name in names.split()}
    together = {name: names.split() for names in new for name in names.split()}
    for names, kind in old.items():
        first, *others = names.split()
        for name in (first, *others):
            taken = {*re.findall(r"[^ ,]+", kinds.get(name, "")), "required"}
            if "many" in taken and "words" not in old:  # else it would swallow the words behind its value
                taken.add("one")
            # a flag that takes any value may take more than those of a list that it had
            wanted = kind if "of" in taken else re.sub(r" of [^,]+", "", kind)
            if name not in kinds:
                yield f"{name} is gone"
            elif not set(re.findall(r"[^ ,]+", wanted)) <= taken:
                yield f"{name}: {kinds[name]} in place of {kind}"
            elif first in kinds and first not in together[name]:
                yield f"{name} no longer means {first}"
    needed = {names for names, kind in new.items() if kind.endswith("required") and names != "words"}
    for names in needed:
        if not any(
            old.get(known, "").endswith("required")
            for known in old
            if set(known.split()) & set(names.split())
        ):
            yield f"{names} is required now"
    if "words" in old and new["words"].count("required") > old["words"].count("required"):
        yield f"words: {new['words']}"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_its_options(command):
    lost = list(lost_options(COMMANDS[command] or {}, options_of(command)))
    assert not lost, f"{command}: {lost}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_subcommand_takes_what_its_script_takes(name):
    assert options_of(f"-m paddlevideo_fast {name}") == options_of(SCRIPTS[name].split()[0])


def test_the_config_keeps_its_keys_and_their_defaults():
    old, new = read_list("config"), config_keys(reference("en"))
    lost = [section for section in old if section not in new]
    for section, keys in old.items():
        for key, default in keys.items():
            now = new.get(section, {}).get(key, "gone")
            if now != default and now != "ignored" and (now == "gone" or default != "required"):
                lost.append(f"{section} {key}: {now}, was {default}")
        added = set(new.get(section, {})) - set(keys)
        lost += [f"{section} {key}: required, is new" for key in added if new[section][key] == "required"]
    assert not lost


@pytest.mark.parametrize("command", ["-m paddlevideo_fast train", "-m paddlevideo_fast test"])
def test_a_run_has_no_new_flag(command):
    assert options_of(command).keys() == COMMANDS[command].keys()


def test_the_top_level_of_a_config_has_no_new_key():
    assert config_keys(reference("en"))["top level"].keys() == read_list("config")["top level"].keys()


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_a_config_of_paddlevideo_that_says_decord_is_read_exactly(split, caplog, monkeypatch):
    """Its frames are those that decord would take; `mode` has no effect without PyAV, as in PaddleVideo."""
    monkeypatch.setattr("paddlevideo_fast.log._warned", set())
    config = load_config(ROOT / "tests" / "config" / "paddlevideo" / "videoswin_base.yaml")
    decoder = build_pipeline(config["PIPELINE"][split]).decoder
    assert (decoder.backend, decoder.reader) == ("decord", "pyav")
    text = "backend: decord: pyav reads, exactly; decord itself is decord_library"
    assert caplog.messages.count(text) == 1
    assert VideoDecoder("decord_library").reader == "decord"


def test_every_file_is_there():
    assert [path for path in NAMES["files"] if not (ROOT / path).is_file()] == []


@pytest.mark.parametrize("name", NAMES["python"])
def test_every_public_name_takes_its_arguments(name):
    module, _, attribute = name.rpartition(".")
    found = getattr(importlib.import_module(module), attribute)
    wanted = NAMES["python"][name]
    if wanted:
        parameters = inspect.signature(found).parameters
        assert [name for name in parameters if name in wanted] == wanted


def test_the_example_of_the_python_interface_runs(run_script, tmp_path, monkeypatch):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    options = ("--train=16", "--valid=8", "--size=64", "--frames=8", "--workers=1")
    run_script("data/make_motion_dataset.py", "--output", tmp_path / "data" / "motion", *options)
    monkeypatch.chdir(tmp_path)
    state = runpy.run_path(str(Path(__file__).with_name("python_api_example.py")))["state"]
    assert state.step == 2


# --- files on disk: tests/data/3a6f499 holds a config, its packed frames, a checkpoint after the first of two
# epochs and the program exported from it. The numbers below are the results of that revision.


@pytest.fixture
def old_run(tmp_path, monkeypatch):
    folder = tmp_path / "old"
    shutil.copytree(OLD_FILES, folder)
    program = folder / "program" / "tiny.json"
    program.write_bytes(gzip.decompress(program.with_suffix(".json.gz").read_bytes()))
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("config", ["tiny.yaml", "run/config.yaml"])
def test_a_run_resumes_on_its_packed_frames(old_run, config):
    assert main(["-c", config, "-o", "resume=auto"]) == 0
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    losses = {(line["kind"], line["step"]): line["loss"] for line in lines}
    assert losses == pytest.approx(
        {
            ("train", 4): 0.6999715566635132,
            ("train", 5): 0.7076936960220337,
            ("train", 6): 0.5554255247116089,
            ("train_epoch", 6): 0.6543635924657186,
            ("valid", 6): 0.7043215334415436,
        },
        rel=1e-4,
    )
    assert Path("run/tiny_epoch_00002.pdparams").is_file()


def test_weights_are_evaluated(old_run):
    assert main(["-c", "tiny.yaml", "--test", "-w", "run/tiny_epoch_00001.pdparams"]) == 0
    result = json.loads(Path("run/test/metrics.json").read_text())
    assert (result["top1"], result["num_samples"]) == (0.5, 4)
    assert result["loss"] == pytest.approx(0.70071, rel=1e-4)


def test_an_exported_program_predicts(old_run):
    import paddle

    if paddle.__version__.startswith("2."):
        pytest.skip("Paddle 2 does not read a program of Paddle 3")
    prediction = next(iter(Predictor("program/tiny").predict([Path("clip.mp4")])))
    found = [(best.class_id, best.name, best.score) for best in prediction.top(2)]
    assert found == [
        (1, "right", pytest.approx(0.5136840343475342, rel=1e-4)),
        (0, "left", pytest.approx(0.4863159954547882, rel=1e-4)),
    ]
