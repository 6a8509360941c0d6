"""Programs for videos of any number of classes: validation's probabilities, and thresholds."""

import numpy as np
import paddle
import pytest
import yaml

from paddlevideo_fast.apps.export.export import ExportOptions
from paddlevideo_fast.apps.predict.predictions import PredictionPictures
from paddlevideo_fast.apps.predict.predictor import (
    Prediction,
    Predictor,
    Window,
    WindowedPrediction,
    entry_of,
    table,
)
from paddlevideo_fast.apps.predict.recipe import recipe_of
from paddlevideo_fast.engine import Evaluator
from paddlevideo_fast.errors import ProgramError
from paddlevideo_fast.loader import build_dataset, build_loader
from paddlevideo_fast.metrics import MeanAveragePrecision
from paddlevideo_fast.modeling import Preprocess
from tests.support.json_lines import entries_of
from tests.support.onnx_packages import OPSET_VERSION, needs_onnx

OPTIONS = ExportOptions(onnx_opset=OPSET_VERSION)


@pytest.fixture(scope="module")
def validation(trained, motion_videos):
    """Paths of the videos, and the probabilities that a validation gives them."""
    run = trained("several")
    section = {"format": "VideoDataset", "file_path": str(motion_videos / "valid.list")}
    section["data_prefix"] = str(motion_videos)
    dataset = build_dataset(section, run.cfg["PIPELINE"]["valid"], training=False, seed=0, num_classes=8)
    loader = build_loader(dataset, batch_size=5, num_workers=0, shuffle=False, drop_last=False, seed=0)
    metric = MeanAveragePrecision()
    preprocess = Preprocess(*dataset.pipeline.normalization, run.model.layout)
    values = Evaluator(loader, preprocess).run(run.model, metric)
    assert np.isfinite(list(values.values())).all()
    return [record.path for record in dataset.records], metric.predictions.scores


@pytest.mark.slow
@pytest.mark.smoke
@pytest.mark.parametrize("form", ["program", pytest.param("onnx", marks=needs_onnx)])
def test_a_program_gives_validations_probabilities(exported, validation, form):
    paths, scores = validation
    predictor = Predictor(getattr(exported("several", OPTIONS), form))
    predicted = list(predictor.predict(paths, batch_size=3))
    np.testing.assert_allclose([one.scores for one in predicted], scores, rtol=1e-4, atol=1e-6)
    assert [one.threshold for one in predicted] == [0.5] * len(paths)
    for one in predicted:
        classes = [score.class_id for score in one.predicted()]
        assert sorted(classes) == np.flatnonzero(one.scores >= 0.5).tolist()
        assert (np.diff(one.scores[classes]) <= 0).all()


def test_the_settings_file_names_the_sigmoid_and_is_as_before_without(exported, trained, tmp_path):
    several = yaml.safe_load(exported("several", OPTIONS).settings.read_text())
    assert several["activation"] == "sigmoid"
    recipe_of(trained("tsm").cfg).save(tmp_path / "plain.yaml")
    assert "activation" not in yaml.safe_load((tmp_path / "plain.yaml").read_text())


def test_the_threshold_of_the_command(exported, validation, predict):
    paths, scores = validation
    model = exported("several", OPTIONS).program
    threshold = float(np.sort(scores[0])[-3])  # three classes reach it
    words = ("-i", paths[0], "--model_file", model, "--top_k", 2, "--threshold", threshold)
    rows = predict(*words)[1].splitlines()[1:]
    assert [row.startswith(" *") for row in rows] == [True, True, True]
    (entry,) = entries_of(predict(*words, "--json")[1])
    best = np.argsort(-scores[0]).tolist()
    assert [one["class_id"] for one in entry["top"]] == best[:2]
    assert [one["class_id"] for one in entry["predicted"]] == best[:3]
    code, out, _ = predict(*words[:4], "--top_k", 2, "--threshold", 1)
    assert (code, "*" in out) == (0, False)


def test_a_threshold_where_a_video_has_one_class(exported, trained):
    plain = exported("several", OPTIONS).program
    with pytest.raises(ProgramError, match="gives one class a video, by softmax, .* leave threshold 0.3 out"):
        Predictor(plain, recipe=recipe_of(trained("tsm").cfg), threshold=0.3)


@pytest.fixture
def windowed():
    """Four windows of two seconds; class 0 in the first three, class 2 in the second and the last."""
    scores = np.array([[0.9, 0, 0.1], [0.7, 0, 0.6], [0.5, 0, 0.2], [0.1, 0.2, 0.8]], np.float32)
    parts = [Prediction("v.mp4", row, row[None], ["a", "b", "c"], 0.5) for row in scores]
    whole = Prediction("v.mp4", scores.mean(axis=0), scores, ["a", "b", "c"], 0.5)
    windows = [Window(10 * start, 10 * start + 20, start, start + 2) for start in (0, 2, 4, 6)]
    return WindowedPrediction(whole, windows, parts)


def test_segments_of_several_classes_may_overlap_and_leave_gaps(windowed):
    found = [(one.start_sec, one.end_sec, one.best.class_id) for one in windowed.segments()]
    assert found == [(0.0, 6.0, 0), (2.0, 4.0, 2), (6.0, 8.0, 2)]
    assert windowed.segments()[0].best.score == pytest.approx(0.7)
    entry = entry_of(windowed, top_k=1)
    assert [[one["name"] for one in window["predicted"]] for window in entry["windows"]] == [
        ["a"], ["a", "c"], ["a"], ["c"],
    ]  # fmt: skip
    lines = table(entry).splitlines()
    assert lines[1:3] == [" * 0.55000  a", "  windows"]
    assert lines[4].endswith("4.00 s * 0.70000  a")
    assert lines[5].endswith("4.00 s * 0.60000  c")


def test_captions_name_all_predicted_classes(windowed, exported, tmp_path, motion_videos):
    predictor = Predictor(exported("several", OPTIONS).program)
    source = next(motion_videos.glob("valid/*.mp4"))
    pictures = PredictionPictures(predictor, [source], motion_videos, annotated=tmp_path / "out")
    texts = [caption.text for caption in pictures._captions(windowed)]
    assert texts == ["0  0.90", "0  0.70,  2  0.60", "0  0.50", "2  0.80"]
    nothing = Prediction("v.mp4", np.zeros(8, np.float32), np.zeros((1, 8)), None, 0.5)
    assert [caption.text for caption in pictures._captions(nothing)] == ["–"]


def test_large_logits_do_not_overflow():
    from paddlevideo_fast.apps.predict.predictor import _mean_probabilities

    logits = np.array([[1000.0, -1000.0, 0.0]], np.float32)
    with np.errstate(all="raise"):
        assert _mean_probabilities(logits, "sigmoid").tolist() == [1.0, 0.0, 0.5]
    expected = paddle.nn.functional.sigmoid(paddle.to_tensor([[0.3, -2.0]])).numpy()[0]
    found = _mean_probabilities(np.array([[0.3, -2.0]]), "sigmoid")
    np.testing.assert_allclose(found, expected, rtol=1e-6)
