"""Our networks give the outputs of the networks whose weights they load."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

from paddlevideo_fast.apps.convert.convert import convert_file, convert_state
from paddlevideo_fast.modeling import MacCounter, build_model, count_parameters, load_weights
from paddlevideo_fast.modeling.heads import I3DHead
from tests.support.torch_writer import write_pickles, write_zip

REFERENCE = Path(__file__).parent.parent / "reference"


def load(name: str) -> dict[str, Any]:
    return json.loads((REFERENCE / f"{name}.json").read_text())


def weight(
    name: str,
    shape: Sequence[int],
    is_paddle_linear: bool = False,
    norm_weights: tuple[float, float] = (0.3, 0.7),
) -> np.ndarray:
    """The value that the reference was computed with, a function of the name.

    The light networks have other weights of batch norms: with those of the others, their inputs fade away
    on the way through more than 50 layers, and the logits say nothing.
    """
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if len(shape) >= 2:
        fan_in = shape[0] if is_paddle_linear else math.prod(shape[1:])
        value = rng.standard_normal(shape) * math.sqrt(2 / fan_in)
    elif name.endswith(("running_var", "_variance")):
        value = rng.uniform(0.5, 1.5, shape)
    elif name.endswith("weight"):
        value = rng.uniform(*norm_weights, shape)
    else:
        value = 0.1 * rng.standard_normal(shape)
    return value.astype("float32")


def linear_weights(model: paddle.nn.Layer) -> set[str]:
    return {
        f"{name}.weight" for name, layer in model.named_sublayers() if isinstance(layer, paddle.nn.Linear)
    }


def paddle_weights(model: paddle.nn.Layer, shapes: dict[str, Sequence[int]]) -> dict[str, np.ndarray]:
    """The values of a reference whose linear layers hold [in, out], as ours do."""
    linear = linear_weights(model)
    return {name: weight(name, shape, name in linear) for name, shape in shapes.items()}


def clips_of(reference: dict[str, Any]) -> np.ndarray:
    clips = np.random.default_rng(20261120).standard_normal(reference["input_shape"]).astype("float32")
    assert clips.sum(dtype="float64") == pytest.approx(reference["input_sum"])
    return clips


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks have no random weights to begin with: to draw them takes longer than all the rest."""
    for name in ("KaimingNormal", "Normal", "TruncatedNormal"):
        monkeypatch.setattr(paddle.nn.initializer, name, lambda *_, **__: paddle.nn.initializer.Constant(0.5))


def network(framework: str, backbone: dict[str, Any], head: str, **arguments: Any) -> paddle.nn.Layer:
    section = {"framework": framework, "backbone": backbone, "head": {"name": head, **arguments}}
    return build_model(section)


def tsm(data_format: str = "NCHW", **backbone: Any) -> paddle.nn.Layer:
    own = {"name": "ResNetTSM", "depth": 50, "data_format": data_format, **backbone}
    head = {"num_classes": 400, "in_channels": 2048, "data_format": data_format}
    return network("Recognizer2D", own, "TSMHead", **head)


def fill(model: paddle.nn.Layer, state: dict[str, np.ndarray]) -> None:
    target = model.state_dict()
    assert set(target) == set(state)
    for name, tensor in target.items():
        assert list(tensor.shape) == list(state[name].shape), name
        tensor.set_value(state[name])


def logits_of(model: paddle.nn.Layer, clips: np.ndarray) -> np.ndarray:
    model.eval()
    with paddle.no_grad():
        return model(paddle.to_tensor(clips)).numpy()


def assert_close(logits: np.ndarray, reference: dict[str, Any]) -> None:
    expected = np.array(reference["logits"]).reshape(logits.shape)
    assert np.abs(logits - expected).max() <= 1e-4 * np.abs(expected).max()


def count(state: dict[str, Sequence[int]]) -> int:
    """Parameters without the statistics of batch norms."""
    statistics = ("_mean", "_variance", "running_var")
    return sum(math.prod(shape) for name, shape in state.items() if not name.endswith(statistics))


