"""Top-k accuracy of videos, from one sum of scores for each of them."""

from __future__ import annotations

from typing import Any, ClassVar, Dict, List, Optional, Protocol, Sequence, Set, Tuple, Union

import numpy as np
import paddle

from paddlevideo_fast.errors import ConfigError, PaddleVideoFastError
from paddlevideo_fast.metrics.predictions import Predictions, mean_class_accuracy
from paddlevideo_fast.registry import METRICS

Numbers = Union[Sequence[int], np.ndarray]
State = Optional[Tuple[Predictions, np.ndarray]]


class Metric(Protocol):
    """What an evaluation asks of a metric. Each process has its own samples until `accumulate`."""

    def reset(self) -> None:
        """Forgets all samples."""

    def update(self, logits: paddle.Tensor, labels: paddle.Tensor, ids: Numbers, views: Numbers) -> None:
        """Adds a batch.

        Args:
            logits: float [N, num_classes].
            labels: int64 [N].
            ids: [N], the number of each sample.
            views: [N], which view of the sample it is.
        """

    def state(self) -> Any:
        """What this process knows of the samples since `reset`; it pickles."""

    def accumulate(self, states: Optional[Sequence[Any]] = None) -> Dict[str, float]:
        """The values over the samples of all processes, from the state of each; None: of this one alone."""


class VideoScores:
    """Adds up the softmax scores of each video over its views; a view that comes again counts once.

    One sum a video is kept, so memory does not grow with the number of views. Sums are float64.
    """

    def __init__(self) -> None:
        self._seen: Set[Tuple[int, int]] = set()
        self._labels: Dict[int, int] = {}
        self._sums: Dict[int, np.ndarray] = {}
        self._num_views: Dict[int, int] = {}
        self._first_ranks: Dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._sums)

    def add(self, logits: paddle.Tensor, labels: paddle.Tensor, ids: Numbers, views: Numbers) -> None:
        """Adds a batch; see `Metric.update`."""
        scores = paddle.nn.functional.softmax(logits.astype("float32"), axis=1).numpy().astype(np.float64)
        ranks = rank_of_label(logits, labels).numpy().tolist()
        keys = zip(np.asarray(ids).tolist(), np.asarray(views).tolist())
        for key, label, score, rank in zip(keys, labels.numpy().tolist(), scores, ranks):
            if key in self._seen:
                continue
            self._seen.add(key)
            video = key[0]
            if video not in self._sums:
                self._labels[video], self._first_ranks[video] = label, rank
            self._sums[video] = self._sums.get(video, 0.0) + score
            self._num_views[video] = self._num_views.get(video, 0) + 1

    def predictions(self) -> Predictions:
        """The mean scores of the videos, in the order in which they came."""
        num_views = np.array(list(self._num_views.values()))
        means = np.stack(list(self._sums.values())) / num_views[:, None]
        labels = np.array(list(self._labels.values()))
        return Predictions(np.array(list(self._sums)), labels, means.astype(np.float32), num_views)

    def ranks_of_sums(self) -> np.ndarray:
        """int64 [N], `rank_of_label` of each video by its sum of scores."""
        sums = paddle.to_tensor(np.stack(list(self._sums.values())).astype(np.float32))
        return rank_of_label(sums, paddle.to_tensor(list(self._labels.values()))).numpy()

    def ranks_of_first_view(self) -> np.ndarray:
        """int64 [N], `rank_of_label` of each video by the logits of the first view that came."""
        return np.array(list(self._first_ranks.values()))


