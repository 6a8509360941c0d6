"""build_file_list and check_videos, as a user runs them."""

import shutil

import pytest

from paddlevideo_fast.apps.data.lists import check
from paddlevideo_fast.apps.init.init_dataset import find
from paddlevideo_fast.jobs.run import ToolError
from tests.support.json_lines import entries_of
from tests.support.numbered_clips import write_clip

BUILD, CHECK = "data/build_file_list.py", "data/check_videos.py"


@pytest.fixture(scope="module")
def videos(make_clip, tmp_path_factory):
    root = tmp_path_factory.mktemp("lists") / "my videos"
    first = make_clip(root / "Run/v_Run_g01.avi", 8, codec="mpeg4")
    for name in ("Run/v_Run_g02", "Run/v_Run_g03", "Jump/v_Jump_g01", "Jump/v_Jump_g02", "Jump/v_Jump_g03"):
        (root / name).parent.mkdir(exist_ok=True)
        shutil.copy(first, root / f"{name}.avi")
    return root


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


def test_frames_and_given_class_names(rawframes_dataset, run_script, tmp_path):
    (tmp_path / "names.txt").write_text("class2\nclass0\nclass1\nnobody\n")
    (tmp_path / "out").mkdir()
    options = ["--valid-share=0", "--relative", "--class_names", tmp_path / "names.txt"]
    options += ["--out_list_path", tmp_path / "out", "--json"]
    done = run_script(BUILD, rawframes_dataset.root, *options)
    assert entries_of(done.stdout) == [{"file": str(tmp_path / "out/train.list"), "num_lines": 6}]
    assert (tmp_path / "out/train.list").read_text().splitlines() == [
        "class2/clip2 12 0",
        "class2/clip5 12 0",
        "class0/clip0 12 1",
        "class0/clip3 12 1",
        "class1/clip1 12 2",
        "class1/clip4 12 2",
    ]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "train.list",
        "classes.txt",
        "provenance.json",
    }


def test_check_names_bad_videos(videos, broken_videos, run_script, tmp_path):
    good = [f"{videos}/Run/v_Run_g01.avi 0", f"{broken_videos['one_frame']} 1"]
    with_hole = bytearray((videos / "Run/v_Run_g01.avi").read_bytes())
    begin = with_hole.index(b"00dc", with_hole.index(b"movi") + 500)
    with_hole[begin : begin + 600] = bytes(600)
    (tmp_path / "hole.avi").write_bytes(with_hole)
    bad = [f"{broken_videos[kind]} 1" for kind in ("text", "missing", "damaged")]
    write_clip(tmp_path / "bit.mkv", 6, codec="mjpeg", pix_fmt="yuvj420p")  # decodes; the checksum differs
    flipped = bytearray((tmp_path / "bit.mkv").read_bytes())
    flipped[flipped.index(b"\xff\xda") + 200] ^= 1
    (tmp_path / "bit.mkv").write_bytes(flipped)
    bad += [f"{tmp_path}/hole.avi 1", f"{tmp_path}/bit.mkv 1"]
    (tmp_path / "all.list").write_text("\n".join([good[0], *bad, "", good[1]]) + "\n")
    done = run_script(
        CHECK,
        "--list",
        tmp_path / "all.list",
        "--workers=2",
        "--output_file",
        tmp_path / "clean.list",
        check=False,
    )
    assert done.returncode == 1
    assert (tmp_path / "clean.list").read_text().splitlines() == good
    assert f"bad: {broken_videos['missing']}: no such file" in done.stdout
    failures = [line.split("\t") for line in (tmp_path / "clean.failures.txt").read_text().splitlines()]
    assert [f"{path} 1" for path, _ in failures] == bad
    told = [*(f"bad: {path}: {cause}" for path, cause in failures), "intact files: 2 of 7"]
    assert done.stdout.splitlines()[-6:] == told
    assert run_script(CHECK, "--list", tmp_path / "clean.list").returncode == 0


def test_check_of_a_list_from_another_folder_says_where_paths_start(tmp_path, capsys, monkeypatch):
    write_clip(tmp_path / "a.mp4", 4)
    (tmp_path / "all.list").write_text("a.mp4 0\n")
    monkeypatch.chdir(tmp_path.parent)
    assert check([str(tmp_path / "all.list")]) == 1
    start = f"no file is there; paths start from the current folder, {tmp_path.parent}; for another folder,"
    assert f"{start} give --data_prefix FOLDER" in capsys.readouterr().err
    assert check([str(tmp_path / "all.list"), "--data_prefix", str(tmp_path)]) == 0


def test_check_notes_what_is_unusual_and_whole(tmp_path, capsys):
    write_clip(tmp_path / "paused.ts", 60, pause=(30, 15))
    assert check([str(tmp_path)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith(
        f"note: {tmp_path}/paused.ts: a pause: no frame for 16 frames' time after 1.16 s"
    )
    assert out[1:] == ["intact files: 1 of 1"]


def test_check_folder_and_frames(videos, rawframes_dataset, run_script, tmp_path):
    done = run_script(CHECK, videos, "--json")
    assert entries_of(done.stdout) == [{"kind": "summary", "num_files": 6, "num_intact": 6}]
    root = tmp_path / "frames"
    shutil.copytree(rawframes_dataset.root, root)
    options = ["--list", root / "frames.list", "--kind=frames", "--data-prefix", root]
    assert "intact files: 6 of 6" in run_script(CHECK, *options).stdout
    (root / "class1/clip1/img_00004.jpg").unlink()
    done = run_script(CHECK, *options, "--json", check=False)
    assert done.returncode == 1
    bad, summary = entries_of(done.stdout)
    assert (bad["kind"], bad["file"]) == ("bad", str(root / "class1/clip1"))
    assert "img_00004.jpg" in bad["cause"]
    assert (summary["num_files"], summary["num_intact"]) == (6, 5)


def test_metadata_of_hugging_face(videos, tmp_path, capsys):
    """Its paths start from its folder, for `check` and `init`."""
    folder = shutil.copytree(videos, tmp_path / "set")
    names = ["Run/v_Run_g01.avi", "Jump/v_Jump_g01.avi"]
    table = folder / "metadata.csv"
    table.write_text("file_name,label,text\n" + "".join(f"{name},{name.split('/')[0]},x\n" for name in names))
    (tmp_path / "classes.txt").write_text("Jump\nRun\n")
    options = ["--workers=1", f"--class_names={tmp_path}/classes.txt", f"--list={table}"]
    assert check([*options, f"--output_file={folder}/clean.csv"]) == 0
    assert "intact files: 2 of 2" in capsys.readouterr().out
    assert (folder / "clean.csv").read_text() == table.read_text()
    with pytest.raises(
        ToolError, match="paths of .*metadata.csv start from its folder; put the new list there"
    ):
        check([*options, f"--output_file={tmp_path}/clean.csv"])
    found = find(table)
    assert [clip.path for clip in found.clips] == [folder / name for name in names]
    assert found.classes == ["Jump", "Run"]