@pytest.mark.usefixtures("unset")
@pytest.mark.smoke
@pytest.mark.parametrize("data_format", ["NCHW", "NHWC"])
def test_tsm_gives_paddlevideos_logits(data_format):
    reference = load("paddlevideo_tsm_r50_8f")
    model = tsm(data_format)
    fill(model, paddle_weights(model, reference["state"]))
    assert_close(logits_of(model, clips_of(reference)), reference)


def convert_and_load(kind: str, reference: dict[str, Any], model: paddle.nn.Layer, folder: Path) -> None:
    """The reference's weights as a PyTorch file, through the converter into `model`."""
    state = {k: weight(k, s) for k, s in reference["state"].items()}
    write = write_pickles if kind == "mit-tsm" else write_zip
    write(folder / "theirs.pth", {"model_state" if kind == "pyslowfast" else "state_dict": state})
    assert convert_file(kind, folder / "theirs.pth", model, folder / "ours.pdparams").is_whole
    report = load_weights(model, folder / "ours.pdparams", strict=True)
    assert not report.unexpected


@pytest.mark.usefixtures("unset")
@pytest.mark.parametrize(
    ("kind", "name"), [("mit-tsm", "mit_tsm_r50_8f"), ("mmaction2", "mmaction2_tsm_r50_8f")]
)
def test_tsm_gives_pytorchs_logits_after_conversion(kind, name, tmp_path):
    reference, model = load(name), tsm()
    convert_and_load(kind, reference, model, tmp_path)
    assert_close(logits_of(model, clips_of(reference)), reference)


@pytest.mark.usefixtures("unset")
def test_mirrored_shift_is_seen_if_the_folds_stay():
    reference, model = load("mit_tsm_r50_8f"), tsm()
    state = {k.replace(".net", ""): weight(k, s) for k, s in reference["state"].items()}
    fill(model, convert_state("mit-tsm", state, model).weights)
    with pytest.raises(AssertionError):
        assert_close(logits_of(model, clips_of(reference)), reference)


@pytest.mark.usefixtures("unset")
@pytest.mark.smoke
def test_parameter_counts_are_the_published_ones():
    assert count({name: value.shape for name, value in tsm().state_dict().items()}) == 24_327_632
    for reference in ("mit_tsm_r50_8f", "paddlevideo_tsm_r50_8f"):
        assert count(load(reference)["state"]) == 24_327_632


def network_3d(name: str, head: dict[str, Any] | None = None, **backbone: Any) -> paddle.nn.Layer:
    kind = {"ResNetSlowFast": "SlowFastHead", "X3D": "X3DHead"}.get(name, "I3DHead")
    return network("Recognizer3D", {"name": name, **backbone}, kind, **{"num_classes": 400, **(head or {})})


SLOWFAST_4X16 = {"name": "ResNetSlowFast", "alpha": 8, "beta": 8, "fusion_kernel_sz": 5}
SLOWFAST_8X8 = {"name": "ResNetSlowFast", "alpha": 4, "beta": 8, "fusion_kernel_sz": 7}


@pytest.mark.usefixtures("unset")
@pytest.mark.smoke
def test_slowfast_gives_paddlevideos_probabilities():
    reference = load("paddlevideo_slowfast_8x8")
    model = network_3d(**SLOWFAST_8X8)
    fill(model, paddle_weights(model, reference["state"]))
    logits = logits_of(model, clips_of(reference)).astype("float64")
    assert_close(softmax(logits), reference)


def tsn() -> paddle.nn.Layer:
    backbone = {"name": "ResNet", "depth": 50}
    return network("Recognizer2D", backbone, "TSNHead", num_classes=400, in_channels=2048)


R2PLUS1D_18 = {"name": "ResNetR2Plus1D", "head": {"in_channels": 512}}
PYTORCHVIDEO_X3D = {"name": "X3D", "shortcut_norm": "widening"}
MMACTION2_SLOWFAST = {**SLOWFAST_4X16, "fuse_bn_relu": False, "slow_frames": "strided"}


