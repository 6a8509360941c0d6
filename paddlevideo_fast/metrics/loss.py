"""Evaluations of which only the loss counts."""

from collections.abc import Sequence
from typing import Any

import paddle

from paddlevideo_fast.metrics.videos import Numbers, VideoMetric
from paddlevideo_fast.registry import METRICS


@METRICS.register()
class LossMetric(VideoMetric):
    """Nothing but the loss, the mean over the clips, as pre-training needs it; any network has one.

    The validation with the lowest loss is the best, unless SELECTION says otherwise.
    """

    activation = None
    value_names = ("loss",)

    def update(self, logits: paddle.Tensor, labels: paddle.Tensor, ids: Numbers, views: Numbers) -> None:
        """Keeps nothing: an evaluation adds up the losses itself."""

    def state(self) -> None:
        """Nothing."""

    def accumulate(self, states: Sequence[Any] | None = None) -> dict[str, float]:
        """No values beside the evaluation's own loss."""
        return {}
