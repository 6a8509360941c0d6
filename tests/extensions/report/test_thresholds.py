"""Precision and recall against plain counting."""

import numpy as np
import pytest

from paddlevideo_fast.extensions.report.thresholds import precision_recall


def test_precision_and_recall_at_every_threshold():
    rng = np.random.default_rng(0)
    scores = np.concatenate([rng.uniform(size=200), [0.0, 1.0, 0.5]])
    right = rng.uniform(size=203) < scores
    curve = precision_recall(right, scores, num_thresholds=11)
    for place in range(11):
        taken = scores * 10 >= place
        expected = (taken & right).sum(), (taken & ~right).sum(), (~taken & right).sum()
        assert tuple(count[place] for count in curve) == expected
        recall, precision = expected[0] / right.sum(), expected[0] / max(taken.sum(), 1)
        assert curve.thresholds[place] == pytest.approx(place / 10)
        assert (curve.recall[place], curve.precision[place]) == pytest.approx((recall, precision))
        assert curve.f1[place] == pytest.approx(2 * precision * recall / (precision + recall))