@pytest.mark.usefixtures("unset")
@pytest.mark.parametrize(
    ("kind", "name", "backbone"),
    [
        ("pyslowfast", "pyslowfast_slowfast_4x16_r50", SLOWFAST_4X16),
        ("mmaction2", "mmaction2_slowfast_r50_4x16", MMACTION2_SLOWFAST),
        ("mmaction2", "mmaction2_i3d_r50", {"name": "ResNetI3D", "conv1_stride_t": 2, "pool1_stride_t": 2}),
        ("pytorchvideo", "pytorchvideo_i3d_r50", {"name": "ResNetI3D"}),
        ("pytorchvideo", "pytorchvideo_x3d_s", PYTORCHVIDEO_X3D),
        ("torchvision", "torchvision_r2plus1d_18", R2PLUS1D_18),
    ],
)
def test_3d_networks_give_pytorchs_logits_after_conversion(kind, name, backbone, tmp_path):
    reference, model = load(name), network_3d(**backbone)
    assert count_parameters(model) == count(reference["state"])
    convert_and_load(kind, reference, model, tmp_path)
    assert_close(logits_of(model, clips_of(reference)), reference)


@pytest.mark.usefixtures("unset")
@pytest.mark.parametrize(
    ("name", "backbone", "average"),
    [
        ("pytorchvideo_slow_r50", {"name": "ResNetSlow"}, "logits"),
        ("pytorchvideo_slowfast_r50", SLOWFAST_8X8, "probabilities"),
    ],
)
def test_a_head_classifies_each_window_of_a_larger_clip(name, backbone, average):
    reference = load("state_names")[name]
    model = network_3d(**backbone, head={"crop_size": 224, "window_average": average})
    state = {k: weight(k, s) for k, s in reference["state"].items()}
    result = convert_state("pytorchvideo", state, model)
    assert [note[-6:] for note in result.notes] == ([] if average == "logits" else ["logits"])
    model.set_state_dict(result.weights)
    shape = [*reference["input_shape"][:2], 8, 256, 256]
    clips = np.random.default_rng(20261120).standard_normal(shape).astype("float32")
    model.eval()
    with paddle.no_grad():
        features = [x.numpy().astype("float64") for x in model.backbone(paddle.to_tensor(clips))]
        ours = model.head([paddle.to_tensor(x.astype("float32")) for x in features]).numpy()
    assert {x.shape[3:] for x in features} == {(8, 8)}  # 256 pixels: four windows of 7 by 7
    linear = getattr(model.head, model.head.linear_name)
    outputs = []
    for top in (0, 1):
        for left in (0, 1):
            window = [x[..., top : top + 7, left : left + 7].mean(axis=(2, 3, 4)) for x in features]
            logits = np.concatenate(window, axis=1) @ linear.weight.numpy() + linear.bias.numpy()
            outputs.append(logits if average == "logits" else softmax(logits))
    expected = np.mean(outputs, axis=0)
    found = ours if average == "logits" else softmax(ours)
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()
    model.head.window = None
    with paddle.no_grad():
        whole = model.head([paddle.to_tensor(x.astype("float32")) for x in features]).numpy()
    whole = whole if average == "logits" else softmax(whole)
    assert np.abs(whole - expected).max() > 1e-3 * np.abs(expected).max()


def test_a_head_with_windows_takes_the_global_mean_of_clips_of_the_crop_size():
    plain, windowed = (I3DHead(num_classes=7, in_channels=8, crop_size=size) for size in (None, 64))
    windowed.set_state_dict(plain.state_dict())
    for head in (plain, windowed):
        head.eval()
    features, larger = [paddle.rand([2, 8, 3, 2, 2])], [paddle.rand([2, 8, 3, 3, 2])]
    assert (plain(features) == windowed(features)).all()
    assert not (plain(larger) == windowed(larger)).all()


def test_windows_of_several_labels_average_sigmoids():
    head = I3DHead(num_classes=7, in_channels=8, crop_size=32, activation="sigmoid")
    head.eval()
    features = 20 * paddle.randn([2, 8, 3, 2, 1])
    each = [head([features[:, :, :, row : row + 1]]) for row in (0, 1)]
    mean = sum(paddle.nn.functional.sigmoid(logits) for logits in each) / 2
    assert paddle.allclose(paddle.nn.functional.sigmoid(head([features])), mean, atol=1e-6)