class VideoMetric:
    """Top-k accuracy of videos, their mean accuracy over the classes, and the predictions behind both.

    All views of a video belong to one process; a video that other processes have, too, counts once. With
    fewer than k classes every finite prediction is among the k highest.

    Args:
        topk: the k's.

    Attributes:
        predictions: of the videos of all processes, after `accumulate`; of the last pass until then.

    Raises:
        ConfigError: a k below 1.
    """

    ignored_arguments: ClassVar[Dict[str, str]] = {
        "data_size": "the loader knows it",
        "batch_size": "the loader knows it",
        "log_interval": "the evaluation shows its own progress",
    }

    def __init__(self, topk: Sequence[int] = (1, 5)) -> None:
        if not topk or min(topk) < 1:
            raise ConfigError([f"METRIC.topk={list(topk)}: each must be at least 1"])
        self.topk = tuple(topk)
        self.predictions: Optional[Predictions] = None
        self.reset()

    def reset(self) -> None:
        """Forgets all videos."""
        self._scores = VideoScores()

    def update(self, logits: paddle.Tensor, labels: paddle.Tensor, ids: Numbers, views: Numbers) -> None:
        """Adds a batch; see `Metric.update`."""
        self._scores.add(logits, labels, ids, views)

    def state(self) -> State:
        """Predictions and ranks of this process's videos; None: there are no videos."""
        return (self._scores.predictions(), self._ranks(self._scores)) if len(self._scores) else None

    def accumulate(self, states: Optional[Sequence[State]] = None) -> Dict[str, float]:
        """{"top1": share in [0, 1], "top5": ..., "mean_class_acc": ...} over the videos of all processes.

        Args:
            states: of all processes; None: of this one alone.

        Raises:
            PaddleVideoFastError: there are no videos.
        """
        parts: List[Tuple[Predictions, np.ndarray]] = [
            state for state in states or [self.state()] if state is not None
        ]
        if not parts:
            raise PaddleVideoFastError(
                "no sample was evaluated; check the annotation list and the decode log"
            )
        together = Predictions(*(np.concatenate(arrays) for arrays in zip(*(own for own, _ in parts))))
        _, first = np.unique(together.ids, return_index=True)
        ranks = np.concatenate([ranks for _, ranks in parts])[first]
        self.predictions = Predictions(*(array[first] for array in together))
        top = {f"top{k}": float((ranks < k).mean()) for k in self.topk}
        return {**top, "mean_class_acc": mean_class_accuracy(self.predictions)}

    def _ranks(self, scores: VideoScores) -> np.ndarray:
        """int64 [N], how many classes stand before the right one of each video."""
        raise NotImplementedError


@METRICS.register()
class CenterCropMetric(VideoMetric):
    """Share of samples whose class is among the k highest logits.

    A sample that comes again, here or in another process, counts once. With fewer than k classes every finite
    prediction is among the k highest.

    Args:
        topk: the k's.

    Raises:
        ConfigError: a k below 1.
    """

    def update(self, logits: paddle.Tensor, labels: paddle.Tensor, ids: Numbers, views: Numbers) -> None:
        """Adds a batch; see `Metric.update`.

        Raises:
            ConfigError: there are several views of a sample.
        """
        if max(views) > 0:
            raise ConfigError(
                [
                    "METRIC.name=CenterCropMetric: it takes one clip of a video, and the data has several; "
                    "use MultiCropMetric"
                ]
            )
        super().update(logits, labels, ids, views)

    def _ranks(self, scores: VideoScores) -> np.ndarray:
        return scores.ranks_of_first_view()


@METRICS.register()
class MultiCropMetric(VideoMetric):
    """Share of videos whose class is among the k highest means of its views' softmax scores.

    The mean is taken of probabilities, as in the published results of SlowFast, not of logits. Any number of
    views will do, one too, and it may differ between videos: where a view does not decode, the others count.

    Args:
        topk: the k's.

    Raises:
        ConfigError: a k below 1.

    Reference: SlowFast, arXiv:1812.03982, section 4 (inference).
    """

    ignored_arguments: ClassVar[Dict[str, str]] = {
        **VideoMetric.ignored_arguments,
        "num_ensemble_views": "the data set says how many views a video has",
        "num_spatial_crops": "the data set says how many crops a view has",
        "num_cls": "the scores say it",
        "num_classes": "the scores say it",
    }

    def _ranks(self, scores: VideoScores) -> np.ndarray:
        return scores.ranks_of_sums()


def rank_of_label(logits: paddle.Tensor, labels: paddle.Tensor) -> paddle.Tensor:
    """How many classes stand before the right one; 0: it is the prediction.

    Of equal logits the lower class stands first. NaN stands before everything, so it never counts as right.

    Args:
        logits: float [N, num_classes].
        labels: int64 [N].

    Returns:
        int64 [N].
    """
    logits = logits.astype("float32")
    labels = labels.reshape([-1, 1])
    own = paddle.take_along_axis(logits, labels, axis=1)
    classes = paddle.arange(logits.shape[1]).reshape([1, -1])
    tied_before = paddle.logical_and(logits == own, classes < labels)
    before = paddle.logical_or(paddle.logical_not(logits <= own), tied_before)
    return before.astype("int64").sum(axis=1)
