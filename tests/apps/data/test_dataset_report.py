"""`data report`: what one page says of a set of videos."""

import csv
import json
import shutil
from pathlib import Path

import av
import numpy as np
import pytest

from benchmarks.measuring import write_video
from paddlevideo_fast.apps.data.report import Finding, _predictions_of, table_lines
from paddlevideo_fast.cli.commands import main
from paddlevideo_fast.decode import open_video
from paddlevideo_fast.extensions.report.page import Page, Section, render
from paddlevideo_fast.io.urls import shown_url
from paddlevideo_fast.jobs.run import write_lines
from paddlevideo_fast.loader.annotations import VideoRecord, read_video_list
from paddlevideo_fast.loader.tables import list_rows
from tests.support.browser import Browser
from tests.support.json_lines import entries_of
from tests.support.numbered_clips import write_clip


def flat(path, level, num_frames=40, size=(64, 96)):
    return write_video(path, (np.full((*size, 3), level, np.uint8) for _ in range(num_frames)), rate=20)


def still(path):
    picture = np.random.default_rng(0).integers(0, 256, (8, 12, 3), np.uint8).repeat(8, 0).repeat(8, 1)
    return write_video(path, [picture] * 40, rate=20)


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    """A list of 26 ordinary videos of two classes, and of some that are not."""
    root = tmp_path_factory.mktemp("set")
    lines = []
    for number in range(26):
        write_clip(root / f"{number:02}.mp4", num_frames=40, size=(96, 64), fps=20)
        lines.append(f"{number:02}.mp4 {number % 2}")
    flat(root / "black.mp4", 16)
    flat(root / "white.mp4", 235)
    still(root / "still.mp4")
    write_clip(root / "short.mp4", num_frames=5, size=(96, 64), fps=20)
    write_clip(
        root / "raw.mp4", num_frames=40, size=(96, 64), fps=20, options={"crf": "0", "preset": "ultrafast"}
    )
    (root / "broken.mp4").write_bytes(b"no video")
    lines += [f"{name}.mp4 2" for name in ("black", "white", "still", "short", "raw", "broken")]
    (root / "all.list").write_text("".join(f"{line}\n" for line in lines))
    (root / "classes.txt").write_text("run\nwalk\n<b>odd\n")
    return root


def findings(folder):
    return [json.loads(line) for line in (folder / "findings.jsonl").read_text().splitlines()]


def words(root, output, *more):
    classes = ("--class_names", root / "classes.txt", "--data_prefix", root, "--output", output)
    return ["data", "report", str(root / "all.list"), *map(str, (*classes, "--workers", 1, *more))]


def test_unusual_videos_are_found_and_named(videos, tmp_path, capsys):
    assert main(words(videos, tmp_path / "out")) == 1
    found = {(one["finding"], one["path"].rpartition("/")[2]): one for one in findings(tmp_path / "out")}
    expected = {"black": "black", "white": "frozen", "still": "frozen", "short": "short", "raw": "bit rate"}
    expected["broken"] = "cannot be read"
    for name, finding in expected.items():
        one = found[finding, f"{name}.mp4"]
        assert one["classes"] == "<b>odd"
        assert f"{name}.mp4 2" == (videos / "all.list").read_text().splitlines()[one["line"] - 1]
    ordinary = {path for _, path in found if path[:2].isdecimal()}
    assert ordinary == set()
    assert "not a video" in found["cannot be read", "broken.mp4"]["detail"]
    assert "more bits a pixel" in found["bit rate", "raw.mp4"]["detail"]
    out = capsys.readouterr().out
    assert "32 videos" in out
    assert "cannot be read: 1" in out
    (bad,) = [line for line in out.splitlines() if line.startswith("bad: ")]
    assert bad.startswith(f"bad: {videos / 'broken.mp4'}: not a video")


def test_the_page_has_classes_measures_and_frames(videos, tmp_path):
    main(words(videos, tmp_path))
    page = (tmp_path / "report.html").read_text()
    assert "&lt;b&gt;odd" in page
    assert "<b>odd" not in page
    assert "few videos" in page
    assert page.count('src="data:image/jpeg;base64,') == 12 - 1  # four of each class; one does not decode
    for text in ("frames between keyframes", "decoded frames", "h264", "96", "What to look at"):
        assert text in page


