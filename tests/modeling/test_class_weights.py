"""Class weights, focal loss and logit adjustment against their formulas in float64."""

import logging

import numpy as np
import paddle
import pytest

from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling import MixedLabels, build_model
from paddlevideo_fast.modeling.losses import (
    AsymmetricLoss,
    BinaryCrossEntropyLoss,
    CrossEntropyLoss,
    FocalLoss,
    tell_class_counts,
)

rng = np.random.default_rng(8)
LOGITS = rng.normal(scale=2, size=(6, 4)).astype("float32")
LABELS, OTHERS = np.array([0, 3, 1, 1, 0, 2]), np.array([1, 3, 0, 2, 2, 0])
COUNTS = np.array([400.0, 90.0, 10.0, 1.0])


def log_softmax(logits):
    logits = logits.astype(np.float64)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def target(labels=LABELS, eps=0.0):
    return np.eye(4)[labels] * (1 - eps) + eps / 4


def by_hand(q, weights=(1.0,) * 4, gamma=0.0, shift=0.0):
    log_p = log_softmax(LOGITS + shift)
    return -(np.asarray(weights) * q * (1 - np.exp(log_p)) ** gamma * log_p).sum(axis=1).mean()


def scaled(weights, counts=COUNTS):
    """The weights with a mean of 1 over the clips."""
    return np.asarray(weights) * counts.sum() / (weights * counts).sum()


def effective(beta, counts=COUNTS):
    return scaled((1 - beta) / (1 - beta**counts), counts)


def of(loss, labels=LABELS, eps=0.0, counts=COUNTS):
    loss.set_class_counts(counts)
    labels = labels if isinstance(labels, MixedLabels) else paddle.to_tensor(labels)
    return float(loss(paddle.to_tensor(LOGITS), labels, eps))


WEIGHTED = [
    ({}, [1, 1, 1, 1]),
    ({"class_weights": "balanced"}, scaled(1 / COUNTS)),
    ({"class_weights": "effective"}, effective(0.999)),
    ({"class_weights": "effective", "beta": 0.9}, effective(0.9)),
    ({"class_weights": [1, 2, 0, 50]}, scaled([1, 2, 0, 50])),
]


@pytest.mark.smoke
@pytest.mark.parametrize(("arguments", "weights"), WEIGHTED)
def test_weights_with_smoothing_and_mixup(arguments, weights):
    loss = CrossEntropyLoss(2.0, **arguments)
    assert of(loss) == pytest.approx(2 * by_hand(target(), weights), rel=1e-5)
    assert of(loss, eps=0.1) == pytest.approx(2 * by_hand(target(eps=0.1), weights), rel=1e-5)
    mixed = MixedLabels(paddle.to_tensor(LABELS), paddle.to_tensor(OTHERS), 0.3)
    q = 0.3 * target(eps=0.1) + 0.7 * target(OTHERS, 0.1)
    assert of(loss, mixed, eps=0.1) == pytest.approx(2 * by_hand(q, weights), rel=1e-5)


def test_effective_numbers_lie_between_equal_and_balanced_weights():
    assert effective(0) == pytest.approx(1)
    assert of(CrossEntropyLoss(class_weights="effective", beta=0.0)) == pytest.approx(
        by_hand(target()), rel=1e-5
    )
    close = of(CrossEntropyLoss(class_weights="effective", beta=0.999999))
    assert close == pytest.approx(of(CrossEntropyLoss(class_weights="balanced")), rel=1e-3)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_focal_loss(gamma, eps):
    expected = by_hand(target(eps=eps), gamma=gamma)
    assert of(FocalLoss(gamma), eps=eps) == pytest.approx(expected, rel=1e-5)
    weights = scaled(1 / COUNTS)
    both = FocalLoss(gamma, loss_weight=3.0, class_weights="balanced")
    assert of(both, eps=eps) == pytest.approx(3 * by_hand(target(eps=eps), weights, gamma), rel=1e-5)


@pytest.mark.parametrize("gamma", [0.3, 2.0])
def test_the_gradient_of_focal_loss_is_finite_far_from_0(gamma):
    logits = paddle.to_tensor([[200.0, -200.0], [-200.0, 200.0]], stop_gradient=False)
    FocalLoss(gamma)(logits, paddle.to_tensor([0, 0])).backward()
    assert np.isfinite(logits.grad.numpy()).all()
    assert logits.grad.numpy()[0] == pytest.approx([0, 0], abs=1e-30)
    assert logits.grad.numpy()[1, 0] < 0


@pytest.mark.parametrize("tau", [0.5, 1.0])
def test_logit_adjustment(tau):
    shift = tau * np.log(COUNTS / COUNTS.sum())
    assert of(CrossEntropyLoss(logit_adjustment=tau)) == pytest.approx(
        by_hand(target(), shift=shift), rel=1e-5
    )
    with_weights = CrossEntropyLoss(logit_adjustment=tau, class_weights="balanced")
    expected = by_hand(target(eps=0.1), scaled(1 / COUNTS), shift=shift)
    assert of(with_weights, eps=0.1) == pytest.approx(expected, rel=1e-5)


