"""Top-k accuracy over samples that come once each."""

from __future__ import annotations

from typing import ClassVar, Dict, List, NamedTuple, Optional, Sequence

import numpy as np
import paddle

from paddlevideo_fast.errors import ConfigError, PaddleVideoFastError
from paddlevideo_fast.registry import METRICS


class Ranking(NamedTuple):
    """Where the right class of each sample stands, which is all that top-k needs.

    Attributes:
        ids: int64 [N], numbers of the samples.
        ranks: int64 [N], how many classes stand before the right one.
    """

    ids: np.ndarray
    ranks: np.ndarray


@METRICS.register()
class CenterCropMetric:
    """Share of samples whose class is among the k highest logits.

    Values stay on the device until `state`. A sample that comes again, here or in another process, counts
    once. With fewer than k classes every finite prediction is among the k highest.

    Args:
        topk: the k's.

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
        self.reset()

    def reset(self) -> None:
        """Forgets all samples."""
        self._ranks: List[paddle.Tensor] = []
        self._ids: List[np.ndarray] = []

    def update(
        self, logits: paddle.Tensor, labels: paddle.Tensor, ids: Sequence[int], views: Sequence[int]
    ) -> None:
        """Adds a batch.

        Args:
            logits: float [N, num_classes].
            labels: int64 [N].
            ids: [N], one number a sample.
            views: [N], 0 for each.

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
        self._ranks.append(rank_of_label(logits, labels))
        self._ids.append(np.asarray(ids, np.int64).reshape(-1))

    def state(self) -> Ranking:
        """What this process knows of the samples since `reset`, for `accumulate` in any process."""
        if not self._ranks:
            return Ranking(np.empty(0, np.int64), np.empty(0, np.int64))
        return Ranking(np.concatenate(self._ids), paddle.concat(self._ranks).numpy())

    def accumulate(self, states: Optional[Sequence[Ranking]] = None) -> Dict[str, float]:
        """{"top1": share in [0, 1], "top5": ...} over all samples, however they were shared out.

        Args:
            states: of all processes; None: of this one alone.

        Raises:
            PaddleVideoFastError: there are none.
        """
        ids, ranks = (np.concatenate(parts) for parts in zip(*(states or [self.state()])))
        if not len(ids):
            raise PaddleVideoFastError(
                "no sample was evaluated; check the annotation list and the decode log"
            )
        _, first = np.unique(ids, return_index=True)
        return {f"top{k}": float((ranks[first] < k).mean()) for k in self.topk}


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
