"""Label smoothing, mixed labels and mixup against their formulas."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling import Cutmix, Mixup, VideoMix, build_model
from paddlevideo_fast.modeling.losses import CrossEntropyLoss

rng = np.random.default_rng(3)
LOGITS = rng.standard_normal((5, 7)).astype("float32")
LABELS = np.array([0, 6, 3, 3, 1])


def by_hand(labels: np.ndarray, eps: float) -> float:
    log_prob = LOGITS - np.log(np.exp(LOGITS).sum(axis=1, keepdims=True))
    target = np.eye(7)[labels] * (1 - eps) + eps / 7
    return float(-(target * log_prob).sum(axis=1).mean())


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


@pytest.mark.parametrize("layout", ["NTCHW", "NCTHW", "NTHWC"])
@pytest.mark.parametrize("labels", [LABELS, np.eye(7, dtype="float32")[LABELS]], ids=["one", "several"])
def test_cutmix_puts_one_box_of_another_clip_into_all_frames(layout, labels):
    sizes = {"N": 5, "T": 2, "C": 3, "H": 6, "W": 9}
    clips = rng.standard_normal([sizes[axis] for axis in layout]).astype("float32")
    to_pixels = ["NTCHW".index(axis) for axis in "HWNTC"]
    shares = set()
    for seed in range(20):
        mix = Cutmix(1.0, layout)
        mixed, mixed_labels = mix(
            paddle.to_tensor(clips), paddle.to_tensor(labels), np.random.default_rng(seed)
        )
        others = mixed_labels.b.numpy()
        to_common = [layout.index(axis) for axis in "NTCHW"]
        before = clips.transpose(to_common).transpose(to_pixels)
        after = mixed.numpy().transpose(to_common).transpose(to_pixels)
        changed = (before != after).reshape(6, 9, -1)
        np.testing.assert_array_equal(mixed_labels.a.numpy(), labels)
        rows, columns = changed.any((1, 2)).nonzero()[0], changed.any((0, 2)).nonzero()[0]
        area = 0
        if rows.size:  # the changed pixels are a whole box, of one other clip each
            box = np.ix_(range(rows[0], rows[-1] + 1), range(columns[0], columns[-1] + 1))
            area = (rows[-1] + 1 - rows[0]) * (columns[-1] + 1 - columns[0])
            assert changed.any(2).sum() == area
            for clip in range(5):
                (source,) = [
                    each
                    for each in range(5)
                    if (after[box][..., clip, :, :] == before[box][..., each, :, :]).all()
                ]
                np.testing.assert_array_equal(others[clip], labels[source])
        assert mixed_labels.lam == pytest.approx(1 - area / 54)
        shares.add(mixed_labels.lam)
    assert len(shares) > 5


def test_video_mix_chooses_for_each_batch():
    values = paddle.to_tensor([1.0, 10.0, 100.0, 1000.0, 10000.0])
    clips, labels = values.reshape([5, 1, 1, 1, 1]).expand([5, 2, 3, 8, 8]), paddle.to_tensor(LABELS)
    found = {"none": 0, "mixup": 0, "cutmix": 0}
    for seed in range(200):
        mix = VideoMix(0.25, mixup_alpha=50.0, prob=0.8)
        mixed, mixed_labels = mix(clips, labels, np.random.default_rng(seed))
        if mixed_labels is labels:
            assert mixed is clips
            found["none"] += 1
        else:  # a blend of two clips has a value that no clip has
            found["cutmix" if np.isin(mixed.numpy(), values.numpy()).all() else "mixup"] += 1
    assert 20 < found["none"] < 60
    assert 20 < found["cutmix"] < 60
    again = [VideoMix()(clips, labels, np.random.default_rng(3)) for _ in range(2)]
    np.testing.assert_array_equal(again[0][0].numpy(), again[1][0].numpy())
    assert again[0][1].lam == again[1][1].lam


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: Mixup(0.0), "alpha"),
        (lambda: Cutmix(-1.0), "alpha"),
        (lambda: VideoMix(mixup_alpha=0.0), "mixup_alpha"),
        (lambda: VideoMix(cutmix_alpha=0.0), "cutmix_alpha"),
    ],
)
def test_mixes_refuse_alpha_0(make, key):
    with pytest.raises(ConfigError, match=f"MIX.{key}="):
        make()