def softmax(logits: np.ndarray) -> np.ndarray:
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponents / exponents.sum(axis=1, keepdims=True)


MOVINETS = {
    "paddlevideo_movinet_a0_3d": {"causal": False, "conv_type": "3d"},
    "paddlevideo_movinet_a0_causal_2plus1d": {"causal": True, "conv_type": "2plus1d"},
}


@pytest.mark.usefixtures("unset")
@pytest.mark.parametrize("name", MOVINETS)
def test_movinet_gives_paddlevideos_logits_with_its_file_as_it_is(name, tmp_path):
    reference = load(name)
    backbone = {"name": "MoViNet", "model_type": "A0", "num_classes": 400, **MOVINETS[name]}
    model = network("MoViNetRecognizerFrame", backbone, "MoViNetHead")
    norm_weights = reference["norm_weights"]
    state = {k: weight(k, s, norm_weights=norm_weights) for k, s in reference["state"].items()}
    paddle.save({k: paddle.to_tensor(v) for k, v in state.items()}, str(tmp_path / "theirs.pdparams"))
    assert not load_weights(model, tmp_path / "theirs.pdparams", strict=True).unexpected
    assert count_parameters(model) == reference["parameters"]
    assert_close(logits_of(model, clips_of(reference)), reference)


LIGHT = {
    "paddlevideo_pptsm_mv2_8f": {"name": "PPTSM_MobileNetV2"},
    "paddlevideo_pptsm_mv3_8f": {"name": "PPTSM_MobileNetV3"},
    "paddlevideo_pptsm_lcnet_16f": {"name": "PPTSM_v2", "num_seg": 16, "use_temporal_att": True},
}


@pytest.mark.usefixtures("unset")
@pytest.mark.parametrize("name", LIGHT)
def test_light_networks_give_paddlevideos_logits_with_its_file_as_it_is(name, tmp_path):
    """A file has room for the sums of PP-LCNetV2's branches, for which the network has no use."""
    reference, model = load(name), network("Recognizer2D", LIGHT[name], "MoViNetHead")
    state = {k: weight(k, s, len(s) == 2, reference["norm_weights"]) for k, s in reference["state"].items()}
    paddle.save(state, str(tmp_path / "theirs.pdparams"))
    report = load_weights(model, tmp_path / "theirs.pdparams", strict=True)
    assert all(key.endswith(("dw_conv.weight", "dw_conv.bias")) for key in report.unexpected)
    unused = sum(state[key].size for key in report.unexpected)
    assert count_parameters(model) == reference["parameters"] - unused
    # Deep networks of thin layers add up errors of float32 that differ between processors.
    model.to(dtype="float64")
    clips = clips_of(reference).astype("float64")
    assert_close(logits_of(model, clips), reference)
    with pytest.raises(AssertionError):  # the order of the frames makes a difference
        assert_close(logits_of(model, np.ascontiguousarray(clips[:, ::-1])), reference)


@pytest.mark.usefixtures("unset")
@pytest.mark.parametrize(
    ("kind", "name", "make"),
    [
        ("mit-tsm", "mit_tsm_r50_16f", lambda: tsm(num_seg=16)),
        ("mit-tsm", "mit_tsn_r50_8f", tsn),
        ("paddlevideo", "paddlevideo_tsn_r50", tsn),
        ("pyslowfast", "pyslowfast_i3d_8x8_r50", lambda: network_3d("ResNetI3D")),
        ("pyslowfast", "pyslowfast_slow_8x8_r50", lambda: network_3d("ResNetSlow")),
        ("pyslowfast", "pyslowfast_slowfast_8x8_r50", lambda: network_3d(**SLOWFAST_8X8)),
        ("pytorchvideo", "pytorchvideo_slow_r50", lambda: network_3d("ResNetSlow")),
        ("pytorchvideo", "pytorchvideo_slowfast_r50", lambda: network_3d(**SLOWFAST_8X8)),
        ("mmaction2", "mmaction2_slowfast_r50_4x16", lambda: network_3d(**MMACTION2_SLOWFAST)),
    ],
)
def test_every_known_network_converts_with_no_tensor_left_over(kind, name, make):
    reference, model = load("state_names")[name], make()
    state = {k: np.zeros(s, "float32") for k, s in reference["state"].items()}
    result = convert_state(kind, state, model)
    assert result.is_whole
    assert {row.outcome for row in result.rows} == {"converted"}
    assert {k: list(v.shape) for k, v in result.weights.items()} == {
        k: list(v.shape) for k, v in model.state_dict().items()
    }
    counts = {reference["parameters"], count(reference["state"])}  # some counts are with the statistics
    assert count_parameters(model) in counts


