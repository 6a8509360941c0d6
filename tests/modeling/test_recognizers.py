"""Every network builds, runs, trains, and says what is wrong with its arguments."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from paddlevideo_fast.errors import ConfigError
from paddlevideo_fast.modeling import Preprocess, build_for_clips, build_model
from paddlevideo_fast.modeling.backbones.resnet import STAGE_BLOCKS
from paddlevideo_fast.modeling.layers.operators import operators_for
from paddlevideo_fast.modeling.recognizers import Recognizer2D
from tests.modeling.conftest import model_section
from tests.modeling.networks import normal

PAIRS = [
    ("ResNet", "TSNHead"),
    ("ResNetTSM", "TSMHead"),
    ("ResNetTweaksTSM", "ppTSMHead"),
    ("ResNetTweaksTSN", "ppTSNHead"),
]


def clips(num: int = 2, frames: int = 8, size: int = 32) -> paddle.Tensor:
    return normal(num, frames, 3, size, size)


@pytest.mark.parametrize("depth", [18, 34, 50, 101, 152])
@pytest.mark.parametrize("backbone", ["ResNet", "ResNetTSM", "ResNetTweaksTSM"])
def test_every_depth_builds_and_runs(make_model, backbone, depth):
    model = make_model(backbone, depth=depth, width=2, stage_blocks=None)
    model.eval()
    logits = model(clips(1, 8, 32))
    assert logits.shape == [1, 3]
    assert np.isfinite(logits.numpy()).all()
    convolutions = 2 if depth < 50 else 3
    assert convolutions * sum(STAGE_BLOCKS[depth]) + 2 == depth  # with the stem and the classifier


@pytest.mark.smoke
@pytest.mark.parametrize(("backbone", "head"), PAIRS)
@pytest.mark.parametrize("depth", [18, 50])
def test_both_layouts_give_the_same_logits_and_train(make_model, backbone, head, depth):
    key = "layers" if backbone == "ResNetTweaksTSN" else "depth"
    first, second = (
        make_model(backbone, head, data_format=layout, **{key: depth}) for layout in ("NCHW", "NHWC")
    )
    second.set_state_dict(first.state_dict())
    logits = []
    for model in (first, second):
        model.eval()
        logits.append(model(clips()).numpy())
        model.train()
        model.loss(model(clips()), paddle.to_tensor([0, 2])).backward()
        assert all(value.grad is not None for value in model.parameters() if not value.stop_gradient)
    np.testing.assert_allclose(*logits, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("data_format", "layout"), [("NCHW", "NTCHW"), ("NHWC", "NTHWC")])
def test_clips_arrive_in_the_layout_that_the_network_computes_in(
    make_model, monkeypatch, data_format, layout
):
    plain = make_model(*PAIRS[1], data_format=data_format)
    model = build_for_clips(model_section(*PAIRS[1], data_format=data_format))
    model.set_state_dict(plain.state_dict())
    plain.eval()
    model.eval()
    frames = np.random.default_rng(1).integers(0, 256, (2, 8, 32, 32, 3), np.uint8)
    wanted = plain(Preprocess(layout="NTCHW")(frames)).numpy()
    assert model.layout == layout
    on_host, on_device = Preprocess(layout=layout), Preprocess(layout=layout).in_paddle

    def never(*arguments, **options):
        raise AssertionError("there is nothing to transpose")

    if data_format == "NHWC":
        monkeypatch.setattr(paddle.Tensor, "transpose", never)
    np.testing.assert_allclose(model(on_host(frames)).numpy(), wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        model(on_device(paddle.to_tensor(frames))).numpy(), wanted, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("num_classes", [1, 2, 4, 7])
def test_any_number_of_classes(make_model, num_classes):
    model = make_model(num_classes=num_classes)
    assert model(clips()).shape == [2, num_classes]
    assert model.num_classes == num_classes


def test_names_are_paddlevideos():
    def names(backbone, depth):
        section = {
            "framework": "Recognizer2D",
            "backbone": {"name": backbone, "depth": depth, "width": 2},
            "head": {"name": "TSMHead", "num_classes": 2, "in_channels": 64},
        }
        return {name.split(".")[1] for name in build_model(section).state_dict() if "backbone" in name}

    plain = names("ResNetTSM", 101)
    assert {"conv", "res2a", "res2c", "res3d", "res4a", "res4b1", "res4b22", "res5c"} <= plain
    assert "res4b" not in plain
    assert {"conv1_1", "conv1_2", "conv1_3", "bb_0_0", "bb_2_5", "bb_3_2"} <= names("ResNetTweaksTSM", 50)


@pytest.mark.smoke
def test_two_models_live_in_one_process(make_model):
    first, second = make_model(), make_model()
    assert list(first.state_dict()) == list(second.state_dict())
    names = [p.name for model in (first, second) for p in model.parameters()]
    assert len(set(names)) == len(names)


def test_a_clip_of_other_length_is_refused(make_model):
    with pytest.raises(ConfigError, match=r"num_seg=8.*5 frames"):
        make_model()(clips(1, 5))


def test_order_of_frames_matters_to_tsm_only(make_model):
    value = clips(1, 8)
    for backbone, matters in (("ResNetTSM", True), ("ResNet", False)):
        model = make_model(backbone)
        model.eval()
        same = np.allclose(model(value).numpy(), model(value.flip(1)).numpy(), rtol=1e-4, atol=1e-6)
        assert same != matters


@pytest.mark.smoke
def test_wrong_parts_are_refused_with_the_right_value(section):
    wrong = section()
    wrong["head"]["in_channels"] = 2048
    wrong["head"]["data_format"] = "NHWC"
    with pytest.raises(ConfigError) as caught:
        build_model(wrong)
    assert len(caught.value.problems) == 2
    assert "set it to 64" in str(caught.value)
    with pytest.raises(ConfigError, match="depth=20"):
        build_model(section(depth=20))
    with pytest.raises(ConfigError, match="num_classes=0"):
        build_model(section(num_classes=0))


LIGHT = [
    {"name": "PPTSM_MobileNetV2"},
    {"name": "PPTSM_MobileNetV3"},
    {"name": "PPTSM_v2"},
    {"name": "PPTSM_v2", "use_temporal_att": True},
]


def light_section(backbone, **arguments):
    backbone = {"scale": 0.25, "class_num": 3, "num_seg": 4, **backbone, **arguments}
    return {"framework": "Recognizer2D", "backbone": backbone, "head": {"name": "MoViNetHead"}}


@pytest.mark.smoke
@pytest.mark.parametrize("wanted", [model_section(num_seg=4), *map(light_section, LIGHT)])
def test_networks_train_and_average_views(wanted):
    paddle.seed(0)
    model = build_model(wanted)
    assert model.num_classes == type(model).classes_of(wanted) == 3
    loss = model.loss(model(clips(2, 4)), paddle.to_tensor([0, 2]))
    loss.backward()
    trained = [value for value in model.parameters() if not value.stop_gradient]
    assert all(value.grad is not None for value in trained)
    model.eval()
    two_views = clips(2, 8)
    apart = [model(two_views[:, start : start + 4]).numpy() for start in (0, 4)]
    np.testing.assert_allclose(model(two_views).numpy(), np.mean(apart, axis=0), rtol=1e-4, atol=1e-6)


def test_branches_are_one_convolution_in_a_program():
    paddle.seed(0)
    model = build_model(light_section(LIGHT[2]))
    for _ in range(3):
        model(clips(2, 4))  # moves the statistics of the batch norms
    model.eval()
    expected = model(clips(2, 4)).numpy()
    branches = [layer for name, layer in model.named_sublayers() if "dw_conv_list" in name]
    called = []
    hooks = [layer.register_forward_post_hook(lambda *_: called.append(1)) for layer in branches]
    with operators_for("inference"):
        found = model(clips(2, 4)).numpy()
    assert hooks
    assert not called
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


def test_the_attention_over_frames_learns_faster():
    model = build_model(light_section(LIGHT[3]))
    fast = {"backbone.global_attention.fc.weight": 5.0, "backbone.global_attention.fc.bias": 10.0}
    assert model.lr_multipliers == fast
    assert fast.keys() <= dict(model.named_parameters()).keys()
    assert build_model(light_section(LIGHT[2])).lr_multipliers == {}


def test_the_shift_of_light_networks_is_paddlevideos():
    assert build_model(light_section(LIGHT[2], num_seg=16)).backbone.shift_ratio == 1 / 16
    assert build_model(light_section(LIGHT[2], shift_ratio=0.125)).backbone.shift_ratio == 0.125


def test_classes_of_a_light_network_have_a_default():
    section = light_section(LIGHT[0])
    del section["backbone"]["class_num"]
    assert Recognizer2D.classes_of(section) == 400


def test_features_and_logits_need_heads_of_their_own(section):
    wrong = section()
    wrong["head"] = {"name": "MoViNetHead"}
    with pytest.raises(ConfigError, match="take a head with num_classes"):
        Recognizer2D.classes_of(wrong)
    with pytest.raises(ConfigError, match="ResNetTSM gives features; take a head with num_classes"):
        build_model(wrong)
    wrong = light_section(LIGHT[0])
    wrong["head"] = {"name": "TSMHead", "num_classes": 3, "in_channels": 3}
    with pytest.raises(ConfigError, match="PPTSM_MobileNetV2 gives logits; take MoViNetHead"):
        build_model(wrong)


def test_partial_bn_keeps_all_statistics_but_the_first(make_model):
    model = make_model(partial_bn=True)
    model.train()
    before = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    model.loss(model(clips()), paddle.to_tensor([0, 1])).backward()
    changed = {n for n, value in model.state_dict().items() if not np.array_equal(value.numpy(), before[n])}
    assert changed == {"backbone.conv._batch_norm._mean", "backbone.conv._batch_norm._variance"}
    trained = {name for name, value in model.named_parameters() if value.grad is not None}
    assert {name for name in trained if "_batch_norm" in name} == {
        "backbone.conv._batch_norm.weight", "backbone.conv._batch_norm.bias",
    }  # fmt: skip


@pytest.mark.parametrize(("first_weights", "deviation"), [("published", 0.02), ("xavier", 0.079)])
def test_the_first_weights_of_transformers(first_weights, deviation):
    backbone = {"name": "VideoMAEViT", "embed_dim": 64, "depth": 1, "num_heads": 4, "patch_size": 4}
    head = {"name": "VideoMAEHead", "num_classes": 3, "in_channels": 64}
    section = {"framework": "RecognizerTransformer", "first_weights": first_weights, "head": head}
    mlp = build_model({**section, "backbone": backbone}).backbone.blocks[0].mlp
    for layer in (mlp.fc1, mlp.fc2):  # of 64 and of 256 inputs
        assert layer.weight.numpy().std() == pytest.approx(deviation, rel=0.15)
        assert not layer.bias.numpy().any()
