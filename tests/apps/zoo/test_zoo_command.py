"""`paddlevideo-fast zoo`: what the built-in configs need, and where their weights come from."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from paddlevideo_fast.apps.zoo.zoo import read_zoo, source_of_weights
from paddlevideo_fast.cli.commands import COMMANDS
from paddlevideo_fast.config.builtin import built_in_configs
from paddlevideo_fast.errors import AnnotationError, WeightError

main = COMMANDS["zoo"].start

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def entries():
    return {entry.name: entry for entry in read_zoo()}


def test_every_config_is_listed_once(entries):
    assert list(entries) == list(built_in_configs())


def test_each_network_has_its_parameters(entries, capsys):
    """tools/model_zoo.py counts them; the benchmark of networks did, too."""
    rows = json.loads((ROOT / "benchmarks/results/networks.json").read_text())["result"]["rows"]
    assert {name: entries[name].num_parameters for name in rows} == {
        name: row["parameters"] for name, row in rows.items()
    }
    assert all(entry.num_parameters > 1000 for entry in entries.values())
    assert main(["tsm_k400_videos"]) == 0
    assert "size         24.3 M parameters, about 97.3 MB of weights\n" in capsys.readouterr().out


def test_an_entry_says_what_its_config_says(entries):
    entry = entries["slow_ucf101_videos"]
    assert (entry.network, entry.data, entry.stored_as, entry.clip) == (
        "ResNetSlow 50",
        "UCF101",
        "videos",
        "8×4",
    )
    assert entry.lists == tuple(f"data/ucf101/ucf101_{part}_split_1_videos.txt" for part in ("train", "val"))
    assert (entry.pretrained, entry.epochs) == (("data/slow_8x8_k400.pdparams",), 40)
    assert [result.top1 for result in entry.published] == [92.78]
    student = entries["pptsm_lcnet_k400_8frames_uniform_dml_distillation"]
    assert (student.network, len(student.pretrained)) == ("PPTSM_v2", 2)


def test_all_weights_that_a_training_starts_from_have_a_source(entries):
    for entry in entries.values():
        assert all(source_of_weights(file) for file in entry.pretrained), entry.name
    assert source_of_weights("x/ResNet50_pretrain.pdparams").startswith("download it from https://videotag")
    assert source_of_weights("mine.pdparams") == ""


def test_weights_that_are_not_there_say_where_they_come_from(tmp_path):
    from paddlevideo_fast.modeling.weights import read_weights

    with pytest.raises(
        WeightError, match="no such file; download it from https://.*/ResNet50_pretrain.pdparams"
    ):
        read_weights(tmp_path / "ResNet50_pretrain.pdparams")
    with pytest.raises(WeightError, match="no such file; check the path"):
        read_weights(tmp_path / "mine.pdparams")


def test_a_list_that_is_not_there_says_what_writes_it(tmp_path, monkeypatch):
    from paddlevideo_fast.loader.annotations import read_video_list

    monkeypatch.chdir(tmp_path)
    with pytest.raises(AnnotationError, match="list; type  paddlevideo-fast data k400  or check file_path"):
        read_video_list("data/k400/train.list")
    with pytest.raises(AnnotationError, match="such list; check file_path"):
        read_video_list("data/mine/train.list")


def test_a_name_tells_all_about_it(capsys):
    assert main(["slow_ucf101_videos"]) == 0
    text = capsys.readouterr().out
    assert "paddlevideo-fast data ucf101  writes them" in text
    assert "train slow_8x8 for it, or convert published weights: paddlevideo-fast zoo slow_8x8" in text
    assert "top-1 92.78, top-5 99.42: Slow-only R50" in text

    assert (
        "paddlevideo-fast convert slow_ucf101_videos --from mmaction2 --src slowonly_k400_pretrained" in text
    )


def test_all_words_count(capsys):
    """Also where one of them alone is the name of a config."""
    assert main(["slowfast", "8x8"]) == 0
    shown = capsys.readouterr().out
    assert "slowfast_8x8" in shown
    assert "slowfast_4x16" not in shown


def test_json(capsys):
    """JSON lines: an object for each config."""
    assert main(["--json", "tsm_motion", "tsn_motion"]) == 0
    entry, other = map(json.loads, capsys.readouterr().out.splitlines())
    assert other["name"] == "tsn_motion"
    assert (entry["name"], entry["clip"], entry["published"]) == ("tsm_motion", "8", [])


def test_help_of_the_script_that_writes_the_pages_writes_nothing(monkeypatch, capsys):
    page = ROOT / "docs/en/model_zoo.md"
    before = page.stat().st_mtime_ns
    monkeypatch.setattr(sys, "argv", ["tools/model_zoo.py", "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / "tools/model_zoo.py"), run_name="__main__")
    assert end.value.code == 0
    assert "usage: tools/model_zoo.py" in capsys.readouterr().out
    assert page.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("words", "top1"),
    [
        (["slowfast", "8x8"], "77.00"),
        (["x3d", "m"], "76.20"),
        (["tsm", "k400", "videos"], "73.18"),
        (["slowfast", "16x8", "ssv2", "videos"], "63.00"),
        (["pptsm", "k400", "frames", "uniform"], "74.54"),
    ],
)
def test_the_list_has_the_accuracy_of_the_config_as_it_is(words, top1, capsys):
    """Not of R101 or X3D-L, which need options, nor of a longer training or a distilled network."""
    assert main(words) == 0
    line = next(
        line for line in capsys.readouterr().out.splitlines() if line.startswith("_".join(words) + " ")
    )
    assert line.split()[-1] == top1


def test_what_needs_options_comes_last(entries):
    for entry in entries.values():
        needs = [bool(result.options) for result in entry.published]
        assert needs == sorted(needs)
