"""Annotations of other projects become lists that training reads."""

import json

import pytest

from paddlevideo_fast.apps.data.annotations import convert
from paddlevideo_fast.decode import Span
from paddlevideo_fast.jobs.run import ToolError
from paddlevideo_fast.loader.annotations import read_video_list
from tests.support.json_lines import entries_of


@pytest.fixture
def run(tmp_path):
    def run(origin, name, text, *words):
        (tmp_path / name).write_text(text if isinstance(text, str) else json.dumps(text))
        given = ["--from", origin, "--list", str(tmp_path / name), "--output_file", str(tmp_path / "x.jsonl")]
        assert convert([*given, *map(str, words)]) == 0
        return str(tmp_path / "x.jsonl")

    return run


def test_activitynet(run, tmp_path, capfd):
    database = {
        "ab_1": {
            "subset": "training",
            "duration": 20.5,
            "annotations": [
                {"segment": [1.25, 7.5], "label": "Walking"},
                {"segment": [9, 20.9], "label": "Archery"},
                {"segment": [5, 5], "label": "Archery"},
            ],
        },
        "cd": {"subset": "validation", "annotations": [{"segment": [0, 4], "label": "Zumba"}]},
        "ef": {"subset": "testing"},
    }
    words = ("--subset", "training", "--path", "clips/{id}.mkv")
    listed = run("activitynet", "a.json", {"version": "1.3", "database": database}, *words)
    assert "x.jsonl: 2 lines; 1 empty or reversed spans are left out" in capfd.readouterr().out
    first, second = read_video_list(listed, class_names=str(tmp_path / "classes.txt"))
    assert (first.path, first.labels, first.span) == ("clips/ab_1.mkv", (1,), Span(1.25, 7.5, "sec"))
    assert (second.labels, second.span) == ((0,), Span(9, 20.5, "sec"))
    assert (tmp_path / "classes.txt").read_text() == "Archery\nWalking\nZumba\n"  # of all subsets


def test_epic(run, capfd):
    text = (
        "narration_id,participant_id,video_id,start_timestamp,stop_timestamp,start_frame,verb,verb_class\n"
        "P01_01_0,P01,P01_01,00:00:00.14,00:00:03.37,8,open,3\n"
        "P02_09_1,P02,P02_09,01:02:03.50,01:02:04,9,close,4\n"
        "P02_09_2,P02,P02_09,00:00:05,00:00:04,9,close,4\n"
    )
    listed = run("epic", "e.csv", text, "--json")
    printed = entries_of(capfd.readouterr().out)
    assert printed == [{"file": str(listed), "num_lines": 2, "num_left_out": 1}]
    records = read_video_list(listed)
    assert [(one.path, one.labels, one.group) for one in records] == [
        ("P01_01.MP4", (3,), "P01"),
        ("P02_09.MP4", (4,), "P02"),
    ]
    assert [one.span for one in records] == [Span(0.14, 3.37, "sec"), Span(3723.5, 3724, "sec")]


@pytest.mark.parametrize(
    ("origin", "text", "words", "cause"),
    [
        ("activitynet", "{}", (), "expected an object with the key 'database'"),
        ("activitynet", "{", (), "x.txt:1: is no valid JSON"),
        ("activitynet", '{"database": {"a": {"annotations": [{"label": "b"}]}}}', (), "'a': expected an"),
        ("activitynet", '{"database": {"a": {"subset": "t"}}}', ("--subset", "u"), "--subset u: is not in"),
        ("epic", "video_id\n", (), "x.txt:1: lacks the column 'start_timestamp'"),
        ("epic", "video_id,start_timestamp,stop_timestamp,verb_class\na,1,2,3\n", (), "x.txt:2: '1' is"),
        ("epic", "video_id,start_timestamp,stop_timestamp,verb_class\n", (), "nothing to convert in it"),
        ("epic", "video_id\n", ("--subset", "u"), "--subset has no effect with --from epic"),
        ("epic", "video_id\n", ("--path", "u"), "--path u: has no {id}"),
    ],
)  # fmt: skip
def test_wrong_annotations(run, origin, text, words, cause):
    with pytest.raises(ToolError, match=cause):
        run(origin, "x.txt", text, *words)
