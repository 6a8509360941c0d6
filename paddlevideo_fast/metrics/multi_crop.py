"""Top-k accuracy over videos that are seen in several views each."""

from __future__ import annotations

from typing import ClassVar, Dict, Sequence, Set, Tuple

import numpy as np
import paddle

from paddlevideo_fast.metrics.center_crop import CenterCropMetric, Ranking, rank_of_label
from paddlevideo_fast.registry import METRICS


@METRICS.register()
class MultiCropMetric(CenterCropMetric):
    """Share of videos whose class is among the k highest means of its views' softmax scores.

    The mean is taken of probabilities, as in the published results of SlowFast, not of logits. Any number of
    views will do, one too, and it may differ between videos: where a view does not decode, the others count.
    A view that comes again counts once. One sum a video is kept, so memory does not grow with the views. All
    views of a video belong to one process; a video that others have, too, counts once.

    Args:
        topk: the k's.

    Raises:
        ConfigError: a k below 1.

    Reference: SlowFast, arXiv:1812.03982, section 4 (inference).
    """

    ignored_arguments: ClassVar[Dict[str, str]] = {
        **CenterCropMetric.ignored_arguments,
        "num_ensemble_views": "the data set says how many views a video has",
        "num_spatial_crops": "the data set says how many crops a view has",
        "num_cls": "the scores say it",
        "num_classes": "the scores say it",
    }

    def reset(self) -> None:
        """Forgets all videos."""
        super().reset()
        self._seen: Set[Tuple[int, int]] = set()
        self._labels: Dict[int, int] = {}
        self._sums: Dict[int, np.ndarray] = {}

    def update(
        self, logits: paddle.Tensor, labels: paddle.Tensor, ids: Sequence[int], views: Sequence[int]
    ) -> None:
        """Adds a batch.

        Args:
            logits: float [N, num_classes].
            labels: int64 [N].
            ids: [N], one number a video.
            views: [N], which view of it.
        """
        scores = paddle.nn.functional.softmax(logits.astype("float32"), axis=1).numpy().astype(np.float64)
        keys = zip(np.asarray(ids).tolist(), np.asarray(views).tolist())
        for key, label, score in zip(keys, labels.numpy().tolist(), scores):
            if key in self._seen:
                continue
            self._seen.add(key)
            video = key[0]
            self._labels[video] = label
            self._sums[video] = self._sums[video] + score if video in self._sums else score

    def state(self) -> Ranking:
        """What this process knows of the videos since `reset`, for `accumulate` in any process."""
        if not self._sums:
            return super().state()
        scores = paddle.to_tensor(np.stack(list(self._sums.values())).astype(np.float32))
        labels = paddle.to_tensor([self._labels[video] for video in self._sums])
        return Ranking(np.array(list(self._sums), np.int64), rank_of_label(scores, labels).numpy())
