"""The scores of videos and the tables that follow from them: pure functions of arrays."""

from typing import NamedTuple

import numpy as np

DECISION = 0.5  # from this score on a class counts as predicted, where a video has any number of classes
_LEAST = 1e-30  # score whose logarithm is taken for that of 0


class Predictions(NamedTuple):
    """The scores of N videos.

    Attributes:
        ids: int64 [N], numbers of the videos in their list, ascending.
        labels: int64 [N]; where a video has any number of classes, float32 [N, num_classes], 1 for those.
        scores: float32 [N, num_classes], probabilities, the mean over the views of a video.
        num_views: int64 [N], how many views a video has.
    """

    ids: np.ndarray
    labels: np.ndarray
    scores: np.ndarray
    num_views: np.ndarray

    @property
    def has_several(self) -> bool:
        """Whether a video has any number of classes, and not exactly one."""
        return self.labels.ndim == 2

    @property
    def there(self) -> np.ndarray:
        """The classes of each video, bool [N, num_classes]."""
        if self.has_several:
            return self.labels > 0
        return self.labels[:, None] == np.arange(self.scores.shape[1])

    @property
    def predicted(self) -> np.ndarray:
        """The predicted classes of each video, bool [N, num_classes].

        They are the class with the highest score, or, with any number of classes, those from `DECISION` on.
        """
        if self.has_several:
            return self.scores >= DECISION
        return self.ranking()[:, :1] == np.arange(self.scores.shape[1])

    def ranking(self) -> np.ndarray:
        """int64 [N, num_classes], classes by falling score; of equal scores the lower class comes first."""
        return np.argsort(-self.scores, axis=1, kind="stable")

    def own_scores(self) -> np.ndarray:
        """The score of what is right of each video, [N].

        It is the score of the right class. Where a video has any number of classes, it is the geometric mean,
        over all classes, of the scores of its own and of 1 - score of the others.
        """
        if not self.has_several:
            return np.take_along_axis(self.scores, self.labels[:, None], axis=1)[:, 0]
        scores = self.scores.astype(np.float64)
        right = np.where(self.there, scores, 1 - scores)
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


def confusion_matrix(predictions: Predictions) -> np.ndarray:
    """int64 [num_classes, num_classes]: row, the right class; column, the predicted class."""
    num_classes = predictions.scores.shape[1]
    cells = predictions.labels * num_classes + predictions.ranking()[:, 0]
    return np.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes)


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


def mean_class_accuracy(predictions: Predictions) -> float:
    """The mean of top-1 over the classes that have videos: rare classes count as much as common ones."""
    confusion = confusion_matrix(predictions)
    num_videos = confusion.sum(axis=1)
    return float((confusion.diagonal() / num_videos.clip(1))[num_videos > 0].mean())


def hardest(predictions: Predictions, count: int) -> np.ndarray:
    """int64 [≤ count], indices of the videos with the lowest `Predictions.own_scores`, the lowest first."""
    return np.argsort(predictions.own_scores(), kind="stable")[:count]


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
