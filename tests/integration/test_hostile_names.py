"""Names are data: every command takes any name that Linux takes, or names what it leaves out and goes on."""

import csv
import json
import os
import shutil
from pathlib import Path

import pytest

from paddlevideo_fast.apps.data.frames import extract
from paddlevideo_fast.apps.data.lists import build, check
from paddlevideo_fast.apps.data.packing import pack
from paddlevideo_fast.apps.data.videos import prepare_list
from paddlevideo_fast.cli import main
from paddlevideo_fast.cli.command import run_command
from paddlevideo_fast.cli.commands import main as commands_main
from paddlevideo_fast.config.load import load_config
from paddlevideo_fast.loader.annotations import read_frame_list, read_video_list
from paddlevideo_fast.loader.class_names import read_class_names
from paddlevideo_fast.log import printable
from tests.support.json_lines import entries_of
from tests.support.launching import overriding

# stems of videos, in the folder of a class; all end in .mp4
NAMES = [
    *(b"50%off", b"%d%s%(asctime)s", b"$x^$_{", b"\\back\\slash", b"q'uo\"te`", b"<script>alert(1)<", b"-rf"),
    *(b" lead", b"trail ", b"tab\there", b"cr\rcr", b"\x1b[31m", b"\xff\xe9t\xe9", b"a,b;c", b"#1", b"a:b"),
    *(b"new\nline", b"x" * 251, b"a..b", b"{0}{", "😀👩‍👧".encode(), "\u202eab\u2028c".encode()),
]
CLASSES = [b"$\\frac$", b"50%", b"<b>&", b"\xffclass", b"_hidden"]
UNLISTABLE_CLASSES = [b" lead", b"new\nclass"]


@pytest.fixture(scope="module")
def videos(tmp_path_factory, make_clip):
    """A folder of class folders: each name is in one class, and two classes cannot be listed."""
    root = tmp_path_factory.mktemp("hostile") / "videos"
    clip = make_clip(root.parent / "clip.mp4", 4, (32, 32))
    for place, name in enumerate(NAMES):
        folder = os.path.join(os.fsencode(root), CLASSES[place % len(CLASSES)])
        os.makedirs(folder, exist_ok=True)
        os.link(clip, os.path.join(folder, name + b".mp4"))
    for name in UNLISTABLE_CLASSES:
        folder = os.path.join(os.fsencode(root), name)
        os.makedirs(folder)
        os.link(clip, os.path.join(folder, b"a.mp4"))
    return root


def paths_below(root, keep=lambda path: True):
    found = (path.relative_to(root) for path in Path(root).rglob("*.mp4"))
    return sorted(str(path) for path in found if keep(str(path)))


def can_be_listed(path):
    return "\n" not in path and not path.startswith(" ")


def test_the_data_tools(videos, tmp_path, capfd):
    files = paths_below(videos, can_be_listed)
    assert len(files) == len(NAMES) - 1
    lists = tmp_path / "lists"
    options = ["--root", str(videos), "--kind", "video", "--valid_share", "0", "--relative"]
    assert run_command(build, [*options, "--output", str(lists)]) == 1
    told = capfd.readouterr().err
    assert told.count("failed: ") == 3
    assert "new\\nline.mp4: no list can hold a name with a line break" in told
    train = lists / "train.list"
    records = read_video_list(str(train))
    assert sorted(record.path for record in records) == files
    names = read_class_names(lists / "classes.txt", len(CLASSES))
    assert sorted(map(os.fsencode, names)) == sorted(CLASSES)
    assert all(names[record.label] == os.path.dirname(record.path) for record in records)

    where = ["--list", str(train), "--data_prefix", str(videos), "--workers", "1"]
    assert run_command(check, [*where, "--output_file", str(tmp_path / "clean.list")]) == 0
    assert (tmp_path / "clean.list").read_bytes() == train.read_bytes()
    options = [str(videos), "--workers", "1"]
    assert run_command(check, [*options, "--output_file", str(tmp_path / "all")]) == 1
    assert (tmp_path / "all.failures.txt").read_text().count("no list can hold") == 2
    assert len((tmp_path / "all").read_bytes().split(b"\n")) == len(files) + 2

    prepared = tmp_path / "prepared"
    assert run_command(prepare_list, [*where, "--output", str(prepared)]) == 0
    assert paths_below(prepared) == files
    assert (prepared / "train.list").read_bytes() == train.read_bytes()

    packed = ["--output", str(tmp_path / "packed"), "--shard_size", "9"]
    assert run_command(pack, [*where, *packed]) == 0

    capfd.readouterr()
    frames = tmp_path / "frames"
    assert run_command(extract, ["--root", str(videos), "--output", str(frames), "--workers", "1"]) == 1
    told = capfd.readouterr().err
    assert told.count("left out: ") == told.count("failed: ")
    # a folder of frames is named as its video without the ending
    folders = {path[: -len(".mp4")] for path in files}
    records = read_frame_list(str(frames / "rawframes.list"), str(frames))
    listed = {os.path.relpath(record.path, frames) for record in records}
    assert listed == {one for one in folders if one[-1] != " "}
    assert {record.num_frames for record in records} == {4}
    options = ["--root", str(frames), "--kind", "frames", "--valid_share", "0"]
    assert run_command(build, [*options, "--output", str(tmp_path / "f")]) == 0
    assert len(read_frame_list(str(tmp_path / "f" / "train.list"))) == len(records)


