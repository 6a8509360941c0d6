"""Data tools take the folder of a set, or one of its lists, and read its config.yaml."""

import json
import shutil

import pytest

from paddlevideo_fast.cli.commands import main

CLASSES = ("run", "walk")


@pytest.fixture
def made(make_clip, tmp_path, monkeypatch, capfd):
    """The folder of a set that `init` has made, of 20 videos; the working folder is another one."""
    for number in range(20):
        make_clip(tmp_path / "videos" / CLASSES[number % 2] / f"{number}.mp4", 20, size=(80, 48))
    assert (
        main(
            [
                "init",
                str(tmp_path / "videos"),
                "--output",
                str(tmp_path / "set"),
                "--workers",
                "1",
                "--copies",
                "ignore",
                "--no_measure",
            ]
        )
        == 0
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    capfd.readouterr()
    return tmp_path / "set"


@pytest.fixture
def data(capfd):
    """`data(words)`: exit code, stdout and stderr of a data tool."""

    def run(*words):
        code = main(["data", *map(str, words), "--workers", "1"])
        return code, *capfd.readouterr()

    return run


def test_tools_read_a_set(made, data, tmp_path):
    prefix = tmp_path / "videos"
    code, out, err = data("check", made)
    assert (code, out) == (0, "intact files: 16 of 16\nintact files: 4 of 4\n")
    assert (
        f"{made}/train.list, as {made}/config.yaml has it: --data_prefix {prefix} --class_names {made}" in err
    )
    assert data("check", made / "valid.list")[:2] == (0, "intact files: 4 of 4\n")
    assert data("check", made / "train.list", "--against", made / "valid.list")[0] == 0
    code, out, _ = data("check", made, "--duplicates")  # the clips show the same
    assert code == 1
    assert f"leak: {made}/train.list:1: " in out
    code, out, _ = data("report", made)
    assert code == 0
    for side in ("train", "valid"):
        assert f"{made}/{side}_report/report.html: " in out
        assert "walk" in (made / f"{side}_report/report.html").read_text()
    assert data("prepare", "--list", made, "--output", tmp_path / "prepared", "--preset", "intra")[0] == 0
    for side in ("train", "valid"):
        assert (tmp_path / f"prepared/{side}.list").read_text() == (made / f"{side}.list").read_text()
    assert data("extract", made, tmp_path / "frames", "--short_side", "16")[0] == 0
    for side, number in (("train", 16), ("valid", 4)):
        assert len((tmp_path / f"frames/{side}.list").read_text().splitlines()) == number
    assert data("pack", "--list", made / "valid.list", "--output", tmp_path / "packed")[0] == 0
    code, _, err = data("pack", "--list", made, "--output", tmp_path / "packed")
    assert code == 2
    assert f"{made}: this command is for one list; name {made}/train.list or {made}/valid.list" in err


def test_what_a_set_lacks_is_told(made, data, tmp_path):
    first = (made / "valid.list").read_text().splitlines()[0]
    with open(made / "train.list", "a") as file:
        file.write(f"{first}\n")
    (tmp_path / "videos" / (made / "valid.list").read_text().splitlines()[1].rsplit(" ", 1)[0]).write_bytes(
        b""
    )
    code, out, _ = data("check", made)
    assert code == 1
    assert "is in" in out
    assert "the file is empty (0 bytes)" in out
    assert data("check", made, "--output", tmp_path / "x.list")[0] == 2
    # flags win, and what is beside a list need not be about it
    assert data("check", made / "train.list", "--data_prefix", tmp_path)[0] == 1
    (made / "other.list").write_text(f"{tmp_path}/videos/run/0.mp4 0\n")
    assert data("check", made / "other.list")[:2] == (0, "intact files: 1 of 1\n")
    shutil.rmtree(tmp_path / "videos")
    code, _, err = data("check", made)
    assert code == 2
    assert f"{made}/config.yaml: data_prefix {tmp_path}/videos: no such folder" in err
    (made / "config.yaml").write_text("DATASET: [\n")
    assert data("check", made)[0] == 2
    (made / "config.yaml").write_text("seed: 3\n")
    code, _, err = data("check", made)
    assert code == 2
    assert f"{made}: its config.yaml names no list that is there" in err


def test_predictions_of_the_other_list_are_told(made, data, tmp_path):
    """A training predicts its validation list; the list that it has trained on has no predictions."""
    (path, label), *_ = (line.rsplit(" ", 1) for line in (made / "valid.list").read_text().splitlines())
    row = {"path": f"{tmp_path}/videos/{path}", "label": int(label), "name": "", "num_views": 1}
    row["top"] = [{"label": int(label), "name": "", "score": 1.0}]
    (tmp_path / "predictions.jsonl").write_text(json.dumps(row))
    code, _, err = data("report", made / "train.list", "--run", tmp_path)
    assert code == 2
    assert f"are of other videos than this list, such as {tmp_path}/videos/{path}; a training predicts" in err
    assert data("report", made / "valid.list", "--run", tmp_path)[0] == 0
    code, _, err = data("report", made / "valid.list", "--run", tmp_path, "--data_prefix", "/")
    assert code == 2
    assert "if the videos are the same, give the --data_prefix of the training" in err
    code, _, err = data("report", made, "--run", tmp_path)
    assert f"{made}: --run is for one list; name {made}/train.list or" in err
