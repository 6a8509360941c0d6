"""Tables, pictures and the page: what is in them is what was given."""

import base64
import csv
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from paddlevideo_fast.errors import AnnotationError, ExplanationError, PaddleVideoFastError
from paddlevideo_fast.extensions.report.drawings import confusion_picture, curve_figures
from paddlevideo_fast.extensions.report.output import make_folders, save_json
from paddlevideo_fast.extensions.report.page import Example, Page, contact_sheet, heat_sheet, render
from paddlevideo_fast.extensions.report.results import Evaluated
from paddlevideo_fast.extensions.report.scores import own_scores
from paddlevideo_fast.extensions.report.tables import Naming, class_rows, hardest_rows, write_tables
from paddlevideo_fast.loader import read_class_names
from paddlevideo_fast.metrics.predictions import Predictions, confusion_matrix

NASTY = "<script>alert('x')</script> & \"co\""


@pytest.fixture
def predictions():
    """20 videos of a list of 40, 6 classes, the last without videos."""
    rng = np.random.default_rng(2)
    scores = rng.dirichlet(np.ones(6), 20).astype(np.float32)
    ids = np.sort(rng.choice(40, 20, replace=False))
    return Predictions(ids, rng.integers(0, 5, 20), scores, np.full(20, 3))


@pytest.fixture
def naming():
    return Naming(
        ["run", "jump", NASTY, "跳舞", "swim, fast", "none"], [f"videos/{i}.mp4" for i in range(40)]
    )


