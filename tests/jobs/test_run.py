"""Flags and PaddleVideo's names of them, exit codes, failures, provenance, and what frames are stored as."""

import itertools
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest

from paddlevideo_fast.apps.data.frames import encode_image, extract, stored_size
from paddlevideo_fast.apps.data.lists import build, check, find_clips
from paddlevideo_fast.apps.data.motion import make
from paddlevideo_fast.apps.data.packing import pack
from paddlevideo_fast.apps.data.public_datasets import k400, ssv2, ucf101
from paddlevideo_fast.apps.data.videos import prepare_list
from paddlevideo_fast.apps.predict.predictor import find_videos
from paddlevideo_fast.decode import VIDEO_EXTENSIONS
from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.jobs import executor
from paddlevideo_fast.jobs.executor import _progress
from paddlevideo_fast.jobs.run import (
    Provenance,
    ToolError,
    classes_text,
    list_text,
    read_provenance,
    report_failures,
    spread,
)
from paddlevideo_fast.log import counted
from tests.support.content import content

REPO = Path(__file__).resolve().parents[2]
TOOLS = [build, check, extract, make, pack, prepare_list, k400, ucf101, ssv2]


@pytest.fixture
def videos(make_clip, tmp_path):
    """Two classes of two clips, with lists of all and of two clips."""
    root = tmp_path / "videos"
    for number in range(4):
        make_clip(root / f"class{number % 2}" / f"v_{number}.mp4", 6, size=(48, 32))
    lines = [f"class{number % 2}/v_{number}.mp4 {number % 2}\n" for number in range(4)]
    (tmp_path / "all.list").write_text("".join(lines))
    (tmp_path / "two.list").write_text("".join(lines[:2]))
    return root


def words(*given):
    return [str(word) for word in given]


# --- flags


def test_a_number_has_its_noun_in_the_singular_or_plural():
    assert [list_text({"file": "x", "num_lines": number}) for number in (0, 1)] == ["x: 0 lines", "x: 1 line"]
    texts = [classes_text({"file": "x", "num_classes": number}) for number in (1, 2)]
    assert texts == ["x: 1 class", "x: 2 classes"]
    texts = [counted(3, noun) for noun in ("epoch", "batch", "box", "new beginning")]
    assert texts == ["3 epochs", "3 batches", "3 boxes", "3 new beginnings"]


def test_names_of_paddlevideo_mean_the_same(videos, tmp_path, capsys):
    pairs = [
        (
            build,
            ["--root", videos, "--kind", "video", "--valid_share", 0.5, "--output"],
            [videos, "--format", "videos", "--valid-share", 0.5, "--out_list_path"],
        ),
        (
            extract,
            ["--root", videos, "--level", 2, "--workers", 1, "--short_side", 16, "--output"],
            [videos, "--num-worker", 1, "--new_short", 16, "--level", 2],
        ),
        (
            check,
            ["--list", tmp_path / "all.list", "--kind", "video", "--data_prefix", videos, "--output_file"],
            ["--list", tmp_path / "all.list", "--kind", "videos", "--data-prefix", videos, "--output-file"],
        ),
    ]
    for number, (tool, new, old) in enumerate(pairs):
        made = []
        for whose, given in (("ours", new), ("theirs", old)):
            out = tmp_path / f"{number} {whose}"
            if tool is check:
                out.mkdir()
            target = out / "clean.list" if tool is check else out
            assert tool(words(*given, target)) == 0
            made.append(content(out))
        assert made[0] == made[1]
        assert made[0]


