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

from paddlevideo_fast.deploy.converters import convert_mit_tsm, convert_mmaction2_tsm
from paddlevideo_fast.modeling import build_model

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
