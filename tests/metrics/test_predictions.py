"""Predictions of videos, and what follows from them, against plain counting."""

import numpy as np
import paddle
import pytest

from paddlevideo_fast.errors import ConfigError, PaddleVideoFastError
from paddlevideo_fast.metrics import CenterCropMetric, MultiCropMetric
from paddlevideo_fast.metrics.accuracy import certainty, interval
from paddlevideo_fast.metrics.predictions import (
    Predictions,
    confusion_matrix,
    mean_class_accuracy,
)

NUM_CLASSES = 7


def update(metric, logits, labels, ids, views):
    metric.update(paddle.to_tensor(np.asarray(logits, "float32")), paddle.to_tensor(labels), ids, views)


@pytest.fixture(scope="module")
def views():
    """Logits of 30 videos × 4 views, their labels; class 5 has no video."""
    rng = np.random.default_rng(4)
    labels = rng.choice([0, 1, 2, 3, 4, 6], 30, p=[0.4, 0.2, 0.1, 0.1, 0.1, 0.1])
    logits = rng.normal(size=(30, 4, NUM_CLASSES)).astype("float32")
    logits[np.arange(30), :, labels] += 1.0
    return logits, labels


def means(logits):
    exponents = np.exp(logits.astype(np.float64))
    return (exponents / exponents.sum(-1, keepdims=True)).mean(1)


def seen_by(views, videos, batch_size=7):
    """A metric that has seen all views of some videos in any order, and some of them twice."""
    logits, labels = views
    metric = MultiCropMetric(topk=(1, 5))
    keys = [(video, view) for video in videos for view in range(4)]
    np.random.default_rng(2).shuffle(keys)
    keys += keys[:5]
    for start in range(0, len(keys), batch_size):
        ids, numbers = (list(part) for part in zip(*keys[start : start + batch_size]))
        update(metric, logits[ids, numbers], labels[ids], ids, numbers)
    return metric


@pytest.mark.smoke
def test_scores_are_the_means_of_the_views(views):
    logits, labels = views
    metric = seen_by(views, range(30))
    values = metric.accumulate()
    predictions = metric.predictions
    np.testing.assert_allclose(predictions.scores, means(logits), atol=1e-6)
    assert predictions.ids.tolist() == list(range(30))
    assert (predictions.labels == labels).all()
    assert (predictions.num_views == 4).all()
    assert values["top1"] == (predictions.ranking()[:, 0] == labels).mean()
    assert values["top5"] == (predictions.ranking()[:, :5] == labels[:, None]).any(1).mean()


@pytest.mark.smoke
@pytest.mark.parametrize("shares", [3, 30])
def test_any_sharing_out_gives_the_same_to_the_bit(views, shares):
    alone = seen_by(views, range(30))
    expected = alone.accumulate()
    ranks = [seen_by(views, range(rank, 30, shares), batch_size=5) for rank in range(shares)]
    ranks.append(seen_by(views, []))  # a rank without videos
    ranks.append(seen_by(views, [3, 17]))  # and one whose videos others have, too
    states = [rank.state() for rank in ranks]
    for rank in ranks:
        assert rank.accumulate(states) == expected
        for name, array in rank.predictions._asdict().items():
            np.testing.assert_array_equal(array, getattr(alone.predictions, name))


def test_a_view_that_comes_again_counts_once_and_reset_forgets(views):
    logits, labels = views
    metric = seen_by(views, [0, 1])
    once = metric.accumulate()
    update(metric, logits[[0], [2]], labels[[0]], [0], [2])
    assert metric.accumulate() == once
    metric.reset()
    assert metric.predictions is not None  # of the last pass
    update(metric, logits[[9], [0]], labels[[9]], [9], [0])
    metric.accumulate()
    assert metric.predictions.ids.tolist() == [9]
    assert metric.predictions.num_views.tolist() == [1]


def test_one_view_is_plain_accuracy_and_a_nan_is_never_right(views):
    logits, labels = views
    logits = logits[:, 0].copy()
    logits[3] = float("nan")
    several, single = MultiCropMetric(), CenterCropMetric()
    for metric in (several, single):
        update(metric, logits, labels, np.arange(30), np.zeros(30, int))
    assert several.accumulate() == single.accumulate()


def test_counts_of_classes(views):
    metric = seen_by(views, range(30))
    metric.accumulate()
    labels, predicted = metric.predictions.labels, metric.predictions.scores.argmax(1)
    expected = np.zeros((NUM_CLASSES, NUM_CLASSES), int)
    for label, other in zip(labels, predicted):
        expected[label, other] += 1
    np.testing.assert_array_equal(confusion_matrix(metric.predictions), expected)
    recalls = [(predicted[labels == label] == label).mean() for label in set(labels)]
    assert len(recalls) == 6
    assert mean_class_accuracy(metric.predictions) == pytest.approx(np.mean(recalls))


def test_of_equal_scores_the_lower_class_comes_first():
    scores = np.array([[0.2, 0.8], [0.5, 0.5]], np.float32)
    predictions = Predictions(np.arange(2), np.array([1, 0]), scores, np.ones(2, int))
    assert predictions.ranking().tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("place", range(NUM_CLASSES))
def test_the_fifth_class_is_the_last_of_the_top_5(place):
    """One video; `place` classes have a higher score than its own."""
    metric = CenterCropMetric()
    update(metric, np.linspace(0.3, 0.0, NUM_CLASSES)[None], np.array([place]), [0], [0])
    assert metric.accumulate().items() >= {"top1": place < 1, "top5": place < 5}.items()


# --- Top-k against sorting


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