def read_csv(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


class Elements(HTMLParser):
    """All elements with their attributes, the text, and a check that all that is opened is closed."""

    def __init__(self, text):
        super().__init__()
        self.found, self.text, self.open = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "img", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def all(self, tag):
        return [attrs for name, attrs in self.found if name == tag]


def test_tables_hold_every_video_and_class(tmp_path, predictions, naming):
    write_tables(tmp_path / "new", predictions, naming)
    lines = (tmp_path / "new/predictions.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["path"] for row in rows] == [f"videos/{i}.mp4" for i in predictions.ids]
    for row, scores, label in zip(rows, predictions.scores, predictions.labels):
        best = np.argsort(-scores)[:5]
        assert [top["label"] for top in row["top"]] == best.tolist()
        assert [top["score"] for top in row["top"]] == pytest.approx(scores[best].tolist(), abs=1e-6)
        assert (row["label"], row["name"], row["num_views"]) == (label, naming.classes[label], 3)
    head, *confusion = read_csv(tmp_path / "new/confusion.csv")
    assert head[1:] == [row[0] for row in confusion] == list(naming.classes)
    counts = np.array([[int(cell) for cell in row[1:]] for row in confusion])
    np.testing.assert_array_equal(counts, confusion_matrix(predictions))
    head, *classes = read_csv(tmp_path / "new/per_class.csv")
    assert len(classes) == 6
    assert [int(row[head.index("videos")]) for row in classes] == counts.sum(1).tolist()
    assert classes[5][head.index("top1")] == ""  # it has no video
    head, *worst = read_csv(tmp_path / "new/worst.csv")
    own = [float(row[head.index("score")]) for row in worst]
    assert len(worst) == 20
    assert own == sorted(own)
    first = worst[0][head.index("path")]
    assert first == f"videos/{predictions.ids[own_scores(predictions).argmin()]}.mp4"
    ranks = [int(row[head.index("rank")]) for row in worst]
    assert sum(rank == 1 for rank in ranks) == counts.trace()
    order = own_scores(predictions).argsort()
    higher = predictions.scores[order] > own_scores(predictions)[order][:, None]
    assert ranks == (higher.sum(axis=1) + 1).tolist()
    assert [path.name for path in (tmp_path / "new").iterdir() if path.name.startswith(".")] == []


def test_no_cell_is_a_formula(tmp_path, predictions, naming):
    """A spreadsheet runs text that begins with one of these characters."""
    names = ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "plain"]
    write_tables(tmp_path, predictions, Naming(names, naming.paths))
    shown = [f"'{name}" for name in names[:-1]] + ["plain"]
    head, *confusion = read_csv(tmp_path / "confusion.csv")
    assert head[1:] == [row[0] for row in confusion] == shown
    head, *classes = read_csv(tmp_path / "per_class.csv")
    assert [row[head.index("name")] for row in classes] == shown


def test_tables_of_videos_without_a_label(tmp_path, naming):
    scores = np.random.default_rng(0).random((3, 6)).astype("float32")
    predictions = Predictions(np.arange(3), np.zeros([3, 6], "float32"), scores, np.ones(3, int))
    write_tables(tmp_path, predictions, naming)
    assert read_csv(tmp_path / "thresholds.csv") == [
        ["label", "name", "threshold", "precision", "recall", "F1"]
    ]
    head, *classes = read_csv(tmp_path / "per_class.csv")
    assert [row[head.index("videos")] for row in classes] == ["0"] * 6
    assert {row[head.index(name)] for row in classes for name in ("AP", "recall", "best_F1")} == {""}
    assert len(read_csv(tmp_path / "worst.csv")) == 4


def test_a_folder_that_cannot_be_written_is_one_error(tmp_path, predictions, naming):
    (tmp_path / "file").write_text("")
    with pytest.raises(PaddleVideoFastError, match="predictions.jsonl: cannot be written"):
        write_tables(tmp_path / "file", predictions, naming)


def test_names_of_classes(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("running\n打\n\n", encoding="utf-8")
    assert read_class_names(path, 2) == ["running", "打"]
    # as Notepad writes it; U+0085 and U+2028 are no line ends
    path.write_bytes("\ufeffrunning\x85fast\r\n\r\n  打\u2028球 \r\n".encode())
    assert read_class_names(path, 2) == ["running\x85fast", "打\u2028球"]
    with pytest.raises(AnnotationError, match=r"names.txt: has 2 names, the model 3 classes"):
        read_class_names(path, 3)
    with pytest.raises(AnnotationError, match=r"DATASET.class_names .*nowhere.txt: cannot be read"):
        read_class_names(tmp_path / "nowhere.txt", 3, "DATASET.class_names")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(AnnotationError, match="cannot be read"):
        read_class_names(path, 1)


@pytest.mark.parametrize("num_frames", [1, 3, 8, 33])
def test_a_contact_sheet_shows_frames_of_the_whole_clip(num_frames):
    clip = np.repeat(np.arange(num_frames, dtype=np.uint8) * 7, 40 * 60 * 3).reshape(num_frames, 40, 60, 3)
    sheet = contact_sheet(clip, height_px=20)
    count = min(num_frames, 8)
    assert sheet.shape == (20, 30 * count, 3)
    shown = sheet[10, 15::30, 0] // 7
    assert shown[0] == 0
    assert shown[-1] == num_frames - 1
    assert len(set(np.diff(shown))) <= 2  # equally far apart, rounded


def test_heat_is_blended_over_the_frames():
    clip, heat = np.full((3, 40, 60, 3), 100, np.uint8), np.zeros((3, 40, 60), np.float32)
    heat[1, :20, :30] = 1
    sheet = heat_sheet(clip, heat, height_px=40).astype(int)
    assert sheet.shape == (40, 180, 3)
    hot = np.zeros((40, 180), bool)
    hot[:20, 60:90] = True
    assert (sheet[~hot] == 100).all()
    assert (sheet[hot][:, 0] - sheet[hot][:, 2] > 50).all()  # red


class Clips:
    """A data set of clips, of which the one at an odd place is too damaged to read."""

    num_views = 2
    pipeline = SimpleNamespace(num_views=2)

    def __init__(self, paths):
        self.records = [SimpleNamespace(path=path) for path in paths]

    def __getitem__(self, request):
        pixels = np.full((8, 20, 30, 3), request.index, np.uint8)
        return SimpleNamespace(clip=None if request.index % 2 else pixels)


def test_examples_show_what_decided_on_the_predicted_class(predictions, naming, caplog):
    asked, none = [], Evaluated({}, predictions, naming, Clips(naming.paths))

    def explain(clip, class_id):
        asked.append((int(clip[0, 0, 0, 0]), class_id))
        return np.ones(clip.shape[:3], np.float32)

    examples = replace(none, explain=explain).examples()
    assert len(examples) == len(asked) > 3
    best = dict(zip(predictions.ids.tolist(), predictions.scores.argmax(1).tolist()))
    assert all(best[index] == class_id for index, class_id in asked)
    assert [f"videos/{index}.mp4" for index, _ in asked] == [example.path for example in examples]
    assert all(example.heat.shape == example.sheet.shape == (96, 4 * 144, 3) for example in examples)

    def fail(error):
        def explain(clip, class_id):
            raise error

        return explain

    plain = [example.path for example in none.examples()]
    for error, level in ((ExplanationError("no maps; take occlusion"), "INFO"), (ValueError("x"), "WARNING")):
        caplog.clear()
        with caplog.at_level("INFO"):
            examples = replace(none, explain=fail(error)).examples()
        assert [example.path for example in examples] == plain
        assert {example.heat is None for example in examples} == {True}
        assert [record.levelname for record in caplog.records] == [level]


def test_a_confusion_matrix_is_a_readable_picture():
    small = cv2.imdecode(np.frombuffer(confusion_picture(np.eye(3, dtype=int) * 4, "abc"), np.uint8), 1)
    assert min(small.shape[:2]) >= 300
    dark = (small.astype(int).sum(-1) < 330).sum()
    none = confusion_picture(np.zeros((3, 3), int), "abc")
    assert dark > (cv2.imdecode(np.frombuffer(none, np.uint8), 1).astype(int).sum(-1) < 330).sum() + 1000
    many = [str(number) for number in range(400)]
    large = cv2.imdecode(np.frombuffer(confusion_picture(np.eye(400, dtype=int), many), np.uint8), 1)
    assert max(large.shape[:2]) <= 1300


def test_curves_have_a_point_for_every_record():
    records = [
        {"kind": "train", "step": step, "loss": 1 / step, "lr": 0.1, "ips": 4.0} for step in range(1, 31)
    ]
    records += [
        {"kind": kind, "step": 10 * epoch, "epoch": epoch, "loss": 0.5 / epoch, "top1": 0.2 * epoch}
        for epoch in (1, 2, 3)
        for kind in ("train_epoch", "valid")
    ]
    records[-1]["best_epoch"] = 2  # chosen by another value than top-1, which is the highest in epoch 3
    figures = curve_figures(records)
    assert list(figures) == ["Loss", "Top-1", "Learning rate", "Clips a second"]
    points = {}
    for svg in figures.values():
        for gid, path in re.findall(r'<g id="(curve-[^"]*)">\s*<path d="([^"]*)"', svg):
            points[gid] = len(re.findall(r"[ML] ", path))
    assert points["curve-train-loss"] == 30
    assert points["curve-valid-loss"] == points["curve-train_epoch-top1"] == points["curve-valid-top1"] == 3
    assert "best: epoch 2" in figures["Top-1"]
    assert curve_figures([]) == {}


def test_the_page_holds_everything_and_nothing_else(predictions, naming):
    sheet = np.random.default_rng(0).integers(0, 255, (32, 64, 3), dtype=np.uint8)
    page = Page(
        "Training of " + NASTY,
        {"data": "a & b"},
        {"top1": 0.123456},
        curve_figures([{"kind": "valid", "step": step, "loss": 1.0 * step} for step in (1, 2)]),
        confusion_picture(confusion_matrix(predictions), naming.classes),
        class_rows(predictions, naming),
        hardest_rows(predictions, naming, 7),
        [Example("a.mp4", "run", NASTY, 0.5, sheet, sheet), Example("b.mp4", "run", "run", 0.987, sheet)],
        {"what it restores": sheet},
        "MODEL:\n  name: <x>\n",
    )
    text = render(page)
    found = Elements(text)
    assert found.open == []
    words = "".join(found.text)
    for expected in (
        "a & b",
        "0.12346",
        "name: <x>",
        "50.0 %",
        "98.7 %",
        "跳舞",
        "paddlevideo_fast",
        "videos/",
    ):
        assert expected in words
    assert words.count(NASTY) >= 4
    assert found.all("script") == []
    pictures = [attrs["src"] for attrs in found.all("img")]
    assert len(pictures) == 5
    assert [attrs["alt"] for attrs in found.all("img")][1:4] == [
        "frames of a.mp4",
        "frames of a.mp4, what decided",
        "frames of b.mp4",
    ]
    for source in pictures:
        kind, _, data = source.partition(";base64,")
        assert kind in ("data:image/png", "data:image/jpeg")
        assert cv2.imdecode(np.frombuffer(base64.b64decode(data), np.uint8), 1) is not None
    # nothing is loaded from elsewhere
    for _, attrs in found.found:
        for key in ("src", "href", "xlink:href"):
            assert attrs.get(key, "#").startswith(("data:", "#"))
    assert "url(http" not in text
    assert "@import" not in text


def test_what_is_not_there_has_no_heading():
    found = Elements(render(Page("Empty")))
    assert [attrs["id"] for attrs in found.all("h2")] == ["versions"]


def test_json_and_folders(tmp_path):
    save_json({"top1": 0.5}, tmp_path / "a/b/metrics.json")
    assert (tmp_path / "a/b/metrics.json").read_text() == '{\n "top1": 0.5\n}\n'
    make_folders([tmp_path / "c/d/clip.mp4", tmp_path / "c/e.mp4"])
    assert (tmp_path / "c/d").is_dir()
    with pytest.raises(PaddleVideoFastError, match="cannot be made"):
        make_folders([tmp_path / "a/b/metrics.json/clip.mp4"])