@pytest.mark.usefixtures("unset")
@pytest.mark.parametrize(
    ("backbone", "parameters"),
    [
        (SLOWFAST_4X16, 34_480_216),
        ({"name": "ResNetI3D", "inflate": "3x3x3"}, pytest.approx(33.43e6, abs=0.005e6)),
        ({"name": "ResNetI3D", "inflate": "3x3x3", "inflate_all": True}, pytest.approx(47.00e6, abs=0.005e6)),
        ({"name": "X3D"}, pytest.approx(3.79e6, abs=0.005e6)),
        ({"name": "X3D", "depth_factor": 5.0}, pytest.approx(6.15e6, abs=0.005e6)),
        ({"name": "ResNetR2Plus1D", "depth": 50}, pytest.approx(28.11e6, abs=0.005e6)),
    ],
)
def test_3d_networks_have_the_published_parameters(backbone, parameters):
    assert count_parameters(network_3d(**backbone)) == parameters


@pytest.mark.usefixtures("unset")
@pytest.mark.parametrize(
    ("backbone", "num_frames", "side", "gmacs"),
    [
        (SLOWFAST_4X16, 32, 224, 27.6),
        (SLOWFAST_8X8, 32, 224, 50.3),
        ({"name": "ResNetSlow"}, 8, 224, 41.7),
        ({"name": "ResNetI3D"}, 8, 224, 28.4),
        ({"name": "X3D"}, 4, 160, 0.60),
        ({"name": "X3D"}, 13, 160, 1.96),
        ({"name": "X3D"}, 16, 224, 4.73),
        (R2PLUS1D_18, 16, 112, 40.52),
    ],
)
def test_3d_networks_have_the_published_flops(backbone, num_frames, side, gmacs):
    model = network_3d(**backbone)
    model.eval()
    # a part of each side: the square of it of the multiply-adds, those of a clip's one feature aside
    with paddle.no_grad(), MacCounter(model) as counter, MacCounter(model.head) as of_head:
        model(paddle.zeros([1, 3, num_frames, 64, 64]))
    squeezes = [layer for name, layer in model.named_sublayers() if name.endswith((".se.fc1", ".se.fc2"))]
    once = of_head.macs + sum(layer.weight.size for layer in squeezes)
    macs = (counter.macs - once) * (side / 64) ** 2 + once
    assert macs / 1e9 == pytest.approx(gmacs, rel=0.01)


def videomae_authors_names(ours: dict[str, np.ndarray], kernel: np.ndarray) -> dict[str, np.ndarray]:
    """Our weights as the authors' repository has them, whose names are ours, and whose patches a kernel."""
    theirs = {}
    for name, value in ours.items():
        name = (
            name.removeprefix("backbone.").replace("head.fc_norm.", "fc_norm.").replace("head.fc.", "head.")
        )
        theirs[name] = value.T if value.ndim == 2 else value
    return {**theirs, "patch_embed.proj.weight": kernel}


@pytest.mark.usefixtures("unset")
def test_videomae_gives_hugging_faces_logits_also_by_the_authors_names(tmp_path):
    reference = load("hf_videomae_vits_8x112")
    head = {"num_classes": 400, "in_channels": 384}
    model = network("Recognizer3D", {"name": "VideoMAEViT"}, "VideoMAEHead", **head)
    convert_and_load("huggingface", reference, model, tmp_path)
    clips = clips_of(reference).transpose(0, 2, 1, 3, 4)
    assert_close(logits_of(model, np.ascontiguousarray(clips)), reference)
    assert count_parameters(model) == count(reference["state"]) == reference["parameters"] == 22_033_936
    state = {k: weight(k, s) for k, s in reference["state"].items()}
    ours = convert_state("huggingface", state, model).weights
    kernel = state["videomae.embeddings.patch_embeddings.projection.weight"]
    authors = convert_state("videomae", videomae_authors_names(ours, kernel), model)
    assert authors.is_whole
    for name, value in ours.items():
        np.testing.assert_array_equal(authors.weights[name], value)
    newest = {
        name.replace("q_bias", "query.bias").replace("v_bias", "value.bias"): value
        for name, value in state.items()
    }
    assert set(convert_state("huggingface", newest, model).weights) == set(ours)


