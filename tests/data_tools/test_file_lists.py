"""build_file_list and check_videos, as a user runs them."""

from __future__ import annotations

import shutil

import pytest

BUILD, CHECK = "data/build_file_list.py", "data/check_videos.py"


@pytest.fixture(scope="module")
def videos(make_clip, tmp_path_factory):
    root = tmp_path_factory.mktemp("lists") / "my videos"
    first = make_clip(root / "Run/v_Run_g01.avi", 8, codec="mpeg4")
    for name in ("Run/v_Run_g02", "Run/v_Run_g03", "Jump/v_Jump_g01", "Jump/v_Jump_g02", "Jump/v_Jump_g03"):
        (root / name).parent.mkdir(exist_ok=True)
        shutil.copy(first, root / f"{name}.avi")
    return root


@pytest.fixture
def ucf101(tmp_path):
    folder = tmp_path / "annotations"
    folder.mkdir()
    (folder / "classInd.txt").write_text("1 Run\n2 Jump\n")
    for split in (1, 2, 3):
        (folder / f"trainlist{split:02d}.txt").write_text("Run/v_Run_g01.avi 1\nJump/v_Jump_g02.avi 2\n")
        (folder / f"testlist{split:02d}.txt").write_text("Jump/v_Jump_g01.avi\nRun/v_Run_g77.avi\n")
    return folder


def test_class_folders(videos, run_script, tmp_path):
    options = [videos, "--format=videos", "--relative", "--valid-share=0.34", "--shuffle", "--seed=3"]
    for name in ("a", "b"):
        run_script(BUILD, *options, "--out_list_path", tmp_path / name)
    train, valid = ((tmp_path / "a" / f"{name}.list").read_text() for name in ("train", "valid"))
    assert (tmp_path / "b/train.list").read_text() == train
    lines = train.splitlines() + valid.splitlines()
    assert len(train.splitlines()) == 4
    assert len(set(lines)) == 6
    assert all(line.endswith(" 0") == line.startswith("Jump/") for line in lines)
    assert (tmp_path / "a/classes.txt").read_text() == "Jump\nRun\n"


def test_ucf101_splits(videos, ucf101, run_script, tmp_path):
    done = run_script(BUILD, videos, "--format=videos", "--annotations", ucf101, "--out_list_path", tmp_path)
    assert (tmp_path / "ucf101_train_split_1_videos.txt").read_text().splitlines() == [
        f"{videos}/Run/v_Run_g01.avi 0",
        f"{videos}/Jump/v_Jump_g02.avi 1",
    ]
    assert (tmp_path / "ucf101_val_split_3_videos.txt").read_text() == f"{videos}/Jump/v_Jump_g01.avi 1\n"
    assert "1 of 2 are not on the disk, such as Run/v_Run_g77" in done.stderr


def test_ucf101_rawframes(rawframes_dataset, run_script, tmp_path):
    (tmp_path / "classInd.txt").write_text("1 class0\n2 class1\n3 class2\n")
    (tmp_path / "trainlist01.txt").write_text("class0/clip0.avi 1\nclass2/clip5.avi 3\n")
    (tmp_path / "testlist01.txt").write_text("class1/clip1.avi\n")
    options = ["--num_split=1", "--relative", "--annotations", tmp_path, "--out_list_path", tmp_path]
    run_script(BUILD, rawframes_dataset.root, *options)
    lists = [(tmp_path / f"ucf101_{name}_split_1_rawframes.txt").read_text() for name in ("train", "val")]
    assert lists == ["class0/clip0 12 0\nclass2/clip5 12 2\n", "class1/clip1 12 1\n"]


