"""Top-k against sorting."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from paddlevideo_fast.errors import ConfigError, PaddleVideoFastError
from paddlevideo_fast.metrics import CenterCropMetric


def by_sorting(logits, labels, k):
    order = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    return float(np.mean([label in row for row, label in zip(order, labels)]))


@pytest.mark.smoke
@pytest.mark.parametrize("num_classes", [1, 2, 4, 5, 30])
def test_it_agrees_with_sorting_also_with_ties(num_classes):
    rng = np.random.default_rng(num_classes)
    logits = rng.integers(-3, 4, (60, num_classes)).astype("float32")
    labels = rng.integers(0, num_classes, 60)
    metric = CenterCropMetric()
    for start in range(0, 60, 25):
        part = slice(start, start + 25)
        ids = np.arange(60)[part]
        metric.update(paddle.to_tensor(logits[part]), paddle.to_tensor(labels[part]), ids, 0 * ids)
    result = metric.accumulate()
    assert result["top1"] == pytest.approx(by_sorting(logits, labels, 1))
    assert result["top5"] == pytest.approx(by_sorting(logits, labels, 5))


@pytest.mark.smoke
def test_padding_counts_once_and_reset_forgets():
    logits = paddle.to_tensor(np.eye(3, dtype="float32"))
    metric = CenterCropMetric(topk=[1])
    metric.update(logits, paddle.to_tensor([0, 1, 0]), [0, 1, 2], [0, 0, 0])
    metric.update(logits[:2], paddle.to_tensor([0, 1]), [0, 1], [0, 0])
    assert metric.accumulate() == {"top1": pytest.approx(2 / 3), "mean_class_acc": pytest.approx(3 / 4)}
    metric.reset()
    with pytest.raises(PaddleVideoFastError, match="no sample"):
        metric.accumulate()


def test_logits_decide_where_softmax_scores_cannot_tell_classes_apart():
    """The scores of all classes but the first are 0 in float32."""
    metric = CenterCropMetric(topk=[1, 2, 3])
    metric.update(paddle.to_tensor([[1000.0, 1.0, 3.0, 2.0]]), paddle.to_tensor([2]), [0], [0])
    result = metric.accumulate()
    assert [result[f"top{k}"] for k in (1, 2, 3)] == [0.0, 1.0, 1.0]


def test_a_nan_is_never_right():
    metric = CenterCropMetric()
    metric.update(paddle.full([2, 10], float("nan")), paddle.to_tensor([0, 3]), [0, 1], [0, 0])
    result = metric.accumulate()
    assert (result["top1"], result["top5"]) == (0.0, 0.0)


def test_what_it_does_not_take():
    with pytest.raises(ConfigError, match="topk"):
        CenterCropMetric([0])
    with pytest.raises(ConfigError, match="MultiCropMetric"):
        CenterCropMetric().update(paddle.zeros([2, 3]), paddle.to_tensor([0, 0]), [0, 0], [0, 1])
