"""Transformers with the head sizes of the built-in networks against the CPU's float32, in all formats."""

import functools

import numpy as np
import paddle
import pytest

from paddlevideo_fast.apps.doctor.device_check import TOLERANCES
from paddlevideo_fast.apps.export.export import computing_on, deviation_of
from paddlevideo_fast.modeling import build_model
from tests.gpu.conftest import REHEARSAL, precision_on

FRAMES, SIDE = (4, 32) if REHEARSAL else (8, 112)
_VIT = {"embed_dim": 128, "depth": 1, "num_heads": 2, "patch_size": 8}
_WINDOWS = {"embed_dim": 64, "depths": [2], "num_heads": [2], "window_size": [2, 7, 7], "drop_path_rate": 0.0}
# By the network and the channels of a head: backbone, head.
NETWORKS = {
    "VideoMAE, 64": ({"name": "VideoMAEViT", **_VIT}, {"name": "VideoMAEHead", "in_channels": 128}),
    "VideoMAE of the quick start, 16": (
        {"name": "VideoMAEViT", **_VIT, "num_heads": 8},
        {"name": "VideoMAEHead", "in_channels": 128},
    ),
    "V-JEPA 2, 64": (
        {"name": "VJEPA2", **_VIT},
        {"name": "AttentiveHead", "in_channels": 128, "depth": 1, "num_heads": 2},
    ),
    "V-JEPA 2 ViT-H, 80": (
        {"name": "VJEPA2", **_VIT, "embed_dim": 160},
        {"name": "AttentiveHead", "in_channels": 160, "depth": 1, "num_heads": 2},
    ),
    "Video Swin, 32": ({"name": "SwinTransformer3D", **_WINDOWS}, {"name": "I3DHead", "in_channels": 64}),
    "MViT, 96": (
        {"name": "MViT", "num_frames": FRAMES, "crop_size": SIDE, "depths": [1, 1], "drop_path_rate": 0.0},
        {"name": "TransformerHead", "in_channels": 192},
    ),
    "Hiera, 96": (  # one pooling: at each, rounding makes other queries the largest
        {"name": "Hiera", "num_frames": FRAMES, "crop_size": SIDE, "depths": [1, 2], "mask_unit": 16},
        {"name": "VideoMAEHead", "in_channels": 192},
    ),
    "TimeSformer, 64": (
        {"name": "VisionTransformer", "img_size": SIDE, **_VIT, "num_seg": FRAMES, "drop_path_rate": 0.0},
        {"name": "TimeSformerHead", "in_channels": 128},
    ),
}
STATIC = ("VideoMAE, 64", "Video Swin, 32")


def computed(name, where, dtype="float32", static=False):
    """The logits of a training step and the gradients of the parameters."""
    backbone, head = NETWORKS[name]
    framework = "RecognizerTransformer" if name.startswith("TimeSformer") else "Recognizer3D"
    section = {
        "framework": framework,
        "backbone": backbone,
        "head": {**head, "num_classes": 8, "drop_ratio": 0},
    }
    with computing_on("cpu"):
        paddle.seed(0)
        state = {name: value.numpy() for name, value in build_model(section).state_dict().items()}
    clips = np.random.default_rng(0).standard_normal((2, 3, FRAMES, SIDE, SIDE)).astype("float32")
    with computing_on(where):
        precision = precision_on(dtype)
        model = build_model(section)
        model.set_state_dict(state)
        if static:
            model = paddle.jit.to_static(model, full_graph=True)
        logits = precision.forward(model, paddle.to_tensor(clips))
        (logits * paddle.arange(1, 9, dtype="float32")).sum().backward()
        gradients = [each.grad.numpy() for each in model.parameters() if each.grad is not None]
        return logits.numpy(), gradients


@pytest.fixture(scope="module")
def expected(device):
    """The results of a network in float32 on the CPU, by its name; each is computed once."""
    return functools.cache(lambda name: computed(name, "cpu"))


def largest_deviation(gradients, expected):
    """Relative to a parameter's largest gradient, or to a hundredth of the largest of all."""
    floor = max(np.abs(each).max() for each in expected) / 100
    pairs = zip(gradients, expected)
    return max(float(np.abs(one - other).max() / max(np.abs(other).max(), floor)) for one, other in pairs)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(
    ("name", "static"),
    [(name, False) for name in NETWORKS] + [(name, True) for name in STATIC],
    ids=[*NETWORKS, *(f"{name}, to_static" for name in STATIC)],
)
def test_attention_is_that_of_a_cpu_in_float32(device, expected, figure, name, static, dtype):
    if REHEARSAL and static and dtype != "float32":
        pytest.skip("a CPU rounds to 16 bits between the operators, which a static graph does not show")
    if static and dtype != "float32" and paddle.__version__.startswith("2."):
        pytest.skip(f"graphs of Paddle {paddle.__version__} know amp in float16 alone")
    logits, gradients = computed(name, device, dtype, static)
    expected_logits, expected_gradients = expected(name)
    assert len(gradients) == len(expected_gradients) > 10
    figure("logits deviate by", of_logits := deviation_of(logits, expected_logits))
    figure("gradients by", of_gradients := largest_deviation(gradients, expected_gradients))
    assert of_logits <= TOLERANCES[dtype]
    assert of_gradients <= 4 * TOLERANCES[dtype]
