"""Means over views against the definition."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from paddlevideo_fast.errors import ConfigError, PaddleVideoFastError
from paddlevideo_fast.metrics import CenterCropMetric, MultiCropMetric


def update(metric, logits, labels, ids, views):
    metric.update(paddle.to_tensor(np.asarray(logits, "float32")), paddle.to_tensor(labels), ids, views)


def made_up(num_videos=20, num_views=6, num_classes=7):
    rng = np.random.default_rng(1)
    logits = rng.normal(scale=3, size=(num_videos, num_views, num_classes)).astype("float32")
    return logits, rng.integers(0, num_classes, num_videos)


def by_definition(logits, labels, k):
    exponents = np.exp(logits.astype(np.float64))
    means = (exponents / exponents.sum(-1, keepdims=True)).mean(1)
    return np.mean([label in np.argsort(-row)[:k] for row, label in zip(means, labels)])


@pytest.mark.smoke
def test_views_in_any_order_and_twice():
    logits, labels = made_up()
    keys = [(video, view) for video in range(20) for view in range(6)]
    order = np.random.default_rng(2).permutation(len(keys)).tolist()
    order += order[:5]  # padding
    metric = MultiCropMetric(topk=(1, 3, 5))
    for start in range(0, len(order), 16):
        videos, views = zip(*(keys[place] for place in order[start : start + 16]))
        update(metric, logits[list(videos), list(views)], labels[list(videos)], videos, views)
    for k in (1, 3, 5):
        assert metric.accumulate()[f"top{k}"] == pytest.approx(by_definition(logits, labels, k))
    metric.reset()
    with pytest.raises(PaddleVideoFastError, match="no sample"):
        metric.accumulate()


def test_probabilities_are_averaged_not_logits():
    # class 0 has the higher mean logit, class 1 the higher mean probability
    logits = [[9.0, 0.0], [0.0, 2.0], [0.0, 2.0]]
    metric = MultiCropMetric(topk=[1])
    update(metric, logits, [1, 1, 1], [4, 4, 4], [0, 1, 2])
    assert metric.accumulate() == {"top1": 1.0, "mean_class_acc": 1.0}
    assert np.mean(logits, 0).argmax() == 0


def test_one_view_is_plain_accuracy_and_a_nan_is_never_right():
    logits, labels = made_up(num_views=1)
    logits[3] = float("nan")
    several, single = MultiCropMetric(), CenterCropMetric()
    for metric in (several, single):
        update(metric, logits[:, 0], labels, np.arange(20), np.zeros(20, int))
    assert several.accumulate() == single.accumulate()


def test_one_clip_metric_refuses_views():
    with pytest.raises(ConfigError, match="MultiCropMetric"):
        update(CenterCropMetric(), np.zeros((2, 3)), [0, 0], [0, 0], [0, 1])
