"""Losses of several labels a video against their formulas in float64."""

import numpy as np
import paddle
import pytest

from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling import MixedLabels, build_model
from paddlevideo_fast.modeling.losses import AsymmetricLoss, BinaryCrossEntropyLoss, CrossEntropyLoss
from paddlevideo_fast.modeling.recognizers import activation_of

rng = np.random.default_rng(4)
LOGITS = rng.normal(scale=3, size=(6, 7)).astype("float32")
LABELS = (rng.random((6, 7)) < 0.3).astype("float32")
LABELS[2] = 0  # a video without a class


def sigmoid(x):
    return 1 / (1 + np.exp(-x.astype(np.float64)))


def bce(targets):
    p = sigmoid(LOGITS)
    return -(targets * np.log(p) + (1 - targets) * np.log(1 - p))


def asl(targets, gamma_pos, gamma_neg, margin):
    p = sigmoid(LOGITS)
    q = np.maximum(p - margin, 0)
    if_there = -((1 - p) ** gamma_pos) * np.log(p)
    if_not = -(q**gamma_neg) * np.log(1 - q)
    return targets * if_there + (1 - targets) * if_not


def of(loss, labels, eps=0.0):
    labels = labels if isinstance(labels, MixedLabels) else paddle.to_tensor(labels)
    return float(loss(paddle.to_tensor(LOGITS), labels, eps))


@pytest.mark.smoke
@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_binary_cross_entropy_and_its_smoothing(eps):
    targets = LABELS * (1 - eps) + eps / 2
    assert of(BinaryCrossEntropyLoss(2.0), LABELS, eps) == pytest.approx(2 * bce(targets).mean(), rel=1e-5)
    summed = BinaryCrossEntropyLoss(reduction="sum")
    assert of(summed, LABELS, eps) == pytest.approx(bce(targets).sum() / 6, rel=1e-5)


@pytest.mark.parametrize(
    ("gamma_pos", "gamma_neg", "margin"), [(0, 4, 0.05), (1, 4, 0.05), (0, 0, 0), (2, 1, 0), (0.5, 0.5, 0.2)]
)
def test_asymmetric_loss_is_the_papers(gamma_pos, gamma_neg, margin):
    loss = AsymmetricLoss(gamma_pos, gamma_neg, margin)
    expected = asl(LABELS, gamma_pos, gamma_neg, margin).sum() / 6
    assert of(loss, LABELS) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("loss", [BinaryCrossEntropyLoss(), AsymmetricLoss(), AsymmetricLoss(0.5, 0.5, 0)])
def test_far_from_0_losses_and_gradients_stay_finite_and_push_to_the_right_side(loss):
    logits = paddle.to_tensor([[200.0, -200.0, 200.0, -200.0]], stop_gradient=False)
    value = loss(logits, paddle.to_tensor([[0.0, 1.0, 1.0, 0.0]]))
    value.backward()
    wrong_there, missed, right, rightly_not = logits.grad.numpy()[0].tolist()
    assert np.isfinite(float(value))
    assert np.isfinite(logits.grad.numpy()).all()
    assert missed < 0
    assert wrong_there >= 0
    assert right == rightly_not == 0


def test_the_loss_of_each_video():
    each = BinaryCrossEntropyLoss().each(paddle.to_tensor(LOGITS), paddle.to_tensor(LABELS))
    np.testing.assert_allclose(each.numpy(), bce(LABELS).mean(axis=1), rtol=1e-5)


@pytest.mark.parametrize("loss", [BinaryCrossEntropyLoss(), AsymmetricLoss()])
def test_mixed_labels_are_soft_targets(loss):
    other = LABELS[::-1].copy()
    mixed = MixedLabels(paddle.to_tensor(LABELS), paddle.to_tensor(other), 0.3)
    np.testing.assert_allclose(mixed.blended().numpy(), 0.3 * LABELS + 0.7 * other, rtol=1e-6)
    # the losses are linear in their targets
    assert of(loss, mixed) == pytest.approx(0.3 * of(loss, LABELS) + 0.7 * of(loss, other), rel=1e-5)


@pytest.mark.smoke
def test_the_usual_loss_follows_the_activation(section):
    plain, several = section(num_classes=7), section(num_classes=7)
    several["head"]["activation"] = "sigmoid"
    model = build_model(several)
    assert isinstance(model.head.loss_func, BinaryCrossEntropyLoss)
    assert type(build_model(plain).head.loss_func) is CrossEntropyLoss
    model.eval()
    loss = model.loss(paddle.to_tensor(LOGITS), paddle.to_tensor(LABELS))
    assert float(loss) == pytest.approx(bce(LABELS).mean(), rel=1e-5)
    assert [activation_of(config) for config in (plain, several)] == ["softmax", "sigmoid"]


@pytest.mark.parametrize(
    ("activation", "loss", "message"),
    [
        ("softmax", "BinaryCrossEntropyLoss", "=softmax: BinaryCrossEntropyLoss is a loss of sigmoid; set"),
        ("softmax", "AsymmetricLoss", "=softmax: AsymmetricLoss is a loss of sigmoid; set activation"),
        ("sigmoid", "CrossEntropyLoss", "=sigmoid: CrossEntropyLoss is a loss of softmax; set activation"),
    ],
)
def test_a_loss_of_the_other_activation_is_refused(section, activation, loss, message):
    config = section(num_classes=7)
    config["head"].update(activation=activation, loss_cfg={"name": loss})
    with pytest.raises(ConfigError, match=f"MODEL.head.activation{message}"):
        build_model(config)