HEADINGS = "[...document.querySelectorAll('h2')].filter(one => one.nextElementSibling?.tagName != 'H2')"
CUT = "[...document.querySelectorAll('.scrolls')].filter(box => box.scrollWidth > box.clientWidth)"


def test_no_column_is_cut_and_no_heading_is_empty(videos, tmp_path):
    long = "recordings_of_the_second_camera/a_class_with_a_long_name_that_has_no_blank/person_" + "12_" * 20
    names = [f"{long.replace('/', '-')}.mp4", f"{long}.mp4"]
    (tmp_path / "long").mkdir()
    flat(tmp_path / "long" / names[0], 120)
    (tmp_path / "long/all.list").write_text(f"{names[0]} 0\n{names[1]} 1\n")
    (tmp_path / "long/classes.txt").write_text(f"{long[:60]}\n{long[60:120]}\nwalk\n")
    main(words(tmp_path / "long", tmp_path / "out"))
    write_clip(tmp_path / "a.mp4", num_frames=40, size=(96, 64))
    (tmp_path / "all.list").write_text("a.mp4 0\n")
    (tmp_path / "classes.txt").write_text("walk\n")
    main(words(tmp_path, tmp_path / "ordinary"))
    (tmp_path / "a.mp4").write_bytes(b"")
    main(words(tmp_path, tmp_path / "unreadable"))
    rows = [{"path": f"/a/{long}.mp4", "label": 3, "name": long[:50], "score": 0.123456, "rank": 12}]
    rows[0] |= {"predicted": 4, "predicted_name": long[50:100], "predicted_score": 0.654321}
    classes = [{"label": 3, "name": long[:50], "videos": 12, "predicted": 10, "top1": 0.5, "recall": 0.123}]
    classes[0] |= {"precision": 0.12345, "f1": 0.12345, "confused_with": long[50:100]}
    (tmp_path / "run").mkdir()
    facts = {"config": f"/a/{long}.yaml", "best": "12"}
    page = render(Page(long, facts, hardest=rows, classes=classes, sections=[Section("x", "Nothing")]))
    (tmp_path / "run/report.html").write_text(page)
    with Browser(tmp_path / "profile", width_px=1200) as browser:
        for name in ("out", "ordinary", "unreadable", "run"):
            browser.open((tmp_path / name / "report.html").as_uri())
            assert browser.value(f"{CUT}.length") == 0, name
            assert browser.value(f"{HEADINGS}.length") == browser.value(
                "document.querySelectorAll('h2').length"
            )
            assert browser.value("document.documentElement.scrollWidth") == 1200, name
            told = browser.value("document.body.innerText")
            assert ("Nothing stands out" in told) == (name == "ordinary")


def test_a_second_run_looks_at_what_has_changed(videos, tmp_path, capsys):
    root = tmp_path / "set"
    shutil.copytree(videos, root)
    main(words(root, tmp_path / "out"))
    first = findings(tmp_path / "out")
    flat(root / "03.mp4", 16)
    capsys.readouterr()
    main(words(root, tmp_path / "out", "--json"))
    # one has changed, and one could not be read
    out, err = capsys.readouterr()
    assert "30 of 32 are done already" in err
    (result,) = entries_of(out)
    assert [Path(one["path"]).name for one in result["failed"]] == ["broken.mp4"]
    assert (result["num_videos"], result["findings"]["cannot be read"], result["num_judged"]) == (32, 1, None)
    second = findings(tmp_path / "out")
    new = [one for one in second if one not in first]
    assert ("black", str(root / "03.mp4")) in {(one["finding"], one["path"]) for one in new}


def test_shares_are_merged(videos, tmp_path):
    for share in ("0/2", "1/2"):
        assert main(words(videos, tmp_path / "out", "--job", share)) == 0
        assert not (tmp_path / "out/report.html").exists()
    assert main([*words(videos, tmp_path / "out")[:-2], "--merge"]) == 1
    main(words(videos, tmp_path / "whole"))
    assert findings(tmp_path / "out") == findings(tmp_path / "whole")


def row(root, name, label, scores):
    top = [
        {"label": number, "name": ["run", "walk", "odd"][number], "score": score} for number, score in scores
    ]
    return {"path": str(root / f"{name}.mp4"), "label": label, "name": "", "num_views": 1, "top": top}