@pytest.mark.parametrize("tool", TOOLS)
def test_help_has_exit_codes_and_names_of_paddlevideo(tool, capsys):
    with pytest.raises(SystemExit) as end:
        tool(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert "Exit code: 0, done; 1, some files failed" in " ".join(text.split())
    assert "Example:\n    paddlevideo-fast data " in text
    if tool is extract:
        assert "SRC_DIR" in text


VIDEOS = "--root=videos --format=videos"
PREPARE = "--list=all.list --data_prefix=videos --output=out"


@pytest.mark.parametrize(
    ("tool", "given", "message"),
    [
        (check, "--wrokers=2 x.list", "unrecognized arguments: --wrokers=2"),
        (check, "", "LIST is missing"),
        (check, "--list=few.list --class_names=names.txt", "few.list:2: label 2 has no name in names.txt"),
        (pack, "--list=few.list --class_names=names.txt --output=out", "few.list:2: label 2 has no name"),
        (prepare_list, "--list=few.list --class_names=names.txt --output=out", "few.list:2: label 2 has no"),
        (check, "--list=bad.list", "bad.list:1: expected 'path label'"),
        (check, "--list=empty.list", "empty.list: the list is empty"),
        (check, "--list=label.list", "label.list:2: label is '\u00b2', expected an integer"),
        (check, "--list=none.list", "none.list: no such file or folder"),
        (check, "--list=videos/class0/v_0.mp4", "videos/class0/v_0.mp4: the list cannot be read"),
        (check, "--list=all.list --data_prefix=none", "--data_prefix: none: no such folder"),
        (extract, "--output=x", "SRC_DIR is missing: folder with the videos"),
        (extract, "videos out --task flow", "--task flow: optical flow is not supported"),
        (extract, "videos out --new_width 9", "give both"),
        (extract, "videos out --quality 0", "--quality: '0' is no whole number from 1 to 100"),
        (extract, "videos out --ext webm", "videos: no video (.webm) at --level 2"),
        (extract, "videos out --level 1", "videos: no video"),
        (build, "", "ROOT is missing: folder with a folder for each class"),
        (build, "--root=x --kind=pictures", "--kind: invalid choice: 'pictures'"),
        (build, "none", "none: no such folder"),
        (build, "videos --kind=frames", "videos: no folders of frames in the folders in it"),
        (build, "videos/class0 --format=videos", "videos/class0: no videos in the folders in it"),
        (build, f"{VIDEOS} --valid-share=1", "--valid_share: 1.0; must be"),
        (build, f"{VIDEOS} --class_names=names.txt", "names.txt: lacks the class 'class0'"),
        (make, "--output=out --classes=left,sideways", "--classes: unknown sideways; known: left"),
        (make, "--output=out --classes=left", "--classes: give two or more"),
        (make, "--output=out --classes=left,right --motions=2", "--motions 2: left, right cannot be seen"),
        (make, "--output=out --size=33", "--size: '33' is no even number from 16 on"),
        (make, "--output=out --frames=1", "--frames: '1' is no whole number from 2 on"),
        (make, "--output=videos", "videos exists and is not a motion data set"),
        (pack, "--short-side=x", "--short_side: 'x' is no whole number"),
        (pack, "--output=x", "LIST is missing"),
        (pack, "--list=x", "--output is missing"),
        (pack, "--list=no.list --output=x", "no.list: there is no such list"),
        (prepare_list, f"{PREPARE} --list=missing.list", "missing.list: there is no such list"),
        (prepare_list, f"{PREPARE} --preset=spars", "--preset spars: unknown; did you mean 'sparse'?"),
        (prepare_list, f"{PREPARE} --short_side=255", "--short_side: '255' is no even number"),
        (prepare_list, f"{PREPARE} --list=far.list --data_prefix=videos/class1", "far.list:1: "),
        (prepare_list, f"{PREPARE} --output=videos/class0/out", "--output videos/class0/out lies in"),
        (prepare_list, f"{PREPARE} --output=videos/class0", "--output videos/class0 lies in"),
        (prepare_list, f"{PREPARE} --output=.", "--output .: the new list would replace"),
        (prepare_list, f"{PREPARE} --output=two.list", "--output two.list: is a file; give a folder"),
        (prepare_list, f"{PREPARE} --list=twins.list", "twins.list:3: videos/class0/v_0.mp4.avi would be"),
    ],
)
def test_a_wrong_command_line_is_one_message(tool, given, message, videos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.list").write_text("only_a_path.mp4\n")
    (tmp_path / "empty.list").write_text("\n")
    (tmp_path / "label.list").write_text("one\u2028name.mp4 0\nclip.mp4 \u00b2\n", encoding="utf-8")
    (tmp_path / "names.txt").write_text("class1\n")
    (tmp_path / "few.list").write_text("class0/v_0.mp4 0\nclass1/v_1.mp4 2\n")
    (tmp_path / "far.list").write_text(f"{videos}/class0/v_0.mp4 0\n")
    (tmp_path / "twins.list").write_text("class0/v_0.mp4 0\nclass0/v_0.mkv 0\nclass0/v_0.mp4.avi 0\n")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(PaddleVideoFastError) as caught:
        tool(given.split())
    assert str(caught.value).startswith(message)
    assert sorted(tmp_path.rglob("*")) == before


# --- failures


def test_failures_are_listed_and_an_old_list_goes(tmp_path, capsys):
    file = tmp_path / "failures.txt"
    failures = [(f"{number}.mp4", "is empty") for number in range(25)]
    assert report_failures(failures, 30, file, "; hint") == 1
    assert file.read_text() == "".join(f"{video}\t{cause}\n" for video, cause in failures)
    said = capsys.readouterr().err.splitlines()
    assert said[:20] == [f"failed: {number}.mp4: is empty" for number in range(20)]
    assert said[20:] == [f"error: 25 of 30 videos failed; {file} lists them; hint"]
    assert report_failures([], 30, file) == 0
    assert not file.exists()


@pytest.mark.parametrize(
    ("total", "result_sec", "shown"),
    [(5, 1.0, [1, 2, 3, 4, 5]), (5, 0.01, [5]), (18, 2.0, [2, 4, 6, 8, 10, 12, 14, 16, 18]), (40, 0.4, None)],
)
def test_lines_of_progress_are_few_and_a_second_apart(total, result_sec, shown, capsys, monkeypatch):
    clock = itertools.count(0.0, result_sec)
    monkeypatch.setattr(executor.time, "monotonic", lambda: next(clock))
    assert list(_progress(iter(range(total)), total, "check")) == list(range(total))
    out, err = capsys.readouterr()
    shown = shown or list(range(4, 41, 4))
    assert [line.split(",")[0] for line in err.splitlines()] == [f"check: {count}/{total}" for count in shown]
    assert not out


def test_spread():
    assert spread(range(10), 2) == [2, 7]
    assert spread(range(3), 5) == [0, 1, 2]
    assert spread(range(100), 4) == [12, 37, 62, 87]


# --- provenance


def test_provenance_of_two_lists_in_one_folder(videos, tmp_path):
    out = tmp_path / "out"
    for name in ("all", "two", "all"):
        given = ["--list", tmp_path / f"{name}.list", "--data_prefix", videos, "--output", out]
        assert prepare_list(words(*given, "--preset=intra", "--workers=1")) == 0
    runs = read_provenance(out)
    assert [list(run.lists) for run in runs] == [["two.list"], ["all.list"]]
    crc = zlib.crc32((tmp_path / "all.list").read_bytes())
    options = {"preset": "intra", "short_side": 256, "suffix": ""}
    assert runs[1] == Provenance(
        "prepare_videos", options, {"all.list": f"{crc:08x}"}, str(videos), complete=True
    )


def test_provenance_says_whether_a_run_came_to_its_end(tmp_path):
    made = Provenance("tool", {"a": 1})

    def run_that_fails():
        with made.kept_in(tmp_path):
            assert [run.complete for run in read_provenance(tmp_path)] == [False]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_that_fails()
    assert [run.complete for run in read_provenance(tmp_path)] == [False]
    with made.kept_in(tmp_path):
        pass
    assert read_provenance(tmp_path) == [Provenance("tool", {"a": 1}, complete=True)]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"runs": [{"tool": "x"}]}', '{"runs": 3}'])
def test_damaged_provenance(text, tmp_path):
    (tmp_path / "provenance.json").write_text(text)
    with pytest.raises(ToolError, match=r"provenance\.json: is damaged"):
        read_provenance(tmp_path)


# --- frames and endings


@pytest.mark.parametrize(
    ("source", "options", "expected"),
    [
        ((320, 240), {"short_side": 0}, (320, 240)),
        ((320, 240), {"short_side": 48}, (64, 48)),
        ((240, 320), {"short_side": 48}, (48, 64)),
        ((320, 240), {"short_side": 480}, (320, 240)),
        ((320, 240), {"short_side": 480, "enlarge": True}, (640, 480)),
        ((321, 241), {"short_side": 0}, (321, 241)),
        ((321, 241), {"short_side": 256, "even": True}, (320, 240)),
        ((101, 51), {"short_side": 25}, (50, 25)),
        ((330, 240), {"short_side": 48, "even": True}, (66, 48)),
    ],
)
def test_stored_size(source, options, expected):
    assert stored_size(*source, **options) == expected


def test_encoded_images():
    frame = np.zeros((32, 48, 3), np.uint8)
    frame[:, :24, 0] = 255
    exact = cv2.imdecode(np.frombuffer(encode_image(frame, (48, 32), "x", ".png"), np.uint8), 1)
    assert np.array_equal(exact[:, :, ::-1], frame)
    small = cv2.imdecode(np.frombuffer(encode_image(frame, (24, 16), "x"), np.uint8), 1)
    assert small.shape == (16, 24, 3)
    assert np.abs(small[:, :10].astype(int) - [0, 0, 255]).max() < 8
    assert len(encode_image(frame, (48, 32), "x", quality=20)) < len(encode_image(frame, (48, 32), "x"))


def test_one_list_of_video_endings(tmp_path):
    for place, ending in enumerate([*VIDEO_EXTENSIONS, ".MP4", ".txt", ".jpg"]):
        (tmp_path / f"{place}{ending}").write_bytes(b"")
    (tmp_path / ".saving-1-a.mp4").write_bytes(b"")  # as a killed run leaves it
    expected = {f"{place}{ending}" for place, ending in enumerate([*VIDEO_EXTENSIONS, ".MP4"])}
    assert {clip.path.name for clip in find_clips(tmp_path)} == expected
    assert {path.name for path in find_videos(tmp_path)} == expected
    for language in ("en", "zh-CN"):
        text = (REPO / "docs" / language / "data_preparation.md").read_text(encoding="utf-8")
        assert all(f"`{ending}`" in text for ending in VIDEO_EXTENSIONS)
