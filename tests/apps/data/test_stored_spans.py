"""Spans that data tools cut: what is stored, and the list of it."""

import json

import pytest

from paddlevideo_fast.apps.data.frames import extract
from paddlevideo_fast.apps.data.lists import check
from paddlevideo_fast.apps.data.packing import pack
from paddlevideo_fast.apps.data.spans import part_name
from paddlevideo_fast.apps.data.videos import prepare_list
from paddlevideo_fast.cli import run_command
from paddlevideo_fast.decode import Span, open_video
from paddlevideo_fast.loader.dataset import FrameDataset, VideoDataset
from paddlevideo_fast.loader.pipeline import Pipeline
from paddlevideo_fast.loader.sampling import Sampler
from paddlevideo_fast.sources.packed.dataset import PackedFrameDataset
from tests.support.exact_corpus import write_corpus_clip
from tests.support.numbered_clips import read_number, write_clip

NAMES = (
    "h264_gop_250.mp4",
    "h264_open_gop.ts",
    "h264_variable_rate.mkv",
    "edit_list_both_ends.mp4",
    "hevc_open_gop.mkv",
    "vp9.webm",
    "mjpeg.avi",
)
VARIABLE = ("h264_variable_rate.mkv",)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A list with spans by time and number of videos of many kinds; and what each span shows."""
    root = tmp_path_factory.mktemp("spans")
    rows, shown = [], []
    for number, name in enumerate(NAMES):
        clip = write_corpus_clip(root / "videos", name, 40)
        ticks = [n + n * n // 8 if name in VARIABLE else n for n in range(len(clip.numbers))]
        for first, stop in ((11 + number, 17 + number), (len(ticks) - 7, len(ticks))):
            row = {"path": name, "label": [number % 3, 3], "group": "one"}
            if (first + number) % 2:
                row.update(start_frame=first, end_frame=stop)
            else:
                row.update(start_sec=round(ticks[first] / 25, 3), end_sec=(ticks[stop - 1] + 1) / 25)
            rows.append(row)
            shown.append(clip.numbers[first:stop])
    (root / "some.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root, shown


def _frames(cls, file_path, **keys):
    """The numbers in the frames of each record."""
    pipeline = Pipeline(Sampler(1, 1, valid_mode=True), [])
    dataset = cls(str(file_path), pipeline=pipeline, seed=0, training=False, **keys)
    found = []
    for record in dataset.records:
        with dataset.open(record) as reader:
            found.append([read_number(frame) for frame in dataset.part(reader, record)])
    return dataset, found


@pytest.mark.parametrize("margin", [0, 3])
def test_every_format_shows_the_span_alone(source, tmp_path, margin):
    root, shown = source
    listed = tmp_path / "some.jsonl"
    lines = (root / "some.jsonl").read_text().splitlines()[:: 3 if margin else 1]
    listed.write_text("\n".join(lines))
    shown = shown[:: 3 if margin else 1]
    given = ["--list", str(listed), "--data_prefix", str(root / "videos"), "--workers", "1"]
    given += ["--margin", str(margin)]
    dataset, found = _frames(VideoDataset, listed, data_prefix=str(root / "videos"))
    assert found == shown
    assert prepare_list([*given, "--output", str(tmp_path / "p"), "--short_side", "48"]) == 0
    assert extract([*given, "--output", str(tmp_path / "f")]) == 0
    assert pack([*given, "--output", str(tmp_path / "k"), "--shard_size", "5"]) == 0
    for cls, folder in ((VideoDataset, "p"), (FrameDataset, "f"), (PackedFrameDataset, "k")):
        stored, found = _frames(cls, tmp_path / folder / "some.jsonl", data_prefix=str(tmp_path / folder))
        assert found == shown
        assert [one.labels for one in stored.records] == [one.labels for one in dataset.records]
        assert {one.group for one in stored.records} == {"one"}
        assert any(one.span for one in stored.records) == bool(margin)
    assert prepare_list([*given, "--output", str(tmp_path / "p"), "--short_side", "48"]) == 0  # nothing to do


def test_labels_of_a_shard_that_a_label_cannot_say_are_in_the_list(source, tmp_path, capfd):
    root, _ = source
    given = ["--list", str(root / "some.jsonl"), "--data_prefix", str(root / "videos"), "--workers", "1"]
    assert pack([*given, "--output", str(tmp_path)]) == 0
    with pytest.raises(Exception, match=r"the labels or spans of 14 of 14 videos: give this list"):
        _frames(PackedFrameDataset, tmp_path)


def test_names_of_parts():
    assert part_name("a/b.mp4", None) == "a/b.mp4"
    assert part_name("a/b.avi", Span(12.5, 14, "sec"), ".mp4") == "a/b_12.5-14s.mp4"
    assert part_name("a/b.avi", Span(3, None), "") == "a/b_3-endf"
    assert part_name("a/b.c.avi", Span(3, None), ".mp4", keeps_ending=True) == "a/b.c.avi_3-endf.mp4"
    assert part_name("a/b.c.avi", None, "") == "a/b.c"


def test_videos_with_one_stem_keep_their_endings(tmp_path):
    """They once ended prepare and extract for the whole list."""
    videos = tmp_path / "videos" / "walk"
    for name, first in (("a.mp4", 4), ("a.avi", 5), ("b.mkv", 6)):
        write_clip(videos / name, first, codec="mpeg4")
    (tmp_path / "some.list").write_text("walk/a.mp4 0\nwalk/a.avi 1\nwalk/b.mkv 2\n")
    told = ["--list", f"{tmp_path}/some.list", "--data_prefix", str(videos.parent), "--workers=1"]
    assert prepare_list([*told, "--output", f"{tmp_path}/prepared", "--short_side", "48"]) == 0
    assert (tmp_path / "prepared" / "some.list").read_text().split("\n") == [
        *("walk/a.mp4.mp4 0", "walk/a.avi.mp4 1", "walk/b.mp4 2", "")
    ]
    with open_video(tmp_path / "prepared" / "walk/a.avi.mp4") as reader:
        assert reader.num_frames == 5
    assert extract([*told, "--output", f"{tmp_path}/frames"]) == 0
    assert (tmp_path / "frames" / "some.list").read_text().split("\n") == [
        *("walk/a.mp4 4 0", "walk/a.avi 5 1", "walk/b 6 2", "")
    ]
    assert extract(["--root", str(videos.parent), "--output", f"{tmp_path}/all", "--workers=1"]) == 0
    assert sorted((tmp_path / "all" / "rawframes.list").read_text().split()[::3]) == [
        *("walk/a.avi", "walk/a.mp4", "walk/b")
    ]


def test_check_names_spans_and_what_is_in_both_lists(source, tmp_path, capfd):
    root, _ = source
    text = "path,label,start_sec,end_sec,group\n"
    rows = ["h264_gop_250.mp4,0,1,2,a", '"h264_open_gop.ts",0,1,7,b', "gone.mp4,1,,,c", "mjpeg.avi,1,0,1,"]
    (tmp_path / "one.csv").write_text(text + "\n".join(rows))
    (tmp_path / "two.csv").write_text(text + "vp9.webm,0,,,b\nmjpeg.avi,0,1,1.2,\n")
    words = ["--list", str(tmp_path / "one.csv"), "--data_prefix", str(root / "videos"), "--workers", "1"]
    assert check([*words, "--output_file", str(tmp_path / "good.csv")]) == 1
    told = capfd.readouterr().out
    cause = "the span 1 to 7 s is not inside the video, which lasts 1.6 s"
    assert f"one.csv:3: {root}/videos/h264_open_gop.ts: {cause}" in told
    assert "gone.mp4: no such file" in told
    assert (tmp_path / "good.csv").read_text() == text + "\n".join([rows[0], rows[3]]) + "\n"
    assert run_command(check, [*words, "--against", str(tmp_path / "two.csv")]) == 1
    told = capfd.readouterr().out
    assert f"one.csv:3: its group b is in {tmp_path}/two.csv:2, too" in told
    assert f"its file {root}/videos/mjpeg.avi is in" in told


def test_one_part_twice_is_an_error_of_packing(source, tmp_path):
    root, _ = source
    (tmp_path / "x.csv").write_text("path,label\nmjpeg.avi,0\nmjpeg.avi,1\n")
    words = ["--list", str(tmp_path / "x.csv"), "--data_prefix", str(root / "videos")]
    with pytest.raises(Exception, match=r"x.csv:3: mjpeg.avi is in the list twice; give all its labels"):
        pack([*words, "--output", str(tmp_path / "k")])
