"""Precision and recall at every threshold of the scores."""

from typing import NamedTuple

import numpy as np


class PrecisionRecall(NamedTuple):
    """Counts of right and wrong decisions at T thresholds, evenly spaced from 0 to 1; each int64 [T].

    Attributes:
        true_positives, false_positives: at or above the threshold.
        false_negatives: below it.
    """

    true_positives: np.ndarray
    false_positives: np.ndarray
    false_negatives: np.ndarray

    @property
    def precision(self) -> np.ndarray:
        """float64 [T], 0 where no score reaches the threshold."""
        return self.true_positives / (self.true_positives + self.false_positives).clip(1)

    @property
    def recall(self) -> np.ndarray:
        """float64 [T]."""
        return self.true_positives / (self.true_positives + self.false_negatives).clip(1)

    @property
    def f1(self) -> np.ndarray:
        """float64 [T], the harmonic mean of precision and recall."""
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / np.where(total > 0, total, 1)

    @property
    def thresholds(self) -> np.ndarray:
        """float64 [T]."""
        return np.linspace(0, 1, len(self.true_positives))


def precision_recall(right: np.ndarray, scores: np.ndarray, num_thresholds: int = 101) -> PrecisionRecall:
    """Precision and recall of the scores at every threshold.

    Args:
        right: bool [M].
        scores: float [M], from 0 to 1.
        num_thresholds: T.
    """
    buckets = np.floor(scores * (num_thresholds - 1)).astype(np.int64)
    positives = np.bincount(buckets[right], minlength=num_thresholds)[::-1].cumsum()[::-1]
    negatives = np.bincount(buckets[~right], minlength=num_thresholds)[::-1].cumsum()[::-1]
    return PrecisionRecall(positives, negatives, positives[0] - positives)