def swin() -> paddle.nn.Layer:
    backbone = {"patch_size": [2, 4, 4], "window_size": [8, 7, 7], "patch_norm": True}
    head = {"num_classes": 400, "in_channels": 768}
    return network("RecognizerTransformer", {"name": "SwinTransformer3D", **backbone}, "I3DHead", **head)


def mvit(**backbone: Any) -> paddle.nn.Layer:
    head = {"num_classes": 400, "in_channels": 768}
    return network("Recognizer3D", {"name": "MViT", **backbone}, "TransformerHead", **head)


@pytest.mark.usefixtures("unset")
@pytest.mark.parametrize(
    ("name", "make", "parameters"),
    [
        ("torchvision_swin3d_t", swin, 28_158_070),
        ("torchvision_mvit_v2_s_8x112", lambda: mvit(num_frames=8, crop_size=112), 34_470_160),
        ("torchvision_mvit_v2_s_8x120", lambda: mvit(num_frames=8, crop_size=120), 34_471_696),
    ],
)
def test_pyramids_give_torchvisions_logits(name, make, parameters):
    reference, model = load(name), make()
    result = convert_state("torchvision", {k: weight(k, s) for k, s in reference["state"].items()}, model)
    assert {row.outcome for row in result.rows} == {"converted"}
    assert not result.differences
    assert count_parameters(model) == count(reference["state"]) == reference["parameters"] == parameters
    fill(model, result.weights)
    assert_close(logits_of(model, clips_of(reference)), reference)


def test_swin_gives_paddlevideos_logits_also_from_the_authors_file(tmp_path):
    reference = load("paddlevideo_swin_tiny")
    backbone = {"name": "SwinTransformer3D", **reference["config"]}
    model = network("RecognizerTransformer", backbone, "I3DHead", num_classes=7, in_channels=16)
    linear, state = linear_weights(model), paddle_weights(model, reference["state"])
    fill(model, state)
    assert_close(logits_of(model, clips_of(reference)), reference)
    authors = {
        name.replace("head.fc", "cls_head.fc_cls"): value.T if name in linear else value
        for name, value in state.items()
    }
    authors["backbone.layers.0.blocks.0.attn.relative_position_index"] = np.zeros((18, 18), "int64")
    for kind in ("swin", "mmaction2"):
        result = convert_state(kind, authors, model)
        assert result.is_whole
        for name, value in state.items():
            np.testing.assert_array_equal(result.weights[name], value)
    # of ImageNet: without time, and with a classifier of its own
    flat = {name[len("backbone.") :]: value for name, value in authors.items() if "cls_head" not in name}
    flat["patch_embed.proj.weight"] = flat["patch_embed.proj.weight"].sum(axis=2)
    for name in flat:
        if name.endswith("bias_table"):
            flat[name] = flat[name][:25]
    flat["head.weight"], flat["head.bias"] = np.zeros((1000, 16), "float32"), np.zeros(1000, "float32")
    result = convert_state("swin", flat, model)
    assert result.is_whole
    assert not [name for name in result.weights if name.startswith("head.")]
    table = result.weights["backbone.layers.0.blocks.0.attn.relative_position_bias_table"]
    np.testing.assert_allclose(
        table, np.tile(flat["layers.0.blocks.0.attn.relative_position_bias_table"], (3, 1))
    )