def test_contradicted_labels_come_with_the_surest_first(videos, tmp_path, capsys):
    run = tmp_path / "run"
    (run / "fold_1").mkdir(parents=True)
    (run / "fold_2").mkdir()
    rows = [
        row(videos, "00", 0, [(1, 0.6), (0, 0.3), (2, 0.1)]),
        row(videos, "01", 1, [(1, 0.9), (0, 0.1)]),
        row(videos, "02", 0, [(2, 0.99), (1, 0.01)]),
        row(videos, "04", 0, [(1, 0.55), (0, 0.45)]),
        row(videos, "not in the list", 0, [(1, 1.0)]),
    ]
    (run / "fold_1/predictions.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    (run / "fold_2/predictions.jsonl").write_text(
        json.dumps(row(videos, "04", 0, [(0, 0.9), (1, 0.1)])) + "\n"
    )
    (run / "predictions.jsonl").write_text("not read where there are folds")
    main(words(videos, tmp_path / "out", "--run", run))
    found = [one for one in findings(tmp_path / "out") if one["finding"] == "label contradicted"]
    assert [one["path"].rpartition("/")[2] for one in found] == ["02.mp4", "00.mp4"]
    assert found[0]["detail"] == "a network sees odd, by 0.990 of the score"
    assert "a network sees walk" in (tmp_path / "out/report.html").read_text()
    num_videos = len((videos / "all.list").read_text().splitlines())
    assert f"  labels judged: 4 of {num_videos}\n" in capsys.readouterr().out
    assert f"4 of {num_videos}" in (tmp_path / "out/report.html").read_text()
    assert main(words(videos, tmp_path / "other", "--run", tmp_path)) == 2
    assert f"--run {tmp_path}: holds no predictions.jsonl" in capsys.readouterr().err
    (tmp_path / "predictions.jsonl").write_text(json.dumps(rows[-1]) + "\n")
    assert main(words(videos, tmp_path / "other", "--run", tmp_path)) == 2
    assert f"--run {tmp_path}: its predictions are of other videos" in capsys.readouterr().err
    (tmp_path / "predictions.jsonl").write_text(json.dumps({**rows[0], "label": [0, 1]}) + "\n")
    assert main(words(videos, tmp_path / "other", "--run", tmp_path)) == 2
    assert f"--run {tmp_path}: was trained with several labels" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_the_csv_of_a_report_is_the_list_and_corrects_it(videos, tmp_path):
    (tmp_path / "run").mkdir()
    rows = [row(videos, "00", 0, [(1, 0.6), (0, 0.3), (2, 0.1)])]
    (tmp_path / "run/predictions.jsonl").write_text(json.dumps(rows[0]) + "\n")
    main(words(videos, tmp_path / "out", "--run", tmp_path / "run"))
    file = tmp_path / "out/all.csv"
    names = str(videos / "classes.txt")
    before = read_video_list(str(videos / "all.list"), str(videos))
    after = read_video_list(str(file), str(videos), class_names=names)
    assert {(one.path, one.labels) for one in after} == {(one.path, one.labels) for one in before}
    with file.open(newline="") as text:
        entries = {entry["path"]: entry for entry in csv.DictReader(text)}
    remarked = [bool(entry["finding"]) for entry in entries.values()]
    assert remarked == sorted(remarked, reverse=True)  # what to look at comes first
    assert entries["00.mp4"]["finding"] == "label contradicted: a network sees walk, by 0.300 of the score"
    suggestions = {path: entry["suggestion"] for path, entry in entries.items() if entry["suggestion"]}
    assert suggestions == {
        "00.mp4": "walk",
        **{f"{name}.mp4": "leave out" for name in ("black", "white", "still", "broken")},
    }
    assert entries["short.mp4"]["finding"].startswith("short: 5 frames")
    # as in a spreadsheet: the suggestions are taken
    kept = [entry for entry in entries.values() if entry["suggestion"] != "leave out"]
    with file.open("w", newline="") as text:
        writer = csv.DictWriter(text, ["path", "label", "finding", "suggestion"])
        writer.writeheader()
        writer.writerows({**entry, "label": entry["suggestion"] or entry["label"]} for entry in kept)
    corrected = {one.path: one.labels for one in read_video_list(str(file), str(videos), class_names=names)}
    assert len(corrected) == len(before) - 4
    assert corrected[str(videos / "00.mp4")] == (1,)


