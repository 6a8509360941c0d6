"""Average precision of videos that have any number of classes."""

import math
from typing import ClassVar

import numpy as np

from paddlevideo_fast.config.types import Activation
from paddlevideo_fast.metrics.predictions import Predictions
from paddlevideo_fast.metrics.videos import VideoMetric
from paddlevideo_fast.registry import METRICS


@METRICS.register()
class MeanAveragePrecision(VideoMetric):
    """Mean average precision of videos that have any number of classes.

    The score of a class is the mean of the views' sigmoid scores. Any number of views will do, one too, and
    it may differ between videos: where a view does not decode, the others count. A sample that comes again,
    here or in another process, counts once.

    Its values are "mAP", the mean of the classes' average precisions; "mAP_micro", the average precision of
    all decisions together, one for each video and class; and "hit1", the share of the videos whose highest
    score is of one of their classes. Classes without a video and, in "hit1", videos without a class are left
    out.
    """

    activation: ClassVar[Activation] = "sigmoid"
    value_names = ("mAP", "mAP_micro", "hit1")

    def _values(self, predictions: Predictions, facts: np.ndarray) -> dict[str, float]:
        there, scores = predictions.there, predictions.scores
        some = there.any(axis=0)
        each = [average_precision(there[:, label], scores[:, label]) for label in np.flatnonzero(some)]
        labelled = there.any(axis=1)
        hits = np.take_along_axis(there, predictions.ranking()[:, :1], axis=1)[labelled]
        return {
            "mAP": mean_or_nan(np.array(each)),
            "mAP_micro": average_precision(there.reshape(-1), scores.reshape(-1)),
            "hit1": mean_or_nan(hits),
        }


def average_precision(there: np.ndarray, scores: np.ndarray) -> float:
    """The average of the precisions at all scores, weighted by how much recall each adds.

    With the distinct scores as thresholds, from the highest to the lowest, it is the sum of
    (recall_n - recall_{n-1}) · precision_n. Equal scores are one threshold, so their order makes no
    difference. NaN never counts as right.

    Args:
        there: bool [M], what is right.
        scores: float [M].

    Returns:
        From 0 to 1; NaN where nothing is right.
    """
    if not there.any():
        return math.nan
    positives, counted, _ = counts_by_score(there, scores)
    precision = positives / counted
    return float((np.diff(positives, prepend=0) * precision).sum() / positives[-1])


def counts_by_score(there: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each distinct score, from the highest: right ones at or above it, all at or above it, the score."""
    scores = np.where(np.isnan(scores), np.where(there, -np.inf, np.inf), scores)
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    last = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))  # of each group of equal scores
    return there[order].cumsum()[last], last + 1, ordered[last]


def mean_or_nan(values: np.ndarray) -> float:
    """The mean of values; NaN where there are none."""
    return float(values.mean()) if len(values) else math.nan
