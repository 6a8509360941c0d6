"""Top-k accuracy of videos."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import paddle

from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.metrics.predictions import Predictions, mean_class_accuracy
from paddlevideo_fast.metrics.videos import Numbers, VideoMetric
from paddlevideo_fast.registry import METRICS

FEW = 1000  # samples, below which an evaluation says how sure its top-1 is


class TopKMetric(VideoMetric):
    """Top-k accuracy of videos, and their mean accuracy over the classes.

    A k that says nothing, since there are no more than k classes, is left out (see `telling`). The facts of a
    video are its rank: how many classes stand before the right one.

    Args:
        topk: the k's.

    Raises:
        ConfigError: a k below 1.
    """

    def __init__(self, topk: Sequence[int] = (1, 5)) -> None:
        if not topk or min(topk) < 1:
            raise ConfigError(f"METRIC.topk={list(topk)}: each must be at least 1")
        self.topk = tuple(topk)
        self.value_names = (*(f"top{k}" for k in self.topk), "mean_class_acc")
        super().__init__()

    def names_with(self, num_classes: int) -> tuple[str, ...]:
        return (*(f"top{k}" for k in telling(self.topk, num_classes)), "mean_class_acc")

    def _values(self, predictions: Predictions, facts: np.ndarray) -> dict[str, float]:
        """{"top1": share in [0, 1], "top5": ..., "mean_class_acc": ...}."""
        ks = telling(self.topk, predictions.scores.shape[1])
        top = {f"top{k}": float((facts < k).mean()) for k in ks}
        return {**top, "mean_class_acc": mean_class_accuracy(predictions)}


@METRICS.register()
class CenterCropMetric(TopKMetric):
    """Share of samples whose class is among the k highest logits.

    A sample that comes again, here or in another process, counts once.

    Args:
        topk: the k's.

    Raises:
        ConfigError: a k below 1.
    """

    def update(self, logits: paddle.Tensor, labels: paddle.Tensor, ids: Numbers, views: Numbers) -> None:
        """Adds a batch; see `VideoMetric.update`.

        Raises:
            ConfigError: there are several views of a sample.
        """
        if max(views) > 0:
            text = "it takes one clip of a video, and the data has several; use MultiCropMetric"
            raise ConfigError(f"METRIC.name=CenterCropMetric: {text}")
        super().update(logits, labels, ids, views)

    def _clip_facts(self, logits: paddle.Tensor, labels: paddle.Tensor) -> list[paddle.Tensor]:
        return [rank_of_label(logits, labels)]

    def _facts(self, sums: np.ndarray, labels: np.ndarray, *clip_facts: np.ndarray) -> np.ndarray:
        return clip_facts[0]


@METRICS.register()
class MultiCropMetric(TopKMetric):
    """Share of videos whose class is among the k highest means of its views' softmax scores.

    The mean is taken of probabilities, as in the published results of SlowFast, not of logits. Any number of
    views will do, one too, and it may differ between videos: where a view does not decode, the others count.

    Args:
        topk: the k's.

    Raises:
        ConfigError: a k below 1.

    Reference: SlowFast, arXiv:1812.03982, section 4 (inference).
    """

    ignored_arguments: ClassVar[dict[str, str]] = {
        **VideoMetric.ignored_arguments,
        "num_ensemble_views": "the data set says how many views a video has",
        "num_spatial_crops": "the data set says how many crops a view has",
        "num_cls": "the scores say it",
        "num_classes": "the scores say it",
    }

    def _facts(self, sums: np.ndarray, labels: np.ndarray, *clip_facts: np.ndarray) -> np.ndarray:
        return rank_of_label(paddle.to_tensor(sums.astype(np.float32)), paddle.to_tensor(labels)).numpy()


def telling(topk: Sequence[int], num_classes: int) -> list[int]:
    """The k's of which top-k says something: with k classes or fewer it is always 1; the lowest k stays."""
    return [k for k in topk if k < num_classes or k == min(topk)]


def interval(share: float, num_samples: int) -> tuple[float, float]:
    """The 95 % interval of a share of right answers, by Wilson's score.

    Args:
        share: of `num_samples` independent answers.
        num_samples: ≥ 1.

    Reference: Wilson, Probable inference, the law of succession, and statistical inference, 1927.
    """
    z2 = 1.959964**2
    middle = share + z2 / (2 * num_samples)
    half = math.sqrt(z2 * (share * (1 - share) + z2 / (4 * num_samples)) / num_samples)
    return (middle - half) / (1 + z2 / num_samples), (middle + half) / (1 + z2 / num_samples)


def certainty(metrics: Mapping[str, float]) -> str:
    """The interval of top-1 in words, such as "95 % interval 0.787 to 0.982".

    Empty where an evaluation has no top-1, or `FEW` samples and more, whose interval is narrow.
    """
    share, num_samples = metrics.get("top1", math.nan), int(metrics.get("num_samples", 0))
    if math.isnan(share) or not 0 < num_samples < FEW:
        return ""
    low, high = interval(share, num_samples)
    return f"95 % interval {low:.3f} to {high:.3f}"


def with_certainty(metrics: Mapping[str, float]) -> dict[str, Any]:
    """The values of an evaluation as they are shown: few samples give top-1 its interval."""
    text = certainty(metrics)
    values: dict[str, Any] = dict(metrics)
    return {**values, "top1": f"{metrics['top1']:.5f} ({text})"} if text else values


def count_hits(logits: paddle.Tensor, labels: paddle.Tensor) -> dict[str, tuple[int, int]]:
    """How many clips of a batch are right, and of how many clips, by the name of their share in a log line.

    Args:
        logits: float [N, num_classes].
        labels: as `VideoMetric.update` takes them.

    Returns:
        "top1" and "top5" by the same rules as in an evaluation; "hit1" where a video has any number of
        classes.
    """
    if labels.ndim == 1:
        ranks = rank_of_label(logits, labels).numpy()
        ks = telling((1, 5), logits.shape[1])
        return {f"top{k}": (int((ranks < k).sum()), len(ranks)) for k in ks}
    best = logits.astype("float32").argmax(axis=1, keepdim=True)
    hits = paddle.take_along_axis(labels, best, axis=1).numpy() > 0
    return {"hit1": (int(hits.sum()), int((labels.numpy() > 0).any(axis=1).sum()))}


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
