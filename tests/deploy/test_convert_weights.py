"""Files of other toolkits to files that load here."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from paddlevideo_fast.deploy.convert import CONVERTERS, convert_file
from paddlevideo_fast.deploy.converters import convert_mit_tsm
from paddlevideo_fast.errors import WeightError
from paddlevideo_fast.modeling import build_model, load_weights

STAGES = (2, 2, 2, 2)


def mit_resnet18(width=8, classes=3):
    """Names and shapes of a narrow MIT TSM ResNet-18."""
    rng = np.random.default_rng(1)
    state = {}

    def conv_bn(conv, norm, out, inner, size):
        state[f"{conv}.weight"] = rng.standard_normal((out, inner, size, size))
        for leaf in ("weight", "bias", "running_mean", "running_var"):
            state[f"{norm}.{leaf}"] = rng.uniform(0.5, 1.0, out)
        state[f"{norm}.num_batches_tracked"] = np.array(3)

    conv_bn("module.base_model.conv1", "module.base_model.bn1", width, 3, 7)
    inner = width
    for stage, blocks in enumerate(STAGES):
        out = width * 2**stage
        for block in range(blocks):
            at = f"module.base_model.layer{stage + 1}.{block}"
            conv_bn(f"{at}.conv1.net", f"{at}.bn1", out, inner, 3)
            conv_bn(f"{at}.conv2", f"{at}.bn2", out, out, 3)
            if inner != out:
                conv_bn(f"{at}.downsample.0", f"{at}.downsample.1", out, inner, 1)
            inner = out
    state["module.new_fc.weight"] = rng.standard_normal((classes, inner))
    state["module.new_fc.bias"] = rng.standard_normal(classes)
    return state


@pytest.fixture
def model():
    return build_model(
        {
            "framework": "Recognizer2D",
            "backbone": {"name": "ResNetTSM", "depth": 18, "width": 8},
            "head": {"name": "TSMHead", "num_classes": 3, "in_channels": 64},
        }
    )


@pytest.mark.smoke
def test_a_file_converts_and_loads_whole(model, tmp_path):
    np.savez(tmp_path / "mit.npz", **mit_resnet18())
    convert_file(tmp_path / "mit.npz", tmp_path / "ours.pdparams", "mit_tsm")
    report = load_weights(model, tmp_path / "ours.pdparams", strict=True)
    assert not report.unexpected
    shortcut = model.state_dict()["backbone.res2a.short._conv.weight"].numpy()
    np.testing.assert_array_equal(shortcut[:, :, 0, 0], np.eye(8))


def test_weights_without_a_shift_keep_their_order():
    state = {name.replace(".net", ""): value for name, value in mit_resnet18().items()}
    plain, shifted = convert_mit_tsm(state), convert_mit_tsm(mit_resnet18())
    name = "backbone.res2a.conv0._conv.weight"
    expected = state["module.base_model.layer1.0.conv1.weight"].astype("float32")
    np.testing.assert_array_equal(plain[name], expected)
    np.testing.assert_array_equal(shifted[name][:, [1, 0, *range(2, 8)]], expected)


def test_other_weights_are_refused(tmp_path):
    state = mit_resnet18()
    with pytest.raises(WeightError, match=r"nl\.g\.weight"):
        convert_mit_tsm({**state, "base_model.layer1.0.nl.g.weight": np.zeros(1)})
    with pytest.raises(WeightError, match="complete"):
        convert_mit_tsm({name: value for name, value in state.items() if "layer4" not in name})
    with pytest.raises(WeightError, match=", ".join(CONVERTERS)):
        convert_file("a.npz", "b.pdparams", "caffe")
    with pytest.raises(WeightError, match=r"none\.npz"):
        convert_file(tmp_path / "none.npz", tmp_path / "b.pdparams", "mit_tsm")


def test_a_pytorch_file_needs_torch(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(WeightError, match="pip install torch"):
        convert_file(tmp_path / "tsm.pth", tmp_path / "b.pdparams", "mit_tsm")
