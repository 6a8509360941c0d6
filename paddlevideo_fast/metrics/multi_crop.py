"""Top-k accuracy over videos that are seen in several views each."""

from __future__ import annotations

from typing import ClassVar, Dict, List, Sequence, Set, Tuple

import numpy as np
import paddle

from paddlevideo_fast.errors import PaddleVideoFastError
from paddlevideo_fast.metrics.center_crop import CenterCropMetric, rank_of_label
from paddlevideo_fast.registry import METRICS


@METRICS.register()
class MultiCropMetric(CenterCropMetric):
    """Share of videos whose class is among the k highest means of its views' softmax scores.

    The mean is taken of probabilities, as in the published results of SlowFast, not of logits. Any number of
    views will do, one too, and it may differ between videos: where a view does not decode, the others count.
    A view that comes again (processes pad their shares to equal length) counts once. One sum a video is kept,
    so memory does not grow with the views, and the sums of several processes add up.

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

    def accumulate(self) -> Dict[str, float]:
        """{"top1": share in [0, 1], "top5": ...} over all videos since `reset`.

        Raises:
            PaddleVideoFastError: there are none.
        """
        if not self._sums:
            raise PaddleVideoFastError("no video was evaluated; check the annotation list and the decode log")
        sums: List[np.ndarray] = [self._sums[video] for video in self._labels]
        scores = paddle.to_tensor(np.stack(sums).astype(np.float32))
        ranks = rank_of_label(scores, paddle.to_tensor(list(self._labels.values()))).numpy()
        return {f"top{k}": float((ranks < k).mean()) for k in self.topk}
