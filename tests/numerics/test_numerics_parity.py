"""Our networks give the outputs of the networks whose weights they load."""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any, Dict, Sequence

import numpy as np
import paddle
import pytest

from paddlevideo_fast.deploy.converters import convert_mit_tsm, convert_mmaction2_tsm, convert_pyslowfast
from paddlevideo_fast.modeling import MacCounter, build_model, count_parameters

REFERENCE = Path(__file__).parent.parent / "reference"


def load(name: str) -> Dict[str, Any]:
    return json.loads((REFERENCE / f"{name}.json").read_text())


def weight(name: str, shape: Sequence[int], is_paddle_linear: bool = False) -> np.ndarray:
    """The value that the reference was computed with, a function of the name."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if len(shape) >= 2:
        fan_in = shape[0] if is_paddle_linear else math.prod(shape[1:])
        value = rng.standard_normal(shape) * math.sqrt(2 / fan_in)
    elif name.endswith(("running_var", "_variance")):
        value = rng.uniform(0.5, 1.5, shape)
    elif name.endswith("weight"):
        value = rng.uniform(0.3, 0.7, shape)
    else:
        value = 0.1 * rng.standard_normal(shape)
    return value.astype("float32")


def clips_of(reference: Dict[str, Any]) -> np.ndarray:
    clips = np.random.default_rng(20261120).standard_normal(reference["input_shape"]).astype("float32")
    assert clips.sum(dtype="float64") == pytest.approx(reference["input_sum"])
    return clips


def tsm(data_format: str = "NCHW", **backbone: Any) -> paddle.nn.Layer:
    return build_model(
        {
            "framework": "Recognizer2D",
            "backbone": {"name": "ResNetTSM", "depth": 50, "data_format": data_format, **backbone},
            "head": {
                "name": "TSMHead", "num_classes": 400, "in_channels": 2048, "data_format": data_format,
            },
        }
    )  # fmt: skip


def fill(model: paddle.nn.Layer, state: Dict[str, np.ndarray]) -> None:
    target = model.state_dict()
    assert set(target) == set(state)
    for name, tensor in target.items():
        assert list(tensor.shape) == list(state[name].shape), name
        tensor.set_value(state[name])


def logits_of(model: paddle.nn.Layer, clips: np.ndarray) -> np.ndarray:
    model.eval()
    with paddle.no_grad():
        return model(paddle.to_tensor(clips)).numpy()


def assert_close(logits: np.ndarray, reference: Dict[str, Any]) -> None:
    expected = np.array(reference["logits"]).reshape(logits.shape)
    assert np.abs(logits - expected).max() <= 1e-4 * np.abs(expected).max()


def count(state: Dict[str, Sequence[int]]) -> int:
    """Parameters without the statistics of batch norms."""
    statistics = ("_mean", "_variance", "running_var")
    return sum(math.prod(shape) for name, shape in state.items() if not name.endswith(statistics))


@pytest.mark.smoke
@pytest.mark.parametrize("data_format", ["NCHW", "NHWC"])
def test_tsm_gives_paddlevideos_logits(data_format):
    reference = load("paddlevideo_tsm_r50_8f")
    model = tsm(data_format)
    fill(model, {k: weight(k, s, k == "head.fc.weight") for k, s in reference["state"].items()})
    assert_close(logits_of(model, clips_of(reference)), reference)


@pytest.fixture(scope="module")
def mit():
    reference = load("mit_tsm_r50_8f")
    return reference, {k: weight(k, s) for k, s in reference["state"].items()}


def test_tsm_gives_mits_logits_after_conversion(mit):
    reference, state = mit
    model = tsm()
    fill(model, convert_mit_tsm(state))
    assert_close(logits_of(model, clips_of(reference)), reference)


def test_tsm_gives_mmaction2s_logits_after_conversion():
    reference = load("mmaction2_tsm_r50_8f")
    model = tsm()
    fill(model, convert_mmaction2_tsm({k: weight(k, s) for k, s in reference["state"].items()}))
    assert_close(logits_of(model, clips_of(reference)), reference)


def test_mirrored_shift_is_seen_if_the_folds_stay(mit):
    reference, state = mit
    model = tsm()
    fill(model, convert_mit_tsm(state, shift_ratio=0.0))
    with pytest.raises(AssertionError):
        assert_close(logits_of(model, clips_of(reference)), reference)


@pytest.mark.smoke
def test_parameter_counts_are_the_published_ones():
    assert count({name: value.shape for name, value in tsm().state_dict().items()}) == 24_327_632
    for reference in ("mit_tsm_r50_8f", "paddlevideo_tsm_r50_8f"):
        assert count(load(reference)["state"]) == 24_327_632


def test_tsn_has_paddlevideos_names_and_shapes():
    expected = load("state_names")["paddlevideo_tsn_r50"]["state"]
    model = build_model(
        {
            "framework": "Recognizer2D",
            "backbone": {"name": "ResNet", "depth": 50},
            "head": {"name": "TSNHead", "num_classes": 400, "in_channels": 2048},
        }
    )
    assert {name: list(value.shape) for name, value in model.state_dict().items()} == expected


@pytest.mark.parametrize("name", ["mit_tsm_r50_16f", "mit_tsn_r50_8f"])
def test_mit_names_convert_to_the_whole_network(name):
    converted = convert_mit_tsm({k: np.zeros(s) for k, s in load("state_names")[name]["state"].items()})
    expected = load("paddlevideo_tsm_r50_8f")["state"]
    assert {k: list(v.shape) for k, v in converted.items()} == expected


def network_3d(name: str, **backbone: Any) -> paddle.nn.Layer:
    head = "SlowFastHead" if name == "ResNetSlowFast" else "I3DHead"
    return build_model(
        {
            "framework": "Recognizer3D",
            "backbone": {"name": name, **backbone},
            "head": {"name": head, "num_classes": 400},
        }
    )


SLOWFAST_4X16 = {"name": "ResNetSlowFast", "alpha": 8, "beta": 8, "fusion_kernel_sz": 5}
SLOWFAST_8X8 = {"name": "ResNetSlowFast", "alpha": 4, "beta": 8, "fusion_kernel_sz": 7}


@pytest.mark.smoke
def test_slowfast_gives_paddlevideos_probabilities():
    reference = load("paddlevideo_slowfast_8x8")
    model = network_3d(**SLOWFAST_8X8)
    fill(model, {k: weight(k, s, k == "head.projection.weight") for k, s in reference["state"].items()})
    logits = logits_of(model, clips_of(reference)).astype("float64")
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
    assert_close(exponents / exponents.sum(axis=1, keepdims=True), reference)


def test_slowfast_gives_pyslowfasts_logits_after_conversion():
    reference = load("pyslowfast_slowfast_4x16_r50")
    model = network_3d(**SLOWFAST_4X16)
    fill(model, convert_pyslowfast({k: weight(k, s) for k, s in reference["state"].items()}))
    assert_close(logits_of(model, clips_of(reference)), reference)


@pytest.mark.parametrize(
    ("backbone", "name"),
    [
        (SLOWFAST_8X8, "pyslowfast_slowfast_8x8_r50"),
        ({"name": "ResNetSlow"}, "pyslowfast_slow_8x8_r50"),
        ({"name": "ResNetI3D"}, "pyslowfast_i3d_8x8_r50"),
    ],
)
def test_pyslowfasts_names_convert_to_the_whole_network(backbone, name):
    reference = load("state_names")[name]
    model = network_3d(**backbone)
    fill(model, convert_pyslowfast({k: weight(k, s) for k, s in reference["state"].items()}))
    assert count_parameters(model) == reference["parameters"]


@pytest.mark.parametrize(
    ("backbone", "parameters"),
    [
        (SLOWFAST_4X16, 34_480_216),
        (SLOWFAST_8X8, 34_566_488),
        ({"name": "ResNetSlow"}, 32_454_096),
        ({"name": "ResNetI3D"}, 28_043_472),
        ({"name": "ResNetI3D", "inflate": "3x3x3"}, pytest.approx(33.43e6, abs=0.005e6)),
        ({"name": "ResNetI3D", "inflate": "3x3x3", "inflate_all": True}, pytest.approx(47.00e6, abs=0.005e6)),
    ],
)
def test_3d_networks_have_the_published_parameters(backbone, parameters):
    assert count_parameters(network_3d(**backbone)) == parameters


@pytest.mark.parametrize(
    ("backbone", "num_frames", "gmacs"),
    [
        (SLOWFAST_4X16, 32, 27.6),
        (SLOWFAST_8X8, 32, 50.3),
        ({"name": "ResNetSlow"}, 8, 41.7),
        ({"name": "ResNetI3D"}, 8, 28.4),
    ],
)
def test_3d_networks_have_the_published_flops(backbone, num_frames, gmacs):
    model = network_3d(**backbone)
    model.eval()
    # a quarter of each side: a sixteenth of the multiply-adds, the classifier's aside
    with paddle.no_grad(), MacCounter(model) as counter:
        model(paddle.zeros([1, 3, num_frames, 64, 64]))
    classifier = 400 * model.head.in_channels
    macs = (counter.macs - classifier) * (224 / 64) ** 2 + classifier
    assert macs / 1e9 == pytest.approx(gmacs, rel=0.01)
