"""Results of classes and videos, against plain counting."""

import math

import numpy as np
import pytest

from paddlevideo_fast.extensions.report.scores import (
    class_results,
    hardest,
    label_results,
    own_scores,
)
from paddlevideo_fast.metrics.average_precision import average_precision
from paddlevideo_fast.metrics.predictions import Predictions

NUM_CLASSES = 7


def of(labels, scores):
    labels, scores = np.asarray(labels), np.asarray(scores, np.float32)
    return Predictions(np.arange(len(labels)), labels, scores, np.ones(len(labels), int))


def test_counts_of_classes():
    rng = np.random.default_rng(4)
    labels = rng.choice([0, 1, 2, 3, 4, 6], 30, p=[0.4, 0.2, 0.1, 0.1, 0.1, 0.1])  # class 5 has no video
    scores = rng.random((30, NUM_CLASSES))
    scores[np.arange(30), labels] += 0.3
    predicted = scores.argmax(1)
    for result in class_results(of(labels, scores)):
        own = labels == result.label
        assert result.num_videos == own.sum()
        assert result.num_predicted == (predicted == result.label).sum()
        if not own.any():
            assert math.isnan(result.top1)
            assert math.isnan(result.top5)
            assert result.confused_with is None
            continue
        assert result.top1 == pytest.approx((predicted[own] == result.label).mean())
        best = np.argsort(-scores[own], axis=1)[:, :5]
        assert result.top5 == pytest.approx((best == result.label).any(1).mean())
        wrong = predicted[own & (predicted != labels)]
        if len(wrong):
            assert (wrong == result.confused_with).sum() == np.bincount(wrong).max()


@pytest.mark.parametrize("place", range(NUM_CLASSES))
def test_the_fifth_class_is_the_last_of_the_top_5(place):
    """One video; `place` classes have a higher score than its own."""
    result = class_results(of([place], [np.linspace(0.3, 0.0, NUM_CLASSES)]))[place]
    assert (result.top1, result.top5) == (place < 1, place < 5)


def test_counts_and_the_best_threshold_of_each_class_of_several():
    rng = np.random.default_rng(4)
    labels = (rng.random((40, 6)) < 0.4).astype(np.float32)
    labels[:, 4] = 0
    predictions = of(labels, np.clip(0.7 * rng.random((40, 6)) + 0.3 * labels, 0, 1))
    for result in label_results(predictions):
        own, scores = labels[:, result.label] > 0, predictions.scores[:, result.label]
        assert result.num_videos == own.sum()
        assert result.num_predicted == (scores >= 0.5).sum()
        assert result.precision == pytest.approx(own[scores >= 0.5].mean())
        if not own.any():
            assert math.isnan(result.average_precision)
            assert math.isnan(result.best_threshold)
            continue
        assert result.average_precision == average_precision(own, scores)
        assert result.recall == pytest.approx((scores[own] >= 0.5).mean())

        def f1_at(threshold, own=own, scores=scores):
            return 2 * (own & (scores >= threshold)).sum() / (own.sum() + (scores >= threshold).sum())

        assert result.best_f1 == pytest.approx(max(f1_at(score) for score in scores))
        assert f1_at(np.float32(result.best_threshold)) == pytest.approx(result.best_f1)


def test_the_hardest_have_the_lowest_scores_of_their_class():
    predictions = of([1, 1, 0, 0], [[0.9, 0.1], [0.2, 0.8], [0.5, 0.5], [0.4, 0.6]])
    assert hardest(predictions, 3).tolist() == [0, 3, 2]
    assert len(hardest(predictions, 10)) == 4


def test_the_hardest_of_several_classes_have_scores_far_from_their_classes():
    labels = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0]], np.float32)
    predictions = of(labels, [[0.9, 0.2, 0.1], [0.9, 0.1, 0.1], [0.1, 0.1, 0.6]])
    expected = [(0.9 * 0.8 * 0.9) ** (1 / 3), (0.9 * 0.1 * 0.9) ** (1 / 3), (0.9 * 0.9 * 0.4) ** (1 / 3)]
    np.testing.assert_allclose(own_scores(predictions), expected, rtol=1e-6)
    assert hardest(predictions, 2).tolist() == [1, 2]