def test_kinetics(videos, run_script, tmp_path):
    shutil.copy(videos / "Run/v_Run_g01.avi", tmp_path / "abc_000010_000020.avi")
    shutil.copy(videos / "Run/v_Run_g01.avi", tmp_path / "xyz_000001_000011.avi")
    header = "label,youtube_id,time_start,time_end,split\n"
    (tmp_path / "train.csv").write_text(header + "tap dancing,abc,10,20,train\n")
    (tmp_path / "val.csv").write_text(header + '"archery",xyz,1,11,validate\n')
    files = ["--annotations", tmp_path / "train.csv", tmp_path / "val.csv"]
    run_script(BUILD, tmp_path, "--level=1", "--format=videos", "--relative", "--output", tmp_path, *files)
    assert (tmp_path / "train.list").read_text() == "abc_000010_000020.avi 1\n"
    assert (tmp_path / "validate.list").read_text() == "xyz_000001_000011.avi 0\n"
    assert (tmp_path / "classes.txt").read_text() == "archery\ntap dancing\n"


def test_wrong_inputs(videos, ucf101, run_script, tmp_path):
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    cases = [
        ([tmp_path / "none"], "no such folder"),
        ([videos], "no rawframes at --level 2"),
        ([videos, "--format=videos", "--level=1"], "no videos at --level 1"),
        ([videos, "--format=videos", "--valid-share=1"], "--valid-share"),
        ([videos, "--format=videos", "--annotations", tmp_path], "classInd.txt: no such file"),
        (
            [videos, "--format=videos", "--annotations", ucf101, "--num_split=4"],
            "trainlist04.txt: no such file",
        ),
        (
            [videos, "--format=videos", "--annotations", tmp_path / "bad.csv"],
            "bad.csv:2: expected the columns",
        ),
    ]
    for options, message in cases:
        done = run_script(BUILD, *options, "--output", tmp_path / "out", check=False)
        assert done.returncode == 1, options
        assert message in done.stderr
        assert "Traceback" not in done.stderr


def test_check_names_bad_videos(videos, broken_videos, run_script, tmp_path):
    good = [f"{videos}/Run/v_Run_g01.avi 0", f"{broken_videos['one_frame']} 1"]
    bad = [f"{broken_videos[kind]} 1" for kind in ("text", "missing", "damaged")]
    (tmp_path / "all.list").write_text("\n".join([good[0], *bad, "", good[1]]) + "\n")
    done = run_script(
        CHECK, tmp_path / "all.list", "--workers=2", "--output", tmp_path / "clean.list", check=False
    )
    assert done.returncode == 1
    assert (tmp_path / "clean.list").read_text().splitlines() == good
    assert f"bad: {broken_videos['missing']}: no such file" in done.stdout
    assert "2 of 5 are intact" in done.stderr
    assert run_script(CHECK, tmp_path / "clean.list").returncode == 0


def test_check_folder_and_frames(videos, rawframes_dataset, run_script, tmp_path):
    assert "6 of 6 are intact" in run_script(CHECK, videos).stdout
    root = tmp_path / "frames"
    shutil.copytree(rawframes_dataset.root, root)
    options = [root / "frames.list", "--format=rawframes", "--data-prefix", root]
    assert "6 of 6 are intact" in run_script(CHECK, *options).stdout
    (root / "class1/clip1/img_00004.jpg").unlink()
    done = run_script(CHECK, *options, check=False)
    assert done.returncode == 1
    assert "img_00004.jpg" in done.stdout


def test_check_wrong_inputs(videos, run_script, tmp_path):
    (tmp_path / "bad.list").write_text("only_a_path.mp4\n")
    (tmp_path / "empty.list").write_text("\n")
    (tmp_path / "label.list").write_text("one\u2028name.mp4 0\nclip.mp4 \u00b2\n", encoding="utf-8")
    for source, message in [
        (tmp_path / "bad.list", "bad.list:1: expected 'path label'"),
        (tmp_path / "empty.list", "the list is empty"),
        (tmp_path / "label.list", "label.list:2: label is '\u00b2', expected an integer"),
        (tmp_path / "none.list", "no such file or folder"),
        (videos / "Run/v_Run_g01.avi", "the list cannot be read"),
    ]:
        done = run_script(CHECK, source, check=False)
        assert done.returncode == 1
        assert message in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "script", ["build_file_list", "check_videos", "extract_rawframes", "make_motion_dataset"]
)
def test_help(script, run_script):
    text = run_script(f"data/{script}.py", "--help").stdout
    assert "Example:" in text
