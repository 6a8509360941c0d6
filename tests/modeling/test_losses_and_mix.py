"""Label smoothing, mixed labels and mixup against their formulas."""

from __future__ import annotations

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling import MixedLabels, Mixup, build_model
from paddlevideo_fast.modeling.losses import CrossEntropyLoss

rng = np.random.default_rng(3)
LOGITS = rng.standard_normal((5, 7)).astype("float32")
LABELS = np.array([0, 6, 3, 3, 1])


def by_hand(labels: np.ndarray, eps: float) -> float:
    log_prob = LOGITS - np.log(np.exp(LOGITS).sum(axis=1, keepdims=True))
    target = np.eye(7)[labels] * (1 - eps) + eps / 7
    return float(-(target * log_prob).sum(axis=1).mean())


@pytest.mark.smoke
@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_smoothed_cross_entropy(eps):
    loss = CrossEntropyLoss(loss_weight=2.0)(paddle.to_tensor(LOGITS), paddle.to_tensor(LABELS), eps)
    assert float(loss) == pytest.approx(2 * by_hand(LABELS, eps), rel=1e-5)


class OwnLoss(paddle.nn.Layer):
    """A user's loss, which knows batches only."""

    def forward(self, logits, labels, ls_eps=0.0):
        return CrossEntropyLoss()(logits, labels, ls_eps)


@pytest.mark.parametrize("loss", [CrossEntropyLoss(), OwnLoss()], ids=["in one call", "clip by clip"])
@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_the_loss_of_each_clip(section, loss, eps):
    model = build_model(section(num_classes=7))
    model.head.loss_func, model.head.ls_eps = loss, eps
    model.train()
    each = model.loss_of_each(paddle.to_tensor(LOGITS), paddle.to_tensor(LABELS))
    alone = [
        model.loss(paddle.to_tensor(LOGITS[i : i + 1]), paddle.to_tensor(LABELS[i : i + 1])) for i in range(5)
    ]
    np.testing.assert_array_equal(each.numpy(), [float(one) for one in alone])


def test_smoothing_is_paddlevideos():
    soft = F.label_smooth(F.one_hot(paddle.to_tensor(LABELS), 7), epsilon=0.1)
    expected = F.cross_entropy(paddle.to_tensor(LOGITS), soft, soft_label=True)
    loss = CrossEntropyLoss()(paddle.to_tensor(LOGITS), paddle.to_tensor(LABELS), 0.1)
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_mixed_labels(eps):
    other = LABELS[::-1].copy()
    mixed = MixedLabels(paddle.to_tensor(LABELS), paddle.to_tensor(other), 0.3)
    loss = CrossEntropyLoss()(paddle.to_tensor(LOGITS), mixed, eps)
    assert float(loss) == pytest.approx(0.3 * by_hand(LABELS, eps) + 0.7 * by_hand(other, eps), rel=1e-5)


def test_smoothing_is_for_training_only(section):
    config = section(num_classes=7)
    config["head"]["ls_eps"] = 0.1
    config["head"]["loss_cfg"] = {"name": "CrossEntropyLoss", "loss_weight": 3.0}
    model = build_model(config)
    logits, labels = paddle.to_tensor(LOGITS), paddle.to_tensor(LABELS)
    model.train()
    assert float(model.loss(logits, labels)) == pytest.approx(3 * by_hand(LABELS, 0.1), rel=1e-5)
    model.eval()
    assert float(model.loss(logits, labels)) == pytest.approx(3 * by_hand(LABELS, 0.0), rel=1e-5)


@pytest.mark.smoke
def test_mixup_blends_clips_and_labels():
    clips = rng.standard_normal((5, 2, 3, 4, 4)).astype("float32")
    mixed, labels = Mixup(0.4)(paddle.to_tensor(clips), paddle.to_tensor(LABELS), np.random.default_rng(7))
    again = np.random.default_rng(7)
    lam = again.beta(0.4, 0.4)
    order = again.permutation(5)
    np.testing.assert_allclose(mixed.numpy(), lam * clips + (1 - lam) * clips[order], rtol=1e-5, atol=1e-6)
    assert labels.lam == pytest.approx(lam)
    np.testing.assert_array_equal(labels.a.numpy(), LABELS)
    np.testing.assert_array_equal(labels.b.numpy(), LABELS[order])


def test_mixup_refuses_alpha_0():
    with pytest.raises(ConfigError, match="alpha"):
        Mixup(0.0)
