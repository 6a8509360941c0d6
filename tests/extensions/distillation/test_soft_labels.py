"""Soft labels: the loss by hand, its gradient, mixes, and clips of another shape."""

import numpy as np
import paddle
import pytest
from paddle import nn

from paddlevideo_fast.engine import MixedPrecision
from paddlevideo_fast.errors import SettingError
from paddlevideo_fast.extensions.distillation.objective import LiveTeacher
from paddlevideo_fast.extensions.distillation.soft_labels import (
    ShapedPreprocess,
    middle_frames,
    soft_label_loss,
)
from paddlevideo_fast.extensions.features.model import digest_of
from paddlevideo_fast.modeling import MixedLabels, Mixup, Preprocess
from tests.support.gpu_amp import gpu_amp

RNG = np.random.default_rng(0)
STUDENT, TEACHER = (RNG.standard_normal((5, 7)) * 3 for _ in range(2))


def tensor(values):
    return paddle.to_tensor(np.asarray(values, "float32"))


def softmax(logits, temperature):
    exponents = np.exp(logits / temperature)
    return exponents / exponents.sum(axis=1, keepdims=True)


def divergence(targets, logits, temperature):
    return (targets * np.log(targets / softmax(logits, temperature))).sum(axis=1).mean()


def test_the_loss_and_its_gradient_are_hintons():
    """The gradient of a logit is T · (q − p) / N, from (1 / T) (q − p) of the paper's equation 2 and T²."""
    student = tensor(STUDENT)
    student.stop_gradient = False
    loss = soft_label_loss(student, tensor(TEACHER), 4.0)
    loss.backward()
    p, q = softmax(TEACHER, 4), softmax(STUDENT, 4)
    assert float(loss) == pytest.approx(16 * divergence(p, STUDENT, 4), rel=1e-5)
    np.testing.assert_allclose(student.grad.numpy(), 4 * (q - p) / 5, rtol=1e-4, atol=1e-6)
    assert float(soft_label_loss(student, student, 4.0)) == pytest.approx(0, abs=1e-5)
    certain = tensor([[0.0, -1e30]])
    assert float(soft_label_loss(tensor([[1.0, 2.0]]), certain, 1.0)) == pytest.approx(np.log1p(np.e))


def test_a_mix_blends_soft_labels_as_it_blends_labels():
    clips, labels = tensor(RNG.standard_normal((5, 3))), paddle.arange(5)
    _, mixed = Mixup(alpha=1.0)(clips, labels, np.random.default_rng(3))
    order, lam = mixed.b.numpy(), mixed.lam  # the labels number the clips
    assert 0 < lam < 1
    targets = softmax(TEACHER, 2)
    expected = 4 * divergence(lam * targets + (1 - lam) * targets[order], STUDENT, 2)
    got = soft_label_loss(tensor(STUDENT), tensor(TEACHER), 2.0, mixed)
    assert float(got) == pytest.approx(expected, rel=1e-5)
    with pytest.raises(SettingError, match="MIX: gives MixedLabels without an order"):
        soft_label_loss(tensor(STUDENT), tensor(TEACHER), 2.0, MixedLabels(labels, labels, 0.5))


@pytest.mark.parametrize("layout", ["NTCHW", "NCTHW", "NTHWC"])
def test_clips_are_taken_out_of_longer_and_larger_ones(layout):
    assert middle_frames(8, 4) == [1, 3, 5, 7]
    assert middle_frames(16, 6) == [1, 4, 6, 9, 12, 14]
    clips = RNG.integers(0, 256, (2, 8, 12, 12, 3), dtype=np.uint8)
    blocks = clips[:, [1, 3, 5, 7]].reshape(2, 4, 4, 3, 4, 3, 3).mean(axis=(3, 5)) / 255
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    expected = ((blocks - mean) / std).transpose(["NTHWC".index(axis) for axis in layout])
    shaped = ShapedPreprocess(Preprocess(mean, std, layout), layout, 4, 4)
    for given in (clips, paddle.to_tensor(clips)):
        np.testing.assert_allclose(shaped(given).numpy(), expected, rtol=1e-4, atol=1e-5)


class Block(nn.Layer):
    def __init__(self):
        super().__init__()
        self.position = self.create_parameter([8])
        self.fc, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_teacher_is_cast_once_and_stays_the_same_teacher(dtype):
    teacher = Block()
    before, shared = digest_of(teacher), {"student": None, "temperature": 1.0, "share": 0.5}
    with gpu_amp():
        taught = LiveTeacher(
            teacher=teacher, preprocess=paddle.to_tensor, precision=MixedPrecision("O1", dtype), **shared
        )
    assert taught.identity == {"teacher": before}  # or no run with a teacher could go on
    dtypes = {name: str(each.dtype).rpartition(".")[2].lower() for name, each in teacher.named_parameters()}
    assert {name for name, found in dtypes.items() if found != dtype} == {"norm.weight", "norm.bias"}
    assert dtypes["norm.weight"] == "float32"
