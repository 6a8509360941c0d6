"""The scores of videos, and how often each class is predicted: pure functions of arrays."""

from typing import NamedTuple

import numpy as np

DECISION = 0.5  # from this score on a class counts as predicted, where a video has any number of classes


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


def confusion_matrix(predictions: Predictions) -> np.ndarray:
    """int64 [num_classes, num_classes]: row, the right class; column, the predicted class."""
    num_classes = predictions.scores.shape[1]
    cells = predictions.labels * num_classes + predictions.ranking()[:, 0]
    return np.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes)


def mean_class_accuracy(predictions: Predictions) -> float:
    """The mean of top-1 over the classes that have videos: rare classes count as much as common ones."""
    confusion = confusion_matrix(predictions)
    num_videos = confusion.sum(axis=1)
    return float((confusion.diagonal() / num_videos.clip(1))[num_videos > 0].mean())