def test_a_class_without_clips_is_as_rare_as_the_rarest_other():
    counts = np.array([400.0, 90.0, 10.0, 0.0])
    instead = np.array([400.0, 90.0, 10.0, 10.0])
    weights = (1 / instead) * counts.sum() / ((1 / instead) * counts).sum()
    value = of(CrossEntropyLoss(class_weights="balanced"), eps=0.1, counts=counts)
    assert value == pytest.approx(by_hand(target(eps=0.1), weights), rel=1e-5)
    shift = np.log(instead / instead.sum())
    value = of(CrossEntropyLoss(logit_adjustment=1.0), counts=counts)
    assert value == pytest.approx(by_hand(target(), shift=shift), rel=1e-5)


@pytest.mark.parametrize("arguments", [{"class_weights": "balanced"}, {"logit_adjustment": 1.0}])
@pytest.mark.parametrize("kind", [CrossEntropyLoss, FocalLoss])
def test_the_loss_is_the_mean_over_clips(kind, arguments):
    """So the batches of ranks, weighed by their clips, add up to the batch of one process."""
    loss = kind(**arguments)
    whole = of(loss)
    logits, labels = paddle.to_tensor(LOGITS), paddle.to_tensor(LABELS)
    parts = 2 / 6 * float(loss(logits[:2], labels[:2])) + 4 / 6 * float(loss(logits[2:], labels[2:]))
    assert parts == pytest.approx(whole, rel=1e-5)
    assert loss.each(logits, labels).numpy().mean() == pytest.approx(whole, rel=1e-5)


def test_weights_of_several_labels_are_on_the_classes_that_are_there():
    there = np.array([[1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 0, 1]])
    p = 1 / (1 + np.exp(-LOGITS[:3].astype(np.float64)))
    weights = scaled(1 / COUNTS)
    expected = -(weights * there * np.log(p) + (1 - there) * np.log(1 - p)).mean()
    loss = BinaryCrossEntropyLoss(class_weights="balanced")
    loss.set_class_counts(COUNTS)
    labels = paddle.to_tensor(there.astype("float32"))
    assert float(loss(paddle.to_tensor(LOGITS[:3]), labels)) == pytest.approx(expected, rel=1e-5)
    focused = AsymmetricLoss(0, 2, 0, class_weights="balanced")
    focused.set_class_counts(COUNTS)
    expected = -(weights * there * np.log(p) + (1 - there) * p**2 * np.log(1 - p)).sum() / 3
    assert float(focused(paddle.to_tensor(LOGITS[:3]), labels)) == pytest.approx(expected, rel=1e-5)


def test_validation_has_neither_weights_nor_adjustment(section):
    config = section(num_classes=4)
    config["head"]["loss_cfg"] = {"name": "FocalLoss", "class_weights": "effective", "logit_adjustment": 1.0}
    model = build_model(config)
    model.eval()
    logits, labels = paddle.to_tensor(LOGITS), paddle.to_tensor(LABELS)
    focal = by_hand(target(), gamma=2.0)
    assert float(model.loss(logits, labels)) == pytest.approx(focal, rel=1e-5)  # and needs no counts
    model.train()
    with pytest.raises(ConfigError, match="set_class_counts"):
        model.loss(logits, labels)
    names = ["focal loss with gamma 2, class_weights effective with beta 0.999, logit_adjustment 1"]
    assert tell_class_counts(model, COUNTS) == names
    trained = by_hand(target(), effective(0.999), 2.0, np.log(COUNTS / COUNTS.sum()))
    assert float(model.loss(logits, labels)) == pytest.approx(trained, rel=1e-5)
    assert not [name for name in model.state_dict() if "loss" in name]


def test_what_does_not_fit_is_told():
    with pytest.raises(ConfigError, match=r"class_weights=\[0, 0\]: no class has a weight above 0"):
        CrossEntropyLoss(class_weights=[0, 0])
    with pytest.raises(ConfigError, match="has 3 weights for 4 classes"):
        CrossEntropyLoss(class_weights=[1, 2, 3]).set_class_counts(COUNTS)
    with pytest.raises(ConfigError, match="with a weight above 0 have no clip"):
        CrossEntropyLoss(class_weights=[0, 0, 0, 1]).set_class_counts([5, 5, 5, 0])
    with pytest.raises(ConfigError, match="no clip to train on has a class"):
        BinaryCrossEntropyLoss(class_weights="balanced").set_class_counts([0, 0, 0, 0])


@pytest.mark.parametrize(
    ("arguments", "counts", "text"),
    [
        ({"class_weights": "balanced"}, [7, 7, 0, 7], "class_weights has no effect"),
        ({"class_weights": [3, 3, 3, 3]}, COUNTS, "class_weights has no effect"),
        ({"class_weights": "effective", "beta": 0.0}, COUNTS, "class_weights has no effect"),
        ({"logit_adjustment": 1.0}, [7, 7, 0, 7], "logit_adjustment has no effect"),
        ({"class_weights": "balanced", "beta": 0.9}, COUNTS, "beta has no effect"),
    ],
)
def test_what_has_no_effect_is_told(arguments, counts, text, caplog):
    with caplog.at_level(logging.WARNING, "paddlevideo_fast"):
        CrossEntropyLoss(**arguments).set_class_counts(counts)
    assert [record for record in caplog.messages if text in record]