@pytest.fixture(scope="module")
def trained(videos, tmp_path_factory, tiny_text):
    """The folder of a training and a test on all names."""
    folder = tmp_path_factory.mktemp("run")
    options = ["--root", str(videos), "--kind", "video", "--valid_share", "0.5", "--relative"]
    assert run_command(build, [*options, "--output", str(folder)]) == 1
    text = tiny_text.format(data=folder, output="nowhere")
    for old, new in {
        f"data_prefix: {folder}": f"data_prefix: {videos}",
        "num_classes: 4": f"num_classes: {len(CLASSES)}",
        "report: false": "",
    }.items():
        text = text.replace(old, new)
    config = Path(os.fsdecode(os.fsencode(folder) + b"/\xff.yaml"))
    config.write_text(text)
    out = Path(os.fsdecode(os.fsencode(folder) + b"/o\xff:%d$ut#"))
    overrides = f"DATASET.class_names={folder}/classes.txt", "epochs=1", f"output_dir={out}"
    command = ["-c", str(config), *overriding(*overrides)]
    assert main(command) == 0
    assert main([*command, "--test", "-w", f"{out}/tiny_best.pdparams"]) == 0
    assert load_config(str(out / "config.yaml"))["output_dir"] == str(out)
    return folder, out


def test_training_and_testing(trained, videos):
    lists, ours = trained
    assert "WARNING" not in (ours / "train.log").read_text()
    for folder in (ours, ours / "test"):
        page = (folder / "report.html").read_text(encoding="utf-8")
        assert "<script>" not in page
        assert "\\udcffclass" in page
        assert list((folder / "vdl").glob("vdlrecords.*"))
    rows = [json.loads(line) for line in (ours / "test" / "predictions.jsonl").read_text().splitlines()]
    tested = {os.path.join(videos, record.path) for record in read_video_list(str(lists / "valid.list"))}
    assert {row["path"] for row in rows} == tested
    with (ours / "test" / "worst.csv").open(newline="", encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == len(tested)


@pytest.fixture(scope="module")
def exported(trained):
    """A program of the trained network."""
    lists, out = trained
    names = ["--class_names", f"{lists}/classes.txt"]
    command = ["-c", f"{out}/config.yaml", "-w", f"{out}/tiny_best.pdparams", *names, "--output"]
    assert commands_main(["export", *command, f"{out}/program"]) == 2  # Paddle takes no such path
    assert commands_main(["export", *command, f"{lists}/$p%: #"]) == 0
    return lists / "$p%: #"


@pytest.mark.slow
def test_predicting(exported, videos, tmp_path, capfd):
    (program,) = exported.glob("*.yaml")
    model = ["--model_file", str(program.with_suffix(""))]
    files = {str(videos / path) for path in paths_below(videos)}
    capfd.readouterr()
    assert commands_main(["predict", "-i", str(videos), *model, "-b", "8", "--json"]) == 0
    entries = entries_of(capfd.readouterr().out)
    assert {entry["path"] for entry in entries} == files
    assert {os.fsencode(top["name"]) for entry in entries for top in entry["top"]} == set(CLASSES)

    annotated = ["--annotated", str(tmp_path / "seen"), "--top_k", "1"]
    assert commands_main(["predict", "-i", str(videos), *model, *annotated]) == 0
    out = capfd.readouterr().out
    assert {line for line in out.split("\n") if line.startswith("/")} == {printable(file) for file in files}
    assert paths_below(tmp_path / "seen") == paths_below(videos)

    few = tmp_path / "few"
    few.mkdir()
    for name in (b"new\nline", b"x" * 251, b"\xff", b"$x^$_{%"):
        shutil.copy(videos.parent / "clip.mp4", os.fsencode(few) + b"/" + name + b".mp4")
    timelines = ["--window_sec", "0.1", "--timeline", str(tmp_path / "lines")]
    assert commands_main(["predict", "-i", str(few), *model, *timelines]) == 0
    assert len(list((tmp_path / "lines").glob("*.png"))) == 4