def test_mvit_takes_pyslowfasts_names():
    model = mvit(num_frames=4, crop_size=32, embed_dim=384, depths=[1, 1], kv_stride=2)
    state = {}
    for name, value in model.state_dict().items():
        shape = value.shape if "rel_pos" in name or len(value.shape) != 2 else value.shape[::-1]
        theirs = name.replace("backbone.", "").replace("head.fc", "head.projection")
        state[theirs] = weight(theirs, shape)
    result = convert_state("pyslowfast", state, model)
    assert result.is_whole
    assert {row.outcome for row in result.rows} == {"converted"}
    np.testing.assert_array_equal(
        result.weights["backbone.blocks.1.attn.qkv.weight"], state["blocks.1.attn.qkv.weight"].T
    )


@pytest.mark.annex
@pytest.mark.usefixtures("unset")
def test_hiera_gives_its_authors_logits(tmp_path):
    reference = load("hiera_tiny_16x224")
    backbone = {"name": "Hiera", "depths": reference["settings"]["stages"]}
    head = {"num_classes": 400, "in_channels": 768}
    model = network("RecognizerTransformer", backbone, "VideoMAEHead", **head)
    convert_and_load("hiera", reference, model, tmp_path)
    assert count_parameters(model) == count(reference["state"]) == reference["parameters"] == 27_477_808
    assert_close(logits_of(model, clips_of(reference)), reference)


@pytest.mark.annex
def test_hieras_pretraining_gives_its_authors_losses():
    """With all weights of a pre-training file of theirs, decoder included."""
    reference = load("hiera_mae_4x64")
    settings, sizes = reference["settings"], {"num_frames": 4, "crop_size": 64, "q_pool": 2}
    backbone = {"name": "Hiera", "embed_dim": settings["embed_dim"], "depths": settings["stages"], **sizes}
    names = ("embed_dim", "depth", "num_heads")
    decoder = {name: settings[f"decoder_{name}"] for name in names}
    model = network("Pretrain", backbone, "HieraDecoder", in_channels=192, **decoder, **sizes)
    state = {name: weight(name, shape) for name, shape in reference["state"].items()}
    result = convert_state("hiera", state, model)
    assert {row.outcome for row in result.rows} == {"converted"}
    fill(model, result.weights)
    clips, visible = paddle.to_tensor(clips_of(reference)), np.array(reference["visible"])
    hidden = np.stack([np.setdiff1d(np.arange(8), each) for each in visible])
    numbers = [paddle.to_tensor(each) for each in (visible, hidden)]
    predictions, truth = model.head.restored(model.backbone, clips, *numbers)
    losses = (predictions - truth).square().mean(axis=[1, 2]).numpy()
    np.testing.assert_allclose(losses, reference["loss_of_each"], rtol=1e-4)


@pytest.mark.annex
@pytest.mark.usefixtures("unset")
@pytest.mark.parametrize(("variant", "side"), [("lite0", 75), ("lite2", 64)])
def test_efficientnet_lite_gives_pytorchs_logits_after_conversion(variant, side):
    """TensorFlow's padding of 75 pixels is even and odd, layer by layer; that of 64 pixels is always odd."""
    reference = load(f"efficientnet_{variant}_{side}")
    backbone = {"name": "EfficientNetLite", "variant": variant, "num_seg": None}
    model = network("Recognizer2D", backbone, "TSNHead", num_classes=1000, in_channels=1280)
    state = {k: weight(k, s, norm_weights=reference["norm_weights"]) for k, s in reference["state"].items()}
    result = convert_state("efficientnet_lite", state, model)
    assert result.is_whole
    assert {row.outcome for row in result.rows} == {"converted"}
    fill(model, result.weights)
    assert count_parameters(model) == count(reference["state"]) == reference["parameters"]
    model.to(dtype="float64")
    assert_close(logits_of(model, clips_of(reference).astype("float64")), reference)


def vjepa2(**head: Any) -> paddle.nn.Layer:
    backbone = {"name": "VJEPA2", "embed_dim": 384, "depth": 6, "num_heads": 6}
    own = {"num_classes": 174, "in_channels": 384, "num_heads": 6, **head}
    return network("Recognizer3D", backbone, "AttentiveHead", **own)


