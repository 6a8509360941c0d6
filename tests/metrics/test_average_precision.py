"""Average precision against scikit-learn's figures and its definition, over views and processes."""

import json
import math
from pathlib import Path

import numpy as np
import paddle
import pytest

from paddlevideo_fast.metrics import MeanAveragePrecision
from paddlevideo_fast.metrics.accuracy import count_hits
from paddlevideo_fast.metrics.average_precision import average_precision
from paddlevideo_fast.metrics.predictions import Predictions

_FIGURES = Path(__file__).parents[1] / "reference" / "average_precision.json"
CASES = json.loads(_FIGURES.read_text(encoding="utf-8"))["cases"]
NUM_CLASSES = 6


def by_definition(there, scores):
    """Counts anew at each threshold."""
    total, recall_before = 0.0, 0.0
    for threshold in sorted(set(scores.tolist()), reverse=True):
        at_or_above = scores >= threshold
        recall = (there & at_or_above).sum() / there.sum()
        total += (recall - recall_before) * (there & at_or_above).sum() / at_or_above.sum()
        recall_before = recall
    return total


def drawn(case):
    """What the note in the file of figures describes."""
    rng = np.random.default_rng(case["seed"])
    shape = case["videos"], case["classes"]
    there = rng.random(shape) < case["share"] * rng.random(case["classes"])
    scores = np.round(rng.random(shape) * 0.7 + 0.3 * there, case["digits"]).astype(np.float32)
    return there, scores


@pytest.mark.smoke
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"seed{case['seed']}")
def test_it_is_scikit_learns_also_with_equal_scores(case):
    there, scores = drawn(case)
    for label, expected in enumerate(case["each"]):
        own = average_precision(there[:, label], scores[:, label])
        if expected is None:
            assert math.isnan(own)
        else:
            assert own == pytest.approx(expected, abs=1e-9)
            assert own == pytest.approx(by_definition(there[:, label], scores[:, label]), abs=1e-9)


def seen_by(logits, labels, videos, batch_size=7):
    """A metric that has seen all views of some videos."""
    metric = MeanAveragePrecision()
    keys = [(video, view) for video in videos for view in range(logits.shape[1])]
    for start in range(0, len(keys), batch_size):
        ids, views = (list(part) for part in zip(*keys[start : start + batch_size]))
        metric.update(paddle.to_tensor(logits[ids, views]), paddle.to_tensor(labels[ids]), ids, views)
    return metric


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"seed{case['seed']}")
def test_the_metric_gives_scikit_learns_means(case):
    there, scores = drawn(case)
    metric = MeanAveragePrecision()
    # the scores themselves, as their logits come back from the sigmoid with other roundings
    predictions = Predictions(np.arange(len(there)), there.astype(np.float32), scores, np.ones(len(there)))
    values = metric.accumulate([(predictions, np.empty((len(there), 0)))])
    assert values["mAP"] == pytest.approx(case["macro"], abs=1e-9)
    assert values["mAP_micro"] == pytest.approx(case["micro"], abs=1e-9)
    first = scores.argmax(axis=1)
    labelled = np.flatnonzero(there.any(axis=1))
    assert values["hit1"] == pytest.approx(np.mean([there[video, first[video]] for video in labelled]))


@pytest.fixture(scope="module")
def views():
    """Logits of 40 videos × 3 views and their labels; class 4 has no video, video 3 no class."""
    rng = np.random.default_rng(4)
    labels = (rng.random((40, NUM_CLASSES)) < 0.4).astype(np.float32)
    labels[:, 4] = 0
    labels[3] = 0
    logits = rng.normal(size=(40, 3, NUM_CLASSES)).astype(np.float32) + labels[:, None]
    return logits, labels


@pytest.mark.smoke
def test_probabilities_of_the_views_are_averaged(views):
    logits, labels = views
    metric = seen_by(logits, labels, range(40))
    values = metric.accumulate()
    means = (1 / (1 + np.exp(-logits.astype(np.float64)))).mean(axis=1)
    np.testing.assert_allclose(metric.predictions.scores, means, atol=1e-6)
    np.testing.assert_array_equal(metric.predictions.labels, labels)
    there = labels > 0
    each = [by_definition(there[:, k], means[:, k]) for k in range(NUM_CLASSES) if k != 4]
    assert values["mAP"] == pytest.approx(np.mean(each), abs=1e-9)
    assert next(iter(values)) == "mAP"  # it decides which epoch is best


def test_a_nan_is_never_right():
    there = np.array([True, False, True])
    assert average_precision(there, np.array([np.nan, 0.5, 0.9])) == pytest.approx((1 + 2 / 3) / 2)
    assert average_precision(there, np.array([0.8, np.nan, 0.9])) == pytest.approx((1 / 2 + 2 / 3) / 2)


def test_classes_are_predicted_from_a_half_on():
    labels = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0]], np.float32)
    scores = np.array([[0.9, 0.2, 0.1], [0.9, 0.1, 0.1], [0.1, 0.1, 0.6]], np.float32)
    predictions = Predictions(np.arange(3), labels, scores, np.ones(3, int))
    assert predictions.predicted.tolist() == [
        [True, False, False],
        [True, False, False],
        [False, False, True],
    ]


def test_hits_of_a_training_step_leave_out_clips_without_a_class():
    logits = paddle.to_tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0], [3.0, 0.0, 0.0]])
    labels = paddle.to_tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    assert count_hits(logits, labels) == {"hit1": (1, 2)}
    assert count_hits(logits, paddle.to_tensor([0, 1, 2])) == {"top1": (1, 3)}
