"""Top-k against sorting."""

import numpy as np
import paddle
import pytest

from paddlevideo_fast.errors import ConfigError, PaddleVideoFastError
from paddlevideo_fast.metrics import CenterCropMetric
from paddlevideo_fast.metrics.accuracy import certainty, interval


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
    if num_classes > 5:
        assert result["top5"] == pytest.approx(by_sorting(logits, labels, 5))
    else:  # it would always be 1
        assert "top5" not in result


@pytest.mark.parametrize(
    ("right", "num_samples", "expected"),  # Newcombe, Statistics in Medicine 17 (1998), table I, method 3
    [
        (81, 263, (0.2553, 0.3662)),
        (15, 148, (0.0624, 0.1605)),
        (0, 20, (0.0, 0.1611)),
        (1, 29, (0.0061, 0.1718)),
    ],
)
def test_the_interval_is_wilsons(right, num_samples, expected):
    assert interval(right / num_samples, num_samples) == pytest.approx(expected, abs=5e-5)


def test_few_samples_have_an_interval_in_words():
    metrics = {"top1": 81 / 263, "num_samples": 263}
    assert certainty(metrics) == "95 % interval 0.255 to 0.366"
    assert not certainty({**metrics, "num_samples": 1000})
    assert not certainty({"mAP": 0.5, "num_samples": 263})


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