def vjepa2_authors_files(model: paddle.nn.Layer, kernel: np.ndarray) -> tuple[dict[str, Any], dict[str, Any]]:
    """A checkpoint of pre-training and one of a probe, as the authors write them, with a model's weights."""
    linear, encoder, probe = linear_weights(model), {}, {}
    for name, tensor in model.state_dict().items():
        value = np.ascontiguousarray(tensor.numpy().T) if name in linear else tensor.numpy()
        if name.startswith("backbone."):
            encoder[f"module.{name}"] = value
            continue
        for ours, theirs in (
            ("head.fc.", "linear."),
            ("head.cross.attn.", "head.cross_attention_block.xattn."),
            ("head.cross.", "head.cross_attention_block."),
            ("head.", "pooler."),
        ):
            name = name.replace(ours, theirs)
        probe[f"module.{name}"] = value
    encoder["module.backbone.patch_embed.proj.weight"] = kernel
    encoder["module.backbone.pos_embed"] = np.zeros((1, 4, 384), "float32")
    of_predictor = {f"module.backbone.norm.{leaf}": np.zeros(4, "float32") for leaf in ("weight", "bias")}
    untrained = {name: np.zeros_like(value) for name, value in encoder.items()}
    checkpoint = {"encoder": untrained, "target_encoder": encoder, "predictor": of_predictor, "epoch": 9}
    return checkpoint, probe


@pytest.mark.usefixtures("unset")
def test_vjepa2_gives_hugging_faces_logits_also_from_the_authors_files(tmp_path):
    reference, model = load("hf_vjepa2_384_8x128"), vjepa2()
    convert_and_load("huggingface", reference, model, tmp_path)
    clips = np.ascontiguousarray(clips_of(reference).transpose(0, 2, 1, 3, 4))
    logits = logits_of(model, clips)
    assert_close(logits, reference)
    with paddle.no_grad():
        tokens = model.head.pool(*model.features(paddle.to_tensor(clips)))
        pooled = model.head.attended(tokens).numpy()[0, :8]
        np.testing.assert_array_equal(model.head.classify(tokens).numpy(), logits)
    assert tokens.shape == reference["encoder_shape"]
    expected = np.array(reference["pooled_first8"])
    assert np.abs(pooled - expected).max() <= 1e-4 * np.abs(expected).max()

    state = {name: weight(name, shape) for name, shape in reference["state"].items()}
    unused = [row for row in convert_state("huggingface", state, model).rows if row.outcome != "converted"]
    predictor = [name for name in state if name.startswith("vjepa2.predictor.")]
    assert [(row.outcome, row.source) for row in unused] == [("ignored", "vjepa2.predictor.*")]
    assert unused[0].detail.startswith(f"{len(predictor)} tensors of the predictor")
    taken = {name: shape for name, shape in reference["state"].items() if name not in predictor}
    assert count_parameters(model) == count(taken)

    alone = {name[7:]: value for name, value in state.items() if name.startswith("vjepa2.")}
    result = convert_state("huggingface", alone, model)
    assert result.is_whole
    assert set(result.weights) == {name for name in model.state_dict() if name.startswith("backbone.")}

    kernel = state["vjepa2.encoder.embeddings.patch_embeddings.proj.weight"]
    checkpoint, probe = vjepa2_authors_files(model, kernel)
    write_zip(tmp_path / "encoder.pt", checkpoint)
    write_zip(tmp_path / "probe.pt", {"classifiers": [probe], "epoch": 2})
    sources = [tmp_path / "encoder.pt", tmp_path / "probe.pt"]
    authors = convert_file("vjepa2", sources, model, tmp_path / "authors.pdparams")
    assert [note[-25:] for note in authors.notes] == ["MODEL.head.norm_eps=1e-05"]
    for name, tensor in model.state_dict().items():
        np.testing.assert_array_equal(authors.weights[name], tensor.numpy())
    encoder = convert_file("vjepa2", sources[0], model, tmp_path / "encoder.pdparams")
    ignored = {row.source: row.detail for row in encoder.rows if row.outcome == "ignored"}
    assert list(ignored) == ["predictor.module.backbone.norm.*", "module.backbone.pos_embed"]
    assert set(encoder.weights) == {name for name in authors.weights if name.startswith("backbone.")}
