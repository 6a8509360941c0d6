"""What a model said of each video, and what follows from it: pure arrays, no state of a run."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np
import paddle


class Predictions(NamedTuple):
    """The scores of N videos.

    Attributes:
        ids: int64 [N], numbers of the videos in their list, ascending.
        labels: int64 [N].
        scores: float32 [N, num_classes], softmax, the mean over the views of a video.
        num_views: int64 [N], how many views that were.
    """

    ids: np.ndarray
    labels: np.ndarray
    scores: np.ndarray
    num_views: np.ndarray

    def ranking(self) -> np.ndarray:
        """int64 [N, num_classes], classes by falling score; of equal ones the lower class comes first."""
        return np.argsort(-self.scores, axis=1, kind="stable")

    def own_scores(self) -> np.ndarray:
        """float32 [N], of the right class."""
        return np.take_along_axis(self.scores, self.labels[:, None], axis=1)[:, 0]


class ClassResult(NamedTuple):
    """How a class came out.

    Attributes:
        label: its number.
        num_videos: that are of it.
        num_predicted: videos taken for it.
        top1: share of its videos taken for it; NaN where there are none. The others likewise.
        top5: share of its videos with it among the five highest.
        precision: share of right ones among the videos taken for it.
        confused_with: the class that most of its other videos were taken for; None: there are none.
    """

    label: int
    num_videos: int
    num_predicted: int
    top1: float
    top5: float
    precision: float
    confused_with: Optional[int]


def confusion_matrix(predictions: Predictions) -> np.ndarray:
    """int64 [num_classes, num_classes]: videos of the class of the row taken for that of the column."""
    num_classes = predictions.scores.shape[1]
    cells = predictions.labels * num_classes + predictions.ranking()[:, 0]
    return np.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes)


def class_results(predictions: Predictions) -> List[ClassResult]:
    """One result a class."""
    confusion = confusion_matrix(predictions)
    in_top5 = (predictions.ranking()[:, :5] == predictions.labels[:, None]).any(axis=1)
    results = []
    for label, row in enumerate(confusion):
        num_videos, num_predicted, right = int(row.sum()), int(confusion[:, label].sum()), int(row[label])
        others = np.where(np.arange(len(row)) == label, 0, row)
        top5 = int(in_top5[predictions.labels == label].sum())
        results.append(
            ClassResult(
                label,
                num_videos,
                num_predicted,
                _share(right, num_videos),
                _share(top5, num_videos),
                _share(right, num_predicted),
                int(others.argmax()) if others.any() else None,
            )
        )
    return results


def mean_class_accuracy(predictions: Predictions) -> float:
    """The mean of the classes' top-1, over the classes that have videos: rare ones count like common ones."""
    confusion = confusion_matrix(predictions)
    num_videos = confusion.sum(axis=1)
    return float((confusion.diagonal() / num_videos.clip(1))[num_videos > 0].mean())


def hardest(predictions: Predictions, count: int) -> np.ndarray:
    """int64 [≤ count], places of the videos whose right class has the lowest score, the lowest first."""
    return np.argsort(predictions.own_scores(), kind="stable")[:count]


class PrecisionRecall(NamedTuple):
    """Right and wrong decisions at T thresholds from 0 to 1, equally far apart; each int64 [T].

    Attributes:
        true_positives, false_positives: at or above the threshold.
        true_negatives, false_negatives: below it.
    """

    true_positives: np.ndarray
    false_positives: np.ndarray
    true_negatives: np.ndarray
    false_negatives: np.ndarray

    @property
    def precision(self) -> np.ndarray:
        """float64 [T], 0 where nothing is taken."""
        return self.true_positives / (self.true_positives + self.false_positives).clip(1)

    @property
    def recall(self) -> np.ndarray:
        """float64 [T]."""
        return self.true_positives / (self.true_positives + self.false_negatives).clip(1)


def precision_recall(right: np.ndarray, scores: np.ndarray, num_thresholds: int = 101) -> PrecisionRecall:
    """How well scores tell what is right, by the threshold from which on they are believed.

    Args:
        right: bool [M].
        scores: float [M], from 0 to 1.
        num_thresholds: T.
    """
    buckets = np.floor(scores * (num_thresholds - 1)).astype(np.int64)
    positives = np.bincount(buckets[right], minlength=num_thresholds)[::-1].cumsum()[::-1]
    negatives = np.bincount(buckets[~right], minlength=num_thresholds)[::-1].cumsum()[::-1]
    return PrecisionRecall(positives, negatives, negatives[0] - negatives, positives[0] - positives)


class PredictionMetric:
    """Another metric, and beside it the predictions that its videos had.

    It adds "mean_class_acc", the mean accuracy of the classes. After `accumulate`, `predictions` holds the
    videos of all processes, however they were shared out.

    Args:
        metric: the other one.
    """

    def __init__(self, metric: Any) -> None:
        self.metric = metric
        self.predictions: Optional[Predictions] = None
        self._clear()

    def reset(self) -> None:
        """Forgets all videos; the predictions of the last pass stay until the next ones are there."""
        self.metric.reset()
        self._clear()

    def _clear(self) -> None:
        self._seen: Set[Tuple[int, int]] = set()
        self._labels: Dict[int, int] = {}
        self._sums: Dict[int, np.ndarray] = {}
        self._num_views: Dict[int, int] = {}

    def update(
        self, logits: paddle.Tensor, labels: paddle.Tensor, ids: Sequence[int], views: Sequence[int]
    ) -> None:
        """Adds a batch; see `MultiCropMetric`."""
        self.metric.update(logits, labels, ids, views)
        scores = paddle.nn.functional.softmax(logits.astype("float32"), axis=1).numpy().astype(np.float64)
        keys = zip(np.asarray(ids).tolist(), np.asarray(views).tolist())
        for key, label, score in zip(keys, labels.numpy().tolist(), scores):
            if key not in self._seen:
                self._seen.add(key)
                video = key[0]
                self._labels[video] = label
                self._sums[video] = self._sums.get(video, 0.0) + score
                self._num_views[video] = self._num_views.get(video, 0) + 1

    def state(self) -> Tuple[Any, Optional[Predictions]]:
        """What this process knows since `reset`, for `accumulate` in any process."""
        if not self._sums:
            return self.metric.state(), None
        num_views = np.array(list(self._num_views.values()))
        scores = np.stack(list(self._sums.values())) / num_views[:, None]
        own = Predictions(
            np.array(list(self._sums)),
            np.array([self._labels[video] for video in self._sums]),
            scores.astype(np.float32),
            num_views,
        )
        return self.metric.state(), own

    def accumulate(
        self, states: Optional[Sequence[Tuple[Any, Optional[Predictions]]]] = None
    ) -> Dict[str, float]:
        """The other metric's values and "mean_class_acc".

        Args:
            states: of all processes; None: of this one alone.

        Raises:
            PaddleVideoFastError: there is no video.
        """
        states = states or [self.state()]
        values = self.metric.accumulate([inner for inner, _ in states])
        parts = [own for _, own in states if own is not None]
        together = [np.concatenate(arrays) for arrays in zip(*parts)]
        _, first = np.unique(together[0], return_index=True)
        self.predictions = Predictions(*(array[first] for array in together))
        return {**values, "mean_class_acc": mean_class_accuracy(self.predictions)}


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