def test_a_csv_of_a_report_keeps_all_fields_and_runs_nothing(tmp_path):
    listed = tmp_path / "all.jsonl"
    rows = [
        {"path": "=run.mp4", "label": ["walk", 2], "start_sec": 1.5, "end_sec": 3, "weight": 0.5},
        {"path": "a, b.mp4", "label": "walk", "end_frame": 9, "group": "x"},
        {"path": "\udcff.mp4", "label": 0},
    ]
    listed.write_text("".join(json.dumps(one) + "\n" for one in rows))
    found = [Finding(2, "a, b.mp4", "walk", "short", "9 frames", 0.0)]
    lines = list(table_lines(list_rows(str(listed)), found, has_prefix=True))
    write_lines(tmp_path / "all.csv", lines)
    first, second, third = list_rows(str(tmp_path / "all.csv"))
    expected = {one.path: one for one in list_rows(str(listed))}
    assert first._replace(line=2) == expected["a, b.mp4"]
    assert second._replace(line=1, path="=run.mp4") == expected["=run.mp4"]
    assert second.path == "./=run.mp4"
    assert third.path == "\udcff.mp4"
    (tmp_path / "metadata.csv").write_text("file_name,label\na.mp4,walk\n")
    (_, line) = table_lines(list_rows(str(tmp_path / "metadata.csv")), [], has_prefix=False)
    assert line == f"{tmp_path}/a.mp4,walk,,"


def test_videos_at_urls_are_judged(tmp_path):
    url = "https://store.example/set/a.mp4?token=secret"
    predicted = {**row(tmp_path, "a", 0, [(0, 1.0)]), "path": shown_url(url)}  # as a run writes it
    (tmp_path / "predictions.jsonl").write_text(json.dumps(predicted) + "\n")
    records = [VideoRecord(url, (0,)), VideoRecord(str(tmp_path / "b.mp4"), (1,))]
    assert [len(rows) for rows in _predictions_of(records, [tmp_path]).values()] == [1]


def test_one_video_may_have_two_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "predictions.jsonl").write_text(json.dumps(row(tmp_path, "a", 0, [(0, 1.0)])) + "\n")
    records = [VideoRecord("../" + tmp_path.name + "/a.mp4", (0,))]
    assert [len(rows) for rows in _predictions_of(records, [tmp_path]).values()] == [1]


def test_spans_are_looked_at_by_themselves(tmp_path, capsys):
    dark = np.full((64, 96, 3), 16, np.uint8)
    moving = (np.roll(np.arange(96 * 64 * 3, dtype=np.uint8).reshape(64, 96, 3), at, 1) for at in range(40))
    write_video(tmp_path / "film.mp4", [*moving, *[dark] * 40], rate=20)
    rows = [
        {"path": "film.mp4", "label": label, "start_sec": start, "end_sec": start + 2}
        for label, start in ((0, 0), (1, 2))
    ]
    (tmp_path / "all.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    flags = ("--data_prefix", tmp_path, "--output", tmp_path / "out", "--workers", 1)
    assert main(["data", "report", str(tmp_path / "all.jsonl"), *map(str, flags)]) == 0
    assert [(one["line"], one["finding"]) for one in findings(tmp_path / "out")] == [(2, "black")]
    judged = ["data", "report", str(tmp_path / "all.jsonl"), *map(str, (*flags, "--run", tmp_path))]
    assert main(judged) == 2
    assert "--run can judge no label of this list: each entry shares its file" in capsys.readouterr().err


def test_keyframes_and_what_reading_costs(tmp_path):
    write_clip(tmp_path / "a.mp4", num_frames=48, gop=12, size=(96, 64))
    with open_video(tmp_path / "a.mp4") as video, av.open(str(tmp_path / "a.mp4")) as container:
        keys = [number for number, packet in enumerate(container.demux(video=0)) if packet.is_keyframe]
        assert keys == [0, 12, 24, 36]
        assert video.keyframe_gap == 12
        assert video.num_decoded([0]) == 1
        assert video.num_decoded([11, 12]) == 13
        assert video.num_decoded([5, 30]) == 6 + 7
