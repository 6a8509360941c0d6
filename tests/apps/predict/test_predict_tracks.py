"""What each person does: predictions along tracks, and the video that shows them."""

import json

import numpy as np
import paddle
import pytest

from paddlevideo_fast.apps.export.export import ExportOptions
from paddlevideo_fast.apps.predict.predictor import Predictor, Windowing
from paddlevideo_fast.apps.predict.recipe import read_recipe, views_of
from paddlevideo_fast.apps.predict.tracks import TrackedVideo
from paddlevideo_fast.decode import open_video
from paddlevideo_fast.loader import ClipRequest, build_dataset
from paddlevideo_fast.modeling import Preprocess
from tests.support.tracked_people import (
    HEADER,
    LENGTH,
    SIDE,
    corner,
    mot,
    rows_of,
    ultralytics,
    write_people,
)

KEYS = {"margin": 0.3, "max_gap": 12}  # of the training


@pytest.fixture(scope="module")
def street(tmp_path_factory):
    folder = tmp_path_factory.mktemp("street")
    write_people(folder / "street.mp4")
    rows = [row for person in (1, 2) for row in rows_of(range(LENGTH), person)]
    (folder / "street.csv").write_text(ultralytics(rows))
    (folder / "street.txt").write_text(mot(rows))
    return folder


@pytest.fixture(scope="module")
def program(exported):
    return exported("tsm", ExportOptions()).program


def tracked(program, folder, file):
    recipe = read_recipe(program.with_suffix(".yaml")).with_settings(tracks=KEYS)
    return TrackedVideo(Predictor(program, recipe=recipe), str(folder / "street.mp4"), str(folder / file))


def test_a_window_of_an_id_is_the_clip_that_an_evaluation_sees(street, program, trained):
    entries = list(tracked(program, street, "street.csv").entries(Windowing(0.4), 3, 8))
    assert [entry["id"] for entry in entries] == [1, 2]
    run, rows = trained("tsm"), []
    for entry in entries:
        assert [window["start_sec"] for window in entry["windows"]] == [0.0, 0.4, 0.8, 1.2]
        for window in entry["windows"]:
            span = {name: window[name] for name in ("start_sec", "end_sec")}
            rows.append(
                {"path": "street.mp4", "track": "street.txt", "track_id": entry["id"], "label": 0, **span}
            )
    (street / "windows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    section = {
        "format": "VideoDataset",
        "file_path": str(street / "windows.jsonl"),
        "data_prefix": str(street),
    }
    dataset = build_dataset({**section, "tracks": KEYS}, run.cfg["PIPELINE"]["valid"], training=False, seed=0)
    clips = np.stack([dataset[ClipRequest(number, 0)].clip for number in range(len(dataset))])
    with paddle.no_grad():
        logits = run.model(Preprocess(*dataset.pipeline.normalization, run.model.layout)(clips)).numpy()
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    windows = [window for entry in entries for window in entry["windows"]]
    for window, scores in zip(windows, expected):
        found = {one["class_id"]: one["score"] for one in window["top"]}
        np.testing.assert_allclose([found[number] for number in range(8)], scores, rtol=1e-3, atol=1e-5)


def test_an_id_with_a_long_gap_has_an_entry_for_each_piece(street, program):
    (street / "gap.csv").write_text(ultralytics(rows_of([*range(10), *range(25, 40)])))
    first, second = tracked(program, street, "gap.csv").entries(Windowing(0.2), 4, 1)
    assert (first["id"], second["id"]) == (1, 1)
    assert [window["start_sec"] for window in first["windows"]] == [0.0, 0.2]
    assert [window["start_sec"] for window in second["windows"]] == [1.0, 1.2, 1.4]
    assert second["segments"][0]["start_sec"] == 1.0
    assert second["windows"][-1]["end_sec"] == pytest.approx(1.6)


def test_the_command_prints_a_line_for_each_id_and_draws_boxes(street, program, predict, tmp_path):
    (street / "bad.csv").write_text(ultralytics(rows_of(range(LENGTH))) + f"{LENGTH},1.6,7,5,5,60,60\n")
    words = ["-i", street / "street.mp4", "--window_sec", 0.4, "--model_file", program]
    code, out, err = predict(*words, "--tracks", street / "bad.csv", "--json", "--annotated", tmp_path)
    assert code == 1
    first, second = map(json.loads, out.splitlines())
    assert (first["id"], second["id"]) == (1, 7)
    assert len(first["windows"]) == 4
    assert f"bad.csv:{LENGTH + 2}: frame 40, counted from 0, is beyond the video" in second["error"]
    assert second["error"] in err
    with open_video(tmp_path / "street.mp4") as video:
        assert video.num_frames == LENGTH
        assert (video.width, video.height) == (400, 240)  # enlarged, so that text can be read
        for number in (0, 20, 38):
            (frame,) = video.read([number]).astype(int)
            left, top = (2 * each for each in corner(number))
            edge = frame[top + 2 * SIDE - 2, left + 10 : left + 2 * SIDE - 10].mean(axis=0)
            assert np.abs(edge - (60, 160, 240)).max() < 60, edge  # the colour of id 1
            beside = frame[top + 2 * SIDE + 6, left : left + 2 * SIDE]
            assert np.abs(beside - 128).max() < 60
    code, out, _ = predict(*words, "--tracks", street / "street.txt")
    assert code == 0
    assert [line for line in out.splitlines() if ", id " in line] == [
        f"{street}/street.mp4, id {number}" for number in (1, 2)
    ]


WRONG = {
    "no such file": (["--tracks", "no.csv", "--window_sec", 1], "no.csv: there is no such track file"),
    "no box": (["--tracks", "empty.csv", "--window_sec", 1], "empty.csv: the track file has no boxes"),
    "no windows": (["--tracks", "street.csv"], "--tracks: an id is predicted in windows; give --window_sec"),
    "timeline": (
        ["--tracks", "street.csv", "--window_sec", 1, "--timeline", "x.png"],
        "--timeline: leave it out",
    ),
    "folder": (
        ["--tracks", "street.csv", "--window_sec", 1, "-i", "."],
        "--tracks: is about one video, and . is",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_command_lines(street, program, predict, monkeypatch, capsys, name):
    monkeypatch.chdir(street)
    (street / "empty.csv").write_text(HEADER)
    words, text = WRONG[name]
    try:
        code, _, err = predict("-i", "street.mp4", "--model_file", program, *words)
    except SystemExit as ended:
        code, err = ended.code, capsys.readouterr().err
    assert code == 2
    assert text in err
    assert "Traceback" not in err


def test_the_settings_of_a_program_have_the_margin_of_its_config():
    assert views_of({"format": "VideoDataset", "tracks": KEYS})["tracks"] == KEYS
    assert views_of({})["tracks"] is None
