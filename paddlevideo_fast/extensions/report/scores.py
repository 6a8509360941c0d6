"""Results of each class and each video, from the scores of an evaluation: pure functions of arrays."""

import math
from typing import NamedTuple

import numpy as np

from paddlevideo_fast.metrics.average_precision import average_precision, counts_by_score, mean_or_nan
from paddlevideo_fast.metrics.predictions import DECISION, Predictions, confusion_matrix

_LEAST = 1e-30  # score whose logarithm is taken for that of 0


def own_scores(predictions: Predictions) -> np.ndarray:
    """The score of what is right of each video, [N].

    It is the score of the right class. Where a video has any number of classes, it is the geometric mean,
    over all classes, of the scores of its own and of 1 - score of the others.
    """
    if not predictions.has_several:
        return np.take_along_axis(predictions.scores, predictions.labels[:, None], axis=1)[:, 0]
    scores = predictions.scores.astype(np.float64)
    right = np.where(predictions.there, scores, 1 - scores)
    return np.exp(np.log(right.clip(min=_LEAST)).mean(axis=1))


class ClassResult(NamedTuple):
    """The results of one class. A share of no videos is NaN.

    Attributes:
        label: number of the class.
        num_videos: videos of the class.
        num_predicted: videos predicted as the class.
        top1: share of its videos that are predicted as the class.
        top5: share of its videos with the class among the five highest scores.
        precision: share of right predictions among the videos predicted as the class.
        confused_with: the class that most of its other videos are predicted as; None: there are none.
    """

    label: int
    num_videos: int
    num_predicted: int
    top1: float
    top5: float
    precision: float
    confused_with: int | None


def class_results(predictions: Predictions) -> list[ClassResult]:
    """The result of each class."""
    confusion = confusion_matrix(predictions)
    in_top5 = (predictions.ranking()[:, :5] == predictions.labels[:, None]).any(axis=1)
    results = []
    for label, row in enumerate(confusion):
        num_videos, num_predicted, right = int(row.sum()), int(confusion[:, label].sum()), int(row[label])
        others = np.where(np.arange(len(row)) == label, 0, row)
        top5 = int(in_top5[predictions.labels == label].sum())
        shares = _share(right, num_videos), _share(top5, num_videos), _share(right, num_predicted)
        confused_with = int(others.argmax()) if others.any() else None
        results.append(ClassResult(label, num_videos, num_predicted, *shares, confused_with))
    return results


class LabelResult(NamedTuple):
    """The results of one class where videos have any number of classes. A share of no videos is NaN.

    Attributes:
        label: number of the class.
        num_videos: videos of the class.
        average_precision: see `average_precision`.
        num_predicted: videos with a score of `DECISION` or more.
        precision: share of right ones among these.
        recall: share of these among the videos of the class.
        best_threshold: the score that gives the highest F1, the harmonic mean of precision and recall, where
            the videos at or above it are predicted.
        best_f1: that F1.
    """

    label: int
    num_videos: int
    average_precision: float
    num_predicted: int
    precision: float
    recall: float
    best_threshold: float
    best_f1: float


def label_results(predictions: Predictions) -> list[LabelResult]:
    """The result of each class, from `predictions` of videos that have any number of classes."""
    results = []
    for label, (there, scores) in enumerate(zip(predictions.there.T, predictions.scores.T)):
        predicted, num_videos = scores >= DECISION, int(there.sum())
        positives, counted, thresholds = counts_by_score(there, scores)
        f1 = 2 * positives / (counted + num_videos)
        best = int(f1.argmax())
        best_point = (float(thresholds[best]), float(f1[best])) if num_videos else (math.nan, math.nan)
        precision, recall = mean_or_nan(there[predicted]), mean_or_nan(predicted[there])
        area = average_precision(there, scores)
        row = (label, num_videos, area, int(predicted.sum()), precision, recall, *best_point)
        results.append(LabelResult(*row))
    return results


def hardest(predictions: Predictions, count: int) -> np.ndarray:
    """int64 [≤ count], indices of the videos with the lowest `own_scores`, the lowest first."""
    return np.argsort(own_scores(predictions), kind="stable")[:count]


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
